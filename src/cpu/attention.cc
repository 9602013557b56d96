// The schedule. A unit is one row tile of one request and KV head; an item is one key split of a unit. Units are walked
// in waves: a wave is a run of units whose split items fit into the workspace's slots. Threads take a wave's items one
// by one; then they merge the units that were split, in the order of the splits. Which thread does what never shows in
// the bits: an item's result depends on the item alone.
#include "cpu/attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <numbers>

#include "core/float16.h"
#include "cpu/topology.h"
#include "flashmla/cpu.h"
#include "sched/split.h"

namespace flashmla {

namespace {

struct Unit {
  int64_t index = 0;  // of the request
  int64_t head_kv = 0;
  int64_t tile = 0;
  HostRequest request{};
  RowTiles tiles{};
  SplitPlan plan{};
};

class Schedule {
 public:
  Schedule(const HostAttention& call, const AttentionKernel& kernel, const AttentionLayout& layout,
           std::byte* workspace)
      : call_(call),
        kernel_(kernel),
        layout_(layout),
        scratch_(workspace),
        slots_(workspace + layout.threads * layout.scratch.bytes) {}

  void run() {
    rule_ = split_rule();
    Unit unit = first_unit();
    while (!done(unit)) {
      wave_begin_ = unit;
      int64_t slots = 0;
      items_ = 0;
      while (!done(unit) && slots + slots_of(unit) <= layout_.slots) {
        slots += slots_of(unit);
        items_ += unit.plan.splits;
        advance(unit);
      }
      wave_end_ = unit;
      next_item_.store(0, std::memory_order_relaxed);
      const auto workers = static_cast<int32_t>(std::min<int64_t>(layout_.threads, items_));
      run_workers(workers, [this](int32_t worker) { run_items(worker); });
      if (slots == 0) continue;
      next_merge_.store(0, std::memory_order_relaxed);
      run_workers(layout_.threads, [this](int32_t) { run_merges(); });
    }
  }

 private:
  static constexpr int32_t kMergeRows = 8;  // rows of a unit that one thread merges at a time

  SplitRule split_rule() const {
    if (call_.options().splits > 0) return {call_.options().splits, 0};
    if (call_.options().batch_invariant) return SplitRule::own_length();
    int64_t keys = 0;
    for (int64_t i = 0; i < call_.batch(); ++i) {
      const HostRequest request = call_.request(i);
      keys += request.seq_len * RowTiles::of(request.seq_q * call_.group()).tiles * call_.heads_kv();
    }
    return SplitRule::whole_call(keys, machine_processors());
  }

  static int64_t slots_of(const Unit& unit) { return unit.plan.splits > 1 ? unit.plan.splits : 0; }

  // --- walking the units: requests, then KV heads, then row tiles ---

  Unit first_unit() const {
    Unit unit;
    enter_request(unit);
    return unit;
  }
  bool done(const Unit& unit) const { return unit.index >= call_.batch(); }

  // Skips requests without query tokens.
  void enter_request(Unit& unit) const {
    for (; !done(unit); ++unit.index) {
      unit.request = call_.request(unit.index);
      unit.tiles = RowTiles::of(unit.request.seq_q * call_.group());
      unit.plan = plan_splits(unit.request.seq_len, rule_);
      if (unit.tiles.tiles > 0) return;
    }
  }
  void advance(Unit& unit) const {
    if (++unit.tile < unit.tiles.tiles) return;
    unit.tile = 0;
    if (++unit.head_kv < call_.heads_kv()) return;
    unit.head_kv = 0;
    ++unit.index;
    enter_request(unit);
  }

  ItemShape item_shape(const Unit& unit) const {
    ItemShape shape = layout_.item;
    const int64_t total = unit.request.seq_q * call_.group();
    shape.rows = static_cast<int32_t>(std::min<int64_t>(unit.tiles.rows, total - unit.tile * unit.tiles.rows));
    shape.padded_rows = static_cast<int32_t>(round_up(shape.rows, kRowPad));
    shape.score_scale = static_cast<double>(call_.softmax_scale()) * std::numbers::log2e;
    return shape;
  }

  // Token and head of row `row` of the unit's tile.
  struct RowPlace {
    int64_t token;
    int64_t head;
  };
  RowPlace place(const Unit& unit, int32_t row) const {
    const int64_t flat = unit.tile * unit.tiles.rows + row;
    return {flat / call_.group(), unit.head_kv * call_.group() + flat % call_.group()};
  }

