#include "cuda/decode/instances/instance.cuh"

FLASHMLA_SPLIT_INSTANCE(bf16_16_any_split, __nv_bfloat16, k16RowsAny)
FLASHMLA_COMBINE_INSTANCE(bf16_16_any_combine, __nv_bfloat16, k16RowsAny)
