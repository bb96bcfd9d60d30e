"""Draws one step as lanes over time: computing, transfers and waiting. Each step is one drawing; all have one scale."""
from dataclasses import dataclass, field
from html import escape

from . import svg

COMPUTE, LINK, SHARD = 15, 4, 9   # heights: of a worker's computing, of one transfer, of a server's thread
GAP, TOP, BOTTOM, END = 9, 4, 40, 16
LEAST = 0.6                       # pixels: the least width of a span, so that it stays visible
THIN = "thin"                     # in a span's css: drawn at half the height, so that waiting is also recognized without its colour
MOST_LINKS = 6                    # rows of transfers that overlap; further ones share the last


@dataclass
class Lane:
    """One rank, or one thread of a server. spans: [(css, words, begin, end)] of its own row, in nanoseconds;
    transfers: the same, drawn below in as many rows as overlap."""
    name: str
    spans: list
    transfers: list = field(default_factory=list)
    height: int = COMPUTE
    known: tuple = None   # (begin, end) of what was recorded; None: all of the window


def merged(spans, least):
    """Spans of one kind, joined if the gap between them is shorter than `least`."""
    out = []
    for css, words, begin, end in sorted(spans, key=lambda s: s[2]):
        last = out[-1] if out else None
        if last and last[0] == css and last[1] == words and begin - last[3] < least:
            out[-1] = (css, words, last[2], max(end, last[3]))
        else:
            out.append((css, words, begin, end))
    return out


def rows_of(transfers):
    """Distributes transfers over rows: [[transfer]]. Each goes to the first row that is free when it begins."""
    rows, free = [], []
    for span in sorted(transfers, key=lambda s: (s[2], s[3])):
        row = next((i for i, until in enumerate(free) if until <= span[2]), None)
        if row is None and len(rows) < MOST_LINKS:
            rows.append([])
            free.append(0)
            row = len(rows) - 1
        row = len(rows) - 1 if row is None else row
        rows[row].append(span)
        free[row] = max(free[row], span[3])
    return rows


def bar(span, at, y, height):
    css, words, begin, end = span
    if THIN in css:
        y, height = y + height / 4, height / 2
    x0, x1 = at(begin), at(end)
    return (f'<rect class="fill {css}" x="{x0:.2f}" y="{y:.1f}" width="{max(x1 - x0, LEAST):.2f}" height="{height}">'
            f'<title>{escape(words)}: {(end - begin) / 1e6:,.2f} ms</title></rect>')


def rows(name, lanes, window):
    """The numbers for a CSV: the spans of each rank, in milliseconds since the step began."""
    return [[name, lane.name, kind, words, (begin - window[0]) / 1e6, (end - window[0]) / 1e6] for lane in lanes
            for kind, spans in (("itself", lane.spans), ("transfer", lane.transfers)) for _, words, begin, end in sorted(spans, key=lambda s: s[2])]


HEAD = ["run", "rank", "row", "what", "begin (ms)", "end (ms)"]


def margin(lanes):
    """Pixels that the names of the lanes need."""
    return max(svg.text_width(lane.name) for lane in lanes) + 10


def draw(lanes, window, scale, width, description, axis=True):
    """The SVG of one step. window: (begin, end) in ns. scale: (margin, the ns that the rest of the width stands for), the same in each
    drawing. axis: whether the time axis is drawn; only the last of several drawings has it."""
    left, longest = scale
    room = width - left - END

    def at(time):
        return left + (min(max(time, window[0]), window[1]) - window[0]) / longest * room
    places, y = [], TOP
    for lane in lanes:
        rows = rows_of(lane.transfers)
        places.append((lane, rows, y))
        y += lane.height + (2 + LINK * len(rows) if rows else 0) + GAP
    base = y - GAP + 4
    out = [svg.opening(width, base + (BOTTOM if axis else 0), description)]
    for value, text in svg.fitting_ticks(0, longest / 1e6, room, 8):
        x = left + value * 1e6 / longest * room
        out.append(f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{base}"/>' + (svg.text_at("tick", x, base + 16, text, "middle") if axis else ""))
    if axis:
        out.append(svg.text_at("axis", left + room / 2, base + BOTTOM - 6, svg.elide("ms since the step began", room, "axis"), "middle"))
    for lane, rows, y in places:
        out.append(svg.text_at("tick", left - 8, y + lane.height / 2 + 4, lane.name, "end"))
        begin, end = lane.known or window   # beyond it nothing is known, so nothing is drawn
        out.append(f'<rect class="idle" x="{at(begin):.1f}" y="{y}" width="{at(end) - at(begin):.2f}" height="{lane.height}"/>')
        out += [bar(span, at, y, lane.height) for span in merged(lane.spans, longest / room / 2)]
        for i, row in enumerate(rows):
            out += [bar(span, at, y + lane.height + 2 + LINK * i, LINK - 1) for span in row]
    return "".join(out) + "</svg>"
