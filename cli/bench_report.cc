#include "bench_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "table.h"

namespace flashmla::cli {

namespace {

constexpr const char* kReading =
    R"(time: median of the repeats (p10 .. p90 beside it). GB/s: cached tokens once, q and out, in 1e9 bytes.
of bound: the time that the tighter of both ceilings allows, divided by the time taken.
)";

// One row of the results: the same fields in CSV and JSON.
Json row_json(const BenchRun& run, const BenchRow& row) {
  const DecodeShape& shape = row.shape;
  const Ceilings& peak = run.ceilings.value;
  Json json;
  json["library"] = "flashmla";
  json["backend"] = row.choice.backend;
  json["kernel"] = row.choice.kernel;
  json["name"] = row.name;
  json["batch"] = shape.batch;
  json["seq_q"] = shape.seq_q;
  json["heads_q"] = shape.heads_q;
  json["heads_kv"] = shape.heads_kv;
  json["seq_k"] = row.longest();
  json["seq_k_mean"] = row.mean_length();
  json["page_size"] = shape.page_size;
  json["latent_dim"] = shape.latent_dim;
  json["rope_dim"] = shape.rope_dim;
  json["dtype"] = dtype_name(shape.dtype);
  json["causal"] = shape.causal;
  json["right"] = row.right;
  json["time_us"] = row.times.median_us;
  json["time_us_p10"] = row.times.p10_us;
  json["time_us_p90"] = row.times.p90_us;
  json["time_us_min"] = row.times.least_us;
  json["repeats"] = row.times.repeats;
  json["gbps"] = row.gbps();
  json["tflops"] = row.tflops();
  json["flops"] = row.cost.flops;
  json["bytes"] = row.cost.bytes;
  json["peak_tflops"] = peak.peak_gflops * 1e-3;
  json["peak_gbps"] = peak.peak_gbps;
  json["bound"] = run.bound(row).name();
  json["share_of_bound"] = run.share_of_bound(row);
  json["buffer_copies"] = row.copies;
  json["check"] = row.check;
  return json;
}

std::string csv_cell(const Json& value) {
  if (!value.is_string()) return value.dump();
  std::string quoted = "\"";
  for (const char c : value.get<std::string>()) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

void print_ceilings(const MeasuredCeilings& ceilings) {
  const Ceilings& value = ceilings.value;
  fmt::print("Ceilings, measured in this run on {} thread(s); they meet at {:.3g} flop/B\n", ceilings.threads,
             value.ridge());
  fmt::print("  compute {:>8.1f} GFLOP/s  {}\n", value.peak_gflops, ceilings.compute_loop);
  fmt::print("  memory  {:>8.1f} GB/s     {}\n\n", value.peak_gbps, ceilings.read_loop);
}

std::string length_range(const BenchRow& row) {
  if (row.lengths.empty()) return "-";
  const auto [least, most] = std::ranges::minmax(row.lengths);
  return least == most ? count_text(most) : fmt::format("{}..{}", count_text(least), count_text(most));
}

std::vector<std::string> table_row(const BenchRun& run, const BenchRow& row) {
  const DecodeShape& shape = row.shape;
  std::vector<std::string> cells = {fmt::format("{}", shape.batch), fmt::format("{}", shape.seq_q),
                                    fmt::format("{}", shape.heads_q), length_range(row), row.choice.kernel};
  if (!row.right) {
    cells.insert(cells.end(), {"WRONG", "", "", "", "", "", ""});
    return cells;
  }
  cells.insert(cells.end(), {time_text(row.times.median_us),
                             fmt::format("{} .. {}", time_text(row.times.p10_us), time_text(row.times.p90_us)),
                             fmt::format("{}", row.times.repeats), fmt::format("{:.1f}", row.gbps()),
                             fmt::format("{:.1f}", row.tflops() * 1e3), run.bound(row).name(),
                             fmt::format("{:.0f} %", 100 * run.share_of_bound(row))});
  return cells;
}

// What a reader should know before trusting the times.
void print_notes(const BenchRun& run) {
  constexpr double kWideSpread = 1.5;
  int64_t wide = 0;
  int64_t above = 0;
  for (const BenchRow& row : run.rows) {
    if (!row.right) {
      fmt::print("WRONG, not timed: {}: {}\n", row.name, row.check);
      continue;
    }
    if (row.times.p90_us > kWideSpread * row.times.p10_us) ++wide;
    if (run.share_of_bound(row) > 1) ++above;
    if (row.times.repeats >= kLeastRepeats) continue;
    fmt::print("note: {}: {} repeats instead of {}, because --seconds was used up\n", row.name, row.times.repeats,
               kLeastRepeats);
  }
  if (above > 0) {
    fmt::print("note: {} of {} rows are above 100 % of the bound: their ceiling was measured too low\n", above,
               run.rows.size());
  }
  if (wide == 0) return;
  fmt::print("note: in {} of {} rows p90 is more than {} times p10: other programs may be using this machine\n", wide,
             run.rows.size(), kWideSpread);
}

// The copies that keep caches cold, of the rows that were timed.
void print_copies(const BenchRun& run) {
  int64_t copies = 0;
  double bytes = 0;
  for (const BenchRow& row : run.rows) {
    if (row.copies == 0) continue;
    if (copies == 0 || row.copies < copies) copies = row.copies;
    if (bytes == 0 || row.copies_bytes < bytes) bytes = row.copies_bytes;
  }
  if (copies == 0) return;
  fmt::print("Cold caches: {} or more copies of each shape's tensors in turn, together at least {} (L3: {}).\n", copies,
             bytes_text(bytes), bytes_text(static_cast<double>(cpu_info().l3_bytes)));
}

}  // namespace

void print_bench(const BenchRun& run) {
  print_ceilings(run.ceilings);
  Table table({{"b"},
               {"s_q"},
               {"h_q"},
               {"s_k"},
               {"kernel", Align::kLeft},
               {"time"},
               {"p10 .. p90"},
               {"repeats"},
               {"GB/s"},
               {"GFLOP/s"},
               {"bound", Align::kLeft},
               {"of bound"}});
  for (const BenchRow& row : run.rows) table.add(table_row(run, row));
  fmt::print("{}\n{}", table.text(), kReading);
  if (run.rows.empty()) return;
  print_copies(run);
  const BenchRow& first = run.rows.front();
  fmt::print("Checked before timing, on sampled rows; the first shape: {}\n", first.check);
  print_notes(run);
}

std::string bench_csv(const BenchRun& run) {
  std::string text;
  for (const BenchRow& row : run.rows) {
    const Json json = row_json(run, row);
    std::string titles;
    std::string cells;
    for (const auto& [key, value] : json.items()) {
      titles.append(titles.empty() ? "" : ",").append(key);
      cells.append(cells.empty() ? "" : ",").append(csv_cell(value));
    }
    if (text.empty()) text = titles + "\n";
    text.append(cells).append("\n");
  }
  return text;
}

Json bench_json(const BenchRun& run, const std::string& commit) {
  Json json = run_header(commit, run.ceilings.threads);
  json["ceilings"] = {{"peak_tflops", run.ceilings.value.peak_gflops * 1e-3},
                      {"peak_gbps", run.ceilings.value.peak_gbps},
                      {"ridge", run.ceilings.value.ridge()},
                      {"compute_loop", run.ceilings.compute_loop},
                      {"read_loop", run.ceilings.read_loop}};
  json["rows"] = Json::array();
  for (const BenchRow& row : run.rows) json["rows"].push_back(row_json(run, row));
  return json;
}

}  // namespace flashmla::cli