  // --- items ---

  void run_items(int32_t worker) {
    Unit unit = wave_begin_;
    int64_t unit_item = 0;  // index in the wave of the unit's first item
    int64_t unit_slot = 0;
    for (int64_t item = next_item_.fetch_add(1, std::memory_order_relaxed); item < items_;
         item = next_item_.fetch_add(1, std::memory_order_relaxed)) {
      while (item >= unit_item + unit.plan.splits) {
        unit_item += unit.plan.splits;
        unit_slot += slots_of(unit);
        advance(unit);
      }
      run_item(worker, unit, static_cast<int32_t>(item - unit_item), unit_slot);
    }
  }

  void run_item(int32_t worker, const Unit& unit, int32_t split, int64_t unit_slot) {
    const ItemShape shape = item_shape(unit);
    std::byte* base = scratch_ + worker * layout_.scratch.bytes;
    const Partial partial = partial_at(base + layout_.scratch.partial, shape);
    auto* visible = reinterpret_cast<int64_t*>(base + layout_.scratch.row_limits);
    const VisibleKeys sees = set_rows(unit, shape, base, visible);
    KeyRange range = unit.plan.range(split);
    range.end = std::min(range.end, sees.most);
    if (range.begin >= range.end) {
      std::fill_n(partial.m, shape.padded_rows, -INFINITY);
      std::fill_n(partial.l, shape.padded_rows, 0.0f);
    } else {
      const bool few_keys = kernel_.few_keys != nullptr && sees.few && range.begin < kFewKeys;
      attend_range(few_keys ? *kernel_.few_keys : kernel_, shape, base, visible, unit, range, partial);
    }
    if (unit.plan.splits == 1) {
      for (int32_t row = 0; row < shape.rows; ++row) write_row(unit, shape, row, &partial, 1);
    } else {
      // Accumulating in the slot itself was measured 37 % slower with two threads: the slot's pages evict the queries
      // and keys from the L2 cache, the thread's own buffer settles there.
      std::memcpy(slots_ + (unit_slot + split) * layout_.slot_bytes, partial.m,
                  static_cast<size_t>(partial_bytes(shape)));
    }
  }

  // By the rows of a tile.
  struct VisibleKeys {
    int64_t most = 0;
    bool few = false;  // whether a row sees some keys, but at most kFewKeys
  };

  // Addresses of the rows' queries and the keys that each row sees.
  VisibleKeys set_rows(const Unit& unit, const ItemShape& shape, std::byte* base, int64_t* visible) const {
    auto* first = reinterpret_cast<const std::byte**>(base + layout_.scratch.query_addresses);
    auto** second = first + kMaxTileRows;
    VisibleKeys sees;
    for (int32_t row = 0; row < shape.rows; ++row) {
      const auto [token, head] = place(unit, row);
      first[row] = call_.query_first(unit.index, unit.request, token, head);
      second[row] = call_.query_second(unit.index, unit.request, token, head);
      visible[row] = call_.visible_keys(unit.request, token);
      sees.most = std::max(sees.most, visible[row]);
      sees.few = sees.few || (visible[row] > 0 && visible[row] <= kFewKeys);
    }
    return sees;
  }

  void attend_range(const AttentionKernel& kernel, const ItemShape& shape, std::byte* base, const int64_t* visible,
                    const Unit& unit, KeyRange range, const Partial& partial) const {
    const ScratchLayout& at = layout_.scratch;
    const Scratch scratch{
        base + at.queries, reinterpret_cast<float*>(base + at.scores),  base + at.weights,
        base + at.rows,    reinterpret_cast<float*>(base + at.rescale), reinterpret_cast<int32_t*>(base + at.visible)};
    auto* first = reinterpret_cast<const std::byte**>(base + at.query_addresses);
    kernel.load_queries(shape, scratch, first, first + kMaxTileRows);
    const KeyRows keys = call_.key_rows(unit.index, unit.request, unit.head_kv);
    const KeyRows values = call_.value_rows(unit.request, unit.head_kv);
    Block block{range.begin, 0, 0, true};
    for (; block.first < range.end; block.first += block.count, block.fresh = false) {
      block.count = static_cast<int32_t>(std::min<int64_t>(kBlockKeys, range.end - block.first));
      block.ahead = static_cast<int32_t>(std::min<int64_t>(kBlockKeys, range.end - block.first - block.count));
      kernel.attend(shape, scratch, keys, values, block, visible, partial);
    }
  }

  // --- merging the splits of a unit and writing its rows ---

