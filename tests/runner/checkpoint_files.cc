#include "checkpoint_files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

namespace flashmla::runner {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

void put(std::string& bytes, uint64_t value, int count) {
  for (int i = 0; i < count; ++i) bytes += static_cast<char>(value >> 8 * i);
}

uint16_t to_f16(float value) {  // of values that are exact in it, and normal or 0
  const auto bits = std::bit_cast<uint32_t>(value);
  if (value == 0) return static_cast<uint16_t>(bits >> 16);
  const uint32_t exponent = (bits >> 23 & 0xffu) - 112;
  return static_cast<uint16_t>((bits >> 16 & 0x8000u) | exponent << 10 | (bits >> 13 & 0x3ffu));
}

}  // namespace

TempFolder::TempFolder() {
  std::string name = (fs::temp_directory_path() / "flashmla-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
  path_ = name;
}
TempFolder::~TempFolder() {
  std::error_code error;
  fs::remove_all(path_, error);
}

void write_text(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary);
  file << text;
  ASSERT_TRUE(file.flush()) << path;
}

std::string raw_safetensors(const std::string& header, const std::string& data) {
  std::string file;
  put(file, header.size(), 8);
  return file + header + data;
}

std::string safetensors(const std::vector<TestTensor>& tensors, int padding) {
  json header = {{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const TestTensor& tensor : tensors) {
    const size_t end = data.size() + tensor.bytes.size();
    header[tensor.name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {data.size(), end}}};
    data += tensor.bytes;
  }
  return raw_safetensors(header.dump() + std::string(static_cast<size_t>(padding), ' '), data);
}

std::string encode(const std::string& dtype, const std::vector<float>& values) {
  std::string bytes;
  for (float value : values) {
    const auto bits = std::bit_cast<uint32_t>(value);
    if (dtype == "F32") put(bytes, bits, 4);
    if (dtype == "BF16") put(bytes, bits >> 16, 2);
    if (dtype == "F16") put(bytes, to_f16(value), 2);
  }
  return bytes;
}

int64_t element_count(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  return count;
}

std::vector<float> test_values(const std::string& name, int64_t count) {
  uint32_t state = 2166136261u;  // FNV-1a of the name, then a linear congruence
  for (char c : name) state = (state ^ static_cast<unsigned char>(c)) * 16777619u;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(static_cast<int32_t>(state >> 24) - 128) / 64.0f;
  }
  return values;
}

std::vector<TestTensor> model_tensors(const ModelConfig& c, const std::string& dtype) {
  std::vector<TestTensor> tensors;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    const std::string type = name.ends_with("correction_bias") ? "F32" : dtype;
    const std::string bytes = encode(type, test_values(name, element_count(shape)));
    tensors.push_back({name, type, std::move(shape), bytes});
  };
  const auto mlp = [&](const std::string& prefix, int64_t width) {
    add(prefix + "gate_proj.weight", {width, c.hidden});
    add(prefix + "up_proj.weight", {width, c.hidden});
    add(prefix + "down_proj.weight", {c.hidden, width});
  };
  add("model.embed_tokens.weight", {c.vocab, c.hidden});
  for (int64_t n = 0; n < c.layers; ++n) {
    const std::string layer = "model.layers." + std::to_string(n) + ".";
    const std::string attention = layer + "self_attn.";
    const int64_t queries = c.heads * (c.qk_nope_dim + c.qk_rope_dim);
    add(layer + "input_layernorm.weight", {c.hidden});
    if (c.q_lora_rank == 0) {
      add(attention + "q_proj.weight", {queries, c.hidden});
    } else {
      add(attention + "q_a_proj.weight", {c.q_lora_rank, c.hidden});
      add(attention + "q_a_layernorm.weight", {c.q_lora_rank});
      add(attention + "q_b_proj.weight", {queries, c.q_lora_rank});
    }
    add(attention + "kv_a_proj_with_mqa.weight", {c.kv_lora_rank + c.qk_rope_dim, c.hidden});
    add(attention + "kv_a_layernorm.weight", {c.kv_lora_rank});
    add(attention + "kv_b_proj.weight", {c.heads * (c.qk_nope_dim + c.v_dim), c.kv_lora_rank});
    add(attention + "o_proj.weight", {c.hidden, c.heads * c.v_dim});
    add(layer + "post_attention_layernorm.weight", {c.hidden});
    if (n < c.first_dense_layers) {
      mlp(layer + "mlp.", c.intermediate);
      continue;
    }
    add(layer + "mlp.gate.weight", {c.routed_experts, c.hidden});
    if (c.model_type == "deepseek_v3") add(layer + "mlp.gate.e_score_correction_bias", {c.routed_experts});
    for (int64_t e = 0; e < c.routed_experts; ++e) {
      mlp(layer + "mlp.experts." + std::to_string(e) + ".", c.moe_intermediate);
    }
    mlp(layer + "mlp.shared_experts.", c.shared_experts * c.moe_intermediate);
  }
  add("model.norm.weight", {c.hidden});
  add("lm_head.weight", {c.vocab, c.hidden});
  return tensors;
}

std::vector<TestTensor> fuse_experts(const ModelConfig& c, std::vector<TestTensor> tensors) {
  std::map<std::string, std::string> gates;
  std::map<std::string, TestTensor> fused;
  std::vector<TestTensor> result;
  for (TestTensor& tensor : tensors) {  // per expert in the order gate, up, down
    const size_t at = tensor.name.find(".experts.");
    if (at == std::string::npos) {
      result.push_back(std::move(tensor));
      continue;
    }
    const bool down = tensor.name.find("down_proj") != std::string::npos;
    const std::string name = tensor.name.substr(0, at) + ".experts." + (down ? "down_proj" : "gate_up_proj");
    TestTensor& to = fused[name];
    to.name = name;
    to.dtype = tensor.dtype;
    to.shape = down ? std::vector{c.routed_experts, c.hidden, c.moe_intermediate}
                    : std::vector{c.routed_experts, 2 * c.moe_intermediate, c.hidden};
    to.bytes += tensor.bytes;
  }
  for (auto& [name, tensor] : fused) result.push_back(std::move(tensor));
  return result;
}

void write_checkpoint(const fs::path& folder, const std::vector<TestTensor>& tensors, int padding) {
  write_text(folder / "model.safetensors", safetensors(tensors, padding));
}

void write_shards(const fs::path& folder, const std::vector<TestTensor>& tensors, int count) {
  json map;
  for (int k = 0; k < count; ++k) {
    std::vector<TestTensor> part;
    const std::string file = "part-" + std::to_string(k) + "-of-x.safetensors";
    for (size_t i = static_cast<size_t>(k); i < tensors.size(); i += static_cast<size_t>(count)) {
      part.push_back(tensors[i]);
      map[tensors[i].name] = file;
    }
    write_text(folder / file, safetensors(part));
  }
  write_text(folder / "model.safetensors.index.json", json{{"weight_map", map}}.dump());
}

std::string with(const std::string& text, const std::vector<std::pair<std::string, std::string>>& changes) {
  json object = json::parse(text);
  for (const auto& [key, value] : changes) {
    if (value.empty()) {
      object.erase(key);
    } else {
      object[key] = json::parse(value);
    }
  }
  return object.dump();
}

ModelConfig config_of(const std::string& text) {
  const Result<ModelConfig> config = parse_model_config(text);
  EXPECT_TRUE(config.ok()) << config.status().text();
  return config.ok() ? config.value() : ModelConfig();
}

}  // namespace flashmla::runner
