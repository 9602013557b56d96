#include "cases/pairwise.h"

#include <cstddef>
#include <numeric>

#include "cases/random.h"

namespace flashmla::cases {

namespace {

// Which pairs are still missing, and how many.
class Missing {
 public:
  explicit Missing(const std::vector<int>& levels) : offset_(levels.size() + 1, 0) {
    std::partial_sum(levels.begin(), levels.end(), offset_.begin() + 1);
    const auto total = static_cast<std::size_t>(offset_.back());
    missing_.assign(total, std::vector<bool>(total, true));
    for (std::size_t f = 0; f < levels.size(); ++f) {
      for (std::size_t g = f + 1; g < levels.size(); ++g) count_ += int64_t{levels[f]} * levels[g];
    }
  }

  int64_t count() const { return count_; }
  bool has(std::size_t f, int a, std::size_t g, int b) const { return missing_[offset_[f] + a][offset_[g] + b]; }
  void remove(std::size_t f, int a, std::size_t g, int b) {
    count_ -= has(f, a, g, b) ? 1 : 0;
    missing_[offset_[f] + a][offset_[g] + b] = missing_[offset_[g] + b][offset_[f] + a] = false;
  }

 private:
  std::vector<int> offset_;
  std::vector<std::vector<bool>> missing_;
  int64_t count_ = 0;
};

// Fills the unset (-1) factors of `row` in order, each with the level that completes most missing pairs.
void fill_greedily(const std::vector<int>& levels, const Missing& missing, Random& random, std::vector<int>& row) {
  const std::size_t start = static_cast<std::size_t>(random.below(static_cast<int64_t>(levels.size())));
  for (std::size_t i = 0; i < levels.size(); ++i) {
    const std::size_t f = (start + i) % levels.size();
    if (row[f] >= 0) continue;
    const int first = static_cast<int>(random.below(levels[f]));
    int best_gain = -1;
    for (int k = 0; k < levels[f]; ++k) {
      const int level = (first + k) % levels[f];
      int gain = 0;
      for (std::size_t g = 0; g < levels.size(); ++g)
        gain += row[g] >= 0 && g != f && missing.has(f, level, g, row[g]) ? 1 : 0;
      if (gain > best_gain) {
        best_gain = gain;
        row[f] = level;
      }
    }
  }
}

// Sets one missing pair in an otherwise unset row, so that every row makes progress.
void seed_pair(const std::vector<int>& levels, const Missing& missing, std::vector<int>& row) {
  for (std::size_t f = 0; f < levels.size(); ++f) {
    for (std::size_t g = f + 1; g < levels.size(); ++g) {
      for (int a = 0; a < levels[f]; ++a) {
        for (int b = 0; b < levels[g]; ++b) {
          if (!missing.has(f, a, g, b)) continue;
          row[f] = a;
          row[g] = b;
          return;
        }
      }
    }
  }
}

}  // namespace

std::vector<std::vector<int>> pairwise(const std::vector<int>& levels, uint64_t seed) {
  Missing missing(levels);
  Random random({seed});
  std::vector<std::vector<int>> rows;
  while (missing.count() > 0) {
    std::vector<int> row(levels.size(), -1);
    seed_pair(levels, missing, row);
    fill_greedily(levels, missing, random, row);
    for (std::size_t f = 0; f < levels.size(); ++f) {
      for (std::size_t g = f + 1; g < levels.size(); ++g) missing.remove(f, row[f], g, row[g]);
    }
    rows.push_back(row);
  }
  return rows;
}

}  // namespace flashmla::cases
