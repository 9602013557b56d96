// Nothing outside [0, seq_len) reaches any result: hostile memory against the same call with zeros in its place.
#include "support.h"

namespace flashmla::tests {
namespace {

using cases::DecodeCase;

void expect_poison_has_no_effect(DecodeCase c) {
  for (const Target& target : targets_of(c)) {
    c.hostile = true;
    const cases::DecodeResult hostile = run(c, target.context());
    c.hostile = false;
    EXPECT_EQ(hostile, run(c, target.context())) << target.name << ", " << describe(c);
  }
}

// FlashInfer #941: page 4, length 13, NaN in the last 3 slots of the last page.
TEST(Hostile, PageTails) {
  for (int32_t length = 1; length <= 130; length += full_tests() ? 1 : 3) {
    DecodeCase c;
    c.requests = requests_of({length});
    c.heads_q = 3;
    c.latent_dim = 64;
    c.rope_dim = 16;
    c.page_size = length % 2 == 0 ? 4 : 64;
    c.dtype = length % 3 == 0 ? DType::kFloat16 : length % 3 == 1 ? DType::kBFloat16 : DType::kFloat32;
    expect_poison_has_no_effect(c);
  }
}

// FlashInfer #942: NaN in pages of nobody and in table entries past the length, lengths around 65.
TEST(Hostile, UnusedPagesAndTableTails) {
  for (int32_t length : {63, 64, 65, 66}) {
    DecodeCase c = small_case();
    c.requests = requests_of({length, 0, length + 1});
    c.page_size = 64;
    c.spare_pages = 20;
    c.spare_width = 9;
    expect_poison_has_no_effect(c);
  }
}

// flash-attention #1745, flash-attention #2374: whole tiles are read past the length, on every split boundary.
TEST(Hostile, TilesAtSplitBoundaries) {
  for (int32_t splits : {1, 2, 3, 8}) {
    DecodeCase c;
    c.requests = requests_of({31, 32, 33, 64, 96, 48, 95, 97, 127, 128, 129});
    c.heads_q = 16;
    c.page_size = 128;
    c.options.splits = splits;
    expect_poison_has_no_effect(c);
  }
}

TEST(Hostile, GapsBetweenStrides) {
  DecodeCase c = small_case();
  c.strided = true;
  for (bool split_q : {false, true}) {
    c.split_q = split_q;
    expect_poison_has_no_effect(c);
  }
  make_ragged(c, 3, 2);
  expect_poison_has_no_effect(c);
}

// SGLang #9675, FlashInfer #2883: the table's width and other bounds taken from the longest possible request.
TEST(Hostile, TableWidthAndSparePagesHaveNoEffect) {
  DecodeCase c = small_case();
  for (int32_t splits : {0, 5}) {
    c.options.splits = splits;
    for (const Target& target : all_targets()) {
      c.spare_width = 0;
      c.spare_pages = 0;
      const cases::DecodeResult narrow = run(c, target.context());
      for (int64_t width : {1, 50, 20000}) {
        c.spare_width = width;
        c.spare_pages = width / 10;
        // Another number of pages shuffles them in another order, which must not matter either.
        EXPECT_EQ(narrow, run(c, target.context())) << target.name << ", " << width << " entries more";
      }
    }
  }
}

}  // namespace
}  // namespace flashmla::tests
