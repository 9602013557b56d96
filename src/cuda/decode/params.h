// What the decode and combine kernels get: plain, by value. Strides are in elements; every offset is 64 bits.
#pragma once

#include <vector_types.h>

#include <cstdint>

#include "cuda/decode/config.h"
#include "cuda/decode/schedule.h"
#include "cuda/tile/fast_divisor.h"

namespace flashmla::cuda {

struct QueryStrides {
  int64_t batch = 0;  // 0 with ragged q, whose tokens are numbered through all requests
  int64_t token = 0;
  int64_t head = 0;
};

struct DecodeKernelParams {
  const void* q = nullptr;       // [b, s_q, h_q, latent (+ rope)] or [total_q, h_q, ..]
  const void* q_rope = nullptr;  // [b, s_q, h_q, rope] or [total_q, h_q, rope]
  QueryStrides q_stride;
  QueryStrides q_rope_stride;
  const void* kv = nullptr;  // [pages, page_size, h_kv, latent + rope]
  int64_t kv_page_stride = 0;
  int64_t kv_token_stride = 0;
  int64_t kv_head_stride = 0;
  const int32_t* page_table = nullptr;  // [b, width]
  int64_t table_stride = 0;
  const int32_t* seq_lens = nullptr;      // [b]
  const int32_t* cu_seqlens_q = nullptr;  // [b + 1], or null
  void* out = nullptr;                    // [b, s_q, h_q, latent] or [total_q, h_q, latent]
  QueryStrides out_stride;
  float* lse = nullptr;  // [b, h_q, s_q] or [h_q, total_q]; may be null
  QueryStrides lse_stride;

  // Workspace. Slot 2 p: the tile that began before slice p; slot 2 p + 1: the tile that goes on after it. Where a unit
  // is a split: slot tile * max_splits + split.
  float* partial_out =
      nullptr;  // [slots][rows][latent], not divided by the row sum; Hopper kernels: as threads held them
  float2* partial_ml = nullptr;  // [slots][rows]: (maximum of the scaled scores in log2 units, row sum)

  int32_t batch = 0;
  int32_t requests = 0;  // batch, and one more with ragged q: the rows past the last request, which has no keys
  int32_t seq_q = 0;     // query tokens of a request; unused with ragged q
  int32_t total_q = 0;
  int32_t heads_kv = 1;
  FastDivisor group;  // heads_q / heads_kv
  int32_t latent_dim = kMaxLatent;
  int32_t rope_dim = kMaxRope;
  FastDivisor page_size;
  int32_t pages = 0;
  int32_t max_keys = 0;  // width * page_size: no longer length can be meant
  FastDivisor lanes;     // blocks side by side, each with one of a request's row tiles: they read the same keys at once
  int32_t positions = 1;   // blocks / lanes: into at most so many slices the line is cut
  int32_t blocks = 1;      // of each kernel; never depends on lengths
  int32_t stages = 2;      // of the ring (portable kernels)
  int32_t box_panels = 1;  // 64-wide panels of a bulk copy
  uint32_t log2_box = 6;   // keys of a bulk copy (Hopper kernels): 64, 32, 16 or 8, a divisor of the page size
  UnitRule units;
  SliceCosts costs;
  float scale_log2 = 0;  // softmax scale * log2(e)
  float empty_lse = 0;
  bool causal = false;
  bool out_aligned = false;  // base and strides of `out` are multiples of 16 bytes
};

}  // namespace flashmla::cuda
