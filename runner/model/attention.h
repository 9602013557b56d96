// Multi-head Latent Attention of one layer over the paged cache, in both forms (docs/math.md):
//
//   MQA (absorbed)  queries go through W_UK into the latent space and meet the cached rows as they are; decode
//   MHA             cached latents are decompressed by W_UK and W_UV in chunks, merged by log-sum-exp; prefill
#pragma once

#include <cstdint>
#include <vector>

#include "flashmla/flashmla.h"
#include "runner/checkpoint/weights.h"
#include "runner/model/batch.h"
#include "runner/model/elementwise.h"
#include "runner/model/latent_cache.h"

namespace flashmla::runner {

// From this many new tokens on a sequence's attention is cheaper in MHA form: the arithmetic of decompressing the
// context, latent * (nope + v), is paid back at (2 latent + rope) - (nope + rope + v) a new token and key. 171 for
// DeepSeek's widths.
int64_t mha_crossover_tokens(const ModelConfig& config);

class AttentionLayer {
 public:
  AttentionLayer(const ModelConfig& config, const Attention& weights, int32_t threads);

  struct Options {
    AttentionForm form = AttentionForm::kAuto;
    std::string backend;  // of flashmla; empty: chosen by the library
    int32_t threads = 0;
    int64_t context_chunk = 1024;  // cached tokens that the MHA form decompresses at a time
  };

  // y = attention(x) for the batch's tokens, [tokens, hidden]; writes the new tokens into `layer_cache`
  // ([pages, page, 1, latent + rope]).
  Status forward(const Batch& batch, const Rope& rope, const float* x, const TensorView& layer_cache,
                 const Options& options, float* y) const;

 private:
  struct Projections {
    std::vector<float> queries;  // [tokens][heads][nope + rope], rotated
    std::vector<float> latents;  // [tokens][latent + rope], as kv_a gives them
  };
  Projections project(const Batch& batch, const Rope& rope, const float* x, int32_t threads) const;
  Status append_latents(const Batch& batch, const Rope& rope, std::vector<float>& rows, const TensorView& layer_cache,
                        const Options& options) const;
  // Both write `heads_out`, [tokens][heads * v], for the sequences given.
  Status attend_mqa(const Batch& batch, const std::vector<int64_t>& sequences, const std::vector<float>& queries,
                    const TensorView& layer_cache, const Options& options, float* heads_out) const;
  Status attend_mha(const SequenceChunk& sequence, const std::vector<float>& queries, const TensorView& layer_cache,
                    const Options& options, float* heads_out) const;

  const ModelConfig& config_;
  const Attention& weights_;
  std::vector<Matrix> key_up_;    // per head, W_UK transposed: [latent, nope]
  std::vector<Matrix> value_up_;  // per head, W_UV: [v, latent]
};

}  // namespace flashmla::runner
