#include "cuda/decode/instances/instance.cuh"

FLASHMLA_FEW_ROWS_INSTANCE(bf16_hopper_32_split, bf16_hopper_32_combine, __nv_bfloat16, 32)
