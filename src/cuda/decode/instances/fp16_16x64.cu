#include "cuda/decode/instances/instance.cuh"

FLASHMLA_SPLIT_INSTANCE(fp16_16x64_split, __half, k16x64)
