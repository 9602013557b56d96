// Small checkpoints written by tests, and the published configurations.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "runner/checkpoint/model_config.h"

namespace flashmla::runner {

// A folder that is removed with what is in it.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::string text() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

void write_text(const std::filesystem::path& path, const std::string& text);

// A tensor as a safetensors header names it.
struct TestTensor {
  std::string name;
  std::string dtype = "F32";
  std::vector<int64_t> shape;
  std::string bytes;
};

// 8 bytes of length, then `header` as it is, then `data`.
std::string raw_safetensors(const std::string& header, const std::string& data);
// A right file; `padding` spaces behind the header shift the data, so that they may lie at odd addresses.
std::string safetensors(const std::vector<TestTensor>& tensors, int padding = 0);

// Little-endian bytes of values rounded to the dtype (F32, BF16, F16).
std::string encode(const std::string& dtype, const std::vector<float>& values);
int64_t element_count(const std::vector<int64_t>& shape);
// Values that depend on the tensor's name and index alone, all of them exact in BF16.
std::vector<float> test_values(const std::string& name, int64_t count);

// Every tensor of a configuration with test_values. The names are built here, from the published layout, not by the
// code under test.
std::vector<TestTensor> model_tensors(const ModelConfig& config, const std::string& dtype);
// The same with each layer's experts fused into gate_up_proj and down_proj.
std::vector<TestTensor> fuse_experts(const ModelConfig& config, std::vector<TestTensor> tensors);
// One file model.safetensors.
void write_checkpoint(const std::filesystem::path& folder, const std::vector<TestTensor>& tensors, int padding = 0);
// `count` files and their index; file k holds tensors k, k + count, ..
void write_shards(const std::filesystem::path& folder, const std::vector<TestTensor>& tensors, int count);

// config.json texts: the published ones (keys that are read), and tiny models of the same kinds.
std::string v2_lite_config();
std::string v2_config();
std::string v3_config();
std::string tiny_v2_config();
std::string tiny_v3_config();
// `text` with keys replaced or added; the value is JSON, "" removes the key.
std::string with(const std::string& text, const std::vector<std::pair<std::string, std::string>>& changes);
// The parsed text; a failed expectation when it is wrong.
ModelConfig config_of(const std::string& text);

}  // namespace flashmla::runner
