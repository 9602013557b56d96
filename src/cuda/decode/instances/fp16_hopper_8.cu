#include "cuda/decode/instances/instance.cuh"

FLASHMLA_FEW_ROWS_INSTANCE(fp16_hopper_8_split, __half, 8)
FLASHMLA_COMBINE_INSTANCE(fp16_8_combine, __half, (DecodeConfig{8, Widths::kTuned}))
