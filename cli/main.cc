// The flashmla program: reads the command line, runs one subcommand, turns every error into a text and an exit code.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "bench_peers.h"
#include "commands.h"
#include "exit_code.h"
#include "flashmla/version.h"
#include "run_header.h"

namespace flashmla::cli {

namespace {

constexpr const char* kExamples = R"(Examples:
  flashmla info                                        this machine and its back ends
  flashmla info --heads-q 128 --seq-k 4096             which kernel runs this shape, and what bounds it
  flashmla verify --heads-q 20 --seq-q 3 --seq-k 700   compare a shape with the double-precision oracle
  flashmla bench decode --set cpu                      time named shapes against this machine's ceilings
  flashmla demo                                        both on DeepSeek shapes, with plots
  flashmla generate --model models/demo --prompt "What is 17 + 25?"

Exit codes: 0 right, 1 wrong result, 2 bad usage.)";

void add_commands(CLI::App& program, Action& action) {
  program.require_subcommand(1);
  program.footer(kExamples);
  program.get_formatter()->column_width(36);
  add_info(program, action);
  add_verify(program, action);
  add_bench(program, action);
  add_demo(program, action);
  add_generate(program, action);
  add_chat(program, action);
  add_perplexity(program, action);
  add_tokenize(program, action);
  add_version(program, action);
}

// The innermost subcommand on the command line: its flags and its --help are the ones that help.
const CLI::App& chosen_command(const CLI::App& program) {
  const CLI::App* app = &program;
  while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
  return *app;
}

std::string command_name(const CLI::App& app) {
  const std::string& own = app.get_name();
  return app.get_parent() == nullptr ? own : fmt::format("{} {}", command_name(*app.get_parent()), own);
}

// CLI11's own texts name what was got; these add what is wanted.
std::string parse_error_text(const CLI::App& program, const CLI::ParseError& error) {
  const CLI::App& command = chosen_command(program);
  std::vector<std::string> names;
  for (const CLI::App* sub : command.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(sub->get_name());
  const std::vector<std::string> extras = program.remaining(true);
  if (!names.empty()) {
    return fmt::format("got {}; want one of: {}",
                       extras.empty() ? "no subcommand" : fmt::format("'{}'", extras.front()), fmt::join(names, ", "));
  }
  const std::string what = error.what();
  if (const size_t flag_end = what.find(" was given a disallowed flag override"); flag_end != std::string::npos) {
    return fmt::format("--{}: got a value; want the flag alone", what.substr(0, flag_end));
  }
  if (extras.empty()) return fmt::format("{}; want one value after the flag", what);
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_group().empty()) names.push_back(option->get_name());
  }
  return fmt::format("got '{}'; want one of: {}", extras.front(), fmt::join(names, ", "));
}

int bad_usage(const CLI::App& program, const std::string& text) {
  fmt::print(stderr, "flashmla: {}\nTry '{} --help'.\n", text, command_name(chosen_command(program)));
  return kExitBadUsage;
}

int run(int argc, char** argv) {
  CLI::App program("Multi-head Latent Attention: looks at the machine, checks results, measures speed, runs models.",
                   "flashmla");
  Action action;
  add_commands(program, action);
  if (argc <= 1) {
    fmt::print(stderr, "{}", program.help());
    return kExitBadUsage;
  }
  try {
    if (asks_for_peers(argc, argv)) become_peers(argc, argv);
    program.parse(argc, argv);
    return action();
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) return program.exit(error);  // --help
    return bad_usage(program, parse_error_text(program, error));
  } catch (const UsageError& error) {
    return bad_usage(program, error.what());
  } catch (const std::bad_alloc&) {
    return bad_usage(program, "got less memory from this machine than this needs; want a smaller shape or model");
  } catch (const std::exception& error) {  // of the file system, mostly
    return bad_usage(program, error.what());
  }
}

}  // namespace

}  // namespace flashmla::cli

int main(int argc, char** argv) {
  try {
    flashmla::cli::remember_command_line(argc, argv);
    return flashmla::cli::run(argc, argv);
  } catch (const std::exception& error) {  // what nothing above foresees; there is no right result then
    std::fprintf(stderr, "flashmla: %s\n", error.what());
    return flashmla::cli::kExitWrongResult;
  }
}
