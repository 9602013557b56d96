// flashmla version
#include "flashmla/version.h"

#include <fmt/format.h>

#include "commands.h"
#include "exit_code.h"
#include "run_header.h"

namespace flashmla::cli {

void add_version(CLI::App& program, Action& action) {
  CLI::App* command = program.add_subcommand("version", "Version of the library and the commit it was built from");
  command->callback([&action] {
    action = [] {
      fmt::print("flashmla {} (commit {})\n", FLASHMLA_VERSION_STRING, built_commit());
      return kExitRight;
    };
  });
}

}  // namespace flashmla::cli
