#include "runner/checkpoint/checkpoint_summary.h"

#include <filesystem>
#include <set>

#include "runner/checkpoint/checkpoint.h"
#include "runner/checkpoint/weight_source.h"
#include "runner/error_text.h"

namespace flashmla::runner {

namespace {

class Counter {
 public:
  explicit Counter(CheckpointSummary& summary) : summary_(summary) {}

  void count(const TensorSlot& slot, const WeightSource& source) {
    if (source.tensor == nullptr) return;
    add(slot.role, *source.tensor);
    if (source.scales != nullptr) add(slot.role, *source.scales);
    types_[static_cast<size_t>(slot.role)].insert(stored_name(source.tensor->stored.type));
  }
  void finish() {
    for (size_t role = 0; role < types_.size(); ++role) {
      const std::vector<std::string> names(types_[role].begin(), types_[role].end());
      summary_.roles[role].type = list_text(names, names.size());
    }
  }

 private:
  void add(Role role, const Checkpoint::Tensor& tensor) {
    if (!seen_.insert(&tensor).second) return;  // a fused tensor serves many slots
    const auto bytes = static_cast<int64_t>(tensor.stored.data.size());
    StoredRole& to = summary_.roles[static_cast<size_t>(role)];
    ++to.tensors;
    to.bytes += bytes;
    summary_.used_bytes += bytes;
  }

  CheckpointSummary& summary_;
  std::set<const Checkpoint::Tensor*> seen_;
  std::array<std::set<std::string>, kRoles> types_;
};

}  // namespace

Result<CheckpointSummary> summarize_checkpoint(const std::string& folder, const ModelConfig& config) {
  const Result<Checkpoint> checkpoint = Checkpoint::open(folder);
  if (!checkpoint.ok()) return checkpoint.status();
  CheckpointSummary summary;
  summary.files = checkpoint.value().shards();
  summary.tensors = static_cast<int64_t>(checkpoint.value().tensors().size());
  summary.bytes = checkpoint.value().tensor_bytes();
  Weights weights;
  SourceFinder finder(checkpoint.value(), config);
  Counter counter(summary);
  for (const TensorSlot& slot : list_tensors(config, weights)) counter.count(slot, finder.find(slot));
  if (Status status = finder.status(folder); !status.ok()) return status;
  counter.finish();
  finder.warn_unused([&summary](const std::string& text) { summary.notes.push_back(text); });
  return summary;
}

bool has_checkpoint(const std::string& folder) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json")) return true;
  }
  return false;
}

}  // namespace flashmla::runner
