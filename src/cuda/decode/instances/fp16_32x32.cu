#include "cuda/decode/instances/instance.cuh"

FLASHMLA_SPLIT_INSTANCE(fp16_32x32_split, __half, k32x32)
