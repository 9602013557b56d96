// The matrix products of src/cuda/ptx/wgmma.cuh against plain sums of whole numbers, which are exact. Skipped by name
// where no Hopper GPU is.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "cuda/ptx/wgmma.cuh"
#include "cuda/tile/layout.h"
#include "require_hopper.cuh"

namespace flashmla::cuda {
namespace {

using ptx::kKMajor;
using ptx::kMnMajor;
using tests::DeviceVector;

constexpr int kM = 64;  // rows of d
constexpr int kK = 64;  // four products
constexpr int kThreads = 128;
constexpr int kPanelBytes = 64 * 128;

// Byte offset of element `k` of line `line` (a row of a, a column of b) of an operand.
__device__ int place(int major, int line, int k, int panel_bytes) {
  if (major == kKMajor) return tile::swizzled(line, k / 8, 128) + k % 8 * 2;
  return line / 64 * panel_bytes + tile::swizzled(k, line % 64 / 8, 128) + line % 8 * 2;
}

// How far on the next 16 values of k lie.
__device__ constexpr uint32_t step_bytes(int major) { return major == kKMajor ? 32 : 16 * 128; }

// Where accumulator i of this thread belongs.
__device__ int own_row(int i) { return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i / 2 % 2 * 8; }
__device__ int own_column(int i) { return i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2; }

// d[64][N] = a b^T, added to `start` if `add`; a[64][64] and b[N][64] have k as the last index, whatever the form in
// shared memory. `panel_bytes` is the distance of panels of an MN-major b.
template <class T, int kN, int kMajorA, int kMajorB, bool kRegisters>
__global__ void __launch_bounds__(kThreads)
    product(const T* a, const T* b, const float* start, float* d, bool add, int panel_bytes) {
  extern __shared__ __align__(1024) unsigned char smem[];
  unsigned char* const b_smem = smem + kPanelBytes;
  for (int i = threadIdx.x; i < kM * kK; i += kThreads)
    *reinterpret_cast<T*>(smem + place(kMajorA, i / kK, i % kK, 0)) = a[i];
  for (int i = threadIdx.x; i < kN * kK; i += kThreads)
    *reinterpret_cast<T*>(b_smem + place(kMajorB, i / kK, i % kK, panel_bytes)) = b[i];
  ptx::async_proxy_fence();
  __syncthreads();
  float sums[kN / 2];
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) sums[i] = start[own_row(i) * kN + own_column(i)];
  [[maybe_unused]] uint32_t a_fragments[kK / 16][4];
  if constexpr (kRegisters) {  // as of mma.m16n8k16: rows 0-7, 8-15 of k 0-7; of k 8-15
#pragma unroll
    for (int i = 0; i < kK / 4; ++i) {
      const T* from = a + own_row(2 * i) * kK + i / 4 * 16 + i / 2 % 2 * 8 + threadIdx.x % 4 * 2;
      a_fragments[i / 4][i % 4] = *reinterpret_cast<const uint32_t*>(from);
    }
  }
  const uint64_t a_at = ptx::wgmma_descriptor(ptx::shared_address(smem));
  const uint64_t b_at = ptx::wgmma_descriptor(ptx::shared_address(b_smem), panel_bytes);
  ptx::wgmma_tie(sums);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < kK / 16; ++step) {
    const uint64_t b_step = b_at + ptx::wgmma_offset(step * step_bytes(kMajorB));
    if constexpr (kRegisters) {
      ptx::wgmma_rs<kMajorB>(sums, a_fragments[step], b_step, add || step > 0, T());
    } else {
      ptx::wgmma_ss<kMajorA, kMajorB>(sums, a_at + ptx::wgmma_offset(step * step_bytes(kMajorA)), b_step,
                                      add || step > 0, T());
    }
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::wgmma_tie(sums);
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) d[own_row(i) * kN + own_column(i)] = sums[i];
}

// Whole numbers from -10 to 10 without a pattern.
template <class T>
std::vector<T> numbers(int count, uint32_t seed) {
  std::vector<T> values(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    const uint32_t hash = (static_cast<uint32_t>(i) + seed) * 2654435761u;
    values[i] = T(static_cast<float>(static_cast<int>((hash ^ hash >> 15) % 21) - 10));
  }
  return values;
}

