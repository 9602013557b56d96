// How the work of a decode call is laid out on a line and cut into equal slices, one a block. Pure; the same code on
// the host (tests) and on the device, where lengths are known. There is no plan in memory: every block of the split
// and of the combine kernel finds its slice itself.
//
// The line: requests in order; of each its row tiles (kRows rows of query tokens x heads of one KV head), KV head by KV
// head; of each tile its units of keys, at least one, so that rows without keys are somebody's work too. As a rule a
// unit is 2^log2_keys keys and a slice any run of units: it begins inside at most one tile and ends inside at most one,
// so a block writes at most two partial results. Where splits are forced, or must follow from a request's own length
// (batch-invariant mode), a unit is a whole split and gets a partial result of its own.
//
// Going from one tile to the next costs a block time in which it reads no keys: queries, softmax and results that
// nothing hides. So each tile may have `price` places on the line before its first unit (visit_price): slices with
// many short tiles get fewer keys. A slice that begins in those places has the tile from its first unit on, one that
// ends in them has none of it.
//
// Positions on the line have 32 bits: units grow until they suffice (Line::read).
#pragma once

#include <cstdint>

#include "cuda/tile/layout.h"

namespace flashmla::cuda {

inline constexpr uint32_t kLog2UnitKeys = 5;
inline constexpr int kMostSplits = 64;                          // DecodeOptions: kMaxSplits (checked in table.cc)
inline constexpr uint64_t kMaxUnits = (uint64_t{1} << 31) - 1;  // of a line

// Keys of each of at most `most` splits of `length` keys, a multiple of `grain` and at least `least`; their number.
struct Splits {
  uint32_t keys;
  uint32_t count;
};
FLASHMLA_HD_CALL constexpr Splits cut_splits(uint32_t length, uint32_t most, uint32_t grain, uint32_t least) {
  const uint32_t even = (length + most - 1) / most;
  const uint32_t rounded = (even + grain - 1) / grain * grain;
  const uint32_t keys = rounded > least ? rounded : least;
  return {keys, length == 0 ? 1 : (length - 1) / keys + 1};
}

// How a tile's keys are cut into units.
struct UnitRule {
  uint32_t max_splits = 0;  // 0: units of 2^log2_keys keys, joined freely; else a split has at least that many keys
  uint32_t log2_keys = kLog2UnitKeys;
  uint32_t log2_grain = kLog2UnitKeys;  // splits are multiples of as many keys: a kernel's tiles never begin elsewhere

