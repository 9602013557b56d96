// Calls with nothing to do succeed. vLLM #51486, vLLM #56563: empty chunks that end the process or report errors.
#include "support.h"

namespace flashmla::tests {
namespace {

using cases::DecodeCase;
using cases::DecodeProblem;

TEST(Empty, NoRequests) {
  for (const Target& target : all_targets()) {
    DecodeCase c = small_case();
    c.requests.clear();
    for (bool ragged : {false, true}) {
      c.ragged = ragged;
      run(c, target.context());
      c.padded_tokens = ragged ? 3 : 0;  // rows of padding are written even then
      const cases::DecodeResult result = run(c, target.context());
      for (float lse : result.lse) EXPECT_EQ(lse, kInf) << target.name;
      c.padded_tokens = 0;
    }
  }
}

TEST(Empty, NoQueryTokens) {
  for (const Target& target : all_targets()) {
    DecodeCase c = small_case();
    c.seq_q = 0;
    run(c, target.context());
    c.ragged = true;
    for (cases::Request& request : c.requests) request.seq_q = 0;
    run(c, target.context());
  }
}

// No data needs to exist where there are no elements.
TEST(Empty, NullPointersWithoutElements) {
  for (const Target& target : all_targets()) {
    DecodeParams params;
    params.softmax_scale = 1.0f;
    params.q = ConstTensorView::contiguous(nullptr, DType::kBFloat16, {0, 1, 16, 576});
    params.kv_cache = ConstTensorView::contiguous(nullptr, DType::kBFloat16, {0, 64, 1, 576});
    params.page_table = ConstTensorView::contiguous(nullptr, DType::kInt32, {0, 0});
    params.seq_lens = ConstTensorView::contiguous(nullptr, DType::kInt32, {0});
    params.out = TensorView::contiguous(nullptr, DType::kBFloat16, {0, 1, 16, 512});
    params.lse = TensorView::contiguous(nullptr, DType::kFloat32, {0, 16, 1});
    const Result<DecodeShape> shape = decode_shape(params);
    ASSERT_TRUE(shape.ok()) << shape.status().text();
    const Result<int64_t> bytes = workspace_bytes(shape.value(), {}, target.context());
    ASSERT_TRUE(bytes.ok()) << bytes.status().text();
    const cases::Buffer workspace(bytes.value());
    const Status status = decode(params, {workspace.data(), workspace.bytes()}, target.context());
    EXPECT_TRUE(status.ok()) << target.name << ": " << status.text();
  }
}

// A cache without pages, and a table without columns, while every length is 0.
TEST(Empty, NoPagesWhenAllLengthsAreZero) {
  for (const Target& target : all_targets()) {
    DecodeCase c = small_case();
    c.requests = requests_of({0, 0, 0});
    c.spare_pages = 0;
    for (int64_t width : {0, 4}) {
      c.spare_width = width;
      DecodeProblem problem(c);
      problem.params().kv_cache.data = nullptr;
      const cases::DecodeResult result = run(problem, target.context());
      for (float lse : result.lse) EXPECT_EQ(lse, kInf) << target.name;
      for (std::byte byte : result.out) ASSERT_EQ(byte, std::byte{0}) << target.name;
    }
  }
}

TEST(Empty, AppendAndMerge) {
  for (const Target& target : all_backends()) {
    AppendKvParams append;
    append.latent = ConstTensorView::contiguous(nullptr, DType::kBFloat16, {0, 512});
    append.rope = ConstTensorView::contiguous(nullptr, DType::kBFloat16, {0, 64});
    append.slot_mapping = ConstTensorView::contiguous(nullptr, DType::kInt64, {0});
    append.kv_cache = TensorView::contiguous(nullptr, DType::kBFloat16, {0, 64, 576});
    const Status appended = append_kv(append, target.context());
    EXPECT_TRUE(appended.ok()) << target.name << ": " << appended.text();

    MergeStatesParams merge;
    merge.out_a = merge.out_b = ConstTensorView::contiguous(nullptr, DType::kFloat32, {0, 4, 512});
    merge.lse_a = merge.lse_b = ConstTensorView::contiguous(nullptr, DType::kFloat32, {4, 0});
    merge.out = TensorView::contiguous(nullptr, DType::kFloat32, {0, 4, 512});
    merge.lse = TensorView::contiguous(nullptr, DType::kFloat32, {4, 0});
    const Status merged = merge_states(merge, target.context());
    EXPECT_TRUE(merged.ok()) << target.name << ": " << merged.text();
  }
}

}  // namespace
}  // namespace flashmla::tests
