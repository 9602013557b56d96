#include "core/check.h"

#include <cmath>
#include <cstdlib>

#include "core/text.h"

namespace flashmla {

namespace {

std::string dims_text(std::initializer_list<DimWant> dims) {
  std::string names;
  std::string sizes;
  for (const DimWant& dim : dims) {
    const char* comma = names.empty() ? "" : ", ";
    names += concat(comma, dim.name);
    sizes += dim.size == kAny ? concat(comma, "any") : concat(comma, dim.size);
  }
  return concat("shape [", names, "] = [", sizes, "]");
}

int64_t element_count(const ConstTensorView& view) {
  int64_t count = 1;
  for (int d = 0; d < view.ndim; ++d) {
    if (view.shape[d] == 0) return 0;
    if (__builtin_mul_overflow(count, view.shape[d], &count)) return kMaxCount;
  }
  return count;
}

Status check_shape(std::string_view argument, const ConstTensorView& view, std::initializer_list<DimWant> dims) {
  bool equal = view.ndim == static_cast<int32_t>(dims.size());
  int d = 0;
  for (const DimWant& dim : dims) {
    equal = equal && (dim.size == kAny || view.shape[d] == dim.size);
    ++d;
  }
  if (!equal) return invalid(argument, concat("shape ", shape_text(view)), dims_text(dims));
  d = 0;
  for (const DimWant& dim : dims) {
    if (view.shape[d] < 0 || view.shape[d] > kMaxCount) {
      return invalid(argument, concat(dim.name, " = ", view.shape[d]), concat("0 .. ", kMaxCount));
    }
    ++d;
  }
  return {};
}

Status check_strides(std::string_view argument, const ConstTensorView& view, ViewRules rules) {
  const int64_t bytes = dtype_bytes(view.dtype);
  const int last = view.ndim - 1;
  __int128 reach = 0;
  for (int d = 0; d < view.ndim; ++d) {
    if (view.shape[d] <= 1) continue;
    const int64_t stride = view.stride[d];
    if (d == last && rules.last_contiguous && stride != 1) {
      return invalid(argument, concat("stride ", stride, " of the last dimension"), "1 (contiguous)");
    }
    if (d != last && rules.rows_aligned && (static_cast<__int128>(stride) * bytes) % kRowAlignment != 0) {
      return invalid(argument, concat("stride ", stride, " of dimension ", d, " (", bytes, "-byte elements)"),
                     concat("a multiple of ", kRowAlignment, " bytes"));
    }
    if (rules.written && stride == 0) {
      return invalid(argument, concat("stride 0 of dimension ", d, " (size ", view.shape[d], ")"),
                     "elements that do not overlap");
    }
    const __int128 magnitude = stride < 0 ? -static_cast<__int128>(stride) : stride;
    reach += magnitude * (view.shape[d] - 1) * bytes;
  }
  if (reach > (static_cast<__int128>(1) << 62)) {
    return invalid(argument, concat("strides that reach past 2^62 bytes for shape ", shape_text(view)),
                   "a tensor inside the address space");
  }
  return {};
}

}  // namespace

Status check_view(std::string_view argument, const ConstTensorView& view, std::initializer_list<DimWant> dims,
                  ViewRules rules) {
  if (!view.given()) return invalid(argument, "nothing", dims_text(dims));
  FLASHMLA_RETURN_IF_ERROR(check_shape(argument, view, dims));
  if (element_count(view) == 0) return {};  // without elements neither strides nor address mean anything
  FLASHMLA_RETURN_IF_ERROR(check_strides(argument, view, rules));
  if (view.data == nullptr) {
    return invalid(argument, concat("a null pointer for shape ", shape_text(view)), "a pointer to its elements");
  }
  const auto address = reinterpret_cast<uintptr_t>(view.data);
  const int64_t alignment = rules.rows_aligned ? kRowAlignment : dtype_bytes(view.dtype);
  if (alignment > 0 && address % static_cast<uintptr_t>(alignment) != 0) {
    return invalid(argument,
                   concat("a base address that is ", address % static_cast<uintptr_t>(alignment),
                          " bytes past a multiple of ", alignment),
                   concat("a base address aligned to ", alignment, " bytes"));
  }
  return {};
}

Status check_dtype(std::string_view argument, const ConstTensorView& view, DType want) {
  if (!view.given() || view.dtype == want) return {};
  return invalid(argument, concat("dtype ", dtype_name(view.dtype)), concat("dtype ", dtype_name(want)));
}

Status check_float_dtype(std::string_view argument, const ConstTensorView& view) {
  switch (view.dtype) {
    case DType::kFloat32:
    case DType::kFloat16:
    case DType::kBFloat16: return {};
    default: return invalid(argument, concat("dtype ", dtype_name(view.dtype)), "dtype fp32, fp16 or bf16");
  }
}

Status check_width(std::string_view name, int64_t width, int64_t least) {
  if (width >= least && width % kDimMultiple == 0) return {};
  return invalid(name, concat(width), concat("a multiple of ", kDimMultiple, ", at least ", least));
}

Status check_heads(int64_t heads_q, int64_t heads_kv) {
  if (heads_q >= 1 && heads_kv >= 1 && heads_q % heads_kv == 0) return {};
  return invalid("h_q", concat("h_q = ", heads_q, " with h_kv = ", heads_kv),
                 "h_q >= 1, h_kv >= 1 and h_kv divides h_q");
}

Status check_softmax_scale(float scale) {
  if (std::isfinite(scale)) return {};
  return invalid("softmax_scale", concat(scale), "the model's finite scale (it has no default: see docs/math.md)");
}

Status check_empty_lse(EmptyLse empty_lse) {
  if (empty_lse == EmptyLse::kPlusInf || empty_lse == EmptyLse::kMinusInf) return {};
  return invalid("empty_lse", concat(static_cast<int32_t>(empty_lse)), "0 (+inf) or 1 (-inf)");
}

Status check_status_view(const TensorView& status) {
  if (!status.given()) return {};
  FLASHMLA_RETURN_IF_ERROR(check_dtype("status", status, DType::kInt32));
  return check_view("status", status, {{"codes", 1}}, {.written = true});
}

Result<KvFormat> resolve_kv_format(KvFormat named, const ConstTensorView& cache) {
  const KvFormat format = named == KvFormat::kFromDType ? plain_kv_format(cache.dtype) : named;
  if (format == KvFormat::kFromDType) {
    return invalid("kv_cache", concat("dtype ", dtype_name(cache.dtype), " without a kv_format"),
                   "a plain dtype (fp32, fp16, bf16) or a named kv_format");
  }
  const KvFormatInfo* info = kv_format_info(format);
  if (info == nullptr) {
    return invalid("kv_format", concat(static_cast<int32_t>(format)), "a format of flashmla/kv_format.h");
  }
  if (!info->implemented) return unsupported("kv_format", info->name, "bf16, fp16, fp32");
  FLASHMLA_RETURN_IF_ERROR(check_dtype("kv_cache", cache, info->element));
  return format;
}

}  // namespace flashmla
