#include "cuda/decode/instances/instance.cuh"

FLASHMLA_FEW_ROWS_INSTANCE(fp16_hopper_32_split, fp16_hopper_32_combine, __half, 32)
