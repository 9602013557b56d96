// merge_states: values, markers, aliasing, strides, error texts.
#include <array>
#include <cmath>
#include <functional>
#include <vector>

#include "cases/random.h"
#include "merge_state.h"
#include "support.h"

namespace flashmla::tests {
namespace {

class MergeDTypes : public testing::TestWithParam<DType> {};

// vLLM #39148: a quarter of the rows empty on both sides, a tenth +inf; every pair of finite, +inf and -inf occurs.
TEST_P(MergeDTypes, MixesOfFiniteAndEmptyRows) {
  for (const Target& target : all_backends()) {
    for (bool strided : {false, true}) {
      for (int64_t width : {1, 7, 64, 512, 576}) {
        State a(GetParam(), 33, 5, width, strided);
        State b(GetParam(), 33, 5, width, !strided);
        cases::Random random({static_cast<uint64_t>(width)});
        const std::array<float, 3> empties = {kInf, -kInf, 0};
        for (int64_t t = 0; t < a.tokens; ++t) {
          for (int64_t h = 0; h < a.heads; ++h) {
            const bool both = random.below(4) == 0;
            a.set_row(t, h,
                      both                    ? empties[random.below(2)]
                      : random.below(10) == 0 ? kInf
                                              : 3 * random.normal(),
                      1, random);
            b.set_row(t, h,
                      both                    ? empties[random.below(2)]
                      : random.below(10) == 0 ? -kInf
                                              : 3 * random.normal(),
                      1, random);
          }
        }
        for (EmptyLse marker : {EmptyLse::kPlusInf, EmptyLse::kMinusInf}) {
          State to(GetParam(), 33, 5, width, strided);
          MergeStatesParams params = merge_params(a, b, to);
          params.empty_lse = marker;
          const Status status = merge_states(params, target.context());
          ASSERT_TRUE(status.ok()) << status.text();
          expect_merged(a, b, to, marker);

          State aliased = a;  // the output is the first input
          params = merge_params(aliased, b, aliased);
          params.empty_lse = marker;
          ASSERT_TRUE(merge_states(params, target.context()).ok());
          expect_merged(a, b, aliased, marker);
        }
      }
    }
  }
}

// Enough rows for several threads, in place as a chain of merges does it.
TEST_P(MergeDTypes, ManyRowsOnEveryThreadCount) {
  State a(GetParam(), 301, 16, 512, false);
  State b = a;
  cases::Random random({9});
  for (int64_t t = 0; t < a.tokens; ++t) {
    for (int64_t h = 0; h < a.heads; ++h) {
      a.set_row(t, h, t % 7 == 0 ? kInf : random.normal(), 1, random);
      b.set_row(t, h, t % 5 == 0 ? -kInf : random.normal(), 1, random);
    }
  }
  for (const Target& target : all_backends()) {
    std::vector<std::byte> first_out;
    std::vector<float> first_lse;
    for (int32_t threads : {1, 2, 3, 8}) {
      State to = a;
      Context context = target.context();
      context.threads = threads;
      ASSERT_TRUE(merge_states(merge_params(to, b, to), context).ok());
      if (threads == 1) {
        expect_merged(a, b, to, EmptyLse::kPlusInf);
        first_out = to.out_memory;
        first_lse = to.lse_memory;
      }
      EXPECT_TRUE(first_out == to.out_memory && first_lse == to.lse_memory)
          << target.name << ", " << threads << " threads";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Plain, MergeDTypes, testing::Values(DType::kBFloat16, DType::kFloat16, DType::kFloat32),
                         dtype_test_name);

// vLLM #27491: all pairs of signs of two empty sides give an empty row, never NaN.
TEST(Merge, EmptyPairsOfEverySign) {
  for (const Target& target : all_backends()) {
    for (float a_lse : {kInf, -kInf}) {
      for (float b_lse : {kInf, -kInf}) {
        for (EmptyLse marker : {EmptyLse::kPlusInf, EmptyLse::kMinusInf}) {
          State a(DType::kFloat32, 1, 1, 8, false);
          State b = a;
          State to = a;
          a.lse_at(0, 0) = a_lse;
          b.lse_at(0, 0) = b_lse;
          MergeStatesParams params = merge_params(a, b, to);
          params.empty_lse = marker;
          ASSERT_TRUE(merge_states(params, target.context()).ok());
          EXPECT_EQ(to.lse_at(0, 0), marker == EmptyLse::kPlusInf ? kInf : -kInf) << target.name;
          for (int64_t d = 0; d < 8; ++d) EXPECT_EQ(to.value(0, 0, d), 0.0f) << target.name;
        }
      }
    }
  }
}

// SGLang #33064: partition sums 2 and 8, natural logarithm: weights 0.2 and 0.8, lse = ln 10.
TEST(Merge, NaturalLogarithmExample) {
  for (const Target& target : all_backends()) {
    State a(DType::kFloat32, 1, 1, 2, false);
    State b = a;
    State to = a;
    a.lse_at(0, 0) = std::log(2.0f);
    b.lse_at(0, 0) = std::log(8.0f);
    const std::array<float, 2> values_a = {10, -5};
    const std::array<float, 2> values_b = {20, 5};
    cases::store_elements(a.row(0, 0), a.dtype, values_a.data(), 2);
    cases::store_elements(b.row(0, 0), b.dtype, values_b.data(), 2);
    ASSERT_TRUE(merge_states(merge_params(a, b, to), target.context()).ok());
    EXPECT_NEAR(to.lse_at(0, 0), std::log(10.0), 1e-6) << target.name;
    EXPECT_NEAR(to.value(0, 0, 0), 18.0, 1e-5) << target.name;
    EXPECT_NEAR(to.value(0, 0, 1), 3.0, 1e-5) << target.name;
  }
}

// Large sums do not overflow: only differences are exponentiated. NaN is not taken for "empty".
TEST(Merge, ExtremeAndNaNSums) {
  for (const Target& target : all_backends()) {
    State a(DType::kFloat32, 1, 4, 1, false);
    State b = a;
    State to = a;
    const float one = 1;
    const float three = 3;
    const std::array<std::array<float, 2>, 4> sums = {{{1e4f, 1e4f}, {-1e4f, -1e4f}, {88, 1e6f}, {kNaN, 0}}};
    for (int64_t h = 0; h < 4; ++h) {
      a.lse_at(0, h) = sums[h][0];
      b.lse_at(0, h) = sums[h][1];
      cases::store_elements(a.row(0, h), a.dtype, &one, 1);
      cases::store_elements(b.row(0, h), b.dtype, &three, 1);
    }
    ASSERT_TRUE(merge_states(merge_params(a, b, to), target.context()).ok());
    EXPECT_FLOAT_EQ(to.value(0, 0, 0), 2) << target.name;
    EXPECT_FLOAT_EQ(to.value(0, 1, 0), 2) << target.name;
    EXPECT_FLOAT_EQ(to.lse_at(0, 0), 1e4f + std::log(2.0f)) << target.name;
    EXPECT_FLOAT_EQ(to.value(0, 2, 0), 3) << target.name;
    EXPECT_TRUE(std::isnan(to.value(0, 3, 0)) && std::isnan(to.lse_at(0, 3))) << target.name;
  }
}

TEST(Merge, LeavesOutTheLseThatIsNotWanted) {
  for (const Target& target : all_backends()) {
    State a(DType::kBFloat16, 3, 2, 16, false);
    cases::Random random({4});
    for (int64_t t = 0; t < 3; ++t) {
      for (int64_t h = 0; h < 2; ++h) a.set_row(t, h, random.normal(), 1, random);
    }
    State b = a;
    State to = a;
    MergeStatesParams params = merge_params(a, b, to);
    params.lse = {};
    ASSERT_TRUE(merge_states(params, target.context()).ok());
    to.lse_memory = a.lse_memory;
    for (float& lse : to.lse_memory) lse += std::log(2.0f);
    expect_merged(a, b, to, EmptyLse::kPlusInf);
  }
}

struct BadMerge {
  const char* name;
  std::function<void(MergeStatesParams&)> spoil;
  std::vector<std::string_view> parts;
};
void PrintTo(const BadMerge& call, std::ostream* out) { *out << call.name; }

std::string bad_merge_name(const testing::TestParamInfo<BadMerge>& info) { return info.param.name; }

class MergeErrors : public testing::TestWithParam<BadMerge> {};

TEST_P(MergeErrors, IsRefused) {
  for (const Target& target : all_backends()) {
    State a(DType::kBFloat16, 3, 2, 16, false);
    State b = a;
    State to = a;
    const State before = to;
    MergeStatesParams params = merge_params(a, b, to);
    GetParam().spoil(params);
    expect_error(merge_states(params, target.context()), StatusCode::kInvalidArgument, GetParam().parts);
    EXPECT_EQ(before.out_memory, to.out_memory);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Merge, MergeErrors,
    testing::Values(
        BadMerge{"out_a_2d", [](auto& p) { p.out_a.ndim = 2; }, {"out_a: got shape [3, 2]", "[tokens, heads, width]"}},
        BadMerge{"out_a_dtype",
                 [](auto& p) { p.out_a.dtype = DType::kInt64; },
                 {"out_a: got dtype int64", "fp32, fp16 or bf16"}},
        BadMerge{"out_b_dtype",
                 [](auto& p) { p.out_b.dtype = DType::kFloat16; },
                 {"out_b: got dtype fp16", "want dtype bf16"}},
        BadMerge{
            "out_dtype", [](auto& p) { p.out.dtype = DType::kFloat16; }, {"out: got dtype fp16", "want dtype bf16"}},
        BadMerge{"lse_a_dtype",
                 [](auto& p) { p.lse_a.dtype = DType::kBFloat16; },
                 {"lse_a: got dtype bf16", "want dtype fp32"}},
        BadMerge{"out_b_shape",
                 [](auto& p) { p.out_b.shape[2] = 8; },
                 {"out_b: got shape [3, 2, 8]", "[tokens, heads, width] = [3, 2, 16]"}},
        BadMerge{"out_shape", [](auto& p) { p.out.shape[0] = 2; }, {"out: got shape [2, 2, 16]", "[3, 2, 16]"}},
        BadMerge{"lse_a_order",
                 [](auto& p) { std::swap(p.lse_a.shape[0], p.lse_a.shape[1]); },
                 {"lse_a: got shape [3, 2]", "[heads, tokens] = [2, 3]"}},
        BadMerge{"lse_b_not_given", [](auto& p) { p.lse_b = {}; }, {"lse_b: got", "[heads, tokens]"}},
        BadMerge{"lse_order",
                 [](auto& p) { std::swap(p.lse.shape[0], p.lse.shape[1]); },
                 {"lse: got shape [3, 2]", "[2, 3]"}},
        BadMerge{"out_not_given", [](auto& p) { p.out = {}; }, {"out: got"}},
        BadMerge{"out_stride",
                 [](auto& p) { p.out.stride[2] = 2; },
                 {"out: got stride 2 of the last dimension", "contiguous"}},
        BadMerge{"out_overlaps",
                 [](auto& p) { p.out.stride[0] = 0; },
                 {"out: got stride 0 of dimension 0 (size 3)", "do not overlap"}},
        BadMerge{"lse_overlaps",
                 [](auto& p) { p.lse.stride[1] = 0; },
                 {"lse: got stride 0 of dimension 1", "do not overlap"}},
        BadMerge{"out_a_null", [](auto& p) { p.out_a.data = nullptr; }, {"out_a: got a null pointer"}},
        BadMerge{"lse_b_null", [](auto& p) { p.lse_b.data = nullptr; }, {"lse_b: got a null pointer"}},
        BadMerge{"marker", [](auto& p) { p.empty_lse = EmptyLse{3}; }, {"empty_lse: got 3", "0 (+inf) or 1 (-inf)"}}),
    bad_merge_name);

}  // namespace
}  // namespace flashmla::tests
