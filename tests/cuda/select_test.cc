// Which CUDA kernel a call runs, on GPUs that need not be there.
#include <algorithm>
#include <set>

#include "cuda/decode/decode.h"
#include "cuda/decode/table.h"
#include "cuda/decode/tensor_map.h"
#include "support.h"

namespace flashmla::tests {
namespace {

using cuda::DeviceInfo;

const DeviceInfo kH200{0, "H200", 90, 132, cuda::kSmem227K, true};
const DeviceInfo kH20{0, "H20", 90, 78, cuda::kSmem227K, true};
const DeviceInfo kH100Pcie{0, "H100 PCIe", 90, 114, cuda::kSmem227K, true};
const DeviceInfo kA100{0, "A100", 80, 108, cuda::kSmem163K};
const DeviceInfo kB200{0, "B200", 100, 148, cuda::kSmem227K};
const DeviceInfo kL40S{0, "L40S", 89, 142, cuda::kSmem99K};

DecodeShape shape_of(int64_t batch, int64_t seq_q, int64_t heads) {
  return {.batch = batch, .seq_q = seq_q, .total_q = batch * seq_q, .heads_q = heads, .pages = 64, .table_width = 64};
}

std::string kernel_of(const DecodeShape& shape, const DeviceInfo& device, const cuda::Selection& selection = {}) {
  const auto choice = cuda::select_decode(shape, device, selection);
  return choice.ok() ? choice.value()->name : choice.status().text();
}

TEST(CudaSelect, EveryDeviceHasAKernelForEveryShape) {
  for (const DeviceInfo& device : {kH200, kH20, kH100Pcie, kA100, kB200, kL40S}) {
    for (int64_t heads : {1, 3, 16, 17, 64, 128}) {
      for (int64_t seq_q : {1, 2, 70000}) {
        for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
          DecodeShape shape = shape_of(2, seq_q, heads);
          shape.dtype = dtype;
          for (const auto& [latent, rope] : {std::pair{512, 64}, {256, 64}, {256, 32}, {512, 0}, {64, 8}}) {
            shape.latent_dim = latent;
            shape.rope_dim = rope;
            const auto choice = cuda::select_decode(shape, device);
            ASSERT_TRUE(choice.ok()) << choice.status().text();
            EXPECT_LE(choice.value()->smem_bytes, device.smem_per_block);
            EXPECT_TRUE(choice.value()->runs_on(device) && choice.value()->fits(device));
            EXPECT_EQ(choice.value()->dtype, dtype);
            const std::string reason = cuda::decode_reason(shape, device, {}, *choice.value());
            EXPECT_NE(reason.find(device.name), std::string::npos) << reason;
          }
        }
      }
    }
  }
}

TEST(CudaSelect, FollowsRowsAndSharedMemory) {
  EXPECT_EQ(kernel_of(shape_of(1, 1, 8), kH200), "hopper_r8");
  EXPECT_EQ(kernel_of(shape_of(1, 1, 16), kH200), "hopper_r16");
  EXPECT_EQ(kernel_of(shape_of(128, 2, 16), kH200), "hopper_r32");
  EXPECT_EQ(kernel_of(shape_of(1, 1, 20), kH20), "hopper_r32");
  EXPECT_EQ(kernel_of(shape_of(128, 1, 128), kH200), "hopper_r64");
  EXPECT_EQ(kernel_of(shape_of(64, 2, 128), kH200), "hopper_r64");
  EXPECT_EQ(kernel_of(shape_of(128, 1, 33), kH200), "hopper_r64");
  EXPECT_EQ(kernel_of(shape_of(128, 1, 32), kH200), "hopper_r32");
  DeviceInfo compiled = kH200;  // from compute_80 PTX
  compiled.hopper_code = false;
  EXPECT_EQ(kernel_of(shape_of(1, 1, 16), compiled), "portable_r16");
  EXPECT_EQ(kernel_of(shape_of(1, 2, 16), compiled), "portable_r32");
  DecodeShape odd = shape_of(1, 1, 16);
  odd.page_size = 61;
  EXPECT_EQ(kernel_of(odd, kH200), "portable_r16");
  odd.table_width = 1;  // a page holds the whole sequence
  EXPECT_EQ(kernel_of(odd, kH200), "hopper_r16");
  odd.heads_kv = 2;
  EXPECT_EQ(kernel_of(odd, kH200), "portable_r16");
  EXPECT_EQ(kernel_of(shape_of(1, 1, 16), kA100), "portable_r16_163k");
  EXPECT_EQ(kernel_of(shape_of(1, 1, 128), kA100), "portable_r32_163k");
  EXPECT_EQ(kernel_of(shape_of(1, 1, 16), kL40S), "portable_r16_99k");
  EXPECT_EQ(kernel_of(shape_of(1, 1, 128), kL40S), "portable_r16_99k");
  EXPECT_EQ(kernel_of(shape_of(1, 1, 128), kB200), "portable_r16");
  DecodeShape narrow = shape_of(1, 1, 16);
  narrow.latent_dim = 256;
  EXPECT_EQ(kernel_of(narrow, kH200), "portable_any");
}

// The page table bounds the length of the requests: small tiles serve few short ones.
TEST(CudaSelect, ShortRequestsHaveSmallTiles) {
  DecodeShape shape = shape_of(1, 1, 128);  // 64 pages of 64
  EXPECT_EQ(kernel_of(shape, kH200), "hopper_r16");
  EXPECT_NE(cuda::decode_reason(shape, kH200, {}, *cuda::select_decode(shape, kH200).value()).find("at most 4096 keys"),
            std::string::npos);
  EXPECT_EQ(kernel_of(shape, kH200, {.batch_invariant = true}), "hopper_r64");
  EXPECT_EQ(kernel_of(shape, kA100), "portable_r32_163k");
  EXPECT_EQ(kernel_of(shape, kH20), "hopper_r64");
  shape.heads_q = 32;
  EXPECT_EQ(kernel_of(shape, kH200), "hopper_r8");
  EXPECT_EQ(kernel_of(shape, kH200, {.batch_invariant = true}), "hopper_r32");
  EXPECT_EQ(kernel_of(shape, kH20), "hopper_r32");
  shape.heads_q = 128;
  shape.table_width = 512;
  EXPECT_EQ(kernel_of(shape, kH200), "hopper_r64");
}

// Batch-invariant mode: neither the other requests nor the width of their page table have a say.
TEST(CudaSelect, BatchInvariantModeLooksAtOneRequest) {
  DecodeShape ragged = shape_of(2, 0, 16);
  ragged.ragged_q = true;
  ragged.total_q = 8;
  EXPECT_EQ(kernel_of(ragged, kH200), "hopper_r64");
  EXPECT_EQ(kernel_of(ragged, kH200, {.batch_invariant = true}), "hopper_r16");
  ragged.batch = 8;
  EXPECT_EQ(kernel_of(ragged, kH200, {.batch_invariant = true}), "hopper_r16");
  DecodeShape odd = shape_of(2, 1, 16);
  odd.page_size = 61;
  odd.table_width = 1;
  EXPECT_EQ(kernel_of(odd, kH200), "hopper_r16");
  EXPECT_EQ(kernel_of(odd, kH200, {.batch_invariant = true}), "portable_r16");
  EXPECT_EQ(kernel_of(shape_of(2, 1, 16), kH200, {.bulk_copies = false}), "portable_r16");
}

// Strides of a cache that a tensor map can describe; what is never taken may be anything.
TEST(CudaSelect, StridesOfATensorMap) {
  const auto takes = [](int64_t pages, int64_t page_size, int64_t page_stride, int64_t token_stride) {
    DecodeParams params;
    params.kv_cache = {nullptr, DType::kBFloat16, 4, {pages, page_size, 1, 576}, {page_stride, token_stride, 576, 1}};
    DecodeShape shape = shape_of(1, 1, 16);
    shape.pages = pages;
    shape.page_size = page_size;
    return cuda::takes_strides(params, shape);
  };
  constexpr int64_t kPage = 64 * 576;
  EXPECT_TRUE(takes(10, 64, kPage, 576));
  EXPECT_FALSE(takes(10, 64, -kPage, 576));
  EXPECT_FALSE(takes(10, 64, kPage, -576));
  EXPECT_FALSE(takes(10, 64, 0, 576));
  EXPECT_TRUE(takes(10, 64, (int64_t{1} << 39) - 8, 576));
  EXPECT_FALSE(takes(10, 64, int64_t{1} << 39, 576));  // 2^40 bytes
  EXPECT_TRUE(takes(1, 64, -kPage, 576));
  EXPECT_TRUE(takes(10, 1, 576, -576));
  EXPECT_TRUE(takes(0, 64, 0, 1));
}

TEST(CudaSelect, RefusesByName) {
  DecodeShape shape = shape_of(1, 1, 16);
  expect_error(cuda::select_decode(shape, kH200, {.named = "fast"}).status(), StatusCode::kNotFound,
               {"fast", "hopper_r16", "portable_r16"});
  expect_error(cuda::select_decode(shape, kL40S, {.named = "portable_r16"}).status(), StatusCode::kUnsupported,
               {"portable_r16", "101376", "L40S"});
  expect_error(cuda::select_decode(shape, kB200, {.named = "portable_r32"}).status(), StatusCode::kUnsupported,
               {"portable_r32", "B200", "10.0"});
  shape.latent_dim = 256;
  expect_error(cuda::select_decode(shape, kH200, {.named = "portable_r16"}).status(), StatusCode::kUnsupported,
               {"256", "512"});
  shape.latent_dim = 520;
  expect_error(cuda::select_decode(shape, kH200).status(), StatusCode::kUnsupported, {"latent_dim", "520", "512"});
  shape.latent_dim = 512;
  shape.rope_dim = 128;
  expect_error(cuda::select_decode(shape, kH200).status(), StatusCode::kUnsupported, {"rope_dim", "128", "64"});
  shape.rope_dim = 64;
  shape.dtype = DType::kFloat32;
  expect_error(cuda::select_decode(shape, kH200).status(), StatusCode::kUnsupported, {"fp32", "bf16 and fp16"});
}

// Two partial tiles a multiprocessor, whatever the batch and the lengths.
TEST(CudaSelect, WorkspaceIsBounded) {
  const auto bytes = [](int64_t batch, int64_t heads, const DeviceInfo& device, const DecodeOptions& options = {}) {
    const DecodeShape shape = shape_of(batch, 1, heads);
    return cuda::decode_workspace_bytes(shape, options, *cuda::select_decode(shape, device).value(), device);
  };
  EXPECT_EQ(bytes(1, 16, kH200), bytes(100'000, 16, kH200));
  EXPECT_LE(bytes(1, 16, kH200), 2 * 132 * 16 * (512 * 4 + 8) + 512);
  EXPECT_LE(bytes(1, 128, kH200), 2 * 132 * 64 * (512 * 4 + 8) + 512);
  EXPECT_LT(bytes(1, 16, kH20), bytes(1, 16, kH200));
  EXPECT_GT(bytes(128, 16, kH200, {.splits = 8}), bytes(64, 16, kH200, {.splits = 8}));
}

// What suffices for the largest shape suffices for every smaller one, whichever kernels they run.
TEST(CudaSelect, WorkspaceGrowsWithEverySize) {
  for (const DeviceInfo& device : {kH200, kA100, kL40S}) {
    for (int32_t splits : {0, 8}) {
      const DecodeOptions options{.splits = splits};
      const auto bytes = [&](const DecodeShape& shape) {
        return cuda::decode_workspace_bytes(shape, options, *cuda::select_decode(shape, device).value(), device);
      };
      for (bool ragged : {false, true}) {
        for (int64_t heads : {1, 8, 16, 64, 128}) {
          DecodeShape shape = shape_of(1, ragged ? 0 : 1, heads);
          shape.ragged_q = ragged;
          shape.total_q = ragged ? 64 : 1;
          shape.table_width = 1;
          shape.page_size = 61;
          int64_t before = bytes(shape);
          const auto grow = [&](auto change) {
            change(shape);
            const int64_t now = bytes(shape);
            EXPECT_GE(now, before) << device.name << ", splits " << splits << ", ragged " << ragged << ", heads "
                                   << heads << ", batch " << shape.batch << ", page " << shape.page_size << ", width "
                                   << shape.table_width;
            before = now;
          };
          grow([](DecodeShape& s) { s.table_width = 2; });
          grow([](DecodeShape& s) { s.page_size = 64; });
          grow([](DecodeShape& s) { s.page_size = 65; });
          grow([](DecodeShape& s) { s.table_width = 1000; });
          grow([&](DecodeShape& s) { s.batch = 64, s.total_q = 64; });
          grow([&](DecodeShape& s) { s.batch = 100, s.total_q = 100; });
          if (heads % 2 == 0) grow([](DecodeShape& s) { s.heads_kv = 2; });
          grow([&](DecodeShape& s) { s.seq_q = ragged ? 0 : 2, s.total_q = 200; });
        }
      }
    }
  }
}

// Names are unique for a dtype, the shared cases force each of them, and every entry is one that some GPU runs.
TEST(CudaSelect, TheTableIsSound) {
  std::set<std::pair<std::string, DType>> names;
  for (const cuda::DecodeEntry& entry : cuda::decode_entries()) {
    EXPECT_TRUE(names.insert({entry.name, entry.dtype}).second) << entry.name;
    EXPECT_NE(std::ranges::find(kCudaKernels, std::string_view(entry.name)), kCudaKernels.end()) << entry.name;
    EXPECT_TRUE(entry.runs_on(kH200) && entry.fits(kH200)) << entry.name;
    EXPECT_NE(entry.split_kernel(cuda::LineKind::kPlain), nullptr);
    EXPECT_NE(entry.combine_kernel(cuda::LineKind::kPlain), nullptr);
  }
  EXPECT_EQ(names.size(), 2 * kCudaKernels.size());
}

}  // namespace
}  // namespace flashmla::tests
