#include "decode_call.h"

#include <algorithm>
#include <limits>

namespace flashmla::fuzz {

namespace {

constexpr int64_t kArenaBytes = int64_t{1} << 18;
constexpr int64_t kLongest = 4096;  // keys of a request that a run may take, to stay quick

enum Slot { kQ, kQRope, kCache, kTable, kLens, kStarts, kOut, kLse, kSlots };

const Placer& placer(int slot) {
  static const Placer placers[kSlots] = {Placer(kArenaBytes), Placer(kArenaBytes), Placer(kArenaBytes),
                                         Placer(kArenaBytes), Placer(kArenaBytes), Placer(kArenaBytes),
                                         Placer(kArenaBytes), Placer(kArenaBytes)};
  return placers[slot];
}

// Calls `visit(slot, view)` for every tensor.
template <class Visit>
void for_each_view(DecodeParams& p, const Visit& visit) {
  visit(kQ, p.q);
  visit(kQRope, p.q_rope);
  visit(kCache, p.kv_cache);
  visit(kTable, p.page_table);
  visit(kLens, p.seq_lens);
  visit(kStarts, p.cu_seqlens_q);
  visit(kOut, p.out);
  visit(kLse, p.lse);
}

void damage_call(Bytes& bytes, DecodeParams& p) {
  constexpr float kScales[] = {0.0F, -1.0F, 1e30F, std::numeric_limits<float>::infinity(),
                               std::numeric_limits<float>::quiet_NaN()};
  const int64_t place = bytes.below(14);
  for_each_view(p, [&](int slot, auto& view) {
    if (slot == place) damage(bytes, view);
  });
  switch (place) {
    case 8: p.latent_dim = hostile_int(bytes); break;
    case 9: p.softmax_scale = bytes.pick(kScales); break;
    case 10: p.options.splits = static_cast<int32_t>(hostile_int(bytes)); break;
    case 11: p.options.empty_lse = static_cast<EmptyLse>(hostile_int(bytes)); break;
    case 12: p.kv_format = static_cast<KvFormat>(hostile_int(bytes)); break;
    case 13: p.q_rope = p.q; break;
    default: break;
  }
}

int32_t& int_at(const ConstTensorView& view, int64_t offset) {
  return static_cast<int32_t*>(const_cast<void*>(view.data))[offset];
}

void write_lengths(Bytes& bytes, const DecodeParams& p, const DecodeShape& shape) {
  const int64_t capacity = shape.table_width * shape.page_size;
  for (int64_t i = 0; i < shape.batch; ++i) {
    int64_t length = bytes.below(std::min<int64_t>(capacity, kLongest) + 1);
    if (bytes.one_in(64)) length = bytes.below(2) == 0 ? capacity + 1 : hostile_int(bytes);
    const auto value = static_cast<int32_t>(length);
    int_at(p.seq_lens, i) = value > kLongest && value <= capacity ? 1 : value;
  }
}

void write_table(Bytes& bytes, const DecodeParams& p, const DecodeShape& shape) {
  const int64_t width = std::min<int64_t>(shape.table_width, kLongest);
  for (int64_t i = 0; i < shape.batch; ++i) {
    for (int64_t j = 0; j < width; ++j) {
      int64_t page = shape.pages == 0 ? 0 : bytes.below(std::min<int64_t>(shape.pages, 65536));
      if (bytes.one_in(64)) page = bytes.below(2) == 0 ? shape.pages : hostile_int(bytes);
      int_at(p.page_table, i * p.page_table.stride[0] + j) = static_cast<int32_t>(page);
    }
  }
}

void write_starts(Bytes& bytes, const DecodeParams& p, const DecodeShape& shape) {
  int64_t start = 0;
  for (int64_t i = 0; i <= shape.batch; ++i) {
    int_at(p.cu_seqlens_q, i) = static_cast<int32_t>(bytes.one_in(64) ? hostile_int(bytes) : start);
    start += bytes.below(std::min<int64_t>(shape.total_q - start, 4) + 1);
  }
}

}  // namespace

DecodeCall DecodeCall::make(Bytes& bytes) {
  constexpr DType kFloats[] = {DType::kBFloat16, DType::kFloat16, DType::kFloat32};
  const DType dtype = bytes.pick(kFloats);
  const ViewKind input{.align = 16 / dtype_bytes(dtype)};
  const ViewKind output{.align = 1, .written = true};
  const ViewKind lse_kind{.align = 1, .written = true, .free_last = true};
  const int64_t b = bytes.below(4);
  const int64_t s_q = bytes.below(4);
  const int64_t h_kv = bytes.between(1, 2);
  const int64_t h_q = h_kv * bytes.between(1, 3);
  const int64_t d_v = 8 * bytes.between(1, 4);
  const int64_t d_rope = 8 * bytes.below(3);
  const int64_t page = bytes.between(1, 5);
  const bool ragged = bytes.below(2) != 0;
  const bool split = bytes.below(2) != 0;
  const int64_t d_q = split ? d_v : d_v + d_rope;

  DecodeCall call;
  DecodeParams& p = call.params;
  if (ragged) {
    p.q = any_view<const void>(bytes, dtype, {b * s_q, h_q, d_q}, input);
    if (split) p.q_rope = any_view<const void>(bytes, dtype, {b * s_q, h_q, d_rope}, input);
    p.out = any_view<void>(bytes, dtype, {b * s_q, h_q, d_v}, output);
    p.lse = any_view<void>(bytes, DType::kFloat32, {h_q, b * s_q}, lse_kind);
    p.cu_seqlens_q = ConstTensorView::contiguous(nullptr, DType::kInt32, {b + 1});
  } else {
    p.q = any_view<const void>(bytes, dtype, {b, s_q, h_q, d_q}, input);
    if (split) p.q_rope = any_view<const void>(bytes, dtype, {b, s_q, h_q, d_rope}, input);
    p.out = any_view<void>(bytes, dtype, {b, s_q, h_q, d_v}, output);
    p.lse = any_view<void>(bytes, DType::kFloat32, {b, h_q, s_q}, lse_kind);
  }
  if (bytes.one_in(4)) p.lse = {};
  p.kv_cache = any_view<const void>(bytes, dtype, {bytes.below(5), page, h_kv, d_v + d_rope}, input);
  p.page_table = any_view<const void>(bytes, DType::kInt32, {b, bytes.below(5)});
  p.seq_lens = ConstTensorView::contiguous(nullptr, DType::kInt32, {b});
  p.latent_dim = d_v;
  p.softmax_scale = 0.25F;
  p.causal = bytes.below(2) != 0;
  p.options.splits = static_cast<int32_t>(bytes.below(4));
  p.options.batch_invariant = bytes.one_in(4);
  p.options.empty_lse = bytes.one_in(4) ? EmptyLse::kMinusInf : EmptyLse::kPlusInf;
  for_each_view(p, [&](int slot, auto& view) {
    if (view.given()) placer(slot).forbid(view);
  });
  for (int64_t damages = bytes.below(2) * bytes.below(4); damages > 0; --damages) damage_call(bytes, p);
  return call;
}

bool DecodeCall::place(Bytes& bytes, const DecodeShape& shape) {
  bool fits = true;
  for_each_view(params, [&](int slot, auto& view) { fits = placer(slot).place(bytes, view) && fits; });
  if (!fits) return false;
  write_lengths(bytes, params, shape);
  write_table(bytes, params, shape);
  if (shape.ragged_q) write_starts(bytes, params, shape);
  return true;
}

bool values_are_right(const DecodeParams& p, const DecodeShape& shape) {
  for (int64_t i = 0; i < shape.batch; ++i) {
    const int64_t length = int_at(p.seq_lens, i);
    if (length < 0 || length > shape.table_width * shape.page_size) return false;
    for (int64_t j = 0; j * shape.page_size < length; ++j) {
      const int64_t page = int_at(p.page_table, i * p.page_table.stride[0] + j);
      if (page < 0 || page >= shape.pages) return false;
    }
  }
  if (!shape.ragged_q) return true;
  if (int_at(p.cu_seqlens_q, 0) != 0) return false;
  for (int64_t i = 0; i < shape.batch; ++i) {
    if (int_at(p.cu_seqlens_q, i) > int_at(p.cu_seqlens_q, i + 1)) return false;
  }
  return int_at(p.cu_seqlens_q, shape.batch) <= shape.total_q;
}

}  // namespace flashmla::fuzz
