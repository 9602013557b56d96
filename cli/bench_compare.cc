// flashmla bench compare: two results files, and which of their differences are more than noise.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "commands.h"
#include "exit_code.h"
#include "flags.h"
#include "run_header.h"
#include "table.h"

namespace flashmla::cli {

namespace {

constexpr const char* kExamples =
    R"(Rows of the same library and shape are set beside each other. A difference is real when the spreads (p10 to p90) of both
files do not touch and the medians differ by more than --least: two runs of the same code differ by about one percent.

Examples:
  flashmla bench compare before.json after.json
  flashmla bench compare before.json after.json --least 3

Exit codes: 0 nothing is really slower, 1 something is, 2 bad usage.)";

struct CompareFlags {
  std::string before;
  std::string after;
  double least_percent = 2;
};

struct Timed {
  double median_us = 0;
  double low_us = 0;
  double high_us = 0;
};

// A row's identity in words: every field that says what was timed. The kernel is not among them, since another kernel
// is what most changes bring; where a library has several rows of a shape, add_rows puts theirs in.
std::string identity(const Json& row) {
  std::string words;
  for (const char* field : {"library", "backend", "operation", "name", "case", "batch", "seq_q", "heads_q", "heads_kv",
                            "seq_k", "page_size", "latent_dim", "dtype", "rows", "cols", "type", "tokens"}) {
    if (!row.contains(field)) continue;
    const Json& value = row[field];
    words += fmt::format("{}{}={}", words.empty() ? "" : " ", field,
                         value.is_string() ? value.get<std::string>() : value.dump());
  }
  return words;
}

double number(const Json& row, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (row.contains(name) && row[name].is_number()) return row[name].get<double>();
  }
  return 0;
}

// Fields have older names in the files of the GPU benches.
Timed timed(const Json& row) {
  const double median = number(row, {"time_us"});
  Timed times{median, number(row, {"time_us_p10", "time_us_low"}), number(row, {"time_us_p90", "time_us_high"})};
  if (times.low_us <= 0) times.low_us = median;
  if (times.high_us <= 0) times.high_us = median;
  return times;
}

std::map<std::string, Timed> rows_of(const Json& document) {
  std::map<std::string, int> rows;
  for (const Json& row : document["rows"]) ++rows[identity(row)];
  std::map<std::string, Timed> found;
  for (const Json& row : document["rows"]) {
    if (timed(row).median_us <= 0) continue;  // a wrong result has no time
    std::string name = identity(row);
    if (rows[name] > 1 && row.contains("kernel")) name += " kernel=" + row["kernel"].get<std::string>();
    found.emplace(name, timed(row));
  }
  return found;
}

Json read_results(const std::string& path) {
  std::ifstream file(path);
  Json document = Json::parse(file, nullptr, false);
  if (!file || document.is_discarded() || !document.is_object() || !document.contains("rows") ||
      !document["rows"].is_array()) {
    throw UsageError(fmt::format("got '{}'; want a results file of flashmla bench (JSON with rows)", path));
  }
  return document;
}

std::string short_name(std::string name) {
  for (const char* noise : {"library=", "backend=cpu ", "backend=cuda ", "heads_kv=1 ", "latent_dim=512 ", "name="}) {
    if (const size_t at = name.find(noise); at != std::string::npos) name.erase(at, std::string(noise).size());
  }
  return name;
}

void print_ceilings(const Json& before, const Json& after) {
  for (const char* field : {"peak_gbps", "read_gbps", "peak_tflops", "gemm_tflops"}) {
    const auto value = [&](const Json& document) {
      return document.contains("ceilings") ? number(document["ceilings"], {field}) : number(document, {field});
    };
    const double old = value(before);
    const double now = value(after);
    if (old <= 0 || now <= 0) continue;
    fmt::print("ceiling {}: {:.4g} -> {:.4g} ({:+.1f} %)\n", field, old, now, 100 * (now / old - 1));
  }
}

int compare(const CompareFlags& flags) {
  const Json before = read_results(flags.before);
  const Json after = read_results(flags.after);
  const std::map<std::string, Timed> old_rows = rows_of(before);
  const std::map<std::string, Timed> new_rows = rows_of(after);
  Table table({{"shape", Align::kLeft}, {"before"}, {"after"}, {"change"}, {"", Align::kLeft}});
  std::map<std::string, int> counts;
  for (const auto& [name, old] : old_rows) {
    const auto found = new_rows.find(name);
    if (found == new_rows.end()) continue;
    const Timed& now = found->second;
    const double change = 100 * (now.median_us / old.median_us - 1);
    const bool apart = now.low_us > old.high_us || now.high_us < old.low_us;
    const char* verdict = !apart || std::fabs(change) <= flags.least_percent ? "noise"
                          : change > 0                                       ? "slower"
                                                                             : "faster";
    ++counts[verdict];
    table.add({short_name(name), fmt::format("{:.2f} us", old.median_us), fmt::format("{:.2f} us", now.median_us),
               fmt::format("{:+.1f} %", change), verdict});
  }
  if (counts.empty()) {
    throw UsageError(
        fmt::format("got '{}' and '{}', which have no row of the same library and shape; want two files of the "
                    "same shapes",
                    flags.before, flags.after));
  }
  fmt::print("{}\n", table.text());
  print_ceilings(before, after);
  const size_t both = static_cast<size_t>(counts["noise"] + counts["slower"] + counts["faster"]);
  fmt::print("{} faster, {} slower, {} within noise; {} only before, {} only after\n", counts["faster"],
             counts["slower"], counts["noise"], old_rows.size() - both, new_rows.size() - both);
  return counts["slower"] > 0 ? kExitWrongResult : kExitRight;
}

}  // namespace

void add_bench_compare(CLI::App& bench, Action& action) {
  CLI::App* command = bench.add_subcommand("compare", "Two results files: which differences are more than noise");
  auto flags = std::make_shared<CompareFlags>();
  command->add_option("BEFORE", flags->before, "results of flashmla bench (JSON)")->required();
  command->add_option("AFTER", flags->after, "results of the same shapes")->required();
  add_number(*command, "--least", flags->least_percent, 0, 100, "percent below which a difference is noise (2)");
  command->footer(kExamples);
  command->callback([flags, &action] { action = [flags] { return compare(*flags); }; });
}

}  // namespace flashmla::cli
