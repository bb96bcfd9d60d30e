"""The offline report: one HTML file that explains what was run, what came out and how to read it."""
import os
import re
from dataclasses import dataclass
from html import escape

from .. import claims, equality, likeness, machine, sentences, speed, table
from ..draw import forest, svg
from ..draw.figure import figure
from ..draw.style import CSS, SCRIPT
from ..runs import failures_in_words, total
from . import closing, curves, figures, findings, staleness, sweep, timeline

MIB = table.MIB
# A browser fetches nothing for this page, whatever is in it.
OFFLINE = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
MOST = 8   # topologies with a picture each on a page; of more, and of a sweep, which has its own, these are folded


@dataclass
class About:
    """The words of the page about itself. trained: the runs were started by this command; target: the held-out loss to
    which times are taken, or None; failed: [Failure]."""
    title: str
    command: str
    directory: str
    trained: bool
    target: float = None
    failed: tuple = ()


def write(path, groups, about, spoken=""):
    """spoken: the section of comparison/sample.py, or nothing."""
    runs = [g[0] for g in groups]
    every = [r for g in groups for r in g]
    title = about.title or title_of(every)
    crowded = [figures.memory(runs), figures.wire(runs), timeline.section(groups)]
    shown, folded = (crowded, []) if len(groups) <= MOST and not runs[0].point else ([], crowded)
    body = "".join([overview(groups), speeds(groups), curves.losses(groups), sweep.section(groups), *shown])
    more = [*folded, topologies(runs), curves.wall_clock(groups), curves.held_out(groups, about.target), curves.apart(groups), verdicts(every),
            differing(groups, about.target), figures.formulas(runs), figures.totals(groups), figures.times(groups), figures.links(groups),
            staleness.section(groups), numbers(groups, about.target), hashes(every), spoken, notes(every, about)]
    top = head(title, every) + failures(about.failed, groups) + unlike(groups) + found(groups)
    write_page(path, title, top, body + "<h2>More</h2>" + "".join(map(fold, more)))


def fold(section):
    """A section behind its heading."""
    return re.sub(r"^\s*<h2>([^<]*)</h2>(.*)$", r'<details class="all"><summary>\1</summary>\2</details>', section, count=1, flags=re.S)


def write_page(path, title, top, body, contents=""):
    """One HTML file: what is above the list of contents, the list where there is one, and the body."""
    html = ("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">"
            f"<meta http-equiv=\"Content-Security-Policy\" content=\"{OFFLINE}\">"
            "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"
            "<meta name=\"color-scheme\" content=\"light dark\">"
            f"<title>{escape(title)}</title><style>{CSS}</style></head><body><main>{top}{contents}{body}</main>"
            f"<script>{SCRIPT}</script></body></html>\n")
    with open(path, "w", encoding="utf-8") as f:
        f.write(html)


def found(groups):
    """The findings, in five sentences."""
    items = "".join(f"<li><b>{about}.</b> {escape(text)}</li>" for about, text in findings.five(groups))
    return f'<ol class="five">{items}</ol>'


def with_contents(body):
    """(the body with a place to go to before each heading, the list of them)."""
    places = []

    def mark(heading):
        places.append((re.sub(r"[^a-z0-9]+", "-", heading.group(1).lower()).strip("-"), heading.group(1)))
        return f'<a id="{places[-1][0]}"></a>{heading.group(0)}'
    body = re.sub(r"<h2>([^<]*)</h2>", mark, body)
    return body, '<ol class="contents">' + "".join(f'<li><a href="#{place}">{words}</a></li>' for place, words in places) + "</ol>"


def common(runs, key):
    """The value of a key in all runs: "1, 2, 3" for a few numbers that differ, "varies" for others; None where no run has it."""
    values = list(dict.fromkeys(str(r.summary.get(key)) for r in runs if r.summary.get(key) is not None))
    return None if not values else ", ".join(values) if len(values) == 1 or (len(values) <= MOST and all(map(str.isdigit, values))) else "varies"


