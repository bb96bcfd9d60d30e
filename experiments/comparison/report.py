"""The offline report: one HTML file that explains what was run, what came out and how to read it."""
import math
import os
from html import escape

from . import equality, machine, svg, table
from .runs import CLASSES, PINNED, as_float, total
from .style import CSS

MIB = table.MIB
DASHES = ["", "7 4", "2 3", "10 3 2 3"]
PICTURE = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "topologies.svg")
CLASS_WORDS = {"parameter": "weights", "gradient": "gradients", "master": "fp32 masters", "optimizer": "moments",
               "activation": "activations", "communication": "communication buffers", "workspace": "workspace",
               "server": "other server state"}
TIME_COLORS = {"data": "m6", "forward": "m1", "backward": "m0", "optimizer": "m4", "comm_exposed": "m2", "wait": "m3",
               "other": "m7"}


def write(path, groups, title, command, directory):
    runs = [g[0] for g in groups]
    every = [r for g in groups for r in g]
    parts = [head(title, runs), verdicts(every), numbers(groups), topologies(), losses(runs), memory(runs), wire(runs),
             times(runs), hashes(every), notes(every, command, directory)]
    html = ("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">"
            "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"
            "<meta name=\"color-scheme\" content=\"light dark\">"
            f"<title>{escape(title)}</title><style>{CSS}</style></head><body><main>{''.join(parts)}</main></body></html>\n")
    with open(path, "w", encoding="utf-8") as f:
        f.write(html)


def common(runs, key):
    values = {str(r.summary.get(key)) for r in runs if r.summary.get(key) is not None}
    return values.pop() if len(values) == 1 else ("varies" if values else None)


def head(title, runs):
    facts = [("model", "model"), ("params", "parameters"), ("dtype", "number format"), ("steps", "steps"),
             ("tokens_per_step", "tokens a step"), ("seed", "seed"), ("device", "device")]
    items = []
    for key, words in facts:
        value = common(runs, key)
        if value is not None:
            value = os.path.basename(value.rstrip("/")) if key == "model" else value
            items.append(f"<li><b>{escape(f'{int(value):,}' if value.isdigit() and key != 'seed' else value)}</b>"
                         f"<span>{words}</span></li>")
    workers = sorted({r.workers for r in runs if r.workers})
    if workers:
        items.append(f"<li><b>{', '.join(map(str, workers))}</b><span>workers</span></li>")
    names = ", ".join(r.label for r in runs)
    data = common(runs, "data")
    return (f"<h1>{escape(title)}</h1><p class=\"lead\">One model trained {len(runs)} "
            f"way{'s' if len(runs) != 1 else ''} from the same seed on the same batches: {escape(names)}. "
            f"{'Text: ' + escape(data) + '. ' if data and data != 'varies' else ''}"
            f"What was predicted stands beside what was measured.</p><ul class=\"facts\">{''.join(items)}</ul>")


def verdicts(runs):
    names = {"equal": "Equal.", "differs": "Different.", "broken": "Bug."}
    rows = "".join(f'<div class="word {kind}"><b>{names[kind]}</b>{escape(text)}</div>'
                   for kind, text in equality.in_words(runs))
    return ("<h2>Which runs are equal to the last bit</h2><p>Compared is the text of every loss as the program printed it, "
            "and a 64-bit hash of all final weights. No tolerance is used anywhere.</p>" + rows)


def numbers(groups):
    body = []
    for label, cells in table.rows(groups):
        if not cells:
            body.append(f'<tr class="head"><td colspan="{len(groups) + 1}">{escape(label)}</td></tr>')
            continue
        indent = (len(label) - len(label.lstrip())) // 2
        css = f' class="in{indent}"' if indent else ""
        mono = ' class="hash"' if label in ("weights hash", "") else ""
        body.append(f"<tr><td{css}>{escape(label.strip())}</td>"
                    + "".join(f"<td{mono}>{escape(c)}</td>" for c in cells) + "</tr>")
    top = "".join(f"<th>{escape(g[0].label)}</th>" for g in groups)
    return ("<h2>The numbers</h2><p>\"12.34&nbsp;=\" says that prediction and measurement agree to the byte; otherwise both "
            "are shown as predicted/measured. Memory and bytes are those of the rank of that role that has most of them. "
            f"1 MiB is 1,048,576 bytes.</p><div class=\"wide\"><table><thead><tr><th></th>{top}</tr></thead>"
            f"<tbody>{''.join(body)}</tbody></table></div>")


