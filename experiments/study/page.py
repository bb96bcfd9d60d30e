"""Shows a study: tables for the terminal and as Markdown, the offline page, and the picture of --picture."""
import statistics

from markupsafe import Markup

import tables
from comparison import learning, machine
from comparison.draw import svg
from comparison.draw.lines import Lines, draw, line_plot
from comparison.pages import SECTIONS, curves, figures, report, staleness
from . import results

AXES = {"samples": "samples of the job", "updates": "updates of the weights", "seconds": "seconds of training", "sent": "MiB sent in the job"}
WIDTH, ROW, GAP, HEIGHT = 880, 18, 26, 260


def cell_text(found, digits):
    """The text of an Estimate: "12.3 (11.9 to 12.8)"; "-" for None."""
    if found is None:
        return "-"
    ends = [] if found.low is None or found.low == found.high else [found.low, found.high]
    return f"{found.value:,.{digits}f}" + (f" ({ends[0]:,.{digits}f} to {ends[1]:,.{digits}f})" if ends else "")


def table(study, condition, cells, target, only=()):
    """[[cell]]: a heading, and a line for each row of one condition, without figures that no row has. only: the figures to show; (): all."""
    mine = [c for c in cells if c.condition == condition and c.runs]
    found = [results.estimates(c, target) for c in mine]
    columns = [(key, words, digits) for key, words, _, digits in results.figures_of(target) if any(f[key] is not None for f in found) and (not only or key in only)]
    head = ["row", *(words for _, words, _ in columns)]
    lines = [[c.row.name + ("" if len(c.runs) == len(study.seeds) else f" ({len(c.runs)} of {len(study.seeds)} runs)"),
              *(cell_text(f[key], digits) for key, _, digits in columns)] for c, f in zip(mine, found)]
    return [head, *lines] if lines else []


def text_of(lines):
    """A table for the terminal: a column for each row of the study."""
    return tables.text(list(zip(*lines)))


def series_of(cells, what):
    """The input of a line plot: the median held-out loss of each cell, and an area from its lowest to its highest run."""
    out = []
    for i, cell in enumerate(cells):
        runs = [run for run in cell.runs if len(learning.judged(run)) > 1]
        if not runs:
            continue
        points, band = curves.at_places(runs, "samples" if what == "sent" else what)
        if what == "sent":  # in proportion to the samples
            share = statistics.median((results.sent_bytes(run) or 0) / results.MIB / max(learning.judged(run)[-1].samples, 1) for run in runs)
            points, band = [(x * share, y) for x, y in points], [(x * share, *ends) for x, *ends in band]
        out.append({"label": cell.row.name, "color": i % 8, "dash": figures.dash(i), "points": points, "band": band})
    return out


def plots(cells, target, width, height):
    """[Lines]: the plots of one condition, one per x axis."""
    levels = [(target, f"target: {target:.4f}")] if target is not None else []
    return [Lines(series, words, "held-out loss (nats per token)", levels, f"Held-out loss against {words}", height, marked=True)
            for what, words in AXES.items() for series in [series_of(cells, what)] if any(x for s in series for x, _ in s["points"])]


def of_condition(study, condition, cells, target, said):
    """The page's section on one condition."""
    mine = [c for c in cells if c.condition == condition and c.runs]
    drawn = plots(mine, target, svg.WIDE, 300)
    pictures = Markup().join(Markup('<div class="plot">{}</div>').format(line_plot(plot)) for plot in drawn)
    return SECTIONS.condition(condition.name, ", ".join(f"{key} = {value}" for key, value in condition.settings.items()), said,
                              figures.key_of(drawn[0].series, drawn[0].levels) + pictures if drawn else "", table(study, condition, cells, target))