def swept_of(runs):
    """" with servers = 1, 2 and 3": the values of a sweep; "" without one."""
    swept = {}
    for run in runs:
        for key, value in run.point:
            swept.setdefault(key, {})[value] = None
    return " with " + " and with ".join(f"{key} = {findings.listed(values)}" for key, values in swept.items()) if swept else ""


def slow_of(runs):
    """"rank 1 computes 2 times as long in all steps": what all runs were troubled with; "" of none, or of several."""
    found = {r.get("trouble", "text") or "" for r in runs}
    return found.pop() if len(found) == 1 else ""


def title_of(runs):
    """A line that names what was compared: topologies, the values of a sweep, the roles that were made slow."""
    topologies = list(dict.fromkeys(r.topology for r in runs))
    names = findings.listed(topologies) if len(topologies) <= MOST else f"{len(topologies)} topologies"
    slow, rounds = slow_of(runs), {r.local_steps for r in runs}
    swept = swept_of(runs) or (f" with {rounds.pop()} local steps per round" if len(rounds) == 1 and None not in rounds else "")
    return (names + (" compared" if len({r.label for r in runs}) > 1 else ", one run" if len(runs) == 1 else f", {len(runs)} runs") + swept + (f": {slow}" if slow else "")).strip()


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
    facts = "".join(f"<li><b>{escape(value)}</b> <span>{words}</span></li>" for value, words in items)
    data = common(runs, "data")
    ways, seeds = len({r.label for r in runs}), len({r.seed for r in runs})
    how = f"{ways} ways, from the same seed on the same batches" if ways > 1 else "one way"
    how += f", for each of {seeds} seeds" * (seeds > 1) + f", {len(runs) // ways // seeds} times each" * (len(runs) >= 2 * ways * seeds)
    return (f"<h1>{escape(title)}</h1><p class=\"lead\">One model trained {how}. "
            f"{'Text: ' + escape(data) + '. ' if data and data != 'varies' else ''}"
            f"</p><ul class=\"facts\">{facts}</ul>")


def failures(failed, groups):
    """The runs that are missing from the page, above everything else."""
    listed = "".join(f"<li>{escape(text)}</li>" for text in failures_in_words(failed, groups))
    return f'<div class="word broken"><b>Failed.</b>These runs are not in the comparison:<ul>{listed}</ul></div>' if listed else ""


def unlike(groups):
    """Named above everything else what --force let pass."""
    words = likeness.in_words(groups)
    return (f'<div class="word differs"><b>Unlike.</b>These runs differ in what should be equal: {escape(words)}. What differs '
            "below may come from that.</div>" if words else "")


def overview(groups):
    """One line for each run: the table that the comparison ends with on the terminal."""
    columns = closing.columns(groups)
    top = "".join(f"<th>{escape(f'{first} {second}'.strip())}</th>" for (first, second), _ in columns)
    body = "".join(f"<tr><td>{escape(g[0].label)}</td>" + "".join(f"<td>{escape(cell(g))}</td>" for _, cell in columns) + "</tr>" for g in groups)
    return (f'<div class="wide"><table class="overview"><thead><tr><th>run</th>{top}</tr></thead><tbody>{body}</tbody></table></div>'
            f'<p class="foot">{escape(table.EXACT)} The same letter: the same bits.</p>')


def speeds(groups):
    """The time of each topology over that of the one it is compared with, as a picture; "" where there is nothing to compare."""
    found, every = {}, speed.of(groups)
    for s in every:
        if s.time:
            reference = s.reference[0].label
            found.setdefault(f"time per token over that of {reference}", [(reference, claims.Ratio(1.0, s.time.count))]).append((s.label, s.time))
    if not found:
        return ""
    rows, words = list(found.items()), "times as long, on a logarithmic axis"
    told = any(s.time and s.time.low is not None for s in every)
    caption = (f"{'Dot: the ratio; line: its 95% interval, from ' + sorted({s.unit for s in every if s.time})[0] + '; blue: beyond noise. ' if told else ''}"
               "Left of 1 is faster. " + escape(how_measured([r for g in groups for r in g], True)))
    return "<h2>Speed</h2>" + figure("speed", "Speed", svg.both_widths(lambda width: forest.draw(rows, width, "Speed", words)), forest.rows(rows), caption)


