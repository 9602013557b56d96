// Typed look-ups in a JSON object whose first bad value becomes one clear error.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "flashmla/status.h"

namespace flashmla::runner {

// Any JSON text of at most kMostJsonDepth levels (values can then be copied and printed by recursion). `where` begins
// the error's text.
inline constexpr int kMostJsonDepth = 64;
Result<nlohmann::json> parse_json(const std::string& text, const std::string& where);
// The whole file as text; kNotFound with the path when it cannot be read.
Result<std::string> read_file(const std::string& path);

class JsonKeys {
 public:
  struct Range {
    int64_t least;
    int64_t most;
  };

  // `where` is put before key names in errors: "config.json: ". The object must outlive this.
  JsonKeys(const nlohmann::json& object, std::string where) : object_(object), where_(std::move(where)) {}

  // nullptr when the key is absent or null.
  const nlohmann::json* find(const std::string& key) const;
  // Without a fallback the key must be given. After an error the fallback (or the least value) is returned.
  int64_t integer(const std::string& key, Range range, std::optional<int64_t> fallback = {});
  double number(const std::string& key, double above, std::optional<double> fallback = {});
  bool boolean(const std::string& key, bool fallback);
  std::string text(const std::string& key, const std::optional<std::string>& fallback = {});

  // Keeps the first error only. `fail` says what was got and wanted, after the key's name.
  void fail(const std::string& key, const std::string& text, StatusCode code = StatusCode::kInvalidArgument);
  const Status& status() const { return status_; }

 private:
  const nlohmann::json& object_;
  std::string where_;
  Status status_;
};

// A short form of any JSON value for errors.
std::string json_text(const nlohmann::json& value);

}  // namespace flashmla::runner
