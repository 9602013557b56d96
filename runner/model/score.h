// Logits of given tokens, and what they say of a text.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "runner/model/loading.h"

namespace flashmla::runner {

struct ScoreOptions {
  StepOptions step{};
  int64_t page_size = 64;
  int64_t chunk = 256;  // tokens of one step
};

// Calls visit(position, logits [vocab]) for every token in turn; logits at `position` are for the token after it.
// kInvalidArgument: no token, more than the model has positions, or one outside the vocabulary.
Status visit_logits(const LoadedModel& loaded, const std::vector<int32_t>& tokens, const ScoreOptions& options,
                    const std::function<void(int64_t position, const float* logits)>& visit);

struct Perplexity {
  int64_t predicted = 0;  // tokens that had one before them
  double mean_nll = 0;    // of these, natural logarithm
};

// In windows of `window` tokens, each predicted from its window alone.
Result<Perplexity> text_perplexity(const LoadedModel& loaded, const std::vector<int32_t>& tokens, int64_t window,
                                   const ScoreOptions& options, const std::function<void(double fraction)>& progress);

}  // namespace flashmla::runner
