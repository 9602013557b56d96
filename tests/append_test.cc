// append_kv, byte for byte. TensorRT-LLM #4943: a partial block of a K-only cache.
#include <cstring>
#include <functional>
#include <vector>

#include "append_call.h"
#include "cases/random.h"
#include "support.h"

namespace flashmla::tests {
namespace {

class AppendDTypes : public testing::TestWithParam<DType> {};

// vLLM #38719: slot -1 writes nothing, in particular not slot 0.
TEST_P(AppendDTypes, WritesTheRowsAndNothingElse) {
  for (const Target& target : all_backends()) {
    for (int64_t rope_dim : {kRope, int64_t{0}}) {
      for (bool four_dims : {false, true}) {
        Append append(GetParam(), {17, -1, 79, 1, std::numeric_limits<int64_t>::min(), 33, 48}, rope_dim, four_dims);
        std::vector<std::byte> expected = append.cache;
        for (int64_t t : {0, 2, 3, 5, 6}) append.write_expected(expected, t);
        const Status status = append_kv(append.params, target.context());
        ASSERT_TRUE(status.ok()) << status.text();
        EXPECT_TRUE(append.cache == expected) << target.name << ", RoPE part " << rope_dim;
      }
    }
  }
}

// Enough tokens for several threads; all of one slot, so that a row of two tokens would show.
TEST_P(AppendDTypes, OfDuplicateSlotsOneWins) {
  for (const Target& target : all_backends()) {
    for (int repeat = 0; repeat < 10; ++repeat) {
      constexpr int64_t kTokens = 10'000;
      Append append(GetParam(), std::vector<int64_t>(kTokens, 20));
      std::vector<std::byte> before = append.cache;
      Context context = target.context();
      context.threads = 4;
      ASSERT_TRUE(append_kv(append.params, context).ok());
      bool one_won = false;
      for (int64_t t = kTokens - 1; t >= 0 && !one_won; --t) {
        append.write_expected(before, t);
        one_won = before == append.cache;
      }
      ASSERT_TRUE(one_won) << target.name << ": the row is a mixture of tokens";
    }
  }
}

TEST_P(AppendDTypes, ManyTokensOnEveryThreadCount) {
  std::vector<int64_t> slots(kPages * kPage * 100);
  cases::Random random({7});
  for (int64_t& slot : slots) slot = random.below(kPages * kPage + 20) - 20;
  for (const Target& target : all_backends()) {
    for (int32_t threads : {1, 2, 3, 8}) {
      Append append(GetParam(), slots);
      std::vector<std::byte> expected = append.cache;
      for (size_t t = 0; t < slots.size(); ++t) {
        if (slots[t] >= 0) append.write_expected(expected, static_cast<int64_t>(t));
      }
      Context context = target.context();
      context.threads = threads;
      ASSERT_TRUE(append_kv(append.params, context).ok());
      EXPECT_TRUE(append.cache == expected)
          << target.name << ", " << threads << " threads: the last of duplicates wins";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Plain, AppendDTypes, testing::Values(DType::kBFloat16, DType::kFloat16, DType::kFloat32),
                         dtype_test_name);

// A cache filled by append_kv decodes as the one that was filled directly.
TEST(Append, FilledCacheDecodes) {
  for (const Target& target : host_targets()) {
    cases::DecodeCase c = small_case();
    cases::DecodeProblem problem(c);
    const cases::DecodeResult expected = run(problem, target.context());
    for (int64_t i = 0; i < c.batch(); ++i) {
      const int64_t length = c.requests[i].seq_len;
      const int64_t width = c.latent_dim + c.rope_dim;
      std::vector<uint16_t> rows(static_cast<size_t>(length * width));
      std::vector<int64_t> slots(static_cast<size_t>(length));
      for (int64_t k = 0; k < length; ++k) {
        std::memcpy(&rows[k * width], problem.key(i, k, 0), static_cast<size_t>(2 * width));
        slots[k] = problem.table_row(i)[k / c.page_size] * c.page_size + k % c.page_size;
        cases::poison(problem.key(i, k, 0), 2 * width, c.dtype);
      }
      AppendKvParams append;
      append.latent = {rows.data(), c.dtype, 2, {length, c.latent_dim}, {width, 1}};
      append.rope = {rows.data() + c.latent_dim, c.dtype, 2, {length, c.rope_dim}, {width, 1}};
      append.slot_mapping = ConstTensorView::contiguous(slots.data(), DType::kInt64, {length});
      const ConstTensorView& cache = problem.params().kv_cache;
      append.kv_cache = {const_cast<void*>(cache.data), cache.dtype, cache.ndim, cache.shape, cache.stride};
      ASSERT_TRUE(append_kv(append, {.backend = target.backend}).ok());
    }
    EXPECT_EQ(expected, run(problem, target.context())) << target.name;
  }
}

TEST(Append, SlotsOutsideTheCacheWriteNothing) {
  for (const Target& target : all_backends()) {
    for (int64_t slot : {kPages * kPage, kPages * kPage + 1, int64_t{1} << 40, std::numeric_limits<int64_t>::max()}) {
      Append append(DType::kBFloat16, {3, 4, slot, 5});
      const std::vector<std::byte> before = append.cache;
      expect_error(append_kv(append.params, target.context()), StatusCode::kOutOfRange,
                   {"slot_mapping[2]", "got " + std::to_string(slot), "below 80 (5 pages of 16)", "negative to skip"});
      EXPECT_TRUE(append.cache == before) << target.name << ": the cache was written";
    }
  }
}

struct BadAppend {
  const char* name;
  std::function<void(AppendKvParams&)> spoil;
  StatusCode code;
  std::vector<std::string_view> parts;
};
void PrintTo(const BadAppend& call, std::ostream* out) { *out << call.name; }

std::string bad_append_name(const testing::TestParamInfo<BadAppend>& info) { return info.param.name; }

class AppendErrors : public testing::TestWithParam<BadAppend> {};

TEST_P(AppendErrors, IsRefused) {
  for (const Target& target : all_backends()) {
    Append append(DType::kBFloat16, {3, 4});
    const std::vector<std::byte> before = append.cache;
    GetParam().spoil(append.params);
    expect_error(append_kv(append.params, target.context()), GetParam().code, GetParam().parts);
    EXPECT_TRUE(append.cache == before) << "the cache was written";
  }
}

constexpr StatusCode kInvalid = StatusCode::kInvalidArgument;
INSTANTIATE_TEST_SUITE_P(
    Append, AppendErrors,
    testing::Values(
        BadAppend{"fp8",
                  [](auto& p) { p.kv_format = KvFormat::kFp8Tile128; },
                  StatusCode::kUnsupported,
                  {"kv_format", "fp8_tile128", "supported: bf16, fp16, fp32"}},
        BadAppend{"unknown_format",
                  [](auto& p) { p.kv_format = KvFormat{42}; },
                  kInvalid,
                  {"kv_format: got 42", "a format of flashmla/kv_format.h"}},
        BadAppend{"format_dtype",
                  [](auto& p) { p.kv_format = KvFormat::kFP32; },
                  kInvalid,
                  {"kv_cache: got dtype bf16", "want dtype fp32"}},
        BadAppend{"cache_dtype",
                  [](auto& p) { p.kv_cache.dtype = DType::kInt32; },
                  kInvalid,
                  {"kv_cache: got dtype int32 without a kv_format", "fp32, fp16, bf16"}},
        BadAppend{"latent_dtype",
                  [](auto& p) { p.latent.dtype = DType::kFloat16; },
                  kInvalid,
                  {"latent: got dtype fp16", "want dtype bf16"}},
        BadAppend{"rope_dtype",
                  [](auto& p) { p.rope.dtype = DType::kFloat16; },
                  kInvalid,
                  {"rope: got dtype fp16", "want dtype bf16"}},
        BadAppend{"slot_dtype",
                  [](auto& p) { p.slot_mapping.dtype = DType::kInt32; },
                  kInvalid,
                  {"slot_mapping: got dtype int32", "want dtype int64"}},
        BadAppend{"latent_not_given", [](auto& p) { p.latent = {}; }, kInvalid, {"latent: got shape []", "[T, d_v]"}},
        BadAppend{"latent_short",
                  [](auto& p) { p.latent.shape[0] = 1; },
                  kInvalid,
                  {"latent: got shape [1, 64]", "at least T = 2"}},
        BadAppend{"rope_short",
                  [](auto& p) { p.rope.shape[0] = 0; },
                  kInvalid,
                  {"rope: got shape [0, 16]", "at least T = 2"}},
        BadAppend{"rope_1d", [](auto& p) { p.rope.ndim = 1; }, kInvalid, {"got shape"}},
        BadAppend{"widths",
                  [](auto& p) { p.latent.shape[1] = 56; },
                  kInvalid,
                  {"kv_cache: got shape [5, 16, 80]", "d_v + d_rope", "72"}},
        BadAppend{"rope_not_given", [](auto& p) { p.rope = {}; }, kInvalid, {"kv_cache: got shape [5, 16, 80]", "64"}},
        BadAppend{"cache_2d", [](auto& p) { p.kv_cache.ndim = 2; }, kInvalid, {"kv_cache: got shape [5, 16]"}},
        BadAppend{"cache_not_given", [](auto& p) { p.kv_cache = {}; }, kInvalid, {"kv_cache"}},
        BadAppend{"two_kv_heads",
                  [](auto& p) {
                    p.kv_cache.ndim = 4;
                    p.kv_cache.shape = {5, 16, 2, 80};
                    p.kv_cache.stride[3] = 1;
                  },
                  kInvalid,
                  {"kv_cache: got shape [5, 16, 2, 80]", "h_kv", "1"}},
        BadAppend{"latent_stride",
                  [](auto& p) { p.latent.stride[1] = 2; },
                  kInvalid,
                  {"latent: got stride 2 of the last dimension", "contiguous"}},
        BadAppend{"cache_overlaps",
                  [](auto& p) { p.kv_cache.stride[1] = 0; },
                  kInvalid,
                  {"kv_cache: got stride 0 of dimension 1", "do not overlap"}},
        BadAppend{
            "slot_stride", [](auto& p) { p.slot_mapping.stride[0] = 2; }, kInvalid, {"slot_mapping: got stride 2"}},
        BadAppend{"slots_not_given", [](auto& p) { p.slot_mapping = {}; }, kInvalid, {"slot_mapping"}},
        BadAppend{"latent_null", [](auto& p) { p.latent.data = nullptr; }, kInvalid, {"latent: got a null pointer"}},
        BadAppend{"cache_null", [](auto& p) { p.kv_cache.data = nullptr; }, kInvalid, {"kv_cache: got a null pointer"}},
        BadAppend{"status_dtype",
                  [](auto& p) {
                    static int64_t code = 0;
                    p.status = TensorView::contiguous(&code, DType::kInt64, {1});
                  },
                  kInvalid,
                  {"status: got dtype int64", "want dtype int32"}},
        BadAppend{"status_on_the_cpu",
                  [](auto& p) {
                    static int32_t code = 0;
                    p.status = TensorView::contiguous(&code, DType::kInt32, {1});
                  },
                  StatusCode::kUnsupported,
                  {"status: got a tensor in a call on the CPU", "supported: calls on CUDA"}},
        BadAppend{"page_0", [](auto& p) { p.kv_cache.shape[1] = 0; }, kInvalid, {"kv_cache", "page = 0"}}),
    bad_append_name);

}  // namespace
}  // namespace flashmla::tests
