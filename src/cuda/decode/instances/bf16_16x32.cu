#include "cuda/decode/instances/instance.cuh"

FLASHMLA_SPLIT_INSTANCE(bf16_16x32_split, __nv_bfloat16, k16x32)
