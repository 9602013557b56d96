// Which instruction set multiplies.
#include <cstdlib>
#include <string>
#include <vector>

#include "flashmla/cpu.h"
#include "runner/linear/linear_kernel.h"

namespace flashmla::runner {

namespace {

using Table = const LinearKernel& (*)();

struct Row {
  std::string_view isa;
  Table table;
};

constexpr Row kRows[] = {
#if defined(__x86_64__)
    {"avx512_bf16", linear_avx512_bf16},
    {"avx512", linear_avx512},
    {"avx2", linear_avx2},
#endif
    {"scalar", linear_scalar},
};

const LinearKernel& choose() {
  const char* wanted = std::getenv("FLASHMLA_ISA");  // the "cpu" back end's own choice, and its error for a bad name
  if (wanted != nullptr) {
    if (const LinearKernel* kernel = find_linear_kernel(wanted)) return *kernel;
  }
  for (const Row& row : kRows) {
    if (const LinearKernel* kernel = find_linear_kernel(row.isa)) return *kernel;
  }
  return linear_scalar();
}

}  // namespace

const LinearKernel* find_linear_kernel(std::string_view isa) {
  static const std::vector<std::string> usable = cpu_info().isas;
#if defined(__x86_64__)
  // Every processor with AVX512_BF16 so far has AVX512_VNNI too, but nothing promises it.
  if (isa == "avx512_bf16" && __builtin_cpu_supports("avx512vnni") == 0) return nullptr;
#endif
  for (const Row& row : kRows) {
    if (row.isa != isa) continue;
    for (const std::string& name : usable) {
      if (name == isa) return &row.table();
    }
  }
  return nullptr;
}

const LinearKernel& default_linear_kernel() {
  static const LinearKernel& kernel = choose();
  return kernel;
}

}  // namespace flashmla::runner
