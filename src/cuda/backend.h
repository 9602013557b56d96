// The CUDA back end: decode, append_kv and merge_states on NVIDIA GPUs.
#pragma once

#include <memory>

#include "flashmla/backend.h"

namespace flashmla {

std::unique_ptr<Backend> make_cuda_backend();

}  // namespace flashmla
