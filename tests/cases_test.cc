// The test tools themselves: the comparison must be able to fail, and the lists must cover what they say.
#include <algorithm>
#include <cmath>

#include "cases/pairwise.h"
#include "support.h"

namespace flashmla::tests {
namespace {

using cases::DecodeCase;
using cases::DecodeProblem;
using cases::DecodeResult;

const Context kReference{.backend = "reference"};

struct Compared {
  DecodeProblem problem{small_case()};
  cases::DecodeOracle oracle;
  DecodeResult result;
  Compared() {
    EXPECT_TRUE(problem.run(kReference).ok());
    oracle = make_oracle(problem);
    result = problem.result();
  }
  void set(int64_t token, int64_t head, int64_t column, float value) {
    const int64_t element = (token * result.heads_q + head) * result.latent_dim + column;
    cases::store_elements(result.out.data() + element * dtype_bytes(result.dtype), result.dtype, &value, 1);
  }
  std::string verdict() const {
    const cases::Comparison comparison = compare(problem, oracle, result);
    return (comparison.ok ? "right: " : "wrong: ") + comparison.text;
  }
};

void expect_text(const std::string& text, std::initializer_list<std::string_view> parts) {
  for (std::string_view part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is missing in: " << text;
}

TEST(Compare, AcceptsTheReference) { expect_text(Compared().verdict(), {"right: "}); }

TEST(Compare, NamesTheWorstElement) {
  Compared compared;
  compared.set(2, 3, 7, 1.5f);
  expect_text(compared.verdict(),
              {"wrong: 1 elements", "out at request 2, token 0, head 3, column 7: got 1.5, want", "error", "bound"});
}

TEST(Compare, SeesErrorsOfTwiceTheBound) {
  Compared compared;
  compared.set(0, 0, 0, compared.oracle.out[0] + 2.5f * compared.oracle.bound[0]);
  expect_text(compared.verdict(), {"wrong: "});
}

TEST(Compare, SeesNaNBeforeValues) {
  Compared compared;
  compared.set(0, 0, 0, 1000.0f);
  compared.set(1, 2, 3, kNaN);
  expect_text(compared.verdict(),
              {"wrong: 1 elements are NaN or Inf", "request 1, token 0, head 2, column 3: got nan"});
}

TEST(Compare, SeesWrongSumsAndMarkers) {
  Compared compared;
  compared.result.lse[5] *= 1.001f;
  expect_text(compared.verdict(), {"wrong: ", "lse at request 1, token 0, head 1"});
  compared.result.lse[5] = kInf;
  expect_text(compared.verdict(), {"wrong: ", "lse at request 1, token 0, head 1: got inf"});
}

TEST(Compare, SeesMarkersOfTheWrongSign) {
  DecodeCase c = small_case();
  c.requests = requests_of({0});
  DecodeProblem problem(c);
  ASSERT_TRUE(problem.run(kReference).ok());
  DecodeResult result = problem.result();
  EXPECT_TRUE(compare(problem, make_oracle(problem), result).ok);
  result.lse[0] = -kInf;
  EXPECT_FALSE(compare(problem, make_oracle(problem), result).ok);
}

TEST(Sentinel, SeesWhatWasNotWrittenAndWhatShouldNotBe) {
  for (bool strided : {false, true}) {
    DecodeCase c = small_case();
    c.strided = strided;
    DecodeProblem problem(c);
    expect_text(problem.sentinel_fault(), {"out: ", "was not written"});
    ASSERT_TRUE(problem.run(kReference).ok());
    EXPECT_EQ(problem.sentinel_fault(), "");
    static_cast<uint16_t*>(problem.params().out.data)[-1] = 0;
    expect_text(problem.sentinel_fault(), {"out: ", "outside the tensor and was written"});
  }
}

TEST(Poison, IsNonFiniteInEveryElement) {
  for (DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
    const cases::Buffer buffer(4096 + 12);
    cases::poison(buffer.data(), buffer.bytes(), dtype);
    for (int64_t i = 0; i < buffer.bytes() / dtype_bytes(dtype); ++i) {
      ASSERT_FALSE(std::isfinite(cases::load_element(buffer.data(), dtype, i)))
          << dtype_name(dtype) << ", element " << i;
      ASSERT_FALSE(cases::is_sentinel(buffer.data(), dtype, i));
    }
  }
}

// Every byte of the cache that no token owns is poison, every other is finite.
TEST(Poison, SurroundsTheTokens) {
  DecodeCase c = small_case();
  c.strided = true;
  DecodeProblem problem(c);
  const ConstTensorView& cache = problem.params().kv_cache;
  int64_t finite = 0;
  const int64_t span = (cache.shape[0] - 1) * cache.stride[0] + (cache.shape[1] - 1) * cache.stride[1] + cache.shape[3];
  for (int64_t i = 0; i < span; ++i) {
    finite += std::isfinite(cases::load_element(static_cast<const std::byte*>(cache.data), c.dtype, i)) ? 1 : 0;
  }
  int64_t owned = 0;
  for (const cases::Request& request : c.requests) owned += request.seq_len * (c.latent_dim + c.rope_dim);
  EXPECT_EQ(finite, owned);
}

TEST(Inputs, AreWhatTheirNamesSay) {
  for (cases::Inputs inputs :
       {cases::Inputs::kRandom, cases::Inputs::kPeaked, cases::Inputs::kFlat, cases::Inputs::kAdversarial}) {
    DecodeCase c = small_case();
    c.requests = requests_of({512});
    c.dtype = DType::kFloat32;
    c.inputs = inputs;
    DecodeProblem problem(c);
    const DecodeResult result = run(problem, kReference);
    const float lse = result.lse_at(0, 0);
    const std::string name = cases::inputs_name(inputs);
    if (inputs == cases::Inputs::kPeaked) {
      EXPECT_GT(lse, 15.0f) << name;  // one score stands far above ln 512 = 6.2
    } else {
      EXPECT_NEAR(lse, std::log(512.0f), inputs == cases::Inputs::kFlat ? 0.01f : 1.5f) << name;
    }
    float key_size = 0;
    float out_size = 0;
    for (int64_t d = 0; d < c.latent_dim; ++d) {
      key_size = std::fmax(key_size, std::fabs(cases::load_element(problem.key(0, 5, 0), c.dtype, d)));
      out_size = std::fmax(out_size, std::fabs(result.out_at(0, 0, d)));
    }
    if (inputs == cases::Inputs::kAdversarial) {
      EXPECT_GT(key_size, 20 * out_size) << "values should cancel";
    }
  }
}

// An oracle that went wrong must not make every result right.
TEST(Compare, BoundsThatAreNoNumbersPassNothing) {
  DecodeProblem problem(small_case());
  cases::DecodeOracle oracle = make_oracle(problem);
  ASSERT_TRUE(problem.run(kReference).ok());
  for (float bound : {kNaN, kInf}) {
    oracle.bound.assign(oracle.bound.size(), bound);
    oracle.out[7] += 1;
    EXPECT_FALSE(compare(problem, oracle).ok) << bound;
  }
}

TEST(Pairwise, CoversEveryPairInFewRows) {
  const std::vector<int> levels = {5, 1, 3, 4, 2, 2, 7};
  const std::vector<std::vector<int>> rows = cases::pairwise(levels, 1);
  for (size_t f = 0; f < levels.size(); ++f) {
    for (size_t g = f + 1; g < levels.size(); ++g) {
      for (int a = 0; a < levels[f]; ++a) {
        for (int b = 0; b < levels[g]; ++b) {
          EXPECT_TRUE(std::ranges::any_of(rows, [&](const auto& row) { return row[f] == a && row[g] == b; }))
              << "level " << a << " of factor " << f << " with level " << b << " of factor " << g;
        }
      }
    }
  }
  EXPECT_LT(rows.size(), 70u);  // all combinations: 1680; at least 35 are needed
}

TEST(SharedLists, AreValidAndNamedApart) {
  for (const std::vector<DecodeCase>& list : {cases::quick_cases(), cases::demo_cases()}) {
    std::vector<std::string> names;
    for (const DecodeCase& c : list) {
      names.push_back(c.name);
      const Result<DecodeShape> shape = decode_shape(DecodeProblem(c).params());
      EXPECT_TRUE(shape.ok()) << c.name << ": " << shape.status().text();
    }
    std::ranges::sort(names);
    EXPECT_EQ(std::ranges::adjacent_find(names), names.end());
  }
}

}  // namespace
}  // namespace flashmla::tests
