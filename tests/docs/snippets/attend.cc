// Runs a README snippet's `attend` on a small paged cache and compares it with the formula, in double precision. Built
// twice: with the C++ snippet, and with the C snippet compiled as C beside it.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#ifdef SNIPPET_IS_C
#include <flashmla/c.h>
extern "C" flashmla_status attend(int64_t b, int64_t pages, int64_t width, const void* q, const void* kv_cache,
                                  const int32_t* page_table, const int32_t* seq_lens, void* out, void* workspace,
                                  int64_t bytes);
#else
#include SNIPPET
#endif

namespace {

constexpr int64_t kBatch = 2;
constexpr int64_t kPages = 4;
constexpr int64_t kWidth = 2;
constexpr int64_t kHeads = 16;
constexpr int64_t kPage = 64;
constexpr int64_t kRow = 576;
constexpr int64_t kLatent = 512;
constexpr int32_t kTable[kBatch * kWidth] = {3, 1, 2, 0};
constexpr int32_t kLens[kBatch] = {100, 7};
constexpr double kScale = 0.1147213868;
constexpr uint16_t kNan = 0x7fff;
constexpr int64_t kWorkspaceBytes = int64_t{1} << 26;

// Small integers over 8 are exact in bf16: the upper half of the float.
uint16_t bf16(int64_t eighths) {
  const float value = static_cast<float>(eighths) / 8;
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>(bits >> 16);
}

double from_bf16(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

template <class T>
T* aligned(size_t count) {
  return static_cast<T*>(std::aligned_alloc(256, (count * sizeof(T) + 255) / 256 * 256));
}

const uint16_t* key(const uint16_t* cache, int64_t request, int64_t position) {
  return cache + (kTable[request * kWidth + position / kPage] * kPage + position % kPage) * kRow;
}

// Largest difference between `out` and the formula for one (request, head).
double row_error(const uint16_t* q, const uint16_t* cache, const uint16_t* out, int64_t request, int64_t head) {
  const int64_t row = request * kHeads + head;
  std::vector<double> sum(kLatent, 0.0);
  double total = 0;
  for (int64_t k = 0; k < kLens[request]; ++k) {
    double score = 0;
    for (int64_t d = 0; d < kRow; ++d) score += from_bf16(q[row * kRow + d]) * from_bf16(key(cache, request, k)[d]);
    const double weight = std::exp(score * kScale);
    total += weight;
    for (int64_t d = 0; d < kLatent; ++d) sum[d] += weight * from_bf16(key(cache, request, k)[d]);
  }
  double error = 0;
  for (int64_t d = 0; d < kLatent; ++d)
    error = std::fmax(error, std::abs(from_bf16(out[row * kLatent + d]) - sum[d] / total));
  return error;
}

bool call_attend(const uint16_t* q, const uint16_t* cache, uint16_t* out) {
  auto* workspace = aligned<std::byte>(kWorkspaceBytes);
#ifdef SNIPPET_IS_C
  const bool ok =
      attend(kBatch, kPages, kWidth, q, cache, kTable, kLens, out, workspace, kWorkspaceBytes) == FLASHMLA_OK;
  if (!ok) std::fprintf(stderr, "%s\n", flashmla_last_error());
#else
  const Status status = attend(kBatch, kPages, kWidth, q, cache, kTable, kLens, out, {workspace, kWorkspaceBytes});
  const bool ok = status.ok();
  if (!ok) std::fprintf(stderr, "%s\n", status.text().c_str());
#endif
  std::free(workspace);
  return ok;
}

}  // namespace

int main() {
  auto* q = aligned<uint16_t>(kBatch * kHeads * kRow);
  auto* cache = aligned<uint16_t>(kPages * kPage * kRow);
  auto* out = aligned<uint16_t>(kBatch * kHeads * kLatent);
  for (int64_t i = 0; i < kBatch * kHeads * kRow; ++i) q[i] = bf16(i * 7 % 11 - 5);
  for (int64_t i = 0; i < kPages * kPage * kRow; ++i) cache[i] = kNan;  // what no token owns must not be read
  for (int64_t r = 0; r < kBatch; ++r) {
    for (int64_t k = 0; k < kLens[r]; ++k) {
      for (int64_t d = 0; d < kRow; ++d)
        const_cast<uint16_t*>(key(cache, r, k))[d] = bf16((r + 3 * k + 5 * d) % 13 - 6);
    }
  }
  for (int64_t i = 0; i < kBatch * kHeads * kLatent; ++i) out[i] = kNan;
  if (!call_attend(q, cache, out)) return 1;
  double error = 0;
  for (int64_t r = 0; r < kBatch; ++r) {
    for (int64_t h = 0; h < kHeads; ++h) {
      const double row = row_error(q, cache, out, r, h);
      if (!(row <= 0.01)) {  // values are at most 0.75: a bf16 rounding is 0.002
        std::fprintf(stderr, "request %d head %d: error %g\n", static_cast<int>(r), static_cast<int>(h), row);
        return 1;
      }
      error = std::fmax(error, row);
    }
  }
  std::printf("right, largest error %g\n", error);
  return 0;
}
