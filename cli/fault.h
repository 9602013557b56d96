// A deliberate fault, by which the tests see that a wrong result is found.
#pragma once

#include "cases/problem.h"

namespace flashmla::cli {

// Scales the element of largest magnitude by 1 + `error` (zeros would hide the fault); 0 leaves the result as it is.
void inject_fault(cases::DecodeResult& result, double error);

}  // namespace flashmla::cli
