#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint_files.h"
#include "runner/checkpoint/model_config.h"

namespace flashmla::runner {
namespace {

TEST(RopeScale, PublishedSoftmaxScales) {
  EXPECT_NEAR(config_of(v2_lite_config()).attention_scale(), 0.1147213868, 5e-11);
  EXPECT_NEAR(config_of(v2_config()).attention_scale(), 0.1147213868, 5e-11);
  EXPECT_NEAR(config_of(v3_config()).attention_scale(), 0.1352337789, 5e-11);
}

TEST(RopeScale, PlainRopeHasNoFactor) {
  const ModelConfig c = config_of(with(v2_lite_config(), {{"rope_scaling", "null"}}));
  EXPECT_NEAR(c.attention_scale(), 0.0721687836, 5e-11);
  EXPECT_EQ(c.rope_amplitude(), 1);
  EXPECT_EQ(c.rope_frequencies()[0], 1);
  EXPECT_NEAR(c.rope_frequencies()[31], std::pow(10000.0, -62.0 / 64), 1e-12);
}

// factor 40, original context 4096, theta 10000: pairs up to 10 are untouched, from 23 on divided by 40.
TEST(RopeScale, PublishedFrequencies) {
  const std::vector<double> frequencies = config_of(v2_lite_config()).rope_frequencies();
  ASSERT_EQ(frequencies.size(), 32u);
  for (int i = 0; i < 32; ++i) {
    const double plain = std::pow(10000.0, -2.0 * i / 64);
    const double ramp = i <= 10 ? 0 : i >= 23 ? 1 : (i - 10) / 13.0;
    const double want = plain * (1 - ramp) + plain / 40 * ramp;
    EXPECT_NEAR(frequencies[static_cast<size_t>(i)] / want, 1, 1e-14) << "pair " << i;
  }
}

std::string yarn(const std::string& more) {
  return with(v2_lite_config(),
              {{"rope_scaling", R"({"type": "yarn", "original_max_position_embeddings": 4096, )" + more + "}"}});
}

TEST(RopeScale, AmplitudeWhereTheMscalesDiffer) {
  EXPECT_EQ(config_of(v2_lite_config()).rope_amplitude(), 1);
  const ModelConfig c = config_of(yarn(R"("factor": 40, "mscale": 1.0, "mscale_all_dim": 0.5)"));
  const double one = 0.1 * std::log(40.0) + 1;
  const double half = 0.05 * std::log(40.0) + 1;
  EXPECT_NEAR(c.rope_amplitude(), one / half, 1e-15);
  EXPECT_NEAR(c.attention_scale(), half * half / std::sqrt(192.0), 1e-15);
}

TEST(RopeScale, WithoutMscaleAllDimOnlyTheAmplitudeChanges) {
  const ModelConfig c = config_of(yarn(R"("factor": 40)"));
  EXPECT_NEAR(c.rope_amplitude(), 0.1 * std::log(40.0) + 1, 1e-15);
  EXPECT_NEAR(c.attention_scale(), 1 / std::sqrt(192.0), 1e-15);
}

TEST(RopeScale, FactorOneChangesNothing) {
  const ModelConfig c = config_of(yarn(R"("factor": 1, "mscale": 0.7, "mscale_all_dim": 0.9)"));
  EXPECT_EQ(c.rope_amplitude(), 1);
  EXPECT_NEAR(c.attention_scale(), 1 / std::sqrt(192.0), 1e-15);
}

// A short original context: both ends of the ramp meet.
TEST(RopeScale, RampOfNoWidth) {
  const ModelConfig c = config_of(with(
      tiny_v2_config(), {{"rope_scaling", R"({"type": "yarn", "factor": 4, "original_max_position_embeddings": 4})"}}));
  const std::vector<double> frequencies = c.rope_frequencies();
  EXPECT_EQ(frequencies[0], 1);
  EXPECT_NEAR(frequencies[1], 0.01 / 4, 1e-15);
}

}  // namespace
}  // namespace flashmla::runner
