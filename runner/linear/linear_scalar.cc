// Plain C++ for the compiler's baseline instruction set, four lanes. Runs on every processor.
#include "runner/float_bits.h"
#include "runner/linear/linear_tile.h"

namespace flashmla::runner {

namespace {

float widened(int8_t x) { return static_cast<float>(x); }
float widened(Bf16 x) { return bf16_to_float(x.bits); }
float widened(Fp16 x) { return f16_to_float(x.bits); }

struct ScalarF32 {
  using X = float;
  using Vec = Four;
  using Acc = Four;
  static constexpr int64_t kStep = 4;
  static constexpr int64_t kBlock = kBlockBytes / 4;
  static constexpr int64_t kExtra = 0;
  static constexpr int64_t kTileTokens = 2;
  static constexpr int kLoadAheadTokens = 0;

  static Acc start(const float*) { return Four{}; }
  static Acc dot(Acc sum, Vec w, Vec x) { return sum + w * x; }

  static Vec load_x(const float* p) { return load(p); }
  static Vec load(const float* p) {
    Four v;
    __builtin_memcpy(&v, p, sizeof(v));
    return v;
  }
  template <class W>
  static Vec load(const W* p) {
    return Four{widened(p[0]), widened(p[1]), widened(p[2]), widened(p[3])};
  }
  template <class W>
  static Vec load_part(const W* p, int n) {
    W part[kStep] = {};
    for (int i = 0; i < n; ++i) part[i] = p[i];
    return load(part);
  }

  static void pack(const float* from, int64_t cols, float* to, int64_t to_step, float*) {
    for (int64_t c = 0; c < cols; c += kStep, to += to_step) {
      widen(to, from + c, static_cast<int>(cols - c < kStep ? cols - c : kStep));
    }
  }
  template <class W>
  static void widen(float* to, const W* from, int n) {
    const Four v = n == kStep ? load(from) : load_part(from, n);
    __builtin_memcpy(to, &v, sizeof(v));
  }

  static Four sum_lanes(const Acc (&v)[4], const float*) {
    Four sums;
    for (int r = 0; r < 4; ++r) sums[r] = (v[r][0] + v[r][2]) + (v[r][1] + v[r][3]);
    return sums;
  }
};

}  // namespace

const LinearKernel& linear_scalar() {
  static constexpr LinearKernel kKernel = linear_f32<ScalarF32>("scalar");
  return kKernel;
}

}  // namespace flashmla::runner
