// The router's rules, from the formulas of docs/running-models.md, in double.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "runner/model/moe.h"

namespace flashmla::runner {
namespace {

ModelConfig v3(int64_t experts, int64_t groups, int64_t kept, int64_t per_token) {
  ModelConfig config;
  config.routed_experts = experts;
  config.groups = groups;
  config.groups_per_token = kept;
  config.experts_per_token = per_token;
  config.topk_method = TopkMethod::kNoauxTc;
  config.scoring = Scoring::kSigmoid;
  config.norm_topk_prob = true;
  config.routed_scaling = 2.5;
  return config;
}

std::vector<Choice> routed(const ModelConfig& config, const std::vector<float>& bias,
                           const std::vector<float>& logits) {
  std::vector<Choice> choices(static_cast<size_t>(config.experts_per_token));
  route(config, bias, logits.data(), choices.data());
  return choices;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

TEST(Route, TheBiasChoosesAndDoesNotWeigh) {
  const std::vector<float> logits{2, 1, 0, -1};
  const std::vector<Choice> choices = routed(v3(4, 1, 1, 2), {0, 0, 0, 5}, logits);
  EXPECT_EQ(choices[0].expert, 3);
  EXPECT_EQ(choices[1].expert, 0);
  const double total = sigmoid(-1) + sigmoid(2);
  EXPECT_NEAR(choices[0].weight, 2.5 * sigmoid(-1) / total, 1e-6);
  EXPECT_NEAR(choices[1].weight, 2.5 * sigmoid(2) / total, 1e-6);
}

// A group counts by the sum of its two best biased scores: here 1.0 + 0.9 against 1.2 + 0.1.
TEST(Route, GroupsCountByTheirTwoBest) {
  const std::vector<float> logits(6, 0);
  const std::vector<Choice> choices = routed(v3(6, 2, 1, 2), {0.5f, 0.4f, 0, 0.7f, -0.4f, -0.4f}, logits);
  EXPECT_EQ(choices[0].expert, 0);
  EXPECT_EQ(choices[1].expert, 1);
}

// Masked experts are out, also where every score that is left is below 0.
TEST(Route, ExpertsOfOtherGroupsAreNeverChosen) {
  const std::vector<float> bias{-3, -4, -5, -6, -7, -8};
  const std::vector<Choice> choices = routed(v3(6, 2, 1, 3), bias, std::vector<float>(6, 0));
  for (int32_t i = 0; i < 3; ++i) EXPECT_EQ(choices[i].expert, i);
}

TEST(Route, SoftmaxWeightsAreNormalisedOrScaled) {
  ModelConfig config = v3(4, 1, 1, 2);
  config.topk_method = TopkMethod::kGreedy;
  config.scoring = Scoring::kSoftmax;
  config.routed_scaling = 16;
  config.norm_topk_prob = false;
  const std::vector<float> logits{1, 3, 2, 0};
  double total = 0;
  for (float logit : logits) total += std::exp(static_cast<double>(logit));
  std::vector<Choice> choices = routed(config, {}, logits);
  EXPECT_EQ(choices[0].expert, 1);
  EXPECT_EQ(choices[1].expert, 2);
  EXPECT_NEAR(choices[0].weight, 16 * std::exp(3) / total, 1e-5);
  EXPECT_NEAR(choices[1].weight, 16 * std::exp(2) / total, 1e-5);
  config.norm_topk_prob = true;
  choices = routed(config, {}, logits);
  EXPECT_NEAR(choices[0].weight, std::exp(3) / (std::exp(3) + std::exp(2)), 1e-6);
}

// A group counts by its best expert alone.
TEST(Route, GroupLimitedGreedyTakesTheGroupsOfTheBest) {
  ModelConfig config = v3(6, 3, 2, 3);
  config.topk_method = TopkMethod::kGroupLimitedGreedy;
  config.scoring = Scoring::kSoftmax;
  config.norm_topk_prob = false;
  const std::vector<Choice> choices = routed(config, {}, {5, 0, 3.9f, 3.8f, 4, -9});
  EXPECT_EQ(choices[0].expert, 0);
  EXPECT_EQ(choices[1].expert, 4);
  EXPECT_EQ(choices[2].expert, 1);  // 2 and 3 are better, but their group is not among the two best
}

}  // namespace
}  // namespace flashmla::runner
