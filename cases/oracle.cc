#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "cases/compare.h"

namespace flashmla::cases {

namespace {

constexpr int64_t kLeastSampledRows = 32;
constexpr double kValueShare = 1e-5;   // of max|v|, in the bound of out
constexpr double kReferenceShare = 2;  // of e_ref

float rounded(float value, DType dtype) {
  alignas(float) std::byte element[sizeof(float)];
  store_elements(element, dtype, &value, 1);
  return load_element(element, dtype, 0);
}

// Largest error that rounding these values to a dtype can make.
double output_rounding(const float* values, int64_t count, DType dtype) {
  const double relative = dtype == DType::kFloat32 ? 0x1p-24 : dtype == DType::kFloat16 ? 0x1p-11 : 0x1p-8;
  float most = 0;
  for (int64_t i = 0; i < count; ++i) most = std::isfinite(values[i]) ? std::fmax(most, std::fabs(values[i])) : most;
  int exponent = 0;
  std::frexp(most, &exponent);  // most < 2^exponent, and rounding errors are relative to the power of two below most
  return most == 0 ? 0 : relative * std::ldexp(1.0, exponent - 1);
}

// One request's tensors in fp32, keys in order.
class GatheredRequest {
 public:
  GatheredRequest(const DecodeProblem& problem, int64_t index)
      : case_(problem.decode_case()),
        problem_(problem),
        index_(index),
        tokens_(case_.tokens_q(index)),
        keys_(case_.requests[index].seq_len),
        width_(case_.latent_dim + case_.rope_dim),
        q_(tokens_ * case_.heads_q * width_ * kBytes),
        kv_(keys_ * case_.heads_kv * width_ * kBytes) {
    for (int64_t token = 0; token < tokens_; ++token) {
      for (int64_t head = 0; head < case_.heads_q; ++head) {
        float* row = query(token, head);
        load_elements(problem.query(index, token, head), case_.dtype, case_.latent_dim, row);
        load_elements(problem.query_rope(index, token, head), case_.dtype, case_.rope_dim, row + case_.latent_dim);
      }
    }
    for (int64_t k = 0; k < keys_; ++k) {
      for (int64_t head = 0; head < case_.heads_kv; ++head) {
        load_elements(problem.key(index, k, head), case_.dtype, width_, key(k, head));
      }
    }
  }

  int64_t tokens() const { return tokens_; }

  // out [tokens, h_q, d_v] and lse [tokens, h_q] of the reference.
  Status decode_exactly(float* out, float* lse) const {
    const int32_t table = 0;
    const auto length = static_cast<int32_t>(keys_);
    DecodeParams params = problem_.params();
    params.q = ConstTensorView::contiguous(q_.data(), DType::kFloat32, {1, tokens_, case_.heads_q, width_});
    params.q_rope = {};
    params.kv_cache = ConstTensorView::contiguous(
        kv_.data(), DType::kFloat32, {keys_ == 0 ? 0 : 1, std::max<int64_t>(keys_, 1), case_.heads_kv, width_});
    params.kv_format = KvFormat::kFromDType;
    params.page_table = ConstTensorView::contiguous(&table, DType::kInt32, {1, 1});
    params.seq_lens = ConstTensorView::contiguous(&length, DType::kInt32, {1});
    params.cu_seqlens_q = {};
    params.out = TensorView::contiguous(out, DType::kFloat32, {1, tokens_, case_.heads_q, case_.latent_dim});
    params.lse = {lse, DType::kFloat32, 3, {1, case_.heads_q, tokens_}, {0, 1, case_.heads_q}};
    const Context context{.backend = "reference"};
    const Result<DecodeShape> shape = decode_shape(params);
    if (!shape.ok()) return shape.status();
    const Result<int64_t> bytes = workspace_bytes(shape.value(), params.options, context);
    if (!bytes.ok()) return bytes.status();
    const Buffer workspace(bytes.value());
    return decode(params, {workspace.data(), workspace.bytes()}, context);
  }

  // Largest error of the plain formula against `exact`, in one row.
  double plain_error(int64_t token, int64_t head, const float* exact) const {
    const int64_t visible = problem_.visible_keys(index_, token);
    if (visible == 0) return 0;
    const int64_t head_kv = head / (case_.heads_q / case_.heads_kv);
    std::vector<float> weights(static_cast<size_t>(visible));
    for (int64_t k = 0; k < visible; ++k)
      weights[k] = dot(query(token, head), key(k, head_kv)) * problem_.params().softmax_scale;
    const float most = *std::ranges::max_element(weights);
    float total = 0;
    for (float& weight : weights) total += weight = std::exp(weight - most);
    std::vector<float> out(static_cast<size_t>(case_.latent_dim), 0.0f);
    for (int64_t k = 0; k < visible; ++k) {
      const float weight = rounded(weights[k] / total, case_.dtype);
      const float* values = key(k, head_kv);
      for (int64_t d = 0; d < case_.latent_dim; ++d) out[d] += weight * values[d];
    }
    double error = 0;
    for (int64_t d = 0; d < case_.latent_dim; ++d) {
      error = std::fmax(error, std::fabs(static_cast<double>(rounded(out[d], case_.dtype)) - exact[d]));
    }
    return error;
  }

