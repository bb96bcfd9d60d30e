"""Plots as inline SVG, made by hand: no library, no script; colours are CSS variables of the report, so
that light mode, dark mode and print each have their own."""
import math
from html import escape

WIDTH = 760
LEFT, RIGHT, BOTTOM = 64, 16, 46
MAX_POINTS = 600  # of one curve; more are thinned to the lowest and highest of each bucket


def ticks(low, high, count=5, whole=False):
    """Round numbers within [low, high]: steps of 1, 2, 2.5 or 5 times a power of ten; whole: integers alone."""
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
    digits = 0  # as few as show every step exactly
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
    out, total = [], 0.0
    for i, (x, y) in enumerate(points):
        total += y - (points[i - window][1] if i >= window else 0.0)
        out.append((x, total / min(i + 1, window)))
    return out


def frame(height, x_ticks, y_ticks, x_of, y_of, titles, top, powers):
    """Grid lines, numbers and titles (x, y) of the axes."""
    base = height - BOTTOM
    x_title, y_title = titles
    parts = []
    if y_ticks:
        step = y_ticks[1] - y_ticks[0] if len(y_ticks) > 1 else 1
        for t in y_ticks:
            y = y_of(t)
            text = f'10<tspan dy="-5" font-size="9">{t}</tspan>' if powers else tick_text(t, step)
            parts.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>'
                         f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
        parts.append(f'<text class="axis" transform="translate(16 {(top + base) / 2:.0f}) rotate(-90)" '
                     f'text-anchor="middle">{escape(y_title)}</text>')
    step = x_ticks[1] - x_ticks[0] if len(x_ticks) > 1 else 1
    for t in x_ticks:
        x = x_of(t)
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{base}"/>'
                     f'<text class="tick" x="{x:.1f}" y="{base + 18}" text-anchor="middle">{tick_text(t, step)}</text>')
    parts.append(f'<text class="axis" x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{height - 8}" '
                 f'text-anchor="middle">{escape(x_title)}</text>')
    return parts


def power_ticks(low, high):
    """Whole powers of ten within [low, high], which are log10; at most about seven."""
    every = max(1, math.ceil((high - low) / 7))
    return [t for t in range(math.ceil(low), math.floor(high) + 1) if t % every == 0]


