// Which tensors a model of a given configuration has: names, shapes, roles, and where each goes in Weights. The one
// list behind loading, random weights and every size that is reported.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runner/checkpoint/model_config.h"
#include "runner/checkpoint/weights.h"

namespace flashmla::runner {

// Parts of a model that sizes are added up for.
enum class Part { kEmbedding, kAttention, kDenseMlp, kRoutedExperts, kSharedExperts, kRouter, kNorms, kHead };
inline constexpr int kParts = 8;
const char* part_name(Part part);

enum class Role {
  kEmbedding,
  kInputNorm,
  kQ,
  kQBias,
  kQA,
  kQABias,
  kQANorm,
  kQB,
  kQBBias,
  kKvA,
  kKvABias,
  kKvANorm,
  kKvB,
  kO,
  kOBias,
  kPostAttentionNorm,
  kDenseGate,
  kDenseUp,
  kDenseDown,
  kRouter,
  kRouterBias,
  kExpertGate,
  kExpertUp,
  kExpertDown,
  kSharedGate,
  kSharedUp,
  kSharedDown,
  kNorm,
  kHead,
};
inline constexpr int kRoles = static_cast<int>(Role::kHead) + 1;

struct RoleInfo {
  Role role;
  const char* suffix;  // of the tensor's name, behind "model.layers.N." where the role stands in layers
  Part part;
  bool projection;  // what int8 and FP8 checkpoints hold in 8 bits (kHead: int8 only)
};
const RoleInfo& role_info(Role role);

struct TensorSlot {
  Role role = Role::kNorm;
  int64_t layer = -1;   // -1: outside the layers
  int64_t expert = -1;  // -1: no routed expert
  std::string name;     // with ".weight"; of an expert: the form with one tensor for each
  int64_t rows = 0;
  int64_t cols = 0;      // 0: a vector
  bool required = true;  // biases of attention may be absent one by one

  // Exactly one of them: where the tensor goes.
  Matrix* matrix = nullptr;
  std::vector<float>* vector = nullptr;

  int64_t elements() const { return rows * (cols == 0 ? 1 : cols); }
};

// Sizes `weights` (layers, experts) and lists its slots in the order of a forward pass. The slots point into `weights`.
// A tied head has no slot.
std::vector<TensorSlot> list_tensors(const ModelConfig& config, Weights& weights);

}  // namespace flashmla::runner
