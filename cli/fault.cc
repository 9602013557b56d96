#include "fault.h"

#include <cmath>

#include "cases/memory.h"

namespace flashmla::cli {

void inject_fault(cases::DecodeResult& result, double error) {
  if (error == 0) return;
  const int64_t elements = static_cast<int64_t>(result.out.size()) / dtype_bytes(result.dtype);
  int64_t largest = -1;
  float most = 0;
  for (int64_t i = 0; i < elements; ++i) {
    const float magnitude = std::fabs(cases::load_element(result.out.data(), result.dtype, i));
    if (!std::isfinite(magnitude) || magnitude <= most) continue;
    most = magnitude;
    largest = i;
  }
  if (largest < 0) return;
  const auto wrong = static_cast<float>(cases::load_element(result.out.data(), result.dtype, largest) * (1 + error));
  cases::store_elements(result.out.data() + largest * dtype_bytes(result.dtype), result.dtype, &wrong, 1);
}

}  // namespace flashmla::cli
