#include "run_header.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "built_commit.h"
#include "exit_code.h"
#include "flashmla/cpu.h"
#include "flashmla/version.h"

namespace flashmla::cli {

namespace {

std::string& remembered() {
  static std::string line;
  return line;
}

// Quoted where a shell would split or expand it.
std::string shell_word(const std::string& word) {
  constexpr const char* kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./,:=+@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace

std::string built_commit() { return kBuiltCommit; }

void remember_command_line(int argc, char** argv) {
  std::string& line = remembered();
  line = "flashmla";
  for (int i = 1; i < argc; ++i) line.append(" ").append(shell_word(argv[i]));
}

std::string command_line() { return remembered(); }

Json run_header(const std::string& commit, int threads) {
  const CpuInfo cpu = cpu_info();
  Json header;
  header["library"] = "flashmla";
  header["version"] = FLASHMLA_VERSION_STRING;
  header["commit"] = commit.empty() ? built_commit() : commit;
  header["date"] = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  header["command_line"] = command_line();
  header["processor"] = cpu.model;
  header["threads"] = threads;
  header["isas"] = cpu.isas;
  header["l2_bytes"] = cpu.l2_bytes;
  header["l3_bytes"] = cpu.l3_bytes;
  return header;
}

void check_file(const std::string& flag, const std::string& path) {
  if (path.empty()) return;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (folder.empty() || std::filesystem::is_directory(folder, error)) return;
  throw UsageError(
      fmt::format("{}: got '{}', whose folder does not exist; want a path in a folder that does", flag, path));
}

void write_file(const std::string& flag, const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary);
  file << content;
  file.close();
  if (!file) {
    throw UsageError(fmt::format("{}: got '{}', which cannot be written ({}); want a path that can", flag, path,
                                 std::strerror(errno)));
  }
}

void write_json(const std::string& path, const Json& json) { write_file("--json", path, json.dump(2) + "\n"); }

}  // namespace flashmla::cli
