#include "runner/model/engine.h"

#include <algorithm>
#include <utility>

#include "runner/checkpoint/machine_memory.h"

namespace flashmla::runner {

namespace {

constexpr int64_t kDefaultCacheBytes = int64_t{4} << 30;

Status wrong(const std::string& name, int64_t got, const std::string& want) {
  return {StatusCode::kInvalidArgument, name + ": got " + std::to_string(got) + "; want " + want};
}

int64_t pages_for(int64_t tokens, int64_t page_size) { return (tokens + page_size - 1) / page_size; }

Status check_options(const EngineOptions& options, const ModelConfig& config) {
  if (options.page_size < 1) return wrong("block-size", options.page_size, "at least 1 token");
  if (options.max_model_len < 2 || options.max_model_len > config.max_position) {
    return wrong("max-model-len", options.max_model_len,
                 "2 .. " + std::to_string(config.max_position) + " (the model's positions)");
  }
  if (options.max_num_seqs < 1) return wrong("max-num-seqs", options.max_num_seqs, "at least 1");
  if (options.prefill_chunk < 1) return wrong("prefill-chunk", options.prefill_chunk, "at least 1 token");
  if (options.cache_dtype != DType::kFloat32 && options.cache_dtype != DType::kBFloat16) {
    return {StatusCode::kUnsupported, std::string("cache dtype: got ") + dtype_name(options.cache_dtype) +
                                          ", which is not supported here; supported: fp32, bf16"};
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::make(std::shared_ptr<const Model> model, std::optional<Tokenizer> tokenizer,
                                             const EngineOptions& given) {
  EngineOptions options = given;
  const ModelConfig& config = model->config();
  if (Status status = check_options(options, config); !status.ok()) return status;
  const int64_t one = pages_for(options.max_model_len, options.page_size);
  if (options.pages == 0) {
    const int64_t page_bytes =
        config.layers * options.page_size *
        kv_bytes_per_token(plain_kv_format(options.cache_dtype), config.kv_lora_rank, config.qk_rope_dim);
    const int64_t most_bytes = std::min(kDefaultCacheBytes, available_memory() / 2);
    options.pages = std::max(one, std::min(one * options.max_num_seqs, most_bytes / page_bytes));
  }
  if (options.pages < one) {
    return wrong("num-blocks", options.pages,
                 "at least " + std::to_string(one) + " (max-model-len " + std::to_string(options.max_model_len) +
                     " in pages of " + std::to_string(options.page_size) + ")");
  }
  Result<LatentCache> cache = LatentCache::make(config, options.cache_dtype, options.page_size, options.pages);
  if (!cache.ok()) return cache.status();
  return std::unique_ptr<Engine>(new Engine(std::move(model), std::move(tokenizer), options, std::move(cache).value()));
}

Engine::Engine(std::shared_ptr<const Model> model, std::optional<Tokenizer> tokenizer, EngineOptions options,
               LatentCache cache)
    : model_(std::move(model)),
      tokenizer_(std::move(tokenizer)),
      options_(std::move(options)),
      cache_(std::move(cache)) {}

Result<int64_t> Engine::add(std::vector<int32_t> prompt, const SamplingParams& sampling) {
  if (Status status = check_sampling(sampling); !status.ok()) return status;
  if (!sampling.stop.empty() && !tokenizer_)
    return Status{StatusCode::kInvalidArgument, "stop: got texts; want a model with a tokenizer"};
  const auto tokens = static_cast<int64_t>(prompt.size());
  if (tokens < 1) return wrong("prompt", tokens, "at least 1 token");
  if (tokens >= options_.max_model_len) {
    return wrong("prompt", tokens, "fewer tokens than max-model-len = " + std::to_string(options_.max_model_len));
  }
  for (int32_t token : prompt) {
    if (token < 0 || token >= model_->config().vocab)
      return wrong("prompt token", token, "0 .. " + std::to_string(model_->config().vocab - 1));
  }
  const int64_t most = tokens + std::min(options_.max_model_len - tokens, sampling.max_tokens);
  std::optional<StreamDecoder> decoder;
  if (tokenizer_) decoder.emplace(*tokenizer_, DecodeOptions{.skip_special = true});
  waiting_.push_back(std::make_unique<Request>(Request{.number = next_number_,
                                                       .tokens = std::move(prompt),
                                                       .prompt = tokens,
                                                       .cached = 0,
                                                       .most = most,
                                                       .pages = {},
                                                       .sampling = sampling,
                                                       .sampler = Sampler(sampling),
                                                       .decoder = std::move(decoder),
                                                       .stop = StopText(sampling.stop)}));
  return next_number_++;
}

void Engine::cancel(int64_t number) {
  std::erase_if(waiting_, [&](const auto& request) { return request->number == number; });
  std::erase_if(running_, [&](const auto& request) {
    if (request->number != number) return false;
    cache_.release(request->pages);
    return true;
  });
}

// A request starts when the cache holds all that it may come to: none ever has to be thrown out again.
void Engine::admit() {
  while (!waiting_.empty() && static_cast<int64_t>(running_.size()) < options_.max_num_seqs &&
         cache_.reserve(waiting_.front()->pages, waiting_.front()->most)) {
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

// Running answers first, one token each; what is left of the chunk goes to prompts, in order of arrival.
Batch Engine::next_batch(std::vector<Request*>& owners) {
  Batch batch;
  const auto take = [&](Request& request, int64_t count) {
    const auto first = static_cast<int64_t>(batch.tokens.size());
    batch.sequences.push_back({first, count, request.cached, &request.pages});
    batch.tokens.insert(batch.tokens.end(), request.tokens.begin() + request.cached,
                        request.tokens.begin() + request.cached + count);
    owners.push_back(&request);
    if (request.cached + count == static_cast<int64_t>(request.tokens.size()))
      batch.logit_rows.push_back(first + count - 1);
  };
  const auto due = [](const Request& request) { return static_cast<int64_t>(request.tokens.size()) - request.cached; };
  for (const auto& request : running_) {
    if (due(*request) == 1) take(*request, 1);
  }
  int64_t room = std::max<int64_t>(1, options_.prefill_chunk - static_cast<int64_t>(batch.tokens.size()));
  for (const auto& request : running_) {
    const int64_t count = std::min(room, due(*request));
    if (due(*request) == 1 || count == 0) continue;
    take(*request, count);
    room -= count;
  }
  return batch;
}

Status Engine::step(std::vector<EngineOutput>& outputs) {
  outputs.clear();
  admit();
  std::vector<Request*> owners;
  const Batch batch = next_batch(owners);
  if (batch.tokens.empty()) return {};
  std::vector<float> logits;
  if (Status status = model_->step(batch, cache_, options_.step, logits); !status.ok()) return status;
  size_t row = 0;
  for (size_t s = 0; s < owners.size(); ++s) {
    Request& request = *owners[s];
    const int64_t before = request.cached;
    request.cached += batch.sequences[s].count;
    prompt_tokens_done_ += std::min(request.cached, request.prompt) - std::min(before, request.prompt);
    if (request.cached < static_cast<int64_t>(request.tokens.size())) continue;
    const int64_t vocab = model_->config().vocab;
    take_token(request, request.sampler.choose(logits.data() + static_cast<int64_t>(row++) * vocab, vocab), outputs);
  }
  std::erase_if(running_, [&](const auto& request) {
    if (request->done) cache_.release(request->pages);
    return request->done;
  });
  return {};
}

bool Engine::is_end(const Request& request, int32_t token) const {
  if (std::ranges::count(request.sampling.stop_token_ids, token) > 0) return true;
  if (request.sampling.ignore_eos) return false;
  return std::ranges::count(model_->config().eos_ids, token) > 0 || (tokenizer_ && token == tokenizer_->eos_id());
}

void Engine::take_token(Request& request, int32_t token, std::vector<EngineOutput>& outputs) {
  EngineOutput output{.request = request.number, .tokens = {token}, .text = {}, .finished = false, .finish_reason = {}};
  request.tokens.push_back(token);
  if (is_end(request, token)) {
    output.finish_reason = "stop";
  } else {
    if (request.decoder) output.text = request.stop.push(request.decoder->push(token));
    if (request.stop.found()) {
      output.finish_reason = "stop";
    } else if (static_cast<int64_t>(request.tokens.size()) >= request.most) {
      output.finish_reason = "length";
    }
  }
  output.finished = request.done = !output.finish_reason.empty();
  if (output.finished && !request.stop.found() && request.decoder) {
    output.text += request.stop.push(request.decoder->finish());
    output.text += request.stop.finish();
  }
  outputs.push_back(std::move(output));
}

}  // namespace flashmla::runner
