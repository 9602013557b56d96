// Sizes of memory on the command line.
#pragma once

#include <cstdint>
#include <string>

namespace flashmla::cli {

// "96GiB", "80 GB", "1.5TiB" in bytes. Throws UsageError that names `flag`.
int64_t parse_memory(const std::string& flag, const std::string& text);

}  // namespace flashmla::cli
