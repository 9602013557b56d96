// Shared memory of the few-rows kernel: plain data that host and device agree on.
#pragma once

#include "cuda/decode/config.h"

namespace flashmla::cuda::hopper {

inline constexpr int kTileKeys = 64;  // M of wgmma
inline constexpr int kLog2TileKeys = 6;
inline constexpr int kPanels = kMaxWidth / 64;  // 64 columns wide: one swizzle row
inline constexpr int kValuePanels = kMaxLatent / 64;
inline constexpr int kRowBytes = 128;  // of a panel
inline constexpr int kPanelBytes = kTileKeys * kRowBytes;

inline constexpr int kComputeWarps = 4;
inline constexpr int kQueryWarp = 4;
inline constexpr int kKeyWarp = 5;
inline constexpr int kFewRowsThreads = 32 * 6;

// A tile of keys passes through the ring in groups of panels: each is waited for and given back by itself.
inline constexpr int kGroupPanels = 3;
inline constexpr int kTileGroups = kPanels / kGroupPanels;
inline constexpr int kGroupBytes = kGroupPanels * kPanelBytes;
// Two tiles. A block of the combine kernel still fits beside it: it can read the lengths before this one ends.
inline constexpr int kRingGroups = 6;
inline constexpr int kNotedTiles = 4;  // more than are in the ring

inline constexpr int kVisitBytes = 80;
inline constexpr int kNotedVisits = 2;  // one is written while the one before is being finished

// Shared memory, bytes. Operands of wgmma are 1024-byte aligned.
template <int kRowCount>
struct FewRowsLayout {
  static constexpr int kRows = kRowCount;
  static constexpr int kQueryPanelBytes = kRows * kRowBytes;
  static constexpr int kQueries = kRingGroups * kGroupBytes;
  static constexpr int kP = kQueries + kPanels * kQueryPanelBytes;  // [row][key], 16 bits
  static constexpr int kMaxima = kP + kRows * kRowBytes;            // fp32 [warp][row]
  static constexpr int kSums = kMaxima + kComputeWarps * kRows * 4;
  // Rows on their way out, 16 columns of each row, two panels a warp.
  static constexpr int kStagingBytes = kRows * 32;
  static constexpr int kStaging = kSums + kComputeWarps * kRows * 4;
  static constexpr int kBarriers = kStaging + 2 * kComputeWarps * kStagingBytes;  // full, empty of each group; queries
  static constexpr int kVisits = kBarriers + 8 * (2 * kRingGroups + 2);
  static constexpr int kAbsent = kVisits + kNotedVisits * kVisitBytes;
  static constexpr int kBytes = kAbsent + 4 * kNotedTiles;
  static_assert(kRows % 8 == 0 && kBarriers % 8 == 0 && kBytes <= kSmem227K);
};

constexpr int few_rows_smem_bytes(int rows) {
  return rows == 8 ? FewRowsLayout<8>::kBytes : rows == 16 ? FewRowsLayout<16>::kBytes : FewRowsLayout<32>::kBytes;
}

}  // namespace flashmla::cuda::hopper
