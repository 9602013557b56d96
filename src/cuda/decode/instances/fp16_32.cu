#include "cuda/decode/instances/instance.cuh"

FLASHMLA_SPLIT_INSTANCE(fp16_32_split, __half, k32Rows)
FLASHMLA_COMBINE_INSTANCE(fp16_32_combine, __half, k32Rows)
