"""Line plots: loss curves, and a metric against the values of a sweep."""
import math
from dataclasses import dataclass, field
from html import escape

from markupsafe import Markup

from . import svg

NOTHING = '<p class="note">There is nothing to draw: no finite value was recorded.</p>'
TOP, BOTTOM = 28, 46      # the y axis's title stands above the plot
SLANT = 40                # degrees of categories that do not fit side by side
SLANTED_MOST = 126        # pixels of length that they may take


@dataclass
class Lines:
    """A line plot. series: [{"label", "points": [(x, y)], "color": 0..7, "dash": SVG pattern}], and where wanted
    "dots": [(x, y)] of held-out text, "ranges": [(x, low, high)] upright lines and "band": [(x, low, high)] an area.
    levels: [(y, text)], dotted lines, named by the key. A series with "formula" is dotted and has no markers.
    "key": of the entry that names it, where that is not its label."""
    series: list
    x_title: str
    y_title: str
    levels: list = field(default_factory=list)
    description: str = ""
    height: int = 360
    powers: bool = False      # y is a power of ten
    x_ticks: list = None      # [(x, text)]: the only values there are, each drawn with a marker
    from_zero: bool = False   # y starts at zero
    marked: bool = False      # each point has a marker


def line_plot(plot, width=None):
    """The plot in both widths; with a width, one drawing for both."""
    return Markup(draw(plot, width)) if width else svg.both_widths(lambda w: draw(plot, w))


def rows(plots):
    """The numbers of line plots for a CSV: points as they are drawn, with the ends of ranges and bands."""
    out = [["plot", "line", "x", "y", "low", "high"]]
    for plot in plots:
        for s in plot.series:
            ends = {x: (low, high) for x, low, high in [*s.get("band", []), *s.get("ranges", [])]}
            names = {x: text for x, text in plot.x_ticks or []}
            out += [[f"{plot.y_title} against {plot.x_title}", s["label"], names.get(x, x), y, *ends.get(x, ("", ""))]
                    for x, y in svg.thin(s["points"])]
    return out


