// flashmla info --model: what a model takes and what fits beside it.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "run_header.h"

namespace flashmla::cli {

struct InfoModelFlags {
  std::string model;
  std::string memory;  // "96GiB"; empty: this machine's
  int64_t gpus = 1;
  int64_t max_model_len = 0;  // 0: the model's max_position_embeddings

  bool room_given() const { return !memory.empty() || gpus != 1 || max_model_len != 0; }
};
void add_info_model_flags(CLI::App& command, InfoModelFlags& flags);
// Prints the report and returns it for a JSON file. Throws UsageError.
Json print_model(const InfoModelFlags& flags);

}  // namespace flashmla::cli
