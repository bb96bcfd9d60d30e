"""The report's figures: memory, bytes, time and totals of the runs, each with how to read it."""
from html import escape

from netlab import formula

from .. import figures as words
from .. import noise, table
from ..draw import svg
from ..draw.bars import bar_plot, rows
from ..draw.figure import figure
from ..runs import CLASSES, PINNED
from ..spread import median

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


def inline(runs):
    """Whether names of runs and roles stand beside bars, on a phone too; else names of runs stand above theirs."""
    return all(svg.text_width(f"{run.label} receives") <= 0.45 * svg.NARROW for run in runs)


def place(run, words, first, beside):
    """The part of a bar that says whose it is."""
    return {"group": run.label if first and not beside else None, "label": f"{run.label} {words}" if beside else words}


def by_worker(roles):
    return sorted(roles.items(), key=lambda kv: kv[0] != "worker")


def memory(runs):
    bars, beside, exact = [], inline(runs), True
    for run in runs:
        for i, (role, entry) in enumerate(by_worker(run.roles())):
            alike = entry["peak"] == entry["predicted"]
            exact = exact and alike
            formula = entry.get("formula_bytes")
            for kind, words in (("peak", role),) if alike else (("predicted", role), ("peak", "measured")):
                bars.append({**place(run, words, i == 0 and words == role, beside), "outline": kind == "predicted",
                             "segments": [(f"m{n}", f"{CLASS_WORDS[c]} (MiB)", entry[kind].get(c, 0)) for n, c in enumerate(CLASSES)],
                             "mark": (formula, f"textbook formula: {formula / MIB:,.2f} MiB") if formula else None})
    used = [n for n, c in enumerate(CLASSES)
            if any(e["peak"].get(c) or e["predicted"].get(c) for r in runs for e in r.roles().values())]
    verdict = ("In every run and class, the prediction and the measurement agree to the byte: there is one bar for both." if exact else
               "Where the measurement is not the prediction, there are two bars: hollow what was predicted, solid what was measured.")
    if any(e["peak"].get(PINNED) for r in runs for e in r.roles().values()):
        verdict += " Page-locked host memory, through which the device is reached, is in the table and in no bar."
    kept = sorted({r.dtype for r in runs if r.dtype not in (None, "fp32")})
    server = ("A server also holds the fp32 sum that it is building (counted as gradients)"
              + (f", and the {' or '.join(kept)} weights that it answers with" if kept else "") + ". ") if any(r.servers for r in runs) else ""
    key = svg.legend([(f"m{n}", CLASS_WORDS[CLASSES[n]]) for n in used])
    drawn = bar_plot(bars, "MiB", "Memory by class", MIB)
    return f"""<h2>Memory per rank</h2>
<p>Device memory by what it is for, of the rank of each role that has most. The prediction comes from the layout before anything is allocated; the
measurement counts what the device handed out at its peak. {verdict}</p>
""" + figure("memory", "Memory per rank", key + drawn, rows(bars, "MiB", MIB),
             "The upright tick is the textbook formula, which counts weights, gradients, masters and moments only. The bars also hold "
             f"activations, which depend on a worker's share of the batch alone, and buffers. {server}The formulas stand below.")


def formulas(runs):
    """The formulas of memory and bytes as each run has them, in its own type, with what they come to; "" where no run says them."""
    found = {}
    for run in runs:
        for role, entry in by_worker(run.roles()):
            wire = run.wire_of(role) or {}
            if entry.get("formula") or wire.get("formula"):
                cells = [str(run.dtype), str(entry.get("formula") or "-"), f"{(entry.get('formula_bytes') or 0) / MIB:,.2f}", str(wire.get("formula") or "-"),
                         f"{(wire.get('predicted_sent') or 0) / MIB:,.2f}"]
                found.setdefault((role, *cells), []).append(run.label)
    if not found:
        return ""
    letters = next((r.get("units", "formula") for r in runs if r.get("units", "formula")), "")
    body = "".join(f"<tr><td>{escape(', '.join(dict.fromkeys(labels)))}</td>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
                   for cells, labels in found.items())
    return (f"<h2>The formulas of memory and bytes</h2><p>As each run states them, in the bytes of its own number format. {escape(letters)}.</p>"
            "<div class=\"wide\"><table><thead><tr><th>run</th><th>role</th><th>format</th><th>memory (bytes)</th><th>that is (MiB)</th>"
            f"<th>sent per step</th><th>predicted (MiB)</th></tr></thead><tbody>{body}</tbody></table></div>"
            "<p class=\"foot\">The textbook knows no padding and no buffers; what is sent is predicted with padding.</p>")


WIRE = ("predicted_sent", "sent_per_step", "predicted_received", "received_per_step")


