// A checkpoint's tensors by name, whichever shard holds them. Nothing is read yet but headers.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "flashmla/status.h"
#include "runner/checkpoint/safetensors.h"

namespace flashmla::runner {

class Checkpoint {
 public:
  struct Tensor {
    StoredTensor stored;
    std::shared_ptr<const MappedFile> file;  // keeps stored.data alive
  };

  // `folder` holds model.safetensors.index.json and the shards that it names, or *.safetensors files without an index.
  // Missing shards, and tensors that the index names but its shard lacks, are one error with the list.
  static Result<Checkpoint> open(const std::string& folder);

  // nullptr: no tensor of that name.
  const Tensor* find(const std::string& name) const;
  const std::unordered_map<std::string, Tensor>& tensors() const { return tensors_; }
  // File names, sorted, and the bytes of all tensors in them.
  const std::vector<std::string>& shards() const { return shards_; }
  int64_t tensor_bytes() const { return tensor_bytes_; }
  // MappedFile::read_ahead for every shard.
  void read_ahead() const;

 private:
  Status add_shard(const std::string& folder, const std::string& shard,
                   const std::unordered_map<std::string, std::string>& shard_of);

  std::unordered_map<std::string, Tensor> tensors_;
  std::vector<std::shared_ptr<const MappedFile>> files_;
  std::vector<std::string> shards_;
  int64_t tensor_bytes_ = 0;
};

// `text`: the content of model.safetensors.index.json. Tensor name to file name; file names are plain names ending in
// ".safetensors" (never a path). `where` begins the error's text.
Result<std::unordered_map<std::string, std::string>> parse_shard_index(const std::string& text,
                                                                       const std::string& where);

}  // namespace flashmla::runner
