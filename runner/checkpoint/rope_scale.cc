// The softmax scale and the rotation frequencies of a configuration; docs/math.md has the formulas.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "runner/checkpoint/model_config.h"

namespace flashmla::runner {

namespace {

double yarn_mscale(double factor, double mscale) { return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1; }

}  // namespace

double ModelConfig::attention_scale() const {
  if (softmax_scale) return *softmax_scale;
  const double plain = 1 / std::sqrt(static_cast<double>(qk_dim()));
  if (!yarn) return plain;
  // mscale_all_dim, not mscale: the latter enters the rotations' amplitude only.
  const double factor = yarn_mscale(yarn->factor, yarn->mscale_all_dim);
  return plain * factor * factor;
}

double ModelConfig::rope_amplitude() const {
  if (!yarn) return 1;
  return yarn_mscale(yarn->factor, yarn->mscale) / yarn_mscale(yarn->factor, yarn->mscale_all_dim);
}

std::vector<double> ModelConfig::rope_frequencies() const {
  if (!inv_freq.empty()) return inv_freq;
  const auto dims = static_cast<double>(qk_rope_dim);
  std::vector<double> result(static_cast<size_t>(qk_rope_dim / 2));
  for (size_t i = 0; i < result.size(); ++i) result[i] = std::pow(rope_theta, -2.0 * static_cast<double>(i) / dims);
  if (!yarn) return result;
  // The pair that turns `turns` times within the original context.
  const auto pair_of = [&](double turns) {
    return dims * std::log(yarn->original_max_position / (2 * std::numbers::pi * turns)) / (2 * std::log(rope_theta));
  };
  const double low = std::max(std::floor(pair_of(yarn->beta_fast)), 0.0);
  double high = std::min(std::ceil(pair_of(yarn->beta_slow)), dims - 1);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < result.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    result[i] = result[i] / yarn->factor * ramp + result[i] * (1 - ramp);
  }
  return result;
}

}  // namespace flashmla::runner
