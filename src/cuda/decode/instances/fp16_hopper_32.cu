#include "cuda/decode/instances/instance.cuh"

FLASHMLA_FEW_ROWS_INSTANCE(fp16_hopper_32_split, __half, 32)
