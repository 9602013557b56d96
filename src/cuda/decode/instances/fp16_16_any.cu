#include "cuda/decode/instances/instance.cuh"

FLASHMLA_SPLIT_INSTANCE(fp16_16_any_split, __half, k16RowsAny)
FLASHMLA_COMBINE_INSTANCE(fp16_16_any_combine, __half, k16RowsAny)
