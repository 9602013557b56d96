#include "cuda/decode/instances/instance.cuh"

FLASHMLA_SPLIT_INSTANCE(fp16_16x32_any_split, __half, k16x32Any)
