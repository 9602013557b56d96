// The fuzz targets under libFuzzer: the first byte chooses one of them.
//   cmake -G Ninja -B build/fuzz -DFLASHMLA_FUZZ=ON -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++
//   cmake --build build/fuzz --target fuzz && build/fuzz/tests/fuzz/fuzz -max_total_time=60 -max_len=512
#include <cstdio>
#include <cstdlib>

#include "targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flashmla::fuzz;
  using Target = std::string (*)(Bytes&, Counts&);
  constexpr Target kTargets[] = {fuzz_decode, fuzz_append_kv,    fuzz_merge_states,
                                 fuzz_c_api,  fuzz_decode_sizes, fuzz_prefill};
  Bytes bytes({data, size});
  Counts counts;
  const std::string problem = bytes.pick(kTargets)(bytes, counts);
  if (problem.empty()) return 0;
  std::fprintf(stderr, "%s\n", problem.c_str());
  std::abort();
}
