// append_kv and merge_states on the GPU.
#pragma once

#include "core/host_cache.h"
#include "cuda/device.h"
#include "flashmla/cache.h"
#include "flashmla/merge.h"

namespace flashmla::cuda {

// Both on the current device, and nothing is launched where there is nothing to do. A slot outside the cache is
// skipped. Of duplicate slots the last one wins whole.
Status launch_append(const AppendKvParams& params, const AppendShape& shape, const DeviceInfo& device, void* stream);
Status launch_merge(const MergeStatesParams& params, const MergeShape& shape, const DeviceInfo& device, void* stream);

}  // namespace flashmla::cuda
