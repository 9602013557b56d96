#include "runner/checkpoint/model_config.h"

#include <nlohmann/json.hpp>

#include "runner/checkpoint/json_keys.h"
#include "runner/error_text.h"

namespace flashmla::runner {

namespace {

using nlohmann::json;
using Range = JsonKeys::Range;

constexpr const char* kV2 = "deepseek_v2";
constexpr const char* kV3 = "deepseek_v3";

// Far above any model, far below what would overflow a product of sizes.
constexpr Range kWidth{1, 1 << 18};
constexpr Range kVocab{1, 1 << 24};
constexpr Range kLayers{1, 1024};
constexpr Range kHeads{1, 4096};
constexpr Range kExperts{0, 4096};
constexpr int64_t kMostExpertsOfAllLayers = 1 << 18;

void read_sizes(JsonKeys& keys, ModelConfig& config) {
  config.hidden = keys.integer("hidden_size", kWidth);
  config.layers = keys.integer("num_hidden_layers", kLayers);
  config.heads = keys.integer("num_attention_heads", kHeads);
  config.kv_lora_rank = keys.integer("kv_lora_rank", kWidth);
  config.qk_nope_dim = keys.integer("qk_nope_head_dim", {0, kWidth.most});
  config.qk_rope_dim = keys.integer("qk_rope_head_dim", kWidth);
  config.v_dim = keys.integer("v_head_dim", kWidth);
  config.intermediate = keys.integer("intermediate_size", kWidth);
  config.vocab = keys.integer("vocab_size", kVocab);
  config.max_position = keys.integer("max_position_embeddings", {1, 1 << 30});
  config.norm_eps = keys.number("rms_norm_eps", 0, 1e-6);
  config.tie_embeddings = keys.boolean("tie_word_embeddings", false);
  config.attention_bias = keys.boolean("attention_bias", false);
  config.latent_norm = keys.boolean("qk_latent_layernorm", true);
  if (config.qk_rope_dim % 2 != 0) {
    keys.fail("qk_rope_head_dim", "got " + std::to_string(config.qk_rope_dim) + "; want an even number");
  }
  if (const std::string act = keys.text("hidden_act", "silu"); act != "silu") {
    keys.fail("hidden_act", "got " + in_quotes(act) + "; supported: silu", StatusCode::kUnsupported);
  }
}

// Absent is no answer: transformers' own default is 1536, the published files of models without it say null.
void read_q_lora_rank(const json& object, JsonKeys& keys, ModelConfig& config) {
  if (!object.contains("q_lora_rank")) {
    keys.fail("q_lora_rank", "missing; want an integer, or null or 0 for a model with q_proj");
  } else if (!object["q_lora_rank"].is_null()) {
    config.q_lora_rank = keys.integer("q_lora_rank", {0, kWidth.most});
  }
}

void read_routing(JsonKeys& keys, ModelConfig& config) {
  const bool v3 = config.model_type == kV3;
  const std::string scoring = keys.text("scoring_func", v3 ? "sigmoid" : "softmax");
  const std::string method = keys.text("topk_method", v3 ? "noaux_tc" : "greedy");
  if (scoring == "softmax" && method == "greedy") {
    config.topk_method = TopkMethod::kGreedy;
  } else if (scoring == "softmax" && method == "group_limited_greedy") {
    config.topk_method = TopkMethod::kGroupLimitedGreedy;
  } else if (scoring == "sigmoid" && method == "noaux_tc") {
    config.topk_method = TopkMethod::kNoauxTc;
  } else {
    keys.fail("topk_method",
              "got " + in_quotes(method) + " with scoring_func " + in_quotes(scoring) +
                  "; supported: greedy or group_limited_greedy with softmax, noaux_tc with sigmoid",
              StatusCode::kUnsupported);
  }
  config.scoring = scoring == "sigmoid" ? Scoring::kSigmoid : Scoring::kSoftmax;
  config.norm_topk_prob = keys.boolean("norm_topk_prob", v3);
  config.routed_scaling = keys.number("routed_scaling_factor", 0, v3 ? 2.5 : 1.0);
  if (config.topk_method == TopkMethod::kGreedy) return;
  config.groups = keys.integer("n_group", {1, kExperts.most});
  config.groups_per_token = keys.integer("topk_group", {1, config.groups});
  const int64_t group_size = config.routed_experts / config.groups;
  // noaux_tc scores a group by its two best experts.
  const int64_t least_size = config.topk_method == TopkMethod::kNoauxTc ? 2 : 1;
  if (config.routed_experts % config.groups != 0 || group_size < least_size) {
    keys.fail("n_group", "got " + std::to_string(config.groups) +
                             "; want a divisor of n_routed_experts = " + std::to_string(config.routed_experts) +
                             " with groups of at least " + std::to_string(least_size));
  }
  const int64_t reachable = group_size * config.groups_per_token;
  if (config.experts_per_token > reachable) {
    keys.fail("num_experts_per_tok", "got " + std::to_string(config.experts_per_token) + "; want at most the " +
                                         std::to_string(reachable) + " experts of topk_group groups");
  }
}

void read_experts(JsonKeys& keys, ModelConfig& config) {
  config.routed_experts = keys.integer("n_routed_experts", kExperts, 0);
  config.first_dense_layers = config.layers;
  if (config.routed_experts == 0) return;
  config.shared_experts = keys.integer("n_shared_experts", {0, 64}, 0);
  config.moe_intermediate = keys.integer("moe_intermediate_size", kWidth);
  config.experts_per_token = keys.integer("num_experts_per_tok", {1, config.routed_experts});
  config.first_dense_layers = keys.integer("first_k_dense_replace", {0, kLayers.most});
  config.moe_layer_freq = keys.integer("moe_layer_freq", {1, kLayers.most}, 1);
  if (config.routed_experts * config.layers > kMostExpertsOfAllLayers) {
    keys.fail("n_routed_experts", "got " + std::to_string(config.routed_experts) + " in " +
                                      std::to_string(config.layers) + " layers; want at most " +
                                      std::to_string(kMostExpertsOfAllLayers) + " experts in all");
  }
  if (keys.status().ok()) read_routing(keys, config);
}

Status read_yarn(const json& scaling, const std::string& where, ModelConfig& config) {
  JsonKeys keys(scaling, where);
  Yarn yarn;
  yarn.factor = keys.number("factor", 0);
  yarn.original_max_position = static_cast<double>(keys.integer("original_max_position_embeddings", {1, 1 << 30}));
  yarn.beta_fast = keys.number("beta_fast", 0, yarn.beta_fast);
  yarn.beta_slow = keys.number("beta_slow", 0, yarn.beta_slow);
  yarn.mscale = keys.number("mscale", 0, yarn.mscale);
  yarn.mscale_all_dim = keys.number("mscale_all_dim", -1, yarn.mscale_all_dim);
  if (yarn.factor < 1) keys.fail("factor", "got " + json_text(scaling["factor"]) + "; want at least 1");
  if (const json* given = keys.find("attention_factor")) {
    keys.fail("attention_factor", "got " + json_text(*given) + "; supported: mscale and mscale_all_dim in its place",
              StatusCode::kUnsupported);
  }
  if (!keys.boolean("truncate", true)) {
    keys.fail("truncate", "got false; supported: true", StatusCode::kUnsupported);
  }
  config.yarn = yarn;
  return keys.status();
}

// Both forms: rope_theta beside rope_scaling {type}, and rope_parameters {rope_type, rope_theta} (transformers 5).
Status read_rope(JsonKeys& keys, ModelConfig& config) {
  config.rope_theta = keys.number("rope_theta", 1, config.rope_theta);
  if (!keys.boolean("rope_interleave", true)) {
    keys.fail("rope_interleave", "got false; supported: true (pairs of neighbours)", StatusCode::kUnsupported);
  }
  const bool new_form = keys.find("rope_parameters") != nullptr;
  const std::string name = new_form ? "rope_parameters" : "rope_scaling";
  const json* scaling = keys.find(name);
  if (!keys.status().ok() || scaling == nullptr) return keys.status();
  if (!scaling->is_object())
    return invalid("config.json: " + name + ": got " + json_text(*scaling) + "; want an object");
  const std::string where = "config.json: " + name + ".";
  JsonKeys inner(*scaling, where);
  config.rope_theta = inner.number("rope_theta", 1, config.rope_theta);
  const std::string type = inner.text("rope_type", inner.text("type", "default"));
  if (!inner.status().ok() || type == "default") return inner.status();
  if (type == "yarn") return read_yarn(*scaling, where, config);
  return unsupported(where + (inner.find("rope_type") ? "rope_type" : "type") + ": got " + in_quotes(type) +
                     "; supported: yarn, default");
}

// What converted models need beyond the published keys.
void read_explicit(JsonKeys& keys, ModelConfig& config) {
  if (keys.find("softmax_scale") != nullptr) config.softmax_scale = keys.number("softmax_scale", 0);
  const json* table = keys.find("rope_inv_freq");
  if (table == nullptr) return;
  const auto wanted = static_cast<size_t>(config.qk_rope_dim / 2);
  bool right = table->is_array() && table->size() == wanted;
  for (size_t i = 0; right && i < wanted; ++i) right = (*table)[i].is_number() && (*table)[i].get<double>() >= 0;
  if (right) {
    config.inv_freq = table->get<std::vector<double>>();
  } else {
    keys.fail("rope_inv_freq", "got " + json_text(*table) + "; want " + std::to_string(wanted) +
                                   " numbers not below 0: one for every pair of qk_rope_head_dim");
  }
}

void read_token_ids(JsonKeys& keys, ModelConfig& config) {
  const Range ids{0, config.vocab - 1};
  if (keys.find("bos_token_id") != nullptr) config.bos_id = static_cast<int32_t>(keys.integer("bos_token_id", ids));
  const json* eos = keys.find("eos_token_id");
  if (eos == nullptr) return;
  for (const json& id : eos->is_array() ? *eos : json::array({*eos})) {
    const bool right = id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() < config.vocab;
    if (!right) return keys.fail("eos_token_id", "got " + json_text(*eos) + "; want ids below vocab_size, or null");
    config.eos_ids.push_back(static_cast<int32_t>(id.get<int64_t>()));
  }
}

Status read_quantization(JsonKeys& keys, ModelConfig& config) {
  const json* given = keys.find("quantization_config");
  if (given == nullptr) return {};
  if (!given->is_object())
    return invalid("config.json: quantization_config: got " + json_text(*given) + "; want an object");
  JsonKeys inner(*given, "config.json: quantization_config.");
  const std::string method = inner.text("quant_method", "");
  const std::string format = inner.text("fmt", "e4m3");
  if (method != "fp8")
    inner.fail("quant_method", "got " + in_quotes(method) + "; supported: fp8", StatusCode::kUnsupported);
  if (format != "e4m3") inner.fail("fmt", "got " + in_quotes(format) + "; supported: e4m3", StatusCode::kUnsupported);
  const json* block = inner.find("weight_block_size");
  if (block != nullptr && *block != json::array({128, 128})) {
    inner.fail("weight_block_size", "got " + json_text(*block) + "; supported: [128,128]", StatusCode::kUnsupported);
  }
  config.fp8_weights = true;
  return inner.status();
}

Result<ModelConfig> read_config(const json& object) {
  JsonKeys keys(object, "config.json: ");
  ModelConfig config;
  config.model_type = keys.text("model_type");
  if (keys.status().ok() && config.model_type != kV2 && config.model_type != kV3) {
    return unsupported("config.json: model_type: got " + in_quotes(config.model_type) + "; supported: " + kV2 + ", " +
                       kV3);
  }
  read_sizes(keys, config);
  read_q_lora_rank(object, keys, config);
  if (keys.status().ok()) read_experts(keys, config);
  if (keys.status().ok()) read_explicit(keys, config);
  if (keys.status().ok()) read_token_ids(keys, config);
  if (!keys.status().ok()) return keys.status();
  if (Status status = read_rope(keys, config); !status.ok()) return status;
  if (Status status = read_quantization(keys, config); !status.ok()) return status;
  return config;
}

}  // namespace

Result<ModelConfig> parse_model_config(const std::string& text) {
  const Result<json> parsed = parse_json(text, "config.json: ");
  if (!parsed.ok()) return parsed.status();
  const json& object = parsed.value();
  if (!object.is_object()) return invalid("config.json: got " + json_text(object) + "; want an object");
  return read_config(object);
}

Result<ModelConfig> load_model_config(const std::string& path) {
  const Result<std::string> text = read_file(path);
  if (!text.ok()) return text.status();
  Result<ModelConfig> config = parse_model_config(text.value());
  if (config.ok()) return config;
  return Status(config.status().code(), path + ": " + config.status().text());
}

}  // namespace flashmla::runner
