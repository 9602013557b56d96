// Whether the library's choice of a kernel is the best one on shapes that nobody has chosen.
#pragma once

namespace flashmla::bench {

// Times every kernel of the table on `count` random shapes, the same ones each time, prints a line for each, writes
// them to `json_file` unless null, and returns whether no choice is more than 5 % behind the best kernel.
bool check_choices(int count, const char* json_file);

}  // namespace flashmla::bench
