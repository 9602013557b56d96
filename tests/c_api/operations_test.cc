// The operations through the C API: results equal to the C++ API's, and every kind of error.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <locale>
#include <string>
#include <thread>

#include "c99_call.h"
#include "flashmla/flashmla.h"
#include "small_call.h"

namespace flashmla::c_api_test {
namespace {

std::string error() { return flashmla_last_error(); }

::testing::AssertionResult says(const std::string& part) {
  if (error().find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "the error text is '" << error() << "', without '" << part << "'";
}

TEST(CApi, DecodesLikeTheFormulaOnEveryBackend) {
  for (int32_t b = 0; b < flashmla_backend_count(); ++b) {
    SCOPED_TRACE(flashmla_backend_name(b));
    SmallCall call(flashmla_backend_name(b));
    ASSERT_EQ(call.decode(), FLASHMLA_OK) << error();
    EXPECT_EQ(error(), "");
    for (int64_t r = 0; r < SmallCall::kBatch; ++r) {
      for (int64_t h = 0; h < SmallCall::kHeads; ++h) {
        double total = 0;
        std::array<double, SmallCall::kLatent> sum{};
        for (int64_t t = 0; t < call.lens[r]; ++t) {
          const int64_t page = call.table[r * 2 + t / SmallCall::kPage];
          const float* key = call.cache.data() + (page * SmallCall::kPage + t % SmallCall::kPage) * SmallCall::kWidth;
          double score = 0;
          for (int64_t d = 0; d < SmallCall::kWidth; ++d) {
            score += double{call.q[(r * SmallCall::kHeads + h) * SmallCall::kWidth + d]} * key[d];
          }
          const double weight = std::exp(0.25 * score);
          total += weight;
          for (int64_t d = 0; d < SmallCall::kLatent; ++d) sum[d] += weight * key[d];
        }
        EXPECT_NEAR(call.lse[r * SmallCall::kHeads + h], std::log(total), 1e-5);
        for (int64_t d = 0; d < SmallCall::kLatent; ++d) {
          EXPECT_NEAR(call.out[(r * SmallCall::kHeads + h) * SmallCall::kLatent + d], sum[d] / total, 1e-4);
        }
      }
    }
  }
}

TEST(CApi, OptionsReachTheKernel) {
  SmallCall call;
  call.lens = {0, 3};
  auto options = sized<flashmla_decode_options>();
  ASSERT_EQ(call.decode(), FLASHMLA_OK) << error();
  EXPECT_EQ(call.lse[0], std::numeric_limits<float>::infinity());
  options.empty_lse = FLASHMLA_EMPTY_LSE_MINUS_INF;
  call.params.options = &options;
  ASSERT_EQ(call.decode(), FLASHMLA_OK) << error();
  EXPECT_EQ(call.lse[0], -std::numeric_limits<float>::infinity());
  options.splits = FLASHMLA_MAX_SPLITS + 1;
  EXPECT_EQ(call.decode(), FLASHMLA_INVALID_ARGUMENT);
  EXPECT_TRUE(says("splits: got 65; want 0 (chosen by the back end) .. 64"));
}

TEST(CApi, CausalReachesTheKernel) {
  SmallCall call;
  // both requests' heads as two query tokens of one head: token 0 then sees one key less
  call.params.q = tensor(call.q.data(), FLASHMLA_FLOAT32, {2, 2, 1, SmallCall::kWidth});
  call.params.out = tensor(call.out.data(), FLASHMLA_FLOAT32, {2, 2, 1, SmallCall::kLatent});
  call.params.lse = tensor(call.lse.data(), FLASHMLA_FLOAT32, {2, 1, 2});
  ASSERT_EQ(call.decode(), FLASHMLA_OK) << error();
  const auto all = call.lse;
  call.params.causal = 1;
  ASSERT_EQ(call.decode(), FLASHMLA_OK) << error();
  EXPECT_LT(call.lse[0], all[0]);
  EXPECT_EQ(call.lse[1], all[1]);
}

TEST(CApi, ShapeOfACallIsTheCppShape) {
  SmallCall call;
  auto shape = sized<flashmla_decode_shape>();
  ASSERT_EQ(call.shape_of(shape), FLASHMLA_OK) << error();
  EXPECT_EQ(shape.batch, 2);
  EXPECT_EQ(shape.seq_q, 1);
  EXPECT_EQ(shape.total_q, 2);
  EXPECT_EQ(shape.heads_q, 2);
  EXPECT_EQ(shape.heads_kv, 1);
  EXPECT_EQ(shape.latent_dim, 16);
  EXPECT_EQ(shape.rope_dim, 8);
  EXPECT_EQ(shape.page_size, 4);
  EXPECT_EQ(shape.pages, 3);
  EXPECT_EQ(shape.table_width, 2);
  EXPECT_EQ(shape.dtype, FLASHMLA_FLOAT32);
  EXPECT_EQ(shape.kv_format, FLASHMLA_KV_FP32);
  EXPECT_EQ(shape.ragged_q, 0);
  EXPECT_EQ(shape.causal, 0);
}

TEST(CApi, WorkspaceAndExplanationAreTheCppOnes) {
  SmallCall call;
  auto c_shape = sized<flashmla_decode_shape>();
  ASSERT_EQ(call.shape_of(c_shape), FLASHMLA_OK) << error();
  const DecodeShape shape{.batch = 2,
                          .seq_q = 1,
                          .total_q = 2,
                          .heads_q = 2,
                          .heads_kv = 1,
                          .latent_dim = 16,
                          .rope_dim = 8,
                          .page_size = 4,
                          .pages = 3,
                          .table_width = 2,
                          .dtype = DType::kFloat32,
                          .kv_format = KvFormat::kFP32};
  const Context context{.backend = "reference"};
  int64_t bytes = -1;
  ASSERT_EQ(flashmla_decode_workspace_bytes(&c_shape, nullptr, &call.context, &bytes), FLASHMLA_OK) << error();
  EXPECT_EQ(bytes, workspace_bytes(shape, {}, context).value());
  auto choice = sized<flashmla_kernel_choice>();
  ASSERT_EQ(flashmla_explain_decode(&c_shape, nullptr, &call.context, &choice), FLASHMLA_OK) << error();
  const KernelChoice want = explain_decode(shape, {}, context).value();
  EXPECT_EQ(choice.backend, want.backend);
  EXPECT_EQ(choice.kernel, want.kernel);
  EXPECT_EQ(choice.reason, want.reason);
  c_shape.kv_format = FLASHMLA_KV_FROM_DTYPE;
  EXPECT_EQ(flashmla_decode_workspace_bytes(&c_shape, nullptr, &call.context, &bytes), FLASHMLA_OK) << error();
}

TEST(CApi, PrefillsLikeTheFormulaOnEveryBackend) {
  alignas(64) std::array<float, 2 * 8> q{};
  alignas(64) std::array<float, 3 * 8> k{};
  alignas(64) std::array<float, 3 * 16> v{};
  alignas(64) std::array<float, 2 * 16> out{};
  std::array<float, 2> lse{};
  for (size_t i = 0; i < q.size(); ++i) q[i] = static_cast<float>(i * 5 % 7) * 0.25F - 0.5F;
  for (size_t i = 0; i < k.size(); ++i) k[i] = static_cast<float>(i * 3 % 11) * 0.125F - 0.5F;
  for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i * 7 % 13) * 0.125F - 0.5F;
  const std::array<int32_t, 2> q_starts{0, 2};
  const std::array<int32_t, 2> k_starts{0, 3};
  auto params = sized<flashmla_prefill_params>();
  params.q = tensor(q.data(), FLASHMLA_FLOAT32, {2, 1, 8});
  params.k = tensor(k.data(), FLASHMLA_FLOAT32, {3, 1, 8});
  params.v = tensor(v.data(), FLASHMLA_FLOAT32, {3, 1, 16});
  params.cu_seqlens_q = tensor(q_starts.data(), FLASHMLA_INT32, {2});
  params.cu_seqlens_k = tensor(k_starts.data(), FLASHMLA_INT32, {2});
  params.out = tensor(out.data(), FLASHMLA_FLOAT32, {2, 1, 16});
  params.lse = tensor(lse.data(), FLASHMLA_FLOAT32, {1, 2});
  params.softmax_scale = 0.5F;
  params.causal = 1;
  for (int32_t b = 0; b < flashmla_backend_count(); ++b) {
    SmallCall call(flashmla_backend_name(b));
    SCOPED_TRACE(call.context.backend);
    out.fill(0);
    auto shape = sized<flashmla_prefill_shape>();
    ASSERT_EQ(flashmla_prefill_shape_of(&params, &shape), FLASHMLA_OK) << error();
    int64_t bytes = 0;
    ASSERT_EQ(flashmla_prefill_workspace_bytes(&shape, &call.context, &bytes), FLASHMLA_OK) << error();
    const AlignedMemory workspace = aligned_memory(bytes);
    ASSERT_EQ(flashmla_prefill(&params, workspace.get(), bytes, &call.context), FLASHMLA_OK) << error();
    for (size_t i = 0; i < 2; ++i) {
      double total = 0;
      std::array<double, 16> sum{};
      for (size_t t = 0; t < 2 + i; ++t) {  // causal: the first query sees two of the three keys
        double score = 0;
        for (size_t d = 0; d < 8; ++d) score += double{q[i * 8 + d]} * k[t * 8 + d];
        const double weight = std::exp(0.5 * score);
        total += weight;
        for (size_t d = 0; d < 16; ++d) sum[d] += weight * v[t * 16 + d];
      }
      EXPECT_NEAR(lse[i], std::log(total), 1e-5);
      for (size_t d = 0; d < 16; ++d) EXPECT_NEAR(out[i * 16 + d], sum[d] / total, 1e-4);
    }
  }
  params.softmax_scale = 0.0F;
  EXPECT_EQ(flashmla_prefill(&params, nullptr, 0, nullptr), FLASHMLA_INVALID_ARGUMENT);
  EXPECT_TRUE(says("softmax_scale: got 0, as in a struct where it was not set"));
}

TEST(CApi, AppendsTokens) {
  std::array<float, 2 * 2 * 24> cache{};
  alignas(16) std::array<float, 2 * 16> latent{};
  alignas(16) std::array<float, 2 * 8> rope{};
  latent.fill(1.0F);
  rope.fill(2.0F);
  std::array<int64_t, 2> slots{3, -1};
  auto params = sized<flashmla_append_kv_params>();
  params.latent = tensor(latent.data(), FLASHMLA_FLOAT32, {2, 16});
  params.rope = tensor(rope.data(), FLASHMLA_FLOAT32, {2, 8});
  params.slot_mapping = tensor(slots.data(), FLASHMLA_INT64, {2});
  params.kv_cache = tensor(cache.data(), FLASHMLA_FLOAT32, {2, 2, 24});
  SmallCall call;
  ASSERT_EQ(flashmla_append_kv(&params, &call.context), FLASHMLA_OK) << error();
  for (size_t i = 0; i < cache.size(); ++i) {
    const float want = i < 3 * 24 ? 0.0F : i < 3 * 24 + 16 ? 1.0F : 2.0F;
    EXPECT_EQ(cache[i], want) << "element " << i;
  }
  slots[0] = 4;
  EXPECT_EQ(flashmla_append_kv(&params, &call.context), FLASHMLA_OUT_OF_RANGE);
  EXPECT_TRUE(says("slot_mapping[0]: got 4"));
  params.kv_format = FLASHMLA_KV_FP8_V4;
  EXPECT_EQ(flashmla_append_kv(&params, &call.context), FLASHMLA_UNSUPPORTED);
  EXPECT_TRUE(says("kv_format: got fp8_v4"));
}

TEST(CApi, MergesFromC99) {
  const std::array<float, 3> a{1.0F, 2.0F, 3.0F};
  const std::array<float, 3> b{3.0F, 2.0F, 1.0F};
  std::array<float, 3> out{};
  float lse = 0;
  for (int32_t i = 0; i < flashmla_backend_count(); ++i) {
    SCOPED_TRACE(flashmla_backend_name(i));
    out.fill(0);
    ASSERT_EQ(c99_merge(a.data(), 0.0F, b.data(), std::log(3.0F), 3, out.data(), &lse, flashmla_backend_name(i)),
              FLASHMLA_OK)
        << error();
    EXPECT_NEAR(out[0], 2.5F, 1e-6);
    EXPECT_NEAR(out[1], 2.0F, 1e-6);
    EXPECT_NEAR(out[2], 1.5F, 1e-6);
    EXPECT_NEAR(lse, std::log(4.0F), 1e-6);
  }
}

TEST(CApi, InitMacrosFillEveryStruct) { EXPECT_EQ(c99_sizes_initialised(), 9U); }

TEST(CApiErrors, ScaleThatNobodySet) {
  SmallCall call;
  call.params.softmax_scale = 0.0F;
  EXPECT_EQ(call.decode(), FLASHMLA_INVALID_ARGUMENT);
  EXPECT_TRUE(says("softmax_scale: got 0, as in a struct where it was not set; want the model's finite scale, not 0"));
  call.params.softmax_scale = -0.0F;
  EXPECT_EQ(call.decode(), FLASHMLA_INVALID_ARGUMENT);
  call.params.softmax_scale = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(call.decode(), FLASHMLA_INVALID_ARGUMENT);
  EXPECT_TRUE(says("softmax_scale: got nan"));
  call.params.softmax_scale = 0.25F;
  EXPECT_EQ(call.decode(), FLASHMLA_OK) << error();
}

TEST(CApiErrors, LatentDimThatNobodySet) {
  SmallCall call;
  call.params.latent_dim = 0;
  EXPECT_EQ(call.decode(), FLASHMLA_INVALID_ARGUMENT);
  EXPECT_TRUE(says("latent_dim: got 0"));
}

TEST(CApiErrors, NullPointers) {
  SmallCall call;
  auto shape = sized<flashmla_decode_shape>();
  int64_t bytes = 0;
  EXPECT_EQ(flashmla_decode(nullptr, nullptr, 0, &call.context), FLASHMLA_INVALID_ARGUMENT);
  EXPECT_TRUE(says("params: got a null pointer"));
  EXPECT_EQ(flashmla_append_kv(nullptr, &call.context), FLASHMLA_INVALID_ARGUMENT);
  EXPECT_TRUE(says("params: got a null pointer"));
  EXPECT_EQ(flashmla_merge_states(nullptr, &call.context), FLASHMLA_INVALID_ARGUMENT);
  EXPECT_TRUE(says("params: got a null pointer"));
  EXPECT_EQ(flashmla_decode_shape_of(nullptr, &shape), FLASHMLA_INVALID_ARGUMENT);
  EXPECT_EQ(flashmla_decode_shape_of(&call.params, nullptr), FLASHMLA_INVALID_ARGUMENT);
  EXPECT_TRUE(says("shape: got a null pointer"));
  EXPECT_EQ(flashmla_decode_workspace_bytes(nullptr, nullptr, nullptr, &bytes), FLASHMLA_INVALID_ARGUMENT);
  EXPECT_TRUE(says("shape: got a null pointer"));
  ASSERT_EQ(call.shape_of(shape), FLASHMLA_OK);
  EXPECT_EQ(flashmla_decode_workspace_bytes(&shape, nullptr, &call.context, nullptr), FLASHMLA_INVALID_ARGUMENT);
  EXPECT_TRUE(says("bytes: got a null pointer"));
  EXPECT_EQ(flashmla_explain_decode(&shape, nullptr, &call.context, nullptr), FLASHMLA_INVALID_ARGUMENT);
  EXPECT_TRUE(says("choice: got a null pointer"));
  auto prefill_shape = sized<flashmla_prefill_shape>();
  EXPECT_EQ(flashmla_prefill(nullptr, nullptr, 0, nullptr), FLASHMLA_INVALID_ARGUMENT);
  EXPECT_TRUE(says("params: got a null pointer"));
  EXPECT_EQ(flashmla_prefill_shape_of(nullptr, &prefill_shape), FLASHMLA_INVALID_ARGUMENT);
  EXPECT_TRUE(says("params: got a null pointer"));
  EXPECT_EQ(flashmla_prefill_workspace_bytes(&prefill_shape, nullptr, nullptr), FLASHMLA_INVALID_ARGUMENT);
  EXPECT_TRUE(says("bytes: got a null pointer"));
  auto choice = sized<flashmla_kernel_choice>();
  EXPECT_EQ(flashmla_explain_prefill(nullptr, nullptr, &choice), FLASHMLA_INVALID_ARGUMENT);
  EXPECT_TRUE(says("shape: got a null pointer"));
}

TEST(CApiErrors, Workspace) {
  SmallCall call;
  EXPECT_EQ(flashmla_decode(&call.params, nullptr, 0, &call.context), FLASHMLA_WORKSPACE_TOO_SMALL);
  EXPECT_TRUE(says("workspace: got 0 bytes"));
  const AlignedMemory memory = aligned_memory(1 << 20);
  EXPECT_EQ(flashmla_decode(&call.params, memory.get(), 1, &call.context), FLASHMLA_WORKSPACE_TOO_SMALL);
  EXPECT_TRUE(says("workspace: got 1 bytes"));
  EXPECT_EQ(flashmla_decode(&call.params, static_cast<char*>(memory.get()) + 8, 1 << 19, &call.context),
            FLASHMLA_WORKSPACE_TOO_SMALL);
  EXPECT_TRUE(says("256-byte alignment"));
}

TEST(CApiErrors, Context) {
  SmallCall call("nowhere");
  EXPECT_EQ(call.decode(), FLASHMLA_NOT_FOUND);
  EXPECT_TRUE(says("backend: got 'nowhere'; want one of:"));
  call.context.backend = "reference";
  call.context.device_type = FLASHMLA_CUDA;
  EXPECT_EQ(call.decode(), FLASHMLA_INVALID_ARGUMENT);
  EXPECT_TRUE(says("'reference' for a call on CUDA"));
  call.context.device_type = 7;
  EXPECT_EQ(call.decode(), FLASHMLA_INVALID_ARGUMENT);
  EXPECT_TRUE(says("context.device_type: got 7; want 0 (CPU) or 1 (CUDA)"));
}

TEST(CApiErrors, FlagsAndReservedFields) {
  SmallCall call;
  call.params.causal = 2;
  EXPECT_EQ(call.decode(), FLASHMLA_INVALID_ARGUMENT);
  EXPECT_TRUE(says("causal: got 2; want 0 or 1"));
  call.params.causal = 0;
  call.params.reserved = 1;
  EXPECT_EQ(call.decode(), FLASHMLA_INVALID_ARGUMENT);
  EXPECT_TRUE(says("params.reserved: got 1; want 0"));
  call.params.reserved = 0;
  call.context.reserved = 1;
  EXPECT_EQ(call.decode(), FLASHMLA_INVALID_ARGUMENT);
  EXPECT_TRUE(says("context.reserved: got 1; want 0"));
  call.context.reserved = 0;
  EXPECT_EQ(call.decode(), FLASHMLA_OK) << error();
}

TEST(CApiErrors, ShapesFilledByHand) {
  SmallCall call;
  auto shape = sized<flashmla_decode_shape>();
  int64_t bytes = -1;
  EXPECT_EQ(flashmla_decode_workspace_bytes(&shape, nullptr, &call.context, &bytes), FLASHMLA_INVALID_ARGUMENT);
  EXPECT_TRUE(says("shape.heads_q: got 0; want 1 .. 2147483647"));
  ASSERT_EQ(call.shape_of(shape), FLASHMLA_OK);
  shape.batch = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(flashmla_decode_workspace_bytes(&shape, nullptr, &call.context, &bytes), FLASHMLA_INVALID_ARGUMENT);
  EXPECT_TRUE(says("shape.batch: got 9223372036854775807"));
  shape.batch = 3;
  EXPECT_EQ(flashmla_decode_workspace_bytes(&shape, nullptr, &call.context, &bytes), FLASHMLA_INVALID_ARGUMENT);
  EXPECT_TRUE(says("shape.total_q: got 2; want 3 (batch * seq_q)"));
  shape.batch = 2;
  shape.kv_format = FLASHMLA_KV_FP8_TENSOR;
  EXPECT_EQ(flashmla_decode_workspace_bytes(&shape, nullptr, &call.context, &bytes), FLASHMLA_UNSUPPORTED);
  EXPECT_TRUE(says("shape.kv_format: got fp8_tensor"));
  shape.kv_format = FLASHMLA_KV_BF16;
  EXPECT_EQ(flashmla_decode_workspace_bytes(&shape, nullptr, &call.context, &bytes), FLASHMLA_INVALID_ARGUMENT);
  EXPECT_TRUE(says("shape.dtype: got fp32; want bf16"));
  EXPECT_EQ(bytes, -1);
}

TEST(CApiErrors, TextsBelongToTheThread) {
  EXPECT_EQ(flashmla_merge_states(nullptr, nullptr), FLASHMLA_INVALID_ARGUMENT);
  const std::string here = error();
  ASSERT_NE(here, "");
  std::thread([] {
    EXPECT_EQ(error(), "");
    SmallCall call("nowhere");
    EXPECT_EQ(call.decode(), FLASHMLA_NOT_FOUND);
    EXPECT_NE(error(), "");
  }).join();
  EXPECT_EQ(error(), here);
  SmallCall call;
  EXPECT_EQ(call.decode(), FLASHMLA_OK);
  EXPECT_EQ(error(), "");
}

TEST(CApiErrors, NumbersDoNotFollowTheLocale) {
  struct Grouping : std::numpunct<char> {
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };
  const std::locale before = std::locale::global(std::locale(std::locale::classic(), new Grouping));
  SmallCall call;
  call.params.latent_dim = 1234567;
  EXPECT_EQ(call.decode(), FLASHMLA_INVALID_ARGUMENT);
  std::locale::global(before);
  EXPECT_TRUE(says("latent_dim: got 1234567;"));
}

TEST(CApiErrors, LongTextsAreCutWithDots) {
  const std::string name(5000, 'x');
  SmallCall call(name.c_str());
  EXPECT_EQ(call.decode(), FLASHMLA_NOT_FOUND);
  EXPECT_EQ(error().size(), 1023U);
  EXPECT_EQ(error().substr(1020), "...");
  EXPECT_EQ(error().substr(0, 17), "backend: got 'xxx");
}

}  // namespace
}  // namespace flashmla::c_api_test
