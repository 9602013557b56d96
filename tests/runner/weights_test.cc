#include "runner/checkpoint/weights.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "checkpoint_files.h"

namespace flashmla::runner {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<float> all_values(const Matrix& matrix) {
  std::vector<float> values(static_cast<size_t>(matrix.rows * matrix.cols));
  for (int64_t r = 0; r < matrix.rows; ++r) read_row(matrix, r, values.data() + r * matrix.cols);
  return values;
}

void expect_matrix(const Matrix& matrix, const std::string& name, int64_t rows, int64_t cols) {
  ASSERT_TRUE(matrix.given()) << name;
  ASSERT_EQ(matrix.rows, rows) << name;
  ASSERT_EQ(matrix.cols, cols) << name;
  EXPECT_EQ(all_values(matrix), test_values(name, rows * cols)) << name;
}

void expect_mlp(const Mlp& mlp, const std::string& prefix, int64_t width, int64_t hidden) {
  expect_matrix(mlp.gate, prefix + "gate_proj.weight", width, hidden);
  expect_matrix(mlp.up, prefix + "up_proj.weight", width, hidden);
  expect_matrix(mlp.down, prefix + "down_proj.weight", hidden, width);
}

void expect_attention(const Attention& a, const std::string& prefix, const ModelConfig& c) {
  const int64_t queries = c.heads * c.qk_dim();
  if (c.q_lora_rank == 0) {
    expect_matrix(a.q, prefix + "q_proj.weight", queries, c.hidden);
    EXPECT_FALSE(a.q_a.given());
  } else {
    expect_matrix(a.q_a, prefix + "q_a_proj.weight", c.q_lora_rank, c.hidden);
    expect_matrix(a.q_b, prefix + "q_b_proj.weight", queries, c.q_lora_rank);
    EXPECT_EQ(a.q_a_norm, test_values(prefix + "q_a_layernorm.weight", c.q_lora_rank));
    EXPECT_FALSE(a.q.given());
  }
  expect_matrix(a.kv_a, prefix + "kv_a_proj_with_mqa.weight", c.kv_lora_rank + c.qk_rope_dim, c.hidden);
  EXPECT_EQ(a.kv_a_norm, test_values(prefix + "kv_a_layernorm.weight", c.kv_lora_rank));
  expect_matrix(a.kv_b, prefix + "kv_b_proj.weight", c.heads * (c.qk_nope_dim + c.v_dim), c.kv_lora_rank);
  expect_matrix(a.o, prefix + "o_proj.weight", c.hidden, c.heads * c.v_dim);
}

void expect_all(const Weights& weights, const ModelConfig& c) {
  expect_matrix(weights.embedding, "model.embed_tokens.weight", c.vocab, c.hidden);
  expect_matrix(weights.head, "lm_head.weight", c.vocab, c.hidden);
  EXPECT_EQ(weights.norm, test_values("model.norm.weight", c.hidden));
  ASSERT_EQ(weights.layers.size(), static_cast<size_t>(c.layers));
  for (int64_t n = 0; n < c.layers; ++n) {
    const Layer& layer = weights.layers[static_cast<size_t>(n)];
    const std::string prefix = "model.layers." + std::to_string(n) + ".";
    EXPECT_EQ(layer.input_norm, test_values(prefix + "input_layernorm.weight", c.hidden));
    EXPECT_EQ(layer.post_attention_norm, test_values(prefix + "post_attention_layernorm.weight", c.hidden));
    expect_attention(layer.attention, prefix + "self_attn.", c);
    if (n < c.first_dense_layers) {
      expect_mlp(layer.dense, prefix + "mlp.", c.intermediate, c.hidden);
      EXPECT_TRUE(layer.experts.empty());
      continue;
    }
    EXPECT_FALSE(layer.dense.gate.given());
    expect_matrix(layer.router, prefix + "mlp.gate.weight", c.routed_experts, c.hidden);
    const auto bias = test_values(prefix + "mlp.gate.e_score_correction_bias", c.routed_experts);
    EXPECT_EQ(layer.router_bias, c.topk_method == TopkMethod::kNoauxTc ? bias : std::vector<float>());
    ASSERT_EQ(layer.experts.size(), static_cast<size_t>(c.routed_experts));
    for (int64_t e = 0; e < c.routed_experts; ++e) {
      expect_mlp(layer.experts[static_cast<size_t>(e)], prefix + "mlp.experts." + std::to_string(e) + ".",
                 c.moe_intermediate, c.hidden);
    }
    expect_mlp(layer.shared, prefix + "mlp.shared_experts.", c.shared_experts * c.moe_intermediate, c.hidden);
  }
}

// Options under which any warning is a failure.
LoadOptions strict() {
  LoadOptions options;
  options.warning = [](const std::string& text) { ADD_FAILURE() << text; };
  return options;
}

Weights load(const TempFolder& folder, const ModelConfig& config, const LoadOptions& options = strict()) {
  Result<Weights> weights = load_weights(folder.text(), config, options);
  EXPECT_TRUE(weights.ok()) << weights.status().text();
  return weights.ok() ? std::move(weights).value() : Weights();
}

TEST(LoadWeights, EveryTensorOfV2AndV3InEveryType) {
  for (const std::string& text : {tiny_v2_config(), tiny_v3_config()}) {
    const ModelConfig config = config_of(text);
    for (const auto& [dtype, type] : {std::pair("F32", WeightType::kF32), std::pair("BF16", WeightType::kBF16),
                                      std::pair("F16", WeightType::kF16)}) {
      const TempFolder folder;
      write_checkpoint(folder.path(), model_tensors(config, dtype));
      const Weights weights = load(folder, config);
      expect_all(weights, config);
      EXPECT_EQ(weights.layers[1].experts[0].gate.type, type);
    }
  }
}

TEST(LoadWeights, ShardsAndFusedExperts) {
  for (const std::string& text : {tiny_v2_config(), tiny_v3_config()}) {
    const ModelConfig config = config_of(text);
    const TempFolder folder;
    write_shards(folder.path(), fuse_experts(config, model_tensors(config, "BF16")), 3);
    expect_all(load(folder, config), config);
  }
}

// The format promises no alignment: at odd addresses the data are copied, else they stay in the mapped file.
TEST(LoadWeights, DataAtAnyAddress) {
  const ModelConfig config = config_of(tiny_v2_config());
  for (const char* dtype : {"F32", "BF16"}) {
    for (int padding = 0; padding < 4; ++padding) {
      const TempFolder folder;
      write_checkpoint(folder.path(), model_tensors(config, dtype), padding);
      const Weights weights = load(folder, config);
      expect_all(weights, config);
      const auto address = reinterpret_cast<uintptr_t>(weights.embedding.data);
      EXPECT_EQ(address % static_cast<uintptr_t>(element_bytes(weights.embedding.type)), 0u);
    }
  }
}

TEST(LoadWeights, WeightsOutliveTheLoader) {
  const ModelConfig config = config_of(tiny_v2_config());
  Matrix head;
  {
    const TempFolder folder;
    write_checkpoint(folder.path(), model_tensors(config, "BF16"));
    head = load(folder, config).head;
  }  // the files are gone, their pages are not
  expect_matrix(head, "lm_head.weight", config.vocab, config.hidden);
}

TEST(LoadWeights, Int8OfProjectionsExpertsAndHead) {
  const ModelConfig config = config_of(tiny_v3_config());
  const TempFolder folder;
  write_checkpoint(folder.path(), model_tensors(config, "BF16"));
  LoadOptions options = strict();
  options.policy = WeightPolicy::kInt8;
  const Weights weights = load(folder, config, options);
  const Layer& moe = weights.layers[2];
  for (const Matrix* matrix :
       {&weights.head, &moe.attention.q_a, &moe.attention.q_b, &moe.attention.kv_a, &moe.attention.kv_b,
        &moe.attention.o, &moe.experts[7].down, &moe.shared.up, &weights.layers[0].dense.gate}) {
    EXPECT_EQ(matrix->type, WeightType::kInt8);
  }
  EXPECT_EQ(weights.embedding.type, WeightType::kBF16);
  EXPECT_EQ(moe.router.type, WeightType::kBF16);
  const std::vector<float> got = all_values(moe.experts[7].down);
  const std::vector<float> want = test_values("model.layers.2.mlp.experts.7.down_proj.weight", 24 * 10);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 2.0 / 127 * 0.51) << i;
}

