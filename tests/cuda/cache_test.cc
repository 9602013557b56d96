// append_kv on the GPU, byte for byte as back end "reference".
#include <cuda_runtime_api.h>

#include <array>
#include <cstring>
#include <limits>
#include <vector>

#include "append_call.h"
#include "cases/random.h"
#include "core/text.h"
#include "cuda/device_memory.h"
#include "support.h"

namespace flashmla::tests {
namespace {

Status append_on_gpu(const AppendKvParams& host) {
  DeviceMemory memory;
  AppendKvParams params = host;
  params.latent = memory.mirror(host.latent);
  params.rope = memory.mirror(host.rope);
  params.slot_mapping = memory.mirror(host.slot_mapping);
  params.kv_cache = memory.mirror(host.kv_cache);
  FLASHMLA_RETURN_IF_ERROR(append_kv(params, on_gpu()));
  FLASHMLA_RETURN_IF_ERROR(cases::device_status());
  EXPECT_EQ(memory.download(), "");
  return {};
}

// The cache after the call by "reference". It returns an error for slots past the cache, which the GPU skips.
std::vector<std::byte> expected_cache(const AppendKvParams& params, std::vector<std::byte> cache) {
  const auto* slots = static_cast<const int64_t*>(params.slot_mapping.data);
  std::vector<int64_t> valid(slots, slots + params.slot_mapping.shape[0]);
  for (int64_t& slot : valid) {
    if (slot >= params.kv_cache.shape[0] * params.kv_cache.shape[1]) slot = -1;
  }
  AppendKvParams host = params;
  host.slot_mapping.data = valid.data();
  host.kv_cache.data = cache.data();
  const Status status = append_kv(host, {.backend = "reference"});
  EXPECT_TRUE(status.ok()) << status.text();
  return cache;
}

// A call of any sizes; gaps are in elements, behind each row and each page.
struct Sizes {
  int64_t pages = 40;
  int64_t page_size = 64;
  int64_t latent_dim = 512;
  int64_t rope_dim = 64;
  int64_t row_gap = 0;
  int64_t page_gap = 0;
  int64_t shift = 0;  // of every base, in elements
  int64_t slots() const { return pages * page_size; }
};

struct SizedAppend {
  std::vector<std::byte> latent, rope, cache;
  std::vector<int64_t> slots;
  AppendKvParams params;

  SizedAppend(const Sizes& s, std::vector<int64_t> slot_list, DType dtype = DType::kBFloat16)
      : slots(std::move(slot_list)) {
    const auto tokens = static_cast<int64_t>(slots.size());
    const int64_t width = s.latent_dim + s.rope_dim;
    const int64_t row = width + s.row_gap;
    const int64_t page = s.page_size * row + s.page_gap;
    Append::fill(latent, (tokens * (s.latent_dim + s.row_gap) + s.shift) * 2, 1);
    Append::fill(rope, (tokens * (s.rope_dim + s.row_gap) + s.shift) * 2, 2);
    Append::fill(cache, (s.pages * page + s.shift) * 2, 3);
    params.latent = {latent.data() + 2 * s.shift, dtype, 2, {tokens, s.latent_dim}, {s.latent_dim + s.row_gap, 1}};
    if (s.rope_dim > 0)
      params.rope = {rope.data() + 2 * s.shift, dtype, 2, {tokens, s.rope_dim}, {s.rope_dim + s.row_gap, 1}};
    params.slot_mapping = ConstTensorView::contiguous(slots.data(), DType::kInt64, {tokens});
    params.kv_cache = {cache.data() + 2 * s.shift, dtype, 3, {s.pages, s.page_size, width}, {page, row, 1}};
    shift_ = s.shift;
  }

  // As "reference", in which the last of duplicates wins.
  void expect_right() {
    AppendKvParams host = params;
    std::vector<std::byte> body(cache.begin() + 2 * shift_, cache.end());
    const std::vector<std::byte> want = expected_cache(host, std::move(body));
    const Status status = append_on_gpu(params);
    ASSERT_TRUE(status.ok()) << status.text();
    ASSERT_EQ(0, std::memcmp(want.data(), params.kv_cache.data, want.size())) << "the caches differ";
  }