def line_plot(series, x_title, y_title, levels=(), height=380, description="", powers=False):
    """series: [{"label", "color" 0..7, "dash", "points" [(x, y)], "dots" [(x, y)] or absent}]; levels: [(y, label)] drawn across.
    powers: y is log10 of what the axis shows. Thin pale lines are single steps, bold ones the trailing mean over a fiftieth of the curve."""
    points = [p for s in series for p in s["points"] if math.isfinite(p[1])]
    if not points:
        return '<p class="note">There is nothing to draw: no finite value was recorded.</p>'
    top = 14
    x_high = max(p[0] for p in points)
    x_low = min(min(p[0] for p in points), x_high)
    ys = [p[1] for p in points] + [y for y, _ in levels]
    low, high = min(ys), max(ys)
    pad = 0.04 * (high - low or 1)
    low, high = low - pad, high + pad

    def x_of(x):
        return LEFT + (x - x_low) / ((x_high - x_low) or 1) * (WIDTH - LEFT - RIGHT)

    def y_of(y):
        return height - BOTTOM - (y - low) / (high - low) * (height - BOTTOM - top)

    out = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img"><title>{escape(description)}</title>']
    y_ticks = power_ticks(low, high) if powers else ticks(low, high)
    out += frame(height, ticks(x_low, x_high, 8, all(isinstance(p[0], int) for p in points)), y_ticks, x_of, y_of, (x_title, y_title), top, powers)
    for y, label in levels:
        out.append(f'<line class="level" x1="{LEFT}" y1="{y_of(y):.1f}" x2="{WIDTH - RIGHT}" y2="{y_of(y):.1f}"/>'
                   f'<text class="leveltext" x="{WIDTH - RIGHT - 4}" y="{y_of(y) - 5:.1f}" text-anchor="end">'
                   f'{escape(label)}</text>')
    for s in series:
        finite = [p for p in s["points"] if math.isfinite(p[1])]
        if not finite:
            continue
        window = max(1, len(finite) // 50)
        dash = f' stroke-dasharray="{s["dash"]}"' if s.get("dash") else ""

        def path(points):
            return "M" + "L".join(f"{x_of(x):.1f} {y_of(y):.1f}" for x, y in thin(points))
        if window > 1:
            out.append(f'<path class="raw c{s["color"]}" d="{path(finite)}"/>')
        out.append(f'<path class="curve c{s["color"]}"{dash} d="{path(smooth(finite, window))}">'
                   f'<title>{escape(s["label"])}</title></path>')
        for x, y in s.get("dots", []):
            if x_low <= x <= x_high and low <= y <= high:
                out.append(f'<circle class="dot c{s["color"]}" cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="4">'
                           f'<title>{escape(s["label"])}, held-out text, step {x}: {y:.4f}</title></circle>')
    out.append("</svg>")
    return "".join(out)


def legend(entries):
    """entries: [(css class, label)] or [(css class, label, dash)]; lines when there is a dash, else boxes."""
    items = []
    for css, label, *dash in entries:
        if dash:
            style = f' stroke-dasharray="{dash[0]}"' if dash[0] else ""
            mark = f'<svg class="key" viewBox="0 0 26 10"><path class="curve {css}"{style} d="M1 5H25"/></svg>'
        else:
            mark = f'<svg class="key box" viewBox="0 0 12 12"><rect class="fill {css}" width="12" height="12" rx="2"/></svg>'
        items.append(f"<li>{mark}{escape(label)}</li>")
    return f'<ul class="legend">{"".join(items)}</ul>'


def bar_plot(bars, x_title, description="", scale=1.0, digits=1):
    """Horizontal stacked bars. bars: [{"group": heading or None, "label", "segments": [(css, name, value)],
    "outline": draw hollow, "mark": (value, text) or None, "text": after the bar}]. Values are divided by scale."""
    label_width, row, gap = 190, 17, 4
    top = 6
    height = top + BOTTOM
    for bar in bars:
        height += row + gap + (12 if bar.get("group") else 0)
    values = [sum(v for _, _, v in b["segments"]) for b in bars] + [b["mark"][0] for b in bars if b.get("mark")]
    high = max(values + [0]) / scale or 1.0
    room = WIDTH - label_width - 100

    def x_of(v):
        return label_width + v / high * room

    axis = ticks(0, high, 6)
    step = axis[1] - axis[0] if len(axis) > 1 else 1
    base = height - BOTTOM
    out = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img"><title>{escape(description)}</title>']
    for t in axis:
        out.append(f'<line class="grid" x1="{x_of(t):.1f}" y1="{top}" x2="{x_of(t):.1f}" y2="{base}"/>'
                   f'<text class="tick" x="{x_of(t):.1f}" y="{base + 18}" text-anchor="middle">{tick_text(t, step)}</text>')
    out.append(f'<text class="axis" x="{label_width + room / 2:.0f}" y="{height - 8}" text-anchor="middle">'
               f'{escape(x_title)}</text>')
    y = top
    for bar in bars:
        if bar.get("group"):
            y += 12
        middle = y + row / 2 + 4
        if bar.get("group"):
            out.append(f'<text class="group" x="0" y="{middle:.1f}">{escape(bar["group"])}</text>')
        out.append(f'<text class="tick" x="{label_width - 8}" y="{middle:.1f}" text-anchor="end">{escape(bar["label"])}</text>')
        at = 0.0
        for css, name, value in bar["segments"]:
            if value <= 0:
                continue
            x0, x1 = x_of(at / scale), x_of((at + value) / scale)
            kind = "hollow" if bar.get("outline") else "fill"
            inset = 1 if bar.get("outline") else 0
            out.append(f'<rect class="{kind} {css}" x="{x0 + inset:.2f}" y="{y + inset:.1f}" '
                       f'width="{max(x1 - x0 - 2 * inset, 0.5):.2f}" height="{row - 2 * inset}">'
                       f'<title>{escape(bar["label"])}, {escape(name)}: {value / scale:,.{digits + 1}f}</title></rect>')
            at += value
        if bar.get("mark"):
            x = x_of(bar["mark"][0] / scale)
            out.append(f'<path class="mark" d="M{x:.1f} {y - 3:.1f}V{y + row + 3:.1f}"><title>{escape(bar["mark"][1])}</title></path>')
            at = max(at, bar["mark"][0])
        text = bar.get("text") or f"{sum(v for _, _, v in bar['segments']) / scale:,.{digits}f}"
        out.append(f'<text class="value" x="{x_of(at / scale) + 6:.1f}" y="{middle:.1f}">{escape(text)}</text>')
        y += row + gap
    out.append("</svg>")
    return "".join(out)
