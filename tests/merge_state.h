// States of merge_states calls for tests, on host memory, and what is right.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "cases/memory.h"
#include "cases/random.h"
#include "flashmla/flashmla.h"
#include "support.h"

namespace flashmla::tests {

// Rows [tokens, heads, width] and lse [heads, tokens] in one of two memory orders, with gaps.
struct State {
  DType dtype;
  int64_t tokens, heads, width;
  std::vector<std::byte> out_memory;
  std::vector<float> lse_memory;
  TensorView out, lse;

  State(DType type, int64_t t, int64_t h, int64_t w, bool strided) : dtype(type), tokens(t), heads(h), width(w) {
    const int64_t row = w + (strided ? 3 : 0);
    out_memory.resize(static_cast<size_t>((t * h * row + 8) * dtype_bytes(type)));
    lse_memory.resize(static_cast<size_t>(t * h * 2 + 8));
    cases::poison(out_memory.data(), static_cast<int64_t>(out_memory.size()), type);
    out = {out_memory.data(), type, 3, {t, h, w}, {h * row, row, 1}};
    lse = {lse_memory.data(), DType::kFloat32, 2, {h, t}, {t, 1}};
    if (strided) {  // heads outermost; lse with gaps, tokens outermost
      out.stride = {row, t * row, 1};
      lse.stride = {2, 2 * h};
    }
  }
  State(const State& other)
      : State(other.dtype, other.tokens, other.heads, other.width, other.out.stride[0] < other.out.stride[1]) {
    out_memory = other.out_memory;
    lse_memory = other.lse_memory;
    out.data = out_memory.data();
    lse.data = lse_memory.data();
  }

  std::byte* row(int64_t t, int64_t h) {
    return out_memory.data() + (t * out.stride[0] + h * out.stride[1]) * dtype_bytes(dtype);
  }
  float& lse_at(int64_t t, int64_t h) { return lse_memory[static_cast<size_t>(h * lse.stride[0] + t * lse.stride[1])]; }
  float value(int64_t t, int64_t h, int64_t d) { return cases::load_element(row(t, h), dtype, d); }
  void set_row(int64_t t, int64_t h, float lse_value, float size, cases::Random& random) {
    lse_at(t, h) = lse_value;
    for (int64_t d = 0; d < width; ++d) {
      const float x = std::isfinite(lse_value) ? size * random.normal()
                      : random.below(2) == 0   ? kNaN
                                               : kInf;  // garbage if empty
      cases::store_elements(row(t, h) + d * dtype_bytes(dtype), dtype, &x, 1);
    }
  }
};

inline MergeStatesParams merge_params(State& a, State& b, State& to) {
  MergeStatesParams params;
  params.out_a = a.out;
  params.lse_a = a.lse;
  params.out_b = b.out;
  params.lse_b = b.lse;
  params.out = to.out;
  params.lse = to.lse;
  return params;
}

// Largest error of rounding to a dtype; fp16 values below 2^-14 are multiples of 2^-24.
inline double rounding(DType dtype, double value) {
  if (dtype == DType::kFloat16) return std::fmax(0x1p-11 * std::fabs(value), 0x1p-25);
  return (dtype == DType::kFloat32 ? 0x1p-23 : 0x1p-8) * std::fabs(value) + 1e-30;
}

// Element by element in double.
inline void expect_merged(State a, State b, State& got, EmptyLse marker) {
  for (int64_t t = 0; t < a.tokens; ++t) {
    for (int64_t h = 0; h < a.heads; ++h) {
      const bool has_a = std::isfinite(a.lse_at(t, h));
      const bool has_b = std::isfinite(b.lse_at(t, h));
      const double total =
          (has_a ? std::exp(double{a.lse_at(t, h)}) : 0.0) + (has_b ? std::exp(double{b.lse_at(t, h)}) : 0.0);
      const float empty = marker == EmptyLse::kPlusInf ? kInf : -kInf;
      if (total == 0) {
        EXPECT_EQ(got.lse_at(t, h), empty);
      } else {
        EXPECT_NEAR(got.lse_at(t, h), std::log(total), 1e-6 + 1e-6 * std::fabs(std::log(total)));
      }
      for (int64_t d = 0; d < a.width; ++d) {
        double want = 0;
        double size = 0;
        for (const auto& [has, state] : {std::pair{has_a, &a}, std::pair{has_b, &b}}) {
          if (!has) continue;
          const double part = std::exp(double{state->lse_at(t, h)}) / total * state->value(t, h, d);
          want += part;
          size = std::fmax(size, std::fabs(part));
        }
        ASSERT_NEAR(got.value(t, h, d), want, rounding(a.dtype, want) + 1e-6 * size)
            << "token " << t << ", head " << h << ", column " << d;
      }
    }
  }
}

}  // namespace flashmla::tests
