// Fuzz targets of what is read from a checkpoint's folder. Each returns what is wrong, or "".
#pragma once

#include <string>

#include "bytes.h"
#include "targets.h"

namespace flashmla::fuzz {

// A safetensors file, right or damaged, that ends at memory which cannot be accessed.
std::string fuzz_safetensors(Bytes& bytes, Counts& counts);
// config.json, damaged.
std::string fuzz_config(Bytes& bytes, Counts& counts);
// model.safetensors.index.json, damaged.
std::string fuzz_shard_index(Bytes& bytes, Counts& counts);

}  // namespace flashmla::fuzz
