"""The report's curves: training loss, the distance between curves, and loss on held-out text against samples, updates, time."""
import math
import statistics

from markupsafe import Markup

from .. import learning, speed, table
from ..draw.figure import figure
from ..draw.lines import Lines, line_plot, rows
from ..runs import as_float
from ..spread import finite
from . import SECTIONS
from .figures import dash, key_of, noisy

AXES = [("samples", "samples of the job"), ("updates", "updates of the weights"), ("seconds", "seconds of training")]


def same_curve(groups):
    """[[group]]: groups whose runs all have exactly the same losses share a curve."""
    found = {}
    for group in groups:
        found.setdefault(frozenset((tuple(r.losses), r.weights_hash) for r in group), []).append(group)
    return sorted(found.values(), key=len, reverse=True)


def middle_of(places, losses):
    """(points, band). losses: at each position of the x axis, the losses of all runs. points: their medians; band: from the lowest to the highest, [] if
    all runs are equal."""
    known = [(x, found) for x, found in zip(places, losses) if all(map(math.isfinite, found))]
    band = [(x, min(found), max(found)) for x, found in known]
    points = [(x, statistics.median(found) if all(map(math.isfinite, found)) else math.nan) for x, found in zip(places, losses)]
    return points, band if any(low < high for _, low, high in band) else []


def curve_of(runs):
    """middle_of() of the losses of each step."""
    steps = list(zip(*(r.metrics for r in runs)))
    return middle_of([records[0].get("step", k) for k, records in enumerate(steps, 1)], [[as_float(m["loss"]) for m in records] for records in steps])


def whose(*runs):
    """The labels of runs with one curve, and whose samples its loss is of if it is no mean over the global batch."""
    of = runs[0].get("explained", "loss_of")
    return " = ".join(run.label for run in runs) + (f" ({of})" if of not in (None, "the global batch") else "")


def entropy_of(groups):
    """[(level, words)] of the loss of a model that knows only token frequencies; [] if no run reports it."""
    entropy = next((r.unigram_entropy for g in groups for r in g if isinstance(r.unigram_entropy, (int, float))), None)
    return [(entropy, f"unigram entropy of the text, {entropy:.3f}")] if entropy else []


def drawn(name, series, axes, levels, **more):
    """A figure of one plot with its key. axes: (x, y, title)."""
    plot = Lines(series, axes[0], axes[1], levels, axes[2], **more)
    return figure(name, axes[2], key_of(series, levels) + line_plot(plot), rows([plot]))


def losses(groups):
    """Training loss against steps."""
    series, levels = [], entropy_of(groups)
    for alike in same_curve(groups):
        i = groups.index(alike[0])
        points, band = curve_of(alike[0])
        series.append({"label": whose(*(g[0] for g in alike)), "color": i % 8, "dash": dash(i), "points": points, "band": band,
                       "dots": [] if band else [(e.step, e.loss) for e in learning.judged(alike[0][0])]})
    found = [(g[0].label, finite([r.val_loss for r in g])) for g in groups]
    held_out = [f"{label} {statistics.median(values):.4f}" for label, values in found if values]
    return SECTIONS.losses(drawn("loss", series, ("step", "loss (nats per token)", "Loss against step"), levels, height=310),
                           any(whose(g[0]) != g[0].label for g in groups), any(s["band"] for s in series), held_out if len(held_out) <= 8 else [])


def apart(groups):
    """The figure of the distances from the curve that most runs share; "" if all curves are equal."""
    return distances([alike[0][0] for alike in same_curve(groups)], groups)


def wall_clock(groups):
    """Training loss against the seconds that it took."""
    series, factor = [], speed.clock(groups)
    for i, group in enumerate(groups):
        run, own = group[0], factor[group[0].label]
        series.append({"label": whose(run), "color": i % 8, "dash": dash(i),
                       "points": [(t * own, as_float(m["loss"])) for t, m in zip(run.elapsed(), run.metrics)]})
    return SECTIONS.wall_clock(
        drawn("loss-seconds", series, ("seconds since the first step began", "loss (nats per token)", "Loss against seconds"), entropy_of(groups)),
        any(len(g) > 1 for g in groups), any(v != 1 for v in factor.values()))


def distances(runs, groups):
    """The distances of the other curves from the first one, which most runs share. Each has its group's colour."""
    reference, series = runs[0], []
    for run in runs[1:]:
        i = next(k for k, group in enumerate(groups) if run in group)
        if run.seed != reference.seed:
            continue
        points = []
        for k, (m, n) in enumerate(zip(run.metrics, reference.metrics)):
            gap = abs(as_float(m["loss"]) - as_float(n["loss"]))
            if gap > 0:
                points.append((m.get("step", k + 1), math.log10(gap)))
        if points:
            series.append({"label": run.label, "color": i % 8, "dash": dash(i), "points": points})
    if not series:
        return ""
    return SECTIONS.distances(drawn("distance", series, ("step", "distance of the losses (nats per token)", "Distance between loss curves"), [],
                                    height=300, powers=True), reference.label)


def at_places(runs, what):
    """middle_of() of the held-out losses. The runs' n-th evaluations form one point, at the median of their positions on the x axis."""
    found = list(zip(*(learning.judged(run) for run in runs)))
    return middle_of([statistics.median(getattr(e, what) for e in same) for same in found], [[e.loss for e in same] for same in found])


def held_out(groups, target):
    """Loss on held-out text against samples, updates and seconds; "" if there are fewer than two evaluations."""
    groups = [g for g in groups if min(len(learning.judged(run)) for run in g) > 1]
    if not groups:
        return ""
    levels = [(target, f"target loss: {target:.4f}")] if target is not None else []
    plots, series = [], []
    for what, words in AXES:
        series = []
        for i, group in enumerate(groups):
            points, band = at_places(group, what)
            series.append({"label": group[0].label, "color": i % 8, "dash": dash(i), "points": points, "band": band})
        plots.append(Lines(series, words, "held-out loss (nats per token)", levels, f"Held-out loss against {words}", 300, marked=True))
    parts = Markup().join(Markup('<div class="plot">{}</div>').format(line_plot(plot)) for plot in plots)
    return SECTIONS.held_out(figure("held-out", "Loss on held-out text", key_of(series, levels) + parts, rows(plots))) + time_to(groups, target)


def time_to(groups, target):
    """A row per group: the seconds to the target."""
    if target is None:
        return ""
    rows = []
    for group in groups:
        found = learning.time_to(group, target)
        text = [table.number(v, table.digits(v)) for v in (found.value, found.low, found.high) if v is not None] if found else ["never"]
        ends = f" ({text[1]} to {text[2]})" if len(text) > 1 else ""
        rows.append([group[0].label, text[0] + ends + (noisy(group) if found else ""), *(took(group, target, what) for what in ("updates", "samples"))])
    return SECTIONS.time_to(f"{target:.4f}", rows)


def took(group, target, what):
    found = [learning.reached(run, target, what) for run in group]
    return "never" if None in found else f"{statistics.median(found):,.0f}"
