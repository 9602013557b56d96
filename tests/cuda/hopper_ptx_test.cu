// Each instruction wrapper of src/cuda/ptx/hopper.cuh against what it is to do. Skipped by name where no Hopper GPU is.
// A wait that may never end is given up by the test, so that it fails.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cuda/ptx/hopper.cuh"
#include "cuda/tile/layout.h"
#include "require_hopper.cuh"

namespace flashmla::cuda {
namespace {

using tests::DeviceVector;

__device__ void pause(int64_t clocks) {
  const int64_t start = clock64();
  while (clock64() - start < clocks) {
  }
}

// mbarrier_wait that gives up after about a second.
__device__ bool completes(uint32_t barrier, uint32_t parity) {
  const int64_t start = clock64();
  while (!ptx::mbarrier_try_wait(barrier, parity)) {
    if (clock64() - start > 2'000'000'000) return false;
  }
  return true;
}

void check_launch() { tests::check_cuda(cudaGetLastError(), "launch"); }

// ---- barriers in shared memory

constexpr int kObservations = 10;

// What a barrier of three arrivals says after each step: bit 0 for parity 0, bit 1 for parity 1.
__global__ void phases(int* seen) {
  __shared__ uint64_t memory;
  const uint32_t barrier = ptx::shared_address(&memory);
  if (threadIdx.x != 0) return;
  ptx::mbarrier_init(barrier, 3);
  ptx::mbarrier_init_fence();
#pragma unroll 1
  for (int step = 0; step < kObservations; ++step) {
    if (step == 5 || step == 6) ptx::mbarrier_arrive_expect(barrier, 0);
    if (step == 7) ptx::mbarrier_arrive_expect(barrier, 16);
    if (step != 0 && (step < 5 || step > 7)) ptx::mbarrier_arrive(barrier);
    seen[step] = static_cast<int>(ptx::mbarrier_try_wait(barrier, 0)) |
                 static_cast<int>(ptx::mbarrier_try_wait(barrier, 1)) << 1;
  }
}

TEST(CudaHopperPtx, PhasesOfABarrier) {
  REQUIRE_HOPPER();
  const DeviceVector<int> seen(std::vector<int>(kObservations, -1));
  phases<<<1, 32>>>(seen.data());
  check_launch();
  const std::vector<int> want = {
      2, 2, 2,  // phase 0 is not complete, and the one before it counts as complete
      1,        // the third arrival completes it
      1, 1, 2,  // phase 1; arrivals that expect no bytes are arrivals
      2, 2, 2,  // all have arrived in phase 2, but 16 bytes have not
  };
  EXPECT_EQ(seen.download(), want);
}

// Warp 0 writes a ring of three slots, warps 1 and 2 read it; each is late at times. Counts what was wrong.
__global__ void ring(int* wrong) {
  constexpr int kSlots = 3, kRounds = 300;
  __shared__ uint64_t memory[2 * kSlots];
  __shared__ int data[kSlots][32];
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < kSlots; ++slot) {
      ptx::mbarrier_init(ptx::shared_address(&memory[slot]), 1);
      ptx::mbarrier_init(ptx::shared_address(&memory[kSlots + slot]), 2);
    }
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  for (int round = 0; round < kRounds; ++round) {
    const int slot = round % kSlots;
    const uint32_t turn = round / kSlots;
    const uint32_t full = ptx::shared_address(&memory[slot]);
    const uint32_t empty = ptx::shared_address(&memory[kSlots + slot]);
    if (round * 7 % 10 == 3 * warp) pause(3000);
    if (warp == 0) {
      if (turn > 0) ptx::mbarrier_wait(empty, turn - 1 & 1);
      data[slot][lane] = 32 * round + lane;
    } else {
      ptx::mbarrier_wait(full, turn & 1);
      if (data[slot][31 - lane] != 32 * round + 31 - lane) atomicAdd(wrong, 1);
    }
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(warp == 0 ? full : empty);
  }
}

TEST(CudaHopperPtx, RingOfBarriers) {
  REQUIRE_HOPPER();
  const DeviceVector<int> wrong(std::vector<int>{0});
  ring<<<8, 96>>>(wrong.data());
  check_launch();
  EXPECT_EQ(wrong.download()[0], 0);
}

// ---- named barriers

// Warps 0 and 1 exchange by sync, while warp 2 hands to warp 3 by arrive and sync. Then warps 0 - 2 vote, without warp
// 3. Counts what was wrong.
__global__ void named_barriers(int* wrong) {
  constexpr int kRounds = 100;
  __shared__ int mail[128];
  const int thread = threadIdx.x;
  const int warp = thread / 32;
  if (warp < 2) {
    for (int round = 0; round < kRounds; ++round) {
      if (round % 2 == warp) pause(2000);
      mail[thread] = 64 * round + thread;
      ptx::named_barrier_sync(1, 64);
      if (mail[63 - thread] != 64 * round + 63 - thread) atomicAdd(wrong, 1);
      ptx::named_barrier_sync(2, 64);
    }
  } else {
    for (int round = 0; round < kRounds; ++round) {
      if (round % 3 == warp - 2) pause(2000);
      if (warp == 2) {
        if (round > 0) ptx::named_barrier_sync(4, 64);
        mail[thread] = 64 * round + thread;
        ptx::named_barrier_arrive(3, 64);
      } else {
        ptx::named_barrier_sync(3, 64);
        const int from = 64 + 127 - thread;  // of warp 2
        if (mail[from] != 64 * round + from) atomicAdd(wrong, 1);
        if (round < kRounds - 1) ptx::named_barrier_arrive(4, 64);
      }
    }
  }
  __syncthreads();
  if (warp == 3) return;
  for (int voter = -1; voter < 96; ++voter) {
    const bool any = ptx::named_barrier_or(5, 96, thread == voter);
    if (any != (voter >= 0)) atomicAdd(wrong, 1);
  }
}

TEST(CudaHopperPtx, NamedBarriers) {
  REQUIRE_HOPPER();
  const DeviceVector<int> wrong(std::vector<int>{0});
  named_barriers<<<4, 128>>>(wrong.data());
  check_launch();
  EXPECT_EQ(wrong.download()[0], 0);
}

// ---- one lane of a warp

__global__ void elections(int* times) {
  int elected = 0;
  for (int i = 0; i < 10; ++i) elected += ptx::elect_one() ? 1 : 0;
  times[threadIdx.x] = elected;
}

TEST(CudaHopperPtx, ElectsOneLaneAlwaysTheSame) {
  REQUIRE_HOPPER();
  const DeviceVector<int> times(std::vector<int>(128, -1));
  elections<<<1, 128>>>(times.data());
  check_launch();
  const std::vector<int> got = times.download();
  for (int warp = 0; warp < 4; ++warp) {
    EXPECT_EQ(std::count(got.begin() + 32 * warp, got.begin() + 32 * (warp + 1), 10), 1) << "warp " << warp;
    EXPECT_EQ(std::count(got.begin() + 32 * warp, got.begin() + 32 * (warp + 1), 0), 31) << "warp " << warp;
  }
}

// ---- bulk tensor copies

struct Copy {
  int token;
  int panel;
  int page;
};
constexpr int kCopies = 6;
struct Copies {
  Copy list[kCopies];
};
constexpr int kGuardBytes = 1024;
constexpr unsigned char kGuard = 0xee;

// Copies boxes into shared memory, one behind the other, and all of shared memory to `out`. Ordinary stores have
// written there before. answers[0]: whether the phase was complete before the last box was asked for; [1], [2]: whether
// it was afterwards, for the warp that asked and for another one.
__global__ void __launch_bounds__(64)
    copy_boxes(const __grid_constant__ CUtensorMap map, const __grid_constant__ Copies copies, uint32_t box_bytes,
               unsigned char* out, int* answers) {
  extern __shared__ __align__(1024) unsigned char smem[];
  const uint32_t bytes = kCopies * box_bytes;
  const uint32_t base = ptx::shared_address(smem);
  const uint32_t barrier = base + bytes + kGuardBytes;
  const int warp = threadIdx.x / 32;
  for (uint32_t i = threadIdx.x; i < bytes + kGuardBytes; i += 64) smem[i] = kGuard;
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&map);
    ptx::mbarrier_init(barrier, 1);
    ptx::mbarrier_init_fence();
  }
  ptx::async_proxy_fence();
  __syncthreads();
  const uint64_t policy = ptx::evict_first_policy();
#pragma unroll 1
  for (int i = 0; i < kCopies && warp == 0; ++i) {
    const Copy& copy = copies.list[i];
    if (i == kCopies - 1) {
      pause(100'000);
      const bool complete = ptx::mbarrier_try_wait(barrier, 0);
      if (threadIdx.x == 0) answers[0] = complete ? 1 : 0;
      __syncwarp();
    }
    if (ptx::elect_one()) {
      if (i == 0) ptx::mbarrier_arrive_expect(barrier, bytes);
      ptx::tensor_copy_4d(base + i * box_bytes, &map, 0, copy.token, copy.panel, copy.page, barrier, policy);
    }
    __syncwarp();
  }
  const bool complete = completes(barrier, 0);
  if (threadIdx.x % 32 == 0) answers[1 + warp] = complete ? 1 : 0;
  if (complete) ptx::mbarrier_wait(barrier, 0);
  for (uint32_t i = threadIdx.x; i < bytes + kGuardBytes; i += 64) out[i] = smem[i];
}

constexpr int kWidth = 576;  // nine panels of 64
constexpr int kPanels = kWidth / 64;
constexpr int kPageTokens = 40;
constexpr int kPages = 3;

// Never 0, the value of what lies outside.
uint16_t cached(int page, int token, int column) {
  const auto index = static_cast<uint32_t>((page * kPageTokens + token) * kWidth + column);
  return static_cast<uint16_t>(index * 2654435761u >> 16 | 1);
}

// {64 columns of a panel, tokens, panels, pages}, in the form of src/cuda/decode/tensor_map.cc.
CUtensorMap tensor_map(void* cache, int box_tokens, int box_panels) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  tests::check_cuda(
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
      "cuTensorMapEncodeTiled");
  if (found != cudaDriverEntryPointSuccess) throw std::runtime_error("the driver has no cuTensorMapEncodeTiled");
  const cuuint64_t sizes[] = {64, kPageTokens, kPanels, kPages};
  const cuuint64_t strides[] = {kWidth * 2, 128, kPageTokens * kWidth * 2};
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(box_tokens), static_cast<cuuint32_t>(box_panels), 1};
  const cuuint32_t steps[] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult result = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function)(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, cache, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) throw std::runtime_error("cuTensorMapEncodeTiled: error " + std::to_string(result));
  return map;
}

