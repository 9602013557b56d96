#include "runner/model/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runner/split_mix.h"

namespace flashmla::runner {

namespace {

Status wrong(const char* name, double got, const char* want) {
  return {StatusCode::kInvalidArgument, std::string(name) + ": got " + std::to_string(got) + "; want " + want};
}

}  // namespace

Status check_sampling(const SamplingParams& params) {
  if (params.max_tokens < 1) return wrong("max_tokens", static_cast<double>(params.max_tokens), "at least 1");
  if (!(params.temperature >= 0) || std::isinf(params.temperature))
    return wrong("temperature", params.temperature, "0 (greedy) or a positive number");
  if (!(params.top_p > 0 && params.top_p <= 1)) return wrong("top_p", params.top_p, "above 0, at most 1");
  if (params.top_k < 0) return wrong("top_k", static_cast<double>(params.top_k), "0 (all) or more");
  return {};
}

double Sampler::uniform() { return static_cast<double>(split_mix(state_ += kSplitMixStep) >> 11) * 0x1p-53; }

int32_t Sampler::choose(const float* logits, int64_t vocab) {
  if (params_.temperature == 0) return static_cast<int32_t>(std::max_element(logits, logits + vocab) - logits);
  std::vector<int32_t> order(static_cast<size_t>(vocab));
  std::iota(order.begin(), order.end(), 0);
  const auto better = [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
  if (params_.top_k > 0 && params_.top_k < vocab) {
    std::partial_sort(order.begin(), order.begin() + params_.top_k, order.end(), better);
    order.resize(static_cast<size_t>(params_.top_k));
  } else {
    std::sort(order.begin(), order.end(), better);
  }
  std::vector<double> weights;
  double total = 0;
  for (int32_t token : order) {
    weights.push_back(std::exp((static_cast<double>(logits[token]) - logits[order[0]]) / params_.temperature));
    total += weights.back();
  }
  size_t kept = 0;
  double mass = 0;
  while (kept < weights.size() && mass < params_.top_p * total) mass += weights[kept++];
  double pick = uniform() * mass;
  for (size_t i = 0; i < kept; ++i) {
    pick -= weights[i];
    if (pick < 0) return order[i];
  }
  return order[kept - 1];
}

}  // namespace flashmla::runner