class Scale:
    """Where data lies on a drawing of `width`."""

    def __init__(self, plot, width):
        points = [p for s in plot.series for p in s["points"] if math.isfinite(p[1])]
        points += [(x, y) for s in plot.series for what in ("ranges", "band") for x, *ends in s.get(what, []) for y in ends
                   if math.isfinite(y)]
        xs = [p[0] for p in points] + [x for x, _ in plot.x_ticks or []]
        ys = [p[1] for p in points] + [y for y, _ in plot.levels] + ([0.0] if plot.from_zero else [])
        self.x_low, self.x_high = min(xs), max(xs)
        low, high = min(ys), max(ys)
        pad = 0.04 * (high - low or abs(high) or 1)
        self.low, self.high = (0.0 if plot.from_zero and low >= 0 else low - pad), high + pad
        if plot.x_ticks:
            self.x_low, self.x_high = self.x_low - 0.25, self.x_high + 0.25
        self.whole = all(isinstance(x, int) for x in xs)
        self.y_ticks = power_ticks(self.low, self.high) if plot.powers else svg.fitting_ticks(
            self.low, self.high, 1e9, max(2, min(5, plot.height // 50)))
        self.left = 14 + max((svg.text_width(text) for _, text in self.y_ticks), default=20)
        self.right = width - 16
        self.extra, self.slanted = 0, False  # pixels that slanted texts take below the plot
        self.set_x_ticks(plot)
        self.top, self.base, self.height = TOP, plot.height - BOTTOM, plot.height + self.extra

    def set_x_ticks(self, plot):
        room = self.right - self.left
        if not plot.x_ticks:
            self.x_ticks = svg.fitting_ticks(self.x_low, self.x_high, room, 8, self.whole)
            half = max((svg.text_width(text) / 2 for _, text in self.x_ticks), default=0)
            self.left, self.right = max(self.left, half), min(self.right, self.right + 16 - half)
            self.x_ticks = svg.fitting_ticks(self.x_low, self.x_high, self.right - self.left, len(self.x_ticks), self.whole)
            return
        self.x_ticks = [(x, svg.elide(text, SLANTED_MOST)) for x, text in sorted(plot.x_ticks)]
        gap = room / (self.x_high - self.x_low) * min((b[0] - a[0] for a, b in zip(self.x_ticks, self.x_ticks[1:])),
                                                      default=self.x_high - self.x_low)
        widest = max(svg.text_width(text) for _, text in self.x_ticks)
        if widest + 8 <= gap:
            return
        self.slanted = True
        self.extra = widest * math.sin(math.radians(SLANT))
        self.left = max(self.left, widest * math.cos(math.radians(SLANT)))
        gap *= (self.right - self.left) / room
        while len(self.x_ticks) > 2 and gap < svg.FONT["tick"] / math.sin(math.radians(SLANT)):
            self.x_ticks = self.x_ticks[::2]   # too many to name: every other one
            gap *= 2

    def x(self, x):
        return self.left + (x - self.x_low) / ((self.x_high - self.x_low) or 1) * (self.right - self.left)

    def y(self, y):
        return self.base - (y - self.low) / (self.high - self.low) * (self.base - self.top)


def power_ticks(low, high):
    """[(exponent, text)]: whole powers of ten."""
    whole = [t for t, _ in svg.fitting_ticks(low, high, 1e9, 6, True) if t == int(t)]
    return [(int(t), f"10^{int(t)}") for t in whole]


def frame(plot, at, width):
    """Grid lines, numbers and titles of the axes."""
    parts = [svg.text_at("axis", 0, 14, svg.elide(plot.y_title, width, "axis"))]
    for value, text in at.y_ticks:
        y = at.y(value)
        shown = f'10<tspan dy="-5" font-size="9">{value}</tspan>' if plot.powers else escape(text)
        parts.append(f'<line class="grid" x1="{at.left:.1f}" y1="{y:.1f}" x2="{at.right}" y2="{y:.1f}"/>'
                     f'<text class="tick" x="{at.left - 8:.1f}" y="{y + 4:.1f}" text-anchor="end">{shown}</text>')
    for value, text in at.x_ticks:
        x = at.x(value)
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{at.top}" x2="{x:.1f}" y2="{at.base:.1f}"/>')
        if at.slanted:
            parts.append(f'<text class="tick" transform="translate({x + 4:.1f} {at.base + 14:.1f}) rotate(-{SLANT})" '
                         f'text-anchor="end">{escape(text)}</text>')
        else:
            parts.append(svg.text_at("tick", x, at.base + 18, text, "middle"))
    title = svg.elide(plot.x_title, at.right - at.left, "axis")
    parts.append(svg.text_at("axis", (at.left + at.right) / 2, at.height - 8, title, "middle"))
    return parts


def curve(s, at, marked):
    """One series: its line, ranges, markers and dots. A long series is drawn as its moving mean over pale single steps."""
    finite = [p for p in s["points"] if math.isfinite(p[1])]
    window = 1 if marked else max(1, len(finite) // 50)
    dash = f' stroke-dasharray="{s["dash"]}"' if s.get("dash") else ""
    css, out = f"c{s['color']}", []

    def path(points):
        return "M" + "L".join(f"{at.x(x):.1f} {at.y(y):.1f}" for x, y in svg.thin(points))
    if not finite:
        return out
    band = [(x, low, high) for x, low, high in s.get("band", []) if math.isfinite(low) and math.isfinite(high)]
    if len(band) > 1:
        band = band[:-1:max(1, len(band) // svg.MAX_POINTS)] + band[-1:]
        edge = [(x, high) for x, _, high in band] + [(x, low) for x, low, _ in reversed(band)]
        out.append(f'<path class="band {css}" d="M{"L".join(f"{at.x(x):.1f} {at.y(y):.1f}" for x, y in edge)}Z"/>')
    if s.get("formula"):
        out.append(f'<path class="level {css}" d="{path(finite)}"><title>{escape(s["label"])}</title></path>')
        return out
    if window > 1:
        out.append(f'<path class="raw {css}" d="{path(finite)}"/>')
    out.append(f'<path class="curve {css}"{dash} d="{path(svg.smooth(finite, window))}">'
               f'<title>{escape(s["label"])}</title></path>')
    for x, low, high in s.get("ranges", []):
        out.append(f'<path class="range {css}" d="M{at.x(x):.1f} {at.y(low):.1f}V{at.y(high):.1f}"/>')
    dots = [(x, y, f"{s['label']}: {y:,.4g}") for x, y in finite] if marked else [
        (x, y, f"{s['label']}, held-out text, step {x}: {y:.4f}") for x, y in s.get("dots", [])]
    for x, y, words in dots:
        if at.x_low <= x <= at.x_high and at.low <= y <= at.high:
            out.append(f'<circle class="dot {css}" cx="{at.x(x):.1f}" cy="{at.y(y):.1f}" r="4">'
                       f'<title>{escape(words)}</title></circle>')
    return out


def named(label, parts):
    """The parts as a group, which the key's entry with that label hides and shows."""
    return [f'<g data-line="{escape(label)}">', *parts, "</g>"] if parts else []


def draw(plot, width):
    """The SVG of one width."""
    if not any(math.isfinite(y) for s in plot.series for _, y in s["points"]):
        return NOTHING
    at = Scale(plot, width)
    out = [svg.opening(width, at.height, plot.description)] + frame(plot, at, width)
    for y, text in plot.levels:
        out += named(text, [f'<line class="level" x1="{at.left:.1f}" y1="{at.y(y):.1f}" x2="{at.right}" y2="{at.y(y):.1f}"/>'])
    for s in plot.series:
        out += named(s.get("key", s["label"]), curve(s, at, bool(plot.x_ticks) or plot.marked))
    return "".join(out) + "</svg>"
