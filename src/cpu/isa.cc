#include "cpu/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <array>

#include "core/env.h"
#include "core/text.h"

namespace flashmla {

namespace {

struct IsaRow {
  Isa isa;
  std::string_view name;
};

constexpr std::array kIsas = {IsaRow{Isa::kAvx512Bf16, "avx512_bf16"}, IsaRow{Isa::kAvx512, "avx512"},
                              IsaRow{Isa::kAvx2, "avx2"}, IsaRow{Isa::kScalar, "scalar"}};

#if defined(__x86_64__)
// Not by __builtin_cpu_supports: clang 14 does not know this feature's name.
bool has_f16c() {
  unsigned int eax = 0;
  unsigned int ebx = 0;
  unsigned int ecx = 0;
  unsigned int edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

bool usable(Isa isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 && has_f16c();
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                      __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  switch (isa) {
    case Isa::kAvx512Bf16: return avx512 && __builtin_cpu_supports("avx512bf16") != 0;
    case Isa::kAvx512: return avx512;
    case Isa::kAvx2: return avx2;
    case Isa::kScalar: return true;
  }
#endif
  return isa == Isa::kScalar;
}

std::string usable_names() {
  std::string names;
  for (Isa isa : usable_isas()) names += concat(names.empty() ? "" : ", ", isa_name(isa));
  return names;
}

}  // namespace

std::string_view isa_name(Isa isa) {
  for (const IsaRow& row : kIsas) {
    if (row.isa == isa) return row.name;
  }
  return "unknown";
}

const std::vector<Isa>& usable_isas() {
  static const auto* list = [] {
    auto* found = new std::vector<Isa>;
    for (const IsaRow& row : kIsas) {
      if (usable(row.isa)) found->push_back(row.isa);
    }
    return found;
  }();
  return *list;
}

Result<Isa> choose_isa(const Context& context) {
  const std::string_view name = context.isa.empty() ? env_isa() : context.isa;
  if (name.empty()) return usable_isas().front();
  for (Isa isa : usable_isas()) {
    if (isa_name(isa) == name) return isa;
  }
  return invalid("isa", concat("'", name, "'"), concat("one that this processor has: ", usable_names()));
}

}  // namespace flashmla
