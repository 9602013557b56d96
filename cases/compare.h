// The contract's comparison of a decode result with the double-precision oracle.
//
// Oracle: back end "reference" on the inputs converted to fp32 (which is exact), one request at a time and with the
// keys gathered in order, so that neither paging nor rounding of the output enters it. Bound of a row of `out`, in the
// maximum norm: 2 e_ref + 1e-5 max|v| over its keys; e_ref is the error of the plain formula in the tensor's own
// precision (softmax weights rounded to it, fp32 accumulation, rounded output) over the rows of that request, and not
// below what rounding the request's largest output can cost, which a measured error of few elements misses by chance.
// Bound of `lse`: 1e-6 + 1.2e-4 |lse|, for fp32 inputs 1e-6 + 1e-6 |lse|.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cases/problem.h"

namespace flashmla::cases {

struct OracleOptions {
  int threads = 2;
  // Multiply-adds that e_ref may take for each request; above it, a sample of at least 32 of the request's rows is
  // used.
  int64_t plain_macs = 500'000'000;
};

struct DecodeOracle {
  std::vector<float> out;    // [total_q, h_q, d_v]
  std::vector<float> lse;    // [total_q, h_q]
  std::vector<float> bound;  // [total_q, h_q]: largest allowed error of a row of `out`
  bool sampled = false;      // e_ref comes from a sample of the rows
};

// Reads the problem's tensors as they are now. Throws std::runtime_error when the reference refuses the call.
DecodeOracle make_oracle(const DecodeProblem& problem, const OracleOptions& options = {});

struct Comparison {
  bool ok = true;
  double worst_ratio = 0;  // error / bound, of the worst element of out and lse; infinity where NaN or Inf differ
  double out_error = 0;    // largest errors
  double lse_error = 0;
  std::string text;  // the verdict and the worst element: request, token, head, column, got, want, error, bound
};

// Positions of NaN and Inf first, then values.
Comparison compare(const DecodeProblem& problem, const DecodeOracle& oracle, const DecodeResult& result);
// Of the problem's last `run`; also proves that every element was written and nothing beside them.
Comparison compare(const DecodeProblem& problem, const DecodeOracle& oracle);

}  // namespace flashmla::cases
