// append_kv and merge_states of the "cpu" back end; parameters checked, slots included.
#pragma once

#include "core/host_cache.h"

namespace flashmla {

void cpu_append_kv(const AppendKvParams& params, const AppendShape& shape, int32_t threads);
void cpu_merge_states(const MergeStatesParams& params, const MergeShape& shape, int32_t threads);

}  // namespace flashmla
