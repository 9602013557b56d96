// What `status` of decode and append_kv asks for: a look at the values that only the device sees.
#pragma once

#include "core/host_cache.h"
#include "cuda/device.h"
#include "flashmla/cache.h"
#include "flashmla/decode.h"

namespace flashmla::cuda {

// Both write a BadValue to params.status, which is given: kNone first, then what is found. On the current device, ahead
// of the operation's own kernels on the stream, which do not know of it.
Status launch_check(const DecodeParams& params, const DecodeShape& shape, const DeviceInfo& device, void* stream);
Status launch_check(const AppendKvParams& params, const AppendShape& shape, const DeviceInfo& device, void* stream);

}  // namespace flashmla::cuda
