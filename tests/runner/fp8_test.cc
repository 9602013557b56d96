#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <map>

#include "checkpoint_files.h"
#include "runner/checkpoint/fp8_blocks.h"
#include "runner/checkpoint/weights.h"
#include "runner/float_bits.h"

namespace flashmla::runner {
namespace {

// From the definition of the format, in double.
double e4m3_value(uint8_t bits) {
  const int exponent = bits >> 3 & 0xf;
  const int mantissa = bits & 7;
  if ((bits & 0x7f) == 0x7f) return std::nan("");
  const double magnitude =
      exponent == 0 ? mantissa / 8.0 * std::pow(2, -6) : (1 + mantissa / 8.0) * std::pow(2, exponent - 7);
  return bits & 0x80 ? -magnitude : magnitude;
}

TEST(FloatBits, EveryE4M3Value) {
  for (int bits = 0; bits < 256; ++bits) {
    const double want = e4m3_value(static_cast<uint8_t>(bits));
    const float got = e4m3_to_float(static_cast<uint8_t>(bits));
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(got)) << bits;
    } else {
      EXPECT_EQ(got, want) << bits;
      EXPECT_EQ(std::signbit(got), bits >= 128) << bits;
    }
  }
  EXPECT_EQ(e4m3_to_float(0x7e), 448);
}

TEST(FloatBits, EveryF16Value) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = std::bit_cast<_Float16>(static_cast<uint16_t>(bits));
    const float got = f16_to_float(static_cast<uint16_t>(bits));
    if (std::isnan(static_cast<float>(half))) {
      ASSERT_TRUE(std::isnan(got)) << bits;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(static_cast<float>(half))) << bits;
    }
  }
}

TEST(FloatBits, Bf16RoundsToNearestEven) {
  EXPECT_EQ(float_to_bf16(1.0f), 0x3f80);
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3f808000u)), 0x3f80);  // a tie: to even
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3f818000u)), 0x3f82);
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x7f7fffffu)), 0x7f80);  // beyond the largest: infinity
  EXPECT_EQ(float_to_bf16(-INFINITY), 0xff80);
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::bit_cast<float>(0xffffffffu)))));
}

// Sizes that leave ragged blocks on both sides, and expert widths that put gate and up into the same block.
std::string fp8_config() {
  return with(tiny_v3_config(),
              {{"hidden_size", "136"},
               {"kv_lora_rank", "128"},
               {"qk_rope_head_dim", "64"},
               {"moe_intermediate_size", "72"},
               {"num_hidden_layers", "2"},
               {"quantization_config", R"({"quant_method": "fp8", "weight_block_size": [128, 128]})"}});
}

bool is_projection(const std::string& name) {
  return name.ends_with("_proj.weight") || name.ends_with("with_mqa.weight");
}

int64_t blocks(int64_t size) { return size / 128 + (size % 128 != 0 ? 1 : 0); }

std::vector<float> scales_of(const std::string& name, int64_t count) {
  std::vector<float> scales = test_values(name + "scale", count);
  for (float& scale : scales) scale = 0.001f + std::fabs(scale) * 0.37f;  // many digits: a rounding too many shows
  return scales;
}

std::string fp8_bytes(const std::string& name, int64_t count) {
  std::string bytes;
  for (float value : test_values(name, count)) bytes += static_cast<char>(static_cast<int>(value * 64) & 0xff);
  for (char& byte : bytes) {
    if ((byte & 0x7f) == 0x7f) byte = 0x7e;
  }
  return bytes;
}

// The projections as e4m3 with scales, all else as it was.
std::vector<TestTensor> quantized(const std::vector<TestTensor>& tensors) {
  std::vector<TestTensor> result;
  for (const TestTensor& tensor : tensors) {
    if (!is_projection(tensor.name)) {
      result.push_back(tensor);
      continue;
    }
    const std::vector<int64_t> grid = {blocks(tensor.shape[0]), blocks(tensor.shape[1])};
    result.push_back({tensor.name, "F8_E4M3", tensor.shape, fp8_bytes(tensor.name, element_count(tensor.shape))});
    result.push_back(
        {tensor.name + "_scale_inv", "F32", grid, encode("F32", scales_of(tensor.name, grid[0] * grid[1]))});
  }
  return result;
}

