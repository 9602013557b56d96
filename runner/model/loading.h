// From what a user calls a model to one that runs.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "runner/model/engine.h"
#include "runner/model/model.h"
#include "runner/tokenizer/tokenizer.h"

namespace flashmla::runner {

struct ModelSource {
  std::string model{};         // folder, config.json (with random weights) or ORG/NAME in a local cache
  std::string dtype = "auto";  // of the cache and the attention: "fp32", "bf16"; auto: fp32 for fp32 weights, else bf16
  std::string quantization{};  // "int8": weights quantised by row at load; empty: as stored
  std::optional<uint64_t> random_seed{};  // full-size random weights in place of the checkpoint's
  int32_t threads = 0;                    // 0: all that the process may use
  std::function<void(double fraction)> progress{};
  std::function<void(const std::string&)> warning{};
};

struct LoadedModel {
  std::shared_ptr<const Model> model;
  std::optional<Tokenizer> tokenizer;  // absent when the folder has none (random weights)
  DType cache_dtype = DType::kBFloat16;
  std::string folder;  // that config.json was read from
};

Result<LoadedModel> load_model(const ModelSource& source);

// Which attention back end a model's decode runs on, and why: for "Using <name> MLA back end (<reason>)".
Result<KernelChoice> explain_model_decode(const LoadedModel& loaded, const StepOptions& options);

Result<AttentionForm> parse_attention_form(const std::string& name);  // "auto", "mqa", "mha"

}  // namespace flashmla::runner