TEST(LoadWeights, MissingTensorsAreListed) {
  const ModelConfig config = config_of(tiny_v2_config());
  const TempFolder folder;
  std::vector<TestTensor> tensors = model_tensors(config, "BF16");
  std::erase_if(tensors, [](const TestTensor& t) {
    return t.name == "model.norm.weight" || t.name == "model.layers.1.mlp.experts.3.up_proj.weight";
  });
  write_checkpoint(folder.path(), tensors);
  const Result<Weights> weights = load_weights(folder.text(), config, strict());
  ASSERT_FALSE(weights.ok());
  EXPECT_EQ(weights.status().text(), folder.text() +
                                         ": 2 tensors missing: model.layers.1.mlp.experts.3.up_proj.weight, "
                                         "model.norm.weight");
}

TEST(LoadWeights, ALongListIsCut) {
  const ModelConfig config = config_of(tiny_v2_config());
  const TempFolder folder;
  write_checkpoint(folder.path(), {model_tensors(config, "BF16").front()});
  const std::string error = load_weights(folder.text(), config, strict()).status().text();
  const size_t all = model_tensors(config, "BF16").size() - 1;
  EXPECT_THAT(error, HasSubstr(std::to_string(all) + " tensors missing: model.layers.0.input_layernorm.weight, "));
  EXPECT_THAT(error, HasSubstr(" and " + std::to_string(all - 20) + " more"));
}

