// What a checkpoint holds of a model, looked up in its headers alone.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "flashmla/status.h"
#include "runner/checkpoint/model_config.h"
#include "runner/checkpoint/tensor_list.h"

namespace flashmla::runner {

struct StoredRole {
  int64_t tensors = 0;  // in the files: fused experts are one
  int64_t bytes = 0;    // with the scales of FP8 blocks
  std::string type;     // "BF16"; "BF16, F32" where tensors of the role differ
};

struct CheckpointSummary {
  std::vector<std::string> files;
  int64_t tensors = 0;                   // in all files
  int64_t bytes = 0;                     // of them
  int64_t used_bytes = 0;                // of those that the model has
  std::array<StoredRole, kRoles> roles;  // by Role
  std::vector<std::string> notes;        // tensors that the model does not use, one text a kind
};

// Errors as load_weights: missing files, missing tensors, wrong shapes and types.
Result<CheckpointSummary> summarize_checkpoint(const std::string& folder, const ModelConfig& config);
// Whether load_weights would find files in `folder` at all.
bool has_checkpoint(const std::string& folder);

}  // namespace flashmla::runner
