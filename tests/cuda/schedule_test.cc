// Index math of the CUDA back end that needs no GPU: the line of work and its slices, division, swizzles, fragments.
#include "cuda/decode/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
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

// Batch-invariant mode (decode.cc): fewer splits than 32 do where the page table has room for fewer than 32 of 1,024
// keys; how wide it is must not show in the cuts.
TEST(CudaSchedule, FewerInvariantSplitsCutAlike) {
  for (uint32_t most = 1; most <= 32; ++most) {
    for (uint32_t length = 0; length <= most * 1024; length += length % 7 == 0 ? 1 : 61) {
      const Splits few = UnitRule{most, 10, 6}.cut(length);
      const Splits many = UnitRule{32, 10, 6}.cut(length);
      ASSERT_EQ(few.keys, many.keys) << length;
      ASSERT_EQ(few.count, many.count) << length;
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

// What Cursor (line.cuh) makes of a cut: slice by slice, the units of each tile that are the slice's.
struct Visit {
  uint32_t slice, begin, end;
};
std::vector<std::vector<Visit>> visits_of(const std::vector<uint32_t>& tiles, const LineCut& cut) {
  std::vector<std::vector<Visit>> visits(tiles.size());
  const Slices slices(cut);
  for (uint32_t slice = 0; slice < cut.slices; ++slice) {
    const uint32_t begin = slices.begin(slice);
    const uint32_t end = std::min(slices.begin(slice + 1), cut.places);
    uint32_t place = 0;  // of the tile's first unit
    for (size_t tile = 0; tile < tiles.size(); ++tile) {
      place += cut.price;
      const uint32_t first = begin > place ? begin - place : 0;
      const uint32_t last = end > place ? std::min(end - place, tiles[tile]) : 0;
      if (first < last) visits[tile].push_back({slice, first, last});
      place += cut.width != 0 ? cut.width : tiles[tile];
    }
  }
  return visits;
}

// Every unit of every tile is one slice's, in order, no slice is without work, and the combine kernel finds the same
// slices by owner().
TEST(CudaSchedule, CutsGiveEachUnitToOneSlice) {
  cases::Random random({3});
  const SliceCosts all_costs[] = {{8, 2, 0, 0},     {192, 1, 1, 0}, {16, 2, 3, 10},
                                  {16, 2, 3, 1000}, {16, 2, 40, 0}, {1, 1, 7, 0}};
  int split = 0;
  int priced = 0;
  int whole = 0;
  for (uint32_t blocks : {1u, 39u, 66u, 78u, 132u}) {
    for (int round = 0; round < 300; ++round) {
      const auto longest = static_cast<int64_t>(1 + random.below(round % 3 == 0 ? 4 : 300));
      std::vector<uint32_t> tiles(static_cast<size_t>(1 + random.below(round % 2 == 0 ? 9 : 300)));
      LineTotals line;
      for (uint32_t& units : tiles) {
        units = static_cast<uint32_t>(round % 5 == 0 ? longest : longest - random.below(std::min<int64_t>(longest, 9)));
        if (round % 7 == 0) units = static_cast<uint32_t>(1 + random.below(300));
        line.units += units;
        line.longest = std::max(line.longest, units);
        ++line.tiles;
      }
      for (const SliceCosts& costs : all_costs) {
        const LineCut cut = cut_line(line, blocks, costs);
        ASSERT_GE(cut.slices, 1u);
        ASSERT_LE(cut.slices, blocks);
        const Slices slices(cut);
        std::set<uint32_t> working;
        uint32_t place = 0;
        const std::vector<std::vector<Visit>> visits = visits_of(tiles, cut);
        for (size_t tile = 0; tile < tiles.size(); ++tile) {
          uint32_t next = 0;
          for (const Visit& visit : visits[tile]) {
            ASSERT_EQ(visit.begin, next);
            next = visit.end;
            working.insert(visit.slice);
          }
          ASSERT_EQ(next, tiles[tile]);
          place += cut.price;
          if (cut.width == 0) {
            ASSERT_EQ(slices.owner(place), visits[tile].front().slice);
            ASSERT_EQ(slices.owner(place + tiles[tile] - 1), visits[tile].back().slice);
            ASSERT_EQ(visits[tile].size(), visits[tile].back().slice - visits[tile].front().slice + 1);
          } else {
            ASSERT_EQ(visits[tile].size(), 1u) << "a tile that should be whole";
          }
          place += cut.width != 0 ? cut.width : tiles[tile];
        }
        ASSERT_EQ(place, cut.places);
        ASSERT_EQ(working.size(), cut.slices) << "a slice without work";
        split += cut.width == 0 && cut.price == 0 ? 1 : 0;
        priced += cut.price != 0 ? 1 : 0;
        whole += cut.width != 0 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(split, 100);
  EXPECT_GT(priced, 100);
  EXPECT_GT(whole, 100);
}

// The work of the slice that has most, tiles counted at their price, with and without it.
TEST(CudaSchedule, PriceOfTilesEvensSlices) {
  constexpr uint32_t kPrice = 3;
  std::vector<uint32_t> tiles(32, 16);  // one request of 131,072 keys and 31 of 1,024
  tiles[0] = 2048;
  const LineTotals line{2048 + 31 * 16, 32, 2048};
  const auto most = [&](const SliceCosts& costs) {
    const LineCut cut = cut_line(line, 66, costs);
    std::vector<uint32_t> work(cut.slices, 0);
    for (const std::vector<Visit>& visits : visits_of(tiles, cut)) {
      for (const Visit& visit : visits) work[visit.slice] += visit.end - visit.begin + kPrice;
    }
    return *std::max_element(work.begin(), work.end());
  };
  EXPECT_GT(most({16, 2, 0, 0}), 48u);
  EXPECT_LE(most({16, 2, kPrice, 0}), 45u);
}

// Requests of nearly equal lengths stay whole where the longest costs less than to split and to sum up.
TEST(CudaSchedule, NearlyEqualTilesStayWhole) {
  const SliceCosts costs{16, 2, 3, 10};
  const auto climbing = [&](uint32_t keys) {
    LineTotals line;
    for (uint32_t i = 0; i < 128; ++i) {
      const uint32_t units = (keys + 2 * i + 63) / 64;
      line.units += units;
      line.longest = std::max(line.longest, units);
      ++line.tiles;
    }
    return cut_line(line, 66, costs);
  };
  EXPECT_EQ(climbing(1024).slices, 64u);
  EXPECT_EQ(climbing(1024).width, 20u);
  EXPECT_EQ(climbing(4096).width, 68u);
  EXPECT_EQ(climbing(16384).width, 0u);                           // a thirty-third of the blocks idle would cost more
  EXPECT_EQ(cut_line({32, 1, 32}, 66, costs).width, 0u);          // one tile
  EXPECT_EQ(cut_line({16 * 64, 16, 64}, 66, costs).slices, 64u);  // four slices each
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
