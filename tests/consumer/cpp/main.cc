// A program outside the tree: decodes one request of three tokens and checks the numbers against the formula.
#include <flashmla/flashmla.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr int64_t kHeads = 2;
constexpr int64_t kLatent = 16;
constexpr int64_t kRope = 8;
constexpr int64_t kWidth = kLatent + kRope;
constexpr int64_t kPage = 4;
constexpr int32_t kTokens = 3;
constexpr float kScale = 0.25F;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "consumer_cpp: %s\n", what);
  std::exit(1);
}

struct Memory {
  alignas(64) float q[kHeads * kWidth];
  alignas(64) float cache[kPage * kWidth];
  alignas(64) float out[kHeads * kLatent];
  float lse[kHeads];
};

void check_head(const Memory& m, int64_t head) {
  double weights[kTokens];
  double total = 0;
  for (int t = 0; t < kTokens; ++t) {
    double score = 0;
    for (int64_t d = 0; d < kWidth; ++d) score += double{m.q[head * kWidth + d]} * m.cache[t * kWidth + d];
    weights[t] = std::exp(kScale * score);
    total += weights[t];
  }
  require(std::abs(m.lse[head] - std::log(total)) < 1e-5, "wrong lse");
  for (int64_t d = 0; d < kLatent; ++d) {
    double want = 0;
    for (int t = 0; t < kTokens; ++t) want += weights[t] / total * m.cache[t * kWidth + d];
    require(std::abs(m.out[head * kLatent + d] - want) < 1e-4, "wrong output");
  }
}

void decode_with(const flashmla::Backend& backend) {
  using flashmla::ConstTensorView;
  using flashmla::DType;
  using flashmla::TensorView;
  Memory m{};
  for (int64_t i = 0; i < kHeads * kWidth; ++i) m.q[i] = std::sin(0.7F * static_cast<float>(i));
  for (int64_t i = 0; i < kPage * kWidth; ++i)
    m.cache[i] = i < kTokens * kWidth ? std::cos(0.3F * static_cast<float>(i)) : NAN;
  const int32_t table[1] = {0};
  const int32_t lens[1] = {kTokens};
  const flashmla::DecodeParams params{
      .q = ConstTensorView::contiguous(m.q, DType::kFloat32, {1, 1, kHeads, kWidth}),
      .kv_cache = ConstTensorView::contiguous(m.cache, DType::kFloat32, {1, kPage, 1, kWidth}),
      .page_table = ConstTensorView::contiguous(table, DType::kInt32, {1, 1}),
      .seq_lens = ConstTensorView::contiguous(lens, DType::kInt32, {1}),
      .out = TensorView::contiguous(m.out, DType::kFloat32, {1, 1, kHeads, kLatent}),
      .lse = TensorView::contiguous(m.lse, DType::kFloat32, {1, kHeads, 1}),
      .latent_dim = kLatent,
      .softmax_scale = kScale,
  };
  const flashmla::Context context{.backend = backend.name()};
  const auto shape = flashmla::decode_shape(params);
  require(shape.ok(), shape.status().text().c_str());
  const auto bytes = flashmla::workspace_bytes(shape.value(), params.options, context);
  require(bytes.ok(), bytes.status().text().c_str());
  const size_t rounded = (static_cast<size_t>(bytes.value()) + 255) / 256 * 256;
  void* workspace = std::aligned_alloc(256, rounded == 0 ? 256 : rounded);
  const flashmla::Status status = flashmla::decode(params, {workspace, bytes.value()}, context);
  std::free(workspace);
  require(status.ok(), status.text().c_str());
  for (int64_t head = 0; head < kHeads; ++head) check_head(m, head);
}

}  // namespace

int main() {
  const auto backends = flashmla::backends();
  require(!backends.empty(), "no back end");
  for (const flashmla::Backend* backend : backends) decode_with(*backend);
  std::printf("consumer_cpp: %zu back ends right\n", backends.size());
  return 0;
}
