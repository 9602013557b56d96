#include "shape_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include "exit_code.h"
#include "flags.h"

namespace flashmla::cli {

namespace {

constexpr IntegerRange kFromZero{0, std::numeric_limits<int32_t>::max()};
constexpr IntegerRange kBatches{0, int64_t{1} << 24};  // the list of lengths still fits anywhere
constexpr const char* kShapeGroup = "Shape";
constexpr const char* kRunGroup = "Run";

LengthSpec parse_lengths(const std::string& text) {
  LengthSpec spec;
  const size_t colon = text.find(':');
  if (colon == std::string::npos) {
    spec.values = parse_integers("--seq-k", text, kFromZero);
    return spec;
  }
  spec.is_range = true;
  spec.values = {parse_integer("--seq-k", text.substr(0, colon), kFromZero),
                 parse_integer("--seq-k", text.substr(colon + 1), kFromZero)};
  if (spec.values[0] > spec.values[1]) {
    throw UsageError(fmt::format("--seq-k: got '{}'; want LO:HI with LO <= HI", text));
  }
  return spec;
}

void add_sizes(CLI::App& app, ShapeFlags& flags) {
  add_integer(app, "--batch", flags.batch, kBatches, "requests, b")->group(kShapeGroup);
  add_integer(app, "--heads-q", flags.heads_q, kFromZero, "query heads, h_q")->group(kShapeGroup);
  add_integer(app, "--heads-kv", flags.heads_kv, kFromZero, "KV heads, h_kv (1 in MLA); divides h_q")
      ->group(kShapeGroup);
  add_integer(app, "--seq-q", flags.seq_q, kFromZero, "query tokens of each request, s_q")->group(kShapeGroup);
  app.add_option_function<std::string>(
         "--seq-k", [&flags](const std::string& text) { flags.seq_k = parse_lengths(text); },
         "cached tokens of a request, s_k: one for all, one for each, or drawn from LO .. HI")
      ->type_name("N|N,N,..|LO:HI")
      ->default_str("4096")
      ->group(kShapeGroup);
  add_integer(app, "--page-size", flags.page_size, kFromZero, "tokens of a cache page")->group(kShapeGroup);
  add_integer(app, "--latent-dim", flags.latent_dim, kFromZero, "latent width, d_v")->group(kShapeGroup);
  add_integer(app, "--rope-dim", flags.rope_dim, kFromZero, "RoPE width; d_qk = latent + RoPE")->group(kShapeGroup);
  add_choice(app, "--dtype", flags.dtype, {"bf16", "fp16", "fp32"}, "of query, cache and output")->group(kShapeGroup);
  app.add_flag("--causal", flags.causal, "query i of s_q sees the first s_k - s_q + i + 1 keys only")
      ->disable_flag_override()
      ->group(kShapeGroup);
}

}  // namespace

void add_shape_flags(CLI::App& app, ShapeFlags& flags) {
  add_sizes(app, flags);
  add_text(app, "--backend", flags.backend, "NAME", "back end; left out: the best that takes the call")
      ->group(kRunGroup);
  add_text(app, "--isa", flags.isa, "NAME", "instruction set of back end cpu; left out: the best of this processor")
      ->group(kRunGroup);
  add_integer(app, "--threads", flags.threads, {0, 4096}, "threads; 0: as many as this process may use")
      ->group(kRunGroup);
  add_integer(app, "--splits", flags.splits, {0, std::numeric_limits<int32_t>::max()},
              "parts that each request's keys are cut into; 0: the back end chooses")
      ->group(kRunGroup);
  add_integer(app, "--seed", flags.seed, {0, std::numeric_limits<int64_t>::max()}, "of the random inputs")
      ->group(kRunGroup);
  add_text(app, "--json", flags.json_file, "FILE", "also write the results as JSON")->group(kRunGroup);
}

void finish_shape_flags(const CLI::App& app, ShapeFlags& flags) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0) continue;
    if (option->get_group() == kShapeGroup) flags.shape_given = true;
    if (option->get_group() == kRunGroup && option->get_name() != "--json") flags.any_given = true;
  }
  flags.any_given = flags.any_given || flags.shape_given;
  const auto entries = static_cast<int64_t>(flags.seq_k.values.size());
  if (flags.seq_k.is_range || entries == 1) return;
  if (app.get_option("--batch")->count() > 0 && flags.batch != entries) {
    throw UsageError(
        fmt::format("--seq-k: got {} lengths with --batch {}; want one length for each request, "
                    "one for all, or LO:HI",
                    entries, flags.batch));
  }
  flags.batch = entries;
}

