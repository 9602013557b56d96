// The logarithm's base and markers, and the reference itself against a formula written here.
#include <cmath>
#include <vector>

#include "support.h"

namespace flashmla::tests {
namespace {

using cases::DecodeCase;
using cases::DecodeProblem;
using cases::DecodeResult;

double exact_score(const DecodeProblem& problem, int64_t request, int64_t token, int64_t head, int64_t position) {
  const DecodeCase& c = problem.decode_case();
  const std::byte* key = problem.key(request, position, head / (c.heads_q / c.heads_kv));
  double sum = 0;
  for (int64_t d = 0; d < c.latent_dim + c.rope_dim; ++d) {
    const float q = d < c.latent_dim
                        ? cases::load_element(problem.query(request, token, head), c.dtype, d)
                        : cases::load_element(problem.query_rope(request, token, head), c.dtype, d - c.latent_dim);
    sum += static_cast<double>(q) * cases::load_element(key, c.dtype, d);
  }
  return sum * problem.params().softmax_scale;
}

// Two passes in double, nothing shared with the library: lse to 1e-6, out to the rounding of its dtype.
void expect_textbook(const DecodeProblem& problem, const DecodeResult& result, double out_rounding) {
  const DecodeCase& c = problem.decode_case();
  for (int64_t i = 0; i < c.batch(); ++i) {
    for (int64_t token = 0; token < c.tokens_q(i); ++token) {
      for (int64_t head = 0; head < c.heads_q; ++head) {
        const int64_t length = c.requests[i].seq_len;
        const int64_t visible = c.causal ? std::max<int64_t>(0, length - c.tokens_q(i) + token + 1) : length;
        const int64_t row = problem.first_token(i) + token;
        if (visible == 0) {
          EXPECT_EQ(result.lse_at(row, head), kInf);
          continue;
        }
        double total = 0;
        std::vector<double> out(static_cast<size_t>(c.latent_dim), 0.0);
        for (int64_t k = 0; k < visible; ++k) {
          const double weight = std::exp(exact_score(problem, i, token, head, k));
          total += weight;
          const std::byte* key = problem.key(i, k, head / (c.heads_q / c.heads_kv));
          for (int64_t d = 0; d < c.latent_dim; ++d) out[d] += weight * cases::load_element(key, c.dtype, d);
        }
        EXPECT_NEAR(result.lse_at(row, head), std::log(total), 1e-6 + 1e-6 * std::fabs(std::log(total)));
        for (int64_t d = 0; d < c.latent_dim; ++d) {
          const double want = out[d] / total;
          ASSERT_NEAR(result.out_at(row, head, d), want, out_rounding * std::fabs(want) + 1e-7) << "column " << d;
        }
      }
    }
  }
}

// vLLM #47079: the LSE against logsumexp in double.
TEST(Lse, ReferenceIsTheTextbookFormula) {
  for (DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
    for (bool ragged : {false, true}) {
      DecodeCase c = small_case();
      c.requests = requests_of({7, 0, 33, 1});
      c.heads_kv = 2;
      c.latent_dim = 64;
      c.rope_dim = 16;
      c.seq_q = 3;
      c.causal = true;
      c.dtype = dtype;
      c.strided = ragged;
      if (ragged) make_ragged(c, 4, 0);
      DecodeProblem problem(c);
      const DecodeResult result = run(problem, {.backend = "reference"});
      expect_textbook(problem, result, dtype == DType::kFloat32 ? 1e-6 : dtype == DType::kFloat16 ? 0x1p-11 : 0x1p-8);
    }
  }
}

// SGLang #33064: partition sums 2 and 8 in natural logarithm. With a zero query every score is 0.
TEST(Lse, CountsKeysWhenAllScoresAreZero) {
  for (const Target& target : all_targets()) {
    DecodeCase c = small_case();
    c.requests = requests_of({2, 8, 1, 1000});
    DecodeProblem problem(c);
    const std::vector<float> zeros(static_cast<size_t>(c.latent_dim + c.rope_dim), 0.0f);
    for (int64_t i = 0; i < c.batch(); ++i) {
      for (int64_t head = 0; head < c.heads_q; ++head) {
        cases::store_elements(problem.query(i, 0, head), c.dtype, zeros.data(), c.latent_dim + c.rope_dim);
      }
    }
    const DecodeResult result = run(problem, target.context());
    for (int64_t i = 0; i < c.batch(); ++i) {
      const double want = std::log(c.requests[i].seq_len);
      EXPECT_NEAR(result.lse_at(i, 0), want, 1e-6 + 1.2e-4 * want) << target.name;
    }
  }
}

// A score close to -ln(keys) leaves an lse near 0, where the bound of fp32 inputs is 1e-6 and nothing relative helps.
// All keys are the one token of the only page.
TEST(Lse, Fp32KeysThatCancelTheirScore) {
  constexpr int32_t kKeys = 400'000;
  constexpr int64_t kWidth = 8;
  const std::vector<int32_t> table(kKeys, 0);
  const std::vector<float> key = {1, 0, 0, 0, 0, 0, 0, 0};
  for (float scale : {0.1822f, 0.4425f, 0.7713f, 0.9083f}) {
    std::vector<float> query(kWidth, 0.0f);
    query[0] = static_cast<float>(-std::log(static_cast<double>(kKeys)) / scale);
    const double want = static_cast<double>(query[0]) * scale + std::log(static_cast<double>(kKeys));
    std::vector<float> out(kWidth);
    float lse = kNaN;
    DecodeParams params;
    params.q = ConstTensorView::contiguous(query.data(), DType::kFloat32, {1, 1, 1, kWidth});
    params.kv_cache = ConstTensorView::contiguous(key.data(), DType::kFloat32, {1, 1, 1, kWidth});
    params.page_table = ConstTensorView::contiguous(table.data(), DType::kInt32, {1, kKeys});
    params.seq_lens = ConstTensorView::contiguous(&kKeys, DType::kInt32, {1});
    params.out = TensorView::contiguous(out.data(), DType::kFloat32, {1, 1, 1, kWidth});
    params.lse = TensorView::contiguous(&lse, DType::kFloat32, {1, 1, 1});
    params.latent_dim = kWidth;
    params.softmax_scale = scale;
    for (const Target& target : host_targets()) {
      const DecodeShape shape = decode_shape(params).value();
      const cases::Buffer workspace(workspace_bytes(shape, {}, target.context()).value());
      const Status status = decode(params, {workspace.data(), workspace.bytes()}, target.context());
      ASSERT_TRUE(status.ok()) << status.text();
      EXPECT_NEAR(lse, want, 1e-6 + 1e-6 * std::fabs(want)) << target.name << ", scale " << scale;
    }
  }
}

// vLLM #15492, vLLM #49294: which marker an empty row has, and never a finite value.
TEST(Lse, EmptyRowsHaveTheMarkerThatTheOptionNames) {
  for (EmptyLse marker : {EmptyLse::kPlusInf, EmptyLse::kMinusInf}) {
    for (const Target& target : all_targets()) {
      DecodeCase c = small_case();
      c.requests = requests_of({0, 2});
      c.seq_q = 4;
      c.causal = true;
      c.options.empty_lse = marker;
      const DecodeResult result = run(c, target.context());
      const float want = marker == EmptyLse::kPlusInf ? kInf : -kInf;
      for (int64_t token = 0; token < 6; ++token) {  // request 0 is empty; of request 1 two tokens see nothing
        for (int64_t head = 0; head < c.heads_q; ++head) {
          EXPECT_EQ(result.lse_at(token, head), want) << target.name << ", token " << token;
          for (int64_t d = 0; d < c.latent_dim; ++d) ASSERT_EQ(result.out_at(token, head, d), 0.0f) << target.name;
        }
      }
      EXPECT_TRUE(std::isfinite(result.lse_at(6, 0)) && std::isfinite(result.lse_at(7, 0))) << target.name;
    }
  }
}

}  // namespace
}  // namespace flashmla::tests
