"""Bar plots: stacked horizontal bars of many runs, and small histograms."""
from html import escape

from markupsafe import Markup

from . import svg

ROW, GAP, LINE = 17, 4, 18   # heights of a bar, between bars, of a heading's line
TOP, BOTTOM = 6, 46
MOST_BARS = 32               # per drawing: more would not fit on a printed page


def split(bars):
    """Drawings of at most MOST_BARS bars, cut before a heading."""
    runs = []
    for bar in bars:
        if bar.get("group") or not runs:
            runs.append([])
        runs[-1].append(bar)
    out = []
    for run in runs:
        if out and len(out[-1]) + len(run) <= MOST_BARS:
            out[-1] = out[-1] + run
        else:
            out.append(list(run))
    return out


def rows(bars, unit, scale=1.0):
    """The numbers of bars for a CSV: a line for each segment, and for each mark."""
    out, group = [["run", "bar", "part", unit]], ""
    for bar in bars:
        group = bar.get("group") or group
        for _, name, value in bar["segments"]:
            out.append([group, bar["label"], name, value / scale])
        if bar.get("mark"):
            out.append([group, bar["label"], "formula", bar["mark"][0] / scale])
    return out


class Style:
    """The common choices of the drawings of one plot: scale, titles, digits."""

    def __init__(self, bars, x_title, description, scale, digits):
        self.x_title, self.description, self.scale, self.digits = x_title, description, scale, digits
        values = [amount(b) for b in bars] + [b["mark"][0] for b in bars if b.get("mark")]
        self.high = max(values + [0]) / scale or 1.0
        self.labels = max((svg.text_width(b["label"]) for b in bars), default=0) + 10
        self.values = max((svg.text_width(self.text(b), "value") for b in bars), default=0) + 10

    def text(self, bar):
        return bar.get("text") or f"{amount(bar) / self.scale:,.{self.digits}f}"


def amount(bar):
    return sum(value for _, _, value in bar["segments"])


def bar_plot(bars, x_title, description="", scale=1.0, digits=1):
    """Horizontal stacked bars. bars: [{"group": heading or None, "label", "segments": [(css, name, value)],
    "outline": draw hollow, "mark": (value, text) or None, "text": after the bar}]. Values are divided by scale."""
    style = Style(bars, x_title, description, scale, digits)
    return svg.both_widths(lambda width: "".join(draw(part, style, width) for part in split(bars)))


def draw(bars, style, width):
    """One drawing. Headings have their own lines, so that long names do not overlap."""
    left = min(style.labels, 0.45 * width)
    room = max(width - left - style.values, 20)
    headings = [svg.wrap(b["group"], width) if b.get("group") else [] for b in bars]
    base = TOP + sum(ROW + GAP + LINE * len(h) + (6 if h else 0) for h in headings)
    out = [svg.opening(width, base + BOTTOM, style.description)]
    for value, text in svg.fitting_ticks(0, style.high, room, 6):
        x = left + value / style.high * room
        out.append(f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{base}"/>'
                   + svg.text_at("tick", x, base + 18, text, "middle"))
    out.append(svg.text_at("axis", left + room / 2, base + BOTTOM - 8, svg.elide(style.x_title, width - left, "axis"),
                           "middle"))
    y = TOP
    for bar, lines in zip(bars, headings):
        y += 6 if lines else 0
        for line in lines:
            out.append(svg.text_at("group", 0, y + 13, line))
            y += LINE
        out.append(svg.text_at("tick", left - 8, y + ROW / 2 + 4, svg.elide(bar["label"], left - 8), "end"))
        out += one_bar(bar, style, (left, y, room))
        y += ROW + GAP
    return "".join(out) + "</svg>"


def one_bar(bar, style, place):
    """One bar: its segments, the tick of its formula, and the text after it."""
    left, y, room = place
    to_x = room / style.high / style.scale
    kind, inset = ("hollow", 1) if bar.get("outline") else ("fill", 0)
    out, at = [], 0.0
    for css, name, value in bar["segments"]:
        if value <= 0:
            continue
        x0, x1 = left + at * to_x, left + (at + value) * to_x
        out.append(f'<rect class="{kind} {css}" x="{x0 + inset:.2f}" y="{y + inset:.1f}" '
                   f'width="{max(x1 - x0 - 2 * inset, 0.5):.2f}" height="{ROW - 2 * inset}">'
                   f'<title>{escape(bar["label"])}, {escape(name)}: {value / style.scale:,.{style.digits + 1}f}</title></rect>')
        at += value
    if bar.get("mark"):
        x = left + bar["mark"][0] * to_x
        out.append(f'<path class="mark" d="M{x:.1f} {y - 3:.1f}V{y + ROW + 3:.1f}"><title>{escape(bar["mark"][1])}</title></path>')
        at = max(at, bar["mark"][0])
    out.append(svg.text_at("value", left + at * to_x + 6, y + ROW / 2 + 4, style.text(bar)))
    return out


def histogram(counts, x_title, description, width=svg.SMALL, height=210):
    """A histogram as vertical bars: counts[i] is how often the value i occurred, drawn as a share of all. The same drawing serves all screens."""
    left, right, top, base = 44, width - 10, 28, height - BOTTOM
    total, n = sum(counts) or 1, max(len(counts), 1)
    step = (right - left) / max(n, 4)
    out = [svg.opening(width, height, description), svg.text_at("axis", 0, 14, "share of the gradients")]
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = base - share * (base - top)
        out.append(f'<line class="grid" x1="{left}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>'
                   + svg.text_at("tick", left - 8, y + 4, f"{share:.0%}", "end"))
    every = max(1, -(-int(svg.text_width(str(n)) + 8) // max(int(step), 1)))
    for i, count in enumerate(counts):
        x, y = left + i * step, base - count / total * (base - top)
        if count:
            out.append(f'<rect class="fill m0" x="{x + 1:.1f}" y="{y:.1f}" width="{max(step - 2, 0.5):.1f}" '
                       f'height="{max(base - y, 0.5):.1f}"><title>{i}: {count:,.0f} of {total:,.0f}</title></rect>')
        if i % every == 0:
            out.append(svg.text_at("tick", x + step / 2, base + 18, str(i), "middle"))
    out.append(svg.text_at("axis", (left + right) / 2, height - 8, svg.elide(x_title, right - left, "axis"), "middle"))
    return Markup("".join(out) + "</svg>")
