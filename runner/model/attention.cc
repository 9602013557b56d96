#include "runner/model/attention.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "runner/float_bits.h"
#include "runner/model/device_rows.h"

namespace flashmla::runner {

namespace {

// W_UK of one head, [nope, latent], transposed: the absorbed query is W_UK^T q. In bf16 where it came as bf16 or int8.
Matrix transposed(const Matrix& w) {
  Matrix result;
  result.rows = w.cols;
  result.cols = w.rows;
  result.type = w.type == WeightType::kBF16 || w.type == WeightType::kInt8 ? WeightType::kBF16 : WeightType::kF32;
  auto memory = allocate_weights(result.rows * result.cols * element_bytes(result.type));
  std::vector<float> row(static_cast<size_t>(w.cols));
  for (int64_t r = 0; r < w.rows; ++r) {
    read_row(w, r, row.data());
    for (int64_t c = 0; c < w.cols; ++c) {
      const int64_t at = c * w.rows + r;
      if (result.type == WeightType::kBF16) {
        static_cast<uint16_t*>(memory.get())[at] = float_to_bf16(row[c]);
      } else {
        static_cast<float*>(memory.get())[at] = row[c];
      }
    }
  }
  result.data = memory.get();
  result.owner = memory;
  return result;
}

// Attention's workspace, kept for the thread's next call.
Workspace workspace_of(int64_t bytes) {
  thread_local std::shared_ptr<void> memory;
  thread_local int64_t held = 0;
  if (bytes > held) {
    memory.reset();
    memory = std::shared_ptr<void>(
        std::aligned_alloc(kWorkspaceAlignment, static_cast<size_t>(round_up(bytes, kWorkspaceAlignment))), std::free);
    held = memory == nullptr ? 0 : bytes;
  }
  return {memory.get(), held};
}

Status run_decode(const DecodeParams& params, const Context& context) {
  const Result<DecodeShape> shape = decode_shape(params);
  if (!shape.ok()) return shape.status();
  const Result<int64_t> bytes = workspace_bytes(shape.value(), params.options, context);
  if (!bytes.ok()) return bytes.status();
  return decode(params, workspace_of(bytes.value()), context);
}

Status run_prefill(const PrefillParams& params, const Context& context) {
  const Result<PrefillShape> shape = prefill_shape(params);
  if (!shape.ok()) return shape.status();
  const Result<int64_t> bytes = workspace_bytes(shape.value(), context);
  if (!bytes.ok()) return bytes.status();
  return prefill(params, workspace_of(bytes.value()), context);
}

Context context_of(const AttentionLayer::Options& options) {
  Context context;
  context.backend = options.backend;
  context.threads = options.threads;
  return context;
}

}  // namespace

int64_t mha_crossover_tokens(const ModelConfig& config) {
  const int64_t saved = 2 * config.kv_lora_rank + config.qk_rope_dim - (config.qk_dim() + config.v_dim);
  if (saved <= 0) return std::numeric_limits<int64_t>::max();
  return config.kv_lora_rank * (config.qk_nope_dim + config.v_dim) / saved + 1;
}

AttentionLayer::AttentionLayer(const ModelConfig& config, const Attention& weights, int32_t threads)
    : config_(config),
      weights_(weights),
      key_up_(static_cast<size_t>(config.heads)),
      value_up_(static_cast<size_t>(config.heads)) {
  // Per head, the first qk_nope_dim rows of kv_b are W_UK, the others W_UV.
  const int64_t head_rows = config.qk_nope_dim + config.v_dim;
  run_workers(threads, [&](int32_t worker) {
    for (int64_t h = worker; h < config.heads; h += threads) {
      key_up_[h] = transposed(weights.kv_b.row_range(h * head_rows, config.qk_nope_dim));
      value_up_[h] = weights.kv_b.row_range(h * head_rows + config.qk_nope_dim, config.v_dim);
    }
  });
}

Status AttentionLayer::forward(const Batch& batch, const Rope& rope, const float* x, const TensorView& layer_cache,
                               const Options& options, float* y) const {
  const auto tokens = static_cast<int64_t>(batch.tokens.size());
  Projections projected = project(batch, rope, x, options.threads);
  const std::vector<float>& queries = projected.queries;
  if (Status status = append_latents(batch, rope, projected.latents, layer_cache, options); !status.ok()) return status;

  std::vector<float> heads_out(static_cast<size_t>(tokens * config_.heads * config_.v_dim));
  std::vector<int64_t> absorbed;
  for (size_t s = 0; s < batch.sequences.size(); ++s) {
    const bool mha = options.form == AttentionForm::kMha || (options.form == AttentionForm::kAuto &&
                                                             batch.sequences[s].count >= mha_crossover_tokens(config_));
    if (!mha) {
      absorbed.push_back(static_cast<int64_t>(s));
    } else if (Status status = attend_mha(batch.sequences[s], queries, layer_cache, options, heads_out.data());
               !status.ok()) {
      return status;
    }
  }
  if (!absorbed.empty()) {
    if (Status status = attend_mqa(batch, absorbed, queries, layer_cache, options, heads_out.data()); !status.ok())
      return status;
  }
  multiply(weights_.o, heads_out.data(), config_.heads * config_.v_dim, tokens, y, config_.hidden, options.threads);
  for (int64_t t = 0; t < tokens; ++t) add_bias(weights_.o_bias, y + t * config_.hidden);
  return {};
}

// The queries, and what kv_a gives, in one pass over the threads: both read x.
AttentionLayer::Projections AttentionLayer::project(const Batch& batch, const Rope& rope, const float* x,
                                                    int32_t threads) const {
  const auto tokens = static_cast<int64_t>(batch.tokens.size());
  const int64_t width = config_.heads * config_.qk_dim();
  const bool direct = weights_.q.given();
  const int64_t rank = config_.q_lora_rank;
  Projections result;
  std::vector<float>& queries = result.queries;
  queries.resize(static_cast<size_t>(tokens * width));
  result.latents.resize(static_cast<size_t>(tokens * weights_.kv_a.rows));
  std::vector<float> low(static_cast<size_t>(direct ? 0 : tokens * rank));
  const Product products[] = {{&weights_.kv_a, x, config_.hidden, tokens, result.latents.data(), weights_.kv_a.rows},
                              {direct ? &weights_.q : &weights_.q_a, x, config_.hidden, tokens,
                               direct ? queries.data() : low.data(), direct ? width : rank}};
  multiply_all(products, 2, threads);
  if (!direct) {
    for (int64_t t = 0; t < tokens; ++t) {
      float* row = low.data() + t * rank;
      add_bias(weights_.q_a_bias, row);
      if (!weights_.q_a_norm.empty()) rms_norm(row, weights_.q_a_norm, config_.norm_eps, row);
    }
    multiply(weights_.q_b, low.data(), rank, tokens, queries.data(), width, threads);
  }
  for (const SequenceChunk& sequence : batch.sequences) {
    for (int64_t i = 0; i < sequence.count; ++i) {
      float* row = queries.data() + (sequence.first_token + i) * width;
      add_bias(weights_.q_bias, row);
      for (int64_t h = 0; h < config_.heads; ++h)
        rope.rotate(row + h * config_.qk_dim() + config_.qk_nope_dim, sequence.cached + i);
    }
  }
  return result;
}

// kv_a gives the latent (to be normed) and the RoPE part (to be rotated, not normed) of each new token.
Status AttentionLayer::append_latents(const Batch& batch, const Rope& rope, std::vector<float>& rows,
                                      const TensorView& layer_cache, const Options& options) const {
  const auto tokens = static_cast<int64_t>(batch.tokens.size());
  const int64_t latent = config_.kv_lora_rank;
  const int64_t width = latent + config_.qk_rope_dim;
  const int64_t page = layer_cache.shape[1];
  std::vector<int64_t> slots(static_cast<size_t>(tokens));
  for (const SequenceChunk& sequence : batch.sequences) {
    for (int64_t i = 0; i < sequence.count; ++i) {
      float* row = rows.data() + (sequence.first_token + i) * width;
      add_bias(weights_.kv_a_bias, row);
      if (!weights_.kv_a_norm.empty()) rms_norm(row, weights_.kv_a_norm, config_.norm_eps, row);
      const int64_t position = sequence.cached + i;
      rope.rotate(row + latent, position);
      slots[sequence.first_token + i] = (*sequence.pages)[position / page] * page + position % page;
    }
  }
  const DeviceRows stored(rows.data(), tokens * width, layer_cache.dtype);
  AppendKvParams params;
  params.latent = stored.view({tokens, latent}, 0, width);
  params.rope = stored.view({tokens, config_.qk_rope_dim}, latent, width);
  params.slot_mapping = ConstTensorView::contiguous(slots.data(), DType::kInt64, {tokens});
  params.kv_cache = layer_cache;
  return append_kv(params, context_of(options));
}

Status AttentionLayer::attend_mqa(const Batch& batch, const std::vector<int64_t>& sequences,
                                  const std::vector<float>& queries, const TensorView& layer_cache,
                                  const Options& options, float* heads_out) const {
  const int64_t heads = config_.heads;
  const int64_t latent = config_.kv_lora_rank;
  const int64_t rope = config_.qk_rope_dim;
  const auto count = static_cast<int64_t>(sequences.size());

  // Rows of the chosen sequences, gathered: [rows][heads][latent + rope].
  std::vector<int32_t> starts{0}, lens;
  int64_t width = 1;
  for (int64_t s : sequences) {
    const SequenceChunk& sequence = batch.sequences[s];
    starts.push_back(starts.back() + static_cast<int32_t>(sequence.count));
    lens.push_back(static_cast<int32_t>(sequence.cached + sequence.count));
    width = std::max(width, static_cast<int64_t>(sequence.pages->size()));
  }
  const int64_t rows = starts.back();
  std::vector<int32_t> table(static_cast<size_t>(count * width), -1);
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    const SequenceChunk& sequence = batch.sequences[sequences[i]];
    std::ranges::copy(*sequence.pages, table.begin() + i * width);
    for (int64_t t = 0; t < sequence.count; ++t) tokens.push_back(sequence.first_token + t);
  }
  const int64_t q_width = heads * config_.qk_dim();
  std::vector<float> nope(static_cast<size_t>(rows * q_width));
  std::vector<float> absorbed(static_cast<size_t>(rows * heads * (latent + rope)));
  for (int64_t r = 0; r < rows; ++r) {
    const float* from = queries.data() + tokens[r] * q_width;
    std::copy_n(from, q_width, nope.data() + r * q_width);
    for (int64_t h = 0; h < heads; ++h) {
      std::copy_n(from + h * config_.qk_dim() + config_.qk_nope_dim, rope,
                  absorbed.data() + (r * heads + h) * (latent + rope) + latent);
    }
  }
  std::vector<Product> products;
  for (int64_t h = 0; h < heads; ++h) {
    products.push_back({&key_up_[h], nope.data() + h * config_.qk_dim(), q_width, rows,
                        absorbed.data() + h * (latent + rope), heads * (latent + rope)});
  }
  multiply_all(products.data(), heads, options.threads);

