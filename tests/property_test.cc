// What may not change a result, and by how much the rest may.
#include <algorithm>
#include <cmath>

#include "support.h"

namespace flashmla::tests {
namespace {

using cases::DecodeCase;
using cases::DecodeProblem;
using cases::DecodeResult;

std::vector<DecodeCase> property_cases() {
  DecodeCase plain = small_case();
  DecodeCase causal = small_case();
  causal.seq_q = 3;
  causal.causal = true;
  causal.heads_q = 16;
  DecodeCase ragged = small_case();
  ragged.dtype = DType::kFloat16;
  make_ragged(ragged, 4, 2);
  DecodeCase grouped = small_case();
  grouped.heads_q = 6;
  grouped.heads_kv = 2;
  grouped.dtype = DType::kFloat32;
  DecodeCase grouped_half = grouped;
  grouped_half.dtype = DType::kBFloat16;
  DecodeCase wide = small_case();
  wide.requests = cases::make_requests(2, 1500, cases::Lengths::kVaried, 8);
  wide.heads_q = 128;
  return {plain, causal, ragged, grouped, grouped_half, wide};
}

// Long enough that the splits of a whole call and those of each request alone differ, also on many processors.
DecodeCase long_case(DType dtype = DType::kFloat32) {
  DecodeCase c = small_case();
  c.requests = requests_of({200'000, 700, 0, 65, 3000});
  c.heads_q = 2;
  c.latent_dim = 16;
  c.rope_dim = 8;
  c.page_size = 64;
  c.dtype = dtype;  // outputs coarser than fp32 hide other orders of summation
  return c;
}

TEST(Property, PhysicalPagesMayBePermuted) {
  for (DecodeCase c : property_cases()) {
    for (const Target& target : targets_of(c)) {
      c.page_seed = 1;
      const DecodeResult first = run(c, target.context());
      for (uint64_t seed = 2; seed < 5; ++seed) {
        c.page_seed = seed;
        EXPECT_EQ(first, run(c, target.context())) << target.name << ", " << describe(c);
      }
    }
  }
}

TEST(Property, RepeatsAreBitEqual) {
  for (const DecodeCase& c : property_cases()) {
    DecodeProblem problem(c);
    for (const Target& target : targets_of(c)) {
      const DecodeResult first = run(problem, target.context());
      for (int repeat = 0; repeat < 5; ++repeat) {
        EXPECT_EQ(first, run(problem, target.context())) << target.name << ", " << describe(c);
      }
    }
  }
}

TEST(Property, ThreadCountsAreBitEqual) {
  std::vector<DecodeCase> list = property_cases();
  list.push_back(long_case());
  for (DecodeCase c : list) {
    for (int32_t splits : {0, 7}) {
      c.options.splits = splits;
      DecodeProblem problem(c);
      for (const Target& target : host_targets()) {
        Context context = target.context();
        context.threads = 1;
        const DecodeResult first = run(problem, context);
        for (int32_t threads : {2, 3, 8, 0}) {
          context.threads = threads;
          EXPECT_EQ(first, run(problem, context)) << target.name << ", " << threads << " threads, " << describe(c);
        }
      }
    }
  }
}

TEST(Property, ForcedSplitsStayWithinTheBound) {
  for (DecodeCase c : property_cases()) {
    DecodeProblem problem(c);
    const cases::DecodeOracle oracle = make_oracle(problem);
    for (const Target& target : targets_of(c)) {
      for (int32_t splits = 1; splits <= kMaxSplits; splits += full_tests() || splits < 8 ? 1 : 14) {
        problem.params().options.splits = splits;
        run(problem, target.context());
        const cases::Comparison comparison = compare(problem, oracle);
        EXPECT_TRUE(comparison.ok) << target.name << ", " << splits << " splits: " << comparison.text;
      }
    }
  }
}

TEST(Property, TheBatchMayBePermuted) {
  for (DecodeCase c : property_cases()) {
    std::ranges::reverse(c.requests);
    expect_right(c);
  }
}

// The batch-invariant mode: alone, in a batch, at another place of the batch.
TEST(Property, BatchInvariantModeIsBitEqual) {
  std::vector<DecodeCase> list;
  for (const DecodeCase& property : property_cases()) {
    if (property.ragged) continue;  // a ragged call of one request has the s_q of its longest
    list.push_back(property);
    list.back().requests = requests_of({700, 1, 64, 0, 333, 65, 2});
  }
  list.push_back(long_case());
  list.push_back(long_case(DType::kBFloat16));
  for (DecodeCase& c : list) {
    c.options.batch_invariant = true;
    for (const Target& target : targets_of(c)) {
      const DecodeResult together = run(c, target.context());
      DecodeCase reversed = c;
      std::ranges::reverse(reversed.requests);
      const DecodeResult backwards = run(reversed, target.context());
      for (int64_t i = 0; i < c.batch(); ++i) {
        DecodeCase alone = c;
        alone.requests = {c.requests[i]};
        const DecodeResult expected = together.tokens(i * c.seq_q, (i + 1) * c.seq_q);
        EXPECT_EQ(expected, run(alone, target.context())) << target.name << ", request " << i << " alone";
        const int64_t place = c.batch() - 1 - i;
        EXPECT_EQ(expected, backwards.tokens(place * c.seq_q, (place + 1) * c.seq_q))
            << target.name << ", request " << i;
      }
    }
  }
}

TEST(Property, LeavingOutTheLseChangesNothing) {
  for (DecodeCase c : property_cases()) {
    for (const Target& target : targets_of(c)) {
      c.want_lse = true;
      const DecodeResult with = run(c, target.context());
      c.want_lse = false;
      EXPECT_EQ(with.out, run(c, target.context()).out) << target.name;
    }
  }
}

// The split query is the same query.
TEST(Property, SplitQueriesAreBitEqual) {
  for (DecodeCase c : property_cases()) {
    for (const Target& target : targets_of(c)) {
      c.split_q = false;
      const DecodeResult whole = run(c, target.context());
      c.split_q = true;
      EXPECT_EQ(whole, run(c, target.context())) << target.name;
    }
  }
}

// FlashInfer #1341: wrong results unless q and cache are made contiguous first.
TEST(Property, StridesAreBitEqual) {
  for (DecodeCase c : property_cases()) {
    for (const Target& target : targets_of(c)) {
      c.strided = false;
      const DecodeResult contiguous = run(c, target.context());
      c.strided = true;
      EXPECT_EQ(contiguous, run(c, target.context())) << target.name << ", " << describe(c);
    }
  }
}

// vLLM #33638, vLLM #56902: something of an earlier call is kept. Lengths, table and queries change in place.
TEST(Property, NothingIsRememberedBetweenCalls) {
  DecodeCase c = small_case();
  c.options.batch_invariant = true;
  for (const Target& target : all_targets()) {
    DecodeProblem problem(c);
    run(problem, target.context());
    for (int32_t length : {1, 150, 0, 17, 64, 149}) {
      DecodeCase changed = c;
      for (int64_t i = 0; i < c.batch(); ++i) {
        changed.requests[i].seq_len = std::min(length, c.requests[i].seq_len);
        problem.seq_lens()[i] = changed.requests[i].seq_len;
      }
      EXPECT_EQ(run(problem, target.context()), run(changed, target.context())) << target.name << ", length " << length;
    }
  }
}

// Requests with a common prefix name the same pages.
TEST(Property, PagesMayBeShared) {
  DecodeCase c = small_case();
  c.requests = requests_of({150, 150, 100});
  c.options.batch_invariant = true;
  for (cases::Request& request : c.requests) request.id = 0;
  for (const Target& target : all_targets()) {
    DecodeProblem problem(c);
    const DecodeResult apart = run(problem, target.context());
    for (int64_t page = 0; page < 9; ++page) {
      problem.table_row(1)[page] = problem.table_row(0)[page];
      if (page < 6) problem.table_row(2)[page] = problem.table_row(0)[page];
    }
    EXPECT_EQ(apart, run(problem, target.context())) << target.name;
    EXPECT_EQ(apart.tokens(0, 1), apart.tokens(1, 2)) << target.name;
  }
}

// Requests of one token each, as ragged rows or as a batch.
TEST(Property, RaggedRowsAreTheSameQueries) {
  DecodeCase c = small_case();
  c.causal = true;
  c.options.batch_invariant = true;
  for (const Target& target : all_targets()) {
    DecodeCase ragged = c;
    ragged.ragged = true;
    EXPECT_EQ(run(c, target.context()), run(ragged, target.context())) << target.name;
  }
}

}  // namespace
}  // namespace flashmla::tests
