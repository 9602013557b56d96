// append_kv and merge_states whose tensors lie in host memory: what their checks leave to know.
#pragma once

#include <cstdint>

#include "flashmla/cache.h"
#include "flashmla/merge.h"

namespace flashmla {

struct AppendShape {
  int64_t tokens = 0;
  int64_t latent_dim = 0;
  int64_t rope_dim = 0;
  int64_t pages = 0;
  int64_t page_size = 0;
  DType dtype = DType::kBFloat16;
};

struct MergeShape {
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t width = 0;
  DType dtype = DType::kBFloat16;
};

// Checks everything that needs no look into the tensors.
Result<AppendShape> append_shape(const AppendKvParams& params);
Result<MergeShape> merge_shape(const MergeStatesParams& params);

// kOutOfRange when a slot is at or past pages * page_size.
Status check_host_slots(const AppendKvParams& params, const AppendShape& shape);

}  // namespace flashmla