  const DeviceRows q(absorbed.data(), static_cast<int64_t>(absorbed.size()), layer_cache.dtype);
  DeviceRows out(rows * heads * latent, layer_cache.dtype);
  DecodeParams params;
  params.q = q.view({rows, heads, latent + rope});
  params.kv_cache = layer_cache;
  params.page_table = ConstTensorView::contiguous(table.data(), DType::kInt32, {count, width});
  params.seq_lens = ConstTensorView::contiguous(lens.data(), DType::kInt32, {count});
  params.cu_seqlens_q = ConstTensorView::contiguous(starts.data(), DType::kInt32, {count + 1});
  params.out = out.mutable_view({rows, heads, latent});
  params.latent_dim = latent;
  params.softmax_scale = static_cast<float>(config_.attention_scale());
  params.causal = true;
  params.options.batch_invariant = true;  // a sequence's tokens do not depend on its company in the batch
  if (Status status = run_decode(params, context_of(options)); !status.ok()) return status;

  const std::vector<float> latents = out.to_float();
  std::vector<float> values(static_cast<size_t>(rows * heads * config_.v_dim));
  products.clear();
  for (int64_t h = 0; h < heads; ++h) {
    products.push_back({&value_up_[h], latents.data() + h * latent, heads * latent, rows,
                        values.data() + h * config_.v_dim, heads * config_.v_dim});
  }
  multiply_all(products.data(), heads, options.threads);
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(values.data() + r * heads * config_.v_dim, heads * config_.v_dim,
                heads_out + tokens[r] * heads * config_.v_dim);
  }
  return {};
}