TEST(LoadWeights, MisfitsAreListed) {
  const ModelConfig config = config_of(tiny_v2_config());
  const TempFolder folder;
  std::vector<TestTensor> tensors = model_tensors(config, "BF16");
  for (TestTensor& tensor : tensors) {
    if (tensor.name == "model.layers.0.self_attn.kv_b_proj.weight") std::swap(tensor.shape[0], tensor.shape[1]);
    if (tensor.name == "lm_head.weight") tensor.dtype = "I16";
    if (tensor.name == "model.norm.weight") tensor.shape = {1, 24};
  }
  write_checkpoint(folder.path(), tensors);
  const std::string error = load_weights(folder.text(), config, strict()).status().text();
  EXPECT_THAT(error, HasSubstr("3 tensors not as config.json says: "));
  EXPECT_THAT(error, HasSubstr("kv_b_proj.weight: got [16, 28], want [28, 16]"));
  EXPECT_THAT(error, HasSubstr("model.norm.weight: got [1, 24], want [24]"));
  EXPECT_THAT(error, HasSubstr("lm_head.weight: got dtype I16, supported: F32, BF16, F16, F8_E4M3 with scales"));
}

TEST(LoadWeights, MisshapenFusedExperts) {
  const ModelConfig config = config_of(tiny_v2_config());
  const TempFolder folder;
  std::vector<TestTensor> tensors = fuse_experts(config, model_tensors(config, "BF16"));
  for (TestTensor& tensor : tensors) {
    if (tensor.name == "model.layers.1.mlp.experts.gate_up_proj") tensor.shape = {2, 2 * 20, 24};
    if (tensor.name == "model.layers.1.mlp.experts.down_proj") tensor.shape = {4 * 24, 10};
  }
  write_checkpoint(folder.path(), tensors);
  const std::string error = load_weights(folder.text(), config, strict()).status().text();
  EXPECT_THAT(error, HasSubstr("2 tensors not as config.json says: "));
  EXPECT_THAT(error, HasSubstr("experts.gate_up_proj: got [2, 40, 24], want [4, 20, 24]"));
  EXPECT_THAT(error, HasSubstr("experts.down_proj: got [96, 10], want [4, 24, 10]"));
}

TEST(LoadWeights, UnknownTensorsWarnOnceAKind) {
  const ModelConfig config = config_of(tiny_v2_config());
  const TempFolder folder;
  std::vector<TestTensor> tensors = model_tensors(config, "BF16");
  const std::string one = encode("F32", {1});
  for (int n = 0; n < 3; ++n) {
    const std::string layer = "model.layers." + std::to_string(n) + ".";
    tensors.push_back({layer + "self_attn.rotary_emb.inv_freq", "F32", {1}, one});  // known: no word
    tensors.push_back({layer + "self_attn.k_scale2", "F32", {1}, one});
    for (int e = 0; e < 2; ++e) {
      tensors.push_back({layer + "mlp.experts." + std::to_string(10 + e) + ".extra.bias", "F32", {1}, one});
    }
  }
  for (const char* name : {"model.layers.3.eh_proj.weight", "model.layers.3.enorm.weight", "model.layers.12.a"}) {
    tensors.push_back({name, "F32", {1}, one});
  }
  write_checkpoint(folder.path(), tensors);
  std::vector<std::string> warnings;
  LoadOptions options;
  options.warning = [&](const std::string& text) { warnings.push_back(text); };
  expect_all(load(folder, config, options), config);
  EXPECT_THAT(warnings, ElementsAre("3 tensors of layers from 3 on (for predicting several tokens at once): not used",
                                    "'model.layers.N.mlp.experts.N.extra.bias' (6 tensors): unknown, not used",
                                    "'model.layers.N.self_attn.k_scale2' (3 tensors): unknown, not used"));
}

TEST(LoadWeights, TiedHead) {
  const ModelConfig config = config_of(with(tiny_v2_config(), {{"tie_word_embeddings", "true"}}));
  std::vector<TestTensor> tensors = model_tensors(config, "BF16");
  const TempFolder with_head;
  write_checkpoint(with_head.path(), tensors);
  std::erase_if(tensors, [](const TestTensor& t) { return t.name == "lm_head.weight"; });
  const TempFolder without_head;
  write_checkpoint(without_head.path(), tensors);
  for (const TempFolder* folder : {&with_head, &without_head}) {
    expect_matrix(load(*folder, config).head, "model.embed_tokens.weight", config.vocab, config.hidden);
  }
  LoadOptions options = strict();
  options.policy = WeightPolicy::kInt8;
  const Weights weights = load(without_head, config, options);
  EXPECT_EQ(weights.head.type, WeightType::kInt8);
  EXPECT_EQ(weights.embedding.type, WeightType::kBF16);
}

