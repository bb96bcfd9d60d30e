"""How old the weights were that asynchronous gradients were computed on: how often, over time, per worker."""
from html import escape

from ..draw.bars import histogram
from ..draw.figure import figure
from ..draw.lines import Lines, line_plot, rows
from .figures import dash, key_of


def stale_runs(groups):
    return [g[0] for g in groups if g[0].kind == "ps" and g[0].topology != "ps:sync"
            and sum(g[0].get("staleness", "histogram") or []) > 0]


def histograms(runs):
    plots = []
    for run in runs:
        words = f"mean {run.get('staleness', 'mean', default=0):.2f}, at most {run.get('staleness', 'max', default=0):.0f}"
        plots.append(f"<div class=\"plot\"><h4>{escape(run.label)}</h4>"
                     f"{histogram(run.get('staleness', 'histogram'), 'updates missed', 'Staleness of ' + run.label)}<p>{words}</p></div>")
    told = [["run", "updates missed", "gradients"]] + [[run.label, i, count] for run in runs for i, count in enumerate(run.get("staleness", "histogram"))]
    return figure("staleness", "How stale the gradients were", f'<div class="small">{"".join(plots)}</div>', told,
                  "Share of the gradients by staleness, over all workers. With N workers of equal speed most gradients miss N - 1 updates; a "
                  "slow worker misses more.")


def series(runs):
    """Mean staleness against the updates of the job; "" where none was recorded."""
    found = [{"label": run.label, "color": i % 8, "dash": dash(i), "points": [(u, tau) for u, tau in run.get("staleness", "series") or []]}
             for i, run in enumerate(runs)]
    found = [s for s in found if len(s["points"]) > 1]
    if not found:
        return ""
    plot = Lines(found, "updates of the job", "mean staleness (updates)", [], "Staleness over time", 240, from_zero=True)
    return "<h3>Over the run</h3>" + figure("staleness-over-time", "Staleness over time", key_of(found) + line_plot(plot), rows([plot]),
                                            "The mean over the gradients since the point before. It grows where a worker falls behind.")


def worker_rows(run):
    """[[cell]] of one run's workers; [] where they were not told apart."""
    rows = []
    for i, w in enumerate(run.get("staleness", "workers") or []):
        if isinstance(w, dict):
            rows.append([run.label, f"worker {w.get('worker', w.get('rank', i))}", *(
                f"{w[k]:,.2f}" if isinstance(w.get(k), float) else str(w.get(k, "-")) for k in ("mean", "max"))])
    return rows


def unit_rows(run):
    return [[run.label, f"unit {u.get('unit')}", f"{u['mean']:.2f}", str(u.get("max", "-"))]
            for u in run.get("staleness", "units") or [] if isinstance(u, dict) and isinstance(u.get("mean"), (int, float))]


def tables(runs):
    """Staleness per worker and per unit; "" where no run told them apart."""
    rows = [row for run in runs for row in worker_rows(run) + unit_rows(run)]
    if not rows:
        return ""
    body = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in rows)
    spreads = [f"{run.label}: mean {run.get('staleness', 'spread', 'mean'):.2f}, at most {run.get('staleness', 'spread', 'max'):g}"
               for run in runs if isinstance(run.get("staleness", "spread", "mean"), (int, float))]
    inside = (f"<p>Inside one gradient the units may have been computed on different versions. Spread of the versions: "
              f"{escape('; '.join(spreads))}.</p>" if spreads else "")
    return (f"<details><summary>Per worker and per unit</summary>{inside}<div class=\"wide\"><table><thead><tr><th>run</th><th>of</th>"
            f"<th>mean</th><th>at most</th></tr></thead><tbody>{body}</tbody></table></div></details>")


def section(groups):
    """The section; "" without such runs."""
    runs = stale_runs(groups)
    if not runs:
        return ""
    return f"""<h2>How stale the gradients were</h2>
<p>In an asynchronous star a worker computes on weights that change meanwhile. Staleness counts the updates of others that
a server applied between a worker's pull of the weights and its own gradient's update.</p>
{histograms(runs)}{series(runs)}{tables(runs)}"""
