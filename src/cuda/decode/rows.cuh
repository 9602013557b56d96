// Rows of a tile: which query token and head they are, where they lie, and what the kernels share about them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/decode/line.cuh"

namespace flashmla::cuda::portable {

__device__ __forceinline__ uint32_t pack(float low, float high, __nv_bfloat16 /*element*/) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ __forceinline__ uint32_t pack(float low, float high, __half /*element*/) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Natural logarithm of the sum of exp(scores), from a maximum in log2 units and a sum relative to it.
__device__ __forceinline__ float lse_of(float m, float l) { return (m + log2f(l)) * 0.6931471805599453f; }

// d_qk as the loops see it: constants where the kernel is tuned for them.
template <DecodeConfig C>
struct Extent {
  const DecodeKernelParams& p;
  __device__ int latent() const { return C.widths == Widths::kTuned ? kMaxLatent : p.latent_dim; }
  __device__ int width() const { return C.widths == Widths::kTuned ? kMaxWidth : p.latent_dim + p.rope_dim; }
  __device__ int k_steps() const { return (width() + 15) / 16; }
  __device__ int panels() const { return (width() + 63) / 64; }
};

// Where row `row` of a segment's tile lies: token of the request and head of the call.
struct RowPlace {
  int32_t token;
  int32_t head;
};
template <int kRows>
__device__ __forceinline__ RowPlace row_place(const DecodeKernelParams& p, const Segment& segment, int row) {
  const int32_t index = segment.row_tile * kRows + row;
  const int32_t token = p.group.quotient(index);
  const auto group = static_cast<int32_t>(p.group.divisor);
  return {token, segment.kv_head * group + index - token * group};
}
// Rows of the tile that exist.
template <int kRows>
__device__ __forceinline__ int tile_rows(const DecodeKernelParams& p, const Segment& segment) {
  const int32_t left = segment.size.tokens * static_cast<int32_t>(p.group.divisor) - segment.row_tile * kRows;
  return left < kRows ? left : kRows;
}
__device__ __forceinline__ int64_t offset_of(const QueryStrides& stride, const Segment& segment, RowPlace place) {
  return segment.request * stride.batch +
         (static_cast<int64_t>(segment.size.first_token) + place.token) * stride.token + place.head * stride.head;
}

}  // namespace flashmla::cuda::portable
