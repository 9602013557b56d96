#include "cuda/decode/hopper/rows64.cuh"
#include "cuda/decode/instances/instance.cuh"

const void* flashmla::cuda::bf16_64_split(LineKind /*kind*/) { return reinterpret_cast<const void*>(&decode_rows64<__nv_bfloat16>); }
FLASHMLA_COMBINE_INSTANCE(bf16_64_combine, __nv_bfloat16, (DecodeConfig{64, Widths::kTuned}))
