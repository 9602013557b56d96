// merge_states: one warp a row (token, head), or a part of a warp where rows are short; the loads of both sides, and of
// several short rows, are under way before their weights are known.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "cuda/cache/cache.h"
#include "cuda/launch.h"
#include "cuda/ptx/ptx.cuh"
#include "cuda/tile/fast_divisor.h"
#include "cuda/vectors.h"

namespace flashmla::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kBlocksPerMultiprocessor = 4;
constexpr int kInFlight = 2;     // words of a lane and side: a row of 512 bf16 takes two
constexpr int kShortBlocks = 2;  // of short rows, on a multiprocessor at once: up to 128 registers a thread
constexpr int kShortRows = 4;    // rows of a lane at once, where it has one word of each

// Strides of `out` in the kernel's words, of `lse` in elements.
struct MergeSide {
  const void* out = nullptr;
  const float* lse = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  int64_t lse_token_stride = 0;
  int64_t lse_head_stride = 0;
};

struct MergeKernelParams {
  MergeSide a;
  MergeSide b;
  MergeSide to;  // written; lse may be null; may be `a` itself
  int64_t rows = 0;
  int64_t heads = 1;
  FastDivisor heads_divisor;  // of short rows
  int64_t words = 0;          // of a row
  int log2_lanes = 5;         // of a short row
  float empty_lse = 0;
};

__device__ __forceinline__ float to_fp32(float x) { return x; }
__device__ __forceinline__ float to_fp32(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_fp32(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ void from_fp32(float x, float& to) { to = x; }
__device__ __forceinline__ void from_fp32(float x, __half& to) { to = __float2half_rn(x); }
__device__ __forceinline__ void from_fp32(float x, __nv_bfloat16& to) { to = __float2bfloat16_rn(x); }

// What a lane loads at once: 16 bytes, or one element where rows are not aligned.
template <class Element, int kCount>
struct alignas(kCount * sizeof(Element)) Word {
  Element values[kCount];
};

// Past L1: `a` may be what this kernel writes.
template <class Element, int kCount>
__device__ __forceinline__ Word<Element, kCount> load(const Word<Element, kCount>* address) {
  Word<Element, kCount> word;
  if constexpr (sizeof(word) == sizeof(uint4)) {
    *reinterpret_cast<uint4*>(&word) = __ldcg(reinterpret_cast<const uint4*>(address));
  } else if constexpr (sizeof(word) == sizeof(uint32_t)) {
    *reinterpret_cast<uint32_t*>(&word) = __ldcg(reinterpret_cast<const uint32_t*>(address));
  } else {
    *reinterpret_cast<uint16_t*>(&word) = __ldcg(reinterpret_cast<const uint16_t*>(address));
  }
  return word;
}

// The shares of the two sides; an empty one (either infinity) has none. As on the CPU, NaN is not "empty".
struct Weights {
  float a, b, lse;
  bool has_a, has_b;
};

__device__ __forceinline__ Weights weigh(float lse_a, float lse_b, float empty_lse) {
  Weights w;
  w.has_a = !isinf(lse_a);
  w.has_b = !isinf(lse_b);
  const float most = !w.has_a ? lse_b : !w.has_b || !(lse_a < lse_b) ? lse_a : lse_b;
  const float exp_a = w.has_a ? expf(lse_a - most) : 0.0f;
  const float exp_b = w.has_b ? expf(lse_b - most) : 0.0f;
  const float total = exp_a + exp_b;
  const float inverse = 1.0f / total;
  w.a = exp_a * inverse;
  w.b = exp_b * inverse;
  w.lse = w.has_a && w.has_b ? most + logf(total) : w.has_a ? lse_a : w.has_b ? lse_b : empty_lse;
  return w;
}

template <class Element, int kCount>
__device__ __forceinline__ Word<Element, kCount> merge(const Word<Element, kCount>& a, const Word<Element, kCount>& b,
                                                       const Weights& w) {
  if (!w.has_a || !w.has_b) return w.has_a ? a : w.has_b ? b : Word<Element, kCount>{};  // bit for bit
  Word<Element, kCount> to;
#pragma unroll
  for (int i = 0; i < kCount; ++i) from_fp32(w.a * to_fp32(a.values[i]) + w.b * to_fp32(b.values[i]), to.values[i]);
  return to;
}

template <class Element, int kCount>
__global__ void __launch_bounds__(kThreads) merge_rows(const __grid_constant__ MergeKernelParams p) {
  using W = Word<Element, kCount>;
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();  // the next kernel may start where there is room; it waits for these writes
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; row < p.rows; row += warps) {
    const int64_t token = row >> 32 == 0 ? static_cast<uint32_t>(row) / static_cast<uint32_t>(p.heads) : row / p.heads;
    const int64_t head = row - token * p.heads;
    const auto out_of = [&](const MergeSide& side) {
      return static_cast<const W*>(side.out) + token * side.token_stride + head * side.head_stride;
    };
    const auto lse_of = [&](const MergeSide& side) {
      return side.lse + head * side.lse_head_stride + token * side.lse_token_stride;
    };
    const float lse_a = __ldcg(lse_of(p.a));
    const float lse_b = __ldcg(lse_of(p.b));
    const W* from_a = out_of(p.a);
    const W* from_b = out_of(p.b);
    W* to = const_cast<W*>(out_of(p.to));
    __syncwarp();  // every lane has read lse_a, which may be what is written below
    for (int64_t first = lane; first < p.words; first += 32 * kInFlight) {
      W a[kInFlight];
      W b[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (first + 32 * i < p.words) a[i] = load(from_a + first + 32 * i);
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (first + 32 * i < p.words) b[i] = load(from_b + first + 32 * i);
      }
      const Weights weights = weigh(lse_a, lse_b, p.empty_lse);
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (first + 32 * i < p.words) to[first + 32 * i] = merge(a[i], b[i], weights);
      }
    }
    if (lane == 0 && p.to.lse != nullptr) *const_cast<float*>(lse_of(p.to)) = weigh(lse_a, lse_b, p.empty_lse).lse;
  }
}

