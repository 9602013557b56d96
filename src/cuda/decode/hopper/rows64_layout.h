// Shared memory of the 64-row kernel (rows64.cuh): plain data that host and device agree on.
#pragma once

#include <cstdint>

#include "cuda/decode/config.h"

namespace flashmla::cuda {

namespace rows64 {

inline constexpr int kRows = 64;       // of a tile of queries: M of wgmma
inline constexpr int kBlockKeys = 64;  // of one step
inline constexpr int kLog2BlockKeys = 6;
inline constexpr int kRoleThreads = 128;  // a warpgroup
inline constexpr int kThreads = 3 * kRoleThreads;

// Operands are panels: 64 rows of 64 values, 128 bytes a row.
inline constexpr int kRowBytes = 128;
inline constexpr int kPanelBytes = 64 * kRowBytes;
inline constexpr int kRopePanel = kMaxLatent / 64;  // panels before it are the latent part
inline constexpr int kPanels = kMaxWidth / 64;
inline constexpr int kRegisterPanels = 4;  // panels of Q that the scores role holds in registers
inline constexpr int kQueryPanels = kPanels - kRegisterPanels;

// A unit is one half of the latent part of a block of keys; m64n256k16 wants its four panels side by side.
inline constexpr int kUnitPanels = 4;
inline constexpr int kUnitBytes = kUnitPanels * kPanelBytes;
inline constexpr int kUnits = 5;      // of the ring: left 0, right 0, left 1, ..
inline constexpr int kRopeSlots = 2;  // rotating parts of as many blocks

// Segments on their way from the thread that finds them to the roles. While the right half is in segment n, its copies
// may be three blocks ahead and ask for the pages of a fourth, each in a segment of its own: n + 4 must have been
// found. When it has finished n it finds n + 5, while the left half may still write n - 1: 7 places.
inline constexpr uint32_t kFoundAhead = 4;
inline constexpr int kVisits = 8;
inline constexpr int kVisitBytes = 56;
inline constexpr int kCursorBytes = 128;

// Offsets in bytes; operands of wgmma are 1024-byte aligned.
struct Layout {
  static constexpr int kRing = 0;
  static constexpr int kRope = kRing + kUnits * kUnitBytes;
  static constexpr int kQueries = kRope + kRopeSlots * kPanelBytes;
  static constexpr int kP = kQueries + kQueryPanels * kPanelBytes;  // [row][key], 16 bits
  static constexpr int kFactors = kP + kPanelBytes;                 // fp32 [row]: what O is multiplied by before P V
  static constexpr int kInverses = kFactors + kRows * 4;            // fp32 [parity of the segment][row]: 1 / row sum
  static constexpr int kVisitQueue = kInverses + 2 * kRows * 4;
  static constexpr int kCursor = kVisitQueue + kVisits * kVisitBytes;
  static constexpr int kUnitFull = kCursor + kCursorBytes;  // barriers, 8 bytes each
  static constexpr int kRopeFull = kUnitFull + 8 * kUnits;
  static constexpr int kVisitNoted = kRopeFull + 8 * kRopeSlots;
  static constexpr int kAbsent = kVisitNoted + 8 * kVisits;  // uint32 [rope slot]
  static constexpr int kPart = kAbsent + 4 * kRopeSlots;     // uint32
  static constexpr int kBytes = kPart + 4;
  static_assert(kQueries % 1024 == 0 && kP % 1024 == 0 && kUnitFull % 8 == 0);
};

}  // namespace rows64

inline constexpr int kRows64Threads = rows64::kThreads;
inline constexpr int kRows64SmemBytes = rows64::Layout::kBytes;
static_assert(kRows64SmemBytes <= kSmem227K);  // the kernel declares nothing statically

}  // namespace flashmla::cuda
