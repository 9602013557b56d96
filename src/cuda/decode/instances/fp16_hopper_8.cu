#include "cuda/decode/instances/instance.cuh"

FLASHMLA_FEW_ROWS_INSTANCE(fp16_hopper_8_split, fp16_hopper_8_combine, __half, 8)