void expect_dequantized(const Matrix& matrix, const std::string& name) {
  ASSERT_TRUE(matrix.given()) << name;
  ASSERT_EQ(matrix.type, WeightType::kBF16) << name;
  const std::string bytes = fp8_bytes(name, matrix.rows * matrix.cols);
  const std::vector<float> scales = scales_of(name, blocks(matrix.rows) * blocks(matrix.cols));
  std::vector<float> row(static_cast<size_t>(matrix.cols));
  for (int64_t r = 0; r < matrix.rows; ++r) {
    read_row(matrix, r, row.data());
    for (int64_t c = 0; c < matrix.cols; ++c) {
      const float scale = scales[static_cast<size_t>(r / 128 * blocks(matrix.cols) + c / 128)];
      const double exact = e4m3_value(static_cast<uint8_t>(bytes[static_cast<size_t>(r * matrix.cols + c)]));
      const float want = bf16_to_float(float_to_bf16(static_cast<float>(exact) * scale));
      ASSERT_EQ(row[static_cast<size_t>(c)], want) << name << " [" << r << ", " << c << "]";
    }
  }
}

TEST(Fp8Weights, EveryProjectionIsDequantized) {
  const TempFolder folder;
  const ModelConfig config = config_of(fp8_config());
  write_checkpoint(folder.path(), quantized(model_tensors(config, "BF16")), 3);
  for (int32_t threads : {1, 3}) {
    LoadOptions options;
    options.threads = threads;
    options.warning = [](const std::string& text) { ADD_FAILURE() << text; };
    const Result<Weights> weights = load_weights(folder.text(), config, options);
    ASSERT_TRUE(weights.ok()) << weights.status().text();
    for (int n = 0; n < 2; ++n) {
      const Layer& layer = weights.value().layers[static_cast<size_t>(n)];
      const std::string prefix = "model.layers." + std::to_string(n) + ".";
      expect_dequantized(layer.attention.q_a, prefix + "self_attn.q_a_proj.weight");
      expect_dequantized(layer.attention.q_b, prefix + "self_attn.q_b_proj.weight");
      expect_dequantized(layer.attention.kv_a, prefix + "self_attn.kv_a_proj_with_mqa.weight");
      expect_dequantized(layer.attention.kv_b, prefix + "self_attn.kv_b_proj.weight");
      expect_dequantized(layer.attention.o, prefix + "self_attn.o_proj.weight");
    }
    expect_dequantized(weights.value().layers[0].dense.down, "model.layers.0.mlp.down_proj.weight");
    const Layer& moe = weights.value().layers[1];
    expect_dequantized(moe.experts[5].up, "model.layers.1.mlp.experts.5.up_proj.weight");
    expect_dequantized(moe.shared.gate, "model.layers.1.mlp.shared_experts.gate_proj.weight");
    EXPECT_EQ(moe.router.type, WeightType::kBF16);
    EXPECT_EQ(weights.value().head.type, WeightType::kBF16);
  }
}

