// append_kv. Tokens are dealt to blocks by slot, so that equal slots meet in one block, which lets the last of them
// win: no row is ever written by two blocks. Every block reads all slots (8 bytes a token from L2, beside 2304 bytes of
// rows that the GPU moves for it); the slots of the next chunk are on their way while the rows of this one are copied.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "cuda/cache/cache.h"
#include "cuda/launch.h"
#include "cuda/ptx/ptx.cuh"
#include "cuda/vectors.h"

namespace flashmla::cuda {

namespace {

constexpr int kManyThreads = 640;  // more would leave too few registers for two chunks of slots
constexpr int kFewThreads = 256;
constexpr int64_t kFewTokens = 4096;  // up to here small blocks, which start sooner
constexpr int kSlotsPerThread = 8;    // of a chunk
constexpr int kBuckets = 2048;        // of the table that finds duplicates; a round finds at most this many rows
constexpr int kListed = 3072;         // rows found before they are copied: several rounds, as a rule all of a chunk
constexpr int kVectorsInFlight = 3;   // loads of a lane before its first store: a row of 576 takes three

struct AppendKernelParams {
  const int64_t* slots = nullptr;  // [tokens]
  const void* latent = nullptr;    // [tokens, latent_words]
  const void* rope = nullptr;      // [tokens, rope_words]
  void* cache = nullptr;           // [pages, page_size, latent_words + rope_words]
  // Strides and widths in the kernel's words.
  int64_t latent_stride = 0;
  int64_t rope_stride = 0;
  int64_t page_stride = 0;
  int64_t token_stride = 0;
  int64_t latent_words = 0;
  int64_t row_words = 0;
  int64_t tokens = 0;
  int64_t page_size = 1;
  int64_t all_slots = 0;  // pages * page_size
};

struct RowTable {
  int32_t last[kBuckets];  // of each bucket: 1 + the highest place in the chunk of a slot that falls into it
  int64_t offsets[kListed];
  int32_t places[kListed];
  int32_t count;
};

// Neighbouring slots fall into blocks and buckets far apart, evenly (multiples of the golden ratio modulo 1).
__device__ __forceinline__ uint32_t mix(int64_t slot) { return static_cast<uint32_t>(slot) * 0x9e3779b1u; }

__device__ __forceinline__ int32_t block_of(int64_t slot) {
  return static_cast<int32_t>(__umulhi(mix(slot), gridDim.x));
}

// Other bits than block_of: the slots of one block share the upper ones.
__device__ __forceinline__ int32_t bucket_of(int64_t slot) {
  return static_cast<int32_t>((static_cast<uint32_t>(slot ^ slot >> 32) * 0x85ebca6bu) >> 21);
}
static_assert(kBuckets == 1 << (32 - 21));

// Of the first word of the slot's row. Division of 64 bits takes four times as long.
__device__ __forceinline__ int64_t row_offset(const AppendKernelParams& p, int64_t slot) {
  int64_t page = 0;
  if ((slot | p.page_size) >> 32 == 0) {
    page = static_cast<uint32_t>(slot) / static_cast<uint32_t>(p.page_size);
  } else {
    page = slot / p.page_size;
  }
  return page * p.page_stride + (slot - page * p.page_size) * p.token_stride;
}

// By one warp. Every load of a batch is issued before its first store.
template <class Word>
__device__ __forceinline__ void copy_row(const AppendKernelParams& p, int64_t token, int64_t offset, int lane) {
  const Word* latent = static_cast<const Word*>(p.latent) + token * p.latent_stride;
  const Word* rope = static_cast<const Word*>(p.rope) + token * p.rope_stride - p.latent_words;
  Word* row = static_cast<Word*>(p.cache) + offset;
  for (int64_t first = lane; first < p.row_words; first += kVectorsInFlight * 32) {
    Word words[kVectorsInFlight];
#pragma unroll
    for (int i = 0; i < kVectorsInFlight; ++i) {
      const int64_t w = first + 32 * i;
      if (w < p.row_words) words[i] = __ldcg((w < p.latent_words ? latent : rope) + w);
    }
#pragma unroll
    for (int i = 0; i < kVectorsInFlight; ++i) {
      const int64_t w = first + 32 * i;
      if (w < p.row_words) row[w] = words[i];
    }
  }
}

// One round of finding the rows that a block writes: of the slots that share a bucket, the one of the last token.
// Tokens with the same slot are dropped; those with another one stay pending for the next round, as a rule there are
// none. Returns whether any thread has some.
__device__ __forceinline__ bool find_rows(const AppendKernelParams& p, int64_t base,
                                          const int64_t (&slots)[kSlotsPerThread], uint32_t& pending, RowTable& table) {
  const int threads = static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int i = 0; i < kSlotsPerThread; ++i) {
    if (pending >> i & 1) atomicMax(&table.last[bucket_of(slots[i])], thread + i * threads + 1);
  }
  __syncthreads();
  uint32_t won = 0;
#pragma unroll
  for (int i = 0; i < kSlotsPerThread; ++i) {
    if ((pending >> i & 1) == 0) continue;
    const int32_t place = table.last[bucket_of(slots[i])] - 1;
    if (place == thread + i * threads) {
      won |= 1u << i;
      const int32_t at = atomicAdd(&table.count, 1);
      table.offsets[at] = row_offset(p, slots[i]);
      table.places[at] = place;
    } else if (__ldcg(p.slots + base + place) == slots[i]) {
      pending &= ~(1u << i);
    }
  }
  pending &= ~won;
  const bool more = __syncthreads_or(static_cast<int>(pending)) != 0;
#pragma unroll
  for (int i = 0; i < kSlotsPerThread; ++i) {
    if (won >> i & 1) table.last[bucket_of(slots[i])] = 0;
  }
  if (more) __syncthreads();
  return more;
}

template <class Word>
__global__ void __launch_bounds__(kManyThreads) append_rows(const __grid_constant__ AppendKernelParams p) {
  __shared__ RowTable table;
  const int threads = static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kBuckets; i += threads) table.last[i] = 0;
  if (thread == 0) table.count = 0;
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();  // the next kernel may start where there is room; it waits for these writes
  __syncthreads();

