#include "cuda/decode/instances/instance.cuh"

FLASHMLA_SPLIT_INSTANCE(bf16_32_split, __nv_bfloat16, k32Rows)
FLASHMLA_COMBINE_INSTANCE(bf16_32_combine, __nv_bfloat16, k32Rows)
