// flashmla bench decode --peers: other libraries live in Python, so this program hands over to it.
#pragma once

#include <string>

namespace flashmla::cli {

// Whether the command line is `bench decode` with --peers somewhere.
bool asks_for_peers(int argc, char** argv);

// Replaces this process with Python's flashmla.peers and the flags after `bench decode`. The interpreter is the one
// named by FLASHMLA_PYTHON, else the python3 beside this program, else the first in PATH. Throws UsageError where there
// is none.
[[noreturn]] void become_peers(int argc, char** argv);

}  // namespace flashmla::cli