  const int64_t chunk = static_cast<int64_t>(threads) * kSlotsPerThread;
  int64_t next[kSlotsPerThread];
  const auto load_slots = [&](int64_t base) {
#pragma unroll
    for (int i = 0; i < kSlotsPerThread; ++i) {
      const int64_t token = base + thread + i * threads;
      next[i] = token < p.tokens ? __ldcg(p.slots + token) : -1;
    }
  };
  load_slots(0);
  for (int64_t base = 0; base < p.tokens; base += chunk) {
    uint32_t pending = 0;  // bit i: slot i of this thread is this block's and not dealt with
    int64_t slots[kSlotsPerThread];
#pragma unroll
    for (int i = 0; i < kSlotsPerThread; ++i) {
      slots[i] = next[i];
      const bool inside = slots[i] >= 0 && slots[i] < p.all_slots;
      if (inside && block_of(slots[i]) == static_cast<int32_t>(blockIdx.x)) pending |= 1u << i;
    }
    load_slots(base + chunk);
    bool more = false;
    do {
      do {
        more = find_rows(p, base, slots, pending, table);
      } while (more && table.count <= kListed - kBuckets);
      const int32_t rows = table.count;
      for (int32_t i = thread / 32; i < rows; i += threads / 32)
        copy_row<Word>(p, base + table.places[i], table.offsets[i], thread % 32);
      __syncthreads();  // also orders the rows of one slot: the next chunk's is written after this one's
      if (thread == 0) table.count = 0;
    } while (more);
  }
}

}  // namespace

Status launch_append(const AppendKvParams& params, const AppendShape& shape, const DeviceInfo& device, void* stream) {
  if (shape.tokens == 0 || shape.pages == 0) return {};
  const int64_t bytes = dtype_bytes(shape.dtype);
  const bool vectors = aligned_rows(params.latent) && aligned_rows(params.kv_cache) &&
                       aligned_bytes(shape.latent_dim * bytes) &&
                       (shape.rope_dim == 0 || (aligned_rows(params.rope) && aligned_bytes(shape.rope_dim * bytes)));
  const int64_t word = vectors ? kVectorBytes / bytes : 1;  // in elements
  AppendKernelParams p;
  p.slots = static_cast<const int64_t*>(params.slot_mapping.data);
  p.latent = params.latent.data;
  p.rope = shape.rope_dim == 0 ? params.latent.data : params.rope.data;
  p.cache = params.kv_cache.data;
  // The stride of a single row may be anything, and is not used.
  p.latent_stride = params.latent.shape[0] > 1 ? params.latent.stride[0] / word : 0;
  p.rope_stride = shape.rope_dim > 0 && params.rope.shape[0] > 1 ? params.rope.stride[0] / word : 0;
  p.page_stride = shape.pages > 1 ? params.kv_cache.stride[0] / word : 0;
  p.token_stride = shape.page_size > 1 ? params.kv_cache.stride[1] / word : 0;
  p.latent_words = shape.latent_dim / word;
  p.row_words = (shape.latent_dim + shape.rope_dim) / word;
  p.tokens = shape.tokens;
  p.page_size = shape.page_size;
  p.all_slots = shape.pages * shape.page_size;
  void* arguments[] = {&p};
  const void* kernel = vectors ? reinterpret_cast<const void*>(&append_rows<uint4>)
                               : reinterpret_cast<const void*>(&append_rows<uint16_t>);
  const int blocks = static_cast<int>(std::min<int64_t>(shape.tokens, device.multiprocessors));
  const int threads = shape.tokens <= kFewTokens ? kFewThreads : kManyThreads;
  return launch("append_kv", kernel, {blocks, threads, 0}, arguments, stream);
}

}  // namespace flashmla::cuda
