#include "cuda/decode/instances/instance.cuh"

FLASHMLA_SPLIT_INSTANCE(fp16_32x64_split, __half, k32x64)
