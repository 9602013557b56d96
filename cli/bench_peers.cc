#include "bench_peers.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "exit_code.h"

namespace flashmla::cli {

namespace {

// Kept short: what goes wrong before flashmla.peers runs is told as this program tells it.
constexpr const char* kStart = R"(import sys
try:
    from flashmla.peers.cli import main
except ImportError as error:
    print(f"flashmla: --peers: {sys.executable} cannot import what it needs: {error}; want a Python that has flashmla "
          "and torch, named by FLASHMLA_PYTHON\nTry 'flashmla bench decode --help'.", file=sys.stderr)
    sys.exit(2)
sys.exit(main(sys.argv[1:])))";

std::string interpreter() {
  if (const char* named = std::getenv("FLASHMLA_PYTHON"); named != nullptr && *named != '\0') return named;
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path beside = program.parent_path() / "python3";
  return !error && std::filesystem::exists(beside, error) ? beside.string() : "python3";
}

}  // namespace

bool asks_for_peers(int argc, char** argv) {
  if (argc < 4 || std::strcmp(argv[1], "bench") != 0 || std::strcmp(argv[2], "decode") != 0) return false;
  for (int i = 3; i < argc; ++i) {
    if (std::strcmp(argv[i], "--peers") == 0 || std::strncmp(argv[i], "--peers=", 8) == 0) return true;
  }
  return false;
}

void become_peers(int argc, char** argv) {
  const std::string python = interpreter();
  std::vector<std::string> words = {python, "-c", kStart};
  words.insert(words.end(), argv + 3, argv + argc);
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  execvp(python.c_str(), pointers.data());
  throw UsageError(
      fmt::format("--peers: got the interpreter '{}', which cannot be run ({}); want a Python that has "
                  "flashmla and torch, named by FLASHMLA_PYTHON",
                  python, std::strerror(errno)));
}

}  // namespace flashmla::cli
