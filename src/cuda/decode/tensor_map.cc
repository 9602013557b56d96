#include "cuda/decode/tensor_map.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "core/text.h"
#include "cuda/decode/config.h"

namespace flashmla::cuda {

namespace {

// From the driver that is loaded, or null: nothing links against it.
decltype(&cuTensorMapEncodeTiled) encoder() {
  static const auto found = []() -> void* {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    constexpr unsigned kVersion = 12000;  // the first that has it
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, kVersion, cudaEnableDefault, &result);
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? function : nullptr;
  }();
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
}

// A stride over a single page or token, or in a cache without elements, is never taken, and may be anything.
int64_t stride_bytes(const DecodeShape& shape, int64_t count, int64_t elements) {
  return (count <= 1 || shape.pages == 0 ? kMaxWidth : elements) * kElementBytes;
}

}  // namespace

bool takes_strides(const DecodeParams& params, const DecodeShape& shape) {
  constexpr int64_t kMost = (int64_t{1} << 40) - 1;
  const int64_t token = stride_bytes(shape, shape.page_size, params.kv_cache.stride[1]);
  const int64_t page = stride_bytes(shape, shape.pages, params.kv_cache.stride[0]);
  return token > 0 && token <= kMost && page > 0 && page <= kMost;
}

Result<CUtensorMap> kv_tensor_map(const DecodeParams& params, const DecodeShape& shape, const DecodeEntry& entry,
                                  Workspace workspace) {
  const auto encode = encoder();
  if (encode == nullptr) {
    return unsupported("driver", "one without cuTensorMapEncodeTiled",
                       "drivers of CUDA 12.0 and newer (or a portable kernel, Context::kernel)");
  }
  constexpr cuuint64_t kPanelWidth = 64;
  const auto& stride = params.kv_cache.stride;
  const int64_t token_stride = stride_bytes(shape, shape.page_size, stride[1]);
  const int64_t page_stride = stride_bytes(shape, shape.pages, stride[0]);
  const cuuint64_t sizes[] = {kPanelWidth, static_cast<cuuint64_t>(shape.page_size), kMaxWidth / kPanelWidth,
                              static_cast<cuuint64_t>(std::max<int64_t>(shape.pages, 1))};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(token_stride), kPanelWidth * kElementBytes,
                                static_cast<cuuint64_t>(page_stride)};
  const cuuint32_t box[] = {kPanelWidth, 1u << log2_box(shape), static_cast<cuuint32_t>(box_panels(shape, entry)), 1};
  const cuuint32_t steps[] = {1, 1, 1, 1};
  void* base = shape.pages == 0 ? workspace.data : const_cast<void*>(params.kv_cache.data);
  CUtensorMap map;
  const CUresult result =
      encode(&map, shape.dtype == DType::kBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
             4, base, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return map;
  return unsupported("kv_cache",
                     concat("strides of ", token_stride, " bytes a token and ", page_stride,
                            " bytes a page (cuTensorMapEncodeTiled: error ", static_cast<int>(result), ")"),
                     concat("strides from 16 to 2^40 bytes for kernel '", entry.name, "', or a portable kernel"));
}

}  // namespace flashmla::cuda
