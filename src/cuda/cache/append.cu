// append_kv. Tokens are dealt to blocks by slot, so that equal slots meet in one block, which lets the last of them
// win: no row is ever written by two blocks. Every block reads all slots (8 bytes a token from L2, beside 2304 bytes of
// rows that the GPU moves for it) and lists its own, then copies the listed rows all at once.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "cuda/cache/cache.h"
#include "cuda/launch.h"
#include "cuda/ptx/ptx.cuh"
#include "cuda/vectors.h"

namespace flashmla::cuda {

namespace {

constexpr int kManyThreads = 640;
constexpr int kFewThreads = 256;
constexpr int64_t kFewTokens = 4096;  // up to here small blocks, which start sooner
constexpr int kSlotsPerThread = 4;    // of a chunk
constexpr int kChunksAhead = 2;       // whose slots are on their way
constexpr int kLog2Listed = 12;
constexpr int kListed = 3584;  // tokens that a block lists before it copies their rows: with the rest, 48 KB
constexpr int kFull = kListed - kManyThreads * kSlotsPerThread;  // another chunk might not fit
constexpr int kLog2Buckets = 10;
constexpr int kBuckets = 1 << kLog2Buckets;                        // of the table that finds duplicates
constexpr int64_t kMostPlaces = int64_t{1} << (31 - kLog2Listed);  // tokens from the first listed one to the last
static_assert(kListed <= 1 << kLog2Listed);

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

struct List {
  int64_t slots[kListed];   // later: offsets of their rows
  int32_t places[kListed];  // of the tokens, from the first one that can be listed; kDropped: a later one has the slot
  int32_t last[kBuckets];   // of each bucket: the last token whose slot falls into it, as key()
  int32_t count;
};
static_assert(sizeof(List) <= 48 * 1024);
constexpr int32_t kDropped = -1;

// Neighbouring slots fall into blocks and buckets far apart, evenly (multiples of the golden ratio modulo 1).
__device__ __forceinline__ uint32_t mix(int64_t slot) { return static_cast<uint32_t>(slot) * 0x9e3779b1u; }

__device__ __forceinline__ int32_t block_of(int64_t slot) {
  return static_cast<int32_t>(__umulhi(mix(slot), gridDim.x));
}

// Other bits than block_of: the slots of one block share the upper ones.
__device__ __forceinline__ int32_t bucket_of(int64_t slot) {
  return static_cast<int32_t>((static_cast<uint32_t>(slot ^ slot >> 32) * 0x85ebca6bu) >> (32 - kLog2Buckets));
}

// Orders listed tokens by their place, and names the one.
__device__ __forceinline__ int32_t key(const List& list, int32_t at) { return list.places[at] << kLog2Listed | at; }

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

// Of listed tokens with equal slots drops all but the last. Buckets that several slots share take several rounds.
__device__ __forceinline__ void drop_duplicates(List& list, int32_t count) {
  const auto threads = static_cast<int32_t>(blockDim.x);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  static_assert(kListed <= 32 * kFewThreads);
  uint32_t pending = 0;  // bit i: token thread + i * threads of the list is not dealt with
  for (int i = 0; thread + i * threads < count; ++i) pending |= 1u << i;
  for (;;) {
    for (uint32_t left = pending; left != 0; left &= left - 1) {
      const int32_t at = thread + (__ffs(left) - 1) * threads;
      atomicMax(&list.last[bucket_of(list.slots[at])], key(list, at) + 1);
    }
    __syncthreads();
    uint32_t won = 0;
    for (uint32_t left = pending; left != 0; left &= left - 1) {
      const int i = __ffs(left) - 1;
      const int32_t at = thread + i * threads;
      const int32_t winner = (list.last[bucket_of(list.slots[at])] - 1) & ((1 << kLog2Listed) - 1);
      if (winner == at) {
        won |= 1u << i;
      } else if (list.slots[winner] == list.slots[at]) {
        list.places[at] = kDropped;
        pending &= ~(1u << i);
      }
    }
    pending &= ~won;
    const bool more = __syncthreads_or(static_cast<int>(pending)) != 0;
    for (; won != 0; won &= won - 1) list.last[bucket_of(list.slots[thread + (__ffs(won) - 1) * threads])] = 0;
    if (!more) return;
    __syncthreads();
  }
}

// Copies the rows of the listed tokens, the first of which can be token `base`; list.slots has their offsets. A warp
// copies kRows rows at a time, and all their loads are issued before its first store.
template <class Word>
__device__ __forceinline__ void copy_rows(const AppendKernelParams& p, const List& list, int32_t rows, int64_t base) {
  constexpr int kRows = 2;
  constexpr int kWords = 3;  // of a lane: a row of 576 takes three
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const auto warps = static_cast<int32_t>(blockDim.x / 32);
#pragma unroll 1
  for (auto first = static_cast<int32_t>(threadIdx.x / 32); first < rows; first += kRows * warps) {
    const Word* latent[kRows];
    const Word* rope[kRows];
    Word* to[kRows];
    int64_t width[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int32_t at = min(first + r * warps, rows - 1);
      const bool copied = first + r * warps < rows && list.places[at] != kDropped;
      const int64_t token = base + list.places[at];
      latent[r] = static_cast<const Word*>(p.latent) + token * p.latent_stride;
      rope[r] = static_cast<const Word*>(p.rope) + token * p.rope_stride - p.latent_words;
      to[r] = static_cast<Word*>(p.cache) + list.slots[at];
      width[r] = copied ? p.row_words : 0;
    }
#pragma unroll 1
    for (int64_t column = lane; column < p.row_words; column += kWords * 32) {
      Word words[kRows][kWords];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
          const int64_t w = column + 32 * i;
          if (w < width[r]) words[r][i] = __ldcg((w < p.latent_words ? latent[r] : rope[r]) + w);
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
          const int64_t w = column + 32 * i;
          if (w < width[r]) to[r][w] = words[r][i];
        }
      }
    }
  }
}

