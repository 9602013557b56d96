// The contract's paragraph on non-finite values: which rows must be non-finite, which may be, which must not change.
#include <cmath>

#include "support.h"

namespace flashmla::tests {
namespace {

using cases::DecodeCase;
using cases::DecodeProblem;
using cases::DecodeResult;

constexpr int64_t kRequest = 1;
constexpr int64_t kHeadKv = 1;

DecodeCase grouped_case() {
  DecodeCase c = small_case();
  c.requests = requests_of({40, 150, 9});
  c.heads_q = 6;
  c.heads_kv = 2;
  c.seq_q = 3;
  c.causal = true;
  return c;
}

// The sign of q in one column decides whether an infinite key gives +inf or -inf.
float query_at(const DecodeProblem& problem, int64_t token, int64_t head, int64_t column) {
  return cases::load_element(problem.query(kRequest, token, head), problem.decode_case().dtype, column);
}

bool same_row(const DecodeResult& a, const DecodeResult& b, int64_t token, int64_t head) {
  for (int64_t d = 0; d < a.latent_dim; ++d) {
    if (a.out_at(token, head, d) != b.out_at(token, head, d)) return false;
  }
  return a.lse_at(token, head) == b.lse_at(token, head);
}

// One key of one request and KV head gets `value` in `column`.
void expect_contained(DecodeCase c, const Target& target, float value, int64_t position, int64_t column) {
  SCOPED_TRACE(target.name + ", " + describe(c) + ", " + std::to_string(value) + " at key " + std::to_string(position) +
               ", column " + std::to_string(column));
  DecodeProblem problem(c);
  const DecodeResult clean = run(problem, target.context());
  const cases::DecodeOracle oracle = make_oracle(problem);
  cases::store_elements(problem.key(kRequest, position, kHeadKv) + column * dtype_bytes(c.dtype), c.dtype, &value, 1);
  const cases::DecodeOracle with_value = make_oracle(problem);
  const DecodeResult dirty = run(problem, target.context());
  for (int64_t i = 0; i < c.batch(); ++i) {
    for (int64_t token = 0; token < c.seq_q; ++token) {
      for (int64_t head = 0; head < c.heads_q; ++head) {
        const int64_t row = problem.first_token(i) + token;
        if (i != kRequest || head / (c.heads_q / c.heads_kv) != kHeadKv) {
          EXPECT_TRUE(same_row(clean, dirty, row, head)) << "request " << i << ", token " << token << ", head " << head;
          continue;
        }
        const bool visible = position < problem.visible_keys(i, token);
        const float score = query_at(problem, token, head, column) * value;
        const float lse = dirty.lse_at(row, head);
        if (visible && (std::isnan(score) || score > 0)) {
          EXPECT_TRUE(std::isnan(lse)) << "token " << token << ", head " << head << ": lse " << lse;
          for (int64_t d = 0; d < c.latent_dim; ++d) {
            ASSERT_FALSE(std::isfinite(dirty.out_at(row, head, d))) << "token " << token << ", column " << d;
          }
          continue;
        }
        // The row may be non-finite or right: without the key, when its score is -inf.
        const float want = visible ? with_value.lse[row * c.heads_q + head] : oracle.lse[row * c.heads_q + head];
        if (!std::isnan(lse)) {
          EXPECT_NEAR(lse, want, 1e-6 + 1.2e-4 * std::fabs(want)) << "token " << token;
        }
        const std::vector<float>& expected = visible ? with_value.out : oracle.out;
        for (int64_t d = 0; d < c.latent_dim; ++d) {
          const float got = dirty.out_at(row, head, d);
          const int64_t element = (row * c.heads_q + head) * c.latent_dim + d;
          if (std::isfinite(got)) {
            ASSERT_NEAR(got, expected[element], oracle.bound[row * c.heads_q + head]) << "column " << d;
          }
        }
      }
    }
  }
}

TEST(NonFinite, StaysWithItsRequestAndKvHead) {
  for (const Target& target : all_targets()) {
    for (DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
      for (float value : {kNaN, kInf, -kInf}) {
        DecodeCase c = grouped_case();
        c.dtype = dtype;
        if (!target.takes(c)) continue;
        for (int64_t column : {0, 511, 512, 575}) expect_contained(c, target, value, 20, column);
        expect_contained(c, target, value, 0, 512);
        expect_contained(c, target, value, 149, 575);  // seen by the last query token only
        c.options.splits = 4;
        expect_contained(c, target, value, 100, 300);
      }
    }
  }
}

// Sets the RoPE column 0 of all queries to -1 and of some keys to +inf: these keys score -inf, their values stay
// finite.
void hide_keys(DecodeProblem& problem, int64_t begin, int64_t end) {
  const DecodeCase& c = problem.decode_case();
  const float minus_one = -1.0f;
  for (int64_t i = 0; i < c.batch(); ++i) {
    for (int64_t token = 0; token < c.tokens_q(i); ++token) {
      for (int64_t head = 0; head < c.heads_q; ++head)
        cases::store_elements(problem.query_rope(i, token, head), c.dtype, &minus_one, 1);
    }
    for (int64_t k = begin; k < std::min<int64_t>(end, c.requests[i].seq_len); ++k) {
      cases::store_elements(problem.key(i, k, 0) + c.latent_dim * dtype_bytes(c.dtype), c.dtype, &kInf, 1);
    }
  }
}

TEST(NonFinite, RowsOfOnlyMinusInfScoresAreEmpty) {
  for (EmptyLse marker : {EmptyLse::kPlusInf, EmptyLse::kMinusInf}) {
    for (int32_t splits : {0, 3}) {
      DecodeCase c = small_case();
      c.options.empty_lse = marker;
      c.options.splits = splits;
      DecodeProblem problem(c);
      hide_keys(problem, 0, 1 << 20);
      for (const Target& target : all_targets()) {
        const DecodeResult result = run(problem, target.context());
        for (float lse : result.lse) EXPECT_EQ(lse, marker == EmptyLse::kPlusInf ? kInf : -kInf) << target.name;
        for (std::byte byte : result.out) ASSERT_EQ(byte, std::byte{0}) << target.name;
      }
    }
  }
}

// The first keys, whole blocks and whole splits of them, score -inf; the rest decides. Never exp(-inf - -inf).
TEST(NonFinite, HiddenBlocksCountNothing) {
  for (int32_t splits : {0, 2, 3}) {
    for (int64_t hidden : {1, 16, 64, 100, 299}) {
      for (bool at_end : {false, true}) {
        DecodeCase c = small_case();
        c.requests = requests_of({300, 300});
        c.heads_q = 16;
        c.options.splits = splits;
        DecodeProblem problem(c);
        hide_keys(problem, at_end ? 300 - hidden : 0, at_end ? 300 : hidden);
        cases::DecodeOracle oracle = make_oracle(problem);
        for (float& bound : oracle.bound) ASSERT_TRUE(std::isfinite(bound));
        for (const Target& target : all_targets()) {
          run(problem, target.context());
          const cases::Comparison comparison = compare(problem, oracle);
          EXPECT_TRUE(comparison.ok) << target.name << ", " << hidden << " keys hidden: " << comparison.text;
        }
      }
    }
  }
}

TEST(NonFinite, QueryReachesItsOwnRowOnly) {
  for (const Target& target : all_targets()) {
    DecodeCase c = grouped_case();
    DecodeProblem problem(c);
    const DecodeResult clean = run(problem, target.context());
    cases::store_elements(problem.query(kRequest, 1, 4), c.dtype, &kNaN, 1);
    const DecodeResult dirty = run(problem, target.context());
    for (int64_t token = 0; token < c.total_q(); ++token) {
      for (int64_t head = 0; head < c.heads_q; ++head) {
        if (token == problem.first_token(kRequest) + 1 && head == 4) {
          EXPECT_TRUE(std::isnan(dirty.lse_at(token, head))) << target.name;
        } else {
          EXPECT_TRUE(same_row(clean, dirty, token, head)) << target.name << ", token " << token << ", head " << head;
        }
      }
    }
  }
}

}  // namespace
}  // namespace flashmla::tests
