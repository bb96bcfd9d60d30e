"""The common parts of the plots: sizes of text, ticks, keys, two widths of each plot. Plots are inline SVG made by hand:
no library, no script; colours are CSS variables of the report, so that light mode, dark mode and print each have
their own."""
import itertools
import math
from html import escape

from markupsafe import Markup

WIDE, NARROW, SMALL = 760, 340, 300   # widths of a plot: on a page, on a phone, in a row with others
FONT = {"tick": 12, "axis": 12.5, "value": 12, "group": 13}  # by CSS class
CHARACTER = 0.58          # width of a sans-serif character, of the font's size; a little more than the mean
MAX_POINTS = 600          # per curve; a longer one is reduced to the lowest and highest point of each bucket


def text_width(text, css="tick"):
    """The estimated width of a text in pixels. It errs on the wide side, so that no text is cut off."""
    return CHARACTER * FONT[css] * len(text)


def elide(text, room, css="tick"):
    """The text, shortened with an ellipsis if it does not fit."""
    if text_width(text, css) <= room:
        return text
    return text[:max(int(room / (CHARACTER * FONT[css])) - 1, 1)].rstrip() + "\u2026"


def wrap(text, room, css="group"):
    """Lines of whole words that fit; a word that is too long is cut."""
    lines = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, css) <= room:
            lines[-1] = longer
        else:
            lines.append(elide(word, room, css))
    return lines or [""]


def text_at(css, x, y, text, anchor=None):
    anchor = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}"{anchor}>{escape(text)}</text>'


def opening(width, height, description):
    return f'<svg viewBox="0 0 {width} {height:.0f}" role="img"><title>{escape(description)}</title>'


def place(drawing, x, y):
    """(height, the drawing as a part of another one, at its own size)."""
    width, height = drawing.split('viewBox="0 0 ')[1].split('"')[0].split()
    return float(height), drawing.replace("<svg ", f'<svg x="{x}" y="{y}" width="{width}" height="{height}" ', 1)


def file_text(width, height, title, style, body):
    """A drawing as a file of its own."""
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" role="img" '
            'font-family="system-ui, -apple-system, Segoe UI, Roboto, Helvetica Neue, Arial, sans-serif">'
            f"<title>{escape(title)}</title><style>{style}</style>{body}</svg>\n")


def write_file(path, width, height, title, style, body):
    """Writes that file, and names it on the terminal."""
    with open(path, "w", encoding="utf-8") as f:
        f.write(file_text(width, height, title, style, body))
    print(path)


def both_widths(draw):
    """The plot in the widths of a page and of a phone; the style sheet shows one of them."""
    return Markup(f'<div class="on-page">{draw(WIDE)}</div><div class="on-phone">{draw(NARROW)}</div>')


def ticks(low, high, count=5, whole=False):
    """Round numbers within [low, high]: steps of 1, 2, 2.5 or 5 times a power of ten. whole: only integers."""
    if high <= low:
        high = low + 1
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    steps = [m * power for m in (1, 2, 2.5, 5, 10)]
    step = next(s for s in steps if s >= raw * 0.999)
    if whole:
        step = next((s for s in steps if s >= raw * 0.999 and s == int(s)), 1)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def tick_text(value, step):
    if step < 1e-4:
        return f"{value:.6g}"
    digits = 0  # the fewest decimals that show every tick exactly
    while digits < 12 and abs(step - round(step, digits)) > 1e-9 * step:
        digits += 1
    return f"{value:,.{digits}f}"


def thin(points):
    if len(points) <= MAX_POINTS:
        return points
    size = math.ceil(len(points) / (MAX_POINTS / 2))
    out = []
    for i in range(0, len(points), size):
        bucket = points[i:i + size]
        ends = {bucket.index(min(bucket, key=lambda p: p[1])), bucket.index(max(bucket, key=lambda p: p[1]))}
        out += [bucket[j] for j in sorted(ends)]
    return out


def smooth(points, window):
    """Trailing mean of y over `window` points."""
    sums = [0.0, *itertools.accumulate(y for _, y in points)]
    return [(x, (sums[i] - sums[max(0, i - window)]) / min(i, window)) for i, (x, _) in enumerate(points, 1)]


def fitting_ticks(low, high, room, most, whole=False):
    """[(value, text)]: as many round numbers as fit in a row of `room` pixels."""
    for count in range(most, 0, -1):
        found = ticks(low, high, count, whole)
        step = found[1] - found[0] if len(found) > 1 else 1
        texts = [tick_text(t, step) for t in found]
        if len(found) < 2 or (max(map(text_width, texts)) + 10) * (high - low) <= room * step:
            return list(zip(found, texts))
    return []


def legend(entries):
    """entries: [(css class, label)] for boxes, [(css class, label, dash)] for lines. Each entry names the parts of its figure that
    style.SCRIPT hides and shows: a box its class, a line the group with its label."""
    items = []
    for css, label, *dash in entries:
        shows = f'data-line="{escape(label)}"' if dash else f'data-class="{css}"'
        if dash:
            style = f' stroke-dasharray="{dash[0]}"' if dash[0] else ""
            mark = f'<svg class="key" viewBox="0 0 26 10"><path class="curve {css}"{style} d="M1 5H25"/></svg>'
        else:
            mark = f'<svg class="key box" viewBox="0 0 12 12"><rect class="fill {css}" width="12" height="12" rx="2"/></svg>'
        items.append(f"<li {shows}>{mark}{escape(label)}</li>")
    return Markup(f'<ul class="legend">{"".join(items)}</ul>')
