#include "runner/checkpoint/json_keys.h"

#include <cmath>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "runner/error_text.h"

namespace flashmla::runner {

using nlohmann::json;

Result<json> parse_json(const std::string& text, const std::string& where) {
  bool deep = false;
  const auto watch = [&deep](int depth, json::parse_event_t, json&) {
    deep = deep || depth > kMostJsonDepth;
    return depth <= kMostJsonDepth;  // what lies deeper is never built
  };
  try {
    json value = json::parse(text, watch);
    if (!deep) return value;
    return invalid(where + "nested more than " + std::to_string(kMostJsonDepth) + " levels deep");
  } catch (const json::exception& error) {
    return invalid(where + "not JSON: " + error.what());
  }
}

Result<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (file && !text.bad()) return text.str();
  return Status(StatusCode::kNotFound, path + ": cannot be read");
}

std::string json_text(const json& value) {
  if (value.is_array() && value.size() > 16) return "an array of " + std::to_string(value.size());
  return in_quotes(value.dump(-1, ' ', false, json::error_handler_t::replace));
}

const json* JsonKeys::find(const std::string& key) const {
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void JsonKeys::fail(const std::string& key, const std::string& text, StatusCode code) {
  if (status_.ok()) status_ = {code, where_ + key + ": " + text};
}

int64_t JsonKeys::integer(const std::string& key, Range range, std::optional<int64_t> fallback) {
  const std::string want = "an integer, " + std::to_string(range.least) + " .. " + std::to_string(range.most);
  const json* value = find(key);
  if (value == nullptr) {
    if (!fallback) fail(key, "missing; want " + want);
    return fallback.value_or(range.least);
  }
  const bool too_large = value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  if (value->is_number_integer() && !too_large) {
    const auto number = value->get<int64_t>();
    if (number >= range.least && number <= range.most) return number;
  }
  fail(key, "got " + json_text(*value) + "; want " + want);
  return fallback.value_or(range.least);
}

double JsonKeys::number(const std::string& key, double above, std::optional<double> fallback) {
  const json* value = find(key);
  char want[64];
  std::snprintf(want, sizeof want, "a finite number above %g", above);
  if (value == nullptr) {
    if (!fallback) fail(key, std::string("missing; want ") + want);
    return fallback.value_or(1);
  }
  if (value->is_number()) {
    const auto number = value->get<double>();
    if (std::isfinite(number) && number > above) return number;
  }
  fail(key, "got " + json_text(*value) + "; want " + want);
  return fallback.value_or(1);
}

bool JsonKeys::boolean(const std::string& key, bool fallback) {
  const json* value = find(key);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  fail(key, "got " + json_text(*value) + "; want true or false");
  return fallback;
}

std::string JsonKeys::text(const std::string& key, const std::optional<std::string>& fallback) {
  const json* value = find(key);
  if (value != nullptr && value->is_string()) return value->get<std::string>();
  if (value != nullptr || !fallback) fail(key, (value ? "got " + json_text(*value) : "missing") + "; want a string");
  return fallback.value_or("");
}

}  // namespace flashmla::runner
