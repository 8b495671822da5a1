#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "numbers.h"
#include "report.h"

namespace terrace::matrix {
namespace {

// Readable on a light page and on a dark one, since it brings its own background.
constexpr const char* kColours[] = {"#1b7837", "#d95f02", "#7f7f7f"};
constexpr const char* kLegends[] = {"fetched, control thread", "fetched, served once a step",
                                    "recomputed"};
constexpr double kWidth = 860, kHeight = 380;
constexpr double kTop = 78, kBottom = 318, kPanelWidth = 350;
constexpr double kBar = 20;

// A logarithmic axis from a power of ten to another one.
struct Axis {
  double low = 1e-3, high = 1;
  double Y(double value) const {
    const double part = (std::log10(std::clamp(value, low, high)) - std::log10(low)) /
                        (std::log10(high) - std::log10(low));
    return kBottom - part * (kBottom - kTop);
  }
};

// All that one of the two panels shows.
struct Panel {
  const char* title;
  double left;
  std::vector<double> (*values)(const Cell& cell);
};

Axis AxisOf(const MatrixResult& result, const Panel& panel) {
  double least = 1e9, most = 0;
  for (const Cell& cell : result.cells) {
    for (const double value : panel.values(cell)) {
      if (value > 0) least = std::min(least, value);
      most = std::max(most, value);
    }
  }
  if (most <= 0) return {};
  Axis axis{std::pow(10, std::floor(std::log10(least))), std::pow(10, std::ceil(std::log10(most)))};
  if (axis.low >= axis.high) axis.low = axis.high / 10;
  return axis;
}

std::string Text(double x, double y, const char* anchor, double size, const std::string& text) {
  return fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"{}\">{}</text>\n", x, y,
      anchor, size, text);
}

std::string Line(double x1, double y1, double x2, double y2, const char* colour) {
  return fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n", x1, y1, x2,
      y2, colour);
}

// "850 us", "12 ms", "3.4 s".
std::string Short(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.3g} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.3g} ms", seconds * 1e3);
  return fmt::format("{:.3g} s", seconds);
}

std::string Bar(const Axis& axis, double x, const Spread& spread, const char* colour) {
  const double y = axis.Y(spread.median);
  std::string svg = fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{}\" height=\"{:.1f}\" fill=\"{}\"><title>{}"
      "</title></rect>\n",
      x, y, kBar - 2, kBottom - y, colour, Short(spread.median));
  const double middle = x + (kBar - 2) / 2;
  svg += Line(middle, axis.Y(spread.min), middle, axis.Y(spread.max), "#000000");
  svg += Text(middle, axis.Y(spread.max) - 4, "middle", 8, Short(spread.median));
  return svg;
}

std::string Draw(const MatrixResult& result, const Panel& panel) {
  const Axis axis = AxisOf(result, panel);
  std::string svg = Text(panel.left, kTop - 14, "start", 13, panel.title);
  for (double tick = axis.low; tick <= axis.high * 1.001; tick *= 10) {
    svg += Line(panel.left, axis.Y(tick), panel.left + kPanelWidth, axis.Y(tick), "#dddddd");
    svg += Text(panel.left - 5, axis.Y(tick) + 3, "end", 10, Short(tick));
  }
  double x = panel.left + 10;
  for (const Link link : {Link::kWarm, Link::kCold}) {
    for (const Source source : kSources) {
      const double begin = x;
      for (const Arm arm : kArms) {
        const Cell* const cell = result.Find(arm, source, link);
        const auto values = cell == nullptr ? std::vector<double>{} : panel.values(*cell);
        if (!values.empty()) {
          svg += Bar(axis, x, SpreadOf(values), kColours[static_cast<std::size_t>(arm)]);
        }
        x += kBar + 4;
      }
      svg += Text((begin + x) / 2, kBottom + 15, "middle", 11,
                  std::string(NameOf(source)) + " source");
      svg += Text((begin + x) / 2, kBottom + 29, "middle", 11, std::string(NameOf(link)) + " link");
      x += 12;
    }
  }
  return svg + Line(panel.left, kBottom, panel.left + kPanelWidth, kBottom, "#000000");
}

}  // namespace

std::string ToPicture(const MatrixOptions& options, const MatrixResult& result) {
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} "
      "{1}\" font-family=\"sans-serif\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n",
      kWidth, kHeight);
  svg += Text(20, 24, "start", 15,
              fmt::format("A prompt of {} tokens that a busy neighbour has ({} engine)",
                          options.prompt_tokens, options.engine));
  double x = 20;
  for (const Arm arm : kArms) {
    const auto i = static_cast<std::size_t>(arm);
    svg += fmt::format("<rect x=\"{:.1f}\" y=\"36\" width=\"11\" height=\"11\" fill=\"{}\"/>\n", x,
                       kColours[i]);
    svg += Text(x + 16, 46, "start", 12, kLegends[i]);
    x += 200;
  }
  svg += Draw(result, {"Time to the first token", 68, TtftsOf});
  svg += Draw(result, {"Look-up delay", 498, LookupsOf});
  svg += Text(20, kHeight - 12, "start", 10,
              fmt::format("Bars: median of {} repetitions, lines: least and most, logarithmic. A "
                          "step of the busy source: {}.",
                          options.repetitions, Short(SpreadOf(result.source_step_s).median)));
  return svg + "</svg>\n";
}

}  // namespace terrace::matrix
