// What the C file of the C API tests offers to the C++ ones.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "flashmla/c.h"

#ifdef __cplusplus
extern "C" {
#endif

// Merges one row of `width` fp32 values through the C API.
flashmla_status c99_merge(const float* out_a, float lse_a, const float* out_b, float lse_b, int64_t width, float* out,
                          float* lse, const char* backend);

// How many of the 9 structs an INIT macro gives their size and zeros.
size_t c99_sizes_initialised(void);

#ifdef __cplusplus
}
#endif
