"""The report's figures: losses, staleness, memory, bytes and time of the runs, each with how to read it."""
import math
from html import escape

from .. import equality, noise, table
from ..draw import svg
from ..draw.bars import bar_plot, histogram
from ..draw.lines import Lines, line_plot
from ..runs import CLASSES, PINNED, as_float

MIB = table.MIB
DASHES = ["", "7 4", "2 3", "10 3 2 3"]
CLASS_WORDS = {"parameter": "weights", "gradient": "gradients", "master": "fp32 masters", "optimizer": "moments",
               "activation": "activations", "communication": "communication buffers", "workspace": "workspace",
               "server": "other server state"}
TIME_COLORS = {"data": "m6", "forward": "m1", "backward": "m0", "optimizer": "m4", "comm_exposed": "m2", "wait": "m3",
               "other": "m7"}


def dash(i):
    """With colour i % 8: 32 series that all differ, and neighbours that differ in dash as well."""
    return DASHES[(i + i // 8) % 4]


def noisy(group):
    return table.NOISY if any(noise.why_noisy(r) for r in group) else ""


def losses(runs):
    groups = sorted(equality.equal_groups(runs), key=len, reverse=True)
    by_step = []
    for i, group in enumerate(groups):
        by_step.append({"label": " = ".join(r.label for r in group), "color": i % 8, "dash": dash(i),
                        "points": [(m.get("step", k + 1), as_float(m["loss"])) for k, m in enumerate(group[0].metrics)]})
    for s, group in zip(by_step, groups):
        s["dots"] = [(step, loss) for step, loss in group[0].evals if math.isfinite(loss)]
    by_time = [{"label": r.label, "color": i % 8, "dash": dash(i),
                "points": [(t, as_float(m["loss"])) for t, m in zip(r.elapsed(), r.metrics)]} for i, r in enumerate(runs)]
    entropy = next((r.unigram_entropy for r in runs if isinstance(r.unigram_entropy, (int, float))), None)
    levels = [(entropy, f"unigram entropy of the text, {entropy:.3f}")] if entropy else []
    held_out = [f"{r.label} {r.val_loss:.3f}" for r in runs if isinstance(r.val_loss, (int, float))]
    tail = f" Held-out loss after the last step: {escape(', '.join(held_out))}." if 0 < len(held_out) <= 8 else ""
    return f"""<h2>Loss against step</h2>
<p>Does the topology change what is learned? Runs that are equal to the last bit share one curve.</p>
<figure>{key_of(by_step, levels)}{line_plot(Lines(by_step, "step", "loss (nats per token)", levels, "Loss against step"))}
<figcaption>Training loss, the mean over the global batch of each step (in asynchronous runs: over
worker 0's slice). Pale: single steps; bold: trailing mean over a
fiftieth of the run. The dotted line is what a model reaches that knows only how frequent each token is; below it, the
model has learned something about order. Dots: loss on held-out text.{tail}</figcaption></figure>
{distances(groups)}
<h2>Loss against wall clock</h2>
<p>What does the topology cost? Curves that are equal step by step separate here, by the time that each step takes.</p>
<figure>{key_of(by_time, levels)}{line_plot(Lines(by_time, "seconds since the first step began", "loss (nats per token)", levels,
                                        "Loss against wall clock"))}
<figcaption>The same losses against the sum of step times. All ranks of these runs shared the cores named in the notes, so
more ranks mean fewer cores for each: this shows overheads, not the speed-up of adding machines.</figcaption></figure>"""


def distances(groups):
    """How far the other losses are from those of the largest group of equal runs."""
    reference, series = groups[0][0], []
    for i, group in enumerate(groups[1:], 1):
        points = []
        for k, (m, n) in enumerate(zip(group[0].metrics, reference.metrics)):
            gap = abs(as_float(m["loss"]) - as_float(n["loss"]))
            if gap > 0:
                points.append((m.get("step", k + 1), math.log10(gap)))
        if points:
            series.append({"label": " = ".join(r.label for r in group), "color": i % 8, "dash": dash(i), "points": points})
    if not series:
        return ""
    plot = line_plot(Lines(series, "step", "distance of the losses (nats per token)", [], "Distance between loss curves",
                           height=300, powers=True))
    return f"""<h3>How far apart are the curves that are not equal?</h3>
<figure>{key_of(series)}{plot}<figcaption>Distance of each step's loss from that of {escape(reference.label)}, on a
logarithmic axis; where a curve is missing, that step's loss is equal to the last bit. A difference in rounding starts
small and grows until it is lost in the noise of training; other updates are far apart at once.</figcaption></figure>"""


def key_of(series, levels=()):
    return svg.legend([(f"c{s['color']}", s["label"], s.get("dash", "")) for s in series]
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
ring moves 2U per step in stages 0, 1 and 2 and 3U in stage 3, which gathers the weights twice. A star's worker sends its
whole gradient and receives the whole weights; a server does so with each of the N workers for its 1/S of the model.
</figcaption></figure>"""


def times(groups):
    bars = []
    for group in groups:
        run, part = group[0], table.median_times(group)
        if part["total"] <= 0:
            continue
        bars.append({"group": run.label, "label": f"step{noisy(group)}", "segments":
                     [(TIME_COLORS[k], f"{words} (ms)", 1e3 * part[k]) for k, words in table.TIMES]})
        if part["comm_overlapped"] > 0:
            bars.append({"group": None, "label": "overlapped", "outline": True,
                         "segments": [("m2", "overlapped communication (ms)", 1e3 * part["comm_overlapped"])]})
    if not bars:
        return ""
    key = svg.legend([(TIME_COLORS[k], words) for k, words in table.TIMES])
    return f"""<h2>Where the time goes, per step</h2>
<p>Mean over the workers. Exposed communication is time in which the computation stood still for a transfer; overlapped
communication ran while it computed and costs nothing visible by itself.</p>
<figure>{key}{bar_plot(bars, "ms per step, mean over the run", "Step time split")}
<figcaption>Solid: adds up to the step. In a star the servers
update the weights, so that a worker's optimizer time is zero and theirs is part of its exposed communication. Hollow:
communication hidden behind computation. "Waiting for peers" is time in
which a worker had nothing to do because another rank was not ready. {escape(table.OTHER)}</figcaption></figure>"""


def staleness(runs):
    """How old the weights were on which asynchronous gradients were computed; "" without such runs."""
    plots = []
    for run in runs:
        counts = run.get("staleness", "histogram") or []
        if run.kind != "ps" or run.topology == "ps:sync" or sum(counts) == 0:
            continue
        words = f"mean {run.get('staleness', 'mean', default=0):.2f}, at most {run.get('staleness', 'max', default=0):.0f}"
        plots.append(f"<div class=\"plot\"><h4>{escape(run.label)}</h4>"
                     f"{histogram(counts, 'updates missed', 'Staleness of ' + run.label)}<p>{words}</p></div>")
    if not plots:
        return ""
    return f"""<h2>How stale the gradients were</h2>
<p>In an asynchronous star a worker computes on weights that change meanwhile. Staleness counts the updates of others that
a server applied between a worker's pull of the weights and its own gradient's update.</p>
<figure><div class="small">{''.join(plots)}</div><figcaption>Share of the gradients by staleness, over all workers. With N
workers of equal speed most gradients miss N - 1 updates; a slow worker misses more.</figcaption></figure>"""
