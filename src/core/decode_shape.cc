#include "core/decode_shape.h"

#include "core/check.h"
#include "core/text.h"

namespace flashmla {

namespace {

Status check_options(const DecodeOptions& options) {
  if (options.splits < 0 || options.splits > kMaxSplits) {
    return invalid("splits", concat(options.splits), concat("0 (chosen by the back end) .. ", kMaxSplits));
  }
  return check_empty_lse(options.empty_lse);
}

// Shapes of q, q_rope, out and lse, in which ragged calls have one dimension less.
Status check_query_side(const DecodeParams& params, const DecodeShape& shape) {
  const bool split = params.q_rope.given();
  const int64_t q_width = split ? shape.latent_dim : shape.latent_dim + shape.rope_dim;
  constexpr ViewRules kInput{.last_contiguous = true, .rows_aligned = true};
  constexpr ViewRules kOutput{.last_contiguous = true, .written = true};
  constexpr ViewRules kLse{.written = true};
  FLASHMLA_RETURN_IF_ERROR(check_dtype("out", params.out, params.q.dtype));
  if (split) FLASHMLA_RETURN_IF_ERROR(check_dtype("q_rope", params.q_rope, params.q.dtype));
  if (params.lse.given()) FLASHMLA_RETURN_IF_ERROR(check_dtype("lse", params.lse, DType::kFloat32));
  if (shape.ragged_q) {
    const DimWant tokens{"total_q", shape.total_q};
    const DimWant heads{"h_q", shape.heads_q};
    FLASHMLA_RETURN_IF_ERROR(check_view("q", params.q, {tokens, heads, {split ? "d_v" : "d_qk", q_width}}, kInput));
    if (split) {
      FLASHMLA_RETURN_IF_ERROR(
          check_view("q_rope", params.q_rope, {tokens, heads, {"d_rope", shape.rope_dim}}, kInput));
    }
    FLASHMLA_RETURN_IF_ERROR(check_view("out", params.out, {tokens, heads, {"d_v", shape.latent_dim}}, kOutput));
    if (params.lse.given()) FLASHMLA_RETURN_IF_ERROR(check_view("lse", params.lse, {heads, tokens}, kLse));
    return {};
  }
  const DimWant batch{"b", shape.batch};
  const DimWant tokens{"s_q", shape.seq_q};
  const DimWant heads{"h_q", shape.heads_q};
  FLASHMLA_RETURN_IF_ERROR(
      check_view("q", params.q, {batch, tokens, heads, {split ? "d_v" : "d_qk", q_width}}, kInput));
  if (split) {
    FLASHMLA_RETURN_IF_ERROR(
        check_view("q_rope", params.q_rope, {batch, tokens, heads, {"d_rope", shape.rope_dim}}, kInput));
  }
  FLASHMLA_RETURN_IF_ERROR(check_view("out", params.out, {batch, tokens, heads, {"d_v", shape.latent_dim}}, kOutput));
  if (params.lse.given()) FLASHMLA_RETURN_IF_ERROR(check_view("lse", params.lse, {batch, heads, tokens}, kLse));
  return {};
}

Status check_cache_side(const DecodeParams& params, const DecodeShape& shape) {
  FLASHMLA_RETURN_IF_ERROR(
      check_view("kv_cache", params.kv_cache,
                 {{"pages", kAny}, {"page", kAny}, {"h_kv", kAny}, {"d_qk", shape.latent_dim + shape.rope_dim}},
                 {.last_contiguous = true, .rows_aligned = true}));
  FLASHMLA_RETURN_IF_ERROR(check_dtype("page_table", params.page_table, DType::kInt32));
  FLASHMLA_RETURN_IF_ERROR(
      check_view("page_table", params.page_table, {{"b", shape.batch}, {"width", kAny}}, {.last_contiguous = true}));
  FLASHMLA_RETURN_IF_ERROR(check_dtype("seq_lens", params.seq_lens, DType::kInt32));
  FLASHMLA_RETURN_IF_ERROR(check_view("seq_lens", params.seq_lens, {{"b", shape.batch}}, {.last_contiguous = true}));
  if (!shape.ragged_q) return {};
  FLASHMLA_RETURN_IF_ERROR(check_dtype("cu_seqlens_q", params.cu_seqlens_q, DType::kInt32));
  return check_view("cu_seqlens_q", params.cu_seqlens_q, {{"b + 1", shape.batch + 1}}, {.last_contiguous = true});
}

}  // namespace

Result<DecodeShape> checked_decode_shape(const DecodeParams& params) {
  FLASHMLA_RETURN_IF_ERROR(check_softmax_scale(params.softmax_scale));
  FLASHMLA_RETURN_IF_ERROR(check_options(params.options));
  const ConstTensorView& q = params.q;
  const ConstTensorView& cache = params.kv_cache;
  const bool ragged = params.cu_seqlens_q.given();
  if (q.ndim != (ragged ? 3 : 4)) {
    return invalid("q", concat("shape ", shape_text(q)),
                   ragged ? "[total_q, h_q, d_qk], because cu_seqlens_q is given"
                          : "[b, s_q, h_q, d_qk], or [total_q, h_q, d_qk] with cu_seqlens_q");
  }
  if (cache.ndim != 4) return invalid("kv_cache", concat("shape ", shape_text(cache)), "[pages, page, h_kv, d_qk]");
  if (params.seq_lens.ndim != 1) return invalid("seq_lens", concat("shape ", shape_text(params.seq_lens)), "[b]");
  FLASHMLA_RETURN_IF_ERROR(check_float_dtype("q", q));
  const Result<KvFormat> format = resolve_kv_format(params.kv_format, params.kv_cache);
  if (!format.ok()) return format.status();
  FLASHMLA_RETURN_IF_ERROR(check_dtype("kv_cache", cache, q.dtype));

  FLASHMLA_RETURN_IF_ERROR(check_width("latent_dim", params.latent_dim, kDimMultiple));
  if (cache.shape[3] < params.latent_dim) {
    return invalid("kv_cache", concat("shape ", shape_text(cache)),
                   concat("rows of at least latent_dim = ", params.latent_dim, " values"));
  }
  DecodeShape shape;
  shape.ragged_q = ragged;
  shape.batch = params.seq_lens.shape[0];
  shape.heads_q = q.shape[q.ndim - 2];
  shape.seq_q = ragged ? q.shape[0] : q.shape[1];
  shape.latent_dim = params.latent_dim;
  shape.rope_dim = cache.shape[3] - params.latent_dim;
  shape.pages = cache.shape[0];
  shape.page_size = cache.shape[1];
  shape.heads_kv = cache.shape[2];
  shape.table_width = params.page_table.ndim == 2 ? params.page_table.shape[1] : 0;
  shape.dtype = q.dtype;
  shape.kv_format = format.value();
  shape.causal = params.causal;
  FLASHMLA_RETURN_IF_ERROR(check_width("rope_dim (kv_cache width - latent_dim)", shape.rope_dim, 0));
  if (shape.page_size < 1) return invalid("kv_cache", concat("page = ", shape.page_size), "pages of at least 1 token");
  FLASHMLA_RETURN_IF_ERROR(check_heads(shape.heads_q, shape.heads_kv));
  FLASHMLA_RETURN_IF_ERROR(check_cache_side(params, shape));
  FLASHMLA_RETURN_IF_ERROR(check_status_view(params.status));
  shape.total_q = ragged ? q.shape[0] : 0;
  FLASHMLA_RETURN_IF_ERROR(check_query_side(params, shape));
  if (!ragged) shape.total_q = shape.batch * shape.seq_q;  // both checked to be at most kMaxCount: no overflow
  return shape;
}

Status check_decode_sizes(const DecodeShape& shape, const DecodeOptions& options) {
  struct Size {
    const char* name;
    int64_t value;
    int64_t least;
  };
  const Size sizes[] = {
      {"shape.batch", shape.batch, 0},
      {"shape.seq_q", shape.seq_q, 0},
      {"shape.heads_q", shape.heads_q, 1},
      {"shape.heads_kv", shape.heads_kv, 1},
      {"shape.latent_dim", shape.latent_dim, 1},
      {"shape.rope_dim", shape.rope_dim, 0},
      {"shape.page_size", shape.page_size, 1},
      {"shape.pages", shape.pages, 0},
      {"shape.table_width", shape.table_width, 0},
  };
  for (const Size& size : sizes) {
    if (size.value >= size.least && size.value <= kMaxCount) continue;
    return invalid(size.name, concat(size.value), concat(size.least, " .. ", kMaxCount));
  }
  const int64_t total_q = shape.ragged_q ? shape.seq_q : shape.batch * shape.seq_q;
  if (shape.total_q != total_q) {
    return invalid("shape.total_q", concat(shape.total_q),
                   concat(total_q, shape.ragged_q ? " (seq_q, because q is ragged)" : " (batch * seq_q)"));
  }
  FLASHMLA_RETURN_IF_ERROR(check_width("shape.latent_dim", shape.latent_dim, kDimMultiple));
  FLASHMLA_RETURN_IF_ERROR(check_width("shape.rope_dim", shape.rope_dim, 0));
  FLASHMLA_RETURN_IF_ERROR(check_heads(shape.heads_q, shape.heads_kv));
  const KvFormatInfo* format = kv_format_info(shape.kv_format);
  if (format == nullptr) {
    return invalid("shape.kv_format", concat(static_cast<int32_t>(shape.kv_format)),
                   "a format of flashmla/kv_format.h");
  }
  if (!format->implemented) return unsupported("shape.kv_format", format->name, "bf16, fp16, fp32");
  if (shape.dtype != format->element) {
    return invalid("shape.dtype", dtype_name(shape.dtype),
                   concat(dtype_name(format->element), ", the dtype of kv_format ", format->name));
  }
  return check_options(options);
}

}  // namespace flashmla
