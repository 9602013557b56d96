// How the work of a decode call is laid out on a line and cut into equal slices, one a block. Pure; the same code on
// the host (tests) and on the device, where lengths are known. There is no plan in memory: every block of the split
// and of the combine kernel finds its slice itself.
//
// The line: requests in order; of each its row tiles (kRows rows of query tokens x heads of one KV head), KV head by KV
// head; of each tile its units of keys, at least one, so that rows without keys are somebody's work too. As a rule a
// unit is kUnitKeys keys and a slice any run of units: it begins inside at most one tile and ends inside at most one, so
// a block writes at most two partial results. Where splits are forced, or must follow from a request's own length
// (batch-invariant mode), a unit is a whole split and gets a partial result of its own.
#pragma once

#include <cstdint>

#include "cuda/tile/layout.h"

namespace flashmla::cuda {

inline constexpr int kUnitKeys = 32;
inline constexpr int kMostSplits = 64;  // DecodeOptions: kMaxSplits (checked in table.cc)

// How a tile's keys are cut into units.
struct UnitRule {
  int32_t max_splits = 0;        // 0: units of kUnitKeys, joined freely
  int32_t least_split_keys = 0;  // a multiple of kUnitKeys

  FLASHMLA_HD constexpr int64_t unit_keys(int64_t keys) const {
    if (max_splits == 0) return kUnitKeys;
    const int64_t even = (keys + max_splits - 1) / max_splits;
    const int64_t rounded = (even + kUnitKeys - 1) / kUnitKeys * kUnitKeys;
    return rounded > least_split_keys ? rounded : least_split_keys;
  }
  FLASHMLA_HD constexpr int64_t units(int64_t keys) const {
    if (keys <= 0) return 1;
    if (max_splits == 0) return (keys + kUnitKeys - 1) / kUnitKeys;
    const int64_t each = unit_keys(keys);
    return (keys + each - 1) / each;
  }
};

// 64-bit division is a call of some 100 instructions on the GPU; nearly every line is short.
FLASHMLA_HD constexpr int64_t divide(int64_t a, int64_t b) {
  if (((a | b) >> 32) == 0) return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
  return a / b;
}

// What the lengths of a call add up to.
struct LineTotals {
  int64_t units = 0;
  int64_t tiles = 0;
  int64_t longest = 0;  // units of the longest tile
};

// Number of slices on `blocks` blocks; 0 without work. A combine step reads as many bytes as the partial results have, so short lines
// are cut into few slices: one unit each up to kFewUnits units, then at least kLeastUnits. Tiles of equal length are
// not cut where that keeps nearly all blocks busy: whole tiles need no combine step.
FLASHMLA_HD constexpr int slice_count(const LineTotals& line, int blocks, int few_units, int least_units) {
  const int64_t fine = line.units < few_units ? line.units : few_units;
  const int64_t coarse = line.units / least_units;
  const int64_t wanted = fine > coarse ? fine : coarse;
  const int parts = static_cast<int>(wanted < blocks ? wanted : blocks);
  if (parts < blocks || line.tiles * line.longest != line.units) return parts;
  // Equal tiles: a number of slices that divides the tiles, or that the tiles divide; at most a sixteenth fewer.
  if (line.tiles <= blocks) {
    const int aligned = blocks / static_cast<int>(line.tiles) * static_cast<int>(line.tiles);
    return aligned >= blocks - blocks / 16 ? aligned : parts;
  }
  for (int fewer = blocks; fewer >= blocks - blocks / 16; --fewer) {
    if (line.tiles - divide(line.tiles, fewer) * fewer == 0) return fewer;
  }
  return parts;
}

// `units` in `parts` slices, the first `units % parts` of them one unit longer.
struct Slices {
  int64_t length = 0;
  int64_t longer = 0;

  FLASHMLA_HD constexpr Slices(int64_t units, int parts) : length(divide(units, parts)) {
    longer = units - length * parts;
  }
  FLASHMLA_HD constexpr int64_t begin(int slice) const {
    return slice * length + (slice < longer ? slice : longer);
  }
  // The slice that holds unit `unit`; length is at least 1, as slice_count never exceeds the units.
  FLASHMLA_HD constexpr int owner(int64_t unit) const {
    const int64_t in_longer = longer * (length + 1);
    if (unit < in_longer) return static_cast<int>(divide(unit, length + 1));
    return static_cast<int>(longer + divide(unit - in_longer, length));
  }
};

}  // namespace flashmla::cuda
