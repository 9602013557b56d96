// Decode on the GPU: what the shared cases do not show. Graphs, streams, large sizes. Every test is skipped by name
// where no GPU is. Comments name rows of public bug reports.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>

#include "cases/naive_decode.h"
#include "cases/random.h"
#include "core/float16.h"
#include "cuda/device_memory.h"
#include "support.h"

namespace flashmla::tests {
namespace {

void check(cudaError_t error) { check_cuda(error, "CUDA"); }

std::vector<uint16_t> normal_bf16(int64_t count, uint64_t seed) {
  cases::Random random({seed});
  std::vector<uint16_t> values(static_cast<size_t>(count));
  for (uint16_t& value : values) value = from_float<BFloat16>(random.normal()).bits;
  return values;
}

// One call with lengths that tests change, in pages of `page`, each request with pages of its own.
struct GpuCall {
  static constexpr int64_t kLatent = 512, kRope = 64, kWidth = 576;
  int64_t batch, seq_q, heads, page, width;
  DeviceVector<uint16_t> q, cache, out;
  DeviceVector<float> lse;
  DeviceVector<int32_t> table, lens;
  DeviceVector<uint8_t> workspace;
  DecodeParams params;
  DecodeShape shape;
  std::string kernel;  // forced

  GpuCall(int64_t b, int64_t s_q, int64_t h, int64_t page_size, int64_t pages_each, bool causal = false)
      : batch(b),
        seq_q(s_q),
        heads(h),
        page(page_size),
        width(pages_each),
        q(normal_bf16(b * s_q * h * kWidth, 1)),
        cache(normal_bf16(b * pages_each * page_size * kWidth, 2)),
        out(b * s_q * h * kLatent),
        lse(b * s_q * h),
        table(order(b * pages_each)),
        lens(std::vector<int32_t>(static_cast<size_t>(b), static_cast<int32_t>(pages_each * page_size))),
        workspace(bytes_of(causal)) {
    params = make(causal);
    shape = decode_shape(params).value();
  }

