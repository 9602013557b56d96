#include "memory_size.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <utility>

#include "exit_code.h"
#include "flags.h"

namespace flashmla::cli {

int64_t parse_memory(const std::string& flag, const std::string& text) {
  constexpr std::array<std::pair<const char*, double>, 8> kUnits = {{{"MiB", 0x1p20},
                                                                     {"GiB", 0x1p30},
                                                                     {"TiB", 0x1p40},
                                                                     {"PiB", 0x1p50},
                                                                     {"MB", 1e6},
                                                                     {"GB", 1e9},
                                                                     {"TB", 1e12},
                                                                     {"PB", 1e15}}};
  size_t digits = 0;
  while (digits < text.size() && (text[digits] == '.' || (text[digits] >= '0' && text[digits] <= '9'))) ++digits;
  const size_t unit_at = text.find_first_not_of(' ', digits);
  for (const auto& [unit, bytes] : kUnits) {
    if (digits == 0 || unit_at == std::string::npos || text.substr(unit_at) != unit) continue;
    const double value = parse_number(flag, text.substr(0, digits), 0, 1e6) * bytes;
    if (value >= 1 && value < 0x1p60) return std::llround(value);
  }
  throw UsageError(fmt::format("{}: got '{}'; want a size with its unit, like 96GiB or 80GB", flag, text));
}

}  // namespace flashmla::cli
