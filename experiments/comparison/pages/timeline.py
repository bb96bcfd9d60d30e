"""One step of every topology as it happened, drawn from the spans that the ranks recorded."""
import json
import os
from html import escape

import regular

from ..draw import svg
from ..draw.figure import figure
from ..draw.lanes import HEAD, SHARD, THIN, Lane, draw, margin, rows
from ..runs import RunError
from ..spread import finite, median_and_range

FILE = "timeline.json"
PHASES = {"forward": "m1", "backward": "m0", "optimizer": "m4", "comm": "m2"}
OTHER_PHASE = "m6"
WAIT, EXPOSED = f"m3 {THIN}", "m2"
KINDS = {"gradients": "m5", "weights": "m7", "control": "m6"}
SERVER = {"receive": "m5", "sum": "m0", "hold": WAIT, "update": "m4", "reply": "m7"}   # waiting with nothing is left empty
KEY = [("m1", "forward"), ("m0", "backward; a server's sum"), ("m4", "optimizer; a server's update"),
       ("m3", "waiting for peers; a server holds frames"), ("m2", "exposed communication"),
       ("m5", "gradients under way"), ("m7", "weights under way"), ("idle", "idle: the host's time; a server with nothing to do")]


def load(run):
    """The run's timeline.json, None where it left none; RunError names what is wrong with it."""
    path = os.path.join(run.directory, FILE)
    if not os.path.exists(path):
        return None
    try:
        with regular.open_file(path, limit=regular.WHOLE, encoding="utf-8") as f:
            found = json.load(f)
        return found if isinstance(found, dict) and found.get("ranks") else None
    except ValueError as e:
        raise RunError(f"{path}: no JSON: {e}") from None
    except OSError as e:
        raise RunError(f"{path}: {e.strerror}") from None


def workers_of(timeline):
    return [rank for rank in timeline["ranks"] if rank.get("role") == "worker" and rank.get("steps")]


def coverage(step, timeline):
    """The part of a step that the recorded steps of each worker cover, added up over the workers."""
    return sum(max(0, min(s["end"], step["end"]) - max(s["begin"], step["begin"])) for rank in workers_of(timeline) for s in rank["steps"]
               ) / max(step["end"] - step["begin"], 1)


def chosen_step(timeline, median_seconds):
    """The recorded step, of any worker, whose length is nearest to the run's median, of those in which all workers worked, or as
    many as worked in any; worker 0's before others. None without any."""
    steps = [s for rank in sorted(workers_of(timeline), key=lambda r: r["rank"]) for s in rank["steps"]]
    if not steps:
        return None
    most = max(coverage(s, timeline) for s in steps)
    seen = [s for s in steps if coverage(s, timeline) > most - 0.5]
    return min(seen, key=lambda s: abs((s["end"] - s["begin"]) / 1e9 - (median_seconds or 0)))


def window_of(run, timeline, step):
    """(begin, end) in ns: of one worker where each has its own clock of steps, else from the first to begin to the last to end."""
    if run.kind == "ps" and run.topology != "ps:sync":
        return step["begin"], step["end"]
    same = [s for rank in workers_of(timeline) for s in rank["steps"] if s["step"] == step["step"]]
    return min(s["begin"] for s in same), max(s["end"] for s in same)


def inside(spans, window):
    """Of [(css, words, begin, end)] what lies in the window, cut at its ends."""
    return [(css, words, max(begin, window[0]), min(end, window[1])) for css, words, begin, end in spans
            if end > window[0] and begin < window[1] and end >= begin]


