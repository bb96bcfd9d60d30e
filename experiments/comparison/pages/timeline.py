"""Draws one recorded step of every topology from the spans in trace.json."""
import json
import os

from markupsafe import Markup

import regular

from .. import table
from ..draw import svg
from ..draw.figure import figure
from ..draw.lanes import HEAD, SHARD, THIN, Lane, draw, margin, rows
from ..runs import RunError
from ..spread import median
from . import SECTIONS

FILE = "trace.json"
GAPS = 900  # the trace's thread id for a worker's gaps
PHASES = {"forward": "m1", "backward": "m0", "optimizer": "m4", "comm": "m2"}
OTHER_PHASE = "m6"
WAIT, EXPOSED = f"m3 {THIN}", "m2"
KINDS = {"gradients": "m5", "weights": "m7", "control": "m6"}
SERVER = {"receive": "m5", "sum": "m0", "hold": WAIT, "update": "m4", "reply": "m7"}   # idle time is not drawn
KEY = [("m1", "forward"), ("m0", "backward; a server's sum"), ("m4", "optimizer; a server's update"),
       ("m3", "waiting for peers; a server holds frames"), ("m2", "exposed communication"),
       ("m5", "gradients under way"), ("m7", "weights under way"), ("idle", "idle: the host's time; a server with nothing to do")]


def ns(event):
    return round(event["ts"] * 1000)


def span(event):
    return {"begin": ns(event), "end": round((event["ts"] + event["dur"]) * 1000), "name": event["name"], "cat": event["cat"],
            **event.get("args", {})}


def ranks_of(events):
    """The part of a trace that is drawn: {"workers": {rank: {"steps", "phases", "gaps", "transfers"}}, "servers": {rank: {thread: spans}},
    "clock_error_ns"}."""
    workers, servers, begun = {}, {}, {}
    found = {"workers": workers, "servers": servers, "clock_error_ns": 0}
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    for e in events:
        kind = e.get("cat")
        if e["name"] == "clock_error":
            found["clock_error_ns"] = max(found["clock_error_ns"], e["args"]["ns"])
        elif kind == "server":
            if e["ph"] == "X":
                servers.setdefault(int(names[e["pid"]].split()[1]), {}).setdefault(e["tid"], []).append(span(e))
        elif kind in ("step", "phase", "transfer") or e["tid"] == GAPS and e["ph"] == "X":
            worker = workers.setdefault(e["pid"], {"rank": e["pid"], "steps": [], "phases": [], "gaps": [], "transfers": []})
            if kind != "transfer":
                worker[kind + "s" if kind in ("step", "phase") else "gaps"].append(span(e))
            elif e["ph"] == "b":
                begun[e["id"]] = e
            else:
                worker["transfers"].append({"begin": ns(begun[e["id"]]), "end": ns(e), "name": e["name"], **begun[e["id"]]["args"]})
    return found


def load(run):
    """The steps of the run's trace.json; None if there is none. RunError names what is wrong with it."""
    path = os.path.join(run.directory, FILE)
    if not os.path.exists(path):
        return None
    try:
        with regular.open_file(path, limit=regular.WHOLE, encoding="utf-8") as f:
            found = ranks_of(json.load(f)["traceEvents"])
        return found if workers_of(found) else None
    except (LookupError, TypeError, AttributeError) as e:
        raise RunError(f"{path}: no trace of a run: {e!r}") from None
    except ValueError as e:
        raise RunError(f"{path}: no JSON: {e}") from None
    except OSError as e:
        raise RunError(f"{path}: {e.strerror}") from None


def workers_of(timeline):
    """The workers that recorded a step, by rank."""
    return [worker for _, worker in sorted(timeline["workers"].items()) if worker["steps"]]


def coverage(step, timeline):
    """The recorded share of a step, summed over the workers."""
    return sum(max(0, min(s["end"], step["end"]) - max(s["begin"], step["begin"])) for rank in workers_of(timeline) for s in rank["steps"]
               ) / max(step["end"] - step["begin"], 1)


def chosen_step(timeline, median_seconds):
    """The recorded step that is drawn. It is one in which the most workers have recorded spans; among those, the one whose length is
    nearest to the run's median; among equals, the lowest rank's. None if no step was recorded."""
    steps = [s for rank in workers_of(timeline) for s in rank["steps"]]
    if not steps:
        return None
    most = max(coverage(s, timeline) for s in steps)
    seen = [s for s in steps if coverage(s, timeline) > most - 0.5]
    return min(seen, key=lambda s: abs((s["end"] - s["begin"]) / 1e9 - (median_seconds or 0)))


