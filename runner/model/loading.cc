#include "runner/model/loading.h"

#include <filesystem>
#include <utility>

#include "runner/checkpoint/model_folder.h"

namespace flashmla::runner {

namespace {

Status one_of(const std::string& name, const std::string& got, const std::string& choices) {
  return {StatusCode::kInvalidArgument, name + ": got '" + got + "'; want one of: " + choices};
}

Result<DType> cache_dtype(const std::string& name, const Weights& weights) {
  if (name == "fp32") return DType::kFloat32;
  if (name == "bf16") return DType::kBFloat16;
  if (name != "auto") return one_of("dtype", name, "auto, fp32, bf16");
  return weights.embedding.type == WeightType::kF32 ? DType::kFloat32 : DType::kBFloat16;
}

}  // namespace

Result<LoadedModel> load_model(const ModelSource& source) {
  const Result<std::string> found = resolve_model(source.model);
  if (!found.ok()) return found.status();
  // A file is the configuration of a model whose other files, if any, lie beside it.
  const std::filesystem::path path = found.value();
  std::error_code error;
  const bool is_folder = std::filesystem::is_directory(path, error);
  std::filesystem::path folder = is_folder ? path : path.parent_path();
  if (folder.empty()) folder = ".";
  const Result<ModelConfig> config = load_model_config((is_folder ? path / "config.json" : path).string());
  if (!config.ok()) return config.status();

  LoadOptions options;
  if (!source.quantization.empty()) {
    if (source.quantization != "int8") return one_of("quantization", source.quantization, "int8");
    options.policy = WeightPolicy::kInt8;
  }
  options.threads = source.threads > 0 ? source.threads : cpu_info().threads;
  options.progress = source.progress;
  options.warning = source.warning;
  Result<Weights> weights = source.random_seed ? random_weights(config.value(), *source.random_seed, options)
                                               : load_weights(folder.string(), config.value(), options);
  if (!weights.ok()) return weights.status();
  const Result<DType> dtype = cache_dtype(source.dtype, weights.value());
  if (!dtype.ok()) return dtype.status();

  LoadedModel loaded;
  loaded.folder = folder.string();
  loaded.cache_dtype = dtype.value();
  if (std::filesystem::exists(folder / "tokenizer.json", error)) {
    Result<Tokenizer> tokenizer = Tokenizer::load(folder.string());
    if (!tokenizer.ok()) return tokenizer.status();
    loaded.tokenizer = std::move(tokenizer).value();
  } else if (!source.random_seed) {
    return Status{StatusCode::kNotFound, "model: got no tokenizer.json in " + folder.string() +
                                             "; want the file that the checkpoint comes with"};
  }
  loaded.model = std::make_shared<Model>(config.value(), std::move(weights).value(), options.threads);
  return loaded;
}

Result<KernelChoice> explain_model_decode(const LoadedModel& loaded, const StepOptions& options) {
  const ModelConfig& config = loaded.model->config();
  DecodeShape shape;
  shape.batch = shape.seq_q = shape.total_q = 1;
  shape.heads_q = config.heads;
  shape.latent_dim = config.kv_lora_rank;
  shape.rope_dim = config.qk_rope_dim;
  shape.pages = shape.table_width = 1;
  shape.dtype = loaded.cache_dtype;
  shape.kv_format = plain_kv_format(loaded.cache_dtype);
  shape.ragged_q = shape.causal = true;
  Context context;
  context.backend = options.backend;
  context.threads = loaded.model->threads();
  return explain_decode(shape, {.batch_invariant = true}, context);
}

Result<AttentionForm> parse_attention_form(const std::string& name) {
  if (name == "auto") return AttentionForm::kAuto;
  if (name == "mqa") return AttentionForm::kMqa;
  if (name == "mha") return AttentionForm::kMha;
  return one_of("attention-form", name, "auto, mqa, mha");
}

}  // namespace flashmla::runner
