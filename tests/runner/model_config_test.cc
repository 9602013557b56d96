#include "runner/checkpoint/model_config.h"

#include <gmock/gmock.h>

#include "checkpoint_files.h"

namespace flashmla::runner {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(ModelConfig, V2Lite) {
  const ModelConfig c = config_of(v2_lite_config());
  EXPECT_EQ(c.model_type, "deepseek_v2");
  EXPECT_EQ(c.hidden, 2048);
  EXPECT_EQ(c.layers, 27);
  EXPECT_EQ(c.heads, 16);
  EXPECT_EQ(c.q_lora_rank, 0);
  EXPECT_EQ(c.kv_lora_rank, 512);
  EXPECT_EQ(c.qk_dim(), 192);
  EXPECT_EQ(c.v_dim, 128);
  EXPECT_EQ(c.intermediate, 10944);
  EXPECT_EQ(c.moe_intermediate, 1408);
  EXPECT_EQ(c.routed_experts, 64);
  EXPECT_EQ(c.shared_experts, 2);
  EXPECT_EQ(c.experts_per_token, 6);
  EXPECT_EQ(c.scoring, Scoring::kSoftmax);
  EXPECT_EQ(c.topk_method, TopkMethod::kGreedy);
  EXPECT_FALSE(c.norm_topk_prob);
  EXPECT_EQ(c.vocab, 102400);
  EXPECT_EQ(c.bos_id, 100000);
  EXPECT_THAT(c.eos_ids, ElementsAre(100001));
  ASSERT_TRUE(c.yarn.has_value());
  EXPECT_EQ(c.yarn->factor, 40);
  EXPECT_EQ(c.yarn->mscale_all_dim, 0.707);
  EXPECT_FALSE(c.is_moe_layer(0));
  EXPECT_TRUE(c.is_moe_layer(1));
  EXPECT_FALSE(c.fp8_weights);
  EXPECT_TRUE(c.latent_norm);
}

TEST(ModelConfig, V3) {
  const ModelConfig c = config_of(v3_config());
  EXPECT_EQ(c.model_type, "deepseek_v3");
  EXPECT_EQ(c.q_lora_rank, 1536);
  EXPECT_EQ(c.scoring, Scoring::kSigmoid);
  EXPECT_EQ(c.topk_method, TopkMethod::kNoauxTc);
  EXPECT_EQ(c.groups, 8);
  EXPECT_EQ(c.groups_per_token, 4);
  EXPECT_TRUE(c.norm_topk_prob);
  EXPECT_EQ(c.routed_scaling, 2.5);
  EXPECT_EQ(c.first_dense_layers, 3);
  EXPECT_TRUE(c.fp8_weights);
}

// transformers' own V3 class writes neither scoring_func nor topk_method; V2's defaults differ.
TEST(ModelConfig, DefaultsOfEachModelType) {
  const std::vector<std::pair<std::string, std::string>> absent = {
      {"scoring_func", ""}, {"topk_method", ""}, {"norm_topk_prob", ""}, {"routed_scaling_factor", ""}};
  const ModelConfig v3 = config_of(with(v3_config(), absent));
  EXPECT_EQ(v3.scoring, Scoring::kSigmoid);
  EXPECT_EQ(v3.topk_method, TopkMethod::kNoauxTc);
  EXPECT_TRUE(v3.norm_topk_prob);
  EXPECT_EQ(v3.routed_scaling, 2.5);
  const ModelConfig v2 = config_of(with(v2_lite_config(), absent));
  EXPECT_EQ(v2.scoring, Scoring::kSoftmax);
  EXPECT_EQ(v2.topk_method, TopkMethod::kGreedy);
  EXPECT_FALSE(v2.norm_topk_prob);
  EXPECT_EQ(v2.routed_scaling, 1.0);
}

TEST(ModelConfig, QLoraRankNullAndZeroAreNone) {
  EXPECT_EQ(config_of(with(v3_config(), {{"q_lora_rank", "null"}})).q_lora_rank, 0);
  EXPECT_EQ(config_of(with(v3_config(), {{"q_lora_rank", "0"}})).q_lora_rank, 0);
}

TEST(ModelConfig, BothFormsOfRopeSettings) {
  const ModelConfig old_form = config_of(v2_lite_config());
  const ModelConfig new_form = config_of(with(
      v2_lite_config(),
      {{"rope_scaling", ""},
       {"rope_theta", ""},
       {"rope_parameters", R"({"rope_type": "yarn", "rope_theta": 5000, "factor": 40, "beta_fast": 32, "beta_slow": 1,
                               "original_max_position_embeddings": 4096, "mscale": 0.707, "mscale_all_dim": 0.707})"}}));
  EXPECT_EQ(new_form.rope_theta, 5000);
  EXPECT_EQ(old_form.rope_theta, 10000);
  EXPECT_EQ(new_form.attention_scale(), old_form.attention_scale());
  EXPECT_EQ(config_of(with(v2_lite_config(), {{"rope_scaling", R"({"rope_type": "yarn", "factor": 2,
                                               "original_max_position_embeddings": 64})"}}))
                .yarn->factor,
            2);
}

TEST(ModelConfig, PlainRope) {
  EXPECT_FALSE(config_of(with(v2_lite_config(), {{"rope_scaling", "null"}})).yarn.has_value());
  EXPECT_FALSE(config_of(with(v2_lite_config(), {{"rope_scaling", ""}})).yarn.has_value());
  const ModelConfig c =
      config_of(with(v2_lite_config(),
                     {{"rope_scaling", ""}, {"rope_parameters", R"({"rope_type": "default", "rope_theta": 7000})"}}));
  EXPECT_FALSE(c.yarn.has_value());
  EXPECT_EQ(c.rope_theta, 7000);
}

TEST(ModelConfig, KeysOfConvertedModels) {
  const ModelConfig c = config_of(with(tiny_v2_config(), {{"rope_inv_freq", "[0.5, 0.25]"},
                                                          {"qk_latent_layernorm", "false"},
                                                          {"softmax_scale", "0.125"},
                                                          {"attention_bias", "true"}}));
  EXPECT_THAT(c.rope_frequencies(), ElementsAre(0.5, 0.25));
  EXPECT_FALSE(c.latent_norm);
  EXPECT_EQ(c.attention_scale(), 0.125);
  EXPECT_TRUE(c.attention_bias);
}

TEST(ModelConfig, DenseModelNeedsNoExpertKeys) {
  const ModelConfig c = config_of(with(tiny_v2_config(), {{"n_routed_experts", "null"},
                                                          {"n_shared_experts", "null"},
                                                          {"moe_intermediate_size", ""},
                                                          {"num_experts_per_tok", ""},
                                                          {"first_k_dense_replace", ""},
                                                          {"topk_method", ""}}));
  EXPECT_EQ(c.routed_experts, 0);
  for (int64_t layer = 0; layer < c.layers; ++layer) EXPECT_FALSE(c.is_moe_layer(layer));
}

TEST(ModelConfig, EosIds) {
  EXPECT_THAT(config_of(with(tiny_v2_config(), {{"eos_token_id", "[3, 1]"}})).eos_ids, ElementsAre(3, 1));
  EXPECT_THAT(config_of(with(tiny_v2_config(), {{"eos_token_id", "null"}})).eos_ids, ElementsAre());
}

struct Wrong {
  const char* key;
  const char* value;
  const char* error;
};

TEST(ModelConfig, ErrorsNameKeyAndWhatIsWanted) {
  const Wrong wrongs[] = {
      {"model_type", R"("llama")", "model_type: got 'llama'; supported: deepseek_v2, deepseek_v3"},
      {"model_type", "", "model_type: missing"},
      {"hidden_act", R"("gelu")", "hidden_act: got 'gelu'; supported: silu"},
      {"hidden_size", "", "hidden_size: missing; want an integer, 1 .. 262144"},
      {"hidden_size", "-5", "hidden_size: got '-5'; want an integer"},
      {"hidden_size", "2048.5", "hidden_size: got '2048.5'"},
      {"hidden_size", "18446744073709551615", "hidden_size: got '18446744073709551615'"},
      {"num_hidden_layers", R"("27")", "num_hidden_layers: got '\"27\"'"},
      {"qk_rope_head_dim", "63", "qk_rope_head_dim: got 63; want an even number"},
      {"q_lora_rank", "", "q_lora_rank: missing; want an integer, or null or 0"},
      {"topk_method", R"("noaux_tc")", "topk_method: got 'noaux_tc' with scoring_func 'softmax'; supported: greedy"},
      {"topk_method", R"("magic")", "topk_method: got 'magic'"},
      {"scoring_func", R"("sigmoid")", "with scoring_func 'sigmoid'"},
      {"num_experts_per_tok", "65", "num_experts_per_tok: got '65'; want an integer, 1 .. 64"},
      {"rms_norm_eps", "0", "rms_norm_eps: got '0'; want a finite number above 0"},
      {"rope_theta", "1", "rope_theta: got '1'; want a finite number above 1"},
      {"rope_scaling", R"({"type": "linear", "factor": 2})",
       "rope_scaling.type: got 'linear'; supported: yarn, default"},
      {"rope_parameters", R"({"rope_type": "longrope"})", "rope_parameters.rope_type: got 'longrope'"},
      {"rope_scaling", R"({"type": "yarn", "factor": 40})", "original_max_position_embeddings: missing"},
      {"rope_scaling", R"({"type": "yarn", "factor": 0.5, "original_max_position_embeddings": 64})",
       "factor: got '0.5'"},
      {"rope_scaling",
       R"({"type": "yarn", "factor": 4, "original_max_position_embeddings": 64, "attention_factor": 2})",
       "attention_factor: got '2'; supported: mscale"},
      {"rope_scaling", "[1]", "rope_scaling: got '[1]'; want an object"},
      {"rope_interleave", "false", "rope_interleave: got false; supported: true"},
      {"rope_inv_freq", "[1, 2, 3]", "rope_inv_freq: got '[1,2,3]'; want 32 numbers"},
      {"softmax_scale", "0", "softmax_scale: got '0'; want a finite number above 0"},
      {"eos_token_id", "102400", "eos_token_id: got '102400'; want ids below vocab_size"},
      {"bos_token_id", "-1", "bos_token_id: got '-1'"},
      {"tie_word_embeddings", "1", "tie_word_embeddings: got '1'; want true or false"},
      {"quantization_config", R"({"quant_method": "awq"})",
       "quantization_config.quant_method: got 'awq'; supported: fp8"},
      {"quantization_config", R"({"quant_method": "fp8", "weight_block_size": [64, 64]})",
       "weight_block_size: got '[64,64]'; supported: [128,128]"},
      {"n_routed_experts", "4097", "n_routed_experts: got '4097'"},
  };
  for (const Wrong& wrong : wrongs) {
    const Result<ModelConfig> config = parse_model_config(with(v2_lite_config(), {{wrong.key, wrong.value}}));
    ASSERT_FALSE(config.ok()) << wrong.key << " = " << wrong.value;
    EXPECT_THAT(config.status().text(), HasSubstr(wrong.error)) << wrong.key << " = " << wrong.value;
  }
}

TEST(ModelConfig, ErrorsOfGroups) {
  const auto error = [](const char* key, const char* value) {
    return parse_model_config(with(v3_config(), {{key, value}})).status().text();
  };
  EXPECT_THAT(error("n_group", "7"), HasSubstr("n_group: got 7; want a divisor of n_routed_experts = 256"));
  EXPECT_THAT(error("n_group", "256"), HasSubstr("groups of at least 2"));
  EXPECT_THAT(error("topk_group", "9"), HasSubstr("topk_group: got '9'; want an integer, 1 .. 8"));
  EXPECT_THAT(error("num_experts_per_tok", "129"), HasSubstr("want at most the 128 experts of topk_group groups"));
}

TEST(ModelConfig, NoJson) {
  EXPECT_THAT(parse_model_config("").status().text(), HasSubstr("config.json: not JSON"));
  EXPECT_THAT(parse_model_config("[1, 2]").status().text(), HasSubstr("config.json: got '[1,2]'; want an object"));
  EXPECT_THAT(parse_model_config(R"({"rms_norm_eps": 1e999})").status().text(), HasSubstr("not JSON"));
  const std::string deep = std::string(200000, '[') + std::string(200000, ']');
  EXPECT_THAT(parse_model_config("{\"eos_token_id\": " + deep + "}").status().text(),
              HasSubstr("nested more than 64 levels deep"));
}

TEST(ModelConfig, FileErrorsNameThePath) {
  const TempFolder folder;
  EXPECT_EQ(load_model_config(folder.text() + "/config.json").status().code(), StatusCode::kNotFound);
  write_text(folder.path() / "config.json", "{}");
  EXPECT_THAT(load_model_config(folder.text() + "/config.json").status().text(),
              HasSubstr(folder.text() + "/config.json: config.json: model_type: missing"));
}

}  // namespace
}  // namespace flashmla::runner
