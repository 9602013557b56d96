// `status` of decode and append_kv on the GPU: the code of each fault, 0 where all is well, in stream order and in
// graphs; and that it changes nothing else.
#include <cuda_runtime_api.h>

#include <cstring>
#include <limits>
#include <vector>

#include "append_call.h"
#include "core/text.h"
#include "cuda/device_memory.h"
#include "support.h"

namespace flashmla::tests {
namespace {

constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
constexpr int32_t kLeast = std::numeric_limits<int32_t>::min();
constexpr int32_t kUnwritten = -99;

void check(cudaError_t error) { check_cuda(error, "CUDA"); }

// A captured call that can be replayed.
class Graph {
 public:
  template <class Call>
  Status capture(const Call& call) {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    const Status status = call(stream_);
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream_, &graph));
    if (status.ok()) check(cudaGraphInstantiate(&exec_, graph, 0));
    cudaGraphDestroy(graph);
    return status;
  }
  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() {
    if (exec_ != nullptr) cudaGraphExecDestroy(exec_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  void replay() {
    check(cudaGraphLaunch(exec_, stream_));
    check(cudaStreamSynchronize(stream_));
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
};

// 16 heads, one query token a request (ragged: as cu_seqlens_q says), requests that share the pool's pages.
struct StatusCall {
  int64_t batch, width, page, pages;
  DeviceVector<uint16_t> q, cache, out;
  DeviceVector<int32_t> table, lens, starts, status{std::vector<int32_t>{kUnwritten}};
  DeviceVector<uint8_t> workspace;
  DecodeParams params;

  StatusCall(int64_t b, int64_t table_width, int64_t page_size, int64_t pool_pages, bool ragged = false)
      : batch(b),
        width(table_width),
        page(page_size),
        pages(pool_pages),
        q(std::vector<uint16_t>(static_cast<size_t>(b * 16 * 576), 0x3c00)),
        cache(std::vector<uint16_t>(static_cast<size_t>(pool_pages * page_size * 576), 0x3c00)),
        out(b * 16 * 512),
        table(std::vector<int32_t>(static_cast<size_t>(b * table_width), 0)),
        lens(std::vector<int32_t>(static_cast<size_t>(b), static_cast<int32_t>(table_width * page_size))),
        starts(counted(b + 1)),
        workspace(bytes_of(ragged)) {
    params = make(ragged);
    params.status = TensorView::contiguous(status.data(), DType::kInt32, {1});
  }

  static std::vector<int32_t> counted(int64_t count) {
    std::vector<int32_t> values;
    for (int32_t i = 0; i < count; ++i) values.push_back(i);
    return values;
  }
  DecodeParams make(bool ragged) const {
    DecodeParams p;
    p.q = ragged ? ConstTensorView::contiguous(q.data(), DType::kBFloat16, {batch, 16, 576})
                 : ConstTensorView::contiguous(q.data(), DType::kBFloat16, {batch, 1, 16, 576});
    p.out = ragged ? TensorView::contiguous(out.data(), DType::kBFloat16, {batch, 16, 512})
                   : TensorView::contiguous(out.data(), DType::kBFloat16, {batch, 1, 16, 512});
    p.kv_cache = ConstTensorView::contiguous(cache.data(), DType::kBFloat16, {pages, page, 1, 576});
    p.page_table = ConstTensorView::contiguous(table.data(), DType::kInt32, {batch, width});
    p.seq_lens = ConstTensorView::contiguous(lens.data(), DType::kInt32, {batch});
    if (ragged) p.cu_seqlens_q = ConstTensorView::contiguous(starts.data(), DType::kInt32, {batch + 1});
    p.softmax_scale = 1.0f / 24;
    return p;
  }
  int64_t bytes_of(bool ragged) const {
    return workspace_bytes(decode_shape(make(ragged)).value(), {}, on_gpu()).value();
  }
  Status run(cudaStream_t stream = nullptr) const {
    const int64_t bytes = workspace_bytes(decode_shape(params).value(), {}, on_gpu()).value();
    return decode(params, {workspace.data(), bytes}, on_gpu(stream));
  }
  // The code that a call leaves behind.
  BadValue code() {
    status.upload({kUnwritten});
    const Status returned = run();
    EXPECT_TRUE(returned.ok()) << returned.text();
    check(cudaDeviceSynchronize());
    return static_cast<BadValue>(status.download()[0]);
  }
};

TEST(CudaStatus, EachFaultOfDecodeHasItsCode) {
  REQUIRE_GPU();
  StatusCall call(4, 3, 64, 12);
  EXPECT_EQ(call.code(), BadValue::kNone);
  const std::vector<int32_t> good_lens = {0, 1, 65, 192};
  for (const auto& [request, length] :
       std::vector<std::pair<size_t, int32_t>>{{0, -1}, {3, 193}, {1, kLeast}, {2, kMost}}) {
    std::vector<int32_t> lens = good_lens;
    lens[request] = length;
    call.lens.upload(lens);
    EXPECT_EQ(call.code(), BadValue::kSeqLen) << "length " << length << " of request " << request;
  }
  call.lens.upload(good_lens);
  EXPECT_EQ(call.code(), BadValue::kNone);
  for (const auto& [entry, used] : std::vector<std::pair<size_t, bool>>{
           {0, false}, {3, true}, {4, false}, {6, true}, {7, true}, {8, false}, {9, true}, {11, true}}) {
    for (int32_t id : {-1, 12, kMost, kLeast}) {
      std::vector<int32_t> table(12, 11);
      table[entry] = id;
      call.table.upload(table);
      EXPECT_EQ(call.code(), used ? BadValue::kPageId : BadValue::kNone) << "page id " << id << " at " << entry;
    }
  }
  // Of two faults the higher code: the length, whatever the garbage behind it looks like.
  call.lens.upload({0, 1, 65, 1000});
  EXPECT_EQ(call.code(), BadValue::kSeqLen);
}

TEST(CudaStatus, TokenStarts) {
  REQUIRE_GPU();
  StatusCall call(3, 2, 64, 2, /*ragged=*/true);
  for (const std::vector<int32_t>& good : std::vector<std::vector<int32_t>>{{0, 1, 2, 3}, {0, 0, 3, 3}, {0, 0, 0, 0}}) {
    call.starts.upload(good);
    EXPECT_EQ(call.code(), BadValue::kNone);
  }
  for (const std::vector<int32_t>& bad : std::vector<std::vector<int32_t>>{
           {1, 1, 2, 3}, {-1, 1, 2, 3}, {0, 2, 1, 3}, {0, 1, 2, 4}, {0, 1, kMost, 3}, {0, 1, 2, kLeast}}) {
    call.starts.upload(bad);
    EXPECT_EQ(call.code(), BadValue::kTokenStart) << testing::PrintToString(bad);
  }
}

// Many blocks share the table of one long request; many requests share the blocks.
TEST(CudaStatus, LongTablesAndManyRequests) {
  REQUIRE_GPU();
  for (const auto& [batch, width] : {std::pair<int64_t, int64_t>{1, 700'001}, {9'001, 5}, {70, 2'999}}) {
    StatusCall call(batch, width, 1, 1);
    EXPECT_EQ(call.code(), BadValue::kNone);
    const std::vector<int32_t> good = call.table.download();
    for (int64_t entry : {int64_t{0}, width / 2, width - 1}) {
      for (int64_t request : {int64_t{0}, batch - 1}) {
        std::vector<int32_t> table = good;
        table[static_cast<size_t>(request * width + entry)] = 1;
        call.table.upload(table);
        EXPECT_EQ(call.code(), BadValue::kPageId) << batch << " x " << width << ": " << request << ", " << entry;
      }
    }
  }
}

TEST(CudaStatus, EmptyCallsWriteItToo) {
  REQUIRE_GPU();
  StatusCall none(0, 3, 64, 2);
  EXPECT_EQ(none.code(), BadValue::kNone);
  StatusCall ragged(0, 3, 64, 2, /*ragged=*/true);
  EXPECT_EQ(ragged.code(), BadValue::kNone);
  StatusCall no_pages(2, 3, 64, 0);
  no_pages.lens.upload({0, 0});
  EXPECT_EQ(no_pages.code(), BadValue::kNone);
  no_pages.lens.upload({0, 1});
  EXPECT_EQ(no_pages.code(), BadValue::kPageId);
}

// The result is the same bits with and without.
TEST(CudaStatus, TheResultDoesNotDependOnIt) {
  REQUIRE_GPU();
  StatusCall call(3, 4, 64, 4);
  call.lens.upload({-5, 256, 1 << 30});
  call.table.upload({0, 1, 2, 3, 3, -7, 1, 0, 4, 3, 2, 1});
  EXPECT_EQ(call.code(), BadValue::kSeqLen);
  const std::vector<uint16_t> with = call.out.download();
  check(cudaMemset(call.out.data(), 0xff, with.size() * 2));
  call.params.status = {};
  ASSERT_TRUE(call.run().ok());
  check(cudaDeviceSynchronize());
  EXPECT_EQ(call.out.download(), with);
}

TEST(CudaStatus, DecodeInAGraph) {
  REQUIRE_GPU();
  StatusCall call(4, 3, 64, 12);
  Graph graph;
  const Status status = graph.capture([&](cudaStream_t stream) { return call.run(stream); });
  ASSERT_TRUE(status.ok()) << status.text();
  struct Step {
    int32_t length;
    int32_t page;
    BadValue want;
  };
  for (int round = 0; round < 20; ++round) {
    for (const Step& step : {Step{192, 0, BadValue::kNone}, Step{193, 0, BadValue::kSeqLen},
                             Step{64, 12, BadValue::kPageId}, Step{0, 12, BadValue::kNone}}) {
      call.lens.upload({192, 7, 0, step.length});
      std::vector<int32_t> table(12, 3);
      table[9] = step.page;
      call.table.upload(table);
      graph.replay();
      ASSERT_EQ(static_cast<BadValue>(call.status.download()[0]), step.want) << step.length << ", " << step.page;
    }
  }
}

// append_kv of `slots` on the device: the code, and the cache as without status.
BadValue append_code(std::vector<int64_t> slots, int64_t pages = kPages) {
  std::vector<std::byte> caches[2];
  int32_t code = kUnwritten;
  for (bool given : {false, true}) {
    Append append(DType::kBFloat16, slots);
    append.params.kv_cache.shape[0] = pages;
    DeviceMemory memory;
    AppendKvParams params = append.params;
    params.latent = memory.mirror(params.latent);
    params.rope = memory.mirror(params.rope);
    params.slot_mapping = memory.mirror(params.slot_mapping);
    params.kv_cache = memory.mirror(params.kv_cache);
    if (given) params.status = memory.mirror(TensorView::contiguous(&code, DType::kInt32, {1}));
    const Status status = append_kv(params, on_gpu());
    EXPECT_TRUE(status.ok()) << status.text();
    EXPECT_TRUE(cases::device_status().ok());
    EXPECT_EQ(memory.download(), "");
    caches[given ? 1 : 0] = append.cache;
  }
  EXPECT_TRUE(caches[0] == caches[1]);
  return static_cast<BadValue>(code);
}

TEST(CudaStatus, SlotsOfAppend) {
  REQUIRE_GPU();
  constexpr int64_t kSlots = kPages * kPage;
  EXPECT_EQ(append_code({}), BadValue::kNone);
  EXPECT_EQ(append_code({0, kSlots - 1, 7, 7}), BadValue::kNone);
  EXPECT_EQ(append_code({-1, std::numeric_limits<int64_t>::min(), 3}), BadValue::kNone);  // negative: skipped
  for (int64_t slot : {kSlots, int64_t{1} << 32, std::numeric_limits<int64_t>::max()})
    EXPECT_EQ(append_code({2, -1, slot}), BadValue::kSlot) << slot;
  EXPECT_EQ(append_code({0, 1}, /*pages=*/0), BadValue::kSlot);
  EXPECT_EQ(append_code({-1, -1}, /*pages=*/0), BadValue::kNone);
  std::vector<int64_t> many(300'000, 5);
  EXPECT_EQ(append_code(many), BadValue::kNone);
  many.back() = kSlots;
  EXPECT_EQ(append_code(many), BadValue::kSlot);
}

TEST(CudaStatus, AppendInAGraph) {
  REQUIRE_GPU();
  Append append(DType::kBFloat16, {1, 2, 3});
  DeviceMemory memory;
  const DeviceVector<int32_t> code(std::vector<int32_t>{kUnwritten});
  DeviceVector<int64_t> slots(append.slots);
  AppendKvParams params = append.params;
  params.latent = memory.mirror(params.latent);
  params.rope = memory.mirror(params.rope);
  params.kv_cache = memory.mirror(params.kv_cache);
  params.slot_mapping.data = slots.data();
  params.status = TensorView::contiguous(code.data(), DType::kInt32, {1});
  Graph graph;
  const Status status = graph.capture([&](cudaStream_t stream) { return append_kv(params, on_gpu(stream)); });
  ASSERT_TRUE(status.ok()) << status.text();
  for (int round = 0; round < 20; ++round) {
    for (int64_t slot : {int64_t{4}, kPages * kPage, int64_t{-1}}) {
      slots.upload({1, slot, 3});
      graph.replay();
      ASSERT_EQ(code.download()[0], slot >= kPages * kPage ? static_cast<int32_t>(BadValue::kSlot) : 0) << slot;
    }
  }
}

}  // namespace
}  // namespace flashmla::tests
