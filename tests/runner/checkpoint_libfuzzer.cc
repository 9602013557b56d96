// The fuzz targets of checkpoints under libFuzzer: the first byte chooses one of them, or the bytes themselves as a
// file.
#include <cstdio>
#include <cstdlib>

#include "checkpoint_fuzz.h"
#include "runner/checkpoint/checkpoint.h"
#include "runner/checkpoint/model_config.h"
#include "runner/checkpoint/safetensors.h"

namespace {

using flashmla::fuzz::Bytes;
using flashmla::fuzz::Counts;

void raw(int choice, const std::string& text) {
  switch (choice) {
    case 0: (void)flashmla::runner::parse_safetensors(std::as_bytes(std::span(text)), "file"); break;
    case 1: (void)flashmla::runner::parse_model_config(text); break;
    default: (void)flashmla::runner::parse_shard_index(text, "index: "); break;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using Target = std::string (*)(Bytes&, Counts&);
  constexpr Target kTargets[] = {flashmla::fuzz::fuzz_safetensors, flashmla::fuzz::fuzz_config,
                                 flashmla::fuzz::fuzz_shard_index};
  if (size == 0) return 0;
  const int choice = data[0] % 6;
  if (choice >= 3) {
    raw(choice - 3, std::string(reinterpret_cast<const char*>(data) + 1, size - 1));
    return 0;
  }
  Bytes bytes({data + 1, size - 1});
  Counts counts;
  const std::string problem = kTargets[choice](bytes, counts);
  if (problem.empty()) return 0;
  std::fprintf(stderr, "%s\n", problem.c_str());
  std::abort();
}