Status AttentionLayer::attend_mha(const SequenceChunk& sequence, const std::vector<float>& queries,
                                  const TensorView& layer_cache, const Options& options, float* heads_out) const {
  const int64_t heads = config_.heads;
  const int64_t qk = config_.qk_dim();
  const int64_t v = config_.v_dim;
  const int64_t count = sequence.count;
  const int64_t total = sequence.cached + count;
  const DeviceRows q(queries.data() + sequence.first_token * heads * qk, count * heads * qk, layer_cache.dtype);
  DeviceRows out(count * heads * v, layer_cache.dtype), part(count * heads * v, layer_cache.dtype);
  std::vector<float> lse(static_cast<size_t>(count * heads)), part_lse(lse.size());

  // The sequence's own new tokens first (causal), then the context in chunks (every query sees all of it).
  int64_t begin = sequence.cached;
  int64_t end = total;
  for (bool own = true;; own = false) {
    const int64_t keys = end - begin;
    const DecompressedKeys kv =
        decompress_keys(config_, weights_.kv_b, layer_cache, *sequence.pages, begin, keys, options.threads);
    const int32_t starts_q[] = {0, static_cast<int32_t>(count)};
    const int32_t starts_k[] = {0, static_cast<int32_t>(keys)};
    PrefillParams params;
    params.q = q.view({count, heads, qk});
    params.k = kv.keys.view({keys, heads, qk});
    params.v = kv.values.view({keys, heads, v});
    params.cu_seqlens_q = ConstTensorView::contiguous(starts_q, DType::kInt32, {2});
    params.cu_seqlens_k = ConstTensorView::contiguous(starts_k, DType::kInt32, {2});
    params.out = (own ? out : part).mutable_view({count, heads, v});
    params.lse = TensorView::contiguous((own ? lse : part_lse).data(), DType::kFloat32, {heads, count});
    params.softmax_scale = static_cast<float>(config_.attention_scale());
    params.causal = own;
    if (Status status = run_prefill(params, context_of(options)); !status.ok()) return status;
    if (!own) {
      MergeStatesParams merge;
      merge.out_a = merge.out = out.mutable_view({count, heads, v});
      merge.lse_a = merge.lse = TensorView::contiguous(lse.data(), DType::kFloat32, {heads, count});
      merge.out_b = params.out;
      merge.lse_b = params.lse;
      if (Status status = merge_states(merge, context_of(options)); !status.ok()) return status;
    }
    const int64_t done = own ? 0 : end;
    if (done >= sequence.cached) break;
    begin = done;
    end = std::min(sequence.cached, begin + options.context_chunk);
  }
  const std::vector<float> values = out.to_float();
  std::ranges::copy(values, heads_out + sequence.first_token * heads * v);
  return {};
}

}  // namespace flashmla::runner
