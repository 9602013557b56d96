#include "runner/checkpoint/model_size.h"

#include <algorithm>

#include "flashmla/kv_format.h"
#include "runner/checkpoint/fp8_blocks.h"

namespace flashmla::runner {

namespace {

constexpr int64_t kFloatBytes = 4;

bool stored_as_fp8(const ModelConfig& config, const TensorSlot& slot) {
  return config.fp8_weights && role_info(slot.role).projection && slot.role != Role::kHead;
}

PartSize slot_size(const ModelConfig& config, const TensorSlot& slot) {
  PartSize size;
  size.tensors = 1;
  size.parameters = slot.elements();
  size.stored_bytes = size.parameters * (slot.role == Role::kRouterBias ? kFloatBytes : 2);
  if (stored_as_fp8(config, slot)) {
    size.stored_bytes = size.parameters + kFloatBytes * fp8_blocks(slot.rows) * fp8_blocks(slot.cols);
  }
  // Vectors are widened to fp32 at load; quantised matrices have a scale for each row.
  size.int8_bytes = slot.vector != nullptr            ? kFloatBytes * size.parameters
                    : role_info(slot.role).projection ? size.parameters + kFloatBytes * slot.rows
                                                      : 2 * size.parameters;
  return size;
}

void add(PartSize& to, const PartSize& more) {
  to.tensors += more.tensors;
  to.parameters += more.parameters;
  to.stored_bytes += more.stored_bytes;
  to.int8_bytes += more.int8_bytes;
}

Fit fit(const FitQuestion& question, int64_t weights_on_each, int64_t caches) {
  Fit result;
  result.weights_on_each = weights_on_each;
  const int64_t room = question.memory - weights_on_each;
  if (room < 0) {
    result.missing_bytes = -room;
    return result;
  }
  const int64_t tokens_on_each = room / question.cache_bytes;
  result.tokens = tokens_on_each * caches;
  result.requests = tokens_on_each / question.tokens_a_request * caches;
  return result;
}

int64_t share(int64_t bytes, int64_t gpus) { return (bytes + gpus - 1) / gpus; }

}  // namespace

ModelSize model_size(const ModelConfig& config) {
  Weights weights;
  ModelSize result;
  int64_t routed = 0;
  for (const TensorSlot& slot : list_tensors(config, weights)) {
    const PartSize size = slot_size(config, slot);
    add(result.parts[static_cast<size_t>(role_info(slot.role).part)], size);
    add(result.all, size);
    if (slot.expert >= 0) routed += size.parameters;
  }
  const int64_t embedding = result.parts[static_cast<size_t>(Part::kEmbedding)].parameters;
  result.active_parameters = result.all.parameters - routed - (config.tie_embeddings ? 0 : embedding);
  if (config.routed_experts > 0) {
    result.active_parameters += routed / config.routed_experts * config.experts_per_token;
  }
  return result;
}

std::vector<RoleSize> role_sizes(const ModelConfig& config) {
  Weights weights;
  std::vector<RoleSize> sizes(kRoles);
  for (const TensorSlot& slot : list_tensors(config, weights)) {
    RoleSize& line = sizes[static_cast<size_t>(slot.role)];
    line = {slot.role, slot.rows, slot.cols, line.size};
    add(line.size, slot_size(config, slot));
  }
  std::erase_if(sizes, [](const RoleSize& line) { return line.size.tensors == 0; });
  return sizes;
}

CacheBytes cache_bytes_per_token(const ModelConfig& config) {
  constexpr int64_t kFp8Tile = 128;  // latent values that share a scale
  const auto bytes = [&](KvFormat format) {
    return config.layers * kv_bytes_per_token(format, config.kv_lora_rank, config.qk_rope_dim);
  };
  CacheBytes result;
  result.mla_bf16 = bytes(KvFormat::kBF16);
  result.mla_fp8 = config.kv_lora_rank % kFp8Tile == 0 ? bytes(KvFormat::kFp8Tile128) : 0;
  result.mha_bf16 = config.layers * config.heads * (config.qk_dim() + config.v_dim) * 2;
  return result;
}

Fit fit_tensor_parallel(const FitQuestion& question) {
  return fit(question, share(question.weight_bytes, question.gpus), 1);
}

Fit fit_data_parallel(const FitQuestion& question) {
  const int64_t divided = share(question.weight_bytes - question.attention_bytes, question.gpus);
  return fit(question, question.attention_bytes + divided, question.gpus);
}

}  // namespace flashmla::runner
