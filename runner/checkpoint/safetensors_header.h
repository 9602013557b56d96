// The JSON header of a safetensors file as a list, each entry still unchecked against the file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flashmla/status.h"

namespace flashmla::runner {

struct HeaderEntry {
  std::string name;
  std::string dtype;
  std::vector<uint64_t> shape;
  std::vector<uint64_t> data_offsets;  // begin and end, relative to the header's end
};

// In the header's order. Every entry has each of its three keys once, all numbers are non-negative integers,
// data_offsets are two.
Result<std::vector<HeaderEntry>> parse_safetensors_header(std::string_view text);

}  // namespace flashmla::runner