std::vector<int64_t> request_lengths(const ShapeFlags& flags) {
  if (!flags.seq_k.is_range) {
    if (flags.seq_k.values.size() > 1) return flags.seq_k.values;
    return std::vector<int64_t>(static_cast<size_t>(flags.batch), flags.seq_k.values.front());
  }
  std::mt19937_64 engine(static_cast<uint64_t>(flags.seed));
  const auto span = static_cast<uint64_t>(flags.seq_k.values[1] - flags.seq_k.values[0]) + 1;
  std::vector<int64_t> lengths(static_cast<size_t>(flags.batch));
  for (int64_t& length : lengths) length = flags.seq_k.values[0] + static_cast<int64_t>(engine() % span);
  return lengths;
}

Context run_context(const ShapeFlags& flags) {
  Context context;
  context.backend = flags.backend;
  context.isa = flags.isa;
  context.threads = static_cast<int32_t>(flags.threads);
  return context;
}

DecodeOptions run_options(const ShapeFlags& flags) {
  DecodeOptions options;
  options.splits = static_cast<int32_t>(flags.splits);
  return options;
}

DType dtype_of(const std::string& name) {
  if (name == "fp32") return DType::kFloat32;
  return name == "fp16" ? DType::kFloat16 : DType::kBFloat16;
}

DecodeShape checked_shape(const ShapeFlags& flags, const std::vector<int64_t>& lengths) {
  alignas(64) static std::byte nothing[64];  // decode_shape looks at addresses, never behind them
  const DType dtype = dtype_of(flags.dtype);
  const int64_t page = std::max<int64_t>(flags.page_size, 1);  // a page of 0 tokens is the library's to refuse
  const int64_t d_qk = flags.latent_dim + flags.rope_dim;
  int64_t pages = 0;
  int64_t width = 0;
  for (const int64_t length : lengths) {
    const int64_t used = (length + page - 1) / page;
    pages += used;
    width = std::max(width, used);
  }
  DecodeParams params;
  params.q = ConstTensorView::contiguous(nothing, dtype, {flags.batch, flags.seq_q, flags.heads_q, d_qk});
  params.kv_cache = ConstTensorView::contiguous(nothing, dtype, {pages, flags.page_size, flags.heads_kv, d_qk});
  params.page_table = ConstTensorView::contiguous(nothing, DType::kInt32, {flags.batch, width});
  params.seq_lens = ConstTensorView::contiguous(nothing, DType::kInt32, {flags.batch});
  params.out = TensorView::contiguous(nothing, dtype, {flags.batch, flags.seq_q, flags.heads_q, flags.latent_dim});
  params.latent_dim = flags.latent_dim;
  params.softmax_scale = 1;
  params.causal = flags.causal;
  params.options = run_options(flags);
  return value_or_usage_error(decode_shape(params));
}

std::string lengths_text(const std::vector<int64_t>& lengths) {
  if (lengths.empty()) return "none";
  const auto [least, most] = std::ranges::minmax(lengths);
  if (least == most) return fmt::format("{}", least);
  const int64_t mean =
      std::accumulate(lengths.begin(), lengths.end(), int64_t{0}) / static_cast<int64_t>(lengths.size());
  return fmt::format("{}..{} (mean {})", least, most, mean);
}

std::string shape_text(const DecodeShape& shape, const std::vector<int64_t>& lengths) {
  return fmt::format("b {}, s_q {}, h_q {}, h_kv {}, s_k {}, page {}, {}+{}, {}{}", shape.batch, shape.seq_q,
                     shape.heads_q, shape.heads_kv, lengths_text(lengths), shape.page_size, shape.latent_dim,
                     shape.rope_dim, dtype_name(shape.dtype), shape.causal ? ", causal" : "");
}

}  // namespace flashmla::cli
