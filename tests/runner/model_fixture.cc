#include "model_fixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <stdexcept>

namespace flashmla::runner {

namespace {

bool has(const std::string& name, const char* part) { return name.find(part) != std::string::npos; }

// As `exponent_of` of tools/make_model_fixtures.py.
int fixture_exponent(const TestTensor& tensor) {
  const std::string& name = tensor.name;
  const auto exponent = -static_cast<int>(std::nearbyint(std::log2(static_cast<double>(tensor.shape.back())) / 2));
  if (name.ends_with("mlp.gate.weight")) return exponent + 2;
  return has(name, "o_proj") || has(name, "down_proj") ? exponent - 2 : exponent;
}

// As `weight` there.
std::vector<float> fixture_values(const TestTensor& tensor) {
  const std::string& name = tensor.name;
  std::vector<float> result = test_values(name, element_count(tensor.shape));
  float factor = 1;
  float offset = 0;
  if (name.ends_with("norm.weight")) {
    factor = 0.5f;
    offset = 1;
  } else if (name.ends_with("correction_bias")) {
    factor = 0.125f;
  } else if (!has(name, "embed_tokens")) {
    factor = std::ldexp(1.0f, fixture_exponent(tensor));
  }
  for (float& value : result) value = offset + value * factor;
  return result;
}

// The bytes that test_values are made of.
std::string random_bytes(const std::string& name, int64_t count) {
  std::string bytes;
  for (float value : test_values(name, count)) bytes += static_cast<char>(static_cast<int>(value * 64) + 128);
  return bytes;
}

// As `fp8_weight` there: e4m3, and a scale of each 128 x 128 block.
TestTensor store_as_fp8(TestTensor& tensor) {
  tensor.dtype = "F8_E4M3";
  tensor.bytes = random_bytes(tensor.name, element_count(tensor.shape));
  for (char& byte : tensor.bytes) {
    if ((byte & 0x7f) == 0x7f) byte = static_cast<char>(byte - 1);  // that would be NaN
  }
  TestTensor scale{
      tensor.name + "_scale_inv", "F32", {(tensor.shape[0] + 127) / 128, (tensor.shape[1] + 127) / 128}, ""};
  std::vector<float> values;
  for (char byte : random_bytes(scale.name, element_count(scale.shape))) {
    values.push_back(
        std::ldexp(static_cast<float>(static_cast<unsigned char>(byte) + 192) / 256, fixture_exponent(tensor) - 7));
  }
  scale.bytes = encode("F32", values);
  return scale;
}

}  // namespace

ModelFixture::ModelFixture(const std::string& name) {
  std::ifstream file(std::string(FLASHMLA_FIXTURES) + "/models/" + name + ".json");
  json_ = nlohmann::json::parse(file);
  config_ = config_of(json_.at("config").dump());
  prompts_ = json_.at("prompts").get<std::vector<std::vector<int32_t>>>();
}

std::vector<TestTensor> ModelFixture::tensors(const std::string& dtype) const {
  std::vector<TestTensor> tensors = model_tensors(config_, dtype);
  std::vector<TestTensor> scales;
  for (TestTensor& tensor : tensors) {
    if (config_.fp8_weights && has(tensor.name, "_proj")) {
      scales.push_back(store_as_fp8(tensor));
    } else {
      tensor.bytes = encode(tensor.dtype, fixture_values(tensor));
    }
  }
  tensors.insert(tensors.end(), scales.begin(), scales.end());
  return tensors;
}

ModelRun ModelFixture::run(const std::vector<TestTensor>& tensors, DType cache_dtype, const RunOptions& options,
                           const Change& change) const {
  const TempFolder folder;
  write_text(folder.path() / "config.json", json_.at("config").dump());
  if (options.shards == 1) {
    write_checkpoint(folder.path(), tensors);
  } else {
    write_shards(folder.path(), tensors, options.shards);
  }
  Result<Weights> weights = load_weights(folder.text(), config_, {.threads = 2});
  if (!weights.ok()) throw std::runtime_error(weights.status().text());
  ModelConfig config = config_;
  if (change) change(config, weights.value());
  const Model model(config, std::move(weights).value(), 2);
  constexpr int64_t kPage = 16;
  Result<LatentCache> cache = LatentCache::make(config, cache_dtype, kPage, 64);
  EXPECT_TRUE(cache.ok());

  ModelRun result;
  const size_t count = prompts_.size();
  result.logits.resize(count);
  result.hidden.assign(count, std::vector<std::vector<float>>(static_cast<size_t>(config.layers)));
  result.experts.resize(count);
  std::vector<std::vector<int32_t>> pages(count);
  for (size_t p = 0; p < count; ++p) cache.value().reserve(pages[p], static_cast<int64_t>(prompts_[p].size()));
  const auto step = [&](const std::vector<size_t>& prompts, int64_t first) {
    Batch batch;
    for (size_t p : prompts) {
      const auto begin = static_cast<int64_t>(batch.tokens.size());
      const int64_t size = std::min(options.chunk, static_cast<int64_t>(prompts_[p].size()) - first);
      batch.tokens.insert(batch.tokens.end(), prompts_[p].begin() + first, prompts_[p].begin() + first + size);
      batch.sequences.push_back({.first_token = begin, .count = size, .cached = first, .pages = &pages[p]});
      for (int64_t i = 0; i < size; ++i) batch.logit_rows.push_back(begin + i);
    }
    std::vector<float> logits;
    StepTrace trace;
    const Status status =
        model.step(batch, cache.value(), {.form = options.form, .backend = options.backend}, logits, &trace);
    EXPECT_TRUE(status.ok()) << status.text();
    for (size_t s = 0; s < prompts.size(); ++s) {
      const SequenceChunk& chunk = batch.sequences[s];
      const auto take = [&](const auto& from, auto& to, int64_t width) {
        to.insert(to.end(), from.begin() + chunk.first_token * width,
                  from.begin() + (chunk.first_token + chunk.count) * width);
      };
      const size_t p = prompts[s];
      take(logits, result.logits[p], config.vocab);
      for (int64_t l = 0; l < config.layers; ++l) take(trace.hidden[l], result.hidden[p][l], config.hidden);
      size_t moe = 0;
      for (const std::vector<Choice>& routed : trace.routed) {
        if (routed.empty()) continue;
        if (result.experts[p].size() <= moe) result.experts[p].emplace_back();
        std::vector<int32_t> experts;
        for (const Choice& choice : routed) experts.push_back(choice.expert);
        take(experts, result.experts[p][moe++], config.experts_per_token);
      }
    }
  };
  const auto length = static_cast<int64_t>(prompts_[0].size());
  std::vector<std::vector<size_t>> groups;
  for (size_t p = 0; p < count; ++p) groups.push_back({p});
  if (options.batched) groups = {{0, 1}};
  for (const std::vector<size_t>& group : groups) {
    for (int64_t first = 0; first < length; first += options.chunk) step(group, first);
  }
  return result;
}

void ModelFixture::for_each_logit_row(const ModelRun& run, DType dtype, const Visit& visit) const {
  const nlohmann::json& logits = expected(dtype).at("logits");
  const auto positions = json_.at("positions").get<std::vector<int64_t>>();
  for (size_t p = 0; p < prompts_.size(); ++p) {
    for (size_t i = 0; i < positions.size(); ++i)
      visit(run.logits[p].data() + positions[i] * config_.vocab, logits[p][i]);
  }
}

double ModelFixture::logit_error(const ModelRun& run, DType dtype) const {
  double error = 0, most = 0;
  for_each_logit_row(run, dtype, [&](const float* got, const nlohmann::json& want) {
    for (int64_t v = 0; v < config_.vocab; ++v) {
      const double difference = std::fabs(got[v] - want[v].get<double>());
      error = std::isnan(difference) ? INFINITY : std::max(error, difference);
      most = std::max(most, std::fabs(want[v].get<double>()));
    }
  });
  return error / most;
}

RowDistances ModelFixture::logit_distance(const ModelRun& run) const {
  const nlohmann::json& want = expected(DType::kFloat32);
  const auto positions = json_.at("positions").get<std::vector<int64_t>>();
  RowDistances result;
  double error = 0, norm = 0;
  for (size_t p = 0; p < prompts_.size(); ++p) {
    for (size_t i = 0; i < positions.size(); ++i) {
      ++result.rows;
      bool routed_alike = true;
      for (size_t l = 0; l < want["experts"].size(); ++l) {
        routed_alike = routed_alike && same_experts(run, DType::kFloat32, l, p, static_cast<size_t>(positions[i]));
      }
      if (!routed_alike) continue;
      ++result.compared;
      for (int64_t v = 0; v < config_.vocab; ++v) {
        const double value = want["logits"][p][i][v].get<double>();
        error += std::pow(run.logits[p][positions[i] * config_.vocab + v] - value, 2);
        norm += value * value;
      }
    }
  }
  result.distance = std::sqrt(error / norm);
  return result;
}

double ModelFixture::hidden_error(const ModelRun& run, DType dtype) const {
  const nlohmann::json& hidden = expected(dtype).at("hidden");
  const auto positions = json_.at("positions").get<std::vector<int64_t>>();
  double worst = 0;
  for (int64_t l = 0; l < config_.layers; ++l) {
    double error = 0, most = 0;
    for (size_t p = 0; p < prompts_.size(); ++p) {
      for (size_t i = 0; i < positions.size(); ++i) {
        for (int64_t d = 0; d < config_.hidden; ++d) {
          const double want = hidden[l][p][i][d].get<double>();
          error = std::max(error, std::fabs(run.hidden[p][l][positions[i] * config_.hidden + d] - want));
          most = std::max(most, std::fabs(want));
        }
      }
    }
    worst = std::max(worst, error / most);
  }
  return worst;
}

bool ModelFixture::same_argmax(const ModelRun& run, DType dtype) const {
  bool same = true;
  for_each_logit_row(run, dtype, [&](const float* got, const nlohmann::json& want) {
    const auto values = want.get<std::vector<float>>();
    const auto likeliest = std::max_element(values.begin(), values.end()) - values.begin();
    same = same && std::max_element(got, got + config_.vocab) - got == likeliest;
  });
  return same;
}

bool ModelFixture::same_experts(const ModelRun& run, DType dtype, size_t layer, size_t prompt, size_t position) const {
  const auto want = expected(dtype).at("experts")[layer][prompt][position].get<std::set<int32_t>>();
  const int64_t per_token = config_.experts_per_token;
  const auto* got = run.experts[prompt][layer].data() + static_cast<int64_t>(position) * per_token;
  return want == std::set<int32_t>(got, got + per_token);
}

int64_t ModelFixture::different_choices(const ModelRun& run, DType dtype) const {
  int64_t different = 0;
  for (size_t l = 0; l < expected(dtype).at("experts").size(); ++l) {
    for (size_t p = 0; p < prompts_.size(); ++p) {
      for (size_t t = 0; t < prompts_[p].size(); ++t) different += same_experts(run, dtype, l, p, t) ? 0 : 1;
    }
  }
  return different;
}

}  // namespace flashmla::runner
