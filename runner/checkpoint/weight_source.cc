#include "runner/checkpoint/weight_source.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <unordered_set>

#include "runner/checkpoint/fp8_blocks.h"
#include "runner/error_text.h"

namespace flashmla::runner {

namespace {

constexpr size_t kListed = 20;
constexpr const char* kLayers = "model.layers.";

// The layer of a tensor's name; -1 outside the layers.
int64_t layer_of(const std::string& name) {
  int64_t layer = -1;
  if (!name.starts_with(kLayers)) return layer;
  const char* begin = name.data() + std::string(kLayers).size();
  const auto [end, error] = std::from_chars(begin, name.data() + name.size(), layer);
  return error == std::errc{} && *end == '.' ? layer : -1;
}

// "model.layers.N.mlp.experts.N.down_proj.bias": the name with its numbers left out.
std::string kind_of(const std::string& name) {
  std::string kind;
  for (char c : name) {
    const bool digit = c >= '0' && c <= '9';
    const bool number = digit && !kind.empty() && (kind.back() == '.' || kind.ends_with(".N"));
    if (!number) {
      kind += c;
    } else if (kind.back() == '.') {
      kind += 'N';
    }
  }
  return kind;
}

std::string counted(int64_t count, const char* noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

}  // namespace

WeightSource SourceFinder::find(const TensorSlot& slot) {
  WeightSource source;
  source.tensor = checkpoint_.find(slot.name);
  source.matrix_rows = slot.rows;
  if (source.tensor == nullptr && slot.expert >= 0) source = find_fused(slot);
  if (!slot.required) note_bias(slot, source.tensor != nullptr);
  if (source.tensor == nullptr) {
    if (slot.required) missing_.push_back(slot.name);
    return source;
  }
  used_.insert(source.tensor);
  const std::vector<int64_t> shape =
      slot.vector != nullptr ? std::vector{slot.rows} : std::vector{slot.rows, slot.cols};
  if (!source.fused && !check_shape(*source.tensor, shape)) return source;
  if (!source.fused || (slot.expert == 0 && slot.role != Role::kExpertUp)) {
    check_type(*source.tensor, slot.vector != nullptr);
  }
  find_scales(source);
  return source;
}

// transformers keeps a layer's experts as two tensors: gate above up [experts, 2 * width, hidden], and down.
WeightSource SourceFinder::find_fused(const TensorSlot& slot) {
  const bool down = slot.role == Role::kExpertDown;
  const std::string name =
      std::string(kLayers) + std::to_string(slot.layer) + ".mlp.experts." + (down ? "down_proj" : "gate_up_proj");
  WeightSource source;
  source.tensor = checkpoint_.find(name);
  if (source.tensor == nullptr) return source;
  source.fused = true;
  source.index = slot.expert;
  source.matrix_rows = down ? slot.rows : 2 * slot.rows;
  source.first_row = slot.role == Role::kExpertUp ? slot.rows : 0;
  const std::vector<int64_t> shape = {config_.routed_experts, source.matrix_rows, slot.cols};
  if (slot.expert == 0 && slot.role != Role::kExpertUp) check_shape(*source.tensor, shape);  // once a tensor
  return source;
}

bool SourceFinder::check_shape(const Checkpoint::Tensor& tensor, const std::vector<int64_t>& shape) {
  if (tensor.stored.shape == shape) return true;
  misfits_.push_back(tensor.stored.name + ": got " + shape_text(tensor.stored.shape) + ", want " + shape_text(shape));
  return false;
}

void SourceFinder::check_type(const Checkpoint::Tensor& tensor, bool vector) {
  const StoredType type = tensor.stored.type;
  const bool plain = type == StoredType::kF32 || type == StoredType::kBF16 || type == StoredType::kF16;
  if (plain || (type == StoredType::kF8E4M3 && !vector)) return;
  misfits_.push_back(tensor.stored.name + ": got dtype " + stored_name(type) + ", supported: F32, BF16, F16" +
                     (vector ? "" : ", F8_E4M3 with scales"));
}

void SourceFinder::find_scales(WeightSource& source) {
  const StoredTensor& weight = source.tensor->stored;
  const std::string name = weight.name + "_scale_inv";
  if (weight.type != StoredType::kF8E4M3 || weight.shape.size() < 2) return;
  source.scales = checkpoint_.find(name);
  if (source.scales == nullptr) return missing_.push_back(name);
  if (!used_.insert(source.scales).second) return;  // of a fused tensor: looked at before
  std::vector<int64_t> shape = weight.shape;
  for (size_t d = shape.size() - 2; d < shape.size(); ++d) shape[d] = fp8_blocks(shape[d]);
  check_shape(*source.scales, shape);
  check_type(*source.scales, true);
}

void SourceFinder::note_bias(const TensorSlot& slot, bool found) {
  const auto role = static_cast<size_t>(slot.role);
  if (found) {
    found_bias_[role] = true;
  } else {
    absent_biases_[role].push_back(slot.name);
  }
}

Status SourceFinder::status(const std::string& folder) const {
  std::vector<std::string> missing = missing_;
  bool any_bias = false;
  for (int role = 0; role < kRoles; ++role) {
    any_bias = any_bias || found_bias_[role];
    if (found_bias_[role]) missing.insert(missing.end(), absent_biases_[role].begin(), absent_biases_[role].end());
  }
  if (config_.attention_bias && !any_bias) {
    missing.emplace_back("the biases of self_attn, which attention_bias in config.json promises");
  }
  std::vector<std::string> texts;
  // Fused experts are asked for once for each expert.
  if (!missing.empty()) {
    std::vector<std::string> names;
    std::unordered_set<std::string> seen;
    for (const std::string& name : missing) {
      if (seen.insert(name).second) names.push_back(name);
    }
    texts.push_back(counted(static_cast<int64_t>(names.size()), "tensor") + " missing: " + list_text(names, kListed));
  }
  if (!misfits_.empty()) {
    texts.push_back(counted(static_cast<int64_t>(misfits_.size()), "tensor") +
                    " not as config.json says: " + list_text(misfits_, kListed));
  }
  if (texts.empty()) return {};
  return invalid(folder + ": " + texts[0] + (texts.size() > 1 ? "; " + texts[1] : ""));
}

void SourceFinder::warn_unused(const std::function<void(const std::string&)>& warning) const {
  if (!warning) return;
  std::map<std::string, int64_t> kinds;
  int64_t beyond = 0;
  for (const auto& [name, tensor] : checkpoint_.tensors()) {
    if (used_.contains(&tensor)) continue;
    if (name.ends_with("rotary_emb.inv_freq")) continue;  // computed here; old checkpoints carry it
    if (name == role_info(Role::kHead).suffix && config_.tie_embeddings) continue;
    if (layer_of(name) >= config_.layers) {
      ++beyond;
    } else {
      ++kinds[kind_of(name)];
    }
  }
  if (beyond > 0) {
    warning(counted(beyond, "tensor") + " of layers from " + std::to_string(config_.layers) +
            " on (for predicting several tokens at once): not used");
  }
  for (const auto& [kind, count] : kinds) {
    warning(in_quotes(kind) + " (" + counted(count, "tensor") + "): unknown, not used");
  }
}

}  // namespace flashmla::runner
