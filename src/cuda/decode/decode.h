// Decode on the GPU: two kernels, split and combine, and no plan between them.
#pragma once

#include <cstdint>

#include "cuda/decode/table.h"
#include "cuda/device.h"
#include "flashmla/decode.h"

namespace flashmla::cuda {

// Two partial tiles a multiprocessor, whatever the batch and the lengths; where splits are forced or follow from each
// request's own length, one for every split of every tile. As much as `entry` needs, and as any kernel that a shape
// with smaller sizes would run: what suffices for the largest shape suffices for all.
int64_t decode_workspace_bytes(const DecodeShape& shape, const DecodeOptions& options, const DecodeEntry& entry,
                               const DeviceInfo& device);

// On the current device.
Status launch_decode(const DecodeParams& params, const DecodeShape& shape, const DecodeEntry& entry,
                     const DeviceInfo& device, Workspace workspace, void* stream);

}  // namespace flashmla::cuda
