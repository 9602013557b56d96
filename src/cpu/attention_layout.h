// Sizes of an attention call on the "cpu" back end: row tiles, scratch of a thread, slots of split rows.
#pragma once

#include <cstdint>

#include "cpu/attention_item.h"
#include "flashmla/decode.h"
#include "flashmla/prefill.h"

namespace flashmla {

constexpr int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Rows (query token, head of the group) of one request and KV head, cut into equal tiles of at most kMaxTileRows.
struct RowTiles {
  int64_t tiles = 0;
  int32_t rows = 0;  // of every tile but the last

  static constexpr RowTiles of(int64_t rows) {
    const int64_t tiles = (rows + kMaxTileRows - 1) / kMaxTileRows;
    return {tiles, tiles == 0 ? 0 : static_cast<int32_t>((rows + tiles - 1) / tiles)};
  }
};

// One allocation for a thread: byte offsets of Scratch's and a Partial's members.
struct ScratchLayout {
  int64_t queries = 0;
  int64_t scores = 0;
  int64_t weights = 0;
  int64_t rows = 0;
  int64_t rescale = 0;
  int64_t visible = 0;
  int64_t query_addresses = 0;  // [2][kMaxTileRows] pointers
  int64_t row_limits = 0;       // int64 [kMaxTileRows]: keys that each row sees
  int64_t partial = 0;
  int64_t bytes = 0;

  static ScratchLayout of(const ItemShape& shape);
};

// m, l and o of one row tile, in this order.
int64_t partial_bytes(const ItemShape& shape);
Partial partial_at(std::byte* base, const ItemShape& shape);

struct AttentionLayout {
  ItemShape item{};  // of a full tile
  ScratchLayout scratch{};
  int64_t slot_bytes = 0;
  int64_t slots = 0;  // partial results that may be alive at once
  int32_t threads = 1;
  int64_t bytes = 0;  // the whole workspace: scratch of every thread, then the slots

  static AttentionLayout of(const DecodeShape& shape, int32_t threads);
  static AttentionLayout of(const PrefillShape& shape, int32_t threads);

 private:
  // `most_rows`: of the longest request and one KV head; `empty`: the call has no query token.
  static AttentionLayout of(ItemShape item, int64_t most_rows, bool empty, int32_t threads);
};

}  // namespace flashmla
