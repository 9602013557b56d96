#include "runner/model/model.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

namespace flashmla::runner {

Model::Model(ModelConfig config, Weights weights, int32_t threads)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      threads_(threads > 0 ? threads : cpu_info().threads),
      rope_(config_) {
  attention_.reserve(weights_.layers.size());
  for (const Layer& layer : weights_.layers) attention_.emplace_back(config_, layer.attention, threads_);
}

Status Model::check(const Batch& batch) const {
  for (int32_t token : batch.tokens) {
    if (token < 0 || token >= config_.vocab) {
      return {StatusCode::kInvalidArgument, "token: got " + std::to_string(token) + "; want 0 .. " +
                                                std::to_string(config_.vocab - 1) + " (vocab_size)"};
    }
  }
  return {};
}

Status Model::step(const Batch& batch, LatentCache& cache, const StepOptions& options, std::vector<float>& logits,
                   StepTrace* trace) const {
  if (Status status = check(batch); !status.ok()) return status;
  const auto tokens = static_cast<int64_t>(batch.tokens.size());
  const int64_t hidden = config_.hidden;
  const AttentionLayer::Options attention_options{
      .form = options.form, .backend = options.backend, .threads = threads_};
  std::vector<float> x(static_cast<size_t>(tokens * hidden)), normed(x.size()), added(x.size());
  std::vector<Choice> choices;
  for (int64_t t = 0; t < tokens; ++t) read_row(weights_.embedding, batch.tokens[t], x.data() + t * hidden);

  const auto norm_rows = [&](const std::vector<float>& weight) {
    for (int64_t t = 0; t < tokens; ++t)
      rms_norm(x.data() + t * hidden, weight, config_.norm_eps, normed.data() + t * hidden);
  };
  const auto add_rows = [&] {
    for (size_t i = 0; i < x.size(); ++i) x[i] += added[i];
  };
  if (trace != nullptr) trace->hidden.push_back(x);
  for (int64_t l = 0; l < config_.layers; ++l) {
    const Layer& layer = weights_.layers[l];
    norm_rows(layer.input_norm);
    if (Status status =
            attention_[l].forward(batch, rope_, normed.data(), cache.layer(l), attention_options, added.data());
        !status.ok()) {
      return status;
    }
    add_rows();
    norm_rows(layer.post_attention_norm);
    choices.clear();
    if (config_.is_moe_layer(l)) {
      moe_mlp(config_, layer, normed.data(), tokens, added.data(), choices, threads_);
    } else {
      dense_mlp(layer.dense, normed.data(), tokens, added.data(), threads_);
    }
    add_rows();
    if (trace != nullptr) {
      trace->hidden.push_back(x);
      trace->routed.push_back(choices);
    }
  }

  const auto wanted = static_cast<int64_t>(batch.logit_rows.size());
  logits.resize(static_cast<size_t>(wanted * config_.vocab));
  for (int64_t i = 0; i < wanted; ++i) {
    rms_norm(x.data() + batch.logit_rows[i] * hidden, weights_.norm, config_.norm_eps, normed.data() + i * hidden);
  }
  if (wanted > 0) multiply(weights_.head, normed.data(), hidden, wanted, logits.data(), config_.vocab, threads_);
  // Nothing can be chosen among these, and sorting them is undefined.
  const auto bad = std::ranges::find_if_not(logits, [](float value) { return std::isfinite(value); });
  if (bad == logits.end()) return {};
  return {StatusCode::kOutOfRange, "logits: got " + std::to_string(*bad) + " for token " +
                                       std::to_string((bad - logits.begin()) % config_.vocab) +
                                       "; want finite numbers: the weights are damaged, or overflow"};
}

}  // namespace flashmla::runner
