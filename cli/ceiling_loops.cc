#include "ceiling_loops.h"

#include <algorithm>
#include <span>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace flashmla::cli {

namespace {

// Independent chains: enough to hide the latency of a multiply-add at two a cycle, few enough for 16 registers.
constexpr int kChains = 12;

// Keeps where a value came from from the optimiser, so that no chain is folded into another. A macro, because a
// function could not hold a vector register of an instruction set that it was not compiled for.
#if defined(__x86_64__)
#define FLASHMLA_HIDE(value) asm volatile("" : "+v"(value))
#else
#define FLASHMLA_HIDE(value) asm volatile("" : "+m"(value))
#endif

void scalar_fma(int64_t rounds) {
  float chains[kChains];
  float a = 0.5F;
  float b = 1e-3F;
  FLASHMLA_HIDE(a);
  FLASHMLA_HIDE(b);
  for (float& chain : chains) {
    chain = 1.0F;
    FLASHMLA_HIDE(chain);
  }
  for (int64_t r = 0; r < rounds; ++r) {
    for (float& chain : chains) chain = chain * a + b;
  }
  for (float& chain : chains) FLASHMLA_HIDE(chain);
}

void scalar_read(const std::byte* data, int64_t bytes) {
  const auto* words = reinterpret_cast<const uint64_t*>(data);
  uint64_t sums[4] = {};
  for (int64_t i = 0; i < bytes / 8; i += 4) {
    for (int64_t j = 0; j < 4; ++j) sums[j] ^= words[i + j];
  }
  uint64_t sum = sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
  asm volatile("" : "+r"(sum));
}

constexpr ComputeLoop kScalarCompute{"scalar", "scalar multiply-add loop", false, kChains * 2, &scalar_fma};
constexpr ReadLoop kScalarRead{"scalar", "scalar read loop", &scalar_read};

#if defined(__x86_64__)

// The compiler may keep an array of vectors in memory unless every loop over it is unrolled: hence the pragmas.
#define FLASHMLA_EACH_CHAIN _Pragma("GCC unroll 12") for (int c = 0; c < kChains; ++c)

__attribute__((target("avx512f,avx512bw,avx512bf16"))) void avx512_bf16_dot(int64_t rounds) {
  __m512 chains[kChains];
  __m512i a_bits = _mm512_set1_epi16(0x3c00);  // bf16 0.0078125: the sums stay small
  __m512i b_bits = _mm512_set1_epi16(0x3c00);
  FLASHMLA_HIDE(a_bits);
  FLASHMLA_HIDE(b_bits);
  const auto a = reinterpret_cast<__m512bh>(a_bits);
  const auto b = reinterpret_cast<__m512bh>(b_bits);
  FLASHMLA_EACH_CHAIN {
    chains[c] = _mm512_setzero_ps();
    FLASHMLA_HIDE(chains[c]);
  }
  for (int64_t r = 0; r < rounds; ++r) {
    FLASHMLA_EACH_CHAIN chains[c] = _mm512_dpbf16_ps(chains[c], a, b);
  }
  FLASHMLA_EACH_CHAIN FLASHMLA_HIDE(chains[c]);
}

__attribute__((target("avx512f"))) void avx512_fma(int64_t rounds) {
  __m512 chains[kChains];
  __m512 a = _mm512_set1_ps(0.5F);
  __m512 b = _mm512_set1_ps(1e-3F);
  FLASHMLA_HIDE(a);
  FLASHMLA_HIDE(b);
  FLASHMLA_EACH_CHAIN {
    chains[c] = _mm512_set1_ps(1.0F);
    FLASHMLA_HIDE(chains[c]);
  }
  for (int64_t r = 0; r < rounds; ++r) {
    FLASHMLA_EACH_CHAIN chains[c] = _mm512_fmadd_ps(chains[c], a, b);
  }
  FLASHMLA_EACH_CHAIN FLASHMLA_HIDE(chains[c]);
}

__attribute__((target("avx2,fma"))) void avx2_fma(int64_t rounds) {
  __m256 chains[kChains];
  __m256 a = _mm256_set1_ps(0.5F);
  __m256 b = _mm256_set1_ps(1e-3F);
  FLASHMLA_HIDE(a);
  FLASHMLA_HIDE(b);
  FLASHMLA_EACH_CHAIN {
    chains[c] = _mm256_set1_ps(1.0F);
    FLASHMLA_HIDE(chains[c]);
  }
  for (int64_t r = 0; r < rounds; ++r) {
    FLASHMLA_EACH_CHAIN chains[c] = _mm256_fmadd_ps(chains[c], a, b);
  }
  FLASHMLA_EACH_CHAIN FLASHMLA_HIDE(chains[c]);
}

__attribute__((target("avx512f"))) void avx512_read(const std::byte* data, int64_t bytes) {
  const auto* lines = reinterpret_cast<const __m512i*>(data);
  __m512i sums[4] = {};
  for (int64_t i = 0; i < bytes / 64; i += 4) {
#pragma GCC unroll 4
    for (int64_t j = 0; j < 4; ++j) sums[j] = _mm512_xor_si512(sums[j], _mm512_load_si512(lines + i + j));
  }
#pragma GCC unroll 4
  for (auto& sum : sums) FLASHMLA_HIDE(sum);
}

__attribute__((target("avx2"))) void avx2_read(const std::byte* data, int64_t bytes) {
  const auto* lines = reinterpret_cast<const __m256i*>(data);
  __m256i sums[4] = {};
  for (int64_t i = 0; i < bytes / 32; i += 4) {
#pragma GCC unroll 4
    for (int64_t j = 0; j < 4; ++j) sums[j] = _mm256_xor_si256(sums[j], _mm256_load_si256(lines + i + j));
  }
#pragma GCC unroll 4
  for (auto& sum : sums) FLASHMLA_HIDE(sum);
}

#undef FLASHMLA_EACH_CHAIN

constexpr ComputeLoop kComputeLoops[] = {
    {"avx512_bf16", "avx512_bf16 dot-product loop (VDPBF16PS)", true, kChains * 64, &avx512_bf16_dot},
    {"avx512", "avx512 fp32 multiply-add loop", false, kChains * 32, &avx512_fma},
    {"avx2", "avx2 fp32 multiply-add loop", false, kChains * 16, &avx2_fma},
    kScalarCompute,
};
constexpr ReadLoop kReadLoops[] = {
    {"avx512", "avx512 read loop", &avx512_read},
    {"avx2", "avx2 read loop", &avx2_read},
    kScalarRead,
};

#else

constexpr ComputeLoop kComputeLoops[] = {kScalarCompute};
constexpr ReadLoop kReadLoops[] = {kScalarRead};

#endif

bool has(const std::vector<std::string>& isas, const char* isa) { return std::ranges::find(isas, isa) != isas.end(); }

#undef FLASHMLA_HIDE

}  // namespace

const ComputeLoop& compute_loop(const std::vector<std::string>& isas, DType dtype) {
  for (const ComputeLoop& loop : kComputeLoops) {
    if (has(isas, loop.isa) && (!loop.bf16 || dtype == DType::kBFloat16)) return loop;
  }
  return std::end(kComputeLoops)[-1];
}

const ReadLoop& read_loop(const std::vector<std::string>& isas) {
  for (const ReadLoop& loop : kReadLoops) {
    if (has(isas, loop.isa)) return loop;
  }
  return std::end(kReadLoops)[-1];
}

}  // namespace flashmla::cli
