// A checkpoint of DeepSeek-V2-Lite's names, shapes and files at full size, without its bytes: the files are sparse.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint_files.h"
#include "runner/checkpoint/checkpoint.h"
#include "runner/checkpoint/weights.h"

namespace flashmla::runner {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Named {
  std::string name;
  std::vector<int64_t> shape;
  int64_t bytes() const { return 2 * element_count(shape); }
};

// The published list, in the order of the layers.
std::vector<Named> v2_lite_tensors() {
  std::vector<Named> tensors = {{"model.embed_tokens.weight", {102400, 2048}}};
  const auto mlp = [&](const std::string& prefix, int64_t width) {
    tensors.push_back({prefix + "gate_proj.weight", {width, 2048}});
    tensors.push_back({prefix + "up_proj.weight", {width, 2048}});
    tensors.push_back({prefix + "down_proj.weight", {2048, width}});
  };
  for (int n = 0; n < 27; ++n) {
    const std::string layer = "model.layers." + std::to_string(n) + ".";
    tensors.push_back({layer + "self_attn.q_proj.weight", {3072, 2048}});
    tensors.push_back({layer + "self_attn.kv_a_proj_with_mqa.weight", {576, 2048}});
    tensors.push_back({layer + "self_attn.kv_a_layernorm.weight", {512}});
    tensors.push_back({layer + "self_attn.kv_b_proj.weight", {4096, 512}});
    tensors.push_back({layer + "self_attn.o_proj.weight", {2048, 2048}});
    if (n == 0) {
      mlp(layer + "mlp.", 10944);
    } else {
      for (int e = 0; e < 64; ++e) mlp(layer + "mlp.experts." + std::to_string(e) + ".", 1408);
      tensors.push_back({layer + "mlp.gate.weight", {64, 2048}});
      mlp(layer + "mlp.shared_experts.", 2816);
    }
    tensors.push_back({layer + "input_layernorm.weight", {2048}});
    tensors.push_back({layer + "post_attention_layernorm.weight", {2048}});
  }
  tensors.push_back({"model.norm.weight", {2048}});
  tensors.push_back({"lm_head.weight", {102400, 2048}});
  return tensors;
}

void write_sparse_shard(const fs::path& path, const std::vector<Named>& tensors) {
  json header;
  int64_t end = 0;
  for (const Named& tensor : tensors) {
    const int64_t begin = end;
    end += tensor.bytes();
    header[tensor.name] = {{"dtype", "BF16"}, {"shape", tensor.shape}, {"data_offsets", {begin, end}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // as the format's own writer does, so that all data are aligned
  write_text(path, raw_safetensors(text, ""));
  fs::resize_file(path, fs::file_size(path) + static_cast<uintmax_t>(end));
}

// Four files of at most 8.6 GB, as the hub has them: "model-00001-of-000004.safetensors", with six digits in the total.
void write_sparse_checkpoint(const fs::path& folder) {
  constexpr int64_t kShardBytes = 8'600'000'000;
  json map;
  std::vector<std::vector<Named>> shards(1);
  int64_t bytes = 0;
  for (const Named& tensor : v2_lite_tensors()) {
    if (bytes + tensor.bytes() > kShardBytes) {
      shards.emplace_back();
      bytes = 0;
    }
    bytes += tensor.bytes();
    shards.back().push_back(tensor);
  }
  for (size_t k = 0; k < shards.size(); ++k) {
    const std::string file = "model-0000" + std::to_string(k + 1) + "-of-000004.safetensors";
    for (const Named& tensor : shards[k]) map[tensor.name] = file;
    write_sparse_shard(folder / file, shards[k]);
  }
  write_text(folder / "model.safetensors.index.json",
             json{{"metadata", {{"total_size", 31412968448}}}, {"weight_map", map}}.dump());
  write_text(folder / "config.json", v2_lite_config());
}

int64_t bytes_on_disk(const fs::path& folder) {
  int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    struct stat info {};
    stat(entry.path().c_str(), &info);
    bytes += info.st_blocks * 512;
  }
  return bytes;
}

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0;
  file >> pages >> pages;
  return pages * 4096;
}

TEST(SparseCheckpoint, V2LiteLoads) {
  const TempFolder folder;
  write_sparse_checkpoint(folder.path());
  ASSERT_LT(bytes_on_disk(folder.path()), 4 << 20) << "the file system keeps no sparse files";
  const Result<Checkpoint> checkpoint = Checkpoint::open(folder.text());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().text();
  EXPECT_EQ(checkpoint.value().tensors().size(), 5291u);
  EXPECT_EQ(checkpoint.value().shards().size(), 4u);
  EXPECT_EQ(checkpoint.value().shards().front(), "model-00001-of-000004.safetensors");
  EXPECT_EQ(checkpoint.value().tensor_bytes(), 31'412'968'448);

  const Result<ModelConfig> config = load_model_config(folder.text() + "/config.json");
  ASSERT_TRUE(config.ok()) << config.status().text();
  LoadOptions options;
  options.warning = [](const std::string& text) { ADD_FAILURE() << text; };
  const int64_t before = resident_bytes();
  const Result<Weights> weights = load_weights(folder.text(), config.value(), options);
  ASSERT_TRUE(weights.ok()) << weights.status().text();
  EXPECT_LT(resident_bytes() - before, 64 << 20) << "weights stay in the files";
  EXPECT_EQ(weights.value().layers.size(), 27u);
  EXPECT_EQ(weights.value().layers[26].experts.size(), 64u);
  EXPECT_EQ(weights.value().layers[26].shared.up.rows, 2816);
  EXPECT_EQ(weights.value().head.rows, 102400);
}

}  // namespace
}  // namespace flashmla::runner
