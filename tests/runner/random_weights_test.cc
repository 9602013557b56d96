#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "checkpoint_files.h"
#include "runner/checkpoint/machine_memory.h"
#include "runner/checkpoint/weights.h"

namespace flashmla::runner {
namespace {

Weights make(const ModelConfig& config, uint64_t seed, WeightPolicy policy, int32_t threads) {
  LoadOptions options;
  options.policy = policy;
  options.threads = threads;
  Result<Weights> weights = random_weights(config, seed, options);
  EXPECT_TRUE(weights.ok()) << weights.status().text();
  return weights.ok() ? std::move(weights).value() : Weights();
}

// All matrices and vectors in the order of a forward pass.
std::vector<std::vector<float>> all_values(const ModelConfig& config, Weights& weights) {
  std::vector<std::vector<float>> result;
  const auto matrix = [&result](const Matrix& m) {
    std::vector<float> values(static_cast<size_t>(m.rows * m.cols));
    for (int64_t r = 0; r < m.rows; ++r) read_row(m, r, values.data() + r * m.cols);
    result.push_back(std::move(values));
  };
  const auto mlp = [&matrix](const Mlp& m) {
    if (!m.gate.given()) return;
    matrix(m.gate);
    matrix(m.up);
    matrix(m.down);
  };
  matrix(weights.embedding);
  for (const Layer& layer : weights.layers) {
    const Attention& a = layer.attention;
    for (const auto* m : {&a.q, &a.q_a, &a.q_b, &a.kv_a, &a.kv_b, &a.o, &layer.router}) {
      if (m->given()) matrix(*m);
    }
    for (const auto* v : {&layer.input_norm, &a.kv_a_norm, &layer.router_bias}) result.push_back(*v);
    mlp(layer.dense);
    for (const Mlp& expert : layer.experts) mlp(expert);
    mlp(layer.shared);
  }
  matrix(weights.head);
  EXPECT_EQ(config.layers, static_cast<int64_t>(weights.layers.size()));
  return result;
}

TEST(RandomWeights, TheSameForAnyNumberOfThreads) {
  const ModelConfig config = config_of(tiny_v3_config());
  for (WeightPolicy policy : {WeightPolicy::kAsStored, WeightPolicy::kInt8}) {
    Weights one = make(config, 7, policy, 1);
    Weights three = make(config, 7, policy, 3);
    Weights other = make(config, 8, policy, 1);
    const auto values = all_values(config, one);
    EXPECT_EQ(values, all_values(config, three));
    EXPECT_NE(values, all_values(config, other));
  }
}

TEST(RandomWeights, NoTwoTensorsOrRowsAreEqual) {
  const ModelConfig config = config_of(tiny_v2_config());
  Weights weights = make(config, 1, WeightPolicy::kAsStored, 1);
  EXPECT_NE(std::memcmp(weights.embedding.data, weights.head.data, 100), 0);
  const Mlp& a = weights.layers[1].experts[0];
  EXPECT_NE(std::memcmp(a.gate.data, a.up.data, 100), 0);
  EXPECT_NE(std::memcmp(a.gate.data, weights.layers[1].experts[1].gate.data, 100), 0);
  EXPECT_NE(std::memcmp(a.gate.data, static_cast<const char*>(a.gate.data) + 2 * a.gate.cols, 40), 0);
}

void expect_normal(const Matrix& matrix) {
  std::vector<float> row(static_cast<size_t>(matrix.cols));
  double sum = 0;
  double squares = 0;
  double fourth = 0;
  double neighbours = 0;
  for (int64_t r = 0; r < matrix.rows; ++r) {
    read_row(matrix, r, row.data());
    float before = 0;
    for (float& value : row) {
      const double z = value * std::sqrt(static_cast<double>(matrix.cols));
      sum += z;
      squares += z * z;
      fourth += z * z * z * z;
      neighbours += z * before;
      before = static_cast<float>(z);
    }
  }
  const auto count = static_cast<double>(matrix.rows * matrix.cols);
  EXPECT_NEAR(sum / count, 0, 5 / std::sqrt(count));
  EXPECT_NEAR(squares / count, 1, 0.02);
  EXPECT_NEAR(fourth / count, 3, 0.1);
  EXPECT_NEAR(neighbours / count, 0, 5 / std::sqrt(count));
}

TEST(RandomWeights, NormalWithTheDeviationOfTheWidth) {
  const ModelConfig config = config_of(with(tiny_v2_config(), {{"vocab_size", "4096"}, {"hidden_size", "96"}}));
  for (WeightPolicy policy : {WeightPolicy::kAsStored, WeightPolicy::kInt8}) {
    const Weights weights = make(config, 3, policy, 2);
    EXPECT_EQ(weights.head.type, policy == WeightPolicy::kInt8 ? WeightType::kInt8 : WeightType::kBF16);
    EXPECT_EQ(weights.embedding.type, WeightType::kBF16);
    expect_normal(weights.head);
    expect_normal(weights.embedding);
    EXPECT_EQ(weights.norm, std::vector<float>(96, 1.0f));
  }
}

TEST(RandomWeights, TiedHeadSharesTheEmbedding) {
  const ModelConfig config = config_of(with(tiny_v2_config(), {{"tie_word_embeddings", "true"}}));
  const Weights weights = make(config, 3, WeightPolicy::kAsStored, 1);
  EXPECT_EQ(weights.head.data, weights.embedding.data);
}

// Refused before a byte is taken: the kernel would promise the memory and end the process later.
TEST(RandomWeights, MoreThanTheMachineHas) {
  const ModelConfig config = config_of(v3_config());
  const Result<Weights> weights = random_weights(config, 1, {});
  ASSERT_FALSE(weights.ok()) << "a machine with more than 1.3 TB of memory";
  EXPECT_EQ(weights.status().code(), StatusCode::kOutOfMemory);
  EXPECT_NE(weights.status().text().find("they need 1342."), std::string::npos) << weights.status().text();
  EXPECT_NE(weights.status().text().find("int8 needs half"), std::string::npos) << weights.status().text();
}

TEST(MachineMemory, IsPlausible) {
  EXPECT_GT(available_memory(), int64_t{16} << 20);
  EXPECT_GE(total_memory(), available_memory());
  EXPECT_LT(total_memory(), int64_t{1} << 50);
}

}  // namespace
}  // namespace flashmla::runner
