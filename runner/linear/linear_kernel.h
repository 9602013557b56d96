// The inner loops of y = W x (runner/linear/matrix.h), one table for each instruction set, chosen at run time.
//
// Two ways. FewKernel: weights are widened to fp32 in registers and meet the activations where they lie; for few
// tokens, bound by memory. ManyKernel: activations are first packed into the tiles that the loop reads, rounded or
// split as its multiply-add wants them; W's rows are read where they lie or widened into a panel in the L2 cache.
// docs/kernels/cpu-linear.md has the budget and the figures.
//
// This header is read by files compiled for different instruction sets: declarations and plain structs only.
#pragma once

#include <cstdint>
#include <string_view>

#include "runner/linear/matrix.h"

namespace flashmla::runner {

// Distinct from uint16_t, so that loads overload on the format.
struct Bf16 {
  uint16_t bits;
};
struct Fp16 {
  uint16_t bits;
};

// A Matrix without its owner.
struct WeightRows {
  const void* data = nullptr;
  const float* row_scale = nullptr;  // int8 only, else null
  int64_t rows = 0;
  int64_t cols = 0;
};

// With up to this many tokens, activations stay fp32 whatever the weights are.
inline constexpr int64_t kFewTokens = 4;
// Rows of one tile, and so the granularity of splitting rows over threads that wastes nothing.
inline constexpr int64_t kTileRows = 4;
// Most rows of one call of ManyKernel::multiply; also of its panel.
inline constexpr int64_t kPanelRows = 64;
// Bytes of a panel's row in one block of columns.
inline constexpr int64_t kBlockBytes = 2048;
inline constexpr int64_t kPanelBytes = kPanelRows * kBlockBytes;

// y[t * y_stride + r] for rows r in [first, last).
using FewKernel = void (*)(const WeightRows& w, int64_t first, int64_t last, const float* x, int64_t x_stride,
                           int64_t tokens, float* y, int64_t y_stride);

struct ManyKernel {
  int64_t tile_tokens = 0;  // most tokens of one tile
  int64_t (*packed_bytes)(int64_t tokens, int64_t cols) = nullptr;
  // Packs tile `tile` of ceil(tokens / tile_tokens) into `packed`, 64-byte aligned.
  void (*pack)(const float* x, int64_t x_stride, int64_t tokens, int64_t cols, int64_t tile, void* packed) = nullptr;
  // As FewKernel, at most kPanelRows rows. `panel`: kPanelBytes, 64-byte aligned, this thread's own.
  void (*multiply)(const WeightRows& w, int64_t first, int64_t last, const void* packed, int64_t tokens, float* y,
                   int64_t y_stride, void* panel) = nullptr;
};

inline constexpr int kWeightTypes = 4;

struct LinearKernel {
  const char* isa = nullptr;
  FewKernel few[kWeightTypes] = {};     // by WeightType; null where `exact` or `many` takes few tokens too
  ManyKernel exact[kWeightTypes] = {};  // few tokens, activations not rounded; absent (no pack) where `few` does
  ManyKernel many[kWeightTypes] = {};
};

// Null where not compiled for or not usable on this processor.
const LinearKernel* find_linear_kernel(std::string_view isa);
// FLASHMLA_ISA's if usable, else the best.
const LinearKernel& default_linear_kernel();

const LinearKernel& linear_scalar();
const LinearKernel& linear_avx2();
const LinearKernel& linear_avx512();
const LinearKernel& linear_avx512_bf16();

// multiply_all with a given kernel.
void multiply_all_with(const LinearKernel& kernel, const Product* products, int64_t count, int32_t threads);

}  // namespace flashmla::runner
