// merge_states on the GPU: values, markers, aliasing, strides.
#include <cuda_runtime_api.h>

#include <array>
#include <cmath>
#include <utility>

#include "cases/random.h"
#include "core/text.h"
#include "cuda/device_memory.h"
#include "merge_state.h"
#include "support.h"

namespace flashmla::tests {
namespace {

Status merge_on_gpu(const MergeStatesParams& host) {
  DeviceMemory memory;
  MergeStatesParams params = host;
  params.out_a = memory.mirror(host.out_a);
  params.lse_a = memory.mirror(host.lse_a);
  params.out_b = memory.mirror(host.out_b);
  params.lse_b = memory.mirror(host.lse_b);
  params.out = memory.mirror(host.out);
  params.lse = memory.mirror(host.lse);
  FLASHMLA_RETURN_IF_ERROR(merge_states(params, on_gpu()));
  FLASHMLA_RETURN_IF_ERROR(cases::device_status());
  EXPECT_EQ(memory.download(), "");
  return {};
}

class CudaMergeDTypes : public testing::TestWithParam<DType> {};

// As the CPU's test of the same name: every pair of finite, +inf and -inf occurs, also in place.
TEST_P(CudaMergeDTypes, MixesOfFiniteAndEmptyRows) {
  REQUIRE_GPU();
  for (bool strided : {false, true}) {
    for (int64_t width : {1, 7, 64, 128, 512, 576, 1000}) {
      SCOPED_TRACE(testing::Message() << "width " << width << ", strided " << strided);
      State a(GetParam(), 33, 5, width, strided);
      State b(GetParam(), 33, 5, width, width != 512 && !strided);
      cases::Random random({static_cast<uint64_t>(width)});
      const std::array<float, 4> sums = {kInf, -kInf, 0, 0};
      for (int64_t t = 0; t < a.tokens; ++t) {
        for (int64_t h = 0; h < a.heads; ++h) {
          const float lse_a = sums[random.below(4)];
          const float lse_b = sums[random.below(4)];
          a.set_row(t, h, lse_a == 0 ? 3 * random.normal() : lse_a, 1, random);
          b.set_row(t, h, lse_b == 0 ? 3 * random.normal() : lse_b, 1, random);
        }
      }
      for (EmptyLse marker : {EmptyLse::kPlusInf, EmptyLse::kMinusInf}) {
        State to(GetParam(), 33, 5, width, strided);
        MergeStatesParams params = merge_params(a, b, to);
        params.empty_lse = marker;
        const Status status = merge_on_gpu(params);
        ASSERT_TRUE(status.ok()) << status.text();
        expect_merged(a, b, to, marker);

        State aliased = a;  // the output is the first input
        params = merge_params(aliased, b, aliased);
        params.empty_lse = marker;
        ASSERT_TRUE(merge_on_gpu(params).ok());
        expect_merged(a, b, aliased, marker);
      }
    }
  }
}

// More rows than warps on the GPU, in place as a chain of merges does it; equal bits every time.
TEST_P(CudaMergeDTypes, ManyRowsInPlace) {
  REQUIRE_GPU();
  State a(GetParam(), 1501, 16, 512, false);
  State b = a;
  cases::Random random({9});
  for (int64_t t = 0; t < a.tokens; ++t) {
    for (int64_t h = 0; h < a.heads; ++h) {
      a.set_row(t, h, t % 7 == 0 ? kInf : random.normal(), 1, random);
      b.set_row(t, h, t % 5 == 0 ? -kInf : random.normal(), 1, random);
    }
  }
  State first = a;
  ASSERT_TRUE(merge_on_gpu(merge_params(first, b, first)).ok());
  expect_merged(a, b, first, EmptyLse::kPlusInf);
  for (int repeat = 0; repeat < 3; ++repeat) {
    State again = a;
    ASSERT_TRUE(merge_on_gpu(merge_params(again, b, again)).ok());
    EXPECT_TRUE(first.out_memory == again.out_memory && first.lse_memory == again.lse_memory);
  }
}

INSTANTIATE_TEST_SUITE_P(Plain, CudaMergeDTypes, testing::Values(DType::kBFloat16, DType::kFloat16, DType::kFloat32),
                         dtype_test_name);

TEST(CudaMerge, ExtremeAndNaNSums) {
  REQUIRE_GPU();
  State a(DType::kFloat32, 1, 6, 1, false);
  State b = a;
  State to = a;
  const float one = 1;
  const float three = 3;
  const std::array<std::array<float, 2>, 6> sums = {
      {{1e4f, 1e4f}, {-1e4f, -1e4f}, {88, 1e6f}, {kNaN, 0}, {0, kNaN}, {std::log(2.0f), std::log(8.0f)}}};
  for (int64_t h = 0; h < 6; ++h) {
    a.lse_at(0, h) = sums[h][0];
    b.lse_at(0, h) = sums[h][1];
    cases::store_elements(a.row(0, h), a.dtype, &one, 1);
    cases::store_elements(b.row(0, h), b.dtype, &three, 1);
  }
  ASSERT_TRUE(merge_on_gpu(merge_params(a, b, to)).ok());
  EXPECT_FLOAT_EQ(to.value(0, 0, 0), 2);
  EXPECT_FLOAT_EQ(to.value(0, 1, 0), 2);
  EXPECT_FLOAT_EQ(to.lse_at(0, 0), 1e4f + std::log(2.0f));
  EXPECT_FLOAT_EQ(to.value(0, 2, 0), 3);
  EXPECT_FLOAT_EQ(to.lse_at(0, 2), 1e6f);
  for (int64_t h : {3, 4}) EXPECT_TRUE(std::isnan(to.value(0, h, 0)) && std::isnan(to.lse_at(0, h))) << "head " << h;
  EXPECT_NEAR(to.value(0, 5, 0), 2.6, 1e-6);
  EXPECT_NEAR(to.lse_at(0, 5), std::log(10.0), 1e-6);
}

TEST(CudaMerge, LeavesOutTheLseThatIsNotWanted) {
  REQUIRE_GPU();
  State a(DType::kBFloat16, 3, 2, 16, false);
  cases::Random random({4});
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t h = 0; h < 2; ++h) a.set_row(t, h, random.normal(), 1, random);
  }
  State b = a;
  State to = a;
  MergeStatesParams params = merge_params(a, b, to);
  params.lse = {};
  ASSERT_TRUE(merge_on_gpu(params).ok());
  to.lse_memory = a.lse_memory;
  for (float& lse : to.lse_memory) lse += std::log(2.0f);
  expect_merged(a, b, to, EmptyLse::kPlusInf);
}

