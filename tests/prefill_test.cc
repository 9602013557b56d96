// prefill: packed sequences in MHA form. Every back end and instruction set against a double-precision formula written
// here, on hostile memory; and against decode, of which it is the other form.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "cases/memory.h"
#include "cases/random.h"
#include "flashmla/flashmla.h"

namespace flashmla {
namespace {

using cases::Buffer;

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Sizes {
  std::vector<int32_t> seq_q;
  std::vector<int32_t> seq_k;
  int64_t heads_q = 4;
  int64_t heads_kv = 4;
  int64_t qk_dim = 192;
  int64_t v_dim = 128;
  DType dtype = DType::kBFloat16;
  bool causal = true;
  int64_t padded_q = 0;   // rows past the last sequence
  bool fused_kv = false;  // k and v are slices of one tensor [total_k, h_kv, d_qk + d_v]
};

std::vector<int32_t> starts_of(const std::vector<int32_t>& counts) {
  std::vector<int32_t> starts{0};
  for (int32_t count : counts) starts.push_back(starts.back() + count);
  return starts;
}

// Tensors of one call. Elements are bf16 values, so that every dtype holds them exactly.
class Call {
 public:
  explicit Call(const Sizes& sizes)
      : sizes_(sizes), starts_q_(starts_of(sizes.seq_q)), starts_k_(starts_of(sizes.seq_k)) {
    const int64_t total_q = starts_q_.back() + sizes.padded_q;
    const int64_t total_k = starts_k_.back();
    const int64_t bytes = dtype_bytes(sizes.dtype);
    const int64_t kv_width = sizes.fused_kv ? sizes.qk_dim + sizes.v_dim : sizes.qk_dim;
    const int64_t slack = 8;  // hostile elements after every head's row of q
    q_ = Buffer(total_q * sizes.heads_q * (sizes.qk_dim + slack) * bytes);
    k_ = Buffer((total_k + 1) * sizes.heads_kv * kv_width * bytes);
    v_ = Buffer((total_k + 1) * sizes.heads_kv * sizes.v_dim * bytes);
    out_ = Buffer(total_q * sizes.heads_q * sizes.v_dim * bytes);
    lse_ = Buffer(total_q * sizes.heads_q * 4);
    for (Buffer* buffer : {&q_, &k_, &v_}) cases::poison(buffer->data(), buffer->bytes(), sizes.dtype);
    auto view = [&](const Buffer& buffer, int64_t tokens, int64_t heads, int64_t width, int64_t row) {
      auto made = TensorView::contiguous(buffer.data(), sizes.dtype, {tokens, heads, width});
      made.stride = {heads * row, row, 1};
      return made;
    };
    params.q = view(q_, total_q, sizes.heads_q, sizes.qk_dim, sizes.qk_dim + slack);
    params.k = view(k_, total_k, sizes.heads_kv, sizes.qk_dim, kv_width);
    params.v =
        view(sizes.fused_kv ? k_ : v_, total_k, sizes.heads_kv, sizes.v_dim, sizes.fused_kv ? kv_width : sizes.v_dim);
    if (sizes.fused_kv) params.v.data = static_cast<const std::byte*>(params.v.data) + sizes.qk_dim * bytes;
    params.out = TensorView::contiguous(out_.data(), sizes.dtype, {total_q, sizes.heads_q, sizes.v_dim});
    params.lse = TensorView::contiguous(lse_.data(), DType::kFloat32, {sizes.heads_q, total_q});
    params.cu_seqlens_q =
        ConstTensorView::contiguous(starts_q_.data(), DType::kInt32, {static_cast<int64_t>(starts_q_.size())});
    params.cu_seqlens_k =
        ConstTensorView::contiguous(starts_k_.data(), DType::kInt32, {static_cast<int64_t>(starts_k_.size())});
    params.softmax_scale = 1.7f / std::sqrt(static_cast<float>(sizes.qk_dim));
    params.causal = sizes.causal;
    fill(params.q, starts_q_.back(), 1);
    fill(params.k, total_k, 2);
    fill(params.v, total_k, 3);
  }
  Call(const Call&) = delete;  // params point into the object

  Status run(Context context) {
    cases::fill_sentinel(out_.data(), out_.bytes(), sizes_.dtype);
    cases::fill_sentinel(lse_.data(), lse_.bytes(), DType::kFloat32);
    const Result<PrefillShape> shape = prefill_shape(params);
    if (!shape.ok()) return shape.status();
    const Result<int64_t> bytes = workspace_bytes(shape.value(), context);
    if (!bytes.ok()) return bytes.status();
    const Buffer workspace(bytes.value() + 1);
    cases::poison(workspace.data(), workspace.bytes(), DType::kFloat32);
    return prefill(params, {workspace.data(), bytes.value()}, context);
  }

