#include "cuda/decode/hopper/rows64.cuh"
#include "cuda/decode/instances/instance.cuh"

const void* flashmla::cuda::fp16_64_split(LineKind /*kind*/) { return reinterpret_cast<const void*>(&decode_rows64<__half>); }
FLASHMLA_COMBINE_INSTANCE(fp16_64_combine, __half, (DecodeConfig{64, Widths::kTuned}))