TEST(LoadWeights, NoLatentNorm) {
  const ModelConfig config = config_of(with(tiny_v3_config(), {{"qk_latent_layernorm", "false"}}));
  std::vector<TestTensor> tensors = model_tensors(config, "BF16");
  std::erase_if(tensors, [](const TestTensor& t) { return t.name.find("_a_layernorm") != std::string::npos; });
  const TempFolder folder;
  write_checkpoint(folder.path(), tensors);
  const Weights weights = load(folder, config);
  EXPECT_TRUE(weights.layers[0].attention.kv_a_norm.empty());
  EXPECT_TRUE(weights.layers[0].attention.q_a_norm.empty());
  expect_matrix(weights.layers[2].attention.kv_a, "model.layers.2.self_attn.kv_a_proj_with_mqa.weight", 20, 24);
}

std::vector<TestTensor> with_bias(std::vector<TestTensor> tensors, const std::string& suffix, int64_t size,
                                  int layers) {
  for (int n = 0; n < layers; ++n) {
    const std::string name = "model.layers." + std::to_string(n) + ".self_attn." + suffix;
    tensors.push_back({name, "BF16", {size}, encode("BF16", test_values(name, size))});
  }
  return tensors;
}

TEST(LoadWeights, BiasesOfAttention) {
  const ModelConfig config = config_of(with(tiny_v3_config(), {{"attention_bias", "true"}}));
  std::vector<TestTensor> tensors = with_bias(model_tensors(config, "BF16"), "q_a_proj.bias", 12, 3);
  tensors = with_bias(with_bias(tensors, "q_b_proj.bias", 24, 3), "kv_a_proj_with_mqa.bias", 20, 3);
  const TempFolder folder;
  write_checkpoint(folder.path(), tensors);
  const Weights weights = load(folder, config);
  const Attention& attention = weights.layers[1].attention;
  EXPECT_EQ(attention.q_a_bias, test_values("model.layers.1.self_attn.q_a_proj.bias", 12));
  EXPECT_EQ(attention.q_bias, test_values("model.layers.1.self_attn.q_b_proj.bias", 24));
  EXPECT_EQ(attention.kv_a_bias, test_values("model.layers.1.self_attn.kv_a_proj_with_mqa.bias", 20));
  EXPECT_TRUE(attention.o_bias.empty());
}

TEST(LoadWeights, BiasesMustBeThereAsPromised) {
  const ModelConfig config = config_of(with(tiny_v2_config(), {{"attention_bias", "true"}}));
  const std::vector<TestTensor> tensors = model_tensors(config, "BF16");
  const TempFolder none;
  write_checkpoint(none.path(), tensors);
  EXPECT_THAT(load_weights(none.text(), config, strict()).status().text(),
              HasSubstr("the biases of self_attn, which attention_bias in config.json promises"));
  const TempFolder two_of_three;
  write_checkpoint(two_of_three.path(), with_bias(tensors, "q_proj.bias", 24, 2));
  EXPECT_THAT(load_weights(two_of_three.text(), config, strict()).status().text(),
              HasSubstr("1 tensor missing: model.layers.2.self_attn.q_proj.bias"));
}

TEST(LoadWeights, BiasesWithoutThePromiseAreUnknown) {
  const ModelConfig config = config_of(tiny_v2_config());
  const TempFolder folder;
  write_checkpoint(folder.path(), with_bias(model_tensors(config, "BF16"), "q_proj.bias", 24, 3));
  std::vector<std::string> warnings;
  LoadOptions options;
  options.warning = [&](const std::string& text) { warnings.push_back(text); };
  EXPECT_TRUE(load(folder, config, options).layers[0].attention.q_bias.empty());
  EXPECT_THAT(warnings, ElementsAre("'model.layers.N.self_attn.q_proj.bias' (3 tensors): unknown, not used"));
}

TEST(LoadWeights, ProgressRisesAndEndsAtOne) {
  const ModelConfig config = config_of(tiny_v2_config());
  const TempFolder folder;
  write_checkpoint(folder.path(), model_tensors(config, "BF16"));
  std::vector<double> calls;
  LoadOptions options = strict();
  options.progress = [&](double fraction) { calls.push_back(fraction); };
  load(folder, config, options);
  ASSERT_FALSE(calls.empty());
  EXPECT_TRUE(std::ranges::is_sorted(calls));
  EXPECT_EQ(calls.back(), 1);
  EXPECT_EQ(std::ranges::count(calls, 1.0), 1);
  EXPECT_LT(calls.size(), 5u) << "a fast load calls back at most ten times a second";
}

}  // namespace
}  // namespace flashmla::runner
