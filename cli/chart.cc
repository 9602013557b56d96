#include "chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace flashmla::cli {

namespace {

constexpr double kWidth = 1080;
constexpr double kHeight = 580;
constexpr double kLeft = 92;
constexpr double kRight = 760;  // the legend stands to the right of it
constexpr double kTop = 92;
constexpr double kBottom = 500;
constexpr double kLegendX = kRight + 28;
constexpr double kLegendStep = 24;

double fraction(const Axis& axis, double value) {
  const auto scaled = [&](double v) { return axis.logarithmic ? std::log(v) : v; };
  const double clamped = std::clamp(value, axis.least, axis.most);
  return (scaled(clamped) - scaled(axis.least)) / (scaled(axis.most) - scaled(axis.least));
}

}  // namespace

Axis linear_axis(std::string label, double most) {
  most = std::max(most, 1e-9);
  const double magnitude = std::pow(10.0, std::floor(std::log10(most / 5)));
  double step = 10 * magnitude;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (most / (factor * magnitude) <= 8) {
      step = factor * magnitude;
      break;
    }
  }
  Axis axis{std::move(label), 0, std::ceil(most / step) * step, false, {}};
  for (int i = 0; i * step <= axis.most * 1.0001; ++i)
    axis.ticks.push_back({i * step, fmt::format("{:.6g}", i * step)});
  return axis;
}

Axis log_axis(std::string label, double least, double most, int base) {
  const double log_base = std::log(base);
  const auto power = [&](int exponent) { return std::pow(static_cast<double>(base), exponent); };
  constexpr double kSlack = 1e-9;  // a value on a power of the base stands on the axis' end
  auto first = static_cast<int>(std::floor(std::log(least) / log_base + kSlack));
  auto last = static_cast<int>(std::ceil(std::log(most) / log_base - kSlack));
  if (last <= first) {  // one value: in the middle
    --first;
    ++last;
  }
  Axis axis{std::move(label), power(first), power(last), true, {}};
  for (int e = first; e <= last; ++e) {
    const double value = power(e);
    const bool thousands = base == 2 && value >= 1024;
    axis.ticks.push_back({value, thousands ? fmt::format("{:.6g}k", value / 1024) : fmt::format("{:.6g}", value)});
    if (base != 10 || e == last) continue;
    for (int m = 2; m < 10; ++m) axis.ticks.push_back({m * value, ""});
  }
  return axis;
}

Chart::Chart(const std::string& title, const std::string& subtitle, Axis x, Axis y)
    : x_(std::move(x)), y_(std::move(y)), svg_(kWidth, kHeight), legend_y_(kTop + 8) {
  svg_.text({kLeft, 38}, title, {.size = 20, .color = "#111111", .bold = true});
  svg_.text({kLeft, 62}, subtitle, {.size = 13, .color = "#666666"});
  draw_axes();
}

double Chart::left() const { return kLeft; }
double Chart::right() const { return kRight; }
double Chart::top() const { return kTop; }
double Chart::bottom() const { return kBottom; }

Point Chart::place(Point data) const {
  return {kLeft + fraction(x_, data.x) * (kRight - kLeft), kBottom - fraction(y_, data.y) * (kBottom - kTop)};
}

void Chart::draw_axes() {
  const Stroke grid{"#e3e3e3", 1, ""};
  const Stroke fine{"#f2f2f2", 1, ""};
  for (const Tick& tick : x_.ticks) {
    const double x = place({tick.value, y_.least}).x;
    svg_.line({x, kTop}, {x, kBottom}, tick.label.empty() ? fine : grid);
    if (!tick.label.empty()) svg_.text({x, kBottom + 22}, tick.label, {.size = 13, .anchor = "middle"});
  }
  for (const Tick& tick : y_.ticks) {
    const double y = place({x_.least, tick.value}).y;
    svg_.line({kLeft, y}, {kRight, y}, tick.label.empty() ? fine : grid);
    if (!tick.label.empty()) svg_.text({kLeft - 10, y + 4.5}, tick.label, {.size = 13, .anchor = "end"});
  }
  const Stroke frame{"#888888", 1.2, ""};
  svg_.line({kLeft, kTop}, {kLeft, kBottom}, frame);
  svg_.line({kLeft, kBottom}, {kRight, kBottom}, frame);
  svg_.text({(kLeft + kRight) / 2, kBottom + 52}, x_.label, {.size = 14, .anchor = "middle"});
  svg_.text({kLeft - 58, (kTop + kBottom) / 2}, y_.label, {.size = 14, .anchor = "middle", .upward = true});
}

void Chart::series_line(const std::vector<Point>& data, const Stroke& stroke) {
  std::vector<Point> points;
  points.reserve(data.size());
  for (const Point& point : data) points.push_back(place(point));
  svg_.polyline(points, stroke);
}

void Chart::spread(double x, double low, double high, const std::string& color) {
  const Point bottom = place({x, low});
  const Point top = place({x, high});
  const Stroke stroke{color, 1.5, ""};
  svg_.line(bottom, top, stroke);
  for (const Point& end : {bottom, top}) svg_.line({end.x - 4, end.y}, {end.x + 4, end.y}, stroke);
}

void Chart::marker(Point data, size_t index) { svg_.marker(place(data), index, series_color(index)); }

void Chart::legend_marker(size_t index, const std::string& text) {
  svg_.marker({kLegendX + 8, legend_y_ - 4.5}, index, series_color(index));
  svg_.text({kLegendX + 26, legend_y_}, text, {.size = 13});
  legend_y_ += kLegendStep;
}

void Chart::legend_line(const Stroke& stroke, const std::string& text) {
  svg_.line({kLegendX - 2, legend_y_ - 4.5}, {kLegendX + 18, legend_y_ - 4.5}, stroke);
  svg_.text({kLegendX + 26, legend_y_}, text, {.size = 13});
  legend_y_ += kLegendStep;
}

void Chart::legend_note(const std::string& text) {
  svg_.text({kLegendX + 26, legend_y_ - 4}, text, {.size = 12, .color = "#777777"});
  legend_y_ += kLegendStep - 6;
}

}  // namespace flashmla::cli
