// From flags to the cases that tests, `verify` and `bench` share.
#pragma once

#include <string>
#include <vector>

#include "cases/shapes.h"
#include "shape_flags.h"

namespace flashmla::cli {

// The call that the flags describe. Throws UsageError with the library's text when it is no legal call.
cases::DecodeCase described_case(const ShapeFlags& flags);
// The same, to be run: throws UsageError as well when its tensors would not fit this machine's free memory.
cases::DecodeCase decode_case_of(const ShapeFlags& flags);

std::vector<int64_t> lengths_of(const cases::DecodeCase& decode_case);
// Bytes of query, cache and output.
double tensor_bytes(const cases::DecodeCase& decode_case);
// Bytes that can be allocated without swapping.
double free_memory_bytes();

// The kernel that a case runs, or the library's refusal as a UsageError.
KernelChoice kernel_of(const DecodeShape& shape, const DecodeOptions& options, const Context& context);

}  // namespace flashmla::cli
