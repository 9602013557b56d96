// The flags that describe a decode call; the same names, meaning and texts in every subcommand.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "flashmla/context.h"
#include "flashmla/decode.h"

namespace flashmla::cli {

// One length for all requests, a list with one length each, or a range from which each request draws its own.
struct LengthSpec {
  std::vector<int64_t> values{4096};
  bool is_range = false;  // values = {least, most}
};

struct ShapeFlags {
  int64_t batch = 8;
  int64_t heads_q = 16;
  int64_t heads_kv = 1;
  int64_t seq_q = 1;
  LengthSpec seq_k;
  int64_t page_size = 64;
  int64_t latent_dim = 512;
  int64_t rope_dim = 64;
  std::string dtype = "bf16";
  bool causal = false;
  std::string backend;  // empty: the library chooses
  std::string isa;      // empty: the library chooses
  int64_t threads = 0;  // 0: the library chooses
  int64_t splits = 0;   // 0: the back end chooses
  int64_t seed = 1;
  std::string json_file;

  bool shape_given = false;  // any flag that changes the shape itself (not backend, isa, threads, splits, seed)
  bool any_given = false;    // any flag above but --json
};

void add_shape_flags(CLI::App& app, ShapeFlags& flags);
// To be called once the command line has been read: settles the batch of a list of lengths. Throws UsageError.
void finish_shape_flags(const CLI::App& app, ShapeFlags& flags);

// One cached length per request; a range is drawn from the seed.
std::vector<int64_t> request_lengths(const ShapeFlags& flags);

// Context and options point into `flags`.
Context run_context(const ShapeFlags& flags);
DecodeOptions run_options(const ShapeFlags& flags);

DType dtype_of(const std::string& name);

// The shape as the library sees and checks it, without any tensor behind it. Throws UsageError with the library's text.
DecodeShape checked_shape(const ShapeFlags& flags, const std::vector<int64_t>& lengths);

// "b 8, s_q 1, h_q 16, h_kv 1, s_k 4096, page 64, 512+64, bf16"
std::string shape_text(const DecodeShape& shape, const std::vector<int64_t>& lengths);
// "4096" or "100..4096 (mean 1800)"
std::string lengths_text(const std::vector<int64_t>& lengths);

}  // namespace flashmla::cli
