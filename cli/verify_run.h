// Comparing decode results with the double-precision oracle: what `verify` and `demo` share.
#pragma once

#include <string>
#include <vector>

#include "cases/shapes.h"
#include "flashmla/context.h"
#include "run_header.h"

namespace flashmla::cli {

// A back end and instruction set to compare; empty names: the library chooses, for tensors on the CPU. A back end of a
// GPU gets its tensors in the memory of the current one.
struct VerifyTarget {
  std::string backend;
  std::string isa;
  int32_t threads = 0;
};

struct VerifyOptions {
  double inject_error =
      0;  // a deliberate fault: one element of every result is scaled by 1 + this before it is compared
  bool name_worst = false;  // name the worst element of every case, not only of wrong ones
  bool leave_out = false;   // cases that a target does not compute are counted, not refused
};

struct VerifySummary {
  int64_t cases = 0;
  int64_t wrong = 0;
  int64_t left_out = 0;
  Json rows = Json::array();  // one object a case and target
};

// Prints a line for each case and target, and the verdict. Throws UsageError where the library refuses a case (with
// leave_out: every case). A failure on a GPU is a wrong result, and ends the run: nothing there can be used any more.
VerifySummary verify_cases(const std::vector<cases::DecodeCase>& list, const std::vector<VerifyTarget>& targets,
                           const VerifyOptions& options);

}  // namespace flashmla::cli
