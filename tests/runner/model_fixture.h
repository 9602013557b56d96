// A model of tests/fixtures/models: its weights by the formula of tools/make_model_fixtures.py, what transformers
// computed, and ways to run it.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint_files.h"
#include "runner/model/model.h"

namespace flashmla::runner {

// What one run gave, at every position of every prompt.
struct ModelRun {
  std::vector<std::vector<float>> logits;                  // [prompt][positions * vocab]
  std::vector<std::vector<std::vector<float>>> hidden;     // [prompt][layer][positions * hidden], before each layer
  std::vector<std::vector<std::vector<int32_t>>> experts;  // [prompt][moe layer][positions * experts_per_token]
};

struct RunOptions {
  AttentionForm form = AttentionForm::kMqa;
  int64_t chunk = 1 << 20;  // new tokens of a step
  bool batched = false;     // all prompts in each step, else one after the other
  std::string backend{};
  int shards = 1;  // files of the checkpoint; more than one come with an index
};

struct RowDistances {
  double distance = 0;
  int64_t compared = 0;  // rows, of
  int64_t rows = 0;
};

class ModelFixture {
 public:
  explicit ModelFixture(const std::string& name);

  const ModelConfig& config() const { return config_; }
  const nlohmann::json& expected(DType dtype) const { return json_.at(dtype == DType::kFloat32 ? "fp32" : "bf16"); }
  // "F32", "BF16"; the projections of an FP8 model are e4m3 with scales in both.
  std::vector<TestTensor> tensors(const std::string& dtype) const;

  using Change = std::function<void(ModelConfig& config, Weights& weights)>;
  // Loads the checkpoint that `tensors` are written as, changes it, and runs the prompts.
  ModelRun run(const std::vector<TestTensor>& tensors, DType cache_dtype, const RunOptions& options,
               const Change& change = {}) const;

  // Largest |got - want| over largest |want|, of the logits at the fixture's positions.
  double logit_error(const ModelRun& run, DType dtype) const;
  // ||got - want|| / ||want|| to the fp32 logits, over the rows whose experts are those of fp32: in bf16 a near tie may
  // fall the other way, and then another function is computed (by transformers too).
  RowDistances logit_distance(const ModelRun& run) const;
  double hidden_error(const ModelRun& run, DType dtype) const;
  bool same_argmax(const ModelRun& run, DType dtype) const;
  // Router choices of all positions that differ, as sets.
  int64_t different_choices(const ModelRun& run, DType dtype) const;

 private:
  using Visit = std::function<void(const float* got, const nlohmann::json& want)>;
  bool same_experts(const ModelRun& run, DType dtype, size_t layer, size_t prompt, size_t position) const;
  void for_each_logit_row(const ModelRun& run, DType dtype, const Visit& visit) const;

  nlohmann::json json_;
  ModelConfig config_;
  std::vector<std::vector<int32_t>> prompts_;
};

}  // namespace flashmla::runner
