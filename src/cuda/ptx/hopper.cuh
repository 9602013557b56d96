// One function per PTX instruction of sm_90 and sm_90a: barriers in shared memory, bulk tensor copies, fences, named
// barriers. The matrix products stand in wgmma.cuh.
//
// Everything here compiles for every target, so that one source file serves all of them; kernels that call it do their
// work on sm_90a alone (FLASHMLA_SM90A).
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/ptx/ptx.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define FLASHMLA_SM90A 1
#else
#define FLASHMLA_SM90A 0
#endif

namespace flashmla::ptx {

// ---- clocks (PTX ISA, "%clock"), for builds that look for races and waits without end

__device__ __forceinline__ uint32_t clock_low() {
  uint32_t clocks;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(clocks)::"memory");
  return clocks;
}

// In units of 2^32 clocks.
__device__ __forceinline__ uint32_t clock_high() {
  uint32_t clocks;
  asm volatile("mov.u32 %0, %%clock_hi;" : "=r"(clocks)::"memory");
  return clocks;
}

// Where FLASHMLA_DEVICE_JITTER is defined: holds a warp up for 0 to 2,047 clocks, more often few than many, before it
// waits, arrives or copies. What is right only while one warp is faster than another shows then.
__device__ __forceinline__ void jitter() {
#ifdef FLASHMLA_DEVICE_JITTER
  const uint32_t start = clock_low();  // the same for a warp's lanes
  uint32_t hash = (start ^ blockIdx.x << 20 ^ threadIdx.x / 32 << 12) * 0x9e3779b1u;
  hash = (hash ^ hash >> 15) * 0x85ebca6bu;
  const uint32_t clocks = (hash >> 8 & 2047) >> (hash >> 29);
  while (clock_low() - start < clocks) {
  }
#endif
}

// ---- barriers in shared memory (PTX ISA, "mbarrier")

__device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes barriers that this thread initialised visible to bulk copies.
__device__ __forceinline__ void mbarrier_init_fence() {
#if FLASHMLA_SM90A
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  jitter();
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared::cta.b64 state, [%0];\n}" ::"r"(barrier) : "memory");
}

// Arrives, and makes the phase wait for `bytes` more of bulk copies.
__device__ __forceinline__ void mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  jitter();
#if FLASHMLA_SM90A
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
#endif
}

// Whether the phase of this parity is complete; may sleep for a while before it says no.
__device__ __forceinline__ bool mbarrier_try_wait(uint32_t barrier, uint32_t parity) {
  uint32_t done = 1;
#if FLASHMLA_SM90A
  asm volatile(
      "{\n.reg .pred done;\nmbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\nselp.u32 %0, 1, 0, done;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
#endif
  return done != 0;
}

// Waits for the phase of this parity. With FLASHMLA_DEVICE_WATCHDOG a wait that does not end traps, and the launch
// fails. It gives no message: a printf takes a stack frame, and ptxas then executes the matrix products around it one
// by one.
__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  jitter();
#ifdef FLASHMLA_DEVICE_WATCHDOG
  const uint32_t start = clock_high();
  while (!mbarrier_try_wait(barrier, parity)) {
    if (clock_high() - start >= 2) __trap();  // 2^32 clocks have passed, some seconds
  }
#else
  while (!mbarrier_try_wait(barrier, parity)) {
  }
#endif
}

// ---- named barriers of a part of the block (PTX ISA, "bar"): `threads` of them, a multiple of 32

__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  jitter();
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  jitter();
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Whether `value` holds for any of the threads.
__device__ __forceinline__ bool named_barrier_or(int id, int threads, bool value) {
  jitter();
  uint32_t any;
  asm volatile("{\n.reg .pred p, q;\nsetp.ne.u32 p, %1, 0;\nbar.red.or.pred q, %2, %3, p;\nselp.u32 %0, 1, 0, q;\n}"
               : "=r"(any)
               : "r"(static_cast<uint32_t>(value)), "r"(id), "r"(threads)
               : "memory");
  return any != 0;
}

// ---- bulk tensor copies (PTX ISA, "cp.async.bulk.tensor")

// One of the warp's lanes, always the same one.
__device__ __forceinline__ bool elect_one() {
  uint32_t elected = threadIdx.x % 32 == 0;
#if FLASHMLA_SM90A
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(elected));
#endif
  return elected != 0;
}

__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap* map) {
#if FLASHMLA_SM90A
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
#endif
}

// Copies the box at these coordinates to shared memory; its bytes count for `barrier`. Elements outside the tensor
// arrive as zeros, and are counted.
__device__ __forceinline__ void tensor_copy_4d(uint32_t to, const CUtensorMap* map, int32_t x, int32_t y, int32_t z,
                                               int32_t w, uint32_t barrier, uint64_t policy) {
  jitter();
#if FLASHMLA_SM90A
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier), "l"(policy)
      : "memory");
#endif
}

// Orders this thread's ordinary accesses to shared memory before what wgmma and bulk copies do there afterwards.
__device__ __forceinline__ void async_proxy_fence() {
#if FLASHMLA_SM90A
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// ---- stores of matrix fragments (PTX ISA, "stmatrix"): lanes 8i .. 8i + 7 give the row addresses of matrix i

__device__ __forceinline__ void stmatrix_x4(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
#if FLASHMLA_SM90A
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r0), "r"(r1),
               "r"(r2), "r"(r3)
               : "memory");
#endif
}

__device__ __forceinline__ void stmatrix_x4_trans(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2,
                                                  uint32_t r3) {
#if FLASHMLA_SM90A
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r0),
               "r"(r1), "r"(r2), "r"(r3)
               : "memory");
#endif
}

__device__ __forceinline__ void stmatrix_x2_trans(uint32_t address, uint32_t r0, uint32_t r1) {
#if FLASHMLA_SM90A
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(r0), "r"(r1)
               : "memory");
#endif
}

}  // namespace flashmla::ptx
