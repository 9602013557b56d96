#include "cuda/decode/instances/instance.cuh"

FLASHMLA_COMBINE_INSTANCE(bf16_16_combine, __nv_bfloat16, 16, Widths::kTuned)
FLASHMLA_COMBINE_INSTANCE(bf16_32_combine, __nv_bfloat16, 32, Widths::kTuned)
FLASHMLA_COMBINE_INSTANCE(bf16_16_any_combine, __nv_bfloat16, 16, Widths::kAny)
