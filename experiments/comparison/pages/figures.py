"""The report's figures: memory, bytes, time and totals of the runs."""
from markupsafe import Markup

from netlab import formula

from .. import figures as words
from .. import noise, table
from ..draw import svg
from ..draw.bars import bar_plot, rows
from ..draw.figure import figure
from ..runs import CLASSES, PINNED
from ..spread import median
from . import SECTIONS

MIB = table.MIB
DASHES = ["", "7 4", "2 3", "10 3 2 3"]
CLASS_WORDS = dict(words.part("memory[].peak."))
TIME_COLORS = {"forward": "m1", "backward": "m0", "optimizer": "m4", "comm_exposed": "m2", "wait": "m3", "host": "m6"}
SERVER_COLORS = {"receive": "m5", "sum": "m0", "hold": "m3", "wait": "m6", "update": "m4", "reply": "m7"}


def color(colors, key):
    """The colour of a figure; the last one if it has none of its own."""
    return colors.get(key, "m8")


def dash(i):
    """The dash pattern of series i. With the colour i % 8 this distinguishes 32 series, and neighbours differ in both."""
    return DASHES[(i + i // 8) % 4]


def noisy(group):
    return table.NOISY if any(noise.why_noisy(r) for r in group) else ""


def key_of(series, levels=()):
    return svg.legend([(f"c{s['color']}", s["label"], "2 4" if s.get("formula") else s.get("dash", "")) for s in series]
                      + [("level", label, "2 4") for _, label in levels])


def inline(runs):
    """Whether the names of runs and roles fit to the left of the bars on a phone; else runs are named above their bars."""
    return all(svg.text_width(f"{run.label} receives") <= 0.45 * svg.NARROW for run in runs)


def place(run, words, first, beside):
    """The part of a bar that names its run and role."""
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
    pinned = any(e["peak"].get(PINNED) for r in runs for e in r.roles().values())
    kept = sorted({r.dtype for r in runs if r.dtype not in (None, "fp32")})
    key = svg.legend([(f"m{n}", CLASS_WORDS[CLASSES[n]]) for n in used])
    drawn = figure("memory", "Memory per rank", key + bar_plot(bars, "MiB", "Memory by class", MIB), rows(bars, "MiB", MIB))
    return SECTIONS.memory(drawn, exact, pinned, kept, any(r.servers for r in runs))


def formulas(runs):
    """The formulas of memory and bytes as each run states them, with their values; "" if no run states any."""
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
    return SECTIONS.formulas(letters, [[", ".join(dict.fromkeys(labels)), *cells] for cells, labels in found.items()])


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
    return SECTIONS.wire(figure("bytes", "Bytes per step", key + bar_plot(bars, "MiB per step", "Bytes per step", MIB, 2), rows(bars, "MiB per step", MIB)))


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
    drawn = split("time", "Where the time goes", TIME_COLORS, table.TIMES, bars, "ms per step, mean over the run", "Step time split")
    return SECTIONS.times(drawn, table.HOST) + servers(groups)


def split(name, title, colors, parts, bars, axis, description):
    """The figure of bars in milliseconds, with a key of their parts."""
    key = svg.legend([(color(colors, k), named) for k, named in parts])
    return figure(name, title, key + bar_plot(bars, axis, description), rows(bars, "ms"))


def servers(groups):
    """The time of the servers' threads; "" without a star that reports it."""
    bars = []
    for group in groups:
        part = table.server_times(group)
        if part.get("total", 0) > 0:
            bars.append({"group": None, "label": group[0].label + noisy(group), "segments":
                         [(color(SERVER_COLORS, k), f"{named} (ms)", 1e3 * part[k]) for k, named in table.SERVER_TIMES]})
    if not bars:
        return ""
    return SECTIONS.servers(split("servers", "The servers' threads", SERVER_COLORS, table.SERVER_TIMES, bars,
                                  "ms per step, all threads of a server added", "Time of the servers"))


def links(groups):
    """Steps across links of known bandwidth, with the time that the wire alone takes; "" without such runs."""
    bars, words = [], ""
    for group in groups:
        found = [f for f in map(formula.link_of, group) if f]
        if found:
            middle, bound, words = median([f.seconds for f in found]), found[0].bound, found[0].words
            bars.append({"group": None, "label": group[0].label + noisy(group), "segments": [("m0", "measured (ms)", 1e3 * middle)],
                         "mark": (1e3 * bound, f"formula: {1e3 * bound:,.1f} ms"), "text": f"{1e3 * middle:,.1f}, formula {1e3 * bound:,.1f}"})
    if not bars:
        return ""
    drawn = figure("network", "Steps across the network", bar_plot(bars, "ms per step", "Steps across the network"), rows(bars, "ms"))
    return SECTIONS.links(drawn, words)


def totals(groups):
    """The totals of the whole job over all roles; "" if no run counted them."""
    cells, told = [], []
    for key, named in table.TOTALS:
        if key == "received_per_step":  # only in the table
            continue
        unit, named, bars = (MIB, named + " (MiB)", []) if words.unit("totals." + key) == "bytes" else (1, named, [])
        for group in groups:
            value = median([r.get("totals", key) for r in group])
            if value is not None:
                mark = noisy(group) if key == "cpu_seconds" else ""
                bars.append({"group": None, "label": group[0].label + mark, "segments": [("m0", named, value)]})
        if bars:
            told += rows([{**bar, "group": named} for bar in bars], "value", unit)[bool(told):]
            cells.append(Markup("<h3>{}</h3>").format(named[0].upper() + named[1:])
                         + bar_plot(bars, named, f"Of the whole job: {named}", unit, 1))
    if not cells:
        return ""
    return SECTIONS.totals(figure("job", "The whole job", Markup().join(cells), told), table.RESIDENT)
