// Building error texts: "argument: got X; want Y; supported: Z".
#pragma once

#include <locale>
#include <sstream>
#include <string>
#include <string_view>

#include "flashmla/status.h"
#include "flashmla/tensor.h"

namespace flashmla {

// Numbers come out the same whatever locale the program has set; exhausted memory throws instead of cutting the text.
class TextStream : public std::ostringstream {
 public:
  TextStream() {
    imbue(std::locale::classic());
    exceptions(std::ios_base::badbit);
  }
};

template <class... Parts>
std::string concat(const Parts&... parts) {
  TextStream out;
  (out << ... << parts);
  return out.str();
}

// "[2, 1, 16, 576]"; "of 7 dimensions" where the view cannot hold them.
template <class Void>
std::string shape_text(const BasicTensorView<Void>& view) {
  if (view.ndim < 0 || view.ndim > kMaxDims) return concat("of ", view.ndim, " dimensions");
  TextStream out;
  out << '[';
  for (int d = 0; d < view.ndim; ++d) out << (d == 0 ? "" : ", ") << view.shape[d];
  out << ']';
  return out.str();
}

inline Status invalid(std::string_view argument, std::string_view got, std::string_view want) {
  return {StatusCode::kInvalidArgument, concat(argument, ": got ", got, "; want ", want)};
}

inline Status unsupported(std::string_view argument, std::string_view got, std::string_view supported) {
  return {StatusCode::kUnsupported,
          concat(argument, ": got ", got, ", which is not supported here; supported: ", supported)};
}

inline Status out_of_range(std::string_view element, int64_t got, std::string_view want) {
  return {StatusCode::kOutOfRange, concat(element, ": got ", got, "; want ", want)};
}

}  // namespace flashmla

// Returns the Status of `expression` from the enclosing function unless it is ok.
#define FLASHMLA_RETURN_IF_ERROR(expression)                                      \
  do {                                                                            \
    if (::flashmla::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)
