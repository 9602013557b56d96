#include "cuda/decode/instances/instance.cuh"

FLASHMLA_FEW_ROWS_INSTANCE(fp16_hopper_16_split, fp16_hopper_16_combine, __half, 16)
