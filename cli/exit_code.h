// What the program's exit codes mean, and the error that carries a bad-usage text out of a subcommand.
#pragma once

#include <stdexcept>
#include <string>

#include "flashmla/status.h"

namespace flashmla::cli {

enum ExitCode : int {
  kExitRight = 0,
  kExitWrongResult = 1,
  kExitBadUsage = 2,
};

// Thrown by subcommands, caught in main: prints the text and exits with kExitBadUsage.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The value of `result`; its Status text, verbatim, as a UsageError otherwise.
template <class T>
T value_or_usage_error(Result<T> result) {
  if (!result.ok()) throw UsageError(result.status().text());
  return std::move(result).value();
}

}  // namespace flashmla::cli
