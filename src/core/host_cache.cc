#include "core/host_cache.h"

#include "core/check.h"
#include "core/text.h"

namespace flashmla {

namespace {

// A width that the call takes from a tensor; sums of checked widths cannot overflow.
Status check_row_width(std::string_view argument, const ConstTensorView& view, int64_t width, int64_t least) {
  if (width >= least && width <= kMaxCount) return {};
  return invalid(argument, concat("shape ", shape_text(view)), concat("rows of ", least, " .. ", kMaxCount, " values"));
}

// The inputs may hold more tokens than slot_mapping.
Status check_append_input(std::string_view argument, const ConstTensorView& view, const AppendShape& shape,
                          DimWant width) {
  FLASHMLA_RETURN_IF_ERROR(check_dtype(argument, view, shape.dtype));
  FLASHMLA_RETURN_IF_ERROR(check_view(argument, view, {{"T", kAny}, width}, {.last_contiguous = true}));
  if (view.shape[0] >= shape.tokens) return {};
  return invalid(argument, concat("shape ", shape_text(view)),
                 concat("at least T = ", shape.tokens, " rows (slot_mapping's length)"));
}

}  // namespace

Result<AppendShape> append_shape(const AppendKvParams& params) {
  const TensorView& cache = params.kv_cache;
  const Result<KvFormat> format = resolve_kv_format(params.kv_format, cache);
  if (!format.ok()) return format.status();
  if (params.latent.ndim != 2) return invalid("latent", concat("shape ", shape_text(params.latent)), "[T, d_v]");

  AppendShape shape;
  shape.dtype = cache.dtype;
  shape.latent_dim = params.latent.shape[1];
  shape.rope_dim = params.rope.ndim == 2 ? params.rope.shape[1] : 0;
  FLASHMLA_RETURN_IF_ERROR(check_row_width("latent", params.latent, shape.latent_dim, 1));
  FLASHMLA_RETURN_IF_ERROR(check_row_width("rope", params.rope, shape.rope_dim, 0));
  const DimWant width{"d_v + d_rope", shape.latent_dim + shape.rope_dim};
  constexpr ViewRules kCache{.last_contiguous = true, .written = true};
  if (cache.ndim == 4) {
    FLASHMLA_RETURN_IF_ERROR(
        check_view("kv_cache", cache, {{"pages", kAny}, {"page", kAny}, {"h_kv", 1}, width}, kCache));
  } else {
    FLASHMLA_RETURN_IF_ERROR(check_view("kv_cache", cache, {{"pages", kAny}, {"page", kAny}, width}, kCache));
  }
  shape.pages = cache.shape[0];
  shape.page_size = cache.shape[1];
  if (shape.page_size < 1) return invalid("kv_cache", concat("page = ", shape.page_size), "pages of at least 1 token");
  FLASHMLA_RETURN_IF_ERROR(check_dtype("slot_mapping", params.slot_mapping, DType::kInt64));
  FLASHMLA_RETURN_IF_ERROR(check_view("slot_mapping", params.slot_mapping, {{"T", kAny}}, {.last_contiguous = true}));
  shape.tokens = params.slot_mapping.shape[0];
  FLASHMLA_RETURN_IF_ERROR(check_append_input("latent", params.latent, shape, {"d_v", kAny}));
  if (params.rope.given()) {
    FLASHMLA_RETURN_IF_ERROR(check_append_input("rope", params.rope, shape, {"d_rope", kAny}));
  }
  FLASHMLA_RETURN_IF_ERROR(check_status_view(params.status));
  return shape;
}

Status check_host_slots(const AppendKvParams& params, const AppendShape& shape) {
  const auto* slots = static_cast<const int64_t*>(params.slot_mapping.data);
  for (int64_t t = 0; t < shape.tokens; ++t) {
    if (slots[t] >= shape.pages * shape.page_size) {
      return out_of_range(concat("slot_mapping[", t, "]"), slots[t],
                          concat("below ", shape.pages * shape.page_size, " (", shape.pages, " pages of ",
                                 shape.page_size, "), or negative to skip the token"));
    }
  }
  return {};
}

Result<MergeShape> merge_shape(const MergeStatesParams& params) {
  if (params.out_a.ndim != 3) {
    return invalid("out_a", concat("shape ", shape_text(params.out_a)), "[tokens, heads, width]");
  }
  FLASHMLA_RETURN_IF_ERROR(check_float_dtype("out_a", params.out_a));
  const MergeShape shape{params.out_a.shape[0], params.out_a.shape[1], params.out_a.shape[2], params.out_a.dtype};
  FLASHMLA_RETURN_IF_ERROR(check_row_width("out_a", params.out_a, shape.width, 1));
  const DimWant tokens{"tokens", shape.tokens};
  const DimWant heads{"heads", shape.heads};
  const auto check_out = [&](std::string_view argument, const ConstTensorView& view, bool written) -> Status {
    FLASHMLA_RETURN_IF_ERROR(check_dtype(argument, view, shape.dtype));
    return check_view(argument, view, {tokens, heads, {"width", shape.width}},
                      {.last_contiguous = true, .written = written});
  };
  const auto check_lse = [&](std::string_view argument, const ConstTensorView& view, bool written) -> Status {
    FLASHMLA_RETURN_IF_ERROR(check_dtype(argument, view, DType::kFloat32));
    return check_view(argument, view, {heads, tokens}, {.written = written});
  };
  FLASHMLA_RETURN_IF_ERROR(check_out("out_a", params.out_a, false));
  FLASHMLA_RETURN_IF_ERROR(check_out("out_b", params.out_b, false));
  FLASHMLA_RETURN_IF_ERROR(check_out("out", params.out, true));
  FLASHMLA_RETURN_IF_ERROR(check_lse("lse_a", params.lse_a, false));
  FLASHMLA_RETURN_IF_ERROR(check_lse("lse_b", params.lse_b, false));
  if (params.lse.given()) FLASHMLA_RETURN_IF_ERROR(check_lse("lse", params.lse, true));
  FLASHMLA_RETURN_IF_ERROR(check_empty_lse(params.empty_lse));
  return shape;
}

}  // namespace flashmla
