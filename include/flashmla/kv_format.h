// Formats of the latent cache, as data. `bf16`, `fp16` and `fp32` are plain; the fp8 formats carry scales.
#pragma once

#include <cstdint>
#include <span>

#include "flashmla/export.h"
#include "flashmla/tensor.h"

namespace flashmla {

enum class KvFormat : int32_t {
  kFromDType = 0,  // the plain format of the cache tensor's dtype
  kBF16 = 1,
  kFP16 = 2,
  kFP32 = 3,
  kFp8Tensor = 4,   // e4m3, one fp32 scale for the whole tensor
  kFp8Tile128 = 5,  // "fp8_ds_mla": e4m3 latent, one fp32 scale per 128 values, bf16 RoPE part
  kFp8V4 = 6,       // 448 e4m3 + 64 bf16, ue8m0 scales at the page's end
};

struct KvFormatInfo {
  KvFormat format;
  const char* name;  // as in error texts, the command line and Python
  DType element;     // dtype of the cache tensor
  bool plain;        // a cache row is latent_dim + rope_dim elements and nothing else
  bool implemented;  // some back end of this library computes it today
};

// Every format that the library knows, implemented or not.
FLASHMLA_API std::span<const KvFormatInfo> kv_formats() noexcept;
// nullptr for kFromDType and unknown values.
FLASHMLA_API const KvFormatInfo* kv_format_info(KvFormat format) noexcept;
// The plain format of a dtype; kFromDType when the dtype has none.
FLASHMLA_API KvFormat plain_kv_format(DType dtype) noexcept;
// Bytes that one cached token takes, scales and padding included (page padding of fp8_v4 not); 0 for kFromDType.
FLASHMLA_API int64_t kv_bytes_per_token(KvFormat format, int64_t latent_dim, int64_t rope_dim) noexcept;

}  // namespace flashmla
