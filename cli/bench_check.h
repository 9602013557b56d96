// The check before a timing: some rows of a result against the oracle.
#pragma once

#include <string>

#include "cases/problem.h"

namespace flashmla::cli {

struct SampledCheck {
  bool right = false;
  std::string text;  // how many rows were compared, and the verdict with the worst element
};

// Of the problem's last run. The shortest, the longest and further requests are compared, and of many query heads some,
// within a budget of oracle work of about two seconds; `verify` compares every row.
// `inject_error`: see fault.h.
SampledCheck check_sampled_rows(const cases::DecodeProblem& problem, double inject_error = 0);

}  // namespace flashmla::cli
