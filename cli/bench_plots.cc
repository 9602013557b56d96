// The two plots of a bench run.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "bench_report.h"
#include "chart.h"
#include "flashmla/cpu.h"

namespace flashmla::cli {

namespace {

const Stroke kCeiling{"#444444", 2, "7 5"};

std::string subtitle(const BenchRun& run) {
  if (run.rows.empty()) return "";
  const DecodeShape& shape = run.rows.front().shape;
  return fmt::format("{}, {} thread(s); {}, {} latent + {} RoPE values, page {}", cpu_info().model,
                     run.ceilings.threads, dtype_name(shape.dtype), shape.latent_dim, shape.rope_dim, shape.page_size);
}

// Rows that differ in their lengths only belong to one line.
struct Series {
  std::string name;
  std::vector<const BenchRow*> rows;
};

std::vector<Series> series_of(const BenchRun& run) {
  std::vector<Series> list;
  for (const BenchRow& row : run.rows) {
    if (!row.right) continue;
    const std::string name = fmt::format("b {}, h_q {}{}", row.shape.batch, row.shape.heads_q,
                                         row.shape.seq_q == 1 ? "" : fmt::format(", s_q {}", row.shape.seq_q));
    auto same = std::ranges::find(list, name, &Series::name);
    if (same == list.end()) same = list.insert(list.end(), {name, {}});
    same->rows.push_back(&row);
  }
  for (Series& series : list) std::ranges::sort(series.rows, {}, &BenchRow::mean_length);
  return list;
}

double gflops(const BenchRow& row) { return row.tflops() * 1e3; }

void add_kernels(Chart& chart, const BenchRun& run) {
  std::vector<std::string> names;
  for (const BenchRow& row : run.rows) {
    if (row.right && std::ranges::find(names, row.choice.kernel) == names.end()) names.push_back(row.choice.kernel);
  }
  for (const std::string& name : names) chart.legend_note(fmt::format("kernel {}", name));
}

}  // namespace

std::string length_plot(const BenchRun& run) {
  const std::vector<Series> list = series_of(run);
  const double peak = run.ceilings.value.peak_gbps;
  const auto length = [](const BenchRow& row) { return std::max(row.mean_length(), 1.0); };
  double most = peak;
  double shortest = 0;
  double longest = 1;
  for (const Series& series : list) {
    for (const BenchRow* row : series.rows) {
      most = std::max(most, row->cost.bytes / row->times.p10_us * 1e-3);
      shortest = shortest == 0 ? length(*row) : std::min(shortest, length(*row));
      longest = std::max(longest, length(*row));
    }
  }
  constexpr double kMargin = 1.2;  // keeps markers off the frame
  Chart chart("Decode: memory throughput over cached length", subtitle(run),
              log_axis("cached tokens of a request, s_k (mean where they vary)", std::max(shortest / kMargin, 0.5),
                       longest * kMargin, 2),
              linear_axis("GB/s", most));
  const double ceiling = chart.place({1, peak}).y;
  chart.svg().line({chart.left(), ceiling}, {chart.right(), ceiling}, kCeiling);
  chart.legend_line(kCeiling, fmt::format("read loop: {:.1f} GB/s", peak));
  for (size_t s = 0; s < list.size(); ++s) {
    const std::string& color = series_color(s);
    std::vector<Point> points;
    std::vector<Point> roof;
    for (const BenchRow* row : list[s].rows) {
      const double x = length(*row);
      points.push_back({x, row->gbps()});
      roof.push_back({x, row->cost.bytes / run.bound(*row).time_us * 1e-3});
      chart.spread(x, row->cost.bytes / row->times.p90_us * 1e-3, row->cost.bytes / row->times.p10_us * 1e-3, color);
    }
    chart.series_line(roof, {color, 1.3, "2 4"});
    chart.series_line(points, {color, 2.2, ""});
    for (const Point& point : points) chart.marker(point, s);
    chart.legend_marker(s, list[s].name);
  }
  chart.legend_line({"#777777", 1.3, "2 4"}, "what the ceilings allow");
  chart.legend_note("markers: median; bars: p10 to p90");
  add_kernels(chart, run);
  return chart.finish();
}

std::string roofline_plot(const BenchRun& run) {
  const std::vector<Series> list = series_of(run);
  const Ceilings& peak = run.ceilings.value;
  const double ridge = peak.ridge();
  double least_x = ridge;
  double most_x = ridge;
  double least_y = peak.peak_gflops;
  for (const Series& series : list) {
    for (const BenchRow* row : series.rows) {
      if (row->cost.flops <= 0) continue;
      least_x = std::min(least_x, row->cost.intensity());
      most_x = std::max(most_x, row->cost.intensity());
      least_y = std::min(least_y, gflops(*row));
    }
  }
  least_x = std::max(least_x, 1e-3) / 2;
  most_x *= 2;
  least_y = std::max(std::min(least_y, least_x * peak.peak_gbps), 1e-3);
  const Axis x = log_axis("arithmetic intensity, flop/B", least_x, most_x, 10);
  const Axis y = log_axis("GFLOP/s", least_y, peak.peak_gflops * 1.2, 10);
  Chart chart("Decode: roofline", subtitle(run), x, y);
  // The slanted roof starts where it leaves the bottom or the left edge, whichever lies further right.
  const double start_x = std::max(x.least, y.least / peak.peak_gbps);
  chart.series_line({{start_x, start_x * peak.peak_gbps}, {ridge, peak.peak_gflops}, {x.most, peak.peak_gflops}},
                    {"#444444", 2.4, ""});
  chart.legend_line({"#444444", 2.4, ""}, fmt::format("{:.1f} GFLOP/s, {:.1f} GB/s", peak.peak_gflops, peak.peak_gbps));
  const Stroke dotted{"#999999", 1.2, "2 4"};
  const Point top = chart.place({ridge, peak.peak_gflops});
  chart.svg().line(top, {top.x, chart.bottom()}, dotted);
  chart.legend_line(dotted, fmt::format("ridge: {:.3g} flop/B", ridge));
  for (size_t s = 0; s < list.size(); ++s) {
    for (const BenchRow* row : list[s].rows) chart.marker({row->cost.intensity(), gflops(*row)}, s);
    const auto [least, most] =
        std::ranges::minmax_element(list[s].rows, {}, [&](const BenchRow* row) { return run.share_of_bound(*row); });
    const double low = 100 * run.share_of_bound(**least);
    const double high = 100 * run.share_of_bound(**most);
    chart.legend_marker(s, list[s].rows.size() == 1
                               ? fmt::format("{}: {:.0f} % of roof", list[s].name, high)
                               : fmt::format("{}: {:.0f}-{:.0f} % of roof", list[s].name, low, high));
  }
  add_kernels(chart, run);
  return chart.finish();
}

}  // namespace flashmla::cli
