// What a model takes: weights by part, cache by token, and how much of both fits into a memory.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "runner/checkpoint/model_config.h"
#include "runner/checkpoint/tensor_list.h"

namespace flashmla::runner {

struct PartSize {
  int64_t tensors = 0;  // as in a checkpoint with one tensor for each expert; FP8 scales not counted
  int64_t parameters = 0;
  int64_t stored_bytes = 0;  // bf16, or FP8 with scales where the configuration says so; router biases fp32
  int64_t int8_bytes = 0;    // WeightPolicy::kInt8
};

struct ModelSize {
  std::array<PartSize, kParts> parts;  // by Part
  PartSize all;
  int64_t active_parameters = 0;  // that one token meets: embedding table left out, head included
};
ModelSize model_size(const ModelConfig& config);

// One line for each role that the model has, in the order of Role.
struct RoleSize {
  Role role;
  int64_t rows = 0;
  int64_t cols = 0;  // 0: a vector
  PartSize size;
};
std::vector<RoleSize> role_sizes(const ModelConfig& config);

// Bytes that one token takes in the caches of all layers.
struct CacheBytes {
  int64_t mla_bf16 = 0;
  int64_t mla_fp8 = 0;   // KvFormat::kFp8Tile128; 0 where kv_lora_rank does not fit the format
  int64_t mha_bf16 = 0;  // keys and values of every head, as a model without MLA would keep them
};
CacheBytes cache_bytes_per_token(const ModelConfig& config);

// `gpus` devices of `memory` bytes each.
struct FitQuestion {
  int64_t memory = 0;
  int64_t gpus = 1;
  int64_t weight_bytes = 0;      // of the whole model
  int64_t attention_bytes = 0;   // the part of them that data-parallel attention holds on every device
  int64_t cache_bytes = 0;       // a token
  int64_t tokens_a_request = 0;  // --max-model-len
};
struct Fit {
  int64_t weights_on_each = 0;
  int64_t missing_bytes = 0;  // on each device; > 0: not even the weights fit
  int64_t tokens = 0;         // that the caches of all devices hold together
  int64_t requests = 0;       // of full length
};
// Tensor parallel: weights divided, but the latent cache has one head and so lies whole on every device.
Fit fit_tensor_parallel(const FitQuestion& question);
// Data-parallel attention: attention weights on every device, the rest divided; each device caches its own requests.
Fit fit_data_parallel(const FitQuestion& question);

}  // namespace flashmla::runner