  // max|v| over the first k + 1 keys of a KV head, for every k.
  std::vector<float> running_max(int64_t head_kv) const {
    std::vector<float> result(static_cast<size_t>(keys_));
    float most = 0;
    for (int64_t k = 0; k < keys_; ++k) {
      const float* values = key(k, head_kv);
      for (int64_t d = 0; d < case_.latent_dim; ++d) most = std::fmax(most, std::fabs(values[d]));
      result[k] = most;
    }
    return result;
  }

 private:
  static constexpr int64_t kBytes = sizeof(float);

  float* query(int64_t token, int64_t head) const {
    return reinterpret_cast<float*>(q_.data()) + (token * case_.heads_q + head) * width_;
  }
  float* key(int64_t position, int64_t head_kv) const {
    return reinterpret_cast<float*>(kv_.data()) + (position * case_.heads_kv + head_kv) * width_;
  }
  float dot(const float* a, const float* b) const {
    float sums[8] = {};  // independent sums let the compiler use SIMD; widths are multiples of 8
    for (int64_t d = 0; d < width_; d += 8) {
      for (int64_t i = 0; i < 8; ++i) sums[i] += a[d + i] * b[d + i];
    }
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  }

  const DecodeCase& case_;
  const DecodeProblem& problem_;
  int64_t index_;
  int64_t tokens_;
  int64_t keys_;
  int64_t width_;
  Buffer q_;
  Buffer kv_;
};

// Fills the rows of one request. Returns whether e_ref was sampled.
Result<bool> request_oracle(const DecodeProblem& problem, int64_t index, const OracleOptions& options,
                            DecodeOracle& oracle) {
  const DecodeCase& c = problem.decode_case();
  const GatheredRequest request(problem, index);
  const int64_t first_row = problem.first_token(index) * c.heads_q;
  const int64_t rows = request.tokens() * c.heads_q;
  float* out = oracle.out.data() + first_row * c.latent_dim;
  if (const Status status = request.decode_exactly(out, oracle.lse.data() + first_row); !status.ok()) return status;

  const int64_t row_macs = std::max<int64_t>(1, int64_t{c.requests[index].seq_len} * (2 * c.latent_dim + c.rope_dim));
  const int64_t wanted =
      std::clamp(options.plain_macs / row_macs, kLeastSampledRows, std::max(rows, kLeastSampledRows));
  const int64_t step = std::max<int64_t>(1, rows / wanted);
  double e_ref = output_rounding(out, rows * c.latent_dim, c.dtype);
  for (int64_t row = 0; row < rows; row += step) {
    e_ref = std::fmax(e_ref, request.plain_error(row / c.heads_q, row % c.heads_q, out + row * c.latent_dim));
  }
  for (int64_t head_kv = 0; head_kv < c.heads_kv; ++head_kv) {
    const std::vector<float> largest = request.running_max(head_kv);
    for (int64_t row = 0; row < rows; ++row) {
      if (row % c.heads_q / (c.heads_q / c.heads_kv) != head_kv) continue;
      const int64_t visible = problem.visible_keys(index, row / c.heads_q);
      oracle.bound[first_row + row] =
          visible == 0 ? 0.0f : static_cast<float>(kReferenceShare * e_ref + kValueShare * largest[visible - 1]);
    }
  }
  return step > 1;
}

}  // namespace

DecodeOracle make_oracle(const DecodeProblem& problem, const OracleOptions& options) {
  const DecodeCase& c = problem.decode_case();
  const auto rows = static_cast<size_t>(c.total_q() * c.heads_q);
  DecodeOracle oracle;
  // Rows of padded tokens stay as they are here: empty.
  oracle.out.assign(rows * static_cast<size_t>(c.latent_dim), 0.0f);
  oracle.lse.assign(rows, problem.params().options.empty_lse == EmptyLse::kPlusInf ? INFINITY : -INFINITY);
  oracle.bound.assign(rows, 0.0f);

  std::atomic<int64_t> next{0};
  std::mutex mutex;
  std::string failure;
  const auto work = [&] {
    for (int64_t i = next++; i < c.batch(); i = next++) {
      if (c.tokens_q(i) == 0) continue;
      const Result<bool> sampled = request_oracle(problem, i, options, oracle);
      const std::lock_guard lock(mutex);
      if (!sampled.ok())
        failure = sampled.status().text();
      else
        oracle.sampled |= sampled.value();
    }
  };
  std::vector<std::thread> threads;
  for (int t = 1; t < std::min<int64_t>(options.threads, c.batch()); ++t) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  if (!failure.empty()) throw std::runtime_error("the oracle refused the call: " + failure);
  return oracle;
}

}  // namespace flashmla::cases
