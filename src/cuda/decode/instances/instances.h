// Host stubs of the kernels, for the table: each defined by a source file of this folder.
#pragma once

#include "cuda/decode/schedule.h"

namespace flashmla::cuda {

const void* bf16_16_split(LineKind kind);
const void* bf16_16_combine(LineKind kind);
const void* bf16_32_split(LineKind kind);
const void* bf16_32_combine(LineKind kind);
const void* bf16_16_any_split(LineKind kind);
const void* bf16_16_any_combine(LineKind kind);
const void* fp16_16_split(LineKind kind);
const void* fp16_16_combine(LineKind kind);
const void* fp16_32_split(LineKind kind);
const void* fp16_32_combine(LineKind kind);
const void* fp16_16_any_split(LineKind kind);
const void* fp16_16_any_combine(LineKind kind);

const void* bf16_hopper_8_split(LineKind kind);
const void* bf16_hopper_8_combine(LineKind kind);
const void* bf16_hopper_16_split(LineKind kind);
const void* bf16_hopper_16_combine(LineKind kind);
const void* bf16_hopper_32_split(LineKind kind);
const void* bf16_hopper_32_combine(LineKind kind);
const void* fp16_hopper_8_split(LineKind kind);
const void* fp16_hopper_8_combine(LineKind kind);
const void* fp16_hopper_16_split(LineKind kind);
const void* fp16_hopper_16_combine(LineKind kind);
const void* fp16_hopper_32_split(LineKind kind);
const void* fp16_hopper_32_combine(LineKind kind);

const void* bf16_hopper_64_split(LineKind kind);
const void* bf16_hopper_64_combine(LineKind kind);
const void* fp16_hopper_64_split(LineKind kind);
const void* fp16_hopper_64_combine(LineKind kind);

}  // namespace flashmla::cuda