void expect_box(const unsigned char* got, const Copy& copy, int box_tokens, int box_panels) {
  for (int panel = 0; panel < box_panels; ++panel) {
    for (int token = 0; token < box_tokens; ++token) {
      for (int column = 0; column < 64; ++column) {
        const bool inside = copy.page >= 0 && copy.page < kPages && copy.token + token < kPageTokens;
        const uint16_t want =
            inside ? cached(copy.page, copy.token + token, (copy.panel + panel) * 64 + column) : uint16_t{0};
        const unsigned char* at =
            got + panel * box_tokens * 128 + tile::swizzled(token, column / 8, 128) + column % 8 * 2;
        ASSERT_EQ(at[0] | at[1] << 8, want)
            << "box of " << box_tokens << " tokens and " << box_panels << " panels at token " << copy.token
            << ", panel " << copy.panel << ", page " << copy.page << ": token " << token << ", panel " << panel
            << ", column " << column;
      }
    }
  }
}

void expect_copies(void* cache, int box_tokens, int box_panels) {
  const int last_box = (kPageTokens - 1) / box_tokens * box_tokens;  // but for boxes of 8, a part of it is outside
  const Copies copies = {
      {{0, 0, 1}, {last_box, kPanels - box_panels, 2}, {0, 3, -1}, {8, 3, 0}, {kPageTokens, 1, 0}, {0, 2, kPages}}};
  const int box_bytes = box_tokens * box_panels * 128;
  const int bytes = kCopies * box_bytes;
  const DeviceVector<unsigned char> out(std::vector<unsigned char>(bytes + kGuardBytes));
  const DeviceVector<int> answers(std::vector<int>(3, -1));
  const int smem_bytes = bytes + kGuardBytes + 8;
  tests::check_cuda(cudaFuncSetAttribute(copy_boxes, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes), "smem");
  copy_boxes<<<1, 64, smem_bytes>>>(tensor_map(cache, box_tokens, box_panels), copies, box_bytes, out.data(),
                                    answers.data());
  check_launch();
  ASSERT_EQ(answers.download(), (std::vector<int>{0, 1, 1})) << "boxes of " << box_tokens << " tokens";
  const std::vector<unsigned char> got = out.download();
  for (int i = 0; i < kCopies; ++i) expect_box(got.data() + i * box_bytes, copies.list[i], box_tokens, box_panels);
  EXPECT_EQ(std::count(got.begin() + bytes, got.end(), kGuard), kGuardBytes);
}

