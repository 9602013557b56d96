// Configurations of the portable decode kernel. One aggregate is the kernel's only template parameter beside the
// element type.
#pragma once

#include <cstdint>

namespace flashmla::cuda {

inline constexpr int kMaxLatent = 512;
inline constexpr int kMaxRope = 64;
inline constexpr int kMaxWidth = kMaxLatent + kMaxRope;  // d_qk
inline constexpr int kElementBytes = 2;                   // bf16 and fp16
inline constexpr int kTilePitch = kMaxWidth * kElementBytes;  // bytes from row to row of Q and KV tiles, whatever d_qk
inline constexpr int kWarps = 8;
inline constexpr int kThreads = 32 * kWarps;
inline constexpr int kStages = 2;  // KV blocks in shared memory: one in use, one in flight

inline constexpr int kCombineThreads = 256;
inline constexpr int kMaxBlocks = 512;  // of a kernel, and so slices: more than any GPU has multiprocessors

enum class Widths : int32_t {
  kTuned = 0,  // 512 + 64, compile-time loop bounds
  kAny = 1,    // run-time loop bounds: latent up to 512, RoPE up to 64, multiples of 8
};

struct DecodeConfig {
  int rows = 16;    // query rows (tokens x heads of one KV head) of a tile
  int tokens = 64;  // keys of a KV block
  Widths widths = Widths::kTuned;

  constexpr bool operator==(const DecodeConfig&) const = default;

  // ---- how the 8 warps share a block
  // Scores: 16 tokens a warp, the k dimension shared by the warps that are left; their sums meet in shared memory.
  constexpr int token_groups() const { return tokens / 16; }
  constexpr int k_splits() const { return kWarps / token_groups(); }
  constexpr int k_steps() const { return kMaxWidth / 16 / k_splits(); }  // m16n8k16 steps of one warp
  // Softmax: rows x lanes_per_row threads.
  constexpr int lanes_per_row() const { return kThreads / rows; }
  constexpr int tokens_per_lane() const { return tokens / lanes_per_row(); }
  constexpr int row_tiles() const { return rows / 16; }
  // Q lives in registers where they suffice (72 of 255 with 16 rows), else its fragments are read again for each block.
  constexpr bool q_in_registers() const { return rows == 16; }

  // ---- shared memory, bytes
  constexpr int kv_stage_bytes() const { return tokens * kTilePitch; }
  constexpr int q_bytes() const { return rows * kTilePitch; }
  // Partial scores, fp32 [k_splits][rows][score_pitch]: 8 more columns put neighbouring rows into other banks.
  constexpr int score_pitch() const { return tokens + 8; }
  constexpr int score_bytes() const { return k_splits() * rows * score_pitch() * 4; }
  constexpr int p_pitch() const { return 128; }
  constexpr int p_bytes() const { return rows * p_pitch(); }
  // Scores and P overlay Q once Q is in registers.
  constexpr int score_offset() const { return kStages * kv_stage_bytes() + (q_in_registers() ? 0 : q_bytes()); }
  constexpr int p_offset() const { return score_offset() + score_bytes(); }
  constexpr int q_offset() const { return kStages * kv_stage_bytes(); }
  constexpr int scratch_end() const {
    const int q_end = q_offset() + q_bytes();
    const int p_end = p_offset() + p_bytes();
    return q_end > p_end ? q_end : p_end;
  }
  constexpr int factor_offset() const { return scratch_end(); }  // fp32 [2][rows]
  constexpr int valid_offset() const { return factor_offset() + 2 * rows * 4; }  // uint8 [kStages][tokens]
  constexpr int smem_bytes() const { return valid_offset() + kStages * tokens; }

  constexpr bool fits(int smem_limit) const { return smem_bytes() <= smem_limit; }
  constexpr bool valid() const {
    return (rows == 16 || rows == 32) && (tokens == 32 || tokens == 64) && token_groups() * k_splits() == kWarps &&
           k_steps() * k_splits() * 16 == kMaxWidth && tokens_per_lane() * lanes_per_row() == tokens;
  }
};

// What a block may use (CUDA C++ programming guide, compute capabilities).
inline constexpr int kSmem99K = 101'376;   // sm_86, sm_89, sm_120
inline constexpr int kSmem163K = 166'912;  // sm_80
inline constexpr int kSmem227K = 232'448;  // sm_90, sm_100

inline constexpr DecodeConfig k16x64{16, 64, Widths::kTuned};
inline constexpr DecodeConfig k32x64{32, 64, Widths::kTuned};
inline constexpr DecodeConfig k32x32{32, 32, Widths::kTuned};
inline constexpr DecodeConfig k16x32{16, 32, Widths::kTuned};
inline constexpr DecodeConfig k16x32Any{16, 32, Widths::kAny};

static_assert(k16x64.valid() && k16x64.fits(kSmem163K));
static_assert(k32x64.valid() && k32x64.fits(kSmem227K));
static_assert(k32x32.valid() && k32x32.fits(kSmem163K));
static_assert(k16x32.valid() && k16x32.fits(kSmem99K));
static_assert(k16x32Any.valid() && k16x32Any.fits(kSmem99K));

}  // namespace flashmla::cuda
