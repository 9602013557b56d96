// Every back end and instruction set against the oracle. Comments name rows of public bug reports.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <vector>

#include "support.h"

namespace flashmla::tests {
namespace {

using cases::DecodeCase;
using cases::Lengths;
using cases::make_requests;

class SharedCases : public testing::TestWithParam<DecodeCase> {};

TEST_P(SharedCases, EveryTargetIsRight) { expect_right(GetParam()); }

std::string test_name(const testing::TestParamInfo<DecodeCase>& info) {
  std::string name = std::to_string(info.index) + "_";
  for (char letter : cases::describe(info.param))
    name += std::isalnum(static_cast<unsigned char>(letter)) ? letter : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(Covering, SharedCases,
                         testing::ValuesIn(full_tests() ? cases::full_cases() : cases::quick_cases()), test_name);
INSTANTIATE_TEST_SUITE_P(Models, SharedCases, testing::ValuesIn(cases::demo_cases()), test_name);

// Scores summed in fp32 miss the bound here: large terms cancel, and the lse is the score of a single key.
TEST(Decode, SumsCancellingFp16Scores) {
  const std::string name = "b17_q9ragged_h3x3_d256x64_p128_k1_fp16_adversarial_strided_s3_invariant_seed2057";
  const std::vector<DecodeCase> list = cases::full_cases();
  const auto found = std::ranges::find(list, name, &DecodeCase::name);
  ASSERT_NE(found, list.end()) << name;
  expect_right(*found);
}

// Moves every second column of a row into its other half: neighbours that cancel at once now cancel at the very end.
void part_neighbours(std::byte* row, DType dtype, int64_t width) {
  std::vector<float> values(static_cast<size_t>(width));
  std::vector<float> parted(static_cast<size_t>(width));
  cases::load_elements(row, dtype, width, values.data());
  for (int64_t d = 0; d < width; ++d) parted[d % 2 * (width / 2) + d / 2] = values[d];
  cases::store_elements(row, dtype, parted.data(), width);
}

void part_neighbours(const cases::DecodeProblem& problem) {
  const DecodeCase& c = problem.decode_case();
  for (int64_t i = 0; i < c.batch(); ++i) {
    for (int64_t k = 0; k < c.requests[i].seq_len; ++k) part_neighbours(problem.key(i, k, 0), c.dtype, c.latent_dim);
    for (int64_t row = 0; row < c.tokens_q(i) * c.heads_q; ++row) {
      part_neighbours(problem.query(i, row / c.heads_q, row % c.heads_q), c.dtype, c.latent_dim);
    }
  }
}

// Rows that see few keys may have an lse near 0, and every rounding of the large terms shows in it.
void expect_sums_of_cancelling_scores(DecodeCase c, bool parted) {
  c.inputs = cases::Inputs::kAdversarial;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    c.seed = seed;
    cases::DecodeProblem problem(c);
    if (parted) part_neighbours(problem);
    const cases::DecodeOracle oracle = cases::make_oracle(problem);
    for (const Target& target : host_targets()) {
      SCOPED_TRACE(target.name + ", " + cases::describe(c) + (parted ? ", neighbours parted" : ""));
      const Status status = problem.run(target.context());
      ASSERT_TRUE(status.ok()) << status.text();
      const cases::Comparison comparison = cases::compare(problem, oracle);
      EXPECT_TRUE(comparison.ok) << comparison.text;
    }
  }
}

class CancellingScores : public testing::TestWithParam<DType> {};

TEST_P(CancellingScores, OfFewKeysAreRight) {
  for (int32_t heads : {3, 16}) {
    for (int32_t keys : {1, 2, 3, 33}) {
      DecodeCase c;
      c.requests = make_requests(keys > 3 ? 2 : 24, keys, Lengths::kEqual, 1);
      c.dtype = GetParam();
      c.heads_q = heads;
      c.page_size = 16;
      for (bool parted : {false, true}) expect_sums_of_cancelling_scores(c, parted);
    }
  }
}

// The first rows of a tile see 1, 2, .. keys, the last ones many.
TEST_P(CancellingScores, OfTheFirstCausalRowsAreRight) {
  DecodeCase c;
  c.requests = requests_of({2, 36, 37, 36, 38, 36});
  c.dtype = GetParam();
  c.seq_q = 36;
  c.heads_q = 8;
  c.latent_dim = 256;
  c.page_size = 16;
  c.causal = true;
  c.options.splits = 3;
  expect_sums_of_cancelling_scores(c, true);
}

INSTANTIATE_TEST_SUITE_P(Decode, CancellingScores, testing::Values(DType::kBFloat16, DType::kFloat16), dtype_test_name);

// FlashInfer #868: a scheduler that does not expect requests without keys.
TEST(Decode, MixesEmptyAndLongRequests) {
  DecodeCase c;
  c.requests = requests_of({0, 1, 64, 65, 0, 4096, 0, 7});
  expect_right(c);
}

// vLLM #37442, vLLM #38436, FlashInfer #2883: rows of padding requests keep old NaN.
TEST(Decode, WritesTheRowsOfPaddingRequests) {
  DecodeCase c;
  c.requests = requests_of({1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  expect_right(c);
  c.requests = requests_of({300, 1, 77, 64, 5, 0, 0, 0});
  expect_right(c);
  c.requests = requests_of({0, 0, 0, 0});
  expect_right(c);
}

// flash-attention #1778: more query tokens than keys under causal; the first s_q - s_k rows see nothing.
TEST(Decode, AlignsCausalToTheEnd) {
  DecodeCase c = small_case();
  c.requests = requests_of({2, 5, 4, 6, 1, 0});
  c.seq_q = 5;
  c.causal = true;
  expect_right(c);
  cases::DecodeProblem problem(c);
  for (const Target& target : all_targets()) {
    const cases::DecodeResult result = run(problem, target.context());
    for (int64_t token = 0; token < 3; ++token) {
      EXPECT_EQ(result.lse_at(token, 0), kInf) << target.name;
      EXPECT_EQ(result.out_at(token, 0, 0), 0.0f) << target.name;
    }
    EXPECT_TRUE(std::isfinite(result.lse_at(3, 0))) << target.name;
  }
}

// SGLang #19902: a caller reads rows of a padded ragged batch that no kernel wrote.
TEST(Decode, WritesEveryRowOfPaddedRaggedBatches) {
  DecodeCase c = small_case();
  c.requests = requests_of({5, 0, 70, 9});
  for (int64_t padding : {0, 1, 40}) {
    c.padded_tokens = 0;
    make_ragged(c, 3, padding);
    c.requests[1].seq_q = 2;
    c.requests[3].seq_q = 0;
    expect_right(c);
  }
}

// vLLM #27368: many query tokens in one request. SGLang #5516: 8 heads, batches that are no power of two.
TEST(Decode, TakesManyQueryTokens) {
  DecodeCase c;
  c.requests = make_requests(1, 500, Lengths::kEqual, 1);
  c.seq_q = 64;
  c.causal = true;
  expect_right(c);
  c.requests = make_requests(9, 130, Lengths::kVaried, 2);
  c.seq_q = 3;
  c.heads_q = 8;
  expect_right(c);
}

// aiter #1468, vLLM #42956: 32 heads refused, or left to a silent fallback. Every count runs, on the back end asked
// for.
TEST(Decode, TakesEveryHeadCount) {
  for (int64_t heads = 1; heads <= 130; heads += full_tests() ? 1 : 7) {
    DecodeCase c;
    c.requests = make_requests(2, 70, Lengths::kVaried, static_cast<uint64_t>(heads));
    c.heads_q = heads;
    expect_right(c);
    const DecodeShape shape = decode_shape(cases::DecodeProblem(c).params()).value();
    for (const Target& target : all_targets()) {
      const Result<KernelChoice> choice = explain_decode(shape, {}, target.context());
      ASSERT_TRUE(choice.ok()) << choice.status().text();
      EXPECT_EQ(choice.value().backend, target.backend);
      EXPECT_NE(choice.value().kernel, "");
      EXPECT_NE(choice.value().reason, "");
    }
  }
}

// vLLM #51743: heads padded to 64 in copies of q and out. The workspace follows the heads that there are.
TEST(Decode, NeedsNoWorkspaceForHeadsThatAreNotThere) {
  DecodeShape shape{.batch = 64, .seq_q = 1, .total_q = 64, .heads_q = 64, .pages = 4096, .table_width = 64};
  const int64_t for_64 = workspace_bytes(shape, {}, {.backend = "cpu"}).value();
  shape.heads_q = 16;
  const int64_t for_16 = workspace_bytes(shape, {}, {.backend = "cpu"}).value();
  EXPECT_LT(for_16, for_64);
}

// vLLM #24966, vLLM #25509: large batches with many splits. vLLM #27128: the combine step reads partial results that
// nobody wrote; the workspace is NaN here.
TEST(Decode, CombinesLargeBatchesWithManySplits) {
  for (int64_t batch : {1, 2, 33, 512}) {
    for (int32_t splits : {1, 2, 31, 64}) {
      DecodeCase c;
      c.requests = make_requests(batch, batch > 100 ? 40 : 200, Lengths::kVaried, 3);
      c.heads_q = 2;
      c.latent_dim = 64;
      c.rope_dim = 8;
      c.page_size = 16;
      c.options.splits = splits;
      expect_right(c);
    }
  }
}

// FlashMLA-ETAP #1, #3: a race that shows at widths 320/256 and hides at 576/512. Every call gives the same bits.
TEST(Decode, GivesTheSameBitsFiftyTimes) {
  for (int64_t latent_dim : {256, 512}) {
    DecodeCase c;
    c.requests = make_requests(3, 300, Lengths::kVaried, 4);
    c.heads_q = 16;
    c.latent_dim = latent_dim;
    c.options.splits = 3;
    cases::DecodeProblem problem(c);
    for (const Target& target : all_targets()) {
      Context context = target.context();
      context.threads = 4;
      const cases::DecodeResult first = run(problem, context);
      const int repeats = target.backend == "reference" ? 2 : 50;
      for (int repeat = 1; repeat < repeats; ++repeat) {
        ASSERT_EQ(first, run(problem, context)) << target.name << ", width " << latent_dim << ", call " << repeat;
      }
    }
  }
}

// SGLang #25556: page sizes other than one must not change what a length or a table entry means.
TEST(Decode, GivesEqualResultsForEveryPageSize) {
  DecodeCase c = small_case();
  for (int64_t page : {1, 2, 3, 16, 61, 64, 128, 150, 1000}) {
    c.page_size = page;
    expect_right(c);
  }
}

TEST(Decode, TakesTheScaleFromTheModel) {
  DecodeCase c = small_case();
  for (float scale : {0.1352337788608801f /* V2-Lite: 192^-0.5 (0.0707 ln 40 + 1)^2 */, 1e-4f, 0.0f, -0.05f}) {
    c.softmax_scale = scale;
    cases::DecodeProblem problem(c);
    problem.params().softmax_scale = scale;
    const cases::DecodeOracle oracle = cases::make_oracle(problem);
    for (const Target& target : all_targets()) {
      run(problem, target.context());
      const cases::Comparison comparison = cases::compare(problem, oracle);
      EXPECT_TRUE(comparison.ok) << target.name << ", scale " << scale << ": " << comparison.text;
    }
  }
}

}  // namespace
}  // namespace flashmla::tests
