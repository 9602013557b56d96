// Decode on the "cpu" back end: schedule over requests, KV heads, row tiles and key splits.
#pragma once

#include "core/host_decode.h"
#include "cpu/decode_item.h"
#include "cpu/decode_layout.h"

namespace flashmla {

void cpu_decode(const HostDecode& call, const DecodeKernel& kernel, const DecodeLayout& layout, std::byte* workspace);

}  // namespace flashmla
