// Benching decode shapes: each is checked, then timed, then set against the ceilings measured in the same run.
#pragma once

#include <string>
#include <vector>

#include "cases/shapes.h"
#include "ceilings.h"
#include "cost.h"
#include "flashmla/flashmla.h"
#include "timing.h"

namespace flashmla::cli {

struct BenchOptions {
  Context context;
  double most_seconds = 10;  // of timed repeats, for each shape
  double inject_error = 0;   // see fault.h
};

struct BenchRow {
  std::string name;
  DecodeShape shape;
  std::vector<int64_t> lengths;
  KernelChoice choice;
  Cost cost;
  bool right = false;
  std::string check;   // which rows were compared, and the worst of them
  int64_t copies = 0;  // of the tensors, used in turn
  double copies_bytes = 0;
  Times times;  // none when the result is wrong

  double gbps() const { return times.median_us > 0 ? cost.bytes / times.median_us * 1e-3 : 0; }
  double tflops() const { return times.median_us > 0 ? cost.flops / times.median_us * 1e-6 : 0; }
  int64_t longest() const;
  double mean_length() const;
};

struct BenchRun {
  MeasuredCeilings ceilings;  // the best of those measured before each row and after the last
  std::vector<BenchRow> rows;

  Bound bound(const BenchRow& row) const { return bound_of(row.cost, ceilings.value); }
  // 1: as fast as the tighter of both ceilings allows.
  double share_of_bound(const BenchRow& row) const;
  bool right() const;
};

// Throws UsageError where the library refuses a case.
BenchRun bench_cases(const std::vector<cases::DecodeCase>& list, const BenchOptions& options);

}  // namespace flashmla::cli
