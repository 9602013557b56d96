#include "runner/tokenizer/jinja_text_methods.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "runner/tokenizer/utf8.h"

namespace flashmla::runner::jinja {

namespace {

// Bytes that a method may make of its text: replace() multiplies.
constexpr size_t kMostBytes = size_t{1} << 28;

[[noreturn]] void fail(const std::string& name, const std::string& what) { throw TemplateError(name + "(): " + what); }

const std::string* text_argument(const std::string& name, const Arguments& arguments, size_t index) {
  if (index >= arguments.positional.size() || arguments.positional[index].is_none()) return nullptr;
  const std::string* text = arguments.positional[index].as_text();
  if (text == nullptr) fail(name, std::string("got ") + arguments.positional[index].type_name() + "; want a text");
  return text;
}

int64_t integer_argument(const std::string& name, const Arguments& arguments, size_t index, int64_t absent) {
  if (index >= arguments.positional.size()) return absent;
  if (!arguments.positional[index].is_integer()) {
    fail(name, std::string("got ") + arguments.positional[index].type_name() + "; want an integer");
  }
  return arguments.positional[index].to_integer();
}

bool is_python_space(uint32_t code) { return is_unicode_space(code) || (code >= 0x1C && code <= 0x1F); }

// The text without characters at its ends that `chars` has (white space without it).
std::string_view strip(std::string_view text, const std::string* chars, bool left, bool right) {
  const auto goes = [&](std::string_view character) {
    return chars == nullptr ? is_python_space(utf8_next(character).code) : chars->find(character) != std::string::npos;
  };
  while (left && !text.empty()) {
    const size_t bytes = utf8_next(text).bytes;
    if (!goes(text.substr(0, bytes))) break;
    text.remove_prefix(bytes);
  }
  while (right && !text.empty()) {
    size_t begin = text.size() - 1;
    while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
    if (!goes(text.substr(begin))) break;
    text.remove_suffix(text.size() - begin);
  }
  return text;
}

Value split_at_space(std::string_view text, int64_t most) {
  std::vector<Value> parts;
  while (true) {
    text = strip(text, nullptr, true, false);
    if (text.empty()) break;
    if (most >= 0 && static_cast<int64_t>(parts.size()) == most) {
      parts.push_back(Value::text(std::string(text)));
      break;
    }
    size_t end = 0;
    while (end < text.size() && !is_python_space(utf8_next(text.substr(end)).code))
      end += utf8_next(text.substr(end)).bytes;
    parts.push_back(Value::text(std::string(text.substr(0, end))));
    text.remove_prefix(end);
  }
  return Value::list(std::move(parts));
}

Value split(const std::string& text, const std::string& separator, int64_t most) {
  if (separator.empty()) fail("split", "got an empty separator");
  std::vector<Value> parts;
  size_t begin = 0;
  while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
    const size_t end = text.find(separator, begin);
    if (end == std::string::npos) break;
    parts.push_back(Value::text(text.substr(begin, end - begin)));
    begin = end + separator.size();
  }
  parts.push_back(Value::text(text.substr(begin)));
  return Value::list(std::move(parts));
}

Value rsplit(const std::string& text, const std::string& separator, int64_t most) {
  if (separator.empty()) fail("rsplit", "got an empty separator");
  std::vector<Value> parts;
  size_t end = text.size();
  while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
    const size_t begin = end < separator.size() ? std::string::npos : text.rfind(separator, end - separator.size());
    if (begin == std::string::npos) break;
    parts.push_back(Value::text(text.substr(begin + separator.size(), end - begin - separator.size())));
    end = begin;
  }
  parts.push_back(Value::text(text.substr(0, end)));
  std::reverse(parts.begin(), parts.end());
  return Value::list(std::move(parts));
}