def differing(groups, target):
    """The differences of times and other measures that repeats show: sentences, and a picture, which needs repeats for its intervals."""
    said = sentences.in_words(groups, target)
    if not said:
        return ""
    rows = {}
    for group, other, words, found in sentences.compared(groups, target):
        if found.low is not None:
            rows.setdefault(f"{words}, of {other[0].label}", []).append((group[0].label, found))
    listed = list(rows.items())
    words = "times as much, with 95% intervals; blue: claimed; logarithmic"
    picture = figure("ratios", "Ratios with intervals", svg.both_widths(lambda width: forest.draw(listed, width, "Ratios with intervals", words)),
                     forest.rows(listed)) if listed else ""
    return (f"<h2>Which times differ</h2><p class=\"lead\">{escape(said[0])}</p>{picture}"
            + "".join(f'<p class="foot">{escape(text)}</p>' for text in said[1:]))


def verdicts(runs):
    names = {"equal": "Equal.", "differs": "Different.", "broken": "Bug."}
    rows = "".join(f'<div class="word {kind}"><b>{names[kind]}</b>{escape(text)}</div>'
                   for kind, text in equality.in_words(runs))
    return ("<h2>Which runs are equal to the last bit</h2><p>Two runs are equal when the text of every loss, as the program "
            "printed it, and a 64-bit hash of all final weights are the same. No tolerance is used anywhere.</p>" + rows)


def numbers(groups, target):
    body = []
    for label, cells in table.rows(groups, target):
        if not cells:
            body.append(f'<tr class="head"><td colspan="{len(groups) + 1}">{escape(label)}</td></tr>')
            continue
        indent = (len(label) - len(label.lstrip())) // 2
        css = f' class="in{indent}"' if indent else ""
        mono = ' class="hash"' if label in ("weights hash", "") else ""
        body.append(f"<tr><td{css}>{escape(label.strip())}</td>"
                    + "".join(f"<td{mono}>{escape(c)}</td>" for c in cells) + "</tr>")
    top = "".join(f"<th>{escape(g[0].label)}</th>" for g in groups)
    below = table.remarks(groups)
    told = "; ".join(f"<b>{escape(name)}</b> {escape(', '.join(found))}" for name, found in
                    machine.shared([r for g in groups for r in g]) if found)
    above = f"<p>{told}.</p>" if told else ""
    feet = "".join(f'<p class="foot">{escape(text)}</p>' for text in below)
    return ("<h2>The whole table</h2><p>\"12.34&nbsp;=\" says that prediction and measurement agree to the byte; otherwise both "
            "are shown as predicted/measured. Memory and bytes belong to the rank that has most of them in its role. "
            f"1 MiB is 1,048,576 bytes.</p>{above}<div class=\"wide\"><table><thead><tr><th></th>{top}</tr></thead>"
            f"<tbody>{''.join(body)}</tbody></table></div>{feet}")


def topologies(runs):
    """How what was run works: the pictures and words of each topology, as it says them itself."""
    families, pictures = {}, {}
    for run in runs:
        words = run.explained or {}
        rules = families.setdefault(words.get("how"), {})
        rules.setdefault(words.get("rule"), {})[run.topology] = None
        pictures.setdefault(words.get("picture"), None)
    drawn = "".join(f"<div>{picture(name)}</div>" for name in pictures if name)
    told = "".join(f"<p><strong>{escape(findings.listed([t for names in rules.values() for t in names]))}.</strong> {escape(how)}</p>"
                   + "".join(f"<p><strong>{escape(findings.listed(names))}.</strong> {escape(rule)}</p>" for rule, names in rules.items() if rule)
                   for how, rules in families.items() if how)
    return f"""<h2>How the topologies work</h2>
<p>Data-parallel training gives every worker the whole model and a slice of the batch. After the backward pass the workers' gradients must be
added, the optimizer must update the weights, and everybody must get the result. Topologies differ in <em>who</em> adds and updates, and
in what each rank has to keep for it.</p>
{f'<div class="pictures">{drawn}</div>' if drawn else ''}{told}
<p>Why can some of them agree to the last bit? Floating-point addition depends on its order, so they follow one rule:
gradients are added in fp32 in worker order and rounded once; the global norm is an exact sum; the update is elementwise
with a fixed order of operations.</p>"""