// A box is longer than a page too, as where a page holds a whole sequence.
TEST(CudaHopperPtx, TensorCopies) {
  REQUIRE_HOPPER();
  std::vector<uint16_t> cache;
  for (int page = 0; page < kPages; ++page) {
    for (int token = 0; token < kPageTokens; ++token) {
      for (int column = 0; column < kWidth; ++column) cache.push_back(cached(page, token, column));
    }
  }
  const DeviceVector<uint16_t> device(cache);
  for (const int box_tokens : {8, 16, 32, 64}) expect_copies(device.data(), box_tokens, 1);
  expect_copies(device.data(), 64, 3);
}

// ---- stores of matrix fragments

enum class Store { kFour, kFourTransposed, kTwoTransposed };
constexpr int kSlots = 32;  // of 16 bytes; lane i names slot slot_of(i)

__host__ __device__ constexpr int slot_of(int lane) { return lane * 5 % kSlots; }
__host__ __device__ constexpr uint32_t number(int matrix, int row, int column) {
  return 64 * matrix + 8 * row + column + 1;
}

__global__ void store_fragments(Store store, uint16_t* out) {
  __shared__ __align__(16) uint16_t slots[8 * kSlots];
  const int lane = threadIdx.x;
  for (int i = 0; i < 8; ++i) slots[8 * lane + i] = 0;
  __syncwarp();
  uint32_t r[4];  // row lane / 4, columns 2 (lane % 4) and the next of each matrix
#pragma unroll
  for (int i = 0; i < 4; ++i) r[i] = number(i, lane / 4, lane % 4 * 2) | number(i, lane / 4, lane % 4 * 2 + 1) << 16;
  const uint32_t address = ptx::shared_address(slots) + 16 * slot_of(lane);
  if (store == Store::kFour) ptx::stmatrix_x4(address, r[0], r[1], r[2], r[3]);
  if (store == Store::kFourTransposed) ptx::stmatrix_x4_trans(address, r[0], r[1], r[2], r[3]);
  if (store == Store::kTwoTransposed) ptx::stmatrix_x2_trans(address, r[0], r[1]);
  __syncwarp();
  for (int i = 0; i < 8; ++i) out[8 * lane + i] = slots[8 * lane + i];
}

TEST(CudaHopperPtx, StoresOfFragments) {
  REQUIRE_HOPPER();
  for (const Store store : {Store::kFour, Store::kFourTransposed, Store::kTwoTransposed}) {
    std::vector<uint16_t> want(8 * kSlots, 0);
    const int matrices = store == Store::kTwoTransposed ? 2 : 4;
    for (int lane = 0; lane < 8 * matrices; ++lane) {
      for (int i = 0; i < 8; ++i) {
        const uint32_t value = store == Store::kFour ? number(lane / 8, lane % 8, i) : number(lane / 8, i, lane % 8);
        want[8 * slot_of(lane) + i] = static_cast<uint16_t>(value);
      }
    }
    const DeviceVector<uint16_t> out(std::vector<uint16_t>(8 * kSlots, 9999));
    store_fragments<<<1, 32>>>(store, out.data());
    check_launch();
    EXPECT_EQ(out.download(), want) << "store " << static_cast<int>(store);
  }
}

}  // namespace
}  // namespace flashmla::cuda