def write(path, study, cells, targets, verdicts, about):
    """The offline page of a study; about: report.About."""
    groups = [c.runs for c in cells if c.runs]
    runs = [g[0] for g in groups]
    body = Markup().join(of_condition(study, condition, cells, targets[condition.name],
                                      [results.in_words(v) for v in verdicts if v.condition == condition.name])
                         for condition in study.conditions if any(c.runs for c in cells if c.condition == condition))
    body += staleness.section(groups) + figures.memory(runs) + figures.wire(runs) + figures.totals(groups)
    rows = [[r.name, r.topology, ", ".join(f"{k} = {v}" for k, v in r.settings.items()) or "-"] for r in study.rows]
    body += SECTIONS.study_rows(rows) + report.notes([run for group in groups for run in group], about)
    top = report.head(study.title, runs) + report.failures(about.failed, groups) + SECTIONS.study_top(study.question, results.busy(cells))
    body, contents = report.with_contents(body)
    report.write_page(path, study.title, top, body, contents)


def picture(study, cells, targets):
    """(height, SVG): a row per condition, with a plot per x axis that the study names, and one key for all."""
    shown = [c for c in study.conditions if any(cell.runs for cell in cells if cell.condition == c)]
    names = [row.name for row in study.rows if any(cell.runs for cell in cells if cell.row == row)]
    out, y, columns = [], 4, 3
    for i, name in enumerate(names):
        x, at = i % columns * (WIDTH // columns), y + i // columns * ROW
        style = f' stroke-dasharray="{figures.dash(i)}"' if figures.dash(i) else ""
        out.append(f'<path class="curve c{i % 8}"{style} d="M{x} {at + 6}H{x + 24}"/>'
                   + svg.text_at("value", x + 32, at + 10, svg.elide(name, WIDTH // columns - 44, "value")))
    y += (len(names) + columns - 1) // columns * ROW + 10
    each = (WIDTH - GAP * (len(study.picture) - 1)) // len(study.picture)
    for condition in shown:
        mine = [next((c for c in cells if c.condition == condition and c.row.name == name), None) for name in names]
        if len(shown) > 1:
            out.append(svg.text_at("group", 0, y + 12, condition.name))
            y += ROW + 4
        tallest = 0
        for k, what in enumerate(study.picture):
            series = [{**s, "color": names.index(s["label"]) % 8, "dash": figures.dash(names.index(s["label"]))}
                      for s in series_of([c for c in mine if c], what)]
            target = targets[condition.name]
            plot = Lines(series, AXES[what], "held-out loss (nats per token)", [(target, "")] if target is not None else [],
                         f"{condition.name}: held-out loss against {AXES[what]}", HEIGHT, marked=True)
            height, placed = svg.place(draw(plot, each), k * (each + GAP), y)
            out.append(placed)
            tallest = max(tallest, height)
        y += tallest + 10
    return y, "".join(out)


def document(study, cells, targets, verdicts, failed, command):
    """The study as one JSON document."""
    def estimate(found):
        return None if found is None else {"median": found.value, "low": found.low, "high": found.high, "runs": found.count}

    def run(one, target):
        return {"seed": one.seed, "directory": one.name, "weights_hash": one.weights_hash,
                "figures": {key: read(one) for key, _, read, _ in results.figures_of(target)},
                "evaluations": [{"samples": e.samples, "updates": e.updates, "seconds": e.seconds, "loss": e.loss} for e in learning.judged(one)]}
    rows = [{"row": c.row.name, "condition": c.condition.name, "topology": c.row.topology, "settings": {**c.condition.settings, **c.row.settings},
             "estimates": {k: estimate(e) for k, e in results.estimates(c, targets[c.condition.name]).items()},
             "runs": [run(one, targets[c.condition.name]) for one in c.runs]} for c in cells if c.runs]
    said = [{"condition": v.condition, "measure": v.key, "unit": v.unit, "ahead": v.best, "never": list(v.never), "sentence": results.in_words(v),
             "others": [{"row": name, "ratio": r.value, "low": r.low, "high": r.high, "corrected": [r.least, r.most], "seeds": r.count, "beyond_noise": r.differs}
                        for name, r in v.ratios]} for v in verdicts]
    return {"title": study.title, "command": command, "seeds": study.seeds, "reference": study.reference, "targets": targets, "rows": rows,
            "verdicts": said, "busy": results.busy(cells), "failed": [vars(f) for f in failed],
            "machine": [fact for fact in machine.facts(True) if fact[0] in ("processor", "cores used", "memory")],
            "revisions": sorted({str(r.revision) for c in cells for r in c.runs})}
