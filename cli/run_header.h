// What every results file says about the run that wrote it, and writing such files.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace flashmla::cli {

// Key order as written, so that files read from the general to the particular.
using Json = nlohmann::ordered_json;

// Short commit of the sources, with "-dirty" when they differed from it; "unknown" when built outside a git checkout.
std::string built_commit();

// To be called first in main.
void remember_command_line(int argc, char** argv);
std::string command_line();

// version, commit, processor, threads, command line, date (UTC). `commit` empty: the one built from.
Json run_header(const std::string& commit, int threads);

// Throws UsageError that names `flag` when `path` is not empty and clearly cannot become a file: to be asked before a
// long run rather than after it.
void check_file(const std::string& flag, const std::string& path);
// Throws UsageError that names `flag` when the file cannot be written.
void write_file(const std::string& flag, const std::string& path, const std::string& content);
void write_json(const std::string& path, const Json& json);

}  // namespace flashmla::cli
