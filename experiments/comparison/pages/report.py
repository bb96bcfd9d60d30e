"""Writes the offline report: one HTML file with what was run, the results, and how to read them."""
import os
import re
from dataclasses import dataclass

from markupsafe import Markup

from .. import claims, equality, comparability, machine, sentences, speed, table
from ..draw import forest, svg
from ..draw.figure import figure
from ..draw.style import CSS, SCRIPT
from ..runs import failures_in_words, total
from . import SECTIONS, closing, curves, figures, findings, staleness, sweep, timeline

MIB = table.MIB
# The browser must fetch nothing for this page, whatever text its runs have put into it.
OFFLINE = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
MOST = 8   # if there are more topologies, or a sweep (which has its own plots), their pictures are folded


@dataclass
class About:
    """Facts about the page. trained: this command started the runs. target: the held-out loss that runs are timed to, or None. failed:
    [Failure]."""
    title: str
    command: str
    directory: str
    trained: bool
    target: float = None
    failed: tuple = ()


def write(path, groups, about, continued=""):
    """continued: the section of comparison/sample.py, or nothing."""
    runs = [g[0] for g in groups]
    every = [r for g in groups for r in g]
    title = about.title or title_of(every)
    crowded = [figures.memory(runs), figures.wire(runs), timeline.section(groups)]
    shown, folded = (crowded, []) if len(groups) <= MOST and not runs[0].point else ([], crowded)
    body = Markup().join([overview(groups), speeds(groups), curves.losses(groups), sweep.section(groups), *shown])
    more = [*folded, topologies(runs), curves.wall_clock(groups), curves.held_out(groups, about.target), curves.apart(groups), SECTIONS.verdicts(equality.in_words(every)),
            differing(groups, about.target), figures.formulas(runs), figures.totals(groups), figures.times(groups), figures.links(groups),
            staleness.section(groups), numbers(groups, about.target), hashes(every), continued, notes(every, about)]
    top = Markup().join([head(title, every), failures(about.failed, groups), unlike(groups), SECTIONS.found(findings.five(groups))])
    write_page(path, title, top, body + Markup("<h2>More</h2>") + Markup().join(map(fold, more)))


def fold(section):
    """A section that is closed until its heading is clicked."""
    return Markup(re.sub(r"^\s*<h2>([^<]*)</h2>(.*)$", r'<details class="all"><summary>\1</summary>\2</details>', str(section), count=1, flags=re.S))


def write_page(path, title, top, body, contents=()):
    """One HTML file: the part above the list of contents, the list [(place, words)] if there is one, and the body."""
    with open(path, "w", encoding="utf-8") as f:
        f.write(SECTIONS.page(title, top, body, contents, CSS, SCRIPT, OFFLINE).lstrip())


def with_contents(body):
    """(the body with an anchor before each heading, [(anchor, heading)])."""
    places = []

    def mark(heading):
        places.append((re.sub(r"[^a-z0-9]+", "-", heading.group(1).lower()).strip("-"), Markup(heading.group(1))))
        return f'<a id="{places[-1][0]}"></a>{heading.group(0)}'
    return Markup(re.sub(r"<h2>([^<]*)</h2>", mark, str(body))), places


def common(runs, key):
    """The value of a key in all runs: "1, 2, 3" for a few different numbers, "varies" for others; None if no run has it."""
    values = list(dict.fromkeys(str(r.summary.get(key)) for r in runs if r.summary.get(key) is not None))
    return None if not values else ", ".join(values) if len(values) == 1 or (len(values) <= MOST and all(map(str.isdigit, values))) else "varies"


def title_of(runs):
    """A line that names what was compared: topologies, the values of a sweep, the roles that were made slow."""
    topologies = list(dict.fromkeys(r.topology for r in runs))
    names = findings.listed(topologies) if len(topologies) <= MOST else f"{len(topologies)} topologies"
    points, rounds, slow = {}, {r.local_steps for r in runs}, {r.get("trouble", "text") or "" for r in runs}
    for key, value in (one for run in runs for one in run.point):
        points.setdefault(key, {})[value] = None
    swept = " and".join(f" with {key} = {findings.listed(values)}" for key, values in points.items()) or (
        f" with {rounds.pop()} local steps per round" if len(rounds) == 1 and None not in rounds else "")
    what = " compared" if len({r.label for r in runs}) > 1 else ", one run" if len(runs) == 1 else f", {len(runs)} runs"
    return names + what + swept + (f": {slow.pop()}" if len(slow) == 1 and "" not in slow else "")


def head(title, runs):
    facts = [("model", "model"), ("params", "parameters"), ("dtype", "number format"), ("steps", "steps"),
             ("tokens_per_step", "tokens per step"), ("local_steps", "local steps per round"), ("seed", "seed"), ("device", "device")]
    items = []
    for key, words in facts:
        value = common(runs, key)
        if value is not None:
            value = os.path.basename(value.rstrip("/")) if key == "model" else value
            items.append((f"{int(value):,}" if value.isdigit() and key != "seed" else value, words))
    for key in ("workers", "servers"):
        counts = sorted({r.get(key) for r in runs if r.get(key)})
        if counts:
            items.append((", ".join(map(str, counts)), key if counts != [1] else key[:-1]))
    data = common(runs, "data")
    ways, seeds = len({r.label for r in runs}), len({r.seed for r in runs})
    how = f"{ways} ways, from the same seed on the same batches" if ways > 1 else "one way"
    how += f", for each of {seeds} seeds" * (seeds > 1) + f", {len(runs) // ways // seeds} times each" * (len(runs) >= 2 * ways * seeds)
    return SECTIONS.head(title, how, data if data != "varies" else "", items)


