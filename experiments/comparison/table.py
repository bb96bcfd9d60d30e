"""The full table of a comparison, for the terminal and as Markdown; the short one, with the letters of equal runs, is in pages/closing.py."""
import dataclasses
import statistics
import textwrap

import tables
from netlab import formula

from . import figures, learning, comparability, machine, noise, speed, spread
from .runs import PINNED, as_float, device_bytes, failures_in_words
from .spread import estimate, median

DASH = "-"
MIB = 1 << 20
NOISY = speed.MARK
CHECK_BOUND = 0.01   # of a step's time: what its parts may miss
WIDTH = 118  # of a block of the printed table; more columns go into further blocks
HOST = ("\"Host\" is time when nothing was computed, but not because of a transfer: the host worked between operations, data was "
        "read, or threads waited for a core.")
STAR_IN_PLACE = ("With shared memory (shm) a star's worker reads the weights in its servers' memory and writes its gradients there. Its own "
                 "model state is then the gradients alone, half of the textbook figure; the weights count as the servers' memory.")
RESIDENT = ("Resident memory is what all processes of a job together have in memory after its last step, including a star's scheduler and "
            "what started the ranks. A page that several processes use (of shared memory, the program or a library) counts once.")
LEAST_WAIT = 0.01    # of the step: of less waiting nobody is named
UNEQUAL = 1.05       # an asynchronous worker's batches over another's, from which they are told
EXACT = "\"12.34 =\": predicted and measured agree to the byte."
# (key, words) of summary.json's time, of which data is a part of the host's, of a server's time, and of the totals.
TIMES, SERVER_TIMES, TOTALS = (figures.part(prefix) for prefix in ("time.", "server_time[].", "totals."))
TOTALS.sort(key=lambda total: not total[0].endswith("_bytes"))  # bytes in memory come before bytes that are sent


def time_per_step(run):
    """{part: seconds per step}, means over workers. summary.json's times are of all its own steps. "host" holds "data"; runs
    from before there was a host's time have what the other parts leave of the total."""
    time = run.time or {}
    steps = run.own_steps
    part = {k: float(time.get(k) or 0.0) / steps for k in ["data", "comm_overlapped", "total"] + [k for k, _ in TIMES if k != "host"]}
    if isinstance(time.get("host"), (int, float)):
        part["host"] = time["host"] / steps + part["data"]
    else:
        part["host"] = max(part["total"] - sum(part[k] for k, _ in TIMES if k != "host"), 0.0)
    return part