 private:
  int64_t shift_ = 0;
};

// Random slots, of which some are negative and some past the cache.
std::vector<int64_t> random_slots(int64_t tokens, int64_t slots, uint64_t seed) {
  cases::Random random({seed});
  std::vector<int64_t> list(static_cast<size_t>(tokens));
  for (int64_t& slot : list) slot = random.below(slots + slots / 4 + 2) - slots / 8 - 1;
  return list;
}

class CudaAppendDTypes : public testing::TestWithParam<DType> {};

TEST_P(CudaAppendDTypes, WritesTheRowsAndNothingElse) {
  REQUIRE_GPU();
  constexpr int64_t kLast = std::numeric_limits<int64_t>::max();
  for (int64_t rope_dim : {kRope, int64_t{0}}) {
    for (bool four_dims : {false, true}) {
      Append append(GetParam(),
                    {17, -1, 79, 1, 80, std::numeric_limits<int64_t>::min(), 33, int64_t{1} << 32, 48, kLast, 81, 17},
                    rope_dim, four_dims);
      const std::vector<std::byte> want = expected_cache(append.params, append.cache);
      const Status status = append_on_gpu(append.params);
      ASSERT_TRUE(status.ok()) << status.text();
      EXPECT_TRUE(append.cache == want) << "RoPE part " << rope_dim << ", four dimensions " << four_dims;
    }
  }
}

// Every count of tokens with rows that are aligned (16 bytes at a time), shifted or of odd strides (one by one).
TEST_P(CudaAppendDTypes, EveryTokenCountAndAlignment) {
  REQUIRE_GPU();
  const std::array<Sizes, 6> all = {{{},
                                     {.row_gap = 8, .page_gap = 1024},
                                     {.row_gap = 3},
                                     {.shift = 1},
                                     {.page_size = 61, .latent_dim = 256, .rope_dim = 32, .page_gap = 8},
                                     {.latent_dim = 512, .rope_dim = 0}}};
  for (const Sizes& sizes : all) {
    for (int64_t tokens : {0, 1, 7, 300, 5000}) {
      SCOPED_TRACE(testing::Message() << tokens << " tokens, row gap " << sizes.row_gap << ", page "
                                      << sizes.page_size);
      SizedAppend append(sizes, random_slots(tokens, sizes.slots(), 5), GetParam());
      append.expect_right();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Plain, CudaAppendDTypes, testing::Values(DType::kBFloat16, DType::kFloat16), dtype_test_name);

TEST(CudaAppend, SeventyThousandTokens) {
  REQUIRE_GPU();
  const Sizes sizes{.pages = 1300, .latent_dim = 64, .rope_dim = 16};
  for (uint64_t seed : {1, 2}) {
    SizedAppend append(sizes, random_slots(70'000, sizes.slots(), seed));
    append.expect_right();
  }
  std::vector<int64_t> in_order(70'000);
  for (size_t t = 0; t < in_order.size(); ++t) in_order[t] = static_cast<int64_t>(t) + 11;
  SizedAppend append(sizes, in_order);
  append.expect_right();
}

// A row of two tokens would show: every token's row differs from every other's.
TEST(CudaAppend, OfDuplicateSlotsTheLastWinsWhole) {
  REQUIRE_GPU();
  for (int64_t row_gap : {0, 3}) {
    for (int64_t few : {1, 3, 100}) {
      for (int repeat = 0; repeat < 5; ++repeat) {
        std::vector<int64_t> slots(20'000);
        cases::Random random({static_cast<uint64_t>(few), static_cast<uint64_t>(repeat)});
        for (int64_t& slot : slots) slot = 20 + 7 * random.below(few);
        SizedAppend append({.row_gap = row_gap}, slots);
        append.expect_right();
      }
    }
  }
}

// All slots of one block (append.cu deals them by the upper bits of this product): the block's table overflows.
TEST(CudaAppend, SlotsThatAllFallToOneBlock) {
  REQUIRE_GPU();
  std::vector<int64_t> slots;
  for (int64_t slot = 0; slots.size() < 9000; ++slot) {
    if ((static_cast<uint32_t>(slot) * 0x9e3779b1u) >> 24 == 0) slots.push_back(slot);
  }
  const Sizes sizes{.pages = slots.back() / 64 + 1, .latent_dim = 8, .rope_dim = 0};
  std::vector<int64_t> twice = slots;
  twice.insert(twice.end(), slots.rbegin(), slots.rend());
  for (const std::vector<int64_t>& list : {slots, twice}) {
    SizedAppend append(sizes, list);
    append.expect_right();
  }
}

TEST(CudaAppend, NothingToWrite) {
  REQUIRE_GPU();
  SizedAppend none({}, {});
  none.expect_right();
  SizedAppend skipped({}, std::vector<int64_t>(100, -1));
  skipped.expect_right();
  SizedAppend no_pages({.pages = 0}, {0, 1, -1});
  const Status status = append_on_gpu(no_pages.params);
  EXPECT_TRUE(status.ok()) << status.text();
}

// tokenspeed #501: slot * 576 overflows 32 bits at 3.7 million slots.
TEST(CudaAppend, PoolBeyondTwoToThe32Elements) {
  REQUIRE_GPU();
  constexpr int64_t kWidth = 576;
  constexpr int64_t kSlots = 8'000'000;
  std::byte* pool = nullptr;
  if (cudaMalloc(reinterpret_cast<void**>(&pool), kSlots * kWidth * 2) != cudaSuccess) {
    (void)cudaGetLastError();
    GTEST_SKIP() << "needs " << (kSlots * kWidth * 2 >> 30) << " GiB of GPU memory";
  }
  check_cuda(cudaMemset(pool, 0, kSlots * kWidth * 2), "clear");
  std::vector<uint16_t> rows(4 * kWidth);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<uint16_t>(i + 1);
  const std::vector<int64_t> slots = {3'728'271, 4'000'000, 7'456'541, kSlots - 1};  // the first past 2^31, 2^32
  DeviceMemory memory;
  AppendKvParams params;
  params.latent = memory.mirror(ConstTensorView{rows.data(), DType::kBFloat16, 2, {4, 512}, {kWidth, 1}});
  params.rope = memory.mirror(ConstTensorView{rows.data() + 512, DType::kBFloat16, 2, {4, 64}, {kWidth, 1}});
  params.slot_mapping = memory.mirror(ConstTensorView::contiguous(slots.data(), DType::kInt64, {4}));
  params.kv_cache = TensorView::contiguous(pool, DType::kBFloat16, {kSlots / 64, 64, kWidth});
  const Status status = append_kv(params, on_gpu());
  ASSERT_TRUE(status.ok()) << status.text();
  std::vector<uint16_t> got(2 * kWidth);
  for (size_t t = 0; t < slots.size(); ++t) {  // the row, and the one before it
    check_cuda(cudaMemcpy(got.data(), pool + (slots[t] - 1) * kWidth * 2, kWidth * 4, cudaMemcpyDeviceToHost), "copy");
    EXPECT_EQ(0, std::memcmp(&got[kWidth], &rows[t * kWidth], kWidth * 2)) << "slot " << slots[t];
    EXPECT_EQ(std::vector<uint16_t>(kWidth), std::vector<uint16_t>(got.begin(), got.begin() + kWidth));
    const int64_t element = slots[t] * kWidth;
    for (int64_t wrapped : {element & 0xffffffff, element & 0x7fffffff, (element * 2 & 0xffffffff) / 2}) {
      if (wrapped == element) continue;
      check_cuda(cudaMemcpy(got.data(), pool + wrapped * 2, 2, cudaMemcpyDeviceToHost), "copy");
      EXPECT_EQ(got[0], 0) << "the offset wrapped to " << wrapped;
    }
  }
  cudaFree(pool);
}

// Few pages, each the slice of a pool that spans many layers: more than 2^32 bytes and 2^31 elements from page to page.
// The stride is odd, so that rows are copied element by element, whose offsets are the largest.
TEST(CudaAppend, PageStrideBeyondTwoToThe31Elements) {
  REQUIRE_GPU();
  constexpr int64_t kPageStride = (int64_t{1} << 31) + 65;
  std::byte* pool = nullptr;
  if (cudaMalloc(reinterpret_cast<void**>(&pool), 3 * kPageStride * 2) != cudaSuccess) {
    (void)cudaGetLastError();
    GTEST_SKIP() << "needs " << (3 * kPageStride * 2 >> 30) << " GiB of GPU memory";
  }
  std::vector<uint16_t> rows(3 * 32);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<uint16_t>(i + 1);
  const std::vector<int64_t> slots = {9, 1, 6};
  DeviceMemory memory;
  AppendKvParams params;
  params.latent = memory.mirror(ConstTensorView{rows.data(), DType::kFloat16, 2, {3, 32}, {32, 1}});
  params.slot_mapping = memory.mirror(ConstTensorView::contiguous(slots.data(), DType::kInt64, {3}));
  params.kv_cache = {pool, DType::kFloat16, 3, {3, 4, 32}, {kPageStride, 40, 1}};
  const Status status = append_kv(params, on_gpu());
  ASSERT_TRUE(status.ok()) << status.text();
  std::vector<uint16_t> got(32);
  for (size_t t = 0; t < slots.size(); ++t) {
    const std::byte* row = pool + (slots[t] / 4 * kPageStride + slots[t] % 4 * 40) * 2;
    check_cuda(cudaMemcpy(got.data(), row, 64, cudaMemcpyDeviceToHost), "copy");
    EXPECT_EQ(0, std::memcmp(got.data(), &rows[t * 32], 64)) << "slot " << slots[t];
  }
  cudaFree(pool);
}

// Each append reads what the one before it on the stream wrote; the kernels overlap, and each waits for the one before.
// The calls are captured once, and replayed with other slots and rows.
TEST(CudaAppend, ChainInAGraphReplaysInOrder) {
  REQUIRE_GPU();
  constexpr int64_t kTokens = 200;
  constexpr int kLinks = 16;
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  const Sizes sizes{.pages = 4, .page_size = 50};
  SizedAppend first(sizes, random_slots(kTokens, kTokens, 1));
  std::vector<std::vector<std::byte>> caches(kLinks, first.cache);
  DeviceMemory memory;
  AppendKvParams params = first.params;
  params.latent = memory.mirror(first.params.latent);
  params.rope = memory.mirror(first.params.rope);
  params.slot_mapping = memory.mirror(first.params.slot_mapping);
  std::vector<AppendKvParams> links;
  for (std::vector<std::byte>& cache : caches) {
    params.kv_cache = first.params.kv_cache;
    params.kv_cache.data = cache.data();
    params.kv_cache = memory.mirror(params.kv_cache);
    links.push_back(params);
    const TensorView& written = params.kv_cache;  // [4 * 50, 576] of it are the next link's rows
    params.latent = {written.data, written.dtype, 2, {kTokens, 512}, {576, 1}};
    params.rope = {static_cast<std::byte*>(written.data) + 1024, written.dtype, 2, {kTokens, 64}, {576, 1}};
  }
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin capture");
  Status status;
  for (const AppendKvParams& link : links) {
    if (status.ok()) status = append_kv(link, on_gpu(stream));
  }
  cudaGraph_t graph = nullptr;
  check_cuda(cudaStreamEndCapture(stream, &graph), "end capture");
  ASSERT_TRUE(status.ok()) << status.text();
  cudaGraphExec_t exec = nullptr;
  check_cuda(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  for (uint64_t replay = 0; replay < 50; ++replay) {
    SizedAppend host(sizes, random_slots(kTokens, kTokens, replay + 2));
    Append::fill(host.latent, static_cast<int64_t>(host.latent.size()), replay + 100);
    check_cuda(cudaMemcpy(const_cast<void*>(links[0].slot_mapping.data), host.slots.data(), kTokens * 8,
                          cudaMemcpyHostToDevice),
               "slots");
    check_cuda(cudaMemcpy(const_cast<void*>(links[0].latent.data), host.latent.data(), host.latent.size(),
                          cudaMemcpyHostToDevice),
               "latent");
    check_cuda(cudaDeviceSynchronize(), "copies");  // a copy from pageable memory may still be on its way
    check_cuda(cudaGraphLaunch(exec, stream), "graph launch");
    check_cuda(cudaStreamSynchronize(stream), "graph");
    AppendKvParams step = host.params;
    for (std::vector<std::byte>& cache : caches) {
      step.kv_cache.data = cache.data();
      cache = expected_cache(step, std::move(cache));
      step.latent = {cache.data(), DType::kBFloat16, 2, {kTokens, 512}, {576, 1}};
      step.rope = {cache.data() + 1024, DType::kBFloat16, 2, {kTokens, 64}, {576, 1}};
    }
    std::vector<std::byte> got(caches.back().size());
    check_cuda(cudaMemcpy(got.data(), links.back().kv_cache.data, got.size(), cudaMemcpyDeviceToHost), "copy");
    ASSERT_TRUE(got == caches.back()) << "replay " << replay;
  }
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

// The check comes before any look for a GPU, so this runs everywhere.
TEST(CudaAppend, Fp32IsRefusedByName) {
  Append append(DType::kFloat32, {3, 4});
  const std::vector<std::byte> before = append.cache;
  expect_error(append_kv(append.params, on_gpu()), StatusCode::kUnsupported,
               {"kv_cache: got dtype fp32", "bf16 and fp16 on back end 'cuda'"});
  EXPECT_TRUE(append.cache == before);
}

TEST(CudaAppend, WithoutAGpuSaysSo) {
  if (cases::has_gpu()) GTEST_SKIP() << "needs a machine without a GPU";
  Append append(DType::kBFloat16, {3, 4});
  expect_error(append_kv(append.params, on_gpu()), StatusCode::kNotFound, {"device: got CUDA", "want an NVIDIA GPU"});
}

}  // namespace
}  // namespace flashmla::tests
