// Host stubs of the kernels, for the table: each defined by a source file of this folder.
#pragma once

namespace flashmla::cuda {

const void* bf16_16_split();
const void* bf16_16_combine();
const void* bf16_32_split();
const void* bf16_32_combine();
const void* bf16_16_any_split();
const void* bf16_16_any_combine();
const void* fp16_16_split();
const void* fp16_16_combine();
const void* fp16_32_split();
const void* fp16_32_combine();
const void* fp16_16_any_split();
const void* fp16_16_any_combine();

const void* bf16_hopper_8_split();
const void* bf16_hopper_16_split();
const void* bf16_hopper_32_split();
const void* bf16_8_combine();
const void* fp16_hopper_8_split();
const void* fp16_hopper_16_split();
const void* fp16_hopper_32_split();
const void* fp16_8_combine();

const void* bf16_64_split();
const void* bf16_64_combine();
const void* fp16_64_split();
const void* fp16_64_combine();

}  // namespace flashmla::cuda
