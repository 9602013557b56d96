// The runner's model against transformers, in every attention form, chunking and batching; and mutations that must
// show.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "model_fixture.h"

namespace flashmla::runner {
namespace {

// The bars.
constexpr double kFp32Error = 1e-4;
constexpr double kBf16Distance = 1e-2;

class ModelNamed : public testing::TestWithParam<const char*> {};

TEST_P(ModelNamed, Fp32LogitsHiddenStatesAndRoutesAreThoseOfTransformers) {
  const ModelFixture fixture(GetParam());
  const ModelRun run = fixture.run(fixture.tensors("F32"), DType::kFloat32, {});
  EXPECT_LT(fixture.logit_error(run, DType::kFloat32), kFp32Error);
  EXPECT_LT(fixture.hidden_error(run, DType::kFloat32), kFp32Error);
  EXPECT_TRUE(fixture.same_argmax(run, DType::kFloat32));
  EXPECT_EQ(fixture.different_choices(run, DType::kFloat32), 0);
}

TEST_P(ModelNamed, Bf16LogitsAreNearThoseOfTransformers) {
  const ModelFixture fixture(GetParam());
  for (AttentionForm form : {AttentionForm::kMqa, AttentionForm::kMha}) {
    const ModelRun run = fixture.run(fixture.tensors("BF16"), DType::kBFloat16, {.form = form});
    const RowDistances rows = fixture.logit_distance(run);
    EXPECT_LT(rows.distance, kBf16Distance);
    EXPECT_GT(rows.compared, rows.rows / 2);
  }
}

TEST_P(ModelNamed, FormsChunksAndBatchesAgree) {
  const ModelFixture fixture(GetParam());
  const std::vector<TestTensor> tensors = fixture.tensors("F32");
  const std::vector<RunOptions> list{
      {.form = AttentionForm::kMha},
      {.form = AttentionForm::kMha, .chunk = 40},
      {.form = AttentionForm::kMqa, .chunk = 40, .batched = true},
      {.form = AttentionForm::kMqa, .chunk = 1},
      {.form = AttentionForm::kMha, .chunk = 7, .batched = true},
      {.form = AttentionForm::kAuto, .chunk = 64, .backend = "reference"},
  };
  for (const RunOptions& options : list) {
    const ModelRun run = fixture.run(tensors, DType::kFloat32, options);
    EXPECT_LT(fixture.logit_error(run, DType::kFloat32), kFp32Error)
        << "form " << static_cast<int>(options.form) << ", chunk " << options.chunk << ", batched " << options.batched;
    EXPECT_TRUE(fixture.same_argmax(run, DType::kFloat32));
  }
}

TEST_P(ModelNamed, ABatchGivesTheBitsOfASingleSequence) {
  const ModelFixture fixture(GetParam());
  const std::vector<TestTensor> tensors = fixture.tensors("F32");
  const ModelRun single = fixture.run(tensors, DType::kFloat32, {.chunk = 24});
  const ModelRun batched = fixture.run(tensors, DType::kFloat32, {.chunk = 24, .batched = true});
  EXPECT_EQ(single.logits, batched.logits);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, ModelNamed,
                         testing::Values("v2lite-tiny", "v2-group", "v3-tiny", "kernel-dims", "mscales-differ"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(Model, FusedExpertsAndShardsGiveTheSameBits) {
  const ModelFixture fixture("v2lite-tiny");
  const std::vector<TestTensor> tensors = fixture.tensors("F32");
  const ModelRun plain = fixture.run(tensors, DType::kFloat32, {});
  const std::vector<TestTensor> fused = fuse_experts(fixture.config(), tensors);
  EXPECT_EQ(fixture.run(fused, DType::kFloat32, {}).logits, plain.logits);
  EXPECT_EQ(fixture.run(tensors, DType::kFloat32, {.shards = 3}).logits, plain.logits);
  EXPECT_EQ(fixture.run(fused, DType::kFloat32, {.shards = 3}).logits, plain.logits);
}

// Multiplies the scales of one block row, or all scales where `block_row` is below 0.
void change_scales(std::vector<TestTensor>& tensors, const std::string& suffix, int64_t block_row,
                   const std::function<float(float)>& change) {
  for (TestTensor& tensor : tensors) {
    if (!tensor.name.ends_with(suffix + "_scale_inv")) continue;
    const int64_t cols = tensor.shape[1];
    std::vector<float> values(tensor.bytes.size() / sizeof(float));
    std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
    for (size_t i = 0; i < values.size(); ++i) {
      if (block_row < 0 || static_cast<int64_t>(i) / cols == block_row) values[i] = change(values[i]);
    }
    std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  }
}

// The weights become bf16 when they are loaded. Single tokens meet them in fp32, many in bf16 (linear_kernel.h): the
// MHA form, which decompresses all keys at once, is held to bf16's bar.
TEST(Model, Fp8BlocksGiveTheLogitsOfWhatTheyStandFor) {
  const ModelFixture fixture("v3-fp8");
  const ModelRun run = fixture.run(fixture.tensors("F32"), DType::kFloat32, {.form = AttentionForm::kMqa, .chunk = 1});
  EXPECT_LT(fixture.logit_error(run, DType::kFloat32), kFp32Error);
  EXPECT_LT(fixture.hidden_error(run, DType::kFloat32), kFp32Error);
  EXPECT_TRUE(fixture.same_argmax(run, DType::kFloat32));
  EXPECT_EQ(fixture.different_choices(run, DType::kFloat32), 0);
  for (AttentionForm form : {AttentionForm::kMqa, AttentionForm::kMha}) {
    const ModelRun bf16 = fixture.run(fixture.tensors("BF16"), DType::kBFloat16, {.form = form});
    const RowDistances rows = fixture.logit_distance(bf16);
    EXPECT_LT(rows.distance, kBf16Distance);
    EXPECT_GT(rows.compared, rows.rows / 2);
  }
}

TEST(Model, WrongFp8ScalesShow) {
  const ModelFixture fixture("v3-fp8");
  const auto error = [&](const std::string& suffix, int64_t block_row, const std::function<float(float)>& change) {
    std::vector<TestTensor> tensors = fixture.tensors("F32");
    change_scales(tensors, suffix, block_row, change);
    return fixture.logit_error(fixture.run(tensors, DType::kFloat32, {.chunk = 1}), DType::kFloat32);
  };
  const auto larger = [](float scale) { return scale * 1.25f; };
  EXPECT_GT(error("kv_a_proj_with_mqa.weight", 4, larger), 5 * kFp32Error);  // rows 512 .. 575
  EXPECT_GT(error("kv_b_proj.weight", 2, larger), 5 * kFp32Error);           // rows 256 .. 287
  EXPECT_GT(error("gate_proj.weight", 1, larger), 5 * kFp32Error);
  EXPECT_GT(error("o_proj.weight", -1, [](float scale) { return 1.0f / (65536.0f * scale); }), 5 * kFp32Error);
}

// Each of these faults has been shipped by somebody. The comparison above must see every one.
struct Mutation {
  const char* name;
  const char* fixture;
  ModelFixture::Change change;
};

// Rows `a` and `b` of a matrix change places (fp32 weights, in memory of the test's own).
void permute_rows(Matrix& matrix, const std::function<int64_t(int64_t)>& source) {
  const int64_t bytes = matrix.rows * matrix.cols * static_cast<int64_t>(sizeof(float));
  auto copy = allocate_weights(bytes);
  for (int64_t r = 0; r < matrix.rows; ++r) {
    std::memcpy(static_cast<float*>(copy.get()) + r * matrix.cols,
                static_cast<const float*>(matrix.data) + source(r) * matrix.cols,
                static_cast<size_t>(matrix.cols) * sizeof(float));
  }
  matrix.data = copy.get();
  matrix.owner = copy;
}

const std::vector<Mutation>& mutations() {
  static const std::vector<Mutation> list{
      {"no_mscale_factor", "v2lite-tiny",
       [](ModelConfig& c, Weights&) { c.softmax_scale = 1 / std::sqrt(static_cast<double>(c.qk_dim())); }},
      {"mscale_for_mscale_all_dim", "mscales-differ",
       [](ModelConfig& c, Weights&) { c.yarn->mscale_all_dim = c.yarn->mscale; }},
      {"no_yarn", "v2lite-tiny",
       [](ModelConfig& c, Weights&) {
         c.softmax_scale = c.attention_scale();
         c.yarn.reset();
       }},
      {"rope_halves_for_pairs_in_keys", "v2lite-tiny",
       [](ModelConfig& c, Weights& w) {
         for (Layer& layer : w.layers) {
           permute_rows(layer.attention.kv_a, [&](int64_t r) {
             const int64_t i = r - c.kv_lora_rank;
             return i < 0 ? r : c.kv_lora_rank + (i % 2) * c.qk_rope_dim / 2 + i / 2;
           });
         }
       }},
      {"key_and_value_up_as_two_halves", "v2lite-tiny",
       [](ModelConfig& c, Weights& w) {
         for (Layer& layer : w.layers) {
           const int64_t head = c.qk_nope_dim + c.v_dim;
           permute_rows(layer.attention.kv_b, [&](int64_t r) {
             const int64_t h = r / head, i = r % head;
             return i < c.qk_nope_dim ? h * c.qk_nope_dim + i
                                      : c.heads * c.qk_nope_dim + h * c.v_dim + i - c.qk_nope_dim;
           });
         }
       }},
      {"no_latent_norm", "v2lite-tiny",
       [](ModelConfig&, Weights& w) {
         for (Layer& layer : w.layers) layer.attention.kv_a_norm.clear();
       }},
      {"norm_over_latent_and_rope", "v2lite-tiny",
       [](ModelConfig&, Weights& w) {
         for (Layer& layer : w.layers) layer.attention.kv_a_norm.resize(layer.attention.kv_a_norm.size() + 8, 1.0f);
       }},
      {"norm_topk", "v2lite-tiny", [](ModelConfig& c, Weights&) { c.norm_topk_prob = true; }},
      {"no_norm_topk", "v3-tiny", [](ModelConfig& c, Weights&) { c.norm_topk_prob = false; }},
      {"group_maximum_for_sum_of_two", "v3-tiny",
       [](ModelConfig& c, Weights&) { c.topk_method = TopkMethod::kGroupLimitedGreedy; }},
      {"group_sum_of_two_for_maximum", "v2-group",
       [](ModelConfig& c, Weights&) { c.topk_method = TopkMethod::kNoauxTc; }},
      {"no_groups", "v2-group", [](ModelConfig& c, Weights&) { c.topk_method = TopkMethod::kGreedy; }},
      {"no_router_bias", "v3-tiny",
       [](ModelConfig&, Weights& w) {
         for (Layer& layer : w.layers) layer.router_bias.clear();
       }},
      {"no_routed_scaling", "v2-group", [](ModelConfig& c, Weights&) { c.routed_scaling = 1; }},
  };
  return list;
}

class Mutated : public testing::TestWithParam<size_t> {};

TEST_P(Mutated, Shows) {
  const Mutation& mutation = mutations()[GetParam()];
  const ModelFixture fixture(mutation.fixture);
  const ModelRun run = fixture.run(fixture.tensors("F32"), DType::kFloat32, {}, mutation.change);
  EXPECT_GT(fixture.logit_error(run, DType::kFloat32), 5 * kFp32Error) << mutation.name;
}

INSTANTIATE_TEST_SUITE_P(Faults, Mutated, testing::Range<size_t>(0, mutations().size()),
                         [](const auto& test) { return mutations()[test.param].name; });

}  // namespace
}  // namespace flashmla::runner