  // Of a tile of `length` keys, below 2^31: keys of each unit but the last, and the number of units.
  FLASHMLA_HD constexpr Splits cut(uint32_t length) const {
    const uint32_t keys = uint32_t{1} << log2_keys;
    if (max_splits != 0) return cut_splits(length, max_splits, uint32_t{1} << log2_grain, keys);
    return {keys, length == 0 ? 1 : ((length - 1) >> log2_keys) + 1};
  }
};

// What the host knows of the requests. Kernels that are made for the simple cases have less code, all of which is
// fetched for the first time on the way to the first key.
enum class LineKind : int32_t {
  kAny,
  kPlain,  // every request has seq_q query tokens, units are joined freely
  kOne,    // and there is one request
};

// What the lengths of a call add up to.
struct LineTotals {
  uint32_t units = 0;
  uint32_t tiles = 0;
  uint32_t longest = 0;  // units of the longest tile
};

// Number of slices on `blocks` blocks; 0 without work. A combine step reads as many bytes as the partial results have,
// so short lines are cut into few slices: one unit each up to few_units units, then at least least_units. Tiles of
// equal length are not cut where that keeps nearly all blocks busy: whole tiles need no combine step.
FLASHMLA_HD constexpr uint32_t slice_count(const LineTotals& line, uint32_t blocks, uint32_t few_units,
                                           uint32_t least_units) {
  const uint32_t fine = line.units < few_units ? line.units : few_units;
  const uint32_t coarse = line.units / least_units;
  const uint32_t wanted = fine > coarse ? fine : coarse;
  if (wanted < blocks) return wanted;
  if (line.tiles == 1 || static_cast<uint64_t>(line.tiles) * line.longest != line.units) return blocks;
  // Equal tiles: the number of blocks nearest below, at most a sixteenth fewer, that gives each tile a whole number of
  // slices or each slice a whole number of tiles.
  const uint32_t least = blocks - blocks / 16;
  if (line.tiles <= blocks) {
    const uint32_t aligned = blocks / line.tiles * line.tiles;
    return aligned >= least ? aligned : blocks;
  }
  const uint32_t rounds = (line.tiles + blocks - 1) / blocks;
  const uint32_t even = line.tiles / rounds;
  return even >= least && even * rounds == line.tiles ? even : blocks;
}

// What a kernel's slices cost, in the time of a unit.
struct SliceCosts {
  uint32_t few_units = 1;  // slice_count
  uint32_t least_units = 1;
  uint32_t visit_price = 0;  // to go from one tile to the next
  uint32_t split_price = 0;  // that tiles are split: partial results and their sum. 0: only equal tiles stay whole
};

// Places before each tile of a line of `slices` slices: `price`, or none where no slice would be evened by it, or a
// slice could be left without a unit.
FLASHMLA_HD constexpr uint32_t visit_price(const LineTotals& line, uint32_t slices, uint32_t price) {
  if (price == 0 || slices == 0 || line.units / slices <= 2 * price) return 0;
  if (line.units + static_cast<uint64_t>(price) * line.tiles >= kMaxUnits) return 0;
  const bool equal = static_cast<uint64_t>(line.tiles) * line.longest == line.units;
  if (equal && (slices % line.tiles == 0 || line.tiles % slices == 0)) return 0;
  return price;
}

// How a line is cut.
struct LineCut {
  uint32_t slices = 0;
  uint32_t price = 0;  // places before each tile
  uint32_t width = 0;  // places of every tile, the last ones empty: slices hold whole tiles; 0: as many as it has units
  uint32_t places = 0;        // of the line
  uint32_t slice_places = 0;  // of each slice, where tiles have a width
};

// For requests with equal query tokens, whose units are joined freely. Tiles stay whole where that costs less than to
// split them.
FLASHMLA_HD constexpr LineCut cut_line(const LineTotals& line, uint32_t blocks, const SliceCosts& costs) {
  LineCut cut;
  cut.slices = slice_count(line, blocks, costs.few_units, costs.least_units);
  cut.places = line.units;
  if (costs.split_price != 0 && cut.slices >= blocks - blocks / 16 && line.tiles > 1) {
    const uint32_t tiles = (line.tiles + blocks - 1) / blocks;  // of a slice
    const uint64_t whole = tiles * (static_cast<uint64_t>(line.longest) + costs.visit_price);
    const uint64_t all = line.units + static_cast<uint64_t>(costs.visit_price) * line.tiles;
    if (whole * blocks <= all + costs.split_price * blocks &&
        (line.tiles + tiles) * static_cast<uint64_t>(line.longest) < kMaxUnits) {
      cut.slices = (line.tiles + tiles - 1) / tiles;
      cut.width = line.longest;
      cut.places = line.tiles * line.longest;
      cut.slice_places = tiles * line.longest;
      return cut;
    }
  }
  cut.price = visit_price(line, cut.slices, costs.visit_price);
  cut.places += cut.price * line.tiles;
  return cut;
}

// A line of `places` places in `count` slices, the first `places % count` of them one place longer.
struct Slices {
  uint32_t length = 0;
  uint32_t longer = 0;

  FLASHMLA_HD constexpr Slices(uint32_t places, uint32_t count) : length(places == count ? 1 : places / count) {
    longer = places - length * count;
  }
  FLASHMLA_HD constexpr explicit Slices(const LineCut& cut) : Slices(cut.places, cut.slices) {
    if (cut.width == 0) return;
    length = cut.slice_places;
    longer = 0;
  }
  FLASHMLA_HD constexpr uint32_t begin(uint32_t slice) const {
    return slice * length + (slice < longer ? slice : longer);
  }
  // The slice that holds place `place`; length is at least 1, as slice_count never exceeds the units.
  FLASHMLA_HD constexpr uint32_t owner(uint32_t place) const {
    const uint32_t in_longer = longer * (length + 1);
    const bool first = place < in_longer;
    return (first ? 0 : longer) + (first ? place : place - in_longer) / (first ? length + 1 : length);
  }
};

}  // namespace flashmla::cuda
