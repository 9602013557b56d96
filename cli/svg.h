// Drawing SVG files: a canvas of simple shapes, no library behind it.
#pragma once

#include <string>
#include <vector>

namespace flashmla::cli {

struct Point {
  double x = 0;
  double y = 0;
};

struct Stroke {
  std::string color = "#333333";
  double width = 1;
  std::string dash;  // "6 4"; empty: solid
};

struct TextStyle {
  double size = 13;
  std::string color = "#333333";
  std::string anchor = "start";  // start, middle, end
  bool bold = false;
  bool upward = false;  // turned by 90 degrees, reading upward
};

// Coordinates in pixels from the top left corner.
class Svg {
 public:
  Svg(double width, double height);
  void line(Point from, Point to, const Stroke& stroke);
  void polyline(const std::vector<Point>& points, const Stroke& stroke);
  void rect(Point corner, double width, double height, const std::string& fill);
  // Markers of one size, told apart by shape as well as colour: circle, square, diamond, triangle in turn.
  void marker(Point center, size_t kind, const std::string& color);
  void text(Point at, const std::string& content, const TextStyle& style);
  std::string finish() const;

 private:
  std::string body_;
};

// Told apart by readers with any kind of colour vision (Okabe and Ito); repeats after eight.
const std::string& series_color(size_t index);

}  // namespace flashmla::cli
