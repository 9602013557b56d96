#include "cpu/attention_layout.h"

#include <algorithm>

namespace flashmla {

namespace {

// Slots for every thread to have a few splits in the air, and never fewer than one request may be cut into.
constexpr int64_t kSlotsPerThread = 8;

}  // namespace

ScratchLayout ScratchLayout::of(const ItemShape& shape) {
  ScratchLayout layout;
  const auto take = [&](int64_t size) {
    const int64_t offset = layout.bytes;
    layout.bytes += round_up(size, kWorkspaceAlignment);
    return offset;
  };
  const int64_t width = shape.padded_dim;
  layout.queries = take(width * shape.padded_rows * static_cast<int64_t>(sizeof(double)));
  layout.scores = take(int64_t{kBlockKeys} * shape.padded_rows * 4);
  layout.weights = take(int64_t{kBlockKeys} * shape.padded_rows * 4);
  layout.rows = take((2 * int64_t{kBlockKeys} + 1) * width * 4);
  layout.rescale = take(int64_t{shape.padded_rows} * 4);
  layout.visible = take(int64_t{shape.padded_rows} * 4);
  layout.query_addresses = take(2 * int64_t{kMaxTileRows} * static_cast<int64_t>(sizeof(void*)));
  layout.row_limits = take(int64_t{kMaxTileRows} * 8);
  layout.partial = take(partial_bytes(shape));
  return layout;
}

int64_t partial_bytes(const ItemShape& shape) {
  return round_up(4 * (2 * int64_t{shape.padded_rows} + int64_t{shape.rows} * shape.out_stride), kWorkspaceAlignment);
}

Partial partial_at(std::byte* base, const ItemShape& shape) {
  auto* m = reinterpret_cast<float*>(base);
  return {m, m + shape.padded_rows, m + 2 * shape.padded_rows};
}

AttentionLayout AttentionLayout::of(const DecodeShape& shape, int32_t threads) {
  ItemShape item;
  item.first_dim = item.value_dim = static_cast<int32_t>(shape.latent_dim);
  item.second_dim = static_cast<int32_t>(shape.rope_dim);
  item.dtype = shape.dtype;
  return of(item, shape.seq_q * (shape.heads_q / shape.heads_kv), shape.total_q == 0 || shape.batch == 0, threads);
}

AttentionLayout AttentionLayout::of(const PrefillShape& shape, int32_t threads) {
  ItemShape item;
  item.first_dim = static_cast<int32_t>(shape.qk_dim);
  item.value_dim = static_cast<int32_t>(shape.v_dim);
  item.dtype = shape.dtype;
  return of(item, shape.total_q * (shape.heads_q / shape.heads_kv), shape.total_q == 0 || shape.batch == 0, threads);
}

AttentionLayout AttentionLayout::of(ItemShape item, int64_t most_rows, bool empty, int32_t threads) {
  AttentionLayout layout;
  item.rows = static_cast<int32_t>(std::min<int64_t>(most_rows, kMaxTileRows));
  item.padded_rows = static_cast<int32_t>(round_up(item.rows, kRowPad));
  item.out_stride = static_cast<int32_t>(round_up(item.value_dim, kColumnPad));
  item.padded_dim = static_cast<int32_t>(std::max<int64_t>(round_up(item.qk_dim(), kColumnPad), item.out_stride));
  layout.item = item;
  layout.scratch = ScratchLayout::of(item);
  layout.slot_bytes = partial_bytes(item);
  layout.threads = threads;
  layout.slots = std::max<int64_t>(kMaxSplits, threads * kSlotsPerThread);
  if (!empty) layout.bytes = threads * layout.scratch.bytes + layout.slots * layout.slot_bytes;
  return layout;
}

}  // namespace flashmla
