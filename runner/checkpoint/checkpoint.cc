#include "runner/checkpoint/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "runner/checkpoint/json_keys.h"
#include "runner/error_text.h"

namespace flashmla::runner {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ShardOf = std::unordered_map<std::string, std::string>;

constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr const char* kSuffix = ".safetensors";
constexpr size_t kListed = 20;

bool is_shard_name(const std::string& name) {
  return name.size() > std::string(kSuffix).size() && name.ends_with(kSuffix) && name.front() != '.' &&
         name.find_first_of("/\\\0", 0, 3) == std::string::npos;
}

// The shards of a folder without an index: all that are there.
Result<std::vector<std::string>> find_shards(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> shards;
  bool pickled = false;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (is_shard_name(name)) shards.push_back(name);
    pickled = pickled || name.ends_with(".bin") || name.ends_with(".pt") || name.ends_with(".pth");
  }
  if (error) return Status(StatusCode::kNotFound, folder + ": cannot be listed: " + error.message());
  if (shards.empty()) {
    return Status(StatusCode::kNotFound,
                  folder + ": got no " + kIndexFile + " and no *" + kSuffix + " file" +
                      (pickled ? "; pickled weights (*.bin, *.pt) can run code and are not read: want the checkpoint "
                                 "saved as safetensors"
                               : ""));
  }
  std::ranges::sort(shards);
  return shards;
}

Status check_shards_exist(const std::string& folder, const std::vector<std::string>& shards) {
  std::vector<std::string> missing;
  std::error_code error;
  for (const std::string& shard : shards) {
    if (!fs::exists(fs::path(folder) / shard, error)) missing.push_back(shard);
  }
  if (missing.empty()) return {};
  return {StatusCode::kNotFound, folder + ": " + std::to_string(missing.size()) + " of the " +
                                     std::to_string(shards.size()) + " files that " + kIndexFile +
                                     " names are missing (an incomplete download?): " + list_text(missing, kListed)};
}

}  // namespace

Result<ShardOf> parse_shard_index(const std::string& text, const std::string& where) {
  const Result<json> parsed = parse_json(text, where);
  if (!parsed.ok()) return parsed.status();
  const json* map = nullptr;
  if (parsed.value().is_object()) {
    const auto found = parsed.value().find("weight_map");
    if (found != parsed.value().end() && found->is_object()) map = &*found;
  }
  if (map == nullptr || map->empty()) return invalid(where + "weight_map: want an object of tensor and file names");
  ShardOf shard_of;
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string() || !is_shard_name(file.get<std::string>())) {
      return invalid(where + "weight_map: " + in_quotes(name) + ": got " + json_text(file) + "; want the name of a " +
                     kSuffix + " file in the same folder");
    }
    shard_of.emplace(name, file.get<std::string>());
  }
  return shard_of;
}

Status Checkpoint::add_shard(const std::string& folder, const std::string& shard, const ShardOf& shard_of) {
  Result<SafetensorsFile> opened = open_safetensors((fs::path(folder) / shard).string());
  if (!opened.ok()) return opened.status();
  files_.push_back(opened.value().file);
  for (StoredTensor& stored : opened.value().tensors) {
    const auto indexed = shard_of.find(stored.name);
    if (indexed != shard_of.end() && indexed->second != shard) continue;  // the index names another shard's copy
    const std::string name = stored.name;
    const auto bytes = static_cast<int64_t>(stored.data.size());
    const auto [place, added] = tensors_.try_emplace(name, Tensor{std::move(stored), opened.value().file});
    if (!added) {
      return invalid("tensor " + in_quotes(name) + ": in " + place->second.file->path() + " and in " +
                     opened.value().file->path() + "; want one, or a " + kIndexFile + " that says which");
    }
    tensor_bytes_ += bytes;
  }
  return {};
}

Result<Checkpoint> Checkpoint::open(const std::string& folder) {
  const std::string index_path = (fs::path(folder) / kIndexFile).string();
  Checkpoint checkpoint;
  ShardOf shard_of;
  std::error_code error;
  if (fs::exists(index_path, error)) {
    const Result<std::string> text = read_file(index_path);
    if (!text.ok()) return text.status();
    Result<ShardOf> index = parse_shard_index(text.value(), index_path + ": ");
    if (!index.ok()) return index.status();
    shard_of = std::move(index).value();
    std::set<std::string> names;
    for (const auto& [tensor, shard] : shard_of) names.insert(shard);
    checkpoint.shards_.assign(names.begin(), names.end());
    if (Status status = check_shards_exist(folder, checkpoint.shards_); !status.ok()) return status;
  } else {
    Result<std::vector<std::string>> found = find_shards(folder);
    if (!found.ok()) return found.status();
    checkpoint.shards_ = std::move(found).value();
  }
  for (const std::string& shard : checkpoint.shards_) {
    if (Status status = checkpoint.add_shard(folder, shard, shard_of); !status.ok()) return status;
  }
  std::vector<std::string> missing;
  for (const auto& [name, shard] : shard_of) {
    if (checkpoint.find(name) == nullptr) missing.push_back(std::string(name).append(" (").append(shard).append(")"));
  }
  if (missing.empty()) return checkpoint;
  std::ranges::sort(missing);
  return invalid(index_path + ": " + std::to_string(missing.size()) +
                 " tensors are not in the files that it names: " + list_text(missing, kListed));
}

void Checkpoint::read_ahead() const {
  for (const auto& file : files_) file->read_ahead();
}

const Checkpoint::Tensor* Checkpoint::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

}  // namespace flashmla::runner
