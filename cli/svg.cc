#include "svg.h"

#include <fmt/format.h>

#include <array>

namespace flashmla::cli {

namespace {

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '&': safe += "&amp;"; break;
      case '<': safe += "&lt;"; break;
      case '>': safe += "&gt;"; break;
      case '"': safe += "&quot;"; break;
      default: safe += c;
    }
  }
  return safe;
}

std::string stroke_text(const Stroke& stroke) {
  std::string text = fmt::format("stroke=\"{}\" stroke-width=\"{}\"", stroke.color, stroke.width);
  if (!stroke.dash.empty()) text += fmt::format(" stroke-dasharray=\"{}\"", stroke.dash);
  return text;
}

}  // namespace

Svg::Svg(double width, double height) {
  body_ = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"'DejaVu Sans', Verdana, Helvetica, Arial, sans-serif\">\n",
      width, height);
  rect({0, 0}, width, height, "#ffffff");
}

void Svg::line(Point from, Point to, const Stroke& stroke) {
  body_ += fmt::format("<line x1=\"{:.2f}\" y1=\"{:.2f}\" x2=\"{:.2f}\" y2=\"{:.2f}\" {}/>\n", from.x, from.y, to.x,
                       to.y, stroke_text(stroke));
}

void Svg::polyline(const std::vector<Point>& points, const Stroke& stroke) {
  std::string list;
  for (const Point& point : points) list += fmt::format("{}{:.2f},{:.2f}", list.empty() ? "" : " ", point.x, point.y);
  body_ +=
      fmt::format("<polyline points=\"{}\" fill=\"none\" stroke-linejoin=\"round\" {}/>\n", list, stroke_text(stroke));
}

void Svg::rect(Point corner, double width, double height, const std::string& fill) {
  body_ += fmt::format("<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\"/>\n", corner.x,
                       corner.y, width, height, fill);
}

void Svg::marker(Point center, size_t kind, const std::string& color) {
  const double x = center.x;
  const double y = center.y;
  const std::string look = fmt::format("fill=\"{}\" stroke=\"#ffffff\" stroke-width=\"1.2\"", color);
  const auto polygon = [&](const std::string& points) {
    body_ += fmt::format("<polygon points=\"{}\" {}/>\n", points, look);
  };
  const auto at = [&](double dx, double dy) { return fmt::format("{:.2f},{:.2f}", x + dx, y + dy); };
  switch (kind % 4) {
    case 0: body_ += fmt::format("<circle cx=\"{:.2f}\" cy=\"{:.2f}\" r=\"5.5\" {}/>\n", x, y, look); break;
    case 1: polygon(fmt::format("{} {} {} {}", at(-5, -5), at(5, -5), at(5, 5), at(-5, 5))); break;
    case 2: polygon(fmt::format("{} {} {} {}", at(0, -7), at(7, 0), at(0, 7), at(-7, 0))); break;
    default: polygon(fmt::format("{} {} {}", at(0, -6.5), at(6.2, 5), at(-6.2, 5))); break;
  }
}

void Svg::text(Point at, const std::string& content, const TextStyle& style) {
  std::string extra;
  if (style.bold) extra += " font-weight=\"bold\"";
  if (style.upward) extra += fmt::format(" transform=\"rotate(-90 {:.2f} {:.2f})\"", at.x, at.y);
  body_ += fmt::format("<text x=\"{:.2f}\" y=\"{:.2f}\" font-size=\"{}\" fill=\"{}\" text-anchor=\"{}\"{}>{}</text>\n",
                       at.x, at.y, style.size, style.color, style.anchor, extra, escaped(content));
}

std::string Svg::finish() const { return body_ + "</svg>\n"; }

const std::string& series_color(size_t index) {
  static const std::array<std::string, 8> colors = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                    "#e69f00", "#56b4e9", "#666666", "#9a7d0a"};
  return colors[index % colors.size()];
}

}  // namespace flashmla::cli