def worker_lane(rank, window):
    spans, links = [], []
    for step in rank["steps"]:
        transfers = step.get("transfers") or []
        for span in step.get("compute") or []:
            words = "hands a transfer over" if span["phase"] == "comm" else span["phase"]
            spans.append((PHASES.get(span["phase"], OTHER_PHASE), words, span["begin"], span["end"]))
        for gap in step.get("gaps") or []:
            t = transfers[gap["transfer"]] if 0 <= gap["transfer"] < len(transfers) else {}
            name = f"{t.get('kind', 'transfer')} of {t['unit']}" if t.get("unit") else t.get("kind", "transfer")
            whom = f"{gap['role']} {gap['rank']}" if gap.get("role") else "peers"
            css, words = {"wait": (WAIT, f"waiting for {whom}, {name}"), "host": (OTHER_PHASE, "the process did not run")}.get(
                gap["part"], (EXPOSED, f"exposed communication, {name}"))
            spans.append((css, words, gap["begin"], gap["end"]))
        for t in transfers:
            if t.get("done") and t["done"] > t.get("own_ready", t["done"]):
                begin = max(t["own_ready"], t.get("peers_ready") or 0)
                links.append((KINDS.get(t["kind"], OTHER_PHASE), f"{t['kind']} of {t['unit']}, {t.get('bytes', 0):,} bytes",
                              min(begin, t["done"]), t["done"]))
    idle_first = [s for s in spans if s[0] in (WAIT, EXPOSED)] + [s for s in spans if s[0] not in (WAIT, EXPOSED)]
    known = min(s["begin"] for s in rank["steps"]), max(s["end"] for s in rank["steps"])
    return Lane(f"worker {rank['rank']}", [s for s in inside(idle_first, window) if s[3] > s[2]], inside(links, window), known=known)


def server_lanes(rank, window):
    lanes, shards = [], rank.get("shards") or []
    for i, shard in enumerate(shards):
        spans = [(SERVER[s["part"]], ", ".join([s["part"]] + [f"{of} {s[of]}" for of in ("key", "worker") if of in s]), s["begin"], s["end"])
                 for s in shard if s["part"] in SERVER]
        name = f"server {rank['rank']}" + (f".{i}" if len(shards) > 1 else "")
        lanes.append(Lane(name, inside(spans, window), [], SHARD))
    return lanes


def lanes_of(timeline, window):
    out = [worker_lane(rank, window) for rank in sorted(workers_of(timeline), key=lambda r: r["rank"])]
    for rank in sorted((r for r in timeline["ranks"] if r.get("role") == "server"), key=lambda r: r["rank"]):
        out += server_lanes(rank, window)
    return out


def typical(group):
    """The run of a group whose speed is nearest to the group's median."""
    speeds = finite([run.tokens_per_second for run in group])
    if not speeds:
        return group[0]
    middle = median_and_range(speeds)[0]
    return min(group, key=lambda run: abs((run.tokens_per_second or 0) - middle))


def pictures(groups):
    """[(label, step number, window, lanes, clock error)] of the groups that left a timeline."""
    out = []
    for group in groups:
        run = typical(group)
        timeline = load(run)
        step = chosen_step(timeline, run.get("step_seconds", "median")) if timeline else None
        if step is None:
            continue
        window = window_of(run, timeline, step)
        out.append((group[0].label, step["step"], window, lanes_of(timeline, window), timeline.get("clock_error_ns") or 0))
    return out


def section(groups):
    """The section; "" when no run left a timeline."""
    found = pictures(groups)
    if not found:
        return ""
    scale = max(margin(lanes) for *_, lanes, _ in found), max(window[1] - window[0] for _, _, window, _, _ in found)
    error = max(e for *_, e in found)
    parts, told = [], [HEAD]
    for i, (label, step, window, lanes, _) in enumerate(found):
        words = f"{label}, step {step}: {(window[1] - window[0]) / 1e6:,.1f} ms"
        told += rows(label, lanes, window)
        parts.append(f'<div class="plot lanes"><h4>{escape(words)}</h4>'
                     + svg.both_widths(lambda width, a=lanes, b=window, c=words, last=i + 1 == len(found): draw(a, b, scale, width, c, last)) + "</div>")
    clock = f" The clocks of the machines agree to {error / 1e6:,.3f} ms." if error else ""
    present = {css.split()[0] for *_, lanes, _ in found for lane in lanes for css, *_ in [*lane.spans, *lane.transfers]} | {"idle"}
    return """<h2>One step of each</h2>
<p>One step as it was recorded: computing, sending and waiting. All drawings have the same time scale, so a shorter step is a shorter
drawing. Each is the recorded step whose length is nearest to its run's median.</p>
""" + figure("step", "One step of each", svg.legend([entry for entry in KEY if entry[0] in present]) + "".join(parts), told,
             "The upper row of a worker is its computing. A gap in it has the colour of its reason: the worker waited until the last peer had its "
             "part ready (half as high), and then for the transfer. The thin rows are transfers, from the moment when every part was ready "
             f"until the end. Each row of a server is one of its threads, in the colours of its work.{clock}")
