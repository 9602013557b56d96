// Version, names and back ends for the C API; and the promise that its enumerators are those of the C++ API.
#include <map>
#include <mutex>
#include <string>

#include "flashmla/backend.h"
#include "flashmla/c.h"

namespace flashmla {

namespace {

constexpr bool equal(int32_t c, auto cpp) { return c == static_cast<int32_t>(cpp); }

static_assert(equal(FLASHMLA_OK, StatusCode::kOk));
static_assert(equal(FLASHMLA_INVALID_ARGUMENT, StatusCode::kInvalidArgument));
static_assert(equal(FLASHMLA_UNSUPPORTED, StatusCode::kUnsupported));
static_assert(equal(FLASHMLA_OUT_OF_RANGE, StatusCode::kOutOfRange));
static_assert(equal(FLASHMLA_WORKSPACE_TOO_SMALL, StatusCode::kWorkspaceTooSmall));
static_assert(equal(FLASHMLA_NOT_FOUND, StatusCode::kNotFound));
static_assert(equal(FLASHMLA_OUT_OF_MEMORY, StatusCode::kOutOfMemory));
static_assert(equal(FLASHMLA_INTERNAL, StatusCode::kInternal));

static_assert(equal(FLASHMLA_BAD_NONE, BadValue::kNone));
static_assert(equal(FLASHMLA_BAD_PAGE_ID, BadValue::kPageId));
static_assert(equal(FLASHMLA_BAD_TOKEN_START, BadValue::kTokenStart));
static_assert(equal(FLASHMLA_BAD_SEQ_LEN, BadValue::kSeqLen));
static_assert(equal(FLASHMLA_BAD_SLOT, BadValue::kSlot));

static_assert(equal(FLASHMLA_FLOAT32, DType::kFloat32));
static_assert(equal(FLASHMLA_FLOAT16, DType::kFloat16));
static_assert(equal(FLASHMLA_BFLOAT16, DType::kBFloat16));
static_assert(equal(FLASHMLA_FLOAT8_E4M3, DType::kFloat8E4M3));
static_assert(equal(FLASHMLA_INT32, DType::kInt32));
static_assert(equal(FLASHMLA_INT64, DType::kInt64));
static_assert(equal(FLASHMLA_UINT8, DType::kUInt8));

static_assert(equal(FLASHMLA_KV_FROM_DTYPE, KvFormat::kFromDType));
static_assert(equal(FLASHMLA_KV_BF16, KvFormat::kBF16));
static_assert(equal(FLASHMLA_KV_FP16, KvFormat::kFP16));
static_assert(equal(FLASHMLA_KV_FP32, KvFormat::kFP32));
static_assert(equal(FLASHMLA_KV_FP8_TENSOR, KvFormat::kFp8Tensor));
static_assert(equal(FLASHMLA_KV_FP8_TILE128, KvFormat::kFp8Tile128));
static_assert(equal(FLASHMLA_KV_FP8_V4, KvFormat::kFp8V4));

static_assert(equal(FLASHMLA_CPU, DeviceType::kCPU));
static_assert(equal(FLASHMLA_CUDA, DeviceType::kCUDA));
static_assert(equal(FLASHMLA_EMPTY_LSE_PLUS_INF, EmptyLse::kPlusInf));
static_assert(equal(FLASHMLA_EMPTY_LSE_MINUS_INF, EmptyLse::kMinusInf));

static_assert(FLASHMLA_MAX_DIMS == kMaxDims);
static_assert(FLASHMLA_WORKSPACE_ALIGNMENT == kWorkspaceAlignment);
static_assert(FLASHMLA_MAX_SPLITS == kMaxSplits);

// Back ends give their names as string views; a C caller gets a copy that ends in a zero and lives as long as they do.
const char* lasting_name(const Backend* backend) {
  static std::mutex mutex;
  static auto* names = new std::map<const Backend*, std::string>;  // never destroyed, like the back ends
  const std::lock_guard lock(mutex);
  return names->try_emplace(backend, backend->name()).first->second.c_str();
}

}  // namespace

}  // namespace flashmla

const char* flashmla_version(void) { return FLASHMLA_VERSION_STRING; }

int32_t flashmla_version_number(void) {
  return 1000000 * FLASHMLA_VERSION_MAJOR + 1000 * FLASHMLA_VERSION_MINOR + FLASHMLA_VERSION_PATCH;
}

const char* flashmla_status_name(flashmla_status status) {
  return flashmla::status_code_name(static_cast<flashmla::StatusCode>(status));
}

int32_t flashmla_backend_count(void) {
  try {
    return static_cast<int32_t>(flashmla::backends().size());
  } catch (...) {  // no memory for the list
    return 0;
  }
}

const char* flashmla_backend_name(int32_t index) {
  try {
    const auto list = flashmla::backends();
    if (index < 0 || static_cast<size_t>(index) >= list.size()) return nullptr;
    return flashmla::lasting_name(list[static_cast<size_t>(index)]);
  } catch (...) {  // no memory for the list or the name
    return nullptr;
  }
}

flashmla_tensor flashmla_contiguous(const void* data, flashmla_dtype dtype, int32_t ndim, const int64_t* shape) {
  flashmla_tensor tensor{const_cast<void*>(data), dtype, ndim, {}, {}};
  if (ndim < 0 || ndim > FLASHMLA_MAX_DIMS || shape == nullptr) return tensor;
  // Sizes of garbage may overflow: wrap, the operations refuse the sizes themselves.
  uint64_t step = 1;
  for (int32_t d = ndim - 1; d >= 0; --d) {
    tensor.shape[d] = shape[d];
    tensor.stride[d] = static_cast<int64_t>(step);
    step *= static_cast<uint64_t>(shape[d]);
  }
  return tensor;
}
