// What is fuzzed. Each target builds a call from the bytes, damages it perhaps, and runs what the checks accept on
// memory of exactly the size that shape and strides declare. It returns what is wrong, or "".
#pragma once

#include <string>

#include "bytes.h"
#include "flashmla/context.h"

namespace flashmla::fuzz {

// How many calls were accepted by the checks and run: a fuzzer whose calls are all refused shows nothing.
struct Counts {
  int64_t accepted = 0;
  int64_t run = 0;
};

// A back end, an instruction set of it and a thread count.
Context any_context(Bytes& bytes);

std::string fuzz_decode(Bytes& bytes, Counts& counts);
std::string fuzz_prefill(Bytes& bytes, Counts& counts);
std::string fuzz_append_kv(Bytes& bytes, Counts& counts);
std::string fuzz_merge_states(Bytes& bytes, Counts& counts);
// The C API on damaged structs, against the C++ API.
std::string fuzz_c_api(Bytes& bytes, Counts& counts);
// Sizes filled by hand.
std::string fuzz_decode_sizes(Bytes& bytes, Counts& counts);

}  // namespace flashmla::fuzz
