// The choice of a tile against times that an H200 took with each (us; bench/results/choices-h200.json, and
// "forced_kernels" of bench/results/decode-h200-history.json).
#include "cuda/decode/tile_cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace flashmla::cuda {
namespace {

struct Measured {
  const char* name;
  int64_t rows, requests, keys;      // keys: of the longest request, all that the host may know
  double us[std::size(kTileCosts)];  // 0: not measured
};
constexpr Measured kMeasured[] = {
    {"b3 h4 s1 924", 4, 3, 924, {9.1, 11.2, 14.6, 20.2}},
    {"b32 h40 s1 71", 40, 32, 71, {15.0, 14.3, 17.8, 13.1}},
    {"b2 h4 s1 218", 4, 2, 218, {8.2, 10.0, 13.4, 12.4}},
    {"b100 h16 s1 3814", 16, 100, 3814, {122.0, 116.1, 132.8, 135.9}},
    {"b24 h4 s1 up to 43690", 4, 24, 43632, {160.2, 162.3, 174.5, 191.1}},
    {"b200 h64 s1 299", 64, 200, 299, {110.9, 67.6, 62.2, 40.8}},
    {"b128 h128 s2 up to 8192", 256, 128, 8034, {2099.6, 1188.8, 735.6, 443.2}},
    {"b7 h16 s4 36253", 64, 7, 36253, {267.8, 153.9, 103.1, 102.9}},
    {"b1 h20 s1 up to 429", 20, 1, 66, {7.7, 9.9, 14.2, 10.4}},
    {"b8 h128 s1 up to 3224", 128, 8, 2732, {48.4, 37.1, 38.1, 37.5}},
    {"b128 h32 s1 up to 6879", 32, 128, 6803, {223.2, 140.1, 141.5, 142.8}},
    {"b7 h32 s1 up to 379", 32, 7, 302, {9.8, 11.9, 17.1, 19.2}},
    {"b1 h32 s2 up to 292", 64, 1, 289, {7.1, 9.2, 12.7, 11.0}},
    {"b1 h40 s1 up to 14496", 40, 1, 4355, {10.3, 11.6, 13.6, 16.1}},
    {"b100 h12 s2 1479", 24, 100, 1479, {76.6, 63.2, 68.4, 56.5}},
    {"b128 h96 s2 3927", 192, 128, 3927, {3231.6, 879.8, 548.7, 338.7}},
    {"b32 h32 s4 29892", 128, 32, 29892, {1918.3, 1091.0, 645.6, 428.0}},
    {"b2 h8 s1 11376", 8, 2, 11376, {17.7, 19.6, 25.3, 34.3}},
    {"b4 h20 s1 up to 72", 20, 4, 69, {9.5, 11.7, 15.8, 12.3}},
    {"b200 h40 s1 up to 3401", 40, 200, 3387, {267.9, 191.1, 171.6, 140.5}},
    {"b128 h32 4096", 32, 128, 4096, {278.4, 166.8, 147.8, 148.7}},
    {"b128 h64 1024", 64, 128, 1024, {152.2, 88.9, 60.4, 46.7}},
    {"b4 h128 8192", 128, 4, 8192, {73.9, 45.9, 34.7, 29.7}},
    {"b1 h128 32768", 128, 1, 32768, {72.4, 44.9, 33.4, 28.6}},
    {"b32 h8 4096", 8, 32, 4096, {42.3, 45.1, 49.4, 59.6}},
    {"b1 h128 512", 128, 1, 512, {0, 7.8, 10.4, 12.0}},
    {"b1 h128 4096", 128, 1, 4096, {0, 12.6, 14.4, 14.4}},
    {"b1 h128 131072", 128, 1, 131072, {0, 161.2, 97.1, 70.2}},
};
constexpr int kH200 = 132;

double time_of(const Measured& shape, int64_t rows) {
  for (size_t i = 0; i < std::size(kTileCosts); ++i) {
    if (kTileCosts[i].rows >= rows) return shape.us[i];
  }
  return shape.us[std::size(kTileCosts) - 1];
}

TEST(CudaTileCost, ChoosesWhatWasFastest) {
  int behind = 0;
  for (const Measured& shape : kMeasured) {
    const int64_t tile = cheapest_tile({shape.rows, shape.requests, shape.keys, kH200});
    const double chosen = time_of(shape, tile);
    ASSERT_GT(chosen, 0) << shape.name << ": tiles of " << tile << " were not measured";
    double best = chosen;
    for (double us : shape.us) {
      if (us > 0) best = std::min(best, us);
    }
    if (chosen <= 1.05 * best + 0.2) continue;
    ++behind;
    EXPECT_LE(chosen, 1.2 * best) << shape.name << ", tiles of " << tile;
  }
  EXPECT_LE(behind, 1);  // 32 requests of one block of keys and 40 heads: 15.0 us instead of 13.1
}

TEST(CudaTileCost, SmallestTileWhereProductsAreDear) {
  EXPECT_EQ(cheapest_tile({32, 1, 4096, 78}), 32);
  EXPECT_EQ(cheapest_tile({128, 1, 4096, 78}), 128);
  EXPECT_EQ(cheapest_tile({16, 1, 4096, kH200}), 16);
  EXPECT_EQ(cheapest_tile({5, 64, 4096, kH200}), 5);
}

// Any call has a tile, and costs something.
TEST(CudaTileCost, TakesAnyCall) {
  for (int64_t rows : {1, 17, 33, 129, 4096, 1 << 24}) {
    for (int64_t requests : {0, 1, 133, 70000}) {
      for (int64_t keys : {0, 1, 65, 1 << 20, 2147483647}) {  // up to 2^40 rows in all and 2^31 keys
        for (int blocks : {1, 78, 100, 132, 192}) {
          const TileCall call{rows, requests, keys, blocks};
          EXPECT_GE(cheapest_tile(call), std::min<int64_t>(rows, 8));
          for (const TileCost& tile : kTileCosts) EXPECT_GT(tile_cost_us(tile, call), 0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace flashmla::cuda