  static std::vector<int32_t> order(int64_t pages) {
    std::vector<int32_t> ids(static_cast<size_t>(pages));
    std::iota(ids.rbegin(), ids.rend(), 0);
    return ids;
  }
  DecodeParams make(bool causal) const {
    DecodeParams p;
    p.q = ConstTensorView::contiguous(q.data(), DType::kBFloat16, {batch, seq_q, heads, kWidth});
    p.kv_cache = ConstTensorView::contiguous(cache.data(), DType::kBFloat16, {batch * width, page, 1, kWidth});
    p.page_table = ConstTensorView::contiguous(table.data(), DType::kInt32, {batch, width});
    p.seq_lens = ConstTensorView::contiguous(lens.data(), DType::kInt32, {batch});
    p.out = TensorView::contiguous(out.data(), DType::kBFloat16, {batch, seq_q, heads, kLatent});
    p.lse = TensorView::contiguous(lse.data(), DType::kFloat32, {batch, heads, seq_q});
    p.softmax_scale = 1.0f / 24;
    p.causal = causal;
    return p;
  }
  int64_t bytes_of(bool causal) const {
    return workspace_bytes(decode_shape(make(causal)).value(), {}, {.device = {DeviceType::kCUDA}}).value();
  }
  Status run(cudaStream_t stream = nullptr) const {
    const Context context{.device = {DeviceType::kCUDA}, .stream = stream, .backend = "cuda", .kernel = kernel};
    const int64_t bytes = workspace_bytes(shape, params.options, context).value();
    return decode(params, {workspace.data(), bytes}, context);
  }
  std::pair<std::vector<uint16_t>, std::vector<float>> result() const { return {out.download(), lse.download()}; }
  void poison_outputs() {
    check(cudaMemset(out.data(), 0xff, static_cast<size_t>(batch * seq_q * heads * kLatent * 2)));
    check(cudaMemset(lse.data(), 0xff, static_cast<size_t>(batch * seq_q * heads * 4)));
    check(cudaDeviceSynchronize());
  }
  std::pair<std::vector<uint16_t>, std::vector<float>> eager() {
    poison_outputs();
    const Status status = run();
    EXPECT_TRUE(status.ok()) << status.text();
    check(cudaDeviceSynchronize());
    return result();
  }
  // Largest errors against the device oracle: of out relative to its norm, of lse.
  void expect_right() {
    const auto [got, got_lse] = eager();
    DeviceVector<double> want(batch * seq_q * heads * kLatent), want_lse(batch * seq_q * heads);
    const Status naive = cases::naive_decode(params, want.data(), want_lse.data());
    ASSERT_TRUE(naive.ok()) << naive.text();
    const std::vector<double> expected = want.download();
    const std::vector<double> expected_lse = want_lse.download();
    double difference = 0, size = 1e-30;
    for (size_t i = 0; i < got.size(); ++i) {
      const double error = to_float(BFloat16{got[i]}) - expected[i];
      difference += error * error;
      size += expected[i] * expected[i];
    }
    EXPECT_LT(std::sqrt(difference / size), 4e-3);
    for (int64_t row = 0; row < batch * seq_q * heads; ++row) {
      const int64_t token = row / heads;
      const int64_t at = (token / seq_q * heads + row % heads) * seq_q + token % seq_q;
      const double wanted = expected_lse[static_cast<size_t>(row)];
      if (std::isinf(wanted)) {
        ASSERT_EQ(got_lse[static_cast<size_t>(at)], kInf);
      } else {
        ASSERT_NEAR(got_lse[static_cast<size_t>(at)], wanted, 1e-5 + 1.2e-4 * std::fabs(wanted)) << "row " << row;
      }
    }
  }
};

// A stream on part of the multiprocessors; null where driver or GPU have no such thing.
class GreenStream {
 public:
  explicit GreenStream(unsigned multiprocessors) {
    const auto resource_of = driver<decltype(&cuDeviceGetDevResource)>("cuDeviceGetDevResource");
    const auto split = driver<decltype(&cuDevSmResourceSplitByCount)>("cuDevSmResourceSplitByCount");
    const auto describe = driver<decltype(&cuDevResourceGenerateDesc)>("cuDevResourceGenerateDesc");
    const auto create = driver<decltype(&cuGreenCtxCreate)>("cuGreenCtxCreate");
    const auto stream_of = driver<decltype(&cuGreenCtxStreamCreate)>("cuGreenCtxStreamCreate");
    if (!resource_of || !split || !describe || !create || !stream_of) return;
    check(cudaFree(nullptr));
    CUdevResource all{}, part{}, rest{};
    unsigned groups = 1;
    CUdevResourceDesc described = nullptr;
    if (resource_of(0, &all, CU_DEV_RESOURCE_TYPE_SM) != CUDA_SUCCESS || all.sm.smCount <= multiprocessors) return;
    if (split(&part, &groups, &all, &rest, 0, multiprocessors) != CUDA_SUCCESS || groups != 1) return;
    if (describe(&described, &part, 1) != CUDA_SUCCESS) return;
    if (create(&context_, described, 0, CU_GREEN_CTX_DEFAULT_STREAM) != CUDA_SUCCESS) return;
    CUstream stream = nullptr;
    if (stream_of(&stream, context_, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS) stream_ = stream;
  }
  ~GreenStream() {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
    const auto destroy = driver<decltype(&cuGreenCtxDestroy)>("cuGreenCtxDestroy");
    if (context_ != nullptr && destroy) destroy(context_);
  }
  GreenStream(const GreenStream&) = delete;
  GreenStream& operator=(const GreenStream&) = delete;
  cudaStream_t stream() const { return stream_; }

 private:
  template <class Function>
  static Function driver(const char* name) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    constexpr unsigned kVersion = 12050;  // the first that has them all
    const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &found, kVersion, cudaEnableDefault, &result);
    const bool there = error == cudaSuccess && result == cudaDriverEntryPointSuccess;
    return there ? reinterpret_cast<Function>(found) : nullptr;
  }

