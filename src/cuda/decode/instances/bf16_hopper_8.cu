#include "cuda/decode/instances/instance.cuh"

FLASHMLA_FEW_ROWS_INSTANCE(bf16_hopper_8_split, bf16_hopper_8_combine, __nv_bfloat16, 8)
