// Offsets beyond 2^31 and 2^32 elements and bytes, in sparse mappings of which only the live pages exist.
// tokenspeed #501: slot * 576 overflows 32 bits at 3.7 million slots.
#include <sys/mman.h>

#include <cstring>

#include "support.h"

namespace flashmla::tests {
namespace {

using cases::DecodeCase;
using cases::DecodeProblem;
using cases::DecodeResult;

class SparseMapping {
 public:
  explicit SparseMapping(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    data_ = memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
  }
  SparseMapping(const SparseMapping&) = delete;
  SparseMapping& operator=(const SparseMapping&) = delete;
  ~SparseMapping() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  std::byte* data() const { return data_; }

 private:
  size_t bytes_;
  std::byte* data_;
};

#define REQUIRE_MAPPING(mapping) \
  if ((mapping).data() == nullptr) GTEST_SKIP() << "this system maps no such sparse memory"

// Copies the pages of a small problem to the end of a large pool with this page stride, and points the call there.
void move_cache(DecodeProblem& problem, std::byte* pool, int64_t pages, int64_t page_stride) {
  const DecodeCase& c = problem.decode_case();
  ConstTensorView& cache = problem.params().kv_cache;
  const int64_t bytes = dtype_bytes(c.dtype);
  for (int64_t p = 0; p < cache.shape[0]; ++p) {
    const int64_t place = (pages - 1 - p) * page_stride * bytes;
    std::memcpy(pool + place, static_cast<const std::byte*>(cache.data) + p * cache.stride[0] * bytes,
                static_cast<size_t>(c.page_size * cache.stride[1] * bytes));
  }
  for (int64_t i = 0; i < c.batch(); ++i) {
    const int64_t used = (c.requests[i].seq_len + c.page_size - 1) / c.page_size;
    for (int64_t p = 0; p < used; ++p)
      problem.table_row(i)[p] = static_cast<int32_t>(pages - 1 - problem.table_row(i)[p]);
  }
  cache.data = pool;
  cache.shape[0] = pages;
  cache.stride[0] = page_stride;
}

TEST(BigIndex, PoolBeyondTwoToThe32Elements) {
  DecodeCase c = small_case();
  c.page_size = 64;
  constexpr int64_t kPageStride = 64 * 576;
  constexpr int64_t kPages = (int64_t{1} << 32) / kPageStride + 1000;
  const SparseMapping pool(kPages * kPageStride * 2);
  REQUIRE_MAPPING(pool);
  for (const Target& target : host_targets()) {
    DecodeProblem problem(c);
    const DecodeResult expected = run(problem, target.context());
    move_cache(problem, pool.data(), kPages, kPageStride);
    EXPECT_EQ(expected, run(problem, target.context())) << target.name;
  }
}

// Few pages, each the slice of a pool that spans many layers.
TEST(BigIndex, PageStrideBeyondTwoToThe31Elements) {
  const DecodeCase c = small_case();
  DecodeProblem probe(c);
  const int64_t pages = probe.params().kv_cache.shape[0];
  constexpr int64_t kPageStride = (int64_t{1} << 31) + 64;
  const SparseMapping pool(pages * kPageStride * 2);
  REQUIRE_MAPPING(pool);
  for (const Target& target : host_targets()) {
    DecodeProblem problem(c);
    const DecodeResult expected = run(problem, target.context());
    move_cache(problem, pool.data(), pages, kPageStride);
    EXPECT_EQ(expected, run(problem, target.context())) << target.name;
  }
}

// q, out, lse and page table whose rows lie more than 2^31 elements apart.
TEST(BigIndex, RowStridesBeyondTwoToThe31Elements) {
  DecodeCase c = small_case();
  c.seq_q = 2;
  constexpr int64_t kStride = (int64_t{1} << 31) + 8;
  const SparseMapping q(3 * kStride * 2);
  const SparseMapping out(3 * kStride * 2);
  const SparseMapping lse(3 * kStride * 4);
  const SparseMapping table(3 * kStride * 4);
  REQUIRE_MAPPING(q);
  REQUIRE_MAPPING(out);
  REQUIRE_MAPPING(lse);
  REQUIRE_MAPPING(table);
  for (const Target& target : host_targets()) {
    DecodeProblem problem(c);
    const DecodeResult expected = run(problem, target.context());
    DecodeParams params = problem.params();
    const size_t token_bytes = static_cast<size_t>(params.q.stride[0]) * 2;
    for (int64_t i = 0; i < c.batch(); ++i) {
      std::memcpy(q.data() + i * kStride * 2, problem.query(i, 0, 0), token_bytes);
      std::memcpy(table.data() + i * kStride * 4, problem.table_row(i),
                  static_cast<size_t>(params.page_table.shape[1]) * 4);
    }
    params.q.data = q.data();
    params.out.data = out.data();
    params.lse.data = lse.data();
    params.page_table.data = table.data();
    params.q.stride[0] = params.out.stride[0] = params.lse.stride[0] = params.page_table.stride[0] = kStride;
    const int64_t need = workspace_bytes(decode_shape(params).value(), params.options, target.context()).value();
    const cases::Buffer workspace(need);
    const Status status = decode(params, {workspace.data(), workspace.bytes()}, target.context());
    ASSERT_TRUE(status.ok()) << status.text();
    const size_t out_bytes = static_cast<size_t>(c.seq_q * c.heads_q * c.latent_dim) * 2;
    for (int64_t i = 0; i < c.batch(); ++i) {
      EXPECT_EQ(0, std::memcmp(out.data() + i * kStride * 2, expected.out.data() + static_cast<size_t>(i) * out_bytes,
                               out_bytes))
          << target.name << ", request " << i;
      const auto* sums = reinterpret_cast<const float*>(lse.data() + i * kStride * 4);
      EXPECT_EQ(sums[0], expected.lse_at(i * c.seq_q, 0)) << target.name;
      EXPECT_EQ(sums[1], expected.lse_at(i * c.seq_q + 1, 0)) << target.name;
    }
  }
}

TEST(BigIndex, AppendBeyondTwoToThe31And32Elements) {
  constexpr int64_t kWidth = 576;
  constexpr int64_t kSlots = 8'000'000;
  for (const Target& target : all_backends()) {
    const SparseMapping pool(kSlots * kWidth * 2);
    REQUIRE_MAPPING(pool);
    std::vector<uint16_t> rows(4 * kWidth);
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<uint16_t>(i + 1);
    const std::vector<int64_t> slots = {3'728'271, 4'000'000, 7'456'541, kSlots - 1};  // the first past 2^31, 2^32
    AppendKvParams params;
    params.latent = {rows.data(), DType::kBFloat16, 2, {4, 512}, {kWidth, 1}};
    params.rope = {rows.data() + 512, DType::kBFloat16, 2, {4, 64}, {kWidth, 1}};
    params.slot_mapping = ConstTensorView::contiguous(slots.data(), DType::kInt64, {4});
    params.kv_cache = TensorView::contiguous(pool.data(), DType::kBFloat16, {kSlots / 64, 64, kWidth});
    const Status status = append_kv(params, target.context());
    ASSERT_TRUE(status.ok()) << status.text();
    for (size_t t = 0; t < slots.size(); ++t) {
      const std::byte* row = pool.data() + slots[t] * kWidth * 2;
      EXPECT_EQ(0, std::memcmp(row, &rows[t * kWidth], kWidth * 2)) << target.name << ", slot " << slots[t];
      EXPECT_EQ(row[-1], std::byte{0});
      const int64_t element = slots[t] * kWidth;
      for (int64_t wrapped : {element & 0xffffffff, element & 0x7fffffff, (element * 2 & 0xffffffff) / 2}) {
        if (wrapped != element) {
          EXPECT_EQ(pool.data()[wrapped * 2], std::byte{0}) << "the offset wrapped to " << wrapped;
        }
      }
    }
  }
}

// FlashMLA #173: more than a million keys in one request.
TEST(BigIndex, MoreThanAMillionKeys) {
  DecodeCase c;
  c.requests = requests_of({1'100'000});
  c.heads_q = 2;
  c.latent_dim = 16;
  c.rope_dim = 8;
  for (int64_t page : {1, 64}) {
    c.page_size = page;
    expect_right(c);
  }
}

}  // namespace
}  // namespace flashmla::tests
