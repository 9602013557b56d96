// The C API's structs as those of the C++ API.
#pragma once

#include "flashmla/c.h"
#include "flashmla/cache.h"
#include "flashmla/context.h"
#include "flashmla/decode.h"
#include "flashmla/merge.h"
#include "flashmla/prefill.h"

namespace flashmla {

// Null contexts and options give the defaults, null params an error.
Result<Context> context_from_c(const flashmla_context* context);
Result<DecodeOptions> options_from_c(const flashmla_decode_options* options);
Result<DecodeParams> decode_params_from_c(const flashmla_decode_params* params);
Result<DecodeShape> decode_shape_from_c(const flashmla_decode_shape* shape);
Result<PrefillParams> prefill_params_from_c(const flashmla_prefill_params* params);
Result<PrefillShape> prefill_shape_from_c(const flashmla_prefill_shape* shape);
Result<AppendKvParams> append_params_from_c(const flashmla_append_kv_params* params);
Result<MergeStatesParams> merge_params_from_c(const flashmla_merge_states_params* params);

Status write_decode_shape(const DecodeShape& from, flashmla_decode_shape* to);
Status write_prefill_shape(const PrefillShape& from, flashmla_prefill_shape* to);
// The texts go to memory of the calling thread.
Status write_kernel_choice(const KernelChoice& from, flashmla_kernel_choice* to);

}  // namespace flashmla