  CUgreenCtx context_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

// Captures one call. The very first of a process may be such a one: run this test alone (./dev gpu does).
TEST(CudaGraph, FirstCallOfTheProcess) {
  REQUIRE_GPU();
  GpuCall call(3, 1, 16, 64, 20);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  const Status status = call.run(stream);
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream, &graph));
  ASSERT_TRUE(status.ok()) << status.text();
  cudaGraphExec_t exec = nullptr;
  check(cudaGraphInstantiate(&exec, graph, 0));
  check(cudaGraphLaunch(exec, stream));
  check(cudaStreamSynchronize(stream));
  const auto replayed = call.result();
  EXPECT_EQ(replayed, call.eager());
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

// vLLM #28181, SGLang #37735: a graph replayed with other lengths. 100 replays, grown, shrunk and zero, bit for bit.
TEST(CudaGraph, ReplaysWithOtherLengths) {
  REQUIRE_GPU();
  for (const auto& [batch, heads] : {std::pair{1, 16}, std::pair{5, 128}, std::pair{40, 16}}) {
    GpuCall call(batch, 1, heads, 64, 30);
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    const Status status = call.run(stream);
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream, &graph));
    ASSERT_TRUE(status.ok()) << status.text();
    cudaGraphExec_t exec = nullptr;
    check(cudaGraphInstantiate(&exec, graph, 0));
    cases::Random random({static_cast<uint64_t>(batch)});
    for (int replay = 0; replay < 100; ++replay) {
      std::vector<int32_t> lengths(static_cast<size_t>(batch));
      for (int32_t& length : lengths) {
        const int64_t kind = random.below(4);
        length = static_cast<int32_t>(kind == 0 ? 0 : kind == 1 ? random.below(3) : random.below(30 * 64 + 1));
      }
      call.lens.upload(lengths);
      call.poison_outputs();
      check(cudaGraphLaunch(exec, stream));
      check(cudaStreamSynchronize(stream));
      const auto replayed = call.result();
      ASSERT_EQ(replayed, call.eager()) << "replay " << replay << ", batch " << batch;
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
  }
}

// One kernel with a short ring, then with a longer one: the first launch must not settle what the second may use.
// Slots of each request's last token.
std::vector<int64_t> last_slots(int64_t batch, int64_t pages_each, int64_t page) {
  const std::vector<int32_t> ids = GpuCall::order(batch * pages_each);
  std::vector<int64_t> slots;
  for (int64_t i = 1; i <= batch; ++i) slots.push_back(ids[static_cast<size_t>(i * pages_each - 1)] * page + page - 1);
  return slots;
}

