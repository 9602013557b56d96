#include "info_model.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <optional>

#include "exit_code.h"
#include "flags.h"
#include "memory_size.h"
#include "runner/checkpoint/checkpoint_summary.h"
#include "runner/checkpoint/machine_memory.h"
#include "runner/checkpoint/model_folder.h"
#include "runner/checkpoint/model_size.h"
#include "table.h"

namespace flashmla::cli {

namespace {

using runner::Part;
using runner::Role;

struct Model {
  std::string path;
  runner::ModelConfig config;
  runner::ModelSize size;
  runner::CacheBytes cache;
  std::optional<runner::CheckpointSummary> checkpoint;  // absent: sizes follow from config.json

  int64_t stored_bytes() const { return checkpoint ? checkpoint->used_bytes : size.all.stored_bytes; }
  int64_t stored_bytes(Part part) const {
    if (!checkpoint) return size.parts[static_cast<size_t>(part)].stored_bytes;
    int64_t bytes = 0;
    for (int role = 0; role < runner::kRoles; ++role) {
      if (runner::role_info(static_cast<Role>(role)).part == part)
        bytes += checkpoint->roles[static_cast<size_t>(role)].bytes;
    }
    return bytes;
  }
};

void line(const char* name, const std::string& text) { fmt::print("  {:<14}{}\n", name, text); }

// "15,706,484,224"
std::string grouped(int64_t value) {
  std::string text = std::to_string(value);
  for (auto at = static_cast<int64_t>(text.size()) - 3; at > 0; at -= 3) text.insert(static_cast<size_t>(at), ",");
  return text;
}

std::string size_text(int64_t bytes) { return bytes_text(static_cast<double>(bytes)); }

Model open_model(const std::string& name) {
  Model model;
  const std::filesystem::path path = value_or_usage_error(runner::resolve_model(name));
  const bool folder = std::filesystem::is_directory(path);
  model.path = path.string();
  model.config = value_or_usage_error(runner::load_model_config((folder ? path / "config.json" : path).string()));
  model.size = runner::model_size(model.config);
  model.cache = runner::cache_bytes_per_token(model.config);
  if (folder && runner::has_checkpoint(path.string())) {
    model.checkpoint = value_or_usage_error(runner::summarize_checkpoint(path.string(), model.config));
  }
  return model;
}

void print_architecture(const std::string& name, const Model& model, Json& json) {
  const runner::ModelConfig& c = model.config;
  fmt::print("Model {}\n", name);
  if (model.path != name) line("path", model.path);
  line("architecture",
       fmt::format("{}: {} layers ({} dense), hidden {}, {} heads, latent {} + RoPE {}, vocabulary {}", c.model_type,
                   c.layers, c.routed_experts > 0 ? std::min(c.first_dense_layers, c.layers) : c.layers, c.hidden,
                   c.heads, c.kv_lora_rank, c.qk_rope_dim, c.vocab));
  if (c.routed_experts > 0) {
    line("experts", fmt::format("{} routed, {} of them for a token, {} shared", c.routed_experts, c.experts_per_token,
                                c.shared_experts));
  }
  line("softmax scale",
       fmt::format("{:.10f}{}", c.attention_scale(), c.yarn ? fmt::format(" (YaRN factor {:g})", c.yarn->factor) : ""));
  line("parameters", fmt::format("{}, of them {} for a token", grouped(model.size.all.parameters),
                                 grouped(model.size.active_parameters)));
  if (model.checkpoint) {
    line("checkpoint", fmt::format("{} tensors in {} file(s), nothing missing", grouped(model.checkpoint->tensors),
                                   model.checkpoint->files.size()));
    for (const std::string& note : model.checkpoint->notes) line("", note);
  } else {
    line("checkpoint", "no weights here: sizes follow from config.json");
  }
  json["model"] = name;
  json["path"] = model.path;
  json["model_type"] = c.model_type;
  json["softmax_scale"] = c.attention_scale();
  json["parameters"] = model.size.all.parameters;
  json["active_parameters"] = model.size.active_parameters;
  if (model.checkpoint)
    json["checkpoint"] = {{"files", model.checkpoint->files},
                          {"tensors", model.checkpoint->tensors},
                          {"bytes", model.checkpoint->bytes},
                          {"notes", model.checkpoint->notes}};
}

void print_parts(const Model& model, Json& json) {
  fmt::print("\nWeights\n");
  Table table({{"part", Align::kLeft}, {"tensors"}, {"parameters"}, {"as stored"}, {"int8"}});
  json["parts"] = Json::array();
  for (int i = 0; i < runner::kParts; ++i) {
    const auto part = static_cast<Part>(i);
    const runner::PartSize& size = model.size.parts[static_cast<size_t>(i)];
    if (size.tensors == 0) continue;
    const int64_t stored = model.stored_bytes(part);
    table.add({runner::part_name(part), grouped(size.tensors), grouped(size.parameters), size_text(stored),
               size_text(size.int8_bytes)});
    json["parts"].push_back({{"part", runner::part_name(part)},
                             {"tensors", size.tensors},
                             {"parameters", size.parameters},
                             {"stored_bytes", stored},
                             {"int8_bytes", size.int8_bytes}});
  }
  const runner::PartSize& all = model.size.all;
  table.add({"all", grouped(all.tensors), grouped(all.parameters), size_text(model.stored_bytes()),
             size_text(all.int8_bytes)});
  fmt::print("{}", table.text(2));
  json["weight_bytes"] = model.stored_bytes();
  json["int8_weight_bytes"] = all.int8_bytes;
}

// With a checkpoint, what its files hold; else what the configuration asks for.
void print_roles(const Model& model, Json& json) {
  fmt::print("\nTensors by role\n");
  Table table({{"name", Align::kLeft}, {"tensors"}, {"shape"}, {"type", Align::kLeft}, {"parameters"}, {"as stored"}});
  json["roles"] = Json::array();
  for (const runner::RoleSize& line : runner::role_sizes(model.config)) {
    int64_t tensors = line.size.tensors;
    int64_t bytes = line.size.stored_bytes;
    std::string type = bytes < 2 * line.size.parameters ? "F8_E4M3" : bytes > 2 * line.size.parameters ? "F32" : "BF16";
    if (model.checkpoint) {
      const runner::StoredRole& stored = model.checkpoint->roles[static_cast<size_t>(line.role)];
      if (stored.tensors == 0) continue;  // a bias that this model does without
      tensors = stored.tensors;
      bytes = stored.bytes;
      type = stored.type;
    }
    const std::string shape =
        line.cols == 0 ? fmt::format("[{}]", line.rows) : fmt::format("[{}, {}]", line.rows, line.cols);
    const bool expert = runner::role_info(line.role).part == Part::kRoutedExperts;
    const std::string name = fmt::format("{}{}", expert ? "mlp.experts.N." : "", runner::role_info(line.role).suffix);
    table.add({name, grouped(tensors), shape, type, grouped(line.size.parameters), size_text(bytes)});
    json["roles"].push_back({{"name", name},
                             {"tensors", tensors},
                             {"rows", line.rows},
                             {"cols", line.cols},
                             {"type", type},
                             {"parameters", line.size.parameters},
                             {"stored_bytes", bytes}});
  }
  fmt::print("{}", table.text(2));
}

void print_cache(const Model& model, Json& json) {
  const runner::CacheBytes& cache = model.cache;
  fmt::print("\nCache, bytes a token in all {} layers\n", model.config.layers);
  Table table({{"form", Align::kLeft}, {"bytes"}, {"of the MHA form"}});
  const auto add = [&](const char* form, int64_t bytes) {
    if (bytes == 0) return;
    table.add({form, grouped(bytes),
               fmt::format("{:.1f} %", 100.0 * static_cast<double>(bytes) / static_cast<double>(cache.mha_bf16))});
  };
  add("MLA bf16", cache.mla_bf16);
  add("MLA FP8", cache.mla_fp8);
  add("MHA bf16", cache.mha_bf16);
  fmt::print("{}", table.text(2));
  json["cache_bytes_per_token"] = {
      {"mla_bf16", cache.mla_bf16}, {"mla_fp8", cache.mla_fp8}, {"mha_bf16", cache.mha_bf16}};
}

struct Room {
  int64_t memory;  // of one device
  int64_t gpus;
  int64_t max_model_len;
};

struct FitRow {
  const char* weights;
  const char* cache;
  const char* division;
  runner::Fit fit;
};

std::vector<FitRow> fit_rows(const Model& model, const Room& room) {
  struct Form {
    const char* name;
    int64_t bytes;
    bool by_head;
  };
  const std::array<Form, 3> forms = {{{"MLA bf16", model.cache.mla_bf16, false},
                                      {"MLA FP8", model.cache.mla_fp8, false},
                                      {"MHA bf16", model.cache.mha_bf16, true}}};
  const runner::PartSize& attention = model.size.parts[static_cast<size_t>(Part::kAttention)];
  std::vector<FitRow> rows;
  for (const bool int8 : {false, true}) {
    for (const Form& form : forms) {
      if (form.bytes == 0) continue;
      runner::FitQuestion question;
      question.memory = room.memory;
      question.gpus = room.gpus;
      question.weight_bytes = int8 ? model.size.all.int8_bytes : model.stored_bytes();
      question.attention_bytes = int8 ? attention.int8_bytes : model.stored_bytes(Part::kAttention);
      // The heads of the MHA form are divided over the devices; the latent is one for all heads.
      question.cache_bytes = form.by_head ? (form.bytes + room.gpus - 1) / room.gpus : form.bytes;
      question.tokens_a_request = room.max_model_len;
      const char* weights = int8 ? "int8" : "as stored";
      rows.push_back(
          {weights, form.name, room.gpus > 1 ? "tensor parallel" : "-", runner::fit_tensor_parallel(question)});
      if (room.gpus == 1 || form.by_head) continue;
      rows.push_back({weights, form.name, "data-parallel attention", runner::fit_data_parallel(question)});
    }
  }
  return rows;
}

void print_fit(const Model& model, const Room& room, bool own_memory, Json& json) {
  fmt::print("\nFits into {}{}{} (weights and cache; activations, code and other programs not counted)\n",
             room.gpus > 1 ? fmt::format("{} x ", room.gpus) : "", size_text(room.memory),
             own_memory ? ", this machine's memory" : "");
  Table table({{"weights", Align::kLeft},
               {"cache", Align::kLeft},
               {"divided", Align::kLeft},
               {"weights on each"},
               {"tokens"},
               {fmt::format("requests of {}", room.max_model_len)}});
  json["memory_bytes"] = room.memory;
  json["gpus"] = room.gpus;
  json["max_model_len"] = room.max_model_len;
  json["fits"] = Json::array();
  for (const FitRow& row : fit_rows(model, room)) {
    const runner::Fit& fit = row.fit;
    const bool fits = fit.missing_bytes == 0;
    table.add({row.weights, row.cache, row.division, size_text(fit.weights_on_each),
               fits ? grouped(fit.tokens) : fmt::format("{} too large", size_text(fit.missing_bytes)),
               fits ? grouped(fit.requests) : ""});
    json["fits"].push_back({{"weights", row.weights},
                            {"cache", row.cache},
                            {"divided", row.division},
                            {"weights_on_each", fit.weights_on_each},
                            {"missing_bytes", fit.missing_bytes},
                            {"tokens", fit.tokens},
                            {"requests", fit.requests}});
  }
  fmt::print("{}", table.text(2));
}

}  // namespace

void add_info_model_flags(CLI::App& command, InfoModelFlags& flags) {
  add_text(command, "--model", flags.model, "MODEL",
           "checkpoint folder, config.json, or ORG/NAME in a local cache: its weights and cache, and what fits");
  add_text(command, "--memory", flags.memory, "SIZE", "of each device, for --model (default: this machine's)");
  add_integer(command, "--gpus", flags.gpus, {1, 65536}, "devices that share the model, for --model");
  add_integer(command, "--max-model-len", flags.max_model_len, {1, int64_t{1} << 31},
              "tokens of a request, for --model (default: the model's most)");
}

Json print_model(const InfoModelFlags& flags) {
  Room room{flags.memory.empty() ? runner::total_memory() : parse_memory("--memory", flags.memory), flags.gpus,
            flags.max_model_len};
  const Model model = open_model(flags.model);
  if (room.max_model_len == 0) room.max_model_len = model.config.max_position;
  if (room.max_model_len > model.config.max_position) {
    throw UsageError(fmt::format("--max-model-len: got {}; want at most the model's max_position_embeddings, {}",
                                 room.max_model_len, model.config.max_position));
  }
  Json json;
  print_architecture(flags.model, model, json);
  print_parts(model, json);
  print_roles(model, json);
  print_cache(model, json);
  print_fit(model, room, flags.memory.empty(), json);
  return json;
}

}  // namespace flashmla::cli