def failures(failed, groups):
    """A warning at the top of the page that names the runs that are missing."""
    listed = failures_in_words(failed, groups)
    return SECTIONS.failures(listed) if listed else ""


def unlike(groups):
    """A warning at the top of the page that names the differences that --force accepted."""
    words = comparability.in_words(groups)
    return SECTIONS.unlike(words) if words else ""


def overview(groups):
    """The table with one line per run, as on the terminal."""
    columns = closing.columns(groups)
    head = ["run", *(f"{first} {second}".strip() for (first, second), _ in columns)]
    return SECTIONS.overview(head, [[g[0].label, *(cell(g) for _, cell in columns)] for g in groups], table.EXACT)


def speeds(groups):
    """The time of each topology over that of its reference, as a picture; "" if there is nothing to compare."""
    found, every = {}, speed.speeds_of(groups)
    for s in every:
        if s.time:
            reference = s.reference[0].label
            found.setdefault(f"time per token over that of {reference}", [(reference, claims.Ratio(1.0, s.time.count))]).append((s.label, s.time))
    if not found:
        return ""
    rows, words = list(found.items()), "times as long, on a logarithmic axis"
    intervals = sorted({s.unit for s in every if s.time})[0] if any(s.time and s.time.low is not None for s in every) else ""
    return SECTIONS.speed(ratios("speed", "Speed", rows, words), intervals, how_measured([r for g in groups for r in g], True))


def ratios(name, title, rows, words):
    """A figure of ratios with their intervals. words: the title of its axis."""
    return figure(name, title, svg.both_widths(lambda width: forest.draw(rows, width, title, words)), forest.rows(rows))


def differing(groups, target):
    """Sentences on the differences that the repeats show, and a figure of their ratios; the figure needs repeats for its intervals."""
    said = sentences.in_words(groups, target)
    if not said:
        return ""
    rows = {}
    for group, other, words, found in sentences.compared(groups, target):
        if found.low is not None:
            rows.setdefault(f"{words}, of {other[0].label}", []).append((group[0].label, found))
    listed = list(rows.items())
    words = "times as much, with 95% intervals; blue: claimed; logarithmic"
    return SECTIONS.differing(said, ratios("ratios", "Ratios with intervals", listed, words) if listed else "")


def numbers(groups, target):
    shared = [(name, ", ".join(found)) for name, found in machine.shared([r for g in groups for r in g]) if found]
    return SECTIONS.numbers([g[0].label for g in groups], table.rows(groups, target), shared, table.remarks(groups))


def topologies(runs):
    """How each topology works: its picture, and the program's description of it."""
    families, pictures = {}, {}
    for run in runs:
        words = run.explained or {}
        rules = families.setdefault(words.get("how"), {})
        rules.setdefault(words.get("rule"), {})[run.topology] = None
        pictures.setdefault(words.get("picture"), None)
    told = []
    for how, rules in families.items():
        if how:
            told.append((findings.listed([t for names in rules.values() for t in names]), how))
            told += [(findings.listed(names), rule) for rule, names in rules.items() if rule]
    return SECTIONS.topologies([picture(name) for name in pictures if name], told)


def picture(name):
    """The drawing of a topology from this folder; "" if there is none."""
    try:
        with open(os.path.join(os.path.dirname(__file__), os.path.basename(name) + ".svg"), encoding="utf-8") as f:
            return f.read()
    except OSError:
        return ""


def hashes(runs):
    letters, rows, seeds = equality.letters(runs), [], len(equality.by_seed(runs))
    for run in runs:
        name = equality.names([run], equality.by_seed(runs)[run.seed])[0] + (f", seed {run.seed}" if seeds > 1 else "")
        rows.append((name, run.losses[0], run.losses[-1], run.weights_hash, letters[id(run)]))
    return SECTIONS.hashes(rows)


def gpus(runs):
    """[("GPU", its name)], as the ranks reported them, each once."""
    found = {(d["host"], d["bus_id"]): d for r in runs for d in r.devices or []}
    return [("GPU", f"{d['name']}, {d['bus_id']}, driver {d['driver']}, CUDA {d['runtime']}, cuBLASLt {d['cublaslt']}, "
                    f"cuDNN {d['cudnn'] or 'not found'}") for d in found.values()]


def how_measured(runs, trained):
    """A sentence on how the speeds were measured."""
    hosts = {comparability.fact(r, "host") for r in runs} - {None}
    where = ("on one machine, with all ranks on the same cores" if trained or len(hosts) == 1 else
             f"on {len(hosts)} machines" if hosts else "on machines that these runs do not name")
    labels = {r.label for r in runs}
    if any(s.unit == "rounds" for s in speed.speeds_of(list({r.label: [r] for r in runs}.values()))):
        return f"The runs took turns {where}, a slice of steps each, in a new random order each round; speeds are compared round by round."
    how = "one run" if len(labels) == len(runs) else ("several runs, in a random order within each repeat," if trained else "several runs")
    return (f"Speeds were measured {where} and {how} for each row; a difference of a few per cent means nothing"
            f"{' unless it is claimed above' if len(labels) < len(runs) else ''}.")


def notes(runs, about):
    """Where the figures come from: each run's machine and build, and the commands that repeat it."""
    told = [(name, ", ".join(found)) for name, found in machine.shared(runs) if found]
    size = max((total(e) for r in runs for e in r.roles().values()), default=0)
    return SECTIONS.notes(os.path.basename(os.path.abspath(about.directory)), how_measured(runs, about.trained), f"{size / MIB:,.1f}",
                          told + machine.facts(about.trained) + gpus(runs), about.command, "\n".join(" ".join(r.command) for r in runs if r.command))