def picture(name):
    """The drawing of a topology, which lies beside this file; "" of one that has none here."""
    try:
        with open(os.path.join(os.path.dirname(__file__), os.path.basename(name) + ".svg"), encoding="utf-8") as f:
            return f.read()
    except OSError:
        return ""


def hashes(runs):
    letters, rows, seeds = equality.letters(runs), [], len(equality.by_seed(runs))
    for run in runs:
        name = equality.names([run], equality.by_seed(runs)[run.seed])[0] + (f", seed {run.seed}" if seeds > 1 else "")
        rows.append(f"<tr><td>{escape(name)}</td><td class=\"hash\">{escape(str(run.losses[0]))}</td>"
                    f"<td class=\"hash\">{escape(str(run.losses[-1]))}</td>"
                    f"<td class=\"hash\">{escape(str(run.weights_hash))}</td>"
                    f"<td>{letters[id(run)]}</td></tr>")
    return ("<h2>The exact results</h2><p>Runs of the same class are equal in every digit of every loss and in the hash of "
            "the final weights (xxh64 in logical tensor order, without padding).</p><div class=\"wide\"><table><thead><tr>"
            "<th>run</th><th>first loss</th><th>last loss</th><th>weights hash</th><th>class</th></tr></thead>"
            f"<tbody>{''.join(rows)}</tbody></table></div>")


def gpus(runs):
    """[("GPU", what it is)], each once, as the ranks reported them."""
    found = {(d["host"], d["bus_id"]): d for r in runs for d in r.devices or []}
    return [("GPU", f"{d['name']}, {d['bus_id']}, driver {d['driver']}, CUDA {d['runtime']}, cuBLASLt {d['cublaslt']}, "
                    f"cuDNN {d['cudnn'] or 'not found'}") for d in found.values()]


def how_measured(runs, trained):
    """A sentence on what the speeds stand on."""
    hosts = {likeness.fact(r, "host") for r in runs} - {None}
    where = ("on one machine, with all ranks on the same cores" if trained or len(hosts) == 1 else
             f"on {len(hosts)} machines" if hosts else "on machines that these runs do not name")
    labels = {r.label for r in runs}
    if any(s.unit == "rounds" for s in speed.of(list({r.label: [r] for r in runs}.values()))):
        return f"The runs took turns {where}, a slice of steps each, in an order drawn anew each round; speeds are compared round by round."
    how = "one run" if len(labels) == len(runs) else ("several runs, in a random order within each repeat," if trained else "several runs")
    return (f"Speeds were measured {where} and {how} for each row; a difference of a few per cent means nothing"
            f"{' unless it is claimed above' if len(labels) < len(runs) else ''}.")


def notes(runs, about):
    """Where the figures come from: each run's own machine and build, as the run says, and how to do it again."""
    told = [(name, ", ".join(found)) for name, found in machine.shared(runs) if found]
    here = machine.facts(about.trained)
    facts = "".join(f"<tr><td>{escape(k)}</td><td class=\"fact\">{escape(v)}</td></tr>" for k, v in told + here + gpus(runs))
    commands = "\n".join(" ".join(r.command) for r in runs if r.command)
    size = max((total(e) for r in runs for e in r.roles().values()), default=0)
    return f"""<h2>Notes</h2>
<p>Each figure comes from the files beside this report (<code>{escape(os.path.basename(os.path.abspath(about.directory)))}/RUN/</code>:
<code>config.json</code>, <code>metrics.jsonl</code>, <code>evals.jsonl</code>, <code>summary.json</code>,
<code>trace.json</code>, <code>load.json</code>, <code>output.txt</code>) and from
<code>compare.csv</code>. {how_measured(runs, about.trained)} The largest rank took {size / MIB:,.1f} MiB of counted memory.</p>
<div class="wide"><table><tbody>{facts}</tbody></table></div>
<h3>Command</h3><pre>{escape(about.command)}</pre>
{'<h3>Runs</h3><pre>' + escape(commands) + '</pre>' if commands else ''}"""