  float element(const ConstTensorView& view, int64_t token, int64_t head, int64_t column) const {
    const int64_t index = token * view.stride[0] + head * view.stride[1] + column;
    return cases::load_element(static_cast<const std::byte*>(view.data), sizes_.dtype, index);
  }
  float lse_at(int64_t token, int64_t head) const {
    return static_cast<const float*>(params.lse.data)[head * params.lse.stride[0] + token];
  }

  // Compares the last run with the formula.
  void expect_right(const std::string& name) const {
    for (size_t s = 0; s < sizes_.seq_q.size(); ++s) {
      for (int32_t token = 0; token < sizes_.seq_q[s]; ++token) {
        for (int64_t head = 0; head < sizes_.heads_q; ++head) {
          ASSERT_NO_FATAL_FAILURE(expect_row(s, token, head))
              << name << ": sequence " << s << " token " << token << " head " << head;
        }
      }
    }
    for (int64_t token = starts_q_.back(); token < params.out.shape[0]; ++token) {
      for (int64_t head = 0; head < sizes_.heads_q; ++head) {
        ASSERT_EQ(element(params.out, token, head, sizes_.v_dim - 1), 0.0f) << name << ": padded token " << token;
        ASSERT_EQ(lse_at(token, head), kInf) << name;
      }
    }
  }

  PrefillParams params;

 private:
  void fill(const ConstTensorView& view, int64_t tokens, uint64_t stream) {
    std::vector<float> row(static_cast<size_t>(view.shape[2]));
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t h = 0; h < view.shape[1]; ++h) {
        cases::Random random({stream, static_cast<uint64_t>(t), static_cast<uint64_t>(h)});
        for (float& value : row) {
          value = random.normal();
          uint32_t bits;
          std::memcpy(&bits, &value, 4);
          bits &= 0xffff0000u;
          std::memcpy(&value, &bits, 4);
        }
        auto* base = const_cast<std::byte*>(static_cast<const std::byte*>(view.data));
        cases::store_elements(base + (t * view.stride[0] + h * view.stride[1]) * dtype_bytes(sizes_.dtype),
                              sizes_.dtype, row.data(), view.shape[2]);
      }
    }
  }

  void expect_row(size_t sequence, int32_t token, int64_t head) const {
    const int64_t group = sizes_.heads_q / sizes_.heads_kv;
    const int64_t q_token = starts_q_[sequence] + token;
    const int64_t keys = sizes_.seq_k[sequence];
    const int64_t visible =
        std::clamp<int64_t>(sizes_.causal ? keys - sizes_.seq_q[sequence] + token + 1 : keys, 0, keys);
    std::vector<double> scores;
    double most = -std::numeric_limits<double>::infinity();
    for (int64_t k = 0; k < visible; ++k) {
      double dot = 0;
      for (int64_t d = 0; d < sizes_.qk_dim; ++d) {
        dot += static_cast<double>(element(params.q, q_token, head, d)) *
               element(params.k, starts_k_[sequence] + k, head / group, d);
      }
      scores.push_back(dot * static_cast<double>(params.softmax_scale));
      most = std::max(most, scores.back());
    }
    if (visible == 0) {
      for (int64_t d = 0; d < sizes_.v_dim; ++d) ASSERT_EQ(element(params.out, q_token, head, d), 0.0f);
      ASSERT_EQ(lse_at(q_token, head), params.empty_lse == EmptyLse::kPlusInf ? kInf : -kInf);
      return;
    }
    double total = 0;
    for (double& score : scores) total += score = std::exp(score - most);
    // bf16 and fp16 weights and output: a few of the format's roundings of values of about 1.
    const double bound = sizes_.dtype == DType::kFloat32 ? 2e-5 : sizes_.dtype == DType::kFloat16 ? 3e-3 : 2e-2;
    for (int64_t d = 0; d < sizes_.v_dim; ++d) {
      double want = 0;
      for (int64_t k = 0; k < visible; ++k) {
        want += scores[static_cast<size_t>(k)] / total * element(params.v, starts_k_[sequence] + k, head / group, d);
      }
      ASSERT_NEAR(element(params.out, q_token, head, d), want, bound) << "column " << d;
    }
    const double lse = most + std::log(total);
    ASSERT_NEAR(lse_at(q_token, head), lse, 1e-6 + (sizes_.dtype == DType::kFloat32 ? 1e-6 : 1.2e-4) * std::fabs(lse));
  }

