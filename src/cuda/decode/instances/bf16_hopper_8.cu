#include "cuda/decode/instances/instance.cuh"

FLASHMLA_FEW_ROWS_INSTANCE(bf16_hopper_8_split, __nv_bfloat16, 8)
FLASHMLA_COMBINE_INSTANCE(bf16_8_combine, __nv_bfloat16, (DecodeConfig{8, Widths::kTuned}))
