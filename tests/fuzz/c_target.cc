#include <cstddef>
#include <cstring>

#include "decode_call.h"
#include "flashmla/c.h"
#include "flashmla/flashmla.h"
#include "targets.h"

namespace flashmla::fuzz {

namespace {

flashmla_tensor to_c(const ConstTensorView& view) {
  flashmla_tensor tensor{const_cast<void*>(view.data), static_cast<int32_t>(view.dtype), view.ndim, {}, {}};
  for (int d = 0; d < kMaxDims; ++d) {
    tensor.shape[d] = view.shape[d];
    tensor.stride[d] = view.stride[d];
  }
  return tensor;
}

flashmla_decode_params to_c(const DecodeParams& p, const flashmla_decode_options* options) {
  flashmla_decode_params c{};
  c.struct_size = sizeof c;
  c.q = to_c(p.q);
  c.q_rope = to_c(p.q_rope);
  c.kv_cache = to_c(p.kv_cache);
  c.page_table = to_c(p.page_table);
  c.seq_lens = to_c(p.seq_lens);
  c.cu_seqlens_q = to_c(p.cu_seqlens_q);
  c.out = to_c(p.out);
  c.lse = to_c(p.lse);
  c.latent_dim = p.latent_dim;
  c.softmax_scale = p.softmax_scale;
  c.causal = p.causal ? 1 : 0;
  c.kv_format = static_cast<int32_t>(p.kv_format);
  c.options = options;
  return c;
}

flashmla_decode_options to_c(const DecodeOptions& options) {
  flashmla_decode_options c{};
  c.struct_size = sizeof c;
  c.empty_lse = static_cast<int32_t>(options.empty_lse);
  c.batch_invariant = options.batch_invariant ? 1 : 0;
  c.splits = options.splits;
  return c;
}

// A caller's struct at the start of memory that is as large as any size the library may look at.
template <class Struct>
struct Padded {
  Struct value{};
  unsigned char behind[4096] = {};
};

// A struct_size, at times a wild one, and bytes behind the struct. Returns whether the library must refuse it. `least`:
// the size that the struct had at first.
template <class Struct>
bool damage_size(Bytes& bytes, Padded<Struct>& padded, size_t least = sizeof(Struct)) {
  if (bytes.below(4) != 0) return false;
  size_t& size = padded.value.struct_size;
  switch (bytes.below(3)) {
    case 0: size = static_cast<size_t>(hostile_int(bytes)); break;
    case 1: size = static_cast<size_t>(bytes.below(8192)); break;
    default: size += 8 * static_cast<size_t>(bytes.below(4)); break;
  }
  const size_t at = static_cast<size_t>(bytes.below(64));
  padded.behind[at] = static_cast<unsigned char>(bytes.below(2));
  const bool bad_size = size < least || size > 4096 || size % 8 != 0;
  const bool bad_tail = padded.behind[at] != 0 && sizeof(Struct) + at < size;
  return bad_size || bad_tail;
}

// The other operations with nothing but a struct header that may be wrong: they must come back with an error.
std::string empty_structs(Bytes& bytes) {
  Padded<flashmla_append_kv_params> append;
  append.value.struct_size = sizeof append.value;
  damage_size(bytes, append);
  if (flashmla_append_kv(&append.value, nullptr) == FLASHMLA_OK) return "flashmla_append_kv accepted an empty struct";
  Padded<flashmla_merge_states_params> merge;
  merge.value.struct_size = sizeof merge.value;
  damage_size(bytes, merge);
  if (flashmla_merge_states(&merge.value, nullptr) == FLASHMLA_OK)
    return "flashmla_merge_states accepted an empty struct";
  return flashmla_last_error()[0] == '\0' ? "an error without a text" : "";
}

}  // namespace

std::string fuzz_c_api(Bytes& bytes, Counts& counts) {
  const DecodeCall call = DecodeCall::make(bytes);
  Padded<flashmla_decode_options> options{to_c(call.params.options)};
  Padded<flashmla_decode_params> params{to_c(call.params, &options.value)};
  const bool bad_options = damage_size(bytes, options);
  const bool bad_params = damage_size(bytes, params, offsetof(flashmla_decode_params, status));
  Padded<flashmla_decode_shape> shape;
  shape.value.struct_size = sizeof shape.value;
  const bool bad_shape = damage_size(bytes, shape);
  if (bytes.one_in(32)) params.value.causal = static_cast<int32_t>(hostile_int(bytes));
  if (bytes.one_in(32)) params.value.reserved = static_cast<int32_t>(hostile_int(bytes));
  const bool bad_fields = params.value.causal < 0 || params.value.causal > 1 || params.value.reserved != 0 ||
                          params.value.softmax_scale == 0.0F;

  const flashmla_status status = flashmla_decode_shape_of(&params.value, &shape.value);
  const bool accepted = status == FLASHMLA_OK;
  if (accepted == (flashmla_last_error()[0] != '\0')) return "the error text does not fit the status";
  // A result struct is written only: what lies behind an honest size is no one's, and a larger size is cleared.
  const bool bad_shape_size = bad_shape && (shape.value.struct_size < sizeof shape.value ||
                                            shape.value.struct_size > 4096 || shape.value.struct_size % 8 != 0);
  DecodeParams cpp = call.params;
  cpp.causal = params.value.causal != 0;
  const bool want = !bad_options && !bad_params && !bad_fields && !bad_shape_size && decode_shape(cpp).ok();
  if (accepted != want) {
    return std::string("flashmla_decode_shape_of ") + (accepted ? "accepted" : "refused") +
           " what the C++ API and the struct rules do not: " + flashmla_last_error();
  }
  if (accepted) ++counts.accepted;
  return empty_structs(bytes);
}

}  // namespace flashmla::fuzz
