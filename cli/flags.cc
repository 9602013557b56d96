#include "flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "exit_code.h"

namespace flashmla::cli {

int64_t parse_integer(const std::string& flag, const std::string& text, IntegerRange range) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end || value < range.least || value > range.most) {
    throw UsageError(fmt::format("{}: got '{}'; want an integer, {} .. {}", flag, text, range.least, range.most));
  }
  return value;
}

double parse_number(const std::string& flag, const std::string& text, double least, double most) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end || !(value >= least) || !(value <= most)) {
    throw UsageError(fmt::format("{}: got '{}'; want a number, {} .. {}", flag, text, least, most));
  }
  return value;
}

std::vector<int64_t> parse_integers(const std::string& flag, const std::string& text, IntegerRange range) {
  std::vector<int64_t> values;
  size_t start = 0;
  while (true) {
    const size_t comma = text.find(',', start);
    values.push_back(parse_integer(flag, text.substr(start, comma - start), range));
    if (comma == std::string::npos) return values;
    start = comma + 1;
  }
}

CLI::Option* add_integer(CLI::App& app, const std::string& flag, int64_t& value, IntegerRange range,
                         const std::string& help) {
  const auto set = [&value, flag, range](const std::string& text) { value = parse_integer(flag, text, range); };
  return app.add_option_function<std::string>(flag, set, help)->type_name("N")->default_str(std::to_string(value));
}

CLI::Option* add_integers(CLI::App& app, const std::string& flag, std::vector<int64_t>& values, IntegerRange range,
                          const std::string& help) {
  const auto set = [&values, flag, range](const std::string& text) { values = parse_integers(flag, text, range); };
  return app.add_option_function<std::string>(flag, set, help)->type_name("N,N,..");
}

CLI::Option* add_number(CLI::App& app, const std::string& flag, double& value, double least, double most,
                        const std::string& help) {
  const auto set = [&value, flag, least, most](const std::string& text) {
    value = parse_number(flag, text, least, most);
  };
  return app.add_option_function<std::string>(flag, set, help)->type_name("X");
}

CLI::Option* add_choice(CLI::App& app, const std::string& flag, std::string& value,
                        const std::vector<std::string>& choices, const std::string& help) {
  const auto set = [&value, flag, choices](const std::string& text) {
    if (std::ranges::find(choices, text) == choices.end()) {
      throw UsageError(fmt::format("{}: got '{}'; want one of: {}", flag, text, fmt::join(choices, ", ")));
    }
    value = text;
  };
  CLI::Option* option = app.add_option_function<std::string>(flag, set, help);
  option->type_name(fmt::format("{}", fmt::join(choices, "|")));
  return value.empty() ? option : option->default_str(value);
}

CLI::Option* add_text(CLI::App& app, const std::string& flag, std::string& value, const std::string& type,
                      const std::string& help) {
  return app.add_option(flag, value, help)->type_name(type);
}

CLI::Option* add_texts(CLI::App& app, const std::string& flag, std::vector<std::string>& values,
                       const std::string& help) {
  // As a plain list, "[a, b]" would become two values, and words behind the flag further ones.
  return app.add_option(flag, values, help)
      ->type_name("TEXT")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

CLI::Option* add_fault(CLI::App& app, double& error) {
  return add_number(app, "--inject-error", error, -1e6, 1e6, "scale one element of each result")->group("");
}

}  // namespace flashmla::cli
