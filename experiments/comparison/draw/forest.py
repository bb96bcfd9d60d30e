"""Draws ratios with their intervals, one under the other, against the line at 1. Claimed differences are coloured."""
import math
from html import escape

from . import svg

ROW, TOP, BOTTOM, LINE = 20, 6, 42, 22


def axis_ticks(low, high, room):
    """[(ratio, text)] on a logarithmic axis: as many as fit."""
    for steps in ((0.1, 0.2, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.5, 2, 5, 10), (0.1, 0.2, 0.5, 0.8, 1, 1.2, 1.5, 2, 5, 10), (0.1, 0.2, 0.5, 1, 2, 5, 10),
                  (0.1, 0.5, 1, 2, 10), (0.1, 1, 10)):
        found = [s for s in steps if low <= s <= high]
        gaps = [math.log(b / a) / math.log(high / low) * room for a, b in zip(found, found[1:])]
        if min(gaps, default=room) > 30:
            return [(s, f"{s:g}") for s in found]
    return [(1, "1")]


def rows(groups):
    """The numbers for a CSV."""
    return [["what", "run", "ratio", "low", "high"]] + [[heading, label, e.value, e.low, e.high] for heading, found in groups for label, e in found]


def draw(groups, width, description, x_title):
    """The SVG. groups: [(heading, [(label, Ratio)])]. Claimed differences are coloured."""
    entries = [e for _, rows in groups for e in rows]
    ends = [v for _, e in entries for v in ((e.low, e.high) if e.low is not None else (e.value,))]
    low, high = max(min(ends + [0.95]) / 1.03, 0.05), min(max(ends + [1.05]) * 1.03, 20)
    left = min(max(svg.text_width(label) for label, _ in entries) + 12, 0.45 * width)
    texts = [f"{e.value:.2f}" + (f" ({e.low:.2f} to {e.high:.2f})" if e.low is not None else "") for _, e in entries]
    right = max(svg.text_width(t, "value") for t in texts) + 12
    room = max(width - left - right, 40)

    def at(ratio):
        return left + math.log(min(max(ratio, low), high) / low) / math.log(high / low) * room
    base, ticks = TOP + sum(LINE + ROW * len(rows) for _, rows in groups), axis_ticks(low, high, room)
    out = [svg.opening(width, base + BOTTOM, description)]
    out += [svg.text_at("tick", at(ratio), base + 16, text, "middle") for ratio, text in ticks]
    out.append(svg.text_at("axis", 0, base + BOTTOM - 6, svg.elide(x_title, width, "axis")))
    y, texts = TOP, iter(texts)
    for heading, rows in groups:
        out.append(svg.text_at("group", 0, y + 15, svg.elide(heading, width, "group")))
        y += LINE
        for ratio, _ in ticks:   # grid lines do not cross the headings
            out.append(f'<line class="{"level" if ratio == 1 else "grid"}" x1="{at(ratio):.1f}" y1="{y}" x2="{at(ratio):.1f}" '
                       f'y2="{y + ROW * len(rows)}"/>')
        for label, e in rows:
            middle, css = y + ROW / 2, "c0" if e.differs else "c7"
            out.append(svg.text_at("tick", left - 8, middle + 4, svg.elide(label, left - 8), "end"))
            words = next(texts)
            if e.low is not None:
                out.append(f'<path class="curve {css}" d="M{at(e.low):.1f} {middle:.1f}H{at(e.high):.1f}"/>')
            out.append(f'<circle class="dot {css}" cx="{at(e.value):.1f}" cy="{middle:.1f}" r="4.5"><title>{escape(f"{label}: {words}")}</title></circle>')
            out.append(svg.text_at("value", width - right + 12, middle + 4, words))
            y += ROW
    return "".join(out) + "</svg>"