// A fused tensor's grid of scales spans gate and up: up's first rows share gate's last block.
TEST(Fp8Weights, FusedExperts) {
  const TempFolder folder;
  const ModelConfig config = config_of(fp8_config());
  const int64_t width = config.moe_intermediate;
  std::vector<TestTensor> tensors;
  for (const TestTensor& tensor : model_tensors(config, "BF16")) {
    if (tensor.name.find(".experts.") == std::string::npos) tensors.push_back(tensor);
  }
  const std::string prefix = "model.layers.1.mlp.experts.";
  const int64_t experts = config.routed_experts;
  const int64_t gate_rows = experts * 2 * width;
  tensors.push_back({prefix + "gate_up_proj", "F8_E4M3", {experts, 2 * width, 136}, fp8_bytes("gu", gate_rows * 136)});
  tensors.push_back(
      {prefix + "gate_up_proj_scale_inv", "F32", {experts, 2, 2}, encode("F32", scales_of("gu", experts * 4))});
  tensors.push_back({prefix + "down_proj", "F8_E4M3", {experts, 136, width}, fp8_bytes("d", experts * 136 * width)});
  tensors.push_back(
      {prefix + "down_proj_scale_inv", "F32", {experts, 2, 1}, encode("F32", scales_of("d", experts * 2))});
  write_checkpoint(folder.path(), tensors);
  const Result<Weights> weights = load_weights(folder.text(), config, {});
  ASSERT_TRUE(weights.ok()) << weights.status().text();
  const std::string bytes = fp8_bytes("gu", gate_rows * 136);
  const std::vector<float> scales = scales_of("gu", experts * 4);
  std::vector<float> row(136);
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t r = 0; r < width; ++r) {
      read_row(weights.value().layers[1].experts[static_cast<size_t>(e)].up, r, row.data());
      const int64_t stored_row = width + r;
      for (int64_t c = 0; c < 136; ++c) {
        const double value =
            e4m3_value(static_cast<uint8_t>(bytes[static_cast<size_t>((e * 2 * width + stored_row) * 136 + c)]));
        const float scale = scales[static_cast<size_t>(e * 4 + stored_row / 128 * 2 + c / 128)];
        ASSERT_EQ(row[static_cast<size_t>(c)], bf16_to_float(float_to_bf16(static_cast<float>(value) * scale)))
            << "expert " << e << ", row " << r << ", column " << c;
      }
    }
  }
}

TEST(Fp8Weights, MissingAndMisshapenScales) {
  const TempFolder folder;
  const ModelConfig config = config_of(fp8_config());
  std::vector<TestTensor> tensors = quantized(model_tensors(config, "BF16"));
  std::erase_if(tensors,
                [](const TestTensor& t) { return t.name == "model.layers.0.self_attn.o_proj.weight_scale_inv"; });
  for (TestTensor& tensor : tensors) {
    if (tensor.name == "model.layers.1.self_attn.kv_a_proj_with_mqa.weight_scale_inv") {
      tensor.shape = {1, 4};
    }
  }
  write_checkpoint(folder.path(), tensors);
  const std::string error = load_weights(folder.text(), config, {}).status().text();
  EXPECT_NE(error.find("1 tensor missing: model.layers.0.self_attn.o_proj.weight_scale_inv"), std::string::npos)
      << error;
  EXPECT_NE(error.find("kv_a_proj_with_mqa.weight_scale_inv: got [1, 4], want [2, 2]"), std::string::npos) << error;
}

TEST(Fp8Weights, ToInt8) {
  const TempFolder folder;
  const ModelConfig config = config_of(fp8_config());
  write_checkpoint(folder.path(), quantized(model_tensors(config, "BF16")));
  LoadOptions options;
  options.policy = WeightPolicy::kInt8;
  const Result<Weights> weights = load_weights(folder.text(), config, options);
  ASSERT_TRUE(weights.ok()) << weights.status().text();
  const Result<Weights> plain = load_weights(folder.text(), config, {});
  const Matrix& int8 = weights.value().layers[0].attention.kv_b;
  const Matrix& bf16 = plain.value().layers[0].attention.kv_b;
  ASSERT_EQ(int8.type, WeightType::kInt8);
  std::vector<float> got(static_cast<size_t>(int8.cols));
  std::vector<float> want(got.size());
  for (int64_t r = 0; r < int8.rows; ++r) {
    read_row(int8, r, got.data());
    read_row(bf16, r, want.data());
    float most = 0;
    for (float value : want) most = std::max(most, std::fabs(value));
    for (size_t c = 0; c < want.size(); ++c) ASSERT_NEAR(got[c], want[c], most / 127 * 0.51f);
  }
}

}  // namespace
}  // namespace flashmla::runner
