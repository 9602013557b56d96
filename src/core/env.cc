#include "core/env.h"

#include <charconv>
#include <cstdlib>

namespace flashmla {

namespace {

std::string_view read(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view{} : std::string_view{value};
}

}  // namespace

std::string_view env_backend() { return read("FLASHMLA_BACKEND"); }

std::string_view env_isa() { return read("FLASHMLA_ISA"); }

int32_t env_num_threads() {
  const std::string_view text = read("FLASHMLA_NUM_THREADS");
  int32_t threads = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), threads);
  return error == std::errc{} && end == text.data() + text.size() && threads > 0 ? threads : 0;
}

bool env_sync() { return read("FLASHMLA_SYNC") == "1"; }

}  // namespace flashmla
