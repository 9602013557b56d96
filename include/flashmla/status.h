// Errors are values: nothing in this library throws, prints or aborts across its public interface.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "flashmla/export.h"

namespace flashmla {

enum class StatusCode : int32_t {
  kOk = 0,
  kInvalidArgument = 1,    // a shape, stride, dtype, alignment or option is wrong
  kUnsupported = 2,        // a legal combination that the chosen back end does not compute
  kOutOfRange = 3,         // a value inside a tensor is wrong: a length, a page id, a slot
  kWorkspaceTooSmall = 4,  // the caller's workspace is absent, misaligned or too small
  kNotFound = 5,           // no back end of that name, or none for that device
  kOutOfMemory = 6,
  kInternal = 7,
};

// What the optional `status` of DecodeParams and AppendKvParams receives. A call on a GPU cannot return an error for a
// value that only the device sees. Of several faults the highest code is written: a wrong length makes the garbage past
// the right one look like page ids.
enum class BadValue : int32_t {
  kNone = 0,
  kPageId = 1,      // a page-table entry that a length uses lies outside the cache: its keys are masked
  kTokenStart = 2,  // cu_seqlens_q does not begin with 0, falls, or rises above total_q: clamped
  kSeqLen = 3,      // a length below 0 or above width * page: clamped
  kSlot = 4,        // a slot at or past pages * page_size: the token is skipped (a negative slot is no fault)
};

FLASHMLA_API const char* status_code_name(StatusCode code) noexcept;

// A code and, unless ok, a text that names the argument, what was got, what is wanted and what is supported.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string text) : code_(code), text_(std::move(text)) {}

  bool ok() const noexcept { return code_ == StatusCode::kOk; }
  StatusCode code() const noexcept { return code_; }
  const std::string& text() const noexcept { return text_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string text_;
};

// A value or the Status that says why there is none. `value()` may be called only when `ok()`.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor): `return value;` is the point
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const noexcept { return value_.has_value(); }
  const Status& status() const noexcept { return status_; }
  const T& value() const& { return *value_; }
  T& value() & { return *value_; }
  T&& value() && { return *std::move(value_); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace flashmla