  Sizes sizes_;
  std::vector<int32_t> starts_q_, starts_k_;
  Buffer q_, k_, v_, out_, lse_;
};

std::vector<Context> every_back_end() {
  static const std::vector<std::string> isas = cpu_info().isas;
  std::vector<Context> contexts{Context{.backend = "reference"}};
  for (const std::string& isa : isas) contexts.push_back({.backend = "cpu", .isa = isa, .threads = 2});
  return contexts;
}

std::string name_of(const Context& context) { return std::string(context.backend) + " " + std::string(context.isa); }

TEST(Prefill, MatchesTheFormula) {
  const std::vector<Sizes> list{
      {.seq_q = {5, 70, 1}, .seq_k = {5, 70, 130}},
      {.seq_q = {3, 2}, .seq_k = {200, 9}, .causal = false},
      {.seq_q = {33}, .seq_k = {33}, .heads_q = 6, .heads_kv = 2, .dtype = DType::kFloat16},
      {.seq_q = {20, 4}, .seq_k = {20, 70}, .dtype = DType::kFloat32, .fused_kv = true},
      {.seq_q = {17}, .seq_k = {80}, .heads_q = 3, .heads_kv = 1, .qk_dim = 40, .v_dim = 24, .fused_kv = true},
      {.seq_q = {9}, .seq_k = {66}, .qk_dim = 24, .v_dim = 64, .dtype = DType::kFloat16},
      {.seq_q = {140}, .seq_k = {150}, .heads_q = 2, .heads_kv = 1},
      {.seq_q = {7}, .seq_k = {7}, .qk_dim = 64, .v_dim = 200, .padded_q = 3},
  };
  for (size_t i = 0; i < list.size(); ++i) {
    Call call(list[i]);
    for (const Context& context : every_back_end()) {
      const Status status = call.run(context);
      ASSERT_TRUE(status.ok()) << status.text();
      ASSERT_NO_FATAL_FAILURE(call.expect_right("case " + std::to_string(i) + " on " + name_of(context)));
    }
  }
}

// SGLang #22291, FlashInfer #3047: in a later chunk of a chunked prefill a sequence has query tokens but no keys.
TEST(Prefill, SequencesWithoutKeysOrQueries) {
  Call call({.seq_q = {4, 0, 3, 6}, .seq_k = {0, 5, 8, 2}, .padded_q = 2});
  for (const Context& context : every_back_end()) {
    ASSERT_TRUE(call.run(context).ok());
    ASSERT_NO_FATAL_FAILURE(call.expect_right(name_of(context)));
  }
}

TEST(Prefill, EmptyCallsSucceed) {
  Call no_tokens({.seq_q = {0, 0}, .seq_k = {4, 0}});
  Call no_sequences({.seq_q = {}, .seq_k = {}});
  for (const Context& context : every_back_end()) {
    EXPECT_TRUE(no_tokens.run(context).ok());
    EXPECT_TRUE(no_sequences.run(context).ok());
  }
}

TEST(Prefill, MinusInfinityMarkerOnRequest) {
  Call call({.seq_q = {5}, .seq_k = {2}});
  call.params.empty_lse = EmptyLse::kMinusInf;
  for (const Context& context : every_back_end()) {
    ASSERT_TRUE(call.run(context).ok());
    ASSERT_NO_FATAL_FAILURE(call.expect_right(name_of(context)));
    EXPECT_EQ(call.lse_at(0, 0), -kInf);
  }
}

TEST(Prefill, BitEqualForEveryThreadCount) {
  Call call({.seq_q = {300, 40}, .seq_k = {600, 40}});
  std::vector<std::byte> first;
  for (int32_t threads : {1, 2, 3, 8}) {
    ASSERT_TRUE(call.run({.backend = "cpu", .threads = threads}).ok());
    const auto* bytes = static_cast<const std::byte*>(call.params.out.data);
    const std::vector<std::byte> out(bytes, bytes + 340 * 4 * 128 * 2);
    if (first.empty()) first = out;
    EXPECT_EQ(out, first) << threads;
  }
}

void expect_error(const Status& status, StatusCode code, std::initializer_list<const char*> parts) {
  EXPECT_EQ(status.code(), code) << status.text();
  for (const char* part : parts)
    EXPECT_NE(status.text().find(part), std::string::npos) << status.text() << " lacks " << part;
}

