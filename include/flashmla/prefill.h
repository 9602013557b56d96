// Prefill attention in MHA form: packed sequences whose keys and values are tensors of their own (decompressed
// latents).
#pragma once

#include <cstdint>
#include <limits>

#include "flashmla/context.h"
#include "flashmla/decode.h"
#include "flashmla/export.h"
#include "flashmla/status.h"
#include "flashmla/tensor.h"

namespace flashmla {

// Sequence i has query tokens [cu_seqlens_q[i], cu_seqlens_q[i + 1]) and keys [cu_seqlens_k[i], cu_seqlens_k[i + 1]).
// DeepSeek's widths are d_qk = 192 and d_v = 128; back ends "reference" and "cpu" take any multiples of 8.
struct PrefillParams {
  // [total_q, h_q, d_qk], fp32, fp16 or bf16. Last dimension contiguous, other strides multiples of 16 bytes, base
  // 16-byte aligned; the same holds for k and v.
  ConstTensorView q{};
  ConstTensorView k{};             // [total_k, h_kv, d_qk]; h_kv divides h_q, head h reads KV head h / (h_q / h_kv)
  ConstTensorView v{};             // [total_k, h_kv, d_v]
  ConstTensorView cu_seqlens_q{};  // int32 [b + 1]
  ConstTensorView cu_seqlens_k{};  // int32 [b + 1]
  TensorView out{};                // [total_q, h_q, d_v], dtype of q. Every element is written
  TensorView lse{};  // fp32 [h_q, total_q], free strides: natural logarithm, for merge_states. May be left out
  float softmax_scale = std::numeric_limits<float>::quiet_NaN();  // required
  bool causal = false;  // query i of s_q sees the first s_k - s_q + i + 1 keys
  EmptyLse empty_lse = EmptyLse::kPlusInf;
};

struct PrefillShape {
  int64_t batch = 0;
  int64_t total_q = 0;
  int64_t total_k = 0;
  int64_t heads_q = 0;
  int64_t heads_kv = 0;
  int64_t qk_dim = 192;
  int64_t v_dim = 128;
  DType dtype = DType::kBFloat16;
  bool causal = false;
};

// Checks everything about a call that does not need a look into device memory.
FLASHMLA_API Result<PrefillShape> prefill_shape(const PrefillParams& params);

FLASHMLA_API Result<int64_t> workspace_bytes(const PrefillShape& shape, const Context& context = {});
FLASHMLA_API Result<KernelChoice> explain_prefill(const PrefillShape& shape, const Context& context = {});

// Runs the attention; errors, threads and lifetime as `decode`. kOutOfRange (CPU): cu_seqlens that do not start with 0,
// fall, or pass total_q or total_k. Query tokens at or past cu_seqlens_q[b] are written as empty rows.
FLASHMLA_API Status prefill(const PrefillParams& params, Workspace workspace, const Context& context = {});

}  // namespace flashmla
