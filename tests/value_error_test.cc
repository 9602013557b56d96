// Bad values inside tensors, workspaces and names. The CPU back ends look first and write nothing.
#include "support.h"

namespace flashmla::tests {
namespace {

using cases::DecodeCase;
using cases::DecodeProblem;

constexpr int32_t kMost = std::numeric_limits<int32_t>::max();

// Two requests of 20 and 40 keys, page 16, table width 4, 7 pages.
DecodeCase value_case() {
  DecodeCase c = small_case();
  c.requests = requests_of({20, 40});
  c.spare_pages = 2;
  c.spare_width = 1;
  return c;
}

// Calls without resetting the sentinels, so that anything written shows.
void expect_refused(DecodeProblem& problem, StatusCode code, std::initializer_list<std::string_view> parts) {
  for (const Target& target : host_targets()) {
    SCOPED_TRACE(target.name);
    expect_error(problem.run(target.context()), code, parts);
    const cases::DecodeResult result = problem.result();
    for (int64_t i = 0; i < static_cast<int64_t>(result.out.size()) / 2; ++i) {
      ASSERT_TRUE(cases::is_sentinel(result.out.data(), result.dtype, i)) << "out was written at " << i;
    }
  }
}

TEST(ValueError, LengthBelowZero) {
  DecodeProblem problem(value_case());
  for (int32_t length : {-1, std::numeric_limits<int32_t>::min()}) {
    problem.seq_lens()[1] = length;
    expect_refused(problem, StatusCode::kOutOfRange,
                   {"seq_lens[1]", "got " + std::to_string(length), "0 .. 64", "width 4 * page 16"});
  }
}

TEST(ValueError, LengthBeyondTheTable) {
  DecodeProblem problem(value_case());
  for (int32_t length : {65, kMost}) {
    problem.seq_lens()[0] = length;
    expect_refused(problem, StatusCode::kOutOfRange, {"seq_lens[0]", "got " + std::to_string(length), "0 .. 64"});
  }
}

// FlashMLA #109: both forms of invalid id, -1 and one past the end, are never dereferenced.
TEST(ValueError, PageIdOutsideTheCache) {
  DecodeProblem problem(value_case());
  for (int32_t page : {-1, 7, kMost, std::numeric_limits<int32_t>::min()}) {
    problem.table_row(1)[2] = page;
    expect_refused(problem, StatusCode::kOutOfRange,
                   {"page_table[1][2]", "got " + std::to_string(page), "0 .. 6", "7 pages"});
  }
}

TEST(ValueError, TokenStarts) {
  DecodeCase c = value_case();
  c.ragged = true;
  c.requests[0].seq_q = 2;
  for (const auto& [index, value] :
       std::vector<std::pair<int, int32_t>>{{0, 1}, {0, -1}, {1, -5}, {1, 4}, {2, 1}, {2, 4}, {2, kMost}}) {
    DecodeProblem problem(c);
    auto* starts = static_cast<int32_t*>(const_cast<void*>(problem.params().cu_seqlens_q.data));
    starts[index] = value;
    const int wrong = index == 1 && value == 4 ? 1 : index;
    expect_refused(
        problem, StatusCode::kOutOfRange,
        {"cu_seqlens_q[" + std::to_string(wrong) + "]", "got " + std::to_string(value), "at most total_q = 3"});
  }
}

// What `status` would say is an error of the call there.
TEST(ValueError, StatusIsForCuda) {
  DecodeProblem problem(value_case());
  int32_t code = -99;
  problem.params().status = TensorView::contiguous(&code, DType::kInt32, {1});
  expect_refused(
      problem, StatusCode::kUnsupported,
      {"status: got a tensor in a call on the CPU", "supported: calls on CUDA", "errors of the call itself"});
  EXPECT_EQ(code, -99);
}

TEST(ValueError, Workspace) {
  DecodeCase c = value_case();
  c.requests = cases::make_requests(4, 2000, cases::Lengths::kEqual, 1);
  c.options.splits = 8;
  for (const Target& target : host_targets()) {
    SCOPED_TRACE(target.name);
    DecodeProblem problem(c);
    const DecodeShape shape = decode_shape(problem.params()).value();
    const int64_t need = workspace_bytes(shape, c.options, target.context()).value();
    ASSERT_GT(need, 0);
    const cases::Buffer memory(need + kWorkspaceAlignment);
    const std::string bytes = std::to_string(need);
    const auto call = [&](void* data, int64_t size) {
      return decode(problem.params(), {data, size}, target.context());
    };
    expect_error(call(nullptr, 0), StatusCode::kWorkspaceTooSmall, {"workspace: got 0 bytes", "at least " + bytes});
    expect_error(call(nullptr, need), StatusCode::kWorkspaceTooSmall, {"workspace: got 0 bytes", "at least " + bytes});
    expect_error(call(memory.data(), need - 1), StatusCode::kWorkspaceTooSmall,
                 {"workspace: got " + std::to_string(need - 1) + " bytes", "at least " + bytes, "workspace_bytes"});
    expect_error(call(memory.data() + 16, need), StatusCode::kWorkspaceTooSmall,
                 {"workspace", "not aligned", "256-byte"});
    const Status status = call(memory.data(), need);
    EXPECT_TRUE(status.ok()) << status.text();
  }
}

// Sizes alone decide, and more of anything never needs less.
TEST(ValueError, WorkspaceGrowsWithEverySize) {
  const DecodeShape base{.batch = 4, .seq_q = 2, .total_q = 8, .heads_q = 16, .pages = 100, .table_width = 16};
  for (const Target& target : host_targets()) {
    for (int32_t splits : {0, 1, 5, 64}) {
      const DecodeOptions options{.splits = splits};
      const int64_t need = workspace_bytes(base, options, target.context()).value();
      const auto expect_no_less = [&](auto change) {
        DecodeShape larger = base;
        change(larger);
        EXPECT_GE(workspace_bytes(larger, options, target.context()).value(), need)
            << target.name << ", splits " << splits;
      };
      expect_no_less([](DecodeShape& s) { s.batch = 5, s.total_q = 10; });
      expect_no_less([](DecodeShape& s) { s.seq_q = 3, s.total_q = 12; });
      expect_no_less([](DecodeShape& s) { s.heads_q = 32; });
      expect_no_less([](DecodeShape& s) { s.latent_dim = 1024; });
      expect_no_less([](DecodeShape& s) { s.rope_dim = 128; });
      expect_no_less([](DecodeShape& s) { s.page_size = 128; });
      expect_no_less([](DecodeShape& s) { s.pages = 1000; });
      expect_no_less([](DecodeShape& s) { s.table_width = 1000; });
    }
  }
}

TEST(ValueError, UnknownBackendIsaAndDevice) {
  DecodeProblem problem(value_case());
  expect_error(problem.run({.backend = "nope"}), StatusCode::kNotFound,
               {"backend: got 'nope'", "want one of: ", "cpu", "reference"});
  expect_error(problem.run({.backend = "cpu", .isa = "sse9"}), StatusCode::kInvalidArgument,
               {"isa", "got 'sse9'", "scalar"});
  expect_error(problem.run({.device = {DeviceType::kCUDA, 0}, .backend = "cpu"}), StatusCode::kInvalidArgument,
               {"backend: got 'cpu' for a call on CUDA", "tensors on CPU"});
  if (gpu_targets().empty()) {
    expect_error(problem.run({.device = {DeviceType::kCUDA, 0}}), StatusCode::kNotFound, {"device: got CUDA"});
  }
  expect_error(problem.run({.backend = "cpu", .threads = -2}), StatusCode::kInvalidArgument, {"threads", "got -2"});
}

}  // namespace
}  // namespace flashmla::tests