TEST(Prefill, Errors) {
  const Sizes sizes{.seq_q = {3}, .seq_k = {4}};
  const auto refused = [&](const auto& change, StatusCode code, std::initializer_list<const char*> parts) {
    Call call(sizes);
    change(call.params);
    expect_error(call.run({}), code, parts);
  };
  constexpr auto kInvalid = StatusCode::kInvalidArgument;
  refused([](PrefillParams& p) { p.softmax_scale = std::nanf(""); }, kInvalid, {"softmax_scale", "finite"});
  refused([](PrefillParams& p) { p.q.ndim = 4; }, kInvalid, {"q: got shape", "[total_q, h_q, d_qk]"});
  refused([](PrefillParams& p) { p.k.shape[2] = 184; }, kInvalid, {"k: got shape", "192"});
  refused([](PrefillParams& p) { p.v.dtype = DType::kFloat32; }, kInvalid, {"v: got dtype fp32", "bf16"});
  refused([](PrefillParams& p) { p.v.shape[0] = 3; }, kInvalid, {"v: got shape [3", "total_k"});
  refused(
      [](PrefillParams& p) {
        p.q.shape[1] = 6;
        p.k.shape[1] = p.v.shape[1] = 4;
      },
      kInvalid, {"h_q = 6", "h_kv = 4", "divides"});
  refused([](PrefillParams& p) { p.q.shape[2] = p.k.shape[2] = 100; }, kInvalid, {"d_qk: got 100", "multiple of 8"});
  refused([](PrefillParams& p) { p.k.stride[1] += 1; }, kInvalid, {"k: got stride 193", "multiple of 16 bytes"});
  refused([](PrefillParams& p) { p.lse.dtype = DType::kBFloat16; }, kInvalid, {"lse: got dtype bf16", "fp32"});
  refused([](PrefillParams& p) { p.cu_seqlens_k.shape[0] = 3; }, kInvalid, {"cu_seqlens_k: got shape [3]", "[2]"});
  refused([](PrefillParams& p) { p.cu_seqlens_k = {}; }, kInvalid, {"cu_seqlens_k: got nothing", "[b + 1] = [2]"});
  refused([](PrefillParams& p) { p.out = {}; }, kInvalid, {"out: got nothing", "[total_q, h_q, d_v] = [3"});
  refused([](PrefillParams& p) { p.q.ndim = 5; }, kInvalid, {"q: got shape of 5 dimensions", "[total_q, h_q, d_qk]"});
  refused([](PrefillParams& p) { p.empty_lse = static_cast<EmptyLse>(7); }, kInvalid, {"empty_lse: got 7"});
  const auto starts = [](ConstTensorView& view, const std::vector<int32_t>& values) { view.data = values.data(); };
  static const std::vector<int32_t> past{0, 5}, falls{1, 0}, negative{0, -1};
  refused([&](PrefillParams& p) { starts(p.cu_seqlens_k, past); }, StatusCode::kOutOfRange,
          {"cu_seqlens_k[1]: got 5", "at most total_k = 4"});
  refused([&](PrefillParams& p) { starts(p.cu_seqlens_q, falls); }, StatusCode::kOutOfRange,
          {"cu_seqlens_q[0]: got 1", "0 first"});
  refused([&](PrefillParams& p) { starts(p.cu_seqlens_q, negative); }, StatusCode::kOutOfRange,
          {"cu_seqlens_q[1]: got -1"});
}

TEST(Prefill, WorkspaceAndKernelOfAHandMadeShape) {
  const PrefillShape shape{.batch = 2, .total_q = 100, .total_k = 300, .heads_q = 16, .heads_kv = 16};
  const Result<KernelChoice> choice = explain_prefill(shape);
  ASSERT_TRUE(choice.ok()) << choice.status().text();
  EXPECT_EQ(choice.value().backend, "cpu");
  int64_t before = 0;
  for (int64_t total_q : {1, 10, 100, 1000}) {
    PrefillShape grown = shape;
    grown.total_q = total_q;
    const Result<int64_t> bytes = workspace_bytes(grown);
    ASSERT_TRUE(bytes.ok());
    EXPECT_GE(bytes.value(), before);
    before = bytes.value();
  }
  PrefillShape bad = shape;
  bad.qk_dim = 12;
  expect_error(workspace_bytes(bad).status(), StatusCode::kInvalidArgument, {"shape.qk_dim: got 12", "multiple of 8"});
  Call call({.seq_q = {3}, .seq_k = {4}});
  expect_error(prefill(call.params, {}), StatusCode::kWorkspaceTooSmall, {"workspace: got 0 bytes"});
}

}  // namespace
}  // namespace flashmla