template <class Word>
__global__ void __launch_bounds__(kManyThreads) append_rows(const __grid_constant__ AppendKernelParams p) {
  __shared__ List list;
  const int threads = static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kBuckets; i += threads) list.last[i] = 0;
  if (thread == 0) list.count = 0;
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();  // the next kernel may start where there is room; it waits for these writes
  __syncthreads();

  const int64_t chunk = static_cast<int64_t>(threads) * kSlotsPerThread;
  int64_t ahead[kChunksAhead][kSlotsPerThread];
  const auto load_slots = [&](int64_t(&slots)[kSlotsPerThread], int64_t base) {
#pragma unroll
    for (int i = 0; i < kSlotsPerThread; ++i) {
      const int64_t token = base + thread + i * threads;
      slots[i] = token < p.tokens ? __ldcg(p.slots + token) : -1;
    }
  };
#pragma unroll
  for (int i = 0; i < kChunksAhead; ++i) load_slots(ahead[i], i * chunk);
  int64_t listed = 0;  // the first token that the list can have
  for (int64_t first = 0; first < p.tokens; first += kChunksAhead * chunk) {
#pragma unroll
    for (int part = 0; part < kChunksAhead; ++part) {
      const int64_t base = first + part * chunk;
      if (base >= p.tokens) break;
      bool full = base + 2 * chunk - listed > kMostPlaces || base + chunk >= p.tokens;
#pragma unroll
      for (int i = 0; i < kSlotsPerThread; ++i) {
        const int64_t slot = ahead[part][i];
        const bool inside = slot >= 0 && slot < p.all_slots;
        if (!inside || block_of(slot) != static_cast<int32_t>(blockIdx.x)) continue;
        const int32_t at = atomicAdd(&list.count, 1);
        list.slots[at] = slot;
        list.places[at] = static_cast<int32_t>(base - listed) + thread + i * threads;
        full = full || at >= kFull;
      }
      load_slots(ahead[part], base + kChunksAhead * chunk);
      if (__syncthreads_or(full) == 0) continue;
      const int32_t rows = list.count;
      drop_duplicates(list, rows);
      for (int32_t i = thread; i < rows; i += threads) list.slots[i] = row_offset(p, list.slots[i]);
      __syncthreads();
      copy_rows<Word>(p, list, rows, listed);
      __syncthreads();  // also orders the rows of one slot: those listed later are written after these
      if (thread == 0) list.count = 0;
      listed = base + chunk;
      __syncthreads();
    }
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
