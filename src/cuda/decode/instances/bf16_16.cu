#include "cuda/decode/instances/instance.cuh"

FLASHMLA_SPLIT_INSTANCE(bf16_16_split, __nv_bfloat16, k16Rows)
FLASHMLA_COMBINE_INSTANCE(bf16_16_combine, __nv_bfloat16, k16Rows)