def window_of(run, timeline, step):
    """(begin, end) in ns: of one worker if each worker has its own steps, else from the first begin to the last end."""
    if table.stale(run):
        return step["begin"], step["end"]
    same = [s for rank in workers_of(timeline) for s in rank["steps"] if s["step"] == step["step"]]
    return min(s["begin"] for s in same), max(s["end"] for s in same)


def inside(spans, window):
    """The spans [(css, words, begin, end)] that overlap the window, cut at its ends."""
    return [(css, words, max(begin, window[0]), min(end, window[1])) for css, words, begin, end in spans
            if end > window[0] and begin < window[1] and end >= begin]


def worker_lane(rank, window):
    spans, links = [], []
    for x in rank["gaps"]:
        whom = next((f"{role} {x[role]}" for role in ("worker", "server") if role in x), "peers")
        css, words = {"wait": (WAIT, f"waiting for {whom}, {x['transfer']}"), "host": (OTHER_PHASE, "the process did not run")}.get(
            x["cat"], (EXPOSED, f"exposed communication, {x['transfer']}"))
        spans.append((css, words, x["begin"], x["end"]))
    for x in rank["phases"]:
        words = "hands a transfer over" if x["name"] == "comm" else x["name"]
        spans.append((PHASES.get(x["name"], OTHER_PHASE), words, x["begin"], x["end"]))
    for x in rank["transfers"]:
        links.append((KINDS.get(x["name"].split()[0], OTHER_PHASE), f"{x['name']}, {x['bytes']:,} bytes", x["begin"], x["end"]))
    idle_first = [x for x in spans if x[0] in (WAIT, EXPOSED)] + [x for x in spans if x[0] not in (WAIT, EXPOSED)]
    known = min(x["begin"] for x in rank["steps"]), max(x["end"] for x in rank["steps"])
    return Lane(f"worker {rank['rank']}", [x for x in inside(idle_first, window) if x[3] > x[2]], inside(links, window), known=known)


def server_lanes(rank, threads, window):
    lanes = []
    for i, (_, thread) in enumerate(sorted(threads.items())):
        spans = [(SERVER[x["name"]], ", ".join([x["name"]] + [f"{of} {x[of]}" for of in ("key", "worker") if of in x]), x["begin"], x["end"])
                 for x in thread if x["name"] in SERVER]
        name = f"server {rank}" + (f".{i}" if len(threads) > 1 else "")
        lanes.append(Lane(name, inside(spans, window), [], SHARD))
    return lanes


def pictures(groups):
    """[(label, step number, window, lanes, clock error)] of the groups that left a trace."""
    out = []
    for group in groups:
        middle = median([run.tokens_per_second for run in group])
        run = group[0] if middle is None else min(group, key=lambda one: abs((one.tokens_per_second or 0) - middle))
        timeline = load(run)
        step = chosen_step(timeline, run.get("step_seconds", "median")) if timeline else None
        if step is None:
            continue
        window = window_of(run, timeline, step)
        lanes = [worker_lane(rank, window) for rank in workers_of(timeline)]
        lanes += [lane for rank, threads in sorted(timeline["servers"].items()) for lane in server_lanes(rank, threads, window)]
        out.append((group[0].label, step["step"], window, lanes, timeline["clock_error_ns"]))
    return out


def section(groups):
    """The section; "" if no run left a trace."""
    found = pictures(groups)
    if not found:
        return ""
    scale = max(margin(lanes) for *_, lanes, _ in found), max(window[1] - window[0] for _, _, window, _, _ in found)
    error = max(e for *_, e in found)
    parts, told = [], [HEAD]
    for i, (label, step, window, lanes, _) in enumerate(found):
        words = f"{label}, step {step}: {(window[1] - window[0]) / 1e6:,.1f} ms"
        told += rows(label, lanes, window)
        parts.append(Markup('<div class="plot lanes"><h4>{}</h4>{}</div>').format(words, svg.both_widths(
            lambda width, a=lanes, b=window, c=words, last=i + 1 == len(found): draw(a, b, scale, width, c, last))))
    present = {css.split()[0] for *_, lanes, _ in found for lane in lanes for css, *_ in [*lane.spans, *lane.transfers]} | {"idle"}
    drawn = figure("step", "One step of each", svg.legend([entry for entry in KEY if entry[0] in present]) + Markup().join(parts), told)
    return SECTIONS.step(drawn, f"{error / 1e6:,.3f}" if error else "")
