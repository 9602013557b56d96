#include "cuda/decode/instances/instance.cuh"

FLASHMLA_SPLIT_INSTANCE(bf16_32x32_split, __nv_bfloat16, k32x32)
