#include "bench_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "cases/compare.h"
#include "exit_code.h"
#include "fault.h"

namespace flashmla::cli {

namespace {

constexpr double kOracleMacs =
    1.0e9;  // multiply-adds in double precision; at least one request and 8 heads are compared
constexpr int64_t kLeastHeads = 8;

struct Sample {
  std::vector<int64_t> requests;  // of the whole call, in order
  int64_t heads = 0;              // the first ones
};

Sample choose(const cases::DecodeCase& c) {
  const auto macs = [&](int64_t index, int64_t heads) {
    return static_cast<double>(c.tokens_q(index) * heads) * static_cast<double>(c.requests[index].seq_len) *
           static_cast<double>(2 * c.latent_dim + c.rope_dim);
  };
  std::vector<int64_t> order(static_cast<size_t>(c.batch()));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](int64_t index) { return c.requests[index].seq_len; });
  if (order.size() > 2) std::swap(order[1], order.back());  // the shortest, the longest, then the rest
  Sample sample;
  // Heads are left out only with one KV head: a head's KV head would change otherwise.
  sample.heads = c.heads_q;
  if (c.heads_kv == 1 && !order.empty() && macs(order[order.size() > 1 ? 1 : 0], c.heads_q) > kOracleMacs) {
    const double fitting = kOracleMacs / std::max(1.0, macs(order[order.size() > 1 ? 1 : 0], 1));
    sample.heads = std::clamp(static_cast<int64_t>(fitting), std::min(kLeastHeads, c.heads_q), c.heads_q);
  }
  double spent = 0;
  for (const int64_t index : order) {
    spent += macs(index, sample.heads);
    if (sample.requests.size() >= 2 && spent > kOracleMacs) break;
    sample.requests.push_back(index);
  }
  std::ranges::sort(sample.requests);
  return sample;
}

// The same requests and heads as a call of their own: content depends on seed, request id and head alone.
cases::DecodeCase part_of(const cases::DecodeCase& whole, const Sample& sample) {
  cases::DecodeCase part = whole;
  part.requests.clear();
  for (const int64_t index : sample.requests) part.requests.push_back(whole.requests[index]);
  part.heads_q = sample.heads;
  return part;
}

cases::DecodeResult rows_of(const cases::DecodeProblem& problem, const Sample& sample) {
  const cases::DecodeResult whole = problem.result();
  const int64_t row_bytes = whole.latent_dim * dtype_bytes(whole.dtype);
  cases::DecodeResult rows{whole.dtype, sample.heads, whole.latent_dim, {}, {}};
  for (const int64_t index : sample.requests) {
    for (int64_t token = problem.first_token(index); token < problem.first_token(index + 1); ++token) {
      const std::byte* first = whole.out.data() + token * whole.heads_q * row_bytes;
      rows.out.insert(rows.out.end(), first, first + sample.heads * row_bytes);
      if (whole.lse.empty()) continue;
      const float* lse = whole.lse.data() + token * whole.heads_q;
      rows.lse.insert(rows.lse.end(), lse, lse + sample.heads);
    }
  }
  return rows;
}

}  // namespace

SampledCheck check_sampled_rows(const cases::DecodeProblem& problem, double inject_error) {
  const cases::DecodeCase& c = problem.decode_case();
  if (const std::string fault = problem.sentinel_fault(); !fault.empty()) return {false, fault};
  const Sample sample = choose(c);
  const cases::DecodeProblem part(part_of(c, sample));
  try {
    const cases::DecodeOracle oracle =
        cases::make_oracle(part, {.threads = cpu_info().threads, .plain_macs = 100'000'000});
    cases::DecodeResult rows = rows_of(problem, sample);
    inject_fault(rows, inject_error);
    const cases::Comparison comparison = cases::compare(part, oracle, rows);
    return {comparison.ok, fmt::format("{} of {} requests, {} of {} heads compared; {}", sample.requests.size(),
                                       c.batch(), sample.heads, c.heads_q, comparison.text)};
  } catch (const std::runtime_error& error) {
    throw UsageError(error.what());
  }
}

}  // namespace flashmla::cli