std::string replace(const std::string& text, const std::string& old, const std::string& with, int64_t most) {
  if (old.empty()) fail("replace", "got an empty text to replace");
  std::string result;
  size_t begin = 0;
  for (int64_t count = 0; most < 0 || count < most; ++count) {
    const size_t end = text.find(old, begin);
    if (end == std::string::npos) break;
    result.append(text, begin, end - begin).append(with);
    begin = end + old.size();
    if (result.size() > kMostBytes) fail("replace", "got a result above " + std::to_string(kMostBytes) + " bytes");
  }
  return result + text.substr(begin);
}

bool begins_or_ends(const std::string& text, const std::string& name, const Value& with) {
  if (const List* list = with.as_list()) {
    return std::any_of(list->items.begin(), list->items.end(),
                       [&](const Value& item) { return begins_or_ends(text, name, item); });
  }
  if (with.as_text() == nullptr) fail(name, std::string("got ") + with.type_name() + "; want a text");
  const std::string& part = *with.as_text();
  if (part.size() > text.size()) return false;
  return text.compare(name == "startswith" ? 0 : text.size() - part.size(), part.size(), part) == 0;
}

std::string change_case(const std::string& name, std::string text) {
  bool first = true;  // of the text, or of the word for title()
  for (char& c : text) {
    if (static_cast<unsigned char>(c) >= 0x80) fail(name, "got a text that is not ASCII");
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool upper = name == "upper" || (first && name != "lower");
    if (letter) c = static_cast<char>(upper ? c & ~0x20 : c | 0x20);
    first = name == "title" && !letter;
  }
  return text;
}

struct Method {
  const char* name;
  size_t least;  // arguments
  size_t most;
};
constexpr Method kMethods[] = {{"strip", 0, 1},  {"lstrip", 0, 1},     {"rstrip", 0, 1},     {"split", 0, 2},
                               {"rsplit", 1, 2}, {"startswith", 1, 1}, {"endswith", 1, 1},   {"replace", 2, 3},
                               {"upper", 0, 0},  {"lower", 0, 0},      {"capitalize", 0, 0}, {"title", 0, 0},
                               {"find", 1, 1}};

const Method* method_named(const std::string& name) {
  const auto* found =
      std::find_if(std::begin(kMethods), std::end(kMethods), [&](const Method& m) { return name == m.name; });
  return found == std::end(kMethods) ? nullptr : found;
}

}  // namespace

bool is_text_method(const std::string& name) { return method_named(name) != nullptr; }

Value text_method(const Value& object, const std::string& name, const Arguments& arguments) {
  const std::string& text = *object.as_text();
  const Method& method = *method_named(name);
  const size_t count = arguments.positional.size();
  if (count < method.least || count > method.most || !arguments.named.empty()) {
    fail(name, "got " + std::to_string(count + arguments.named.size()) + " arguments; want " +
                   std::to_string(method.least) + " .. " + std::to_string(method.most) + " by position");
  }
  const auto any = [&](size_t i) { return text_argument(name, arguments, i); };
  const auto given = [&](size_t i) -> const std::string& {
    if (any(i) == nullptr) fail(name, "got None; want a text");
    return *any(i);
  };
  if (name == "strip") return Value::text(std::string(strip(text, any(0), true, true)));
  if (name == "lstrip") return Value::text(std::string(strip(text, any(0), true, false)));
  if (name == "rstrip") return Value::text(std::string(strip(text, any(0), false, true)));
  if (name == "split" && any(0) == nullptr) return split_at_space(text, integer_argument(name, arguments, 1, -1));
  if (name == "split") return split(text, given(0), integer_argument(name, arguments, 1, -1));
  if (name == "rsplit") return rsplit(text, given(0), integer_argument(name, arguments, 1, -1));
  if (name == "startswith" || name == "endswith") {
    return Value::boolean(begins_or_ends(text, name, arguments.positional[0]));
  }
  if (name == "replace")
    return Value::text(replace(text, given(0), given(1), integer_argument(name, arguments, 2, -1)));
  if (name == "find") {
    const size_t at = text.find(given(0));
    return Value::integer(at == std::string::npos ? -1 : static_cast<int64_t>(utf8_length(text.substr(0, at))));
  }
  return Value::text(change_case(name, text));
}

}  // namespace flashmla::runner::jinja
