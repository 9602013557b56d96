// Choosing the next token from its logits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "flashmla/status.h"

namespace flashmla::runner {

struct SamplingParams {
  int64_t max_tokens = 256;
  double temperature = 0;  // 0: always the most likely token (greedy)
  double top_p = 1;        // smallest set of tokens with at least this much probability
  int64_t top_k = 0;       // most likely tokens that may be chosen; 0: all
  uint64_t seed = 0;
  std::vector<std::string> stop{};        // texts that end the answer; not part of it
  std::vector<int32_t> stop_token_ids{};  // beside the model's own end tokens
  bool ignore_eos = false;                // for measurements: always max_tokens tokens
};

// kInvalidArgument names the value, what is wanted and what was got.
Status check_sampling(const SamplingParams& params);

// Reproducible: the same seed and logits give the same tokens. (In fp32 the logits do not depend on what else is in the
// batch; with bf16 or int8 weights they may by a rounding.)
class Sampler {
 public:
  explicit Sampler(const SamplingParams& params) : params_(params), state_(params.seed) {}
  int32_t choose(const float* logits, int64_t vocab);

 private:
  double uniform();  // in [0, 1)

  SamplingParams params_;
  uint64_t state_;
};

}  // namespace flashmla::runner
