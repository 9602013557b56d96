#include "cuda/decode/instances/instance.cuh"

FLASHMLA_SPLIT_INSTANCE(fp16_16_split, __half, k16Rows)
FLASHMLA_COMBINE_INSTANCE(fp16_16_combine, __half, k16Rows)
