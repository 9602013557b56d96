// Covering arrays: few combinations of levels in which every pair of levels of two factors still occurs.
#pragma once

#include <cstdint>
#include <vector>

namespace flashmla::cases {

// `levels[f]` is the number of levels of factor f. Each row of the result holds one level of every factor.
std::vector<std::vector<int>> pairwise(const std::vector<int>& levels, uint64_t seed);

}  // namespace flashmla::cases
