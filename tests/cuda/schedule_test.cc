// Index math of the CUDA back end that needs no GPU: the line of work and its slices, division, swizzles, fragments.
#include "cuda/decode/schedule.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <vector>

#include "cases/random.h"
#include "cuda/decode/config.h"
#include "cuda/tile/fast_divisor.h"

namespace flashmla::cuda {
namespace {

TEST(CudaSchedule, UnitsCoverTheKeys) {
  for (const UnitRule& rule : {UnitRule{}, UnitRule{1, 5}, UnitRule{7, 5}, UnitRule{64, 5}, UnitRule{32, 10},
                               UnitRule{0, 6, 6}, UnitRule{7, 6, 6}}) {
    for (uint32_t keys : {0u, 1u, 31u, 32u, 33u, 63u, 64u, 65u, 1000u, 4097u, 131072u, 2147483647u}) {
      const Splits units = rule.cut(keys);
      ASSERT_GE(units.count, 1u);
      ASSERT_EQ(units.keys % (1u << rule.log2_grain), 0u);
      EXPECT_GE(static_cast<uint64_t>(units.count) * units.keys, keys);
      if (keys > 0) {
        EXPECT_LT(static_cast<uint64_t>(units.count - 1) * units.keys, keys) << "the last unit has no keys";
      }
      if (rule.max_splits != 0) {
        EXPECT_LE(units.count, rule.max_splits) << keys;
      }
    }
  }
}

// Whatever the lengths: slices are consecutive, none is empty, they end with the line, and owner() is begin()'s
// inverse.
TEST(CudaSchedule, SlicesPartitionTheLine) {
  cases::Random random({1});
  for (uint32_t multiprocessors : {78u, 108u, 114u, 132u, 142u, 148u}) {  // H20, A100, H100 PCIe, H200, L40S, B200
    for (int round = 0; round < 400; ++round) {
      LineTotals line;
      line.tiles = static_cast<uint32_t>(1 + random.below(round % 2 == 0 ? 8 : 600));
      for (uint32_t tile = 0; tile < line.tiles; ++tile) {
        const auto units = static_cast<uint32_t>(1 + random.below(round % 3 == 0 ? 1 : 300));
        line.units += units;
        line.longest = std::max(line.longest, units);
      }
      const uint32_t slices = slice_count(line, multiprocessors, 8, 2);
      ASSERT_GE(slices, 1u);
      ASSERT_LE(slices, std::min(multiprocessors, line.units));
      const Slices cut(line.units, slices);
      EXPECT_EQ(cut.begin(0), 0u);
      EXPECT_EQ(cut.begin(slices), line.units);
      for (uint32_t slice = 0; slice < slices; ++slice) {
        const uint32_t begin = cut.begin(slice);
        const uint32_t end = cut.begin(slice + 1);
        ASSERT_LT(begin, end);
        ASSERT_EQ(cut.owner(begin), slice);
        ASSERT_EQ(cut.owner(end - 1), slice);
      }
    }
  }
}

TEST(CudaSchedule, NoWorkNoSlices) { EXPECT_EQ(slice_count({}, 132, 8, 2), 0u); }

TEST(CudaSchedule, FewKeysMakeFewSlices) {
  EXPECT_EQ(slice_count({1, 1, 1}, 132, 8, 2), 1u);
  EXPECT_EQ(slice_count({16, 1, 16}, 132, 8, 2), 8u);     // one request of 512 keys
  EXPECT_EQ(slice_count({128, 1, 128}, 132, 8, 2), 64u);  // of 4,096
  EXPECT_EQ(slice_count({1024, 1, 1024}, 132, 8, 2), 132u);
}

// Tiles of equal length are not cut where that keeps nearly all multiprocessors busy.
TEST(CudaSchedule, EqualTilesStayWhole) {
  EXPECT_EQ(slice_count({128 * 128, 128, 128}, 132, 8, 2), 128u);
  EXPECT_EQ(slice_count({256 * 32, 256, 32}, 132, 8, 2), 128u);
  EXPECT_EQ(slice_count({32 * 128, 32, 128}, 132, 8, 2), 128u);
  EXPECT_EQ(slice_count({4 * 256, 4, 256}, 132, 8, 2), 132u);
  EXPECT_EQ(slice_count({100 * 64, 100, 64}, 132, 8, 2), 132u);  // 100 whole ones would leave a quarter idle
  EXPECT_EQ(slice_count({128 * 128 - 1, 128, 128}, 132, 8, 2), 132u);
}

TEST(CudaSchedule, FastDivisorDivides) {
  cases::Random random({2});
  std::vector<uint32_t> divisors = {1, 2, 3, 5, 7, 61, 64, 127, 128, 1000, 65535, 65536, 0x7fffffff};
  for (int i = 0; i < 200; ++i) divisors.push_back(static_cast<uint32_t>(1 + random.below(0x7fffffff)));
  for (uint32_t divisor : divisors) {
    const FastDivisor fast(divisor);
    std::vector<uint32_t> numbers = {0, 1, divisor - 1, divisor, 0x7fffffff, 0x7ffffffe};
    for (uint32_t multiple = divisor; multiple < 0x40000000 && multiple > 0; multiple *= 2) {
      numbers.push_back(multiple - 1);
      numbers.push_back(multiple);
    }
    for (int i = 0; i < 100; ++i) numbers.push_back(static_cast<uint32_t>(random.below(0x80000000)));
    for (uint32_t number : numbers) ASSERT_EQ(fast.quotient(number), number / divisor) << number << " / " << divisor;
  }
}

// ldmatrix reads one chunk column of eight neighbouring rows at once: eight different 16-byte bank groups.
TEST(CudaTile, SwizzleSpreadsColumnsOverTheBanks) {
  for (int pitch : {128, kTilePitch}) {
    for (int first = 0; first < 32; first += 8) {
      for (int chunk = 0; chunk < pitch / 16; ++chunk) {
        std::set<int> groups;
        for (int row = first; row < first + 8; ++row) groups.insert(tile::swizzled(row, chunk, pitch) / 16 % 8);
        ASSERT_EQ(groups.size(), 8u) << "pitch " << pitch << ", chunk " << chunk;
      }
    }
    std::set<int> places;  // no two chunks share a place, and none leaves the tile
    for (int row = 0; row < 32; ++row) {
      for (int chunk = 0; chunk < pitch / 16; ++chunk) {
        const int place = tile::swizzled(row, chunk, pitch);
        ASSERT_TRUE(places.insert(place).second);
        ASSERT_LT(place, 32 * pitch);
        ASSERT_EQ(place / pitch, row);
      }
    }
  }
}

// The four 8 x 8 matrices of ldmatrix.x4 in the order of mma.m16n8k16's registers (PTX ISA, "Matrix Fragments").
TEST(CudaTile, FragmentLanes) {
  for (int lane = 0; lane < 32; ++lane) {
    const int matrix = lane / 8;
    const int line = lane % 8;
    EXPECT_EQ(tile::a_fragment_lane(lane).row, matrix % 2 * 8 + line);
    EXPECT_EQ(tile::a_fragment_lane(lane).chunk, matrix / 2);
    EXPECT_EQ(tile::b_fragment_lane(lane).row, matrix / 2 * 8 + line);
    EXPECT_EQ(tile::b_fragment_lane(lane).chunk, matrix % 2);
    EXPECT_EQ(tile::b_trans_fragment_lane(lane).row, matrix % 2 * 8 + line);
    EXPECT_EQ(tile::b_trans_fragment_lane(lane).chunk, matrix / 2);
    EXPECT_EQ(tile::c_fragment_row(lane), lane / 4);
    EXPECT_EQ(tile::c_fragment_column(lane), 2 * (lane % 4));
  }
}

TEST(CudaConfig, FitsTheSharedMemoryOfEveryGpu) {
  EXPECT_TRUE(k16Rows.fits(5, kSmem227K));
  EXPECT_FALSE(k16Rows.fits(6, kSmem227K));
  EXPECT_TRUE(k16Rows.fits(2, kSmem99K));
  EXPECT_FALSE(k16Rows.fits(3, kSmem99K));
  EXPECT_FALSE(k32Rows.fits(2, kSmem99K));
  EXPECT_TRUE(k32Rows.fits(3, kSmem163K));
}

}  // namespace
}  // namespace flashmla::cuda
