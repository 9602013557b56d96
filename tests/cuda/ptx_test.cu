// Each instruction wrapper of src/cuda/ptx against a plain computation. Skipped by name where no GPU is.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "cuda/ptx/ptx.cuh"
#include "cuda/tile/layout.h"
#include "device_memory.h"

namespace flashmla::cuda {
namespace {

using tests::DeviceVector;

// d[16][8] = a[16][16] b, b as rows of n (8 x 16 values of k) or, transposed, as rows of k (16 x 16 values of n, of
// which tile `half` is used). Whole numbers, so that every sum is exact.
template <class T, bool kTransposed>
__global__ void product(const T* a, const T* b, float* d, int half) {
  __shared__ __align__(128) T a_tile[16 * 64];
  __shared__ __align__(128) T b_tile[16 * 64];
  for (int i = threadIdx.x; i < 16 * 16; i += 32) {
    const int row = i / 16;
    const int column = i % 16;
    const int at = tile::swizzled(row, column / 8, 128) / 2 + column % 8;
    a_tile[at] = a[i];
    b_tile[at] = b[i];
  }
  __syncwarp();
  const tile::RowChunk a_at = tile::a_fragment_lane(threadIdx.x);
  uint32_t a_frag[4], b_frag[4];
  ptx::ldmatrix_x4(a_frag, ptx::shared_address(a_tile) + tile::swizzled(a_at.row, a_at.chunk, 128));
  if (kTransposed) {
    const tile::RowChunk b_at = tile::b_trans_fragment_lane(threadIdx.x);
    ptx::ldmatrix_x4_trans(b_frag, ptx::shared_address(b_tile) + tile::swizzled(b_at.row, b_at.chunk, 128));
  } else {
    const tile::RowChunk b_at = tile::b_fragment_lane(threadIdx.x);
    ptx::ldmatrix_x4(b_frag, ptx::shared_address(b_tile) + tile::swizzled(b_at.row, b_at.chunk, 128));
  }
  float sum[4] = {1, 1, 1, 1};  // what is there already is added to
  ptx::mma_m16n8k16(sum, a_frag, b_frag[2 * half], b_frag[2 * half + 1], T());
  float* out = d + tile::c_fragment_row(threadIdx.x) * 8 + tile::c_fragment_column(threadIdx.x);
  out[0] = sum[0];
  out[1] = sum[1];
  out[64] = sum[2];
  out[65] = sum[3];
}

template <class T, bool kTransposed>
void expect_products() {
  std::vector<T> a(256), b(256);
  for (int i = 0; i < 256; ++i) {
    a[i] = T(static_cast<float>(i * 7 % 23 - 11));
    b[i] = T(static_cast<float>(i * 5 % 19 - 9));
  }
  const DeviceVector<T> a_device(a), b_device(b);
  for (int half = 0; half < 2; ++half) {
    DeviceVector<float> d(std::vector<float>(128, -1.0f));
    product<T, kTransposed><<<1, 32>>>(a_device.data(), b_device.data(), d.data(), half);
    const auto d_host = d.download();
    for (int m = 0; m < 16; ++m) {
      for (int n = 0; n < 8; ++n) {
        float want = 1;
        for (int k = 0; k < 16; ++k) {
          const int column = 8 * half + n;
          want += static_cast<float>(a[m * 16 + k]) *
                  static_cast<float>(kTransposed ? b[k * 16 + column] : b[column * 16 + k]);
        }
        ASSERT_EQ(d_host[m * 8 + n], want) << "row " << m << ", column " << n << ", half " << half;
      }
    }
  }
}

TEST(CudaPtx, LdmatrixAndMma) {
  REQUIRE_GPU();
  expect_products<__nv_bfloat16, false>();
  expect_products<__nv_bfloat16, true>();
  expect_products<__half, false>();
  expect_products<__half, true>();
}

// Groups complete in order; invalid copies write zeros and read nothing, whatever the address.
// The copy with a policy has an address and a condition from memory, as in the kernels (the trap of cp_async_16).
__global__ void copies(const uint4* from, uint4* to, const int* place) {
  extern __shared__ __align__(16) unsigned char dynamic[];
  auto* buffer = reinterpret_cast<uint4(*)[32]>(dynamic);
  for (int i = 0; i < 4; ++i) buffer[i][threadIdx.x] = make_uint4(7, 7, 7, 7);
  __syncwarp();
  ptx::cp_async_16(ptx::shared_address(&buffer[0][threadIdx.x]), from + threadIdx.x, true);
  ptx::cp_async_commit();
  ptx::cp_async_16(ptx::shared_address(&buffer[1][threadIdx.x]), nullptr, false);
  const int at = place[threadIdx.x];  // the lane's own, or -1
  ptx::cp_async_16(ptx::shared_address(&buffer[2][at < 0 ? threadIdx.x : at]), from + 32 + max(at, 0), at >= 0,
                   ptx::evict_first_policy());
  ptx::cp_async_4(ptx::shared_address(&buffer[3][threadIdx.x].y), &from[threadIdx.x].z);
  ptx::cp_async_commit();
  ptx::cp_async_wait<1>();
  __syncwarp();
  to[threadIdx.x] = buffer[0][31 - threadIdx.x];
  ptx::cp_async_wait<0>();
  __syncwarp();
  for (int i = 1; i < 4; ++i) to[32 * i + threadIdx.x] = buffer[i][threadIdx.x];
}

bool same(const uint4& a, const uint4& b) { return a.x == b.x && a.y == b.y && a.z == b.z && a.w == b.w; }

TEST(CudaPtx, AsynchronousCopies) {
  REQUIRE_GPU();
  std::vector<uint4> values(64);
  for (uint32_t i = 0; i < 64; ++i) values[i] = make_uint4(4 * i + 1, 4 * i + 2, 4 * i + 3, 4 * i + 4);
  const DeviceVector<uint4> from(values);
  std::vector<int> places(32);
  for (int i = 0; i < 32; ++i) places[i] = i % 2 == 0 ? i : -1;
  const DeviceVector<int> place(places);
  DeviceVector<uint4> to(std::vector<uint4>(128, make_uint4(9, 9, 9, 9)));
  copies<<<1, 32, 4 * 32 * sizeof(uint4)>>>(from.data(), to.data(), place.data());
  const auto to_host = to.download();
  for (uint32_t i = 0; i < 32; ++i) {
    EXPECT_TRUE(same(to_host[i], values[31 - i])) << i;
    EXPECT_TRUE(same(to_host[32 + i], make_uint4(0, 0, 0, 0))) << i;
    EXPECT_TRUE(same(to_host[64 + i], i % 2 == 0 ? values[32 + i] : make_uint4(0, 0, 0, 0))) << i;
    EXPECT_TRUE(same(to_host[96 + i], make_uint4(7, values[i].z, 7, 7))) << i;
  }
}

__global__ void loads_and_exponentials(const int32_t* numbers, const float2* pairs, const float4* quads,
                                       const uint4* words, float* out) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  const int i = threadIdx.x;
  const float2 pair = ptx::load_l2(pairs + i);
  const float4 quad = ptx::load_l2(quads + i);
  const uint4 word = ptx::load_l2(words + i);
  out[i] = static_cast<float>(ptx::load_l2(numbers + i));
  out[32 + i] = pair.x - pair.y;
  out[64 + i] = quad.x + 2 * quad.y + 3 * quad.z + 4 * quad.w;
  out[96 + i] = static_cast<float>(word.x + 2 * word.y + 3 * word.z + 4 * word.w);
  out[128 + i] = ptx::exp2_approx(static_cast<float>(i - 16));
  out[160 + i] = ptx::exp2_approx(-0.37f * static_cast<float>(i));
  out[192 + i] = ptx::exp2_approx(i == 0 ? -INFINITY : i == 1 ? INFINITY : NAN);
}

TEST(CudaPtx, LoadsAndExponentials) {
  REQUIRE_GPU();
  std::vector<int32_t> numbers(32);
  std::vector<float2> pairs(32);
  std::vector<float4> quads(32);
  std::vector<uint4> words(32);
  for (int i = 0; i < 32; ++i) {
    const auto x = static_cast<float>(i);
    const auto n = static_cast<uint32_t>(i);
    numbers[i] = -3 * i;
    pairs[i] = make_float2(x, 2 * x + 1);
    quads[i] = make_float4(x, x + 1, x + 2, x + 3);
    words[i] = make_uint4(n, n + 1, n + 2, n + 3);
  }
  const DeviceVector<int32_t> numbers_device(numbers);
  const DeviceVector<float2> pairs_device(pairs);
  const DeviceVector<float4> quads_device(quads);
  const DeviceVector<uint4> words_device(words);
  DeviceVector<float> out(std::vector<float>(224, -1.0f));
  loads_and_exponentials<<<1, 32>>>(numbers_device.data(), pairs_device.data(), quads_device.data(),
                                    words_device.data(), out.data());
  const auto out_host = out.download();
  for (int i = 0; i < 32; ++i) {
    const auto x = static_cast<float>(i);
    EXPECT_EQ(out_host[i], -3 * x);
    EXPECT_EQ(out_host[32 + i], -x - 1);
    EXPECT_EQ(out_host[64 + i], 10 * x + 20);
    EXPECT_EQ(out_host[96 + i], 10 * x + 20);
    EXPECT_EQ(out_host[128 + i], std::exp2(x - 16));  // whole numbers are exact
    const float want = std::exp2(-0.37f * x);
    EXPECT_NEAR(out_host[160 + i], want, 3e-7f * want);
  }
  EXPECT_EQ(out_host[192], 0.0f);
  EXPECT_EQ(out_host[193], INFINITY);
  EXPECT_TRUE(std::isnan(out_host[194]));
}

}  // namespace
}  // namespace flashmla::cuda
