// Warpgroup matrix products of sm_90a (PTX ISA, "wgmma"): d[64][N] (+)= a[64][16] b[16][N], 16-bit operands, fp32 sums.
// What a warpgroup's four warps issue together; all operands in shared memory are named by descriptors.
//
// Accumulator: register 4 i + 2 h + c of lane t in warp w is row 16 w + t / 4 + 8 h, column 8 i + 2 (t % 4) + c.
// Operands in shared memory are panels of rows of 128 bytes, 1024-byte aligned, 128-byte swizzle (tile::swizzled).
// K-major: a row holds 64 values of k; the next 16 of them lie 32 bytes on. MN-major: a row is one k and holds 64
// values of m or n; the next 16 k lie 2048 bytes on, the next 64 values of m or n one panel on.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/ptx/hopper.cuh"

namespace flashmla::ptx {

inline constexpr int kKMajor = 0;
inline constexpr int kMnMajor = 1;

// Descriptor of an operand that begins at `address`. `panel_bytes` is the distance of 64-wide panels; it counts for
// MN-major operands of more than 64 rows or columns.
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t address, uint32_t panel_bytes = 0) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = uint64_t{1024 >> 4} << 32;  // distance of groups of eight rows
  return kSwizzle128 | kEightRows | static_cast<uint64_t>(panel_bytes >> 4) << 16 | (address >> 4 & 0x3fff);
}

// Added to a descriptor: bytes as 16-byte units.
__device__ constexpr uint64_t wgmma_offset(uint32_t bytes) { return bytes >> 4; }

// Before the first product that reads registers or shared memory written by ordinary instructions.
__device__ __forceinline__ void wgmma_fence() {
#if FLASHMLA_SM90A
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void wgmma_commit() {
#if FLASHMLA_SM90A
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// Waits until at most `kPending` of this warp's newest groups are in flight.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
#if FLASHMLA_SM90A
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#endif
}

// Tells the compiler that accumulators change here: before the first product of a group and after the wait for it.
template <int kCount>
__device__ __forceinline__ void wgmma_tie(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// A kernel's element as the instruction names it.
#define FLASHMLA_WGMMA_FORMS(Element, type)                                                                            \
  template <int kMajorA, int kMajorB>                                                                                  \
  __device__ __forceinline__ void wgmma_ss(float (&d)[4], uint64_t a, uint64_t b, bool add, Element) {                 \
    asm volatile(                                                                                                      \
        "{\n.reg .pred add;\nsetp.ne.b32 add, %6, 0;\nwgmma.mma_async.sync.aligned.m64n8k16.f32." type "." type " "    \
        "{%0, %1, %2, %3}, %4, %5, add, 1, 1, %7, %8;\n}"                                                              \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                               \
        : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(kMajorA), "n"(kMajorB));                                     \
  }                                                                                                                    \
  template <int kMajorA, int kMajorB>                                                                                  \
  __device__ __forceinline__ void wgmma_ss(float (&d)[8], uint64_t a, uint64_t b, bool add, Element) {                 \
    asm volatile(                                                                                                      \
        "{\n.reg .pred add;\nsetp.ne.b32 add, %10, 0;\nwgmma.mma_async.sync.aligned.m64n16k16.f32." type "." type " "  \
        "{%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, add, 1, 1, %11, %12;\n}"                                            \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])               \
        : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(kMajorA), "n"(kMajorB));                                     \
  }                                                                                                                    \
  template <int kMajorA, int kMajorB>                                                                                  \
  __device__ __forceinline__ void wgmma_ss(float (&d)[16], uint64_t a, uint64_t b, bool add, Element) {                \
    asm volatile(                                                                                                      \
        "{\n.reg .pred add;\nsetp.ne.b32 add, %18, 0;\nwgmma.mma_async.sync.aligned.m64n32k16.f32." type "." type " "  \
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, add, 1, 1, %19, %20;\n}"    \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),  \
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])                     \
        : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(kMajorA), "n"(kMajorB));                                     \
  }                                                                                                                    \
  template <int kMajorA, int kMajorB>                                                                                  \
  __device__ __forceinline__ void wgmma_ss(float (&d)[32], uint64_t a, uint64_t b, bool add, Element) {                \
    asm volatile(                                                                                                      \
        "{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " "  \
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "             \
        "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, add, 1, 1, %35, %36;\n}"                    \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),  \
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),       \
          "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),      \
          "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])                    \
        : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(kMajorA), "n"(kMajorB));                                     \
  }                                                                                                                    \
  template <int kMajorB>                                                                                               \
  __device__ __forceinline__ void wgmma_rs(float (&d)[32], const uint32_t (&a)[4], uint64_t b, bool add, Element) {    \
    asm volatile(                                                                                                      \
        "{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " "  \
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "             \
        "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, add, 1, 1, %38;\n}"        \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),  \
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),       \
          "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),      \
          "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])                    \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)), "n"(kMajorB));               \
  }                                                                                                                    \
  template <int kMajorA, int kMajorB>                                                                                  \
  __device__ __forceinline__ void wgmma_ss(float (&d)[128], uint64_t a, uint64_t b, bool add, Element) {               \
    asm volatile(                                                                                                      \
        "{\n.reg .pred add;\nsetp.ne.b32 add, %130, 0;\nwgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type " " \
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "             \
        "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "              \
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "              \
        "%59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, "              \
        "%78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, "              \
        "%97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, "                \
        "%113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, %128, %129, add, 1, 1, %131, %132;\n}" \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),  \
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),       \
          "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),      \
          "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),      \
          "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),      \
          "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),      \
          "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),      \
          "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), "+f"(d[64]),      \
          "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), "+f"(d[72]),      \
          "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), "+f"(d[80]),      \
          "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]),      \
          "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), "+f"(d[96]),      \
          "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]), "+f"(d[104]), \
          "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]),            \
          "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]),            \
          "+f"(d[119]), "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]),            \
          "+f"(d[126]), "+f"(d[127])                                                                                   \
        : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(kMajorA), "n"(kMajorB));                                     \
  }                                                                                                                   

#if FLASHMLA_SM90A
FLASHMLA_WGMMA_FORMS(__nv_bfloat16, "bf16")
FLASHMLA_WGMMA_FORMS(__half, "f16")
#else
template <int kMajorA, int kMajorB, int kCount, typename T>
__device__ __forceinline__ void wgmma_ss(float (& /*d*/)[kCount], uint64_t /*a*/, uint64_t /*b*/, bool /*add*/, T) {}
template <int kMajorB, int kCount, typename T>
__device__ __forceinline__ void wgmma_rs(float (& /*d*/)[kCount], const uint32_t (& /*a*/)[4], uint64_t /*b*/,
                                         bool /*add*/, T) {}
#endif
#undef FLASHMLA_WGMMA_FORMS

}  // namespace flashmla::ptx
