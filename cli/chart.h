// A plot with two axes, grid, titles and a legend at its right.
#pragma once

#include <string>
#include <vector>

#include "svg.h"

namespace flashmla::cli {

struct Tick {
  double value;
  std::string label;  // empty: a grid line only
};

struct Axis {
  std::string label;  // with unit
  double least = 0;
  double most = 1;
  bool logarithmic = false;
  std::vector<Tick> ticks;
};

// From 0 past `most`, with 5 to 8 round steps.
Axis linear_axis(std::string label, double most);
// Whole powers of `base` (2 or 10) around [least, most], each labelled; powers of 2 as 512, 1k, 2k.
Axis log_axis(std::string label, double least, double most, int base);

class Chart {
 public:
  Chart(const std::string& title, const std::string& subtitle, Axis x, Axis y);

  // In data coordinates, clamped to the axes.
  Point place(Point data) const;
  Svg& svg() { return svg_; }
  double left() const;
  double right() const;
  double top() const;
  double bottom() const;

  void series_line(const std::vector<Point>& data, const Stroke& stroke);
  // Vertical bar from `low` to `high` through a point: the spread of a measurement.
  void spread(double x, double low, double high, const std::string& color);
  void marker(Point data, size_t index);
  // Next line of the legend: a marker of series `index`, and text.
  void legend_marker(size_t index, const std::string& text);
  void legend_line(const Stroke& stroke, const std::string& text);
  // Text without a symbol, dimmed.
  void legend_note(const std::string& text);
  std::string finish() const { return svg_.finish(); }

 private:
  void draw_axes();

  Axis x_;
  Axis y_;
  Svg svg_;
  double legend_y_;
};

}  // namespace flashmla::cli
