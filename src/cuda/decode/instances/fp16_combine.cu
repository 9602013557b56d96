#include "cuda/decode/instances/instance.cuh"

FLASHMLA_COMBINE_INSTANCE(fp16_16_combine, __half, 16, Widths::kTuned)
FLASHMLA_COMBINE_INSTANCE(fp16_32_combine, __half, 32, Widths::kTuned)
FLASHMLA_COMBINE_INSTANCE(fp16_16_any_combine, __half, 16, Widths::kAny)