template <class T, int kN, int kMajorA, int kMajorB, bool kRegisters = false>
void expect_product(int panel_bytes = 0) {
  const std::vector<T> a = numbers<T>(kM * kK, 1), b = numbers<T>(kN * kK, 100'000);
  const DeviceVector<T> a_device(a), b_device(b);
  const int smem_bytes = kPanelBytes + (panel_bytes == 0 ? kN * 128 : (kN + 63) / 64 * panel_bytes);
  for (const bool add : {false, true}) {
    // Without `add`, what is there is not even read.
    const std::vector<float> start = add ? numbers<float>(kM * kN, 7) : std::vector<float>(kM * kN, NAN);
    const DeviceVector<float> start_device(start);
    const DeviceVector<float> d(std::vector<float>(kM * kN, -12345.0f));
    product<T, kN, kMajorA, kMajorB, kRegisters><<<1, kThreads, smem_bytes>>>(
        a_device.data(), b_device.data(), start_device.data(), d.data(), add, panel_bytes);
    tests::check_cuda(cudaGetLastError(), "launch");
    const std::vector<float> got = d.download();
    for (int m = 0; m < kM; ++m) {
      for (int n = 0; n < kN; ++n) {
        float want = add ? start[m * kN + n] : 0.0f;
        for (int k = 0; k < kK; ++k) want += static_cast<float>(a[m * kK + k]) * static_cast<float>(b[n * kK + k]);
        ASSERT_EQ(got[m * kN + n], want) << "N " << kN << ", row " << m << ", column " << n
                                         << (add ? ", added" : ", not added")
                                         << (kMajorA == kMnMajor ? ", a MN-major" : "")
                                         << (kMajorB == kMnMajor ? ", b MN-major" : "")
                                         << (kRegisters ? ", a in registers" : "") << ", panels " << panel_bytes
                                         << " bytes apart";
      }
    }
  }
}

template <class T, int kMajorA>
void expect_products_of_every_width() {
  expect_product<T, 8, kMajorA, kKMajor>();
  expect_product<T, 16, kMajorA, kKMajor>();
  expect_product<T, 32, kMajorA, kKMajor>();
  expect_product<T, 64, kMajorA, kKMajor>();
  expect_product<T, 256, kMajorA, kKMajor>();
}

TEST(CudaWgmma, KMajorOperands) {
  REQUIRE_HOPPER();
  expect_products_of_every_width<__nv_bfloat16, kKMajor>();
  expect_products_of_every_width<__half, kKMajor>();
}

TEST(CudaWgmma, MnMajorA) {
  REQUIRE_HOPPER();
  expect_products_of_every_width<__nv_bfloat16, kMnMajor>();
  expect_products_of_every_width<__half, kMnMajor>();
}

// Panels side by side, as the kernels have them, and with a gap, which shows that the distance counts.
TEST(CudaWgmma, MnMajorB) {
  REQUIRE_HOPPER();
  expect_product<__nv_bfloat16, 64, kKMajor, kMnMajor>(kPanelBytes);
  expect_product<__half, 64, kKMajor, kMnMajor>(kPanelBytes);
  for (const int panel_bytes : {kPanelBytes, kPanelBytes + 1024}) {
    expect_product<__nv_bfloat16, 256, kKMajor, kMnMajor>(panel_bytes);
    expect_product<__half, 256, kKMajor, kMnMajor>(panel_bytes);
  }
}

TEST(CudaWgmma, AInRegisters) {
  REQUIRE_HOPPER();
  expect_product<__nv_bfloat16, 64, kKMajor, kKMajor, true>();
  expect_product<__half, 64, kKMajor, kKMajor, true>();
  expect_product<__nv_bfloat16, 64, kKMajor, kMnMajor, true>(kPanelBytes);
  expect_product<__half, 64, kKMajor, kMnMajor, true>(kPanelBytes);
}

// Groups in flight together; the results of the older ones are taken while the newer ones may still be computed. All
// operands are ones.
__global__ void __launch_bounds__(kThreads) groups(float* d) {
  extern __shared__ __align__(1024) unsigned char smem[];
  for (int i = threadIdx.x; i < kPanelBytes / 2; i += kThreads)
    reinterpret_cast<__nv_bfloat16*>(smem)[i] = __nv_bfloat16(1.0f);
  ptx::async_proxy_fence();
  __syncthreads();
  const uint64_t ones = ptx::wgmma_descriptor(ptx::shared_address(smem));
  float sums[3][4];
#pragma unroll
  for (int group = 0; group < 3; ++group) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[group][i] = static_cast<float>(1000 * group);
    ptx::wgmma_tie(sums[group]);
  }
  ptx::wgmma_fence();
#pragma unroll
  for (int group = 0; group < 3; ++group) {
#pragma unroll
    for (int step = 0; step <= group; ++step)
      ptx::wgmma_ss<kKMajor, kKMajor>(sums[group], ones, ones, true, __nv_bfloat16());
    ptx::wgmma_commit();
  }
  ptx::wgmma_wait<2>();
  ptx::wgmma_tie(sums[0]);
  d[threadIdx.x] = sums[0][0] + sums[0][1] + sums[0][2] + sums[0][3];
  ptx::wgmma_wait<1>();
  ptx::wgmma_tie(sums[1]);
  d[kThreads + threadIdx.x] = sums[1][0] + sums[1][1] + sums[1][2] + sums[1][3];
  ptx::wgmma_wait<0>();
  ptx::wgmma_tie(sums[2]);
  d[2 * kThreads + threadIdx.x] = sums[2][0] + sums[2][1] + sums[2][2] + sums[2][3];
}

TEST(CudaWgmma, GroupsInFlight) {
  REQUIRE_HOPPER();
  const DeviceVector<float> d(std::vector<float>(3 * kThreads, -1.0f));
  groups<<<1, kThreads, kPanelBytes>>>(d.data());
  tests::check_cuda(cudaGetLastError(), "launch");
  const std::vector<float> got = d.download();
  for (int group = 0; group < 3; ++group) {
    for (int thread = 0; thread < kThreads; ++thread)
      ASSERT_EQ(got[group * kThreads + thread], 4.0f * static_cast<float>(1000 * group + 16 * (group + 1)))
          << "group " << group << ", thread " << thread;
  }
}

}  // namespace
}  // namespace flashmla::cuda