// As a serving engine replays a step: new tokens are written, decode reads them, another operation reads its result. A
// kernel that starts before the one before it has written shows as a result of the other variant.
TEST(CudaGraph, AppendThenDecodeTenThousandTimes) {
  REQUIRE_GPU();
  constexpr int kReplays = 10'000, kLog = 100;
  for (int64_t heads : {16, 128}) {
    GpuCall call(3, 1, heads, 64, 9);
    const DeviceVector<int64_t> slots(last_slots(3, 9, 64));
    const auto bytes = static_cast<size_t>(call.batch * heads * GpuCall::kLatent * 2);
    DeviceVector<uint8_t> reader(static_cast<int64_t>(bytes)), log(static_cast<int64_t>(bytes) * kLog);
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    std::vector<uint8_t> want[2];
    cudaGraphExec_t exec[2];
    std::vector<std::unique_ptr<DeviceVector<uint16_t>>> rows;
    for (int variant : {0, 1}) {
      // Large rows: each variant's decode looks at its own tokens.
      std::vector<uint16_t> values = normal_bf16(3 * GpuCall::kWidth, static_cast<uint64_t>(variant) + 50);
      for (uint16_t& value : values) value = from_float<BFloat16>(4 * to_float(BFloat16{value})).bits;
      const auto* row = rows.emplace_back(std::make_unique<DeviceVector<uint16_t>>(values))->data();
      AppendKvParams append;
      append.latent = {row, DType::kBFloat16, 2, {3, 512}, {GpuCall::kWidth, 1}};
      append.rope = {row + 512, DType::kBFloat16, 2, {3, 64}, {GpuCall::kWidth, 1}};
      append.slot_mapping = ConstTensorView::contiguous(slots.data(), DType::kInt64, {3});
      append.kv_cache =
          TensorView::contiguous(call.cache.data(), DType::kBFloat16, {3 * call.width, call.page, 1, GpuCall::kWidth});
      const auto step = [&] {
        Status status = append_kv(append, on_gpu(stream));
        if (status.ok()) status = call.run(stream);
        if (status.ok())
          check(cudaMemcpyAsync(reader.data(), call.out.data(), bytes, cudaMemcpyDeviceToDevice, stream));
        return status;
      };
      ASSERT_TRUE(append_kv(append, on_gpu(stream)).ok());
      check(cudaStreamSynchronize(stream));
      ASSERT_TRUE(call.run(stream).ok());
      check(cudaStreamSynchronize(stream));
      check(cudaMemcpy(reader.data(), call.out.data(), bytes, cudaMemcpyDeviceToDevice));
      want[variant] = reader.download();
      check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
      const Status status = step();
      cudaGraph_t graph = nullptr;
      check(cudaStreamEndCapture(stream, &graph));
      ASSERT_TRUE(status.ok()) << status.text();
      check(cudaGraphInstantiate(&exec[variant], graph, 0));
      cudaGraphDestroy(graph);
    }
    ASSERT_NE(want[0], want[1]);
    for (int replay = 0; replay < kReplays; ++replay) {
      check(cudaGraphLaunch(exec[replay % 2], stream));
      check(
          cudaMemcpyAsync(log.data() + replay % kLog * bytes, reader.data(), bytes, cudaMemcpyDeviceToDevice, stream));
      if (replay % kLog != kLog - 1) continue;
      check(cudaStreamSynchronize(stream));
      const std::vector<uint8_t> got = log.download();
      for (int i = 0; i < kLog; ++i) {
        ASSERT_EQ(0, std::memcmp(&got[i * bytes], want[i % 2].data(), bytes))
            << heads << " heads, replay " << replay - kLog + 1 + i;
      }
    }
    for (cudaGraphExec_t graph : exec) cudaGraphExecDestroy(graph);
    cudaStreamDestroy(stream);
  }
}

// Fewer multiprocessors than blocks, as many as an H20 has: no block waits for another one, and results stay the same.
TEST(CudaDecode, SeventyEightMultiprocessors) {
  REQUIRE_GPU();
  const GreenStream green(78);
  if (green.stream() == nullptr) GTEST_SKIP() << "needs a driver with green contexts and more than 78 multiprocessors";
  for (int64_t heads : {8, 16, 32, 128}) {
    GpuCall call(heads == 16 ? 1 : 5, 1, heads, 64, 40);
    const auto want = call.eager();
    for (int repeat = 0; repeat < 20; ++repeat) {
      call.poison_outputs();
      ASSERT_TRUE(call.run(green.stream()).ok());
      check(cudaDeviceSynchronize());
      check(cudaStreamSynchronize(green.stream()));
      ASSERT_EQ(call.result(), want) << heads << " heads";
    }
  }
}

// A cache that no tensor map describes (pages in falling order in memory) has another kernel.
TEST(CudaDecode, NegativePageStride) {
  REQUIRE_GPU();
  GpuCall call(2, 1, 16, 64, 8);
  const auto want = call.eager();
  GpuCall flipped(2, 1, 16, 64, 8);
  const int64_t pages = flipped.batch * flipped.width, page = flipped.page * GpuCall::kWidth;
  flipped.params.kv_cache.data = static_cast<const uint16_t*>(flipped.params.kv_cache.data) + (pages - 1) * page;
  flipped.params.kv_cache.stride[0] = -page;
  std::vector<int32_t> ids = GpuCall::order(pages);
  std::ranges::reverse(ids);
  flipped.table.upload(ids);
  const auto got = flipped.eager();
  for (size_t i = 0; i < want.second.size(); ++i) EXPECT_NEAR(got.second[i], want.second[i], 1e-3f);
  for (size_t i = 0; i < want.first.size(); ++i)
    ASSERT_NEAR(to_float(BFloat16{got.first[i]}), to_float(BFloat16{want.first[i]}), 0.02f);
}