// Rows of at most 32 words. What a row costs in instructions decides, so a power of two of lanes has kShortRows tokens
// of one head at once, whose addresses differ by a stride, and one lane finds the weights of each for the others.
template <class Element, int kCount>
__global__ void __launch_bounds__(kThreads, kShortBlocks)
    merge_short_rows(const __grid_constant__ MergeKernelParams p) {
  using W = Word<Element, kCount>;
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();  // as in merge_rows
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int word = lane & ((1 << p.log2_lanes) - 1);
  const int first_lane = lane - word;
  const auto tokens = static_cast<int32_t>(p.rows / p.heads);
  const auto heads = static_cast<int32_t>(p.heads);
  const int32_t groups = (tokens + kShortRows - 1) / kShortRows * heads;
  const int32_t block_groups = kThreads >> p.log2_lanes;
  // All lanes of a warp go on as long as one has work, as they exchange weights.
  for (int32_t base = static_cast<int32_t>(blockIdx.x) * block_groups; base < groups;
       base += static_cast<int32_t>(gridDim.x) * block_groups) {
    const int32_t group = min(base + static_cast<int32_t>(threadIdx.x >> p.log2_lanes), groups - 1);
    const bool exists = base + static_cast<int32_t>(threadIdx.x >> p.log2_lanes) < groups;
    const auto tile = static_cast<int32_t>(p.heads_divisor.quotient(static_cast<uint32_t>(group)));
    const int64_t head = group - tile * heads;
    const int32_t token = tile * kShortRows;
    const int rows = exists ? min(tokens - token, kShortRows) : 0;
    const auto out_of = [&](const MergeSide& side) {
      return static_cast<const W*>(side.out) + token * side.token_stride + head * side.head_stride + word;
    };
    const W* from_a = out_of(p.a);
    const W* from_b = out_of(p.b);
    W a[kShortRows];
    W b[kShortRows];
#pragma unroll
    for (int i = 0; i < kShortRows; ++i) {
      if (i < rows && word < p.words) {
        a[i] = load(from_a + i * p.a.token_stride);
        b[i] = load(from_b + i * p.b.token_stride);
      }
    }
    Weights own = {};
    float* lse = nullptr;
    if (word < rows) {
      const auto lse_of = [&](const MergeSide& side) {
        return side.lse + head * side.lse_head_stride + (token + word) * side.lse_token_stride;
      };
      own = weigh(__ldcg(lse_of(p.a)), __ldcg(lse_of(p.b)), p.empty_lse);
      if (p.to.lse != nullptr) lse = const_cast<float*>(lse_of(p.to));
    }
    __syncwarp();  // every lane has read what may be written below
    if (lse != nullptr) *lse = own.lse;
    const int sides = (own.has_a ? 1 : 0) + (own.has_b ? 2 : 0);
    W* to = const_cast<W*>(out_of(p.to));
#pragma unroll
    for (int i = 0; i < kShortRows; ++i) {
      Weights weights;
      weights.a = __shfl_sync(~0u, own.a, first_lane + i);
      weights.b = __shfl_sync(~0u, own.b, first_lane + i);
      const int row_sides = __shfl_sync(~0u, sides, first_lane + i);
      weights.has_a = (row_sides & 1) != 0;
      weights.has_b = (row_sides & 2) != 0;
      if (i < rows && word < p.words) to[i * p.to.token_stride] = merge(a[i], b[i], weights);
    }
  }
}

