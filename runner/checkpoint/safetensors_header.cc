#include "runner/checkpoint/safetensors_header.h"

#include <nlohmann/json.hpp>

#include "runner/error_text.h"

namespace flashmla::runner {

namespace {

using nlohmann::json;

constexpr size_t kMostDims = 16;

// Events instead of a tree: a tree would keep the last of two equal names, and a header may hold a million entries.
class HeaderReader : public json::json_sax_t {
 public:
  std::vector<HeaderEntry> entries;
  std::string problem;

  bool start_object(size_t) override {
    if (place_ == Place::kStart) return go(Place::kTop);
    if (place_ == Place::kTopValue) return go(key_ == "__metadata__" ? Place::kMetadata : Place::kEntry);
    return unexpected("an object");
  }
  bool key(std::string& text) override {
    key_ = text;
    if (place_ == Place::kTop) {
      if (text != "__metadata__") entries.push_back({text, {}, {}, {}});
      seen_ = 0;
      return go(Place::kTopValue);
    }
    return place_ == Place::kMetadata || entry_key();
  }
  bool end_object() override {
    if (place_ == Place::kTop) return go(Place::kEnd);
    if (place_ == Place::kEntry && seen_ != 7) {
      return fail("want each of dtype, shape and data_offsets, once");
    }
    if (place_ == Place::kEntry && entries.back().data_offsets.size() != 2) return fail("data_offsets: want two");
    return go(Place::kTop);
  }
  bool start_array(size_t) override {
    if (place_ != Place::kEntry || key_ == "dtype") return unexpected("an array");
    return go(Place::kNumbers);
  }
  bool end_array() override { return go(Place::kEntry); }
  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Place::kNumbers) return unexpected("a number");
    auto& numbers = key_ == "shape" ? entries.back().shape : entries.back().data_offsets;
    if (numbers.size() == kMostDims) return fail(key_ + ": more than " + std::to_string(kMostDims) + " numbers");
    numbers.push_back(value);
    return true;
  }
  bool string(std::string& text) override {
    if (place_ == Place::kMetadata) return true;
    if (place_ != Place::kEntry || key_ != "dtype") return unexpected("a string");
    entries.back().dtype = text;
    return true;
  }
  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_float(number_float_t, const std::string&) override { return unexpected("a number with a fraction"); }
  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a truth value"); }
  bool binary(json::binary_t&) override { return unexpected("bytes"); }
  bool parse_error(size_t position, const std::string&, const json::exception&) override {
    problem = "not JSON at its byte " + std::to_string(position);
    return false;
  }

 private:
  // Where the reader stands; kTopValue and kEntry await the value of key_.
  enum class Place { kStart, kTop, kTopValue, kMetadata, kEntry, kNumbers, kEnd };

  bool go(Place place) {
    place_ = place;
    return true;
  }
  bool fail(const std::string& text) {
    const bool in_tensor = !entries.empty() && place_ != Place::kMetadata && key_ != "__metadata__";
    problem = (in_tensor ? "tensor " + in_quotes(entries.back().name) + ": " : std::string()) + text;
    return false;
  }
  bool unexpected(const char* got) {
    if (place_ == Place::kStart) return fail(std::string("got ") + got + "; want an object of tensors");
    if (place_ == Place::kMetadata) return fail(std::string("__metadata__: got ") + got + "; want strings");
    return fail(in_quotes(key_) + ": got " + got +
                "; want dtype as a string, shape and data_offsets as arrays of non-negative integers");
  }
  bool entry_key() {
    const int bit = key_ == "dtype" ? 1 : key_ == "shape" ? 2 : key_ == "data_offsets" ? 4 : 0;
    if (bit == 0) return fail("key " + in_quotes(key_) + "; want dtype, shape and data_offsets");
    if ((seen_ & bit) != 0) return fail(key_ + " is given twice");
    seen_ |= bit;
    return true;
  }

  Place place_ = Place::kStart;
  std::string key_;
  int seen_ = 0;  // bits of the keys that the current entry has had
};

}  // namespace

Result<std::vector<HeaderEntry>> parse_safetensors_header(std::string_view text) {
  HeaderReader reader;
  if (json::sax_parse(text.begin(), text.end(), &reader)) return std::move(reader.entries);
  return invalid("header: " + reader.problem);
}

}  // namespace flashmla::runner