  void run_merges() {
    int64_t task = 0;
    int64_t mine = next_merge_.fetch_add(1, std::memory_order_relaxed);
    int64_t unit_slot = 0;
    for (Unit unit = wave_begin_;
         unit.index != wave_end_.index || unit.head_kv != wave_end_.head_kv || unit.tile != wave_end_.tile;
         advance(unit)) {
      if (slots_of(unit) == 0) continue;
      const ItemShape shape = item_shape(unit);
      for (int32_t row = 0; row < shape.rows; row += kMergeRows, ++task) {
        if (task != mine) continue;
        merge_rows(unit, shape, row, std::min(shape.rows, row + kMergeRows), unit_slot);
        mine = next_merge_.fetch_add(1, std::memory_order_relaxed);
      }
      unit_slot += unit.plan.splits;
    }
  }

  void merge_rows(const Unit& unit, const ItemShape& shape, int32_t begin, int32_t end, int64_t unit_slot) const {
    Partial parts[kMaxSplits];
    for (int32_t s = 0; s < unit.plan.splits; ++s) {
      parts[s] = partial_at(slots_ + (unit_slot + s) * layout_.slot_bytes, shape);
    }
    for (int32_t row = begin; row < end; ++row) write_row(unit, shape, row, parts, unit.plan.splits);
  }

  // out = sum_s 2^(m_s - M) o_s / sum_s 2^(m_s - M) l_s, a stretch of columns at a time.
  void write_row(const Unit& unit, const ItemShape& shape, int32_t row, const Partial* parts, int32_t count) const {
    const auto [token, head] = place(unit, row);
    float most = -INFINITY;
    for (int32_t s = 0; s < count; ++s) most = std::fmax(most, parts[s].m[row]);
    float weight[kMaxSplits];
    bool seen[kMaxSplits];  // o of a split that saw no key was never written
    float total = 0;
    for (int32_t s = 0; s < count; ++s) {
      seen[s] = !(parts[s].l[row] == 0);
      weight[s] = seen[s] ? std::exp2(parts[s].m[row] - most) : 0;
      if (seen[s]) total += weight[s] * parts[s].l[row];
    }
    if (total == 0) {
      call_.write_empty(unit.index, unit.request, token, head);
      return;
    }
    std::byte* out = call_.out(unit.index, unit.request, token, head);
    for (int32_t column = 0; column < shape.value_dim; column += kColumnPad) {
      float sum[kColumnPad] = {};
      for (int32_t s = 0; s < count; ++s) {
        if (!seen[s]) continue;
        const float* o = parts[s].o + static_cast<int64_t>(row) * shape.out_stride + column;
        for (int32_t c = 0; c < kColumnPad; ++c) sum[c] += weight[s] * o[c];
      }
      const int32_t width = std::min(kColumnPad, shape.value_dim - column);
      store(shape.dtype, out, column, sum, width, total);
    }
    if (float* lse = call_.lse(unit.index, unit.request, token, head)) {
      *lse = static_cast<float>((static_cast<double>(most) + std::log2(static_cast<double>(total))) * M_LN2);
    }
  }

  static void store(DType dtype, std::byte* out, int32_t column, const float* sum, int32_t width, float total) {
    const float inverse = 1.0f / total;
    for (int32_t c = 0; c < width; ++c) {
      const float value = sum[c] * inverse;
      switch (dtype) {
        case DType::kBFloat16: reinterpret_cast<BFloat16*>(out)[column + c] = from_float<BFloat16>(value); break;
        case DType::kFloat16: reinterpret_cast<Float16*>(out)[column + c] = from_float<Float16>(value); break;
        default: reinterpret_cast<float*>(out)[column + c] = value; break;
      }
    }
  }

  const HostAttention& call_;
  const AttentionKernel& kernel_;
  const AttentionLayout& layout_;
  std::byte* scratch_;
  std::byte* slots_;

  SplitRule rule_ = SplitRule::own_length();
  Unit wave_begin_{};
  Unit wave_end_{};
  int64_t items_ = 0;
  std::atomic<int64_t> next_item_{0};
  std::atomic<int64_t> next_merge_{0};
};

}  // namespace

void cpu_attention(const HostAttention& call, const AttentionKernel& kernel, const AttentionLayout& layout,
                   std::byte* workspace) {
  if (call.total_q() == 0 || call.batch() == 0) return;
  Schedule(call, kernel, layout, workspace).run();
}

}  // namespace flashmla