MergeSide side_of(const ConstTensorView& out, const ConstTensorView& lse, int64_t word) {
  MergeSide side;
  side.out = out.data;
  // The stride of a single token or head may be anything, and is not used.
  side.token_stride = out.shape[0] > 1 ? out.stride[0] / word : 0;
  side.head_stride = out.shape[1] > 1 ? out.stride[1] / word : 0;
  if (!lse.given()) return side;
  side.lse = static_cast<const float*>(lse.data);
  side.lse_token_stride = lse.shape[1] > 1 ? lse.stride[1] : 0;
  side.lse_head_stride = lse.shape[0] > 1 ? lse.stride[0] : 0;
  return side;
}

template <class Element>
const void* kernel_of(bool vectors, bool short_rows) {
  constexpr int kCount = sizeof(uint4) / sizeof(Element);
  if (vectors && short_rows) return reinterpret_cast<const void*>(&merge_short_rows<Element, kCount>);
  return vectors ? reinterpret_cast<const void*>(&merge_rows<Element, kCount>)
                 : reinterpret_cast<const void*>(&merge_rows<Element, 1>);
}

}  // namespace

Status launch_merge(const MergeStatesParams& params, const MergeShape& shape, const DeviceInfo& device, void* stream) {
  if (shape.tokens == 0 || shape.heads == 0) return {};
  const int64_t bytes = dtype_bytes(shape.dtype);
  const bool vectors = aligned_rows(params.out_a) && aligned_rows(params.out_b) && aligned_rows(params.out) &&
                       aligned_bytes(shape.width * bytes);
  const int64_t word = vectors ? kVectorBytes / bytes : 1;  // in elements
  MergeKernelParams p;
  p.a = side_of(params.out_a, params.lse_a, word);
  p.b = side_of(params.out_b, params.lse_b, word);
  p.to = side_of(params.out, params.lse, word);
  p.rows = shape.tokens * shape.heads;
  p.heads = shape.heads;
  p.words = shape.width / word;
  p.empty_lse = params.empty_lse == EmptyLse::kPlusInf ? INFINITY : -INFINITY;
  const bool short_rows = vectors && p.words > 0 && p.words <= 32 && p.rows < int64_t{1} << 28;
  if (short_rows) {
    p.heads_divisor = FastDivisor(static_cast<uint32_t>(shape.heads));
    while (1 << p.log2_lanes > kShortRows && p.words <= 1 << (p.log2_lanes - 1)) --p.log2_lanes;
  }
  const void* kernel = shape.dtype == DType::kBFloat16  ? kernel_of<__nv_bfloat16>(vectors, short_rows)
                       : shape.dtype == DType::kFloat16 ? kernel_of<__half>(vectors, short_rows)
                                                        : kernel_of<float>(vectors, short_rows);
  const int64_t most =
      static_cast<int64_t>(device.multiprocessors) * (short_rows ? kShortBlocks : kBlocksPerMultiprocessor);
  const int64_t units = short_rows ? (shape.tokens + kShortRows - 1) / kShortRows * shape.heads : p.rows;
  const int64_t block_units = short_rows ? kThreads >> p.log2_lanes : kWarps;
  const int blocks = static_cast<int>(std::min((units + block_units - 1) / block_units, most));
  void* arguments[] = {&p};
  return launch("merge_states", kernel, {blocks, kThreads, 0}, arguments, stream);
}

}  // namespace flashmla::cuda
