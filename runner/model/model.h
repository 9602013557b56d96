// A DeepSeek-V2/V3-architecture model: one step is one function over a batch of tokens.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runner/checkpoint/weights.h"
#include "runner/model/attention.h"
#include "runner/model/batch.h"
#include "runner/model/latent_cache.h"
#include "runner/model/moe.h"

namespace flashmla::runner {

struct StepOptions {
  AttentionForm form = AttentionForm::kAuto;
  std::string backend{};  // of flashmla: "reference", "cpu"; empty: chosen by the library
};

// What a step computed on the way, for tests and debugging.
struct StepTrace {
  std::vector<std::vector<float>> hidden;   // embedding, then after each layer: [tokens, hidden]
  std::vector<std::vector<Choice>> routed;  // of each layer: [tokens][experts_per_token]; empty for dense ones
};

class Model {
 public:
  // `threads` 0: all that the process may use.
  Model(ModelConfig config, Weights weights, int32_t threads);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelConfig& config() const { return config_; }
  int32_t threads() const { return threads_; }

  // Appends the batch's tokens to the cache and fills `logits`, [batch.logit_rows, vocab]. kInvalidArgument for a token
  // outside the vocabulary, kOutOfRange for logits that are not finite (damaged weights); what the attention refuses is
  // passed on.
  Status step(const Batch& batch, LatentCache& cache, const StepOptions& options, std::vector<float>& logits,
              StepTrace* trace = nullptr) const;

 private:
  Status check(const Batch& batch) const;

  ModelConfig config_;
  Weights weights_;
  int32_t threads_;
  Rope rope_;
  std::vector<AttentionLayer> attention_;
};

}  // namespace flashmla::runner