def topologies():
    try:
        with open(PICTURE, encoding="utf-8") as f:
            picture = f.read()
    except OSError:
        picture = ""
    return f"""<h2>The two topologies</h2>
<p>Data-parallel training gives every worker the whole model and a slice of the batch. After the backward pass the
workers' gradients must be added, the optimizer must update the weights once, and everybody must get the result.
The two topologies differ in <em>who</em> adds and updates, and in what each rank has to keep for it.</p>
<figure>{picture}</figure>
<p><strong>Star.</strong> Servers keep the fp32 master weights and the optimizer's moments. A worker pushes the gradient of
each layer as soon as its backward pass has produced it, and pulls the new weights before its next forward pass needs
them. In <code>ps:sync</code> a server waits for all workers and adds their gradients in worker order. In
<code>ps:async</code> it applies each gradient when it arrives; nobody waits, and gradients are stale by a few updates.</p>
<p><strong>Ring.</strong> There is no server. Each of N ranks owns a 1/N shard of every layer and updates only that.
Stage 0 keeps everything everywhere; stage 1 shards masters and moments; stage 2 also the gradients; stage 3 also the
weights, which are gathered layer by layer just before use, once in the forward and once in the backward pass.</p>
<p>Why can they agree to the last bit? Floating-point addition depends on its order, so all topologies here follow one rule:
gradients are added in fp32 in worker order and rounded once; the global norm is an exact sum; the update is elementwise
with a fixed order of operations.</p>"""


