// Generation for several requests at once: continuous batching over the paged cache.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runner/model/model.h"
#include "runner/model/sampler.h"
#include "runner/model/stop_text.h"
#include "runner/tokenizer/tokenizer.h"

namespace flashmla::runner {

struct EngineOptions {
  DType cache_dtype = DType::kBFloat16;
  int64_t page_size = 64;        // tokens a page ("--block-size")
  int64_t max_model_len = 4096;  // tokens of one request, prompt and answer
  int64_t max_num_seqs = 16;     // requests that run at once
  int64_t pages = 0;  // of the cache; 0: max_model_len tokens for each of max_num_seqs, at most 4 GiB and half
                      // of the memory that is free, but at least for one
  int64_t prefill_chunk = 512;  // new tokens of one step, of all requests
  StepOptions step{};
};

struct EngineOutput {
  int64_t request = 0;
  std::vector<int32_t> tokens;  // new ones of this step
  std::string text;             // that they complete (without a tokenizer: empty)
  bool finished = false;
  std::string finish_reason;  // "stop" or "length" when finished
};

class Engine {
 public:
  // Without a tokenizer the engine works on token ids alone; stop texts are refused then.
  static Result<std::unique_ptr<Engine>> make(std::shared_ptr<const Model> model, std::optional<Tokenizer> tokenizer,
                                              const EngineOptions& options);

  // The request's number. Errors: an empty prompt, one that leaves no room for an answer (max_model_len), bad sampling.
  Result<int64_t> add(std::vector<int32_t> prompt, const SamplingParams& sampling);
  void cancel(int64_t request);
  bool busy() const { return !waiting_.empty() || !running_.empty(); }

  // One pass of the model over what is due: a token of every running request, and a chunk of prompts.
  Status step(std::vector<EngineOutput>& outputs);

  int64_t prompt_tokens_done() const { return prompt_tokens_done_; }
  const EngineOptions& options() const { return options_; }

 private:
  struct Request {
    int64_t number = 0;
    std::vector<int32_t> tokens;  // prompt, then answer
    int64_t prompt = 0;           // of them
    int64_t cached = 0;           // of them in the cache
    int64_t most = 0;             // tokens that it may come to
    std::vector<int32_t> pages;
    SamplingParams sampling;
    Sampler sampler;
    std::optional<StreamDecoder> decoder;
    StopText stop;
    bool done = false;
  };

  Engine(std::shared_ptr<const Model> model, std::optional<Tokenizer> tokenizer, EngineOptions options,
         LatentCache cache);
  void admit();
  Batch next_batch(std::vector<Request*>& owners);
  void take_token(Request& request, int32_t token, std::vector<EngineOutput>& outputs);
  bool is_end(const Request& request, int32_t token) const;

  std::shared_ptr<const Model> model_;
  std::optional<Tokenizer> tokenizer_;
  EngineOptions options_;
  LatentCache cache_;
  int64_t next_number_ = 0;
  int64_t prompt_tokens_done_ = 0;
  std::deque<std::unique_ptr<Request>> waiting_;
  std::vector<std::unique_ptr<Request>> running_;
};

}  // namespace flashmla::runner