TEST(CudaDecode, RingsOfEveryLength) {
  REQUIRE_GPU();
  GpuCall call(3, 1, 16, 64, 20);
  call.kernel = "portable_r16_99k";
  const auto want = call.eager();
  for (const char* kernel : {"portable_r16", "portable_r16_163k", "portable_r16"}) {
    call.kernel = kernel;
    EXPECT_EQ(call.eager(), want) << kernel;
  }
}

TEST(CudaDecode, FiftyRepeatsAreBitEqual) {
  REQUIRE_GPU();
  for (int batch : {1, 3, 150}) {
    GpuCall call(batch, 1, 16, 64, batch == 1 ? 500 : 33);
    const auto first = call.eager();
    for (int repeat = 0; repeat < 50; ++repeat) ASSERT_EQ(first, call.eager()) << "repeat " << repeat;
  }
}

// Two streams with workspaces of their own, at once.
TEST(CudaDecode, TwoStreams) {
  REQUIRE_GPU();
  GpuCall a(2, 1, 16, 64, 40), b(7, 2, 16, 64, 20);
  const auto want_a = a.eager();
  const auto want_b = b.eager();
  cudaStream_t streams[2];
  for (cudaStream_t& stream : streams) check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (int round = 0; round < 200; ++round) {
    ASSERT_TRUE(a.run(streams[0]).ok());
    ASSERT_TRUE(b.run(streams[1]).ok());
  }
  check(cudaDeviceSynchronize());
  EXPECT_EQ(a.result(), want_a);
  EXPECT_EQ(b.result(), want_b);
  for (cudaStream_t stream : streams) cudaStreamDestroy(stream);
}

