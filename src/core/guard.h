// The catch at the library's border: what a public function throws inside becomes a Status.
#pragma once

#include <exception>
#include <new>
#include <utility>

#include "core/text.h"
#include "flashmla/status.h"

namespace flashmla {

// Runs `body`, which returns a Status or a Result. Only memory exhaustion and back ends of the caller's own can throw.
template <class Body>
auto guarded(Body&& body) noexcept -> decltype(body()) {
  // Texts short enough for std::string's own buffer: they are built without memory.
  try {
    try {
      return std::forward<Body>(body)();
    } catch (const std::bad_alloc&) {
      return Status{StatusCode::kOutOfMemory, "out of memory"};
    } catch (const std::exception& error) {
      return Status{StatusCode::kInternal, concat("internal error: ", error.what())};
    }
  } catch (...) {
    return Status{StatusCode::kInternal, "internal error"};
  }
}

}  // namespace flashmla
