#include "cases/compare.h"

#include <cmath>
#include <limits>
#include <sstream>

namespace flashmla::cases {

namespace {

constexpr double kLseAbsolute = 1e-6;
constexpr double kLseRelative = 1.2e-4;
constexpr double kLseRelativeFloat32 = 1e-6;
constexpr int64_t kLseColumn = -1;

struct Element {
  int64_t token = 0;  // among all of the call
  int64_t head = 0;
  int64_t column = 0;  // kLseColumn: of lse
  float got = 0;
  float want = 0;
  double error = 0;
  double bound = 0;
};

std::string element_text(const DecodeProblem& problem, const Element& element) {
  std::ostringstream text;
  text << (element.column == kLseColumn ? "lse" : "out") << " at ";
  int64_t request = 0;
  while (request < problem.decode_case().batch() && problem.first_token(request + 1) <= element.token) ++request;
  if (request == problem.decode_case().batch())
    text << "padding";
  else
    text << "request " << request;
  text << ", token " << element.token - problem.first_token(request) << ", head " << element.head;
  if (element.column != kLseColumn) text << ", column " << element.column;
  text << ": got " << element.got << ", want " << element.want << ", error " << element.error << ", bound "
       << element.bound;
  return text.str();
}

// Visits every element of a result together with the oracle's.
template <class Visit>
void visit_elements(const DecodeCase& c, const DecodeOracle& oracle, const DecodeResult& result, const Visit& visit) {
  const double lse_relative = c.dtype == DType::kFloat32 ? kLseRelativeFloat32 : kLseRelative;
  for (int64_t token = 0; token < c.total_q(); ++token) {
    for (int64_t head = 0; head < c.heads_q; ++head) {
      const int64_t row = token * c.heads_q + head;
      for (int64_t d = 0; d < c.latent_dim; ++d) {
        visit(Element{token, head, d, result.out_at(token, head, d), oracle.out[row * c.latent_dim + d], 0,
                      oracle.bound[row]});
      }
      if (result.lse.empty()) continue;
      const float want = oracle.lse[row];
      visit(Element{token, head, kLseColumn, result.lse_at(token, head), want, 0,
                    std::isfinite(want) ? kLseAbsolute + lse_relative * std::fabs(want) : 0.0});
    }
  }
}

// The kind of a non-finite output is unspecified; an lse is NaN or a marker, and both have a meaning.
bool same_kind(const Element& element) {
  if (std::isfinite(element.want) || std::isfinite(element.got))
    return std::isfinite(element.want) == std::isfinite(element.got);
  if (element.column != kLseColumn) return true;
  return std::isnan(element.want) ? std::isnan(element.got) : element.want == element.got;
}

}  // namespace

Comparison compare(const DecodeProblem& problem, const DecodeOracle& oracle, const DecodeResult& result) {
  const DecodeCase& c = problem.decode_case();
  Comparison verdict;
  std::ostringstream text;
  int64_t misplaced = 0;
  Element first;
  visit_elements(c, oracle, result, [&](const Element& element) {
    if (!same_kind(element) && misplaced++ == 0) first = element;
  });
  if (misplaced != 0) {
    verdict.ok = false;
    verdict.worst_ratio = std::numeric_limits<double>::infinity();
    text << misplaced << " elements are NaN or Inf where they should not be, or the reverse; first "
         << element_text(problem, first);
    verdict.text = text.str();
    return verdict;
  }
  Element worst;
  int64_t wrong = 0;
  visit_elements(c, oracle, result, [&](Element element) {
    if (!std::isfinite(element.want)) return;
    element.error = std::fabs(static_cast<double>(element.got) - element.want);
    double& largest = element.column == kLseColumn ? verdict.lse_error : verdict.out_error;
    largest = std::fmax(largest, element.error);
    // A bound that is no number, or infinite, bounds nothing: then only equal elements pass.
    const double bound = std::isfinite(element.bound) ? element.bound : 0;
    const double ratio = element.error == 0 ? 0 : element.error / bound;
    if (ratio > 1) ++wrong;
    if (ratio <= verdict.worst_ratio) return;
    verdict.worst_ratio = ratio;
    worst = element;
  });
  verdict.ok = wrong == 0;
  if (wrong != 0) text << wrong << " elements exceed their bound; ";
  if (verdict.worst_ratio > 0)
    text << "worst " << element_text(problem, worst);
  else
    text << "every element is equal";
  if (oracle.sampled) text << " (bound from a sample of the rows)";
  verdict.text = text.str();
  return verdict;
}

Comparison compare(const DecodeProblem& problem, const DecodeOracle& oracle) {
  const std::string fault = problem.sentinel_fault();
  if (!fault.empty()) return {false, std::numeric_limits<double>::infinity(), 0, 0, fault};
  return compare(problem, oracle, problem.result());
}

}  // namespace flashmla::cases