def wire(runs):
    bars, beside = [], inline(runs)
    for run in runs:
        first = True
        for role, _ in by_worker(run.roles()):
            entry = run.wire_of(role)
            if not entry or not any(entry.get(key) for key in WIRE):
                continue
            ways = [(f"{role} {verb}", css, entry.get(f"predicted_{what}") or 0, entry.get(f"{what}_per_step") or 0)
                    for what, verb, css in (("sent", "sends", "c1"), ("received", "receives", "c0"))]
            if ways[0][2:] == ways[1][2:]:
                ways = [(f"{role} each way", "c2", *ways[0][2:])]
            for words, css, predicted, measured in ways:
                bars.append({**place(run, words, first, beside), "segments": [(css, "measured MiB", measured)],
                             "mark": (predicted, f"formula: {predicted / MIB:,.3f} MiB") if predicted else None,
                             "text": table.pair(predicted, measured)})
                first = False
    if not bars:
        return ""
    used = {bar["segments"][0][0] for bar in bars}
    key = svg.legend([(css, words) for css, words in (("c2", "sent, and as much received"), ("c1", "sent"), ("c0", "received")) if css in used])
    return f"""<h2>Bytes per step</h2>
<p>Payload that one rank sends and receives for one step: gradients and weights. Headers and control messages are counted
apart and are not in the bars.</p>
""" + figure("bytes", "Bytes per step", key + bar_plot(bars, "MiB per step", "Bytes per step", MIB, 2), rows(bars, "MiB per step", MIB),
             'Bar: counted; upright tick: predicted; "=" after the number: they agree to the byte. The formulas stand below.')


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
    return """<h2>Where the time goes, per step</h2>
<p>Mean over the workers. A worker computes or waits: for a peer that is not ready, for a transfer, or for its own host.</p>
""" + figure("time", "Where the time goes", key + bar_plot(bars, "ms per step, mean over the run", "Step time split"), rows(bars, "ms"),
             'The solid parts add up to the step. "Waiting for peers" ends when the last peer has its part ready; from then until the '
             "transfer has ended, the time is exposed communication. In a star the servers update the weights, so a worker's optimizer time "
             "is zero, and it waits for the servers' update. Hollow: communication while the worker computes, which does not lengthen the "
             f"step. {escape(table.HOST)}") + servers(groups)


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
""" + figure("servers", "The servers' threads", svg.legend([(color(SERVER_COLORS, k), named) for k, named in table.SERVER_TIMES])
             + bar_plot(bars, "ms per step, all threads of a server added", "Time of the servers"), rows(bars, "ms"),
             "Mean over the servers. Hold: a thread has frames or whole gradients, and waits for another worker's turn or for a decision. "
             "Wait: it has nothing to do.")


def links(groups):
    """Steps across links of a known bandwidth beside what the wire alone takes; "" without such runs."""
    bars, words = [], ""
    for group in groups:
        found = [f for f in map(formula.link_of, group) if f]
        if found:
            middle, bound, words = median([f.seconds for f in found]), found[0].bound, found[0].words
            bars.append({"group": None, "label": group[0].label + noisy(group), "segments": [("m0", "measured (ms)", 1e3 * middle)],
                         "mark": (1e3 * bound, f"formula: {1e3 * bound:,.1f} ms"), "text": f"{1e3 * middle:,.1f}, formula {1e3 * bound:,.1f}"})
    if not bars:
        return ""
    return f"""<h2>Steps across the network</h2>
<p>Every rank behind a link of {escape(words)}, each way. With M the bytes of all weights, N workers, S servers, B bytes
per second: a star takes max(M/B, N x M/(S x B)), twice that where clipping or fp16 lets no pull be answered before the last push;
a ring 2(N-1)/N x M/B, in stage 3 3(N-1)/N x M/B.</p>
""" + figure("network", "Steps across the network", bar_plot(bars, "ms per step", "Steps across the network"), rows(bars, "ms"),
             "Bar: median step; upright tick: the formula, which counts the wire alone.")


def axis_of(key, named):
    """(bytes of the axis's unit, its words); None: the total is in the table alone."""
    if words.unit("totals." + key) != "bytes":
        return 1, named
    return None if key == "received_per_step" else (MIB, named + " (MiB)")


def totals(groups):
    """The needs of the whole job, all roles added; "" where no run counted it."""
    cells, told = [], []
    for key, named in table.TOTALS:
        if not (axis := axis_of(key, named)):
            continue
        bars, (unit, named) = [], axis
        for group in groups:
            value = median([r.get("totals", key) for r in group])
            if value is not None:
                mark = noisy(group) if key == "cpu_seconds" else ""
                bars.append({"group": None, "label": group[0].label + mark, "segments": [("m0", named, value)]})
        if bars:
            told += rows([{**bar, "group": named} for bar in bars], "value", unit)[bool(told):]
            cells.append(f"<h3>{escape(named[0].upper() + named[1:])}</h3>"
                         + bar_plot(bars, named, f"Of the whole job: {named}", unit, 1))
    if not cells:
        return ""
    return f"""<h2>The whole job</h2>
<p>All roles added. The busiest rank says what one machine must have; these say what all of them must have together: a star's
servers hold and send what its workers do not.</p>""" + figure("job", "The whole job", "".join(cells), told, escape(table.RESIDENT))
