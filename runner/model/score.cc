#include "runner/model/score.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace flashmla::runner {

Status visit_logits(const LoadedModel& loaded, const std::vector<int32_t>& tokens, const ScoreOptions& options,
                    const std::function<void(int64_t position, const float* logits)>& visit) {
  const ModelConfig& config = loaded.model->config();
  const auto count = static_cast<int64_t>(tokens.size());
  if (count < 1 || count > config.max_position) {
    return {StatusCode::kInvalidArgument, "tokens: got " + std::to_string(count) + "; want 1 .. " +
                                              std::to_string(config.max_position) + " (the model's positions)"};
  }
  const int64_t pages = (count + options.page_size - 1) / options.page_size;
  Result<LatentCache> cache = LatentCache::make(config, loaded.cache_dtype, options.page_size, pages);
  if (!cache.ok()) return cache.status();
  std::vector<int32_t> table;
  cache.value().reserve(table, count);
  std::vector<float> logits;
  for (int64_t first = 0; first < count; first += options.chunk) {
    const int64_t size = std::min(options.chunk, count - first);
    Batch batch;
    batch.tokens.assign(tokens.begin() + first, tokens.begin() + first + size);
    batch.sequences = {{.first_token = 0, .count = size, .cached = first, .pages = &table}};
    batch.logit_rows.resize(static_cast<size_t>(size));
    std::iota(batch.logit_rows.begin(), batch.logit_rows.end(), 0);
    if (Status status = loaded.model->step(batch, cache.value(), options.step, logits); !status.ok()) return status;
    for (int64_t i = 0; i < size; ++i) visit(first + i, logits.data() + i * config.vocab);
  }
  return {};
}

Result<Perplexity> text_perplexity(const LoadedModel& loaded, const std::vector<int32_t>& tokens, int64_t window,
                                   const ScoreOptions& options, const std::function<void(double fraction)>& progress) {
  const int64_t vocab = loaded.model->config().vocab;
  const auto count = static_cast<int64_t>(tokens.size());
  Perplexity result;
  double total = 0;
  for (int64_t first = 0; first + 1 < count; first += window) {
    const std::vector<int32_t> part(tokens.begin() + first, tokens.begin() + std::min(count, first + window));
    const Status status = visit_logits(loaded, part, options, [&](int64_t position, const float* logits) {
      if (position + 1 >= static_cast<int64_t>(part.size())) return;
      const float most = *std::max_element(logits, logits + vocab);
      double sum = 0;
      for (int64_t v = 0; v < vocab; ++v) sum += std::exp(static_cast<double>(logits[v]) - most);
      total += std::log(sum) + most - logits[part[position + 1]];
      ++result.predicted;
    });
    if (!status.ok()) return status;
    if (progress) progress(static_cast<double>(std::min(count, first + window)) / static_cast<double>(count));
  }
  if (result.predicted == 0) return Status{StatusCode::kInvalidArgument, "text: got fewer than 2 tokens; want more"};
  result.mean_nll = total / static_cast<double>(result.predicted);
  return result;
}

}  // namespace flashmla::runner