def losses(runs):
    groups = sorted(equality.equal_groups(runs), key=len, reverse=True)
    by_step = []
    for i, group in enumerate(groups):
        by_step.append({"label": " = ".join(r.label for r in group), "color": i % 8, "dash": DASHES[i % 4],
                        "points": [(m.get("step", k + 1), as_float(m["loss"])) for k, m in enumerate(group[0].metrics)]})
    for s, group in zip(by_step, groups):
        s["dots"] = [(step, loss) for step, loss in group[0].evals if math.isfinite(loss)]
    by_time = [{"label": r.label, "color": i % 8, "dash": DASHES[i // 2 % 4],
                "points": [(t, as_float(m["loss"])) for t, m in zip(r.elapsed(), r.metrics)]} for i, r in enumerate(runs)]
    entropy = next((r.unigram_entropy for r in runs if isinstance(r.unigram_entropy, (int, float))), None)
    levels = [(entropy, f"unigram entropy of the text, {entropy:.3f}")] if entropy else []
    held_out = [f"{r.label} {r.val_loss:.3f}" for r in runs if isinstance(r.val_loss, (int, float))]
    tail = f" Held-out loss after the last step: {escape(', '.join(held_out))}." if held_out else ""
    return f"""<h2>Loss against step</h2>
<p>Does the topology change what is learned? Runs that are equal to the last bit share one curve.</p>
<figure>{key_of(by_step)}{svg.line_plot(by_step, "step", "loss (nats per token)", levels, description="Loss against step")}
<figcaption>Training loss, the mean over the global batch of each step (in asynchronous runs: over worker 0's slice). Pale: single steps; bold: trailing mean over a
fiftieth of the run. The dotted line is what a model reaches that knows only how frequent each token is; below it, the
model has learned something about order. Dots: loss on held-out text.{tail}</figcaption></figure>
{distances(groups)}
<h2>Loss against wall clock</h2>
<p>What does the topology cost? Equal curves against steps separate here, by the time a step takes.</p>
<figure>{key_of(by_time)}{svg.line_plot(by_time, "seconds since the first step began", "loss (nats per token)", levels,
                                        description="Loss against wall clock")}
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
            series.append({"label": " = ".join(r.label for r in group), "color": i % 8, "dash": "", "points": points})
    if not series:
        return ""
    plot = svg.line_plot(series, "step", f"|loss - loss of {reference.label}| (nats per token)", height=300, powers=True,
                         description="Distance between loss curves")
    return f"""<h3>How far apart are the curves that are not equal?</h3>
<figure>{key_of(series)}{plot}<figcaption>Distance of each step's loss from that of {escape(reference.label)}, on a
logarithmic axis; where a curve is missing, that step's loss is equal to the last bit. A difference in rounding starts
small and grows until it is lost in the noise of training; other updates are far apart at once.</figcaption></figure>"""


def key_of(series):
    return svg.legend([(f"c{s['color']}", s["label"], s.get("dash", "")) for s in series])


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
    return f"""<h2>Memory of a rank</h2>
<p>Device memory by what it is for. The prediction comes from the layout before anything is allocated; the measurement
counts what the device handed out at its peak. {verdict}</p>
<figure>{key}{svg.bar_plot(bars, "MiB", "Memory by class, predicted and measured", MIB)}
<figcaption>Hollow: predicted; solid: measured. The upright tick is the textbook formula, which counts weights, gradients,
masters and moments only; the bars also hold activations, which depend on a worker's share of the batch alone. Stages 2 and 3
hold two slots for the units in use (communication buffers) beside their shards. A server holds, beside masters and moments, the fp32 sum it is building (counted as
gradients) and the 16-bit weights it answers with: 18P/S where the formula says 12P/S.</figcaption>
</figure>
<h3>The formulas</h3>
<p>P parameters, N ranks, S servers, Adam, 16-bit weights and gradients with fp32 masters and two fp32 moments. Bytes:</p>
<div class="wide"><table><thead><tr><th>topology</th><th>bytes a rank</th><th>what is whole</th><th>what is sharded</th></tr></thead>
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
    return f"""<h2>Bytes of a step</h2>
<p>Payload that one rank sends and receives for one step: gradients and weights. Headers and control messages are counted
apart and are not in the bars.</p>
<figure>{svg.legend([("c1", "sent"), ("c0", "received")])}{svg.bar_plot(bars, "MiB a step", "Bytes of a step", MIB, 2)}
<figcaption>Bar: counted; upright tick: formula; "=" after the number: they agree. With U = (N-1)/N x padded bytes, the
ring moves 2U a step in stages 0, 1 and 2 and 3U in stage 3, which gathers the weights twice. A star's worker sends its
whole gradient and receives the whole weights; a server does so with each of the N workers for its 1/S of the model.
</figcaption></figure>"""


def times(runs):
    bars = []
    for run in runs:
        part = table.time_per_step(run)
        if part["total"] <= 0:
            continue
        bars.append({"group": run.label, "label": "step", "segments":
                     [(TIME_COLORS[k], f"{words} (ms)", 1e3 * part[k]) for k, words in table.TIMES]})
        if part["comm_overlapped"] > 0:
            bars.append({"group": None, "label": "overlapped comm.", "outline": True,
                         "segments": [("m2", "overlapped communication (ms)", 1e3 * part["comm_overlapped"])]})
    if not bars:
        return ""
    key = svg.legend([(TIME_COLORS[k], words) for k, words in table.TIMES])
    return f"""<h2>Where the time of a step goes</h2>
<p>Mean over the workers. Exposed communication is time in which the computation stood still for a transfer; overlapped
communication ran while it computed and costs nothing visible by itself.</p>
<figure>{key}{svg.bar_plot(bars, "ms a step, mean over the run", "Step time split")}
<figcaption>Solid: adds up to the step. In a star the servers
update the weights, so that a worker's optimizer time is zero and theirs is part of its exposed communication. Hollow: communication hidden behind computation. "Waiting for peers" is time in
which a worker had nothing to do because another rank was not ready. "Other" is the host: launching, reading the clock,
writing the step's line.</figcaption></figure>"""


def hashes(runs):
    groups = equality.equal_groups(runs)
    rows = []
    for run in runs:
        index = next(i for i, g in enumerate(groups) if run in g)
        rows.append(f"<tr><td>{escape(run.name)}</td><td class=\"hash\">{escape(str(run.losses[0]))}</td>"
                    f"<td class=\"hash\">{escape(str(run.losses[-1]))}</td>"
                    f"<td class=\"hash\">{escape(str(run.weights_hash))}</td><td>{chr(65 + index % 26)}</td></tr>")
    return ("<h2>The exact results</h2><p>Runs of the same class are equal in every digit of every loss and in the hash of "
            "the final weights (xxh64 in logical tensor order, without padding).</p><div class=\"wide\"><table><thead><tr>"
            "<th>run</th><th>first loss</th><th>last loss</th><th>weights hash</th><th>class</th></tr></thead>"
            f"<tbody>{''.join(rows)}</tbody></table></div>")


def gpus(runs):
    """[("GPU", what it is)], each once, as the ranks reported them."""
    found = {(d["host"], d["bus_id"]): d for r in runs for d in r.devices or []}
    return [("GPU", f"{d['name']}, {d['bus_id']}, driver {d['driver']}, CUDA {d['runtime']}, cuBLASLt {d['cublaslt']}, "
                    f"cuDNN {d['cudnn'] or 'not found'}") for d in found.values()]


def notes(runs, command, directory):
    facts = "".join(f"<tr><td>{escape(k)}</td><td style=\"text-align:left\">{escape(v)}</td></tr>"
                    for k, v in machine.facts() + gpus(runs))
    commands = "\n".join(" ".join(r.command) for r in runs if r.command)
    size = max((total(e) for r in runs for e in r.roles().values()), default=0)
    return f"""<h2>Notes</h2>
<p>Each figure comes from the files beside this report (<code>{escape(os.path.basename(os.path.abspath(directory)))}/RUN/</code>:
<code>config.json</code>, <code>metrics.jsonl</code>, <code>evals.jsonl</code>, <code>summary.json</code>, <code>output.txt</code>) and from
<code>compare.csv</code>. Speeds were measured on one machine on one day, with all ranks on the same cores and
{'one run' if len({r.label for r in runs}) == len(runs) else 'several interleaved runs'} for each row; a difference of a few
per cent means nothing. The largest rank took {size / MIB:,.1f} MiB of counted memory.</p>
<div class="wide"><table><tbody>{facts}</tbody></table></div>
<h3>Command</h3><pre>{escape(command)}</pre>
{'<h3>Runs</h3><pre>' + escape(commands) + '</pre>' if commands else ''}"""
