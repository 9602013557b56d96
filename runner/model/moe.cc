#include "runner/model/moe.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "runner/model/elementwise.h"

namespace flashmla::runner {

namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

std::vector<float> expert_scores(const ModelConfig& config, const float* logits) {
  std::vector<float> scores(logits, logits + config.routed_experts);
  if (config.scoring == Scoring::kSigmoid) {
    for (float& score : scores) score = 1.0f / (1.0f + std::exp(-score));
    return scores;
  }
  const float most = *std::ranges::max_element(scores);
  float total = 0;
  for (float& score : scores) total += score = std::exp(score - most);
  for (float& score : scores) score /= total;
  return scores;
}

// Indices of the `count` largest values, largest first; of equal ones the first.
std::vector<int32_t> largest(const std::vector<float>& values, int64_t count) {
  std::vector<int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  const auto better = [&](int32_t a, int32_t b) { return values[a] != values[b] ? values[a] > values[b] : a < b; };
  std::partial_sort(order.begin(), order.begin() + count, order.end(), better);
  order.resize(static_cast<size_t>(count));
  return order;
}

// Masks every group of experts but the best ones. A group's score is its best expert's, for noaux_tc the sum of its two
// best.
void keep_best_groups(const ModelConfig& config, std::vector<float>& scores) {
  const int64_t size = config.routed_experts / config.groups;
  std::vector<float> group_scores;
  for (int64_t g = 0; g < config.groups; ++g) {
    const std::vector<float> group(scores.begin() + g * size, scores.begin() + (g + 1) * size);
    const std::vector<int32_t> best = largest(group, std::min<int64_t>(size, 2));
    float score = group[best[0]];
    if (config.topk_method == TopkMethod::kNoauxTc && best.size() > 1) score += group[best[1]];
    group_scores.push_back(score);
  }
  std::vector<bool> kept(static_cast<size_t>(config.groups), false);
  for (int32_t g : largest(group_scores, config.groups_per_token)) kept[g] = true;
  for (int64_t e = 0; e < config.routed_experts; ++e) {
    if (!kept[e / size]) scores[e] = kMasked;
  }
}

// Tokens of one expert: gathered inputs, hidden values, outputs.
struct ExpertWork {
  std::vector<int64_t> slots;  // token * experts_per_token + place among the token's choices
  std::vector<float> x, gate, up, y;
};

}  // namespace

void route(const ModelConfig& config, const std::vector<float>& bias, const float* logits, Choice* choices) {
  const std::vector<float> scores = expert_scores(config, logits);
  std::vector<float> biased = scores;
  for (size_t e = 0; e < bias.size(); ++e) biased[e] += bias[e];
  if (config.topk_method != TopkMethod::kGreedy) keep_best_groups(config, biased);
  const std::vector<int32_t> best = largest(biased, config.experts_per_token);
  float total = 0;
  for (int32_t expert : best) total += scores[expert];
  // DeepSeek-V3 normalises and scales, V2's own code does one or the other.
  const bool scaled = config.scoring == Scoring::kSigmoid || !config.norm_topk_prob;
  float factor = scaled ? static_cast<float>(config.routed_scaling) : 1.0f;
  if (config.norm_topk_prob) factor /= total + 1e-20f;
  for (size_t i = 0; i < best.size(); ++i) choices[i] = {best[i], scores[best[i]] * factor};
}

void dense_mlp(const Mlp& mlp, const float* x, int64_t tokens, float* y, int32_t threads) {
  const int64_t width = mlp.gate.rows;
  std::vector<float> gate(static_cast<size_t>(tokens * width));
  std::vector<float> up(gate.size());
  const Product products[] = {{&mlp.gate, x, mlp.gate.cols, tokens, gate.data(), width},
                              {&mlp.up, x, mlp.up.cols, tokens, up.data(), width}};
  multiply_all(products, 2, threads);
  silu_and_multiply(gate.data(), up.data(), tokens * width);
  multiply(mlp.down, gate.data(), width, tokens, y, mlp.down.rows, threads);
}

void moe_mlp(const ModelConfig& config, const Layer& layer, const float* x, int64_t tokens, float* y,
             std::vector<Choice>& choices, int32_t threads) {
  const int64_t per_token = config.experts_per_token;
  const int64_t hidden = config.hidden;
  std::vector<float> logits(static_cast<size_t>(tokens * config.routed_experts));
  multiply(layer.router, x, hidden, tokens, logits.data(), config.routed_experts, threads);
  choices.resize(static_cast<size_t>(tokens * per_token));
  std::vector<ExpertWork> works(static_cast<size_t>(config.routed_experts));
  for (int64_t t = 0; t < tokens; ++t) {
    Choice* chosen = choices.data() + t * per_token;
    route(config, layer.router_bias, logits.data() + t * config.routed_experts, chosen);
    for (int64_t i = 0; i < per_token; ++i) works[chosen[i].expert].slots.push_back(t * per_token + i);
  }

  // The shared experts are one more expert that every token chose.
  const bool shared = layer.shared.gate.given();
  std::vector<float> shared_gate, shared_up;
  std::vector<Product> first, second;
  if (shared) {
    const int64_t width = layer.shared.gate.rows;
    shared_gate.resize(static_cast<size_t>(tokens * width));
    shared_up.resize(shared_gate.size());
    first.push_back({&layer.shared.gate, x, hidden, tokens, shared_gate.data(), width});
    first.push_back({&layer.shared.up, x, hidden, tokens, shared_up.data(), width});
    second.push_back({&layer.shared.down, shared_gate.data(), width, tokens, y, hidden});
  } else {
    std::fill_n(y, tokens * hidden, 0.0f);
  }
  for (size_t e = 0; e < works.size(); ++e) {
    ExpertWork& work = works[e];
    const auto count = static_cast<int64_t>(work.slots.size());
    if (count == 0) continue;
    const Mlp& mlp = layer.experts[e];
    const int64_t width = mlp.gate.rows;
    work.x.resize(static_cast<size_t>(count * hidden));
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(work.x.data() + i * hidden, x + work.slots[i] / per_token * hidden,
                  sizeof(float) * static_cast<size_t>(hidden));
    }
    work.gate.resize(static_cast<size_t>(count * width));
    work.up.resize(work.gate.size());
    work.y.resize(work.x.size());
    first.push_back({&mlp.gate, work.x.data(), hidden, count, work.gate.data(), width});
    first.push_back({&mlp.up, work.x.data(), hidden, count, work.up.data(), width});
    second.push_back({&mlp.down, work.gate.data(), width, count, work.y.data(), hidden});
  }
  multiply_all(first.data(), static_cast<int64_t>(first.size()), threads);
  if (shared) silu_and_multiply(shared_gate.data(), shared_up.data(), static_cast<int64_t>(shared_gate.size()));
  for (ExpertWork& work : works)
    silu_and_multiply(work.gate.data(), work.up.data(), static_cast<int64_t>(work.gate.size()));
  multiply_all(second.data(), static_cast<int64_t>(second.size()), threads);

  // Added up in the order of each token's choices, so that the batch does not show in the bits.
  std::vector<const float*> parts(choices.size());
  for (const ExpertWork& work : works) {
    for (size_t i = 0; i < work.slots.size(); ++i)
      parts[work.slots[i]] = work.y.data() + static_cast<int64_t>(i) * hidden;
  }
  for (int64_t slot = 0; slot < tokens * per_token; ++slot) {
    float* to = y + slot / per_token * hidden;
    for (int64_t d = 0; d < hidden; ++d) to[d] += choices[slot].weight * parts[slot][d];
  }
}

}  // namespace flashmla::runner