TEST(CudaDecode, MemoryStaysFlat) {
  REQUIRE_GPU();
  GpuCall call(4, 1, 16, 64, 4);
  ASSERT_TRUE(call.run().ok());
  check(cudaDeviceSynchronize());
  size_t before = 0, after = 0, total = 0;
  check(cudaMemGetInfo(&before, &total));
  for (int i = 0; i < 10'000; ++i) ASSERT_TRUE(call.run().ok());
  check(cudaDeviceSynchronize());
  check(cudaMemGetInfo(&after, &total));
  EXPECT_EQ(before, after);
}

// No grid dimension limits batch or query tokens (FlashMLA's scheduler stops at about 11,600 requests).
TEST(CudaDecode, SeventyThousandRequests) {
  REQUIRE_GPU();
  GpuCall call(70'000, 1, 1, 4, 1);
  std::vector<int32_t> lengths(70'000);
  for (size_t i = 0; i < lengths.size(); ++i) lengths[i] = static_cast<int32_t>(i % 5);
  call.lens.upload(lengths);
  call.expect_right();
}

TEST(CudaDecode, SeventyThousandQueryTokens) {
  REQUIRE_GPU();
  GpuCall call(1, 70'000, 1, 64, 3, /*causal=*/false);
  call.expect_right();
  GpuCall causal(1, 4000, 2, 64, 70, /*causal=*/true);
  causal.expect_right();
}

// vLLM #42956 and others: offsets of 32 bits. A pool of more than 2^32 elements with the live pages at its end.
TEST(CudaDecode, PoolsBeyondFourBillionElements) {
  REQUIRE_GPU();
  GpuCall call(2, 1, 16, 64, 3);
  const auto want = call.eager();
  constexpr int64_t kPages = 120'000;  // x 64 x 576 = 4.4e9 elements, 8.8 GB
  void* pool = nullptr;
  if (cudaMalloc(&pool, kPages * 64 * 576 * 2) != cudaSuccess) {
    cudaGetLastError();
    GTEST_SKIP() << "the GPU has no 8.8 GB to spare";
  }
  const int64_t page_bytes = 64 * 576 * 2;
  check(cudaMemset(pool, 0xff, kPages * page_bytes));
  check(cudaMemcpy(static_cast<char*>(pool) + (kPages - 6) * page_bytes, call.cache.data(), 6 * page_bytes,
                   cudaMemcpyDeviceToDevice));
  std::vector<int32_t> table = call.table.download();
  for (int32_t& id : table) id += static_cast<int32_t>(kPages - 6);
  call.table.upload(table);
  call.params.kv_cache = ConstTensorView::contiguous(pool, DType::kBFloat16, {kPages, 64, 1, 576});
  call.shape = decode_shape(call.params).value();
  EXPECT_EQ(call.eager(), want);
  cudaFree(pool);
}

// Values on the device that make no sense are never followed.
TEST(CudaDecode, BadValuesOnTheDevice) {
  REQUIRE_GPU();
  GpuCall call(4, 1, 16, 64, 3);
  const std::vector<int32_t> good = call.table.download();
  const auto want = call.eager();
  call.lens.upload({-5, 1 << 30, 192, std::numeric_limits<int32_t>::min()});
  const auto clamped = call.eager();
  call.lens.upload({0, 192, 192, 0});
  EXPECT_EQ(clamped, call.eager());  // clamped to 0 and to the table's width
  std::vector<int32_t> bad = good;
  bad[1] = -7;  // request 0: its second page
  bad[3] = 12;  // request 1: its first page, one past the end
  bad[8] = std::numeric_limits<int32_t>::max();
  call.table.upload(bad);
  call.lens.upload({192, 192, 192, 192});
  const auto masked = call.eager();
  EXPECT_NE(masked, want);
  for (float lse : masked.second) EXPECT_TRUE(std::isfinite(lse));
  // The last request has good pages only: its rows are untouched.
  EXPECT_EQ(std::memcmp(masked.first.data() + 3 * 16 * 512, want.first.data() + 3 * 16 * 512, 16 * 512 * 2), 0);
}

struct RepeatedShape {
  int64_t batch, seq_q, heads, page, pages_each;
  bool causal;
};

// Nothing depends on which warp is faster: in a build with FLASHMLA_DEVICE_JITTER warps are held up at random.
TEST(CudaDecode, HopperKernelsRepeatBitForBit) {
  REQUIRE_GPU();
#ifdef FLASHMLA_DEVICE_JITTER
  constexpr int kRepeats = 200;
#else
  constexpr int kRepeats = 50;
#endif
  for (const RepeatedShape& shape : {RepeatedShape{1, 1, 16, 64, 60, false},     // one request, cut into slices
                                     RepeatedShape{6, 1, 5, 16, 40, false},      // few rows, small pages
                                     RepeatedShape{3, 2, 64, 64, 12, true},      // 128 rows
                                     RepeatedShape{50, 1, 64, 16, 8, false}}) {  // 64 rows, many short requests
    GpuCall call(shape.batch, shape.seq_q, shape.heads, shape.page, shape.pages_each, shape.causal);
    cases::Random random({static_cast<uint64_t>(shape.batch)});
    std::vector<int32_t> lengths(static_cast<size_t>(shape.batch));
    for (size_t i = 0; i < lengths.size(); ++i) {
      const int64_t most = shape.pages_each * shape.page;
      lengths[i] = static_cast<int32_t>(i == 0 ? most - 3 : i % 4 == 3 ? random.below(3) : random.below(most + 1));
    }
    call.lens.upload(lengths);
    for (const char* kernel : {"hopper_r8", "hopper_r16", "hopper_r32", "hopper_r64"}) {
      const Context context{.device = {DeviceType::kCUDA}, .backend = "cuda", .kernel = kernel};
      const auto bytes = workspace_bytes(call.shape, call.params.options, context);
      if (!bytes.ok() && bytes.status().text().find("sm_90a") != std::string::npos)
        GTEST_SKIP() << bytes.status().text();
      ASSERT_TRUE(bytes.ok()) << bytes.status().text();
      const DeviceVector<uint8_t> workspace(bytes.value());  // of this kernel, which need not be the call's choice
      std::pair<std::vector<uint16_t>, std::vector<float>> first;
      for (int repeat = 0; repeat <= kRepeats; ++repeat) {
        call.poison_outputs();
        const Status status = decode(call.params, {workspace.data(), bytes.value()}, context);
        ASSERT_TRUE(status.ok()) << status.text();
        check(cudaDeviceSynchronize());
        if (repeat == 0) first = call.result();
        ASSERT_TRUE(first == call.result()) << kernel << ", batch " << shape.batch << ", repeat " << repeat;
      }
    }
  }
}

}  // namespace
}  // namespace flashmla::tests
