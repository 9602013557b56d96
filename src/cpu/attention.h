// Decode and prefill on the "cpu" back end: schedule over requests, KV heads, row tiles and key splits.
#pragma once

#include "core/host_attention.h"
#include "cpu/attention_item.h"
#include "cpu/attention_layout.h"

namespace flashmla {

void cpu_attention(const HostAttention& call, const AttentionKernel& kernel, const AttentionLayout& layout,
                   std::byte* workspace);

}  // namespace flashmla
