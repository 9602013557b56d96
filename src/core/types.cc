#include <algorithm>
#include <array>

#include "flashmla/kv_format.h"
#include "flashmla/status.h"
#include "flashmla/tensor.h"

namespace flashmla {

const char* status_code_name(StatusCode code) noexcept {
  switch (code) {
    case StatusCode::kOk: return "ok";
    case StatusCode::kInvalidArgument: return "invalid argument";
    case StatusCode::kUnsupported: return "unsupported";
    case StatusCode::kOutOfRange: return "out of range";
    case StatusCode::kWorkspaceTooSmall: return "workspace too small";
    case StatusCode::kNotFound: return "not found";
    case StatusCode::kOutOfMemory: return "out of memory";
    case StatusCode::kInternal: return "internal error";
  }
  return "unknown";
}

const char* dtype_name(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat32: return "fp32";
    case DType::kFloat16: return "fp16";
    case DType::kBFloat16: return "bf16";
    case DType::kFloat8E4M3: return "fp8_e4m3";
    case DType::kInt32: return "int32";
    case DType::kInt64: return "int64";
    case DType::kUInt8: return "uint8";
  }
  return "unknown";
}

int64_t dtype_bytes(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kInt32: return 4;
    case DType::kFloat16:
    case DType::kBFloat16: return 2;
    case DType::kFloat8E4M3:
    case DType::kUInt8: return 1;
    case DType::kInt64: return 8;
  }
  return 0;
}

namespace {

constexpr std::array kFormats = {
    KvFormatInfo{KvFormat::kBF16, "bf16", DType::kBFloat16, true, true},
    KvFormatInfo{KvFormat::kFP16, "fp16", DType::kFloat16, true, true},
    KvFormatInfo{KvFormat::kFP32, "fp32", DType::kFloat32, true, true},
    KvFormatInfo{KvFormat::kFp8Tensor, "fp8_tensor", DType::kFloat8E4M3, false, false},
    KvFormatInfo{KvFormat::kFp8Tile128, "fp8_tile128", DType::kUInt8, false, false},
    KvFormatInfo{KvFormat::kFp8V4, "fp8_v4", DType::kUInt8, false, false},
};

}  // namespace

std::span<const KvFormatInfo> kv_formats() noexcept { return kFormats; }

const KvFormatInfo* kv_format_info(KvFormat format) noexcept {
  const auto* found = std::ranges::find(kFormats, format, &KvFormatInfo::format);
  return found == kFormats.end() ? nullptr : found;
}

KvFormat plain_kv_format(DType dtype) noexcept {
  for (const KvFormatInfo& info : kFormats) {
    if (info.plain && info.element == dtype) return info.format;
  }
  return KvFormat::kFromDType;
}

int64_t kv_bytes_per_token(KvFormat format, int64_t latent_dim, int64_t rope_dim) noexcept {
  switch (format) {
    case KvFormat::kFromDType: return 0;
    case KvFormat::kBF16:
    case KvFormat::kFP16: return 2 * (latent_dim + rope_dim);
    case KvFormat::kFP32: return 4 * (latent_dim + rope_dim);
    case KvFormat::kFp8Tensor: return latent_dim + rope_dim;
    // one fp32 scale per 128 latent values, bf16 RoPE part
    case KvFormat::kFp8Tile128: return latent_dim + 4 * ((latent_dim + 127) / 128) + 2 * rope_dim;
    // one ue8m0 scale per 64 latent values and 1 pad byte, bf16 RoPE part
    case KvFormat::kFp8V4: return latent_dim + (latent_dim / 64 + 1) + 2 * rope_dim;
  }
  return 0;
}

}  // namespace flashmla
