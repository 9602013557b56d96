// The subcommands. Each add function declares its flags and examples and, when its subcommand is on the command line,
// sets `action` to what is to be run.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace flashmla::cli {

using Action = std::function<int()>;  // returns an ExitCode; may throw UsageError

void add_info(CLI::App& program, Action& action);
void add_verify(CLI::App& program, Action& action);
void add_bench(CLI::App& program, Action& action);
void add_bench_compare(CLI::App& bench, Action& action);
void add_bench_linear(CLI::App& bench, Action& action);
void add_bench_model(CLI::App& bench, Action& action);
void add_demo(CLI::App& program, Action& action);
void add_generate(CLI::App& program, Action& action);
void add_chat(CLI::App& program, Action& action);
void add_perplexity(CLI::App& program, Action& action);
void add_tokenize(CLI::App& program, Action& action);
void add_version(CLI::App& program, Action& action);

}  // namespace flashmla::cli
