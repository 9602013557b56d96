#include "runner/checkpoint/model_size.h"

#include <gtest/gtest.h>

#include "checkpoint_files.h"

namespace flashmla::runner {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr int64_t kGB = 1'000'000'000;

const PartSize& part(const ModelSize& size, Part part) { return size.parts[static_cast<size_t>(part)]; }

TEST(ModelSize, V2Lite) {
  const ModelSize size = model_size(config_of(v2_lite_config()));
  EXPECT_EQ(size.all.tensors, 5291);
  EXPECT_EQ(size.all.parameters, 15'706'484'224);
  EXPECT_EQ(size.all.stored_bytes, 31'412'968'448);
  EXPECT_NEAR(static_cast<double>(size.active_parameters), 2.451e9, 0.001e9);
  EXPECT_EQ(part(size, Part::kEmbedding).parameters, 209'715'200);
  EXPECT_EQ(part(size, Part::kHead).parameters, 209'715'200);
  EXPECT_EQ(part(size, Part::kAttention).parameters, 27 * 13'762'560);
  EXPECT_EQ(part(size, Part::kDenseMlp).parameters, 67'239'936);
  EXPECT_EQ(part(size, Part::kRoutedExperts).parameters, int64_t{26} * 64 * 8'650'752);
  EXPECT_EQ(part(size, Part::kSharedExperts).parameters, 26 * 17'301'504);
  EXPECT_EQ(part(size, Part::kRouter).parameters, 26 * 131'072);
  EXPECT_EQ(part(size, Part::kNorms).parameters, 27 * (2 * 2048 + 512) + 2048);
}

TEST(ModelSize, V2) {
  const ModelSize size = model_size(config_of(v2_config()));
  EXPECT_NEAR(static_cast<double>(size.all.parameters), 236e9, 0.5e9);
  EXPECT_NEAR(static_cast<double>(size.active_parameters), 21e9, 0.5e9);
}

// R1 has V3's configuration.
TEST(ModelSize, V3AndR1) {
  const ModelSize size = model_size(config_of(v3_config()));
  EXPECT_NEAR(static_cast<double>(size.all.parameters), 671.03e9, 0.005e9);
  EXPECT_NEAR(static_cast<double>(size.active_parameters), 36.62e9, 0.01e9);
  // One byte a projection's value and 4 for each block of 128 x 128; embedding, head and routers in two.
  const int64_t two_bytes = part(size, Part::kEmbedding).parameters + part(size, Part::kHead).parameters +
                            part(size, Part::kRouter).parameters + part(size, Part::kNorms).parameters;
  const double scales = static_cast<double>(size.all.parameters) * 4 / (128 * 128);
  EXPECT_NEAR(static_cast<double>(size.all.stored_bytes), static_cast<double>(size.all.parameters + two_bytes) + scales,
              2e6);
}

TEST(ModelSize, BytesOfInt8) {
  const ModelSize size = model_size(config_of(v2_lite_config()));
  const int64_t in_bf16 = part(size, Part::kEmbedding).parameters + part(size, Part::kRouter).parameters;
  const int64_t int8 = size.all.int8_bytes;
  EXPECT_GT(int8, size.all.parameters + in_bf16);
  EXPECT_LT(int8, (size.all.parameters + in_bf16) * 1003 / 1000);  // scales of rows
}

TEST(ModelSize, RolesAddUp) {
  for (const std::string& text : {v2_lite_config(), v3_config()}) {
    const ModelConfig config = config_of(text);
    int64_t tensors = 0;
    int64_t parameters = 0;
    for (const RoleSize& line : role_sizes(config)) {
      tensors += line.size.tensors;
      parameters += line.size.parameters;
      EXPECT_EQ(line.size.parameters, line.size.tensors * line.rows * (line.cols == 0 ? 1 : line.cols));
    }
    EXPECT_EQ(tensors, model_size(config).all.tensors);
    EXPECT_EQ(parameters, model_size(config).all.parameters);
  }
}

TEST(CacheBytes, Published) {
  const CacheBytes lite = cache_bytes_per_token(config_of(v2_lite_config()));
  EXPECT_EQ(lite.mla_bf16, 31'104);
  EXPECT_EQ(lite.mla_fp8, 27 * 656);
  EXPECT_EQ(lite.mha_bf16, 276'480);
  const CacheBytes v3 = cache_bytes_per_token(config_of(v3_config()));
  EXPECT_EQ(v3.mla_bf16, 61 * 1'152);
  EXPECT_EQ(v3.mla_fp8, 61 * 656);
  EXPECT_EQ(v3.mha_bf16, 61 * 81'920);
}

TEST(CacheBytes, NoFp8FormatForOddLatents) { EXPECT_EQ(cache_bytes_per_token(config_of(tiny_v2_config())).mla_fp8, 0); }

FitQuestion question() {
  FitQuestion q;
  q.memory = 1000;
  q.weight_bytes = 900;
  q.attention_bytes = 100;
  q.cache_bytes = 3;
  q.tokens_a_request = 10;
  return q;
}

TEST(Fit, OneDevice) {
  for (const Fit& fit : {fit_tensor_parallel(question()), fit_data_parallel(question())}) {
    EXPECT_EQ(fit.weights_on_each, 900);
    EXPECT_EQ(fit.missing_bytes, 0);
    EXPECT_EQ(fit.tokens, 33);
    EXPECT_EQ(fit.requests, 3);
  }
}

TEST(Fit, TooLargeByHowMuch) {
  FitQuestion q = question();
  q.memory = 880;
  EXPECT_EQ(fit_tensor_parallel(q).missing_bytes, 20);
  EXPECT_EQ(fit_tensor_parallel(q).tokens, 0);
  q.memory = 900;  // to the byte
  EXPECT_EQ(fit_tensor_parallel(q).missing_bytes, 0);
  EXPECT_EQ(fit_tensor_parallel(q).tokens, 0);
}

TEST(Fit, SeveralDevices) {
  FitQuestion q = question();
  q.gpus = 4;
  const Fit tensor = fit_tensor_parallel(q);
  EXPECT_EQ(tensor.weights_on_each, 225);
  EXPECT_EQ(tensor.tokens, 775 / 3);  // every device holds the same cache
  EXPECT_EQ(tensor.requests, 25);
  const Fit data = fit_data_parallel(q);
  EXPECT_EQ(data.weights_on_each, 300);
  EXPECT_EQ(data.tokens, 4 * (700 / 3));
  EXPECT_EQ(data.requests, 4 * 23);
}

TEST(Fit, V3OnEightDevices) {
  const ModelConfig config = config_of(v3_config());
  const ModelSize size = model_size(config);
  FitQuestion q;
  q.memory = 141 * kGiB;
  q.gpus = 8;
  q.weight_bytes = size.all.stored_bytes;
  q.attention_bytes = part(size, Part::kAttention).stored_bytes;
  q.cache_bytes = cache_bytes_per_token(config).mla_bf16;
  q.tokens_a_request = config.max_position;
  EXPECT_EQ(fit_tensor_parallel(q).missing_bytes, 0);
  EXPECT_GT(fit_tensor_parallel(q).requests, 0);
  q.memory = 80 * kGB;
  const int64_t missing = fit_tensor_parallel(q).missing_bytes;
  EXPECT_EQ(missing, (size.all.stored_bytes + 7) / 8 - 80 * kGB);
  EXPECT_GT(missing, 0);
}

}  // namespace
}  // namespace flashmla::runner
