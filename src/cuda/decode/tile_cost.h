// Which tile of query rows a Hopper kernel should have: an estimate of a call's time for each, from what the host
// knows. Pure; tests compare the choice with measured times (tests/cuda/tile_cost_test.cc).
//
// More rows in a tile read the keys fewer times; fewer rows start sooner, and leave more blocks side by side. Fitted to
// 28 shapes x 4 tiles on an H200 (bench/results/choices-h200.json and "forced_kernels" of
// bench/results/decode-h200-history.json): 13 % off in the middle, which is enough to order them.
#pragma once

#include <algorithm>
#include <cstdint>

namespace flashmla::cuda {

struct TileCost {
  int rows;
  double start_us;  // of the call, until the first keys are used, and its end
  double unit_us;   // 64 keys
  double visit_us;  // to go from one tile to the next
};
inline constexpr TileCost kTileCosts[] = {
    {8, 7.5, 1.05, 3.5}, {16, 9.0, 1.2, 4.0}, {32, 13.0, 1.35, 11.0}, {64, 9.5, 1.6, 25.0}};

// The estimate holds for chips that multiply as fast beside their memory as an H100 or H200 (114 and 132
// multiprocessors). An H20 (78) multiplies several times slower: there rows that do not exist are dear.
inline constexpr int kLeastMultiprocessors = 100;

struct TileCall {
  int64_t rows = 1;  // of a request
  int64_t requests = 1;
  int64_t keys = 0;  // of each request, at most
  int multiprocessors = 0;
};

// Microseconds.
constexpr double tile_cost_us(const TileCost& tile, const TileCall& call) {
  constexpr double kBytesPerUs = 4.4e6;
  constexpr int64_t kUnitKeys = 64;
  constexpr double kUnitBytes = kUnitKeys * 576 * 2;
  constexpr double kPartialRowBytes = 512 * 4 * 2;  // written and read
  const int64_t blocks = call.multiprocessors;
  const int64_t tiles_of_request = (call.rows + tile.rows - 1) / tile.rows;
  // As decode.cc deals tiles to lanes: those of a request lie side by side where that leaves few blocks idle.
  const bool beside = tiles_of_request <= blocks && blocks % tiles_of_request <= blocks / 16;
  const int64_t lanes = beside ? tiles_of_request : 1;
  const int64_t positions = blocks / lanes;
  const int64_t tiles = call.requests * (beside ? 1 : tiles_of_request);  // of a lane
  constexpr int64_t kMostUnits = int64_t{1}
                                 << 20;  // of a tile: beyond it no order changes, and products stay in 64 bits
  const int64_t tile_units = std::clamp<int64_t>((call.keys + kUnitKeys - 1) / kUnitKeys, 1, kMostUnits);
  const int64_t units = tiles * tile_units;
  int64_t longest = (units + positions - 1) / positions;  // units of a slice
  const int64_t whole = (tiles + positions - 1) / positions * tile_units;
  bool split = true;
  // Tiles stay whole (schedule.h).
  if (units >= positions && (tile.rows == 64 ? whole <= longest + 10 : tiles % positions == 0)) {
    longest = whole;
    split = false;
  }
  const double slices = static_cast<double>(std::min(units, positions) * lanes);
  const double partial_us = split ? slices * tile.rows * kPartialRowBytes / kBytesPerUs : 0;
  const double read_us = static_cast<double>(units) * kUnitBytes / kBytesPerUs;
  const double visits = static_cast<double>(tiles) / static_cast<double>(positions) - 1;
  const double us = tile.start_us + partial_us + std::max(static_cast<double>(longest) * tile.unit_us, read_us) +
                    std::max(visits, 0.0) * tile.visit_us;
  // Half and more of the products for rows that do not exist: where memory decides it takes as long, but more power.
  constexpr double kEmptyRows = 1.06;
  return tile.rows > 16 && tiles_of_request * tile.rows >= 2 * call.rows ? kEmptyRows * us : us;
}

// Up to 16 rows the smallest tile that holds them is right anyway.
constexpr bool has_estimate(int64_t rows, int multiprocessors) {
  return rows > 16 && multiprocessors >= kLeastMultiprocessors;
}

// Rows of the tile; without an estimate those of the request.
constexpr int64_t cheapest_tile(const TileCall& call) {
  if (!has_estimate(call.rows, call.multiprocessors)) return call.rows;
  constexpr int64_t kMostEights = 8;  // tiles of 8 rows a request: more of them were not measured
  int64_t best = 0;
  double least_us = 0;
  for (const TileCost& tile : kTileCosts) {
    if (tile.rows == 8 && call.rows > 8 * kMostEights) continue;
    const double us = tile_cost_us(tile, call);
    if (best == 0 || us < least_us) {
      best = tile.rows;
      least_us = us;
    }
  }
  return best;
}

}  // namespace flashmla::cuda
