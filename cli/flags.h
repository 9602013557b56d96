// Typed flags whose bad values are answered with what was got and what is wanted.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace flashmla::cli {

struct IntegerRange {
  int64_t least;
  int64_t most;
};

// "--batch: got 'x'; want an integer, 1 .. 100". Throws UsageError.
int64_t parse_integer(const std::string& flag, const std::string& text, IntegerRange range);
double parse_number(const std::string& flag, const std::string& text, double least, double most);
// A comma list of integers.
std::vector<int64_t> parse_integers(const std::string& flag, const std::string& text, IntegerRange range);

CLI::Option* add_integer(CLI::App& app, const std::string& flag, int64_t& value, IntegerRange range,
                         const std::string& help);
CLI::Option* add_integers(CLI::App& app, const std::string& flag, std::vector<int64_t>& values, IntegerRange range,
                          const std::string& help);
CLI::Option* add_number(CLI::App& app, const std::string& flag, double& value, double least, double most,
                        const std::string& help);
// One word of `choices`.
CLI::Option* add_choice(CLI::App& app, const std::string& flag, std::string& value,
                        const std::vector<std::string>& choices, const std::string& help);
CLI::Option* add_text(CLI::App& app, const std::string& flag, std::string& value, const std::string& type,
                      const std::string& help);
// A text each time the flag is given.
CLI::Option* add_texts(CLI::App& app, const std::string& flag, std::vector<std::string>& values,
                       const std::string& help);
// --inject-error: hidden, because only the tests of the exit codes have a use for it (fault.h).
CLI::Option* add_fault(CLI::App& app, double& error);

}  // namespace flashmla::cli
