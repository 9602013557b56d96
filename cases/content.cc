#include "cases/content.h"

#include <cmath>

#include "cases/random.h"

namespace flashmla::cases {

namespace {

enum Stream : uint64_t { kQuery = 1, kKey = 2, kPeak = 3, kPeakPlace = 4 };

constexpr float kFlatQuery = 0x1p-10f;  // scores of about 1e-3: all weights nearly equal
constexpr float kPeakScore = 24.0f;     // the dominating key's score
constexpr float kLargeValue = 32.0f;    // size of the terms that cancel
constexpr int64_t kPeakPlaces = 16;     // the peak lies at one of the first keys, so that short requests have it too

uint64_t id_of(const Request& request) { return static_cast<uint64_t>(request.id); }

void fill_normal(Random& random, int64_t count, float size, float* values) {
  for (int64_t d = 0; d < count; ++d) values[d] = size * random.normal();
}

}  // namespace

void fill_query(const DecodeCase& c, const Request& request, int64_t token, int64_t head, float* values) {
  const int64_t width = c.latent_dim + c.rope_dim;
  Random random({c.seed, kQuery, id_of(request), static_cast<uint64_t>(token), static_cast<uint64_t>(head)});
  switch (c.inputs) {
    case Inputs::kRandom: return fill_normal(random, width, 1.0f, values);
    case Inputs::kFlat: return fill_normal(random, width, kFlatQuery, values);
    case Inputs::kPeaked: {
      Random peak({c.seed, kPeak, id_of(request)});
      for (int64_t d = 0; d < width; ++d) values[d] = peak.normal() + 0.25f * random.normal();
      return;
    }
    case Inputs::kAdversarial:  // neighbouring columns of opposite sign meet keys whose neighbouring columns are equal
      for (int64_t d = 0; d < c.latent_dim; d += 2) {
        values[d] = random.normal();
        values[d + 1] = -values[d];
      }
      return fill_normal(random, c.rope_dim, 1.0f, values + c.latent_dim);
  }
}

void fill_key(const DecodeCase& c, const Request& request, int64_t position, int64_t head_kv, float* values) {
  const int64_t width = c.latent_dim + c.rope_dim;
  const auto head = static_cast<uint64_t>(head_kv);
  Random random({c.seed, kKey, id_of(request), static_cast<uint64_t>(position), head});
  switch (c.inputs) {
    case Inputs::kRandom:
    case Inputs::kFlat: return fill_normal(random, width, 1.0f, values);
    case Inputs::kPeaked: {
      const int64_t place = Random({c.seed, kPeakPlace, id_of(request)}).below(kPeakPlaces);
      if (position != place) return fill_normal(random, width, 1.0f, values);
      Random peak({c.seed, kPeak, id_of(request)});
      const float size = kPeakScore / std::sqrt(static_cast<float>(width));
      return fill_normal(peak, width, size, values);
    }
    case Inputs::kAdversarial: {  // keys 2j and 2j + 1 have opposite values but for a small rest
      Random pair({c.seed, kKey, id_of(request), static_cast<uint64_t>(position / 2), head});
      const float side = position % 2 == 0 ? 1.0f : -1.0f;
      for (int64_t d = 0; d < c.latent_dim; d += 2) {
        const float large = side * pair.sign() * kLargeValue * (1.0f + 0.25f * pair.normal());
        values[d] = large;
        values[d + 1] = large + 0.5f * random.normal();
      }
      return fill_normal(random, c.rope_dim, 1.0f, values + c.latent_dim);
    }
  }
}

}  // namespace flashmla::cases
