#include "runner/model/elementwise.h"

#include <cmath>

namespace flashmla::runner {

void rms_norm(const float* x, const std::vector<float>& weight, double eps, float* to) {
  double squares = 0;
  for (size_t i = 0; i < weight.size(); ++i) squares += static_cast<double>(x[i]) * x[i];
  const auto scale = static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(weight.size()) + eps));
  for (size_t i = 0; i < weight.size(); ++i) to[i] = x[i] * scale * weight[i];
}

void add_bias(const std::vector<float>& bias, float* to) {
  for (size_t i = 0; i < bias.size(); ++i) to[i] += bias[i];
}

void silu_and_multiply(float* gate, const float* up, int64_t count) {
  for (int64_t i = 0; i < count; ++i) gate[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
}

Rope::Rope(const ModelConfig& config) : frequencies_(config.rope_frequencies()), amplitude_(config.rope_amplitude()) {}

void Rope::rotate(float* row, int64_t position) const {
  for (size_t i = 0; i < frequencies_.size(); ++i) {
    const double angle = static_cast<double>(position) * frequencies_[i];
    const auto cosine = static_cast<float>(std::cos(angle) * amplitude_);
    const auto sine = static_cast<float>(std::sin(angle) * amplitude_);
    const float even = row[2 * i];
    const float odd = row[2 * i + 1];
    row[2 * i] = even * cosine - odd * sine;
    row[2 * i + 1] = even * sine + odd * cosine;
  }
}

}  // namespace flashmla::runner