TEST(CudaMerge, NoRows) {
  REQUIRE_GPU();
  for (const auto& [tokens, heads] : {std::pair{0, 4}, std::pair{4, 0}}) {
    State a(DType::kBFloat16, tokens, heads, 16, false);
    State b = a;
    State to = a;
    const Status status = merge_on_gpu(merge_params(a, b, to));
    EXPECT_TRUE(status.ok()) << status.text();
  }
}

// Rows more than 2^31 elements apart, of an odd stride: merged element by element, whose offsets are the largest.
TEST(CudaMerge, StridesBeyondTwoToThe31Elements) {
  REQUIRE_GPU();
  constexpr int64_t kStride = (int64_t{1} << 31) + 9;
  std::byte* pool = nullptr;
  if (cudaMalloc(reinterpret_cast<void**>(&pool), 3 * kStride * 2) != cudaSuccess) {
    (void)cudaGetLastError();
    GTEST_SKIP() << "needs " << (3 * kStride * 2 >> 30) << " GiB of GPU memory";
  }
  State a(DType::kBFloat16, 3, 1, 64, false);
  State b = a;
  cases::Random random({5});
  for (int64_t t = 0; t < 3; ++t) {
    a.set_row(t, 0, random.normal(), 1, random);
    b.set_row(t, 0, random.normal(), 1, random);
  }
  State to = a;
  DeviceMemory memory;
  MergeStatesParams params;
  params.out_a = memory.mirror(ConstTensorView(a.out));
  params.lse_a = memory.mirror(ConstTensorView(a.lse));
  params.out_b = memory.mirror(ConstTensorView(b.out));
  params.lse_b = memory.mirror(ConstTensorView(b.lse));
  params.lse = memory.mirror(to.lse);
  params.out = {pool, DType::kBFloat16, 3, {3, 1, 64}, {kStride, 64, 1}};
  const Status status = merge_states(params, on_gpu());
  ASSERT_TRUE(status.ok()) << status.text();
  EXPECT_EQ(memory.download(), "");
  for (int64_t t = 0; t < 3; ++t)
    check_cuda(cudaMemcpy(to.row(t, 0), pool + t * kStride * 2, 128, cudaMemcpyDeviceToHost), "copy");
  expect_merged(a, b, to, EmptyLse::kPlusInf);
  cudaFree(pool);
}

}  // namespace
}  // namespace flashmla::tests
