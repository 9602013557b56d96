#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <string>

#include "cases/naive_decode.h"

namespace flashmla::cases {

namespace {

constexpr int kThreads = 256;

struct NaiveParams {
  DecodeParams call;
  DecodeShape shape;
  double* scores;  // [rows, max_keys]
  int64_t max_keys;
  double* out;
  double* lse;
};

__device__ double block_reduce(double value, bool maximum) {
  __shared__ double shared[kThreads];
  shared[threadIdx.x] = value;
  __syncthreads();
  for (int step = kThreads / 2; step > 0; step /= 2) {
    if (threadIdx.x < step) {
      const double other = shared[threadIdx.x + step];
      shared[threadIdx.x] = maximum ? fmax(shared[threadIdx.x], other) : shared[threadIdx.x] + other;
    }
    __syncthreads();
  }
  const double result = shared[0];
  __syncthreads();
  return result;
}

// A block a row: query token blockIdx.x, head blockIdx.y.
template <class T>
__global__ void naive_kernel(const NaiveParams p) {
  const int64_t token = blockIdx.x;
  const int64_t head = blockIdx.y;
  const DecodeShape& shape = p.shape;
  int64_t request = shape.ragged_q ? 0 : token / shape.seq_q;
  int64_t first = request * shape.seq_q;
  int64_t tokens = shape.seq_q;
  const auto* cu = static_cast<const int32_t*>(p.call.cu_seqlens_q.data);
  if (shape.ragged_q) {
    while (request < shape.batch && cu[request + 1] <= token) ++request;
    first = cu[request];
    tokens = request < shape.batch ? cu[request + 1] - first : 0;
  }
  const int64_t length = request < shape.batch ? static_cast<const int32_t*>(p.call.seq_lens.data)[request] : 0;
  const int64_t keys = p.call.causal ? min(length, max(int64_t{0}, length - tokens + token - first + 1)) : length;

  const int64_t local = shape.ragged_q ? token : token - first;
  const int r = shape.ragged_q ? -1 : 0;  // views of ragged calls have no batch dimension
  const auto row_of = [&](const ConstTensorView& view) {
    return static_cast<const T*>(view.data) + (r < 0 ? 0 : request * view.stride[0]) + local * view.stride[1 + r] +
           head * view.stride[2 + r];
  };
  const T* q = row_of(p.call.q);
  const T* q_rope = p.call.q_rope.ndim != 0 ? row_of(p.call.q_rope) : q + shape.latent_dim;
  const auto key_of = [&](int64_t k) {
    const auto* table = static_cast<const int32_t*>(p.call.page_table.data) + request * p.call.page_table.stride[0];
    return static_cast<const T*>(p.call.kv_cache.data) + table[k / shape.page_size] * p.call.kv_cache.stride[0] +
           k % shape.page_size * p.call.kv_cache.stride[1] +
           head / (shape.heads_q / shape.heads_kv) * p.call.kv_cache.stride[2];
  };

  double* scores = p.scores + (token * shape.heads_q + head) * p.max_keys;
  double largest = -INFINITY;
  for (int64_t k = threadIdx.x; k < keys; k += kThreads) {
    const T* row = key_of(k);
    double s = 0;
    for (int64_t d = 0; d < shape.latent_dim; ++d) s += static_cast<double>(float(q[d])) * float(row[d]);
    for (int64_t d = 0; d < shape.rope_dim; ++d)
      s += static_cast<double>(float(q_rope[d])) * float(row[shape.latent_dim + d]);
    scores[k] = s * p.call.softmax_scale;
    largest = fmax(largest, scores[k]);
  }
  largest = block_reduce(largest, true);
  double sum = 0;
  for (int64_t k = threadIdx.x; k < keys; k += kThreads) sum += scores[k] = exp(scores[k] - largest);
  sum = block_reduce(sum, false);
  for (int64_t d = threadIdx.x; d < shape.latent_dim; d += kThreads) {
    double o = 0;
    for (int64_t k = 0; k < keys; ++k) o += scores[k] * float(key_of(k)[d]);
    p.out[(token * shape.heads_q + head) * shape.latent_dim + d] = keys == 0 ? 0 : o / sum;
  }
  if (threadIdx.x == 0) p.lse[token * shape.heads_q + head] = keys == 0 ? INFINITY : largest + log(sum);
}

}  // namespace

Status naive_decode(const DecodeParams& params, double* out, double* lse) {
  const Result<DecodeShape> shape = decode_shape(params);
  if (!shape.ok()) return shape.status();
  if (shape.value().total_q == 0) return {};
  NaiveParams p{params, shape.value(), nullptr, shape.value().table_width * shape.value().page_size, out, lse};
  const auto rows = static_cast<size_t>(p.shape.total_q * p.shape.heads_q);
  cudaError_t error = cudaMalloc(&p.scores, rows * static_cast<size_t>(p.max_keys) * sizeof(double) + 8);
  const dim3 grid(static_cast<unsigned>(p.shape.total_q), static_cast<unsigned>(p.shape.heads_q));
  if (error == cudaSuccess) {
    if (p.shape.dtype == DType::kBFloat16)
      naive_kernel<__nv_bfloat16><<<grid, kThreads>>>(p);
    else
      naive_kernel<__half><<<grid, kThreads>>>(p);
    error = cudaDeviceSynchronize();
  }
  cudaFree(p.scores);
  if (error == cudaSuccess) return {};
  return {StatusCode::kInternal, std::string("naive_decode: ") + cudaGetErrorString(error)};
}

}  // namespace flashmla::cases