def middle(parts):
    """The times of the run with the median total (the shorter of two in the middle); {} if there are no runs. They add up to that
    total, which the medians of each time would not."""
    return sorted(parts, key=lambda part: part["total"])[(len(parts) - 1) // 2] if parts else {}


def middle_times(group):
    """time_per_step() of the middle run."""
    return middle([time_per_step(r) for r in group])


def server_times(group):
    """{part: seconds per step} of one server's threads, all added; means over servers, of the middle run. {} of a ring."""
    return middle([{key: statistics.mean(float(s.get(key) or 0) for s in r.server_time) / r.own_steps
                    for key in [k for k, _ in SERVER_TIMES] + ["total"]} for r in group if r.server_time])


def others_share(run):
    """The share of the cores' time that other programs and the hypervisor took; None if it was not measured."""
    found = [run.load.get(key) for key in ("others_share", "stolen_share")]
    return sum(found) if all(isinstance(v, (int, float)) for v in found) else None


def footnotes(groups):
    """The sentences below the table."""
    return [EXACT] + remarks(groups)


def remarks(groups):
    """The sentences that a reader needs in order to understand the rows; the report has them too."""
    return [HOST] + method(groups) + doubtful(groups) + shared_pages(groups) + shared_budgets(groups)


def shared_pages(groups):
    """A sentence on how shared memory is counted in the rows of memory."""
    runs = [r for g in groups for r in g if r.medium == "shm"]
    star = [STAR_IN_PLACE] if any(r.kind == "ps" and r.device != "cuda" for r in runs) else []
    return star + ([RESIDENT] if runs else [])


def shared_budgets(groups):
    """A sentence on asynchronous runs in which one worker computed many more batches than another, and on what tokens/s ignores then."""
    out = []
    for run in [g[0] for g in groups]:
        batches = [b for b in run.get("batches") or [] if isinstance(b, (int, float))]
        if len(batches) < 2 or max(batches) <= UNEQUAL * min(batches):
            continue
        out.append(f"{run.label}: the workers share one budget of batches, and whoever is done with one takes the next; they did "
                   f"{', '.join(f'{b:.0f}' for b in batches)} of it"
                   f"{' (run 1)' if any(len(g) > 1 and g[0] is run for g in groups) else ''}. Tokens/s is of the time in which all "
                   f"are at work; the last {as_float(run.get('tail_seconds')):.2f} s are not in it.")
    return out


def method(groups):
    """A sentence on how the intervals are computed, if there are any."""
    turns = any(s.unit == "rounds" for s in speed.speeds_of(groups))
    return [spread.ROUNDS + "."] * turns + [spread.METHOD + "."] * any(len(g) > 1 for g in groups)


def doubtful(groups):
    """A sentence on runs whose parts of the time do not sum to the loop's time, so that the parts are not reliable."""
    off = [(r.label, r.get("time", "check")) for g in groups for r in g]
    listed = [f"{label}: {check:.1%}" for label, check in off if isinstance(check, (int, float)) and abs(check - 1) > CHECK_BOUND]
    return [f"The parts of the time do not add up to the steps by the clock within {CHECK_BOUND:.0%}; do not trust them: "
            f"{', '.join(listed)}."] if listed else []


def captions(groups, failed):
    """The lines above the table: medium, machine, build, unlike facts, and failed runs."""
    runs = [r for g in groups for r in g]
    out = [f"{name}: {', '.join(found)}" for name, found in machine.shared(runs) if found]
    unlike = comparability.in_words(groups)
    return out + ([f"unlike: {unlike}"] if unlike else []) + [f"failed: {text}" for text in failures_in_words(failed, groups)]


def number(value, text="{:,.0f}"):
    return DASH if not isinstance(value, (int, float)) else text.format(value)


def digits(value):
    """The format that prints a value with three significant digits, at most two of them after the point."""
    return "{:,.0f}" if value >= 100 else "{:.1f}" if value >= 10 else "{:.2f}"


def pair(predicted, measured, text="{:.2f}"):
    """"12.34 =" when prediction and measurement agree to the byte, else both."""
    if not isinstance(predicted, (int, float)) or not isinstance(measured, (int, float)):
        return number(measured if predicted is None else predicted, text)
    if abs(predicted - measured) < 0.5:
        return text.format(measured / MIB) + " ="
    return f"{text.format(predicted / MIB)}/{text.format(measured / MIB)}"


class Rows:
    """Collects the rows of the table: [(label, [cell per group])]; a label without cells is a heading."""

    def __init__(self, groups):
        self.groups, self.firsts, self.out = groups, [g[0] for g in groups], []
        self.speeds = speed.speeds_of(groups)
        self.marks = [s.mark for s in self.speeds]

    def heading(self, label):
        self.out.append((label, []))

    def add(self, label, cells):
        if any(c != DASH for c in cells):
            self.out.append((label, cells))

    def timed(self, label, cells):
        """A row of times. They are marked as uncertain where the speed is."""
        self.add(label, [c if c == DASH else c + mark for c, mark in zip(cells, self.marks)])

    def measured(self, label, read, text="{:,.0f}", timed=True):
        """Medians of `read`, which is never below 0, over each group's runs, below them their 95% intervals."""
        self.estimated(label, [estimate([read(r) for r in g], lowest=0.0) for g in self.groups], text, timed)

    def estimated(self, label, found, text="{:,.0f}", timed=True):
        """Estimates, below them their 95% intervals."""
        (self.timed if timed else self.add)(label, [number(e and e.value, text) for e in found])
        indent = label[:len(label) - len(label.lstrip())]
        self.add(f"{indent}  95% interval", [DASH if e is None or e.low is None or e.low == e.high else
                                             f"{text.format(e.low)}..{text.format(e.high)}" for e in found])


def rows(groups, target=None):
    """[(label, [cell per group])]; a label without cells is a heading. target: the held-out loss to which times are taken."""
    at = Rows(groups)
    at.add("medium", [str(r.medium or DASH) for r in at.firsts])
    at.add("launch", [str(r.launch or DASH) for r in at.firsts])
    speed_rows(at)
    link_rows(at)
    time_rows(at)
    loss_rows(at, target)
    memory_rows(at)
    total_rows(at)
    wire_rows(at)
    firsts = at.firsts
    at.add("staleness, mean", [number(r.get("staleness", "mean"), "{:.2f}") if stale(r) else DASH for r in firsts])
    at.add("  at most", [number(r.get("staleness", "max")) if stale(r) else DASH for r in firsts])
    at.add("allocations after the first step", [number(sum(e.get("late_allocations") or 0 for e in r.memory or []))
                                                for r in firsts])
    at.add("skipped steps", [number(r.skipped) for r in firsts])
    hashes = [str(g[0].weights_hash).removeprefix("0x") if len({r.weights_hash for r in g}) == 1 else "varies" for g in groups]
    at.out.append(("weights hash", [h[:8] for h in hashes]))
    at.out.append(("", [h[8:] for h in hashes]))
    return at.out


def stale(run):
    """Whether gradients of this run can be stale."""
    return run.kind == "ps" and not run.get("explained", "waits_for_all", default=not run.get("staleness", "max"))


def speed_rows(at):
    # No interval is shown for rounds: how tokens/s vary over them is due to the machine. The run's own figure is its ratio.
    at.estimated("tokens/s", [dataclasses.replace(s.rate, low=None, high=None) if s.rate and s.unit == "rounds" else s.rate for s in at.speeds])
    for other in dict.fromkeys(s.reference[0].label for s in at.speeds if s.time):
        mine = [s if s.time and s.reference[0].label == other else None for s in at.speeds]
        at.add(f"time over {other}'s", [f"{s.time.value:.2f}{s.mark}" if s else DASH for s in mine])
        at.add("  95% interval", [f"\u00b1{100 * s.time.width():.1f}%" if s and s.time.low is not None else DASH for s in mine])
    at.timed("CPU seconds of all roles, per step", [number(s.cpu_per_step, "{:.3f}") for s in at.speeds])
    at.timed("step, median (ms)", [number(median([1e3 * (r.get("step_seconds", "median") or 0) for r in g]), "{:.1f}")
                                   for g in at.groups])
    at.add("  spread of steps, (p95 - p5)/median", [number(median([noise.spread_of(r) for r in g]), "{:.0%}")
                                                    for g in at.groups])
    at.add("  cores' time taken by others", [number(median([others_share(r) for r in g]), "{:.0%}") for g in at.groups])


def link_rows(at):
    """Runs across a cluster in a box: the time that the wire alone takes for a step, and the measured time."""
    links = [[formula.link_of(r) for r in g] for g in at.groups]
    at.add("link of every rank", [found[0].words if found[0] else DASH for found in links])
    at.add("  step by the formula (ms)", [number(1e3 * found[0].bound, "{:.1f}") if found[0] else DASH for found in links])
    at.timed("  measured (ms)", [number(median([1e3 * f.seconds for f in found if f]), "{:.1f}") for found in links])


def waited_most(run):
    """("worker 1", "83%"): the rank that the workers waited for longest, and its share of all waiting; dashes if nobody waited."""
    time = run.get("time") or {}
    found = [(as_float(w.get("seconds")), f"{w.get('role')} {w.get('rank')}") for w in time.get("waited_for") or []]
    wait = as_float(time.get("wait"))
    if not found or not wait or wait < LEAST_WAIT * as_float(time.get("total")):
        return DASH, DASH
    seconds, name = max(found)
    return name, f"{min(seconds / wait, 1):.0%}"


def time_rows(at):
    times, servers = [middle_times(g) for g in at.groups], [server_times(g) for g in at.groups]
    at.timed("step, mean over workers (ms)", [number(1e3 * t["total"], "{:.1f}") for t in times])
    for key, words in TIMES:
        at.timed("  " + words, [number(1e3 * t[key], "{:.1f}") for t in times])
        if key == "wait":
            most = [waited_most(g[0]) for g in at.groups]
            at.add("    most of it for", [name for name, _ in most])
            at.timed("      its share", [share for _, share in most])
    at.timed("    of which reading data", [number(1e3 * t["data"], "{:.1f}") for t in times])
    at.timed("overlapped communication (ms)", [number(1e3 * t["comm_overlapped"], "{:.1f}") for t in times])
    for key, words in [("total", "a server's threads, per step, added (ms)")] + [(k, "  " + w) for k, w in SERVER_TIMES]:
        at.timed(words, [number(1e3 * t[key], "{:.1f}") if key in t else DASH for t in servers])


def loss_rows(at, target):
    at.heading("loss (nats per token)")
    at.measured("  first step", lambda r: as_float(r.losses[0]), "{:.4f}", timed=False)
    at.measured("  last step", lambda r: as_float(r.losses[-1]), "{:.4f}", timed=False)
    at.measured("  held-out text", lambda r: r.val_loss, "{:.4f}", timed=False)
    at.add("  unigram entropy of the text", [number(r.unigram_entropy, "{:.4f}") for r in at.firsts])
    if target is not None:
        found = [learning.time_to(g, target) for g in at.groups]
        at.timed(f"seconds to {target:.4f} on held-out text", [
            number(e.value, digits(e.value)) if e else ("never" if learning.judged(g[0]) else DASH) for e, g in zip(found, at.groups)])
        at.add("  95% interval", [DASH if e is None or e.low is None else "..".join(number(v, digits(v)) for v in (e.low, e.high)) for e in found])


def memory_rows(at):
    firsts = at.firsts
    at.heading("memory per rank (MiB), predicted/measured")
    for role in all_roles(firsts):
        entries = [r.roles().get(role) for r in firsts]
        at.add("  " + role, [DASH if e is None else pair(device_bytes(e["predicted"]), device_bytes(e["peak"])) for e in entries])
        at.add("    of which model state", [DASH if e is None else number(model_state(e) / MIB, "{:.2f}") for e in entries])
        at.add("    textbook formula", [DASH if e is None else number((e.get("formula_bytes") or 0) / MIB, "{:.2f}")
                                        for e in entries])
        at.add("    pinned host memory", [DASH if not (e or {}).get("peak", {}).get(PINNED) else
                                          pair(e["predicted"].get(PINNED, 0), e["peak"][PINNED]) for e in entries])
        at.add("    frames in flight, peak", [DASH if not (e or {}).get("transport_peak_bytes") else
                                              number(e["transport_peak_bytes"] / MIB, "{:.2f}") for e in entries])
    gpus = [fullest_gpu(r) for r in firsts]
    for words, key in (("  GPU, in use by everything", "used_bytes"), ("    of which counted, all ranks", "ledger_bytes"),
                       ("    of which workspaces", "workspace_bytes"), ("    of which context and others", "other_bytes")):
        at.add(words, [DASH if g is None else number(None if g[key] is None else g[key] / MIB, "{:.2f}") for g in gpus])


def total_rows(at):
    """The rows of the whole job, summed over all roles. The rows above show only the busiest rank of each role."""
    at.heading("whole job, all roles added (MiB)")
    for key, words in TOTALS:
        unit = figures.unit("totals." + key)
        if unit != "bytes":
            at.measured("  " + words, lambda r, key=key: r.get("totals", key), "{:.1f}" if unit == "s" else "{:,.0f}", timed=unit == "s")
            continue
        found = [median([r.get("totals", key) for r in g]) for g in at.groups]
        at.add("  " + words, [number(None if v is None else v / MIB, "{:,.2f}" if key != "pss_bytes" else "{:,.0f}") for v in found])
    if not at.out[-1][1]:  # no run has totals
        at.out.pop()


def wire_rows(at):
    at.heading("bytes per step (MiB), predicted/measured")
    for role in all_roles(at.firsts):
        wires = [r.wire_of(role) or {} for r in at.firsts]
        at.add(f"  {role} sends", [pair(w.get("predicted_sent"), w.get("sent_per_step")) for w in wires])
        at.add(f"  {role} receives", [pair(w.get("predicted_received"), w.get("received_per_step")) for w in wires])


def model_state(entry):
    """Bytes of weights, gradients, masters, moments and server state: what the textbook formulas count."""
    peak = entry["peak"]
    return sum(peak.get(c, 0) for c in ("parameter", "gradient", "master", "optimizer", "server"))


def fullest_gpu(run):
    """The entry of summary.json's "devices" with most memory in use; None if no rank was on a GPU."""
    return max(run.devices or [], key=lambda d: d["used_bytes"], default=None)


def all_roles(runs):
    seen = {role: None for run in runs for role in run.roles()}
    return sorted(seen, key=lambda role: {"worker": 0, "server": 1}.get(role, 2))


def text_table(groups, target=None, failed=(), width=WIDTH):
    """One column per group, in blocks of as many as fit `width`; captions above, footnotes below."""
    lines = [["", *(g[0].label for g in groups)], *([label, *cells] for label, cells in rows(groups, target))]
    first, *widths = (max(map(len, column)) for column in zip(*(line for line in lines if len(line) > 1)))
    blocks = [[]]
    for i, w in enumerate(widths, 1):
        if blocks[-1] and first + sum(widths[j - 1] + 2 for j in blocks[-1]) + w + 2 > width:
            blocks.append([])
        blocks[-1].append(i)
    out = []
    for block in blocks:
        head, *body = tables.text([[line[i] for i in (0, *block) if i < len(line)] for line in lines]).split("\n")
        out += [head, "-" * (first + sum(widths[j - 1] + 2 for j in block)), *body, ""]
    fill = [[textwrap.fill(text, width) for text in texts] for texts in (captions(groups, failed), footnotes(groups))]
    return "\n".join(fill[0] + [""] * bool(fill[0]) + out[:-1] + fill[1])


def markdown_table(groups, target=None, failed=()):
    """The same for a README."""
    lines = [["", *(g[0].label for g in groups)]]
    for label, cells in rows(groups, target):
        indent = "&nbsp;&nbsp;" * ((len(label) - len(label.lstrip())) // 2)
        lines.append([indent + (label.strip() if cells else f"*{label.strip()}*"), *(cells or [""] * len(groups))])
    return "\n".join([*(f"{text}  " for text in captions(groups, failed)), "", tables.markdown(lines), "", *(f"{text}  " for text in footnotes(groups))])
