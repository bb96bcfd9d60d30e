"""The report's figures: memory, bytes, time and totals of the runs, each with how to read it."""
from html import escape

from netlab import formula

from .. import figures as words
from .. import noise, table
from ..draw import svg
from ..draw.bars import bar_plot
from ..runs import CLASSES, PINNED
from ..spread import median_and_range

MIB = table.MIB
DASHES = ["", "7 4", "2 3", "10 3 2 3"]
CLASS_WORDS = dict(words.part("memory[].peak."))
TIME_COLORS = {"forward": "m1", "backward": "m0", "optimizer": "m4", "comm_exposed": "m2", "wait": "m3", "host": "m6"}
SERVER_COLORS = {"receive": "m5", "sum": "m0", "hold": "m3", "wait": "m6", "update": "m4", "reply": "m7"}


def color(colors, key):
    """A figure without a colour of its own has the last one."""
    return colors.get(key, "m8")


def dash(i):
    """With colour i % 8: 32 series that all differ, and neighbours that differ in dash as well."""
    return DASHES[(i + i // 8) % 4]


def noisy(group):
    return table.NOISY if any(noise.why_noisy(r) for r in group) else ""


def key_of(series, levels=()):
    return svg.legend([(f"c{s['color']}", s["label"], "2 4" if s.get("formula") else s.get("dash", "")) for s in series]
                      + [("level", label, "2 4") for _, label in levels])


def memory(runs):
    bars = []
    for run in runs:
        for i, (role, entry) in enumerate(sorted(run.roles().items(), key=lambda kv: kv[0] != "worker")):
            for kind, words in (("predicted", "predicted"), ("peak", "measured")):
                segments = [(f"m{n}", f"{CLASS_WORDS[c]} (MiB)", entry[kind].get(c, 0)) for n, c in enumerate(CLASSES)]
                first = kind == "predicted"
                formula = entry.get("formula_bytes")
                bars.append({"group": run.label if i == 0 and first else None,
                             "label": f"{role}, {words}" if first else words, "segments": segments, "outline": first,
                             "mark": (formula, f"textbook formula: {formula / MIB:,.2f} MiB") if formula else None})
    used = [n for n, c in enumerate(CLASSES)
            if any(e["peak"].get(c) or e["predicted"].get(c) for r in runs for e in r.roles().values())]
    exact = all(e["peak"] == e["predicted"] for r in runs for e in r.roles().values())
    verdict = ("In every run and class shown, prediction and measurement agree to the byte." if exact else
               "Prediction and measurement do not agree to the byte everywhere; see the CSV for each class.")
    key = svg.legend([(f"m{n}", CLASS_WORDS[CLASSES[n]]) for n in used])
    if any(e["peak"].get(PINNED) for r in runs for e in r.roles().values()):
        verdict += " Page-locked host memory, through which the device is reached, is in the table and in no bar."
    return f"""<h2>Memory per rank</h2>
<p>Device memory by what it is for. The prediction comes from the layout before anything is allocated; the measurement
counts what the device handed out at its peak. {verdict}</p>
<figure>{key}{bar_plot(bars, "MiB", "Memory by class, predicted and measured", MIB)}
<figcaption>Hollow: predicted; solid: measured. The upright tick is the textbook formula, which counts weights, gradients,
masters and moments only; the bars also hold activations, which depend on a worker's share of the batch alone. Stages 2 and 3
hold two slots for the units in use (communication buffers) beside their shards. A server holds, beside masters and moments,
the fp32 sum it is building (counted as
gradients) and the 16-bit weights it answers with: 18P/S where the formula says 12P/S.</figcaption>
</figure>
<h3>The formulas</h3>
<p>P parameters, N ranks, S servers, Adam, 16-bit weights and gradients with fp32 masters and two fp32 moments. Bytes:</p>
<div class="wide"><table><thead><tr><th>topology</th><th>bytes per rank</th><th>what is whole</th><th>what is sharded</th></tr></thead>
<tbody><tr><td>local, zero:0</td><td>16P</td><td>2P weights + 2P gradients + 12P masters, moments</td><td>nothing</td></tr>
<tr><td>zero:1</td><td>4P + 12P/N</td><td>weights, gradients</td><td>masters, moments</td></tr>
<tr><td>zero:2</td><td>2P + 14P/N</td><td>weights</td><td>gradients, masters, moments</td></tr>
<tr><td>zero:3</td><td>16P/N</td><td>nothing</td><td>everything</td></tr>
<tr><td>star, worker</td><td>4P</td><td>weights, gradients</td><td></td></tr>
<tr><td>star, server</td><td>12P/S</td><td></td><td>masters, moments</td></tr></tbody></table></div>"""


def wire(runs):
    bars = []
    for run in runs:
        first_of_run = True
        for role in sorted(run.roles(), key=lambda r: r != "worker"):
            entry = run.wire_of(role)
            if not entry:
                continue
            for what, color in (("sent", "c1"), ("received", "c0")):
                predicted = entry.get(f"predicted_{what}") or 0
                measured = entry.get(f"{what}_per_step") or 0
                bars.append({"group": run.label if first_of_run else None, "label": f"{role}, {what}",
                             "segments": [(color, "measured MiB", measured)],
                             "mark": (predicted, f"formula: {predicted / MIB:,.3f} MiB") if predicted else None,
                             "text": table.pair(predicted, measured)})
                first_of_run = False
    if not bars:
        return ""
    return f"""<h2>Bytes per step</h2>
<p>Payload that one rank sends and receives for one step: gradients and weights. Headers and control messages are counted
apart and are not in the bars.</p>
<figure>{svg.legend([("c1", "sent"), ("c0", "received")])}{bar_plot(bars, "MiB per step", "Bytes per step", MIB, 2)}
<figcaption>Bar: counted; upright tick: formula; "=" after the number: they agree. With U = (N-1)/N x padded bytes, the
ring moves 2U per step in stages 0, 1 and 2 and up to 3U in stage 3, which gathers the weights twice but for
what its slots still hold. A star's worker sends its
whole gradient and receives the whole weights; a server does so with each of the N workers for its 1/S of the model.
</figcaption></figure>"""


def times(groups):
    bars = []
    for group in groups:
        run, part = group[0], table.middle_times(group)
        if part["total"] <= 0:
            continue
        bars.append({"group": run.label, "label": f"step{noisy(group)}", "segments":
                     [(color(TIME_COLORS, k), f"{named} (ms)", 1e3 * part[k]) for k, named in table.TIMES]})
        if part["comm_overlapped"] > 0:
            bars.append({"group": None, "label": "overlapped", "outline": True,
                         "segments": [("m2", "overlapped communication (ms)", 1e3 * part["comm_overlapped"])]})
    if not bars:
        return ""
    key = svg.legend([(color(TIME_COLORS, k), named) for k, named in table.TIMES])
    return f"""<h2>Where the time goes, per step</h2>
<p>Mean over the workers. A worker computes or waits: for a peer that is not ready, for a transfer, or for its own host.</p>
<figure>{key}{bar_plot(bars, "ms per step, mean over the run", "Step time split")}
<figcaption>The solid parts add up to the step. "Waiting for peers" ends when the last peer has its part ready; from then until the transfer
has ended, the time is exposed communication. In a star the servers update the weights, so a worker's optimizer time is zero, and it
waits for the servers' update. Hollow: communication while the worker computes, which does not lengthen
the step. {escape(table.HOST)}</figcaption></figure>{servers(groups)}"""


def servers(groups):
    """The work of the servers' threads; "" without a star that says it."""
    bars = []
    for group in groups:
        part = table.server_times(group)
        if part.get("total", 0) > 0:
            bars.append({"group": None, "label": group[0].label + noisy(group), "segments":
                         [(color(SERVER_COLORS, k), f"{named} (ms)", 1e3 * part[k]) for k, named in table.SERVER_TIMES]})
    if not bars:
        return ""
    return f"""<h3>The servers' threads</h3>
<figure>{svg.legend([(color(SERVER_COLORS, k), named) for k, named in table.SERVER_TIMES])}
{bar_plot(bars, "ms per step, all threads of a server added", "Time of the servers")}
<figcaption>Mean over the servers. Hold: a thread has frames or whole gradients, and waits for another worker's turn or for a
decision. Wait: it has nothing to do.</figcaption></figure>"""


def links(groups):
    """Steps across links of a known bandwidth beside what the wire alone takes; "" without such runs."""
    bars, words = [], ""
    for group in groups:
        found = [f for f in map(formula.link_of, group) if f]
        if found:
            middle, bound, words = median_and_range([f.seconds for f in found])[0], found[0].bound, found[0].words
            bars.append({"group": None, "label": group[0].label + noisy(group), "segments": [("m0", "measured (ms)", 1e3 * middle)],
                         "mark": (1e3 * bound, f"formula: {1e3 * bound:,.1f} ms"), "text": f"{1e3 * middle:,.1f}, formula {1e3 * bound:,.1f}"})
    if not bars:
        return ""
    return f"""<h2>Steps across the network</h2>
<p>Every rank behind a link of {escape(words)}, each way. With M the bytes of all weights, N workers, S servers, B bytes
per second: a star takes max(M/B, N x M/(S x B)), twice that where clipping or fp16 lets no pull be answered before the last push;
a ring 2(N-1)/N x M/B, in stage 3 3(N-1)/N x M/B.</p>
<figure>{bar_plot(bars, "ms per step", "Steps across the network")}<figcaption>Bar: median step; upright tick: the formula, which counts
the wire alone.</figcaption></figure>"""


def axis_of(key, named):
    """(bytes of the axis's unit, its words); None: the total is in the table alone."""
    if words.unit("totals." + key) != "bytes":
        return 1, named
    return None if key == "received_per_step" else (MIB, named + " (MiB)")


def totals(groups):
    """The needs of the whole job, all roles added; "" where no run counted it."""
    cells = []
    for key, named in table.TOTALS:
        if not (axis := axis_of(key, named)):
            continue
        bars, (unit, named) = [], axis
        for group in groups:
            value, _, _ = median_and_range([r.get("totals", key) for r in group])
            if value is not None:
                mark = noisy(group) if key == "cpu_seconds" else ""
                bars.append({"group": None, "label": group[0].label + mark, "segments": [("m0", named, value)]})
        if bars:
            cells.append(f"<h3>{escape(named[0].upper() + named[1:])}</h3>"
                         + bar_plot(bars, named, f"Of the whole job: {named}", unit, 1))
    if not cells:
        return ""
    return f"""<h2>The whole job</h2>
<p>All roles added. The busiest rank says what one machine must have; these say what all of them must have together: a star's
servers hold and send what its workers do not.</p><figure>{''.join(cells)}
<figcaption>{escape(table.RESIDENT)}</figcaption></figure>"""
