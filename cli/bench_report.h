// A bench run as a table, CSV, JSON and plots.
#pragma once

#include <string>

#include "bench_run.h"
#include "run_header.h"

namespace flashmla::cli {

// Prints the ceilings, the table and how to read it.
void print_bench(const BenchRun& run);

std::string bench_csv(const BenchRun& run);
Json bench_json(const BenchRun& run, const std::string& commit);

// SVG texts. Length plot: GB/s over cached tokens. Roofline: GFLOP/s over flop/B under both ceilings.
std::string length_plot(const BenchRun& run);
std::string roofline_plot(const BenchRun& run);

}  // namespace flashmla::cli
