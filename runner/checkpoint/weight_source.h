// Finds each tensor of a model in a checkpoint, under whichever name and in whichever form it is stored there.
#pragma once

#include <functional>
#include <string>
#include <unordered_set>
#include <vector>

#include "flashmla/status.h"
#include "runner/checkpoint/checkpoint.h"
#include "runner/checkpoint/model_config.h"
#include "runner/checkpoint/tensor_list.h"

namespace flashmla::runner {

// A slot's rows in a stored tensor [rows, cols], or [experts, rows, cols] of fused experts.
struct WeightSource {
  const Checkpoint::Tensor* tensor = nullptr;  // nullptr: not stored
  const Checkpoint::Tensor* scales = nullptr;  // of FP8 blocks: [.., fp8_blocks(rows), fp8_blocks(cols)]
  bool fused = false;
  int64_t index = 0;        // which expert of a fused tensor
  int64_t matrix_rows = 0;  // of one expert, or of the whole tensor
  int64_t first_row = 0;    // in these
};

class SourceFinder {
 public:
  SourceFinder(const Checkpoint& checkpoint, const ModelConfig& config) : checkpoint_(checkpoint), config_(config) {}

  // Absent and misfitting tensors are noted for status().
  WeightSource find(const TensorSlot& slot);
  // After all slots: one error that lists what is missing and what does not fit, `folder` first.
  Status status(const std::string& folder) const;
  // After all slots: one text for each kind of tensor that no slot uses.
  void warn_unused(const std::function<void(const std::string&)>& warning) const;

 private:
  WeightSource find_fused(const TensorSlot& slot);
  void find_scales(WeightSource& source);
  void check_type(const Checkpoint::Tensor& tensor, bool vector);
  bool check_shape(const Checkpoint::Tensor& tensor, const std::vector<int64_t>& shape);
  void note_bias(const TensorSlot& slot, bool found);

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  std::unordered_set<const Checkpoint::Tensor*> used_;
  std::vector<std::string> missing_;
  std::vector<std::string> misfits_;
  // Biases are optional, but all layers agree on which there are.
  std::vector<std::string> absent_biases_[kRoles];
  bool found_bias_[kRoles] = {};
};

}  // namespace flashmla::runner
