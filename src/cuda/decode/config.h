// Limits of the decode kernels, and the configurations of the portable one: plain data, checked here, that the
// kernel's code is written in terms of.
#pragma once

#include <cstdint>

namespace flashmla::cuda {

inline constexpr int kMaxLatent = 512;
inline constexpr int kMaxRope = 64;
inline constexpr int kMaxWidth = kMaxLatent + kMaxRope;       // d_qk
inline constexpr int kElementBytes = 2;                       // bf16 and fp16
inline constexpr int kTilePitch = kMaxWidth * kElementBytes;  // bytes from row to row of Q and KV tiles, whatever d_qk
inline constexpr int kStepKeys = 64;                          // keys of one step of the computation
inline constexpr int kStageRows = 32;  // of the ring: half a step, so that loads go on while the other stages are used
inline constexpr int kStageBytes = kStageRows * kTilePitch;
inline constexpr int kMaxStages = 5;

inline constexpr int kCombineThreads = 256;
inline constexpr int kMaxBlocks = 192;  // of a kernel, and so slices: as many multiprocessors as the largest GPUs have

enum class Widths : int32_t {
  kTuned = 0,  // 512 + 64, compile-time loop bounds
  kAny = 1,    // run-time loop bounds: latent up to 512, RoPE up to 64, multiples of 8
};

struct DecodeConfig {
  int rows = 16;  // query rows (tokens x heads of one KV head) of a tile
  Widths widths = Widths::kTuned;

  // ---- how the warps share a step. Sixteen warps were slower (docs/kernels/decode.md).
  static constexpr int warps() { return 8; }
  static constexpr int threads() { return 32 * warps(); }
  // Scores: warp_keys keys a warp; the four warps of the same keys share the k dimension, so that a warp's part of Q
  // stays in registers, and their sums meet in shared memory.
  static constexpr int k_splits() { return 4; }
  static constexpr int warp_keys() { return kStepKeys * k_splits() / warps(); }
  static constexpr int key_groups() { return kStepKeys / warp_keys(); }
  static constexpr int k_steps() { return kMaxWidth / 16 / k_splits(); }  // m16n8k16 steps of one warp
  // Softmax: rows x lanes_per_row threads.
  constexpr int lanes_per_row() const { return threads() / rows; }
  constexpr int keys_per_lane() const { return kStepKeys / lanes_per_row(); }
  constexpr int row_tiles() const { return rows / 16; }
  // Values: the columns of V that a warp owns.
  static constexpr int slab() { return kMaxLatent / warps(); }

  // ---- slice_count's few_units and least_units, found by trying: shorter slices cost more in the combine kernel than
  // they gain in the split kernel, and partial results of 32 rows are twice as large.
  constexpr uint32_t few_units() const { return rows == 16 ? 8 : 32; }
  constexpr uint32_t least_units() const { return rows == 16 ? 2 : 4; }

  // ---- shared memory, bytes: the ring comes last, because its depth is chosen by the device
  // Partial scores, fp32 [k_splits][rows][score_pitch]: 8 more columns put neighbouring rows into other banks.
  static constexpr int score_pitch() { return kStepKeys + 8; }
  constexpr int score_bytes() const { return k_splits() * rows * score_pitch() * 4; }
  // P, 16-bit [rows][kStepKeys].
  static constexpr int p_pitch() { return kStepKeys * kElementBytes; }
  constexpr int p_offset() const { return score_bytes(); }
  constexpr int factor_offset() const { return p_offset() + rows * p_pitch(); }
  constexpr int valid_offset() const { return factor_offset() + 2 * rows * 4; }  // fp32 [2][rows] before it
  constexpr int id_offset() const {
    return valid_offset() + kMaxStages * kStageRows;
  }  // uint8 [stages][rows] before it
  // int32 [stages][rows] before the ring
  constexpr int ring_offset() const { return (id_offset() + kMaxStages * kStageRows * 4 + 127) / 128 * 128; }
  constexpr int smem_bytes(int stages) const { return ring_offset() + stages * kStageBytes; }
  // Beside it, what kernels declare statically: the segments on their way through the ring.
  static constexpr int static_bytes() { return 512; }
  constexpr bool fits(int stages, int smem_limit) const { return smem_bytes(stages) + static_bytes() <= smem_limit; }

  // With 32 rows, ptxas 13.0 spills registers on compute capability 10.0 and newer; tiles of 16 rows serve all heads
  // there.
  constexpr bool runs_on(int compute_capability) const { return rows == 16 || compute_capability < 100; }

  constexpr bool valid() const {
    return (rows == 16 || rows == 32) && key_groups() * k_splits() == warps() && warp_keys() % 16 == 0 &&
           warp_keys() <= kStageRows && k_steps() * k_splits() * 16 == kMaxWidth &&
           keys_per_lane() * lanes_per_row() == kStepKeys && keys_per_lane() % 4 == 0 &&
           rows * kTilePitch <= kStageBytes;  // a tile of Q or of results fits a stage
  }
};

// What a block may use (CUDA C++ programming guide, compute capabilities).
inline constexpr int kSmem99K = 101'376;   // sm_86, sm_89, sm_120
inline constexpr int kSmem163K = 166'912;  // sm_80
inline constexpr int kSmem227K = 232'448;  // sm_90, sm_100

inline constexpr DecodeConfig k16Rows{16, Widths::kTuned};
inline constexpr DecodeConfig k32Rows{32, Widths::kTuned};
inline constexpr DecodeConfig k16RowsAny{16, Widths::kAny};

static_assert(k16Rows.valid() && k16Rows.fits(5, kSmem227K) && k16Rows.fits(3, kSmem163K) && k16Rows.fits(2, kSmem99K));
static_assert(k32Rows.valid() && k32Rows.fits(5, kSmem227K) && k32Rows.fits(3, kSmem163K));
static_assert(k16RowsAny.valid());

}  // namespace flashmla::cuda
