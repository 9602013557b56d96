// Named sets of shapes for `bench decode`.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cases/shapes.h"
#include "shape_flags.h"

namespace flashmla::cli {

const std::vector<std::string>& bench_set_names();

// The cases of a set; what it leaves open comes from the flags. Throws UsageError when a flag is given that the set
// itself decides.
std::vector<cases::DecodeCase> bench_set(const std::string& name, const CLI::App& command, const ShapeFlags& flags);

// Equal lengths from 512 up to `longest` in powers of two, everything else as in `flags`.
std::vector<cases::DecodeCase> length_sweep(const ShapeFlags& flags, int64_t longest);

}  // namespace flashmla::cli
