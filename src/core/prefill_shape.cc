#include "core/prefill_shape.h"

#include <utility>

#include "core/check.h"
#include "core/text.h"

namespace flashmla {

namespace {

Status check_cu_seqlens(std::string_view name, const ConstTensorView& view, int64_t batch) {
  FLASHMLA_RETURN_IF_ERROR(check_dtype(name, view, DType::kInt32));
  return check_view(name, view, {{"b + 1", batch + 1}}, {.last_contiguous = true});
}

}  // namespace

Result<PrefillShape> checked_prefill_shape(const PrefillParams& params) {
  const ConstTensorView& q = params.q;
  FLASHMLA_RETURN_IF_ERROR(check_softmax_scale(params.softmax_scale));
  FLASHMLA_RETURN_IF_ERROR(check_empty_lse(params.empty_lse));
  if (q.ndim != 3) return invalid("q", concat("shape ", shape_text(q)), "[total_q, h_q, d_qk]");
  if (params.k.ndim != 3) return invalid("k", concat("shape ", shape_text(params.k)), "[total_k, h_kv, d_qk]");
  if (params.v.ndim != 3) return invalid("v", concat("shape ", shape_text(params.v)), "[total_k, h_kv, d_v]");
  if (params.cu_seqlens_q.ndim != 1 || params.cu_seqlens_q.shape[0] < 1) {
    return invalid("cu_seqlens_q", concat("shape ", shape_text(params.cu_seqlens_q)), "[b + 1]");
  }
  FLASHMLA_RETURN_IF_ERROR(check_float_dtype("q", q));
  FLASHMLA_RETURN_IF_ERROR(check_dtype("k", params.k, q.dtype));
  FLASHMLA_RETURN_IF_ERROR(check_dtype("v", params.v, q.dtype));
  FLASHMLA_RETURN_IF_ERROR(check_dtype("out", params.out, q.dtype));

  PrefillShape shape;
  shape.batch = params.cu_seqlens_q.shape[0] - 1;
  shape.total_q = q.shape[0];
  shape.total_k = params.k.shape[0];
  shape.heads_q = q.shape[1];
  shape.heads_kv = params.k.shape[1];
  shape.qk_dim = q.shape[2];
  shape.v_dim = params.v.shape[2];
  shape.dtype = q.dtype;
  shape.causal = params.causal;
  FLASHMLA_RETURN_IF_ERROR(check_width("d_qk", shape.qk_dim, kDimMultiple));
  FLASHMLA_RETURN_IF_ERROR(check_width("d_v", shape.v_dim, kDimMultiple));
  FLASHMLA_RETURN_IF_ERROR(check_heads(shape.heads_q, shape.heads_kv));

  constexpr ViewRules kInput{.last_contiguous = true, .rows_aligned = true};
  const DimWant total_q{"total_q", shape.total_q};
  const DimWant total_k{"total_k", shape.total_k};
  const DimWant heads_q{"h_q", shape.heads_q};
  const DimWant heads_kv{"h_kv", shape.heads_kv};
  FLASHMLA_RETURN_IF_ERROR(check_view("q", q, {total_q, heads_q, {"d_qk", shape.qk_dim}}, kInput));
  FLASHMLA_RETURN_IF_ERROR(check_view("k", params.k, {total_k, heads_kv, {"d_qk", shape.qk_dim}}, kInput));
  FLASHMLA_RETURN_IF_ERROR(check_view("v", params.v, {total_k, heads_kv, {"d_v", shape.v_dim}}, kInput));
  FLASHMLA_RETURN_IF_ERROR(check_cu_seqlens("cu_seqlens_q", params.cu_seqlens_q, shape.batch));
  FLASHMLA_RETURN_IF_ERROR(check_cu_seqlens("cu_seqlens_k", params.cu_seqlens_k, shape.batch));
  FLASHMLA_RETURN_IF_ERROR(check_view("out", params.out, {total_q, heads_q, {"d_v", shape.v_dim}},
                                      {.last_contiguous = true, .written = true}));
  if (params.lse.given()) {
    FLASHMLA_RETURN_IF_ERROR(check_dtype("lse", params.lse, DType::kFloat32));
    FLASHMLA_RETURN_IF_ERROR(check_view("lse", params.lse, {heads_q, total_q}, {.written = true}));
  }
  return shape;
}

Status check_prefill_sizes(const PrefillShape& shape) {
  for (const auto& [name, value] :
       {std::pair{"shape.batch", shape.batch}, std::pair{"shape.total_q", shape.total_q},
        std::pair{"shape.total_k", shape.total_k}, std::pair{"shape.heads_q", shape.heads_q},
        std::pair{"shape.qk_dim", shape.qk_dim}, std::pair{"shape.v_dim", shape.v_dim}}) {
    if (value < 0 || value > kMaxCount) return invalid(name, concat(value), concat("0 .. ", kMaxCount));
  }
  FLASHMLA_RETURN_IF_ERROR(check_heads(shape.heads_q, shape.heads_kv));
  FLASHMLA_RETURN_IF_ERROR(check_width("shape.qk_dim", shape.qk_dim, kDimMultiple));
  FLASHMLA_RETURN_IF_ERROR(check_width("shape.v_dim", shape.v_dim, kDimMultiple));
  if (plain_kv_format(shape.dtype) != KvFormat::kFromDType) return {};
  return invalid("shape.dtype", dtype_name(shape.dtype), "fp32, fp16 or bf16");
}

}  // namespace flashmla
