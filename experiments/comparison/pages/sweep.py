"""Metrics against the values of --sweep: one line per topology."""
import math

from markupsafe import Markup

from .. import table
from ..draw import svg
from ..draw.figure import figure
from ..draw.lines import Lines, line_plot, rows
from ..runs import as_float, device_bytes
from ..spread import estimate
from . import SECTIONS
from .figures import dash, key_of

MIB = table.MIB
FORMULA = "the formula, or in proportion"  # the key's entry for dotted lines


def mib(value):
    return value / MIB if isinstance(value, (int, float)) else None


def memory_of(role):
    return lambda run: mib(device_bytes(run.roles()[role]["peak"])) if role in run.roles() else None


def formula_of(role):
    return lambda run: mib(run.roles().get(role, {}).get("formula_bytes") or None)


def wire_of(role, key):
    return lambda run: mib((run.wire_of(role) or {}).get(key))


# (title with unit, function that returns a run's value or None, whether the axis starts at zero, the formula to draw as well or None)
METRICS = [
    ("tokens/s", lambda run: run.tokens_per_second, True, None),
    ("step, median (ms)", lambda run: 1e3 * run.get("step_seconds", "median", default=math.nan), True, None),
    ("loss of the last step (nats per token)", lambda run: as_float(run.losses[-1]), False, None),
    ("held-out loss (nats per token)", lambda run: run.val_loss, False, None),
    ("memory per worker (MiB)", memory_of("worker"), True, formula_of("worker")),
    ("memory per server (MiB)", memory_of("server"), True, formula_of("server")),
    ("a worker sends, per step (MiB)", wire_of("worker", "sent_per_step"), True, wire_of("worker", "predicted_sent")),
    ("a server sends, per step (MiB)", wire_of("server", "sent_per_step"), True, wire_of("server", "predicted_sent")),
    ("memory of the whole job (MiB)", lambda run: mib(run.get("totals", "memory_bytes")), True, None),
    ("sent in the whole job, per step (MiB)", lambda run: mib(run.get("totals", "sent_per_step")), True, None),
    ("CPU seconds of the whole job", lambda run: run.get("totals", "cpu_seconds"), True, None),
]


def numbers_of(values):
    """The swept values as floats; None if one is no number."""
    try:
        out = [float(v) for v in values]
    except ValueError:
        return None
    return out if all(map(math.isfinite, out)) else None


def axis(key, values):
    """(positions by text, [(position, tick)], title) of a swept key. Numbers lie on a linear axis, powers of two or ten on a logarithmic
    one; other values are categories in the given order."""
    found = numbers_of(values)
    if found is None:
        return {v: i for i, v in enumerate(values)}, list(enumerate(values)), key
    title, unit = key, 1
    if key.endswith("_bytes") and max(found) >= MIB // 16:
        title, unit = f"{key[:-len('_bytes')]} (MiB)", MIB
    texts = [f"{x / unit:.3g}" for x in found]
    base = next((b for b in (2, 10) if len(set(found)) > 1 and all(x > 0 and abs(math.log(x, b) - round(math.log(x, b))) < 1e-9 for x in found)), None)
    places = [math.log(x, base) for x in found] if base else found
    if base is None and len(set(places)) > 1:  # drawn over a range of about the number of values
        low, span = min(places), max(places) - min(places)
        places = [(x - low) / span * (len(values) - 1) for x in places]
    title += f", log{base}" if base else ""
    return dict(zip(values, places)), sorted(zip(places, texts)), title


def lines_of(groups, key):
    """{name of a line: [(value of key, group)]}: the label without the key that the plot is against."""
    out = {}
    for group in groups:
        point = dict(group[0].point)
        name = group[0].label.replace(f" {key.split('.')[-1]}={point[key]}", "")
        out.setdefault(name, []).append((point[key], group))
    return out


def series_of(lines, places, read):
    """The input of line_plot: medians, with the 95% intervals of repeated runs as upright lines and an area."""
    out = []
    for i, (name, entries) in enumerate(lines.items()):
        points, ranges = [], []
        for value, group in entries:
            found = [v for v in map(read, group) if isinstance(v, (int, float)) and math.isfinite(v)]
            if not found:
                continue
            middle = estimate(found, lowest=0.0)
            points.append((places[value], middle.value))
            if middle.low is not None:
                ranges.append((places[value], middle.low, middle.high))
        if points:
            out.append({"label": name, "color": i % 8, "dash": dash(i), "points": sorted(points),
                        "ranges": ranges, "band": sorted(ranges)})
    return out


def speed_up(lines, places):
    """tokens/s relative to the fewest workers, and the line of perfect scaling."""
    series, least, most = [], 0, 0
    for name, i in zip(lines, range(len(lines))):
        entries = sorted(lines[name], key=lambda e: float(e[0]))
        base = estimate([run.tokens_per_second for run in entries[0][1]])
        found = [(value, estimate([run.tokens_per_second for run in group])) for value, group in entries]
        points = [(places[value], e.value / base.value) for value, e in found if e and base and base.value]
        if len(points) > 1:
            series.append({"label": name, "color": i % 8, "dash": dash(i), "points": points})
            least, most = entries[0][0], entries[-1][0]
    if series:
        series.append({"label": "in proportion to the workers", "key": FORMULA, "color": 7, "formula": True, "points": [
            (places[v], float(v) / float(least)) for v in sorted(places, key=float) if float(least) <= float(v) <= float(most)]})
    return series


def plots_of(groups, key):
    """The figure of one swept key."""
    values = list(dict.fromkeys(dict(g[0].point)[key] for g in groups))
    places, ticks, x_title = axis(key.split(".")[-1], values)
    lines = lines_of(groups, key)
    cells, plots, dotted = [], [], False

    def add(title, series, zero):
        plot = Lines(series, x_title, title, description=f"{title} against {key}", height=220, x_ticks=ticks, from_zero=zero)
        plots.append(plot)
        cells.append(Markup('<div class="plot">{}</div>').format(line_plot(plot, svg.SMALL)))
    if key == "workers" and numbers_of(values) and len(values) > 1:
        series = speed_up(lines, places)
        if series:
            add(f"speed-up over {min(values, key=float)} worker{'s' if float(min(values, key=float)) != 1 else ''}", series, True)
            dotted = True
    for title, read, zero, formula in METRICS:
        series = series_of(lines, places, read)
        if series and any(y for s in series for _, y in s["points"]):
            beside = [{**s, "key": FORMULA, "formula": True, "ranges": [], "band": []} for s in series_of(lines, places, formula)] if formula else []
            dotted = dotted or bool(beside)
            add(title, beside + series, zero)
    key_lines = [{"label": name, "color": i % 8, "dash": dash(i)} for i, name in enumerate(lines)]
    key_lines += [{"label": FORMULA, "color": 7, "formula": True}] if dotted else []
    return figure(f"sweep-{key}", f"Against {key}", key_of(key_lines) + Markup('<div class="small">{}</div>').format(Markup().join(cells)), rows(plots))


def section(groups):
    """Every metric against every swept key; "" if nothing was swept."""
    keys = [key for key, _ in groups[0][0].point]
    if not keys:
        return ""
    return SECTIONS.sweep(keys, any(len(g) > 1 for g in groups), [plots_of(groups, key) for key in keys])
