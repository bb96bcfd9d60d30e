"""Staleness, the age of the weights that asynchronous gradients were computed on: its histogram, its course over time, and per worker."""
from markupsafe import Markup

from .. import table
from ..draw.bars import histogram
from ..draw.figure import figure
from ..draw.lines import Lines, line_plot, rows
from . import SECTIONS
from .figures import dash, key_of


def histograms(runs):
    plots = []
    for run in runs:
        words = f"mean {run.get('staleness', 'mean', default=0):.2f}, at most {run.get('staleness', 'max', default=0):.0f}"
        plots.append(Markup('<div class="plot"><h4>{}</h4>{}<p>{}</p></div>').format(
            run.label, histogram(run.get("staleness", "histogram"), "updates missed", "Staleness of " + run.label), words))
    told = [["run", "updates missed", "gradients"]] + [[run.label, i, count] for run in runs for i, count in enumerate(run.get("staleness", "histogram"))]
    return figure("staleness", "How stale the gradients were", Markup('<div class="small">{}</div>').format(Markup().join(plots)), told)


def series(runs):
    """Mean staleness against the updates of the job; "" if none was recorded."""
    found = [{"label": run.label, "color": i % 8, "dash": dash(i), "points": [(u, tau) for u, tau in run.get("staleness", "series") or []]}
             for i, run in enumerate(runs)]
    found = [s for s in found if len(s["points"]) > 1]
    if not found:
        return ""
    plot = Lines(found, "updates of the job", "mean staleness (updates)", [], "Staleness over time", 240, from_zero=True)
    return figure("staleness-over-time", "Staleness over time", key_of(found) + line_plot(plot), rows([plot]))


def rows_of(run):
    """[[cell]] of one run's workers and units; [] if they were not recorded separately."""
    workers = [w for w in run.get("staleness", "workers") or [] if isinstance(w, dict)]
    units = [u for u in run.get("staleness", "units") or [] if isinstance(u, dict) and isinstance(u.get("mean"), (int, float))]
    named = [(f"worker {w.get('worker', w.get('rank', i))}", w) for i, w in enumerate(workers)] + [(f"unit {u.get('unit')}", u) for u in units]
    return [[run.label, name, *(f"{found[k]:,.2f}" if isinstance(found.get(k), float) else str(found.get(k, "-")) for k in ("mean", "max"))]
            for name, found in named]


def section(groups):
    """The section; "" without such runs."""
    runs = [g[0] for g in groups if table.stale(g[0]) and sum(g[0].get("staleness", "histogram") or []) > 0]
    if not runs:
        return ""
    spreads = [f"{run.label}: mean {run.get('staleness', 'spread', 'mean'):.2f}, at most {run.get('staleness', 'spread', 'max'):g}"
               for run in runs if isinstance(run.get("staleness", "spread", "mean"), (int, float))]
    return SECTIONS.staleness(histograms(runs), series(runs), spreads, [row for run in runs for row in rows_of(run)])
