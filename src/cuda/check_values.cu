// The values of a call that lie on the device, checked as the CPU back ends check them. Kernels of their own: those of
// the operations clamp, mask and skip without a word, and calls that ask for no status run nothing here.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "core/check.h"
#include "core/text.h"
#include "cuda/check_values.h"
#include "cuda/launch.h"
#include "cuda/ptx/ptx.cuh"

namespace flashmla::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerMultiprocessor = 8;

struct DecodeValues {
  const int32_t* seq_lens = nullptr;      // [batch]
  const int32_t* page_table = nullptr;    // [batch, width]
  const int32_t* cu_seqlens_q = nullptr;  // [batch + 1], or null
  int32_t* status = nullptr;
  int64_t table_stride = 0;
  int32_t batch = 0;
  int32_t total_q = 0;
  int32_t max_keys = 0;  // width * page_size: no longer length can be meant
  uint32_t page_size = 1;
  int32_t pages = 0;
  int32_t parts = 1;  // blocks that share a request's pages
};

struct SlotValues {
  const int64_t* slots = nullptr;  // [tokens]
  int32_t* status = nullptr;
  int64_t tokens = 0;
  int64_t all_slots = 0;  // pages * page_size
};

__device__ __forceinline__ void report(int32_t* status, BadValue found) {
  if (found != BadValue::kNone) atomicMax(status, static_cast<int32_t>(found));
}

// A kernel, not a memset: every launch here depends on the one before it in the same way, captured or not.
__global__ void clear_status(int32_t* status) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  *status = static_cast<int32_t>(BadValue::kNone);
}

// Blocks take (request, part) pairs in turn: one long request keeps all of them busy, and so do many short ones.
__global__ void __launch_bounds__(kThreads) check_decode(const __grid_constant__ DecodeValues p) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();  // the next kernel may start where there is room; it waits for what is written here
  const auto thread = static_cast<uint32_t>(threadIdx.x);
  BadValue found = BadValue::kNone;
  const auto note = [&found](bool bad, BadValue kind) {
    if (bad && static_cast<int32_t>(kind) > static_cast<int32_t>(found)) found = kind;
  };
  if (p.cu_seqlens_q != nullptr) {
    const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + thread; i <= p.batch; i += threads) {
      const int32_t start = __ldcg(p.cu_seqlens_q + i);
      const int32_t before = i == 0 ? 0 : __ldcg(p.cu_seqlens_q + i - 1);
      note(start < before || start > p.total_q || (i == 0 && start != 0), BadValue::kTokenStart);
    }
  }
  const int64_t pairs = static_cast<int64_t>(p.batch) * p.parts;
  for (int64_t pair = blockIdx.x; pair < pairs; pair += gridDim.x) {
    const int64_t request = pair / p.parts;
    const auto part = static_cast<uint32_t>(pair - request * p.parts);
    const int32_t length = __ldcg(p.seq_lens + request);
    note(length < 0 || length > p.max_keys, BadValue::kSeqLen);
    const auto keys = static_cast<uint32_t>(min(max(length, 0), p.max_keys));
    const uint32_t used = (keys + p.page_size - 1) / p.page_size;  // both below 2^31: no overflow
    const int32_t* row = p.page_table + request * p.table_stride;
    for (uint64_t i = part * uint64_t{kThreads} + thread; i < used; i += uint64_t{kThreads} * p.parts) {
      const int32_t page = __ldcg(row + i);
      note(page < 0 || page >= p.pages, BadValue::kPageId);
    }
  }
  report(p.status, found);
}

__global__ void __launch_bounds__(kThreads) check_slots(const __grid_constant__ SlotValues p) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();  // as above
  bool bad = false;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < p.tokens; i += threads)
    bad |= __ldcg(p.slots + i) >= p.all_slots;
  report(p.status, bad ? BadValue::kSlot : BadValue::kNone);
}

Status clear_first(int32_t* status, void* stream) {
  void* arguments[] = {&status};
  return launch("status (clear)", reinterpret_cast<const void*>(&clear_status), {1, 1, 0}, arguments, stream);
}

int most_blocks(const DeviceInfo& device) { return device.multiprocessors * kBlocksPerMultiprocessor; }

int blocks_for(int64_t values, const DeviceInfo& device) {
  return static_cast<int>(std::min<int64_t>((values + kThreads - 1) / kThreads, most_blocks(device)));
}

}  // namespace

Status launch_check(const DecodeParams& params, const DecodeShape& shape, const DeviceInfo& device, void* stream) {
  DecodeValues p;
  p.status = static_cast<int32_t*>(params.status.data);
  FLASHMLA_RETURN_IF_ERROR(clear_first(p.status, stream));
  p.seq_lens = static_cast<const int32_t*>(params.seq_lens.data);
  p.page_table = static_cast<const int32_t*>(params.page_table.data);
  p.cu_seqlens_q = shape.ragged_q ? static_cast<const int32_t*>(params.cu_seqlens_q.data) : nullptr;
  p.table_stride = shape.batch > 1 ? params.page_table.stride[0] : 0;
  p.batch = static_cast<int32_t>(shape.batch);
  p.total_q = static_cast<int32_t>(shape.total_q);
  p.max_keys = static_cast<int32_t>(std::min(shape.table_width * shape.page_size, kMaxCount));
  p.page_size = static_cast<uint32_t>(shape.page_size);
  p.pages = static_cast<int32_t>(shape.pages);
  const int64_t parts = (shape.table_width + kThreads - 1) / kThreads;  // at most one entry a thread
  const int64_t share = most_blocks(device) / std::max<int64_t>(shape.batch, 1);
  p.parts = static_cast<int32_t>(std::clamp<int64_t>(parts, 1, std::max<int64_t>(share, 1)));
  const int64_t pairs = shape.batch * p.parts;
  const int64_t starts = shape.ragged_q ? shape.batch + 1 : 0;
  const int blocks =
      std::max(static_cast<int>(std::min<int64_t>(pairs, most_blocks(device))), blocks_for(starts, device));
  if (blocks == 0) return {};
  void* arguments[] = {&p};
  return launch("status (decode)", reinterpret_cast<const void*>(&check_decode), {blocks, kThreads, 0}, arguments,
                stream);
}

Status launch_check(const AppendKvParams& params, const AppendShape& shape, const DeviceInfo& device, void* stream) {
  SlotValues p;
  p.status = static_cast<int32_t*>(params.status.data);
  FLASHMLA_RETURN_IF_ERROR(clear_first(p.status, stream));
  p.slots = static_cast<const int64_t*>(params.slot_mapping.data);
  p.tokens = shape.tokens;
  p.all_slots = shape.pages * shape.page_size;
  if (shape.tokens == 0) return {};
  void* arguments[] = {&p};
  return launch("status (append_kv)", reinterpret_cast<const void*>(&check_slots),
                {blocks_for(shape.tokens, device), kThreads, 0}, arguments, stream);
}

}  // namespace flashmla::cuda
