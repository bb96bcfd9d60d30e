"""The table for the terminal and the README, and the CSV."""
import csv
import statistics
import textwrap

from . import noise
from .runs import CLASSES, PINNED, as_float, device_bytes, median_and_spread

DASH = "-"
MIB = 1 << 20
NOISY = " ~"
WIDTH = 118  # of a block of the printed table; more columns go into further blocks
OTHER = ("\"Other\" is what no span covers: the host's work between operations, and threads that wait for a core.")
EXACT = "\"12.34 =\": predicted and measured agree to the byte."
# (key of summary.time, words). What is left of a step is "other"; overlapped runs beside the rest.
TIMES = [("data", "data"), ("forward", "forward"), ("backward", "backward"), ("optimizer", "optimizer"),
         ("comm_exposed", "exposed communication"), ("wait", "waiting for peers"), ("other", "other")]


def time_per_step(run):
    """{part: seconds per step}, means over workers. summary.json's times are of the whole run; what its parts
    leave of the total is "other"."""
    time = run.time or {}
    steps = max(len(run.losses), 1)
    part = {k: float(time.get(k) or 0.0) / steps for k in
            ("data", "forward", "backward", "optimizer", "comm_exposed", "comm_overlapped", "wait", "total")}
    known = sum(part[k] for k, _ in TIMES if k != "other")
    part["other"] = max(part["total"] - known, 0.0)
    return part


def median_times(group):
    """time_per_step() of one run; of repeated runs each part's median."""
    parts = [time_per_step(r) for r in group]
    return {key: statistics.median(p[key] for p in parts) for key in parts[0]}


def others_share(run):
    """Share of the cores' time that other programs and the hypervisor took; None where it was not measured."""
    found = [run.load.get(key) for key in ("others_share", "stolen_share")]
    return sum(found) if all(isinstance(v, (int, float)) for v in found) else None


def footnotes(groups):
    """What stands below the table, as sentences."""
    return [EXACT, OTHER] + noise.footnotes([r for g in groups for r in g])


def number(value, text="{:,.0f}"):
    return DASH if not isinstance(value, (int, float)) else text.format(value)


def pair(predicted, measured, text="{:.2f}"):
    """"12.34 =" when prediction and measurement agree to the byte, else both."""
    if not isinstance(predicted, (int, float)) or not isinstance(measured, (int, float)):
        return number(measured if predicted is None else predicted, text)
    if abs(predicted - measured) < 0.5:
        return text.format(measured / MIB) + " ="
    return f"{text.format(predicted / MIB)}/{text.format(measured / MIB)}"


def rows(groups):
    """[(label, [cell per group])]; a label without cells is a heading."""
    firsts = [g[0] for g in groups]
    times = [median_times(g) for g in groups]
    marks = [NOISY if any(noise.why_noisy(r) for r in g) else "" for g in groups]
    repeated = any(len(g) > 1 for g in groups)
    out = []

    def timed(label, cells):
        add(label, [c if c == DASH else c + mark for c, mark in zip(cells, marks)])

    def add(label, cells):
        if any(c != DASH for c in cells):
            out.append((label, cells))

    speed = [median_and_spread([r.tokens_per_second for r in g]) for g in groups]
    timed("tokens/s" + (" (median)" if repeated else ""), [number(m) for m, _ in speed])
    if repeated:
        add("  spread, max - min", [number(s) for _, s in speed])
    timed("step, median (ms)", [number(median_and_spread([1e3 * (r.get("step_seconds", "median") or 0) for r in g])[0],
                                       "{:.1f}") for g in groups])
    add("  spread of steps, (p95 - p5)/median", [number(median_and_spread([noise.spread_of(r) for r in g])[0], "{:.0%}")
                                                 for g in groups])
    add("  cores' time taken by others", [number(median_and_spread([others_share(r) for r in g])[0], "{:.0%}")
                                          for g in groups])
    out.append(("time per step, mean over workers (ms)", []))
    for key, words in TIMES:
        timed("  " + words, [number(1e3 * t[key], "{:.1f}") for t in times])
    timed("  overlapped communication", [number(1e3 * t["comm_overlapped"], "{:.1f}") for t in times])
    out.append(("loss (nats per token)", []))
    add("  first step", [number(as_float(r.losses[0]), "{:.4f}") for r in firsts])
    add("  last step", [number(as_float(r.losses[-1]), "{:.4f}") for r in firsts])
    add("  held-out text", [number(r.val_loss, "{:.4f}") for r in firsts])
    add("  unigram entropy of the text", [number(r.unigram_entropy, "{:.4f}") for r in firsts])
    out.append(("memory per rank (MiB), predicted/measured", []))
    for role in all_roles(firsts):
        entries = [r.roles().get(role) for r in firsts]
        add("  " + role, [DASH if e is None else pair(device_bytes(e["predicted"]), device_bytes(e["peak"]))
                          for e in entries])
        add("    of which model state", [DASH if e is None else number(model_state(e) / MIB, "{:.2f}") for e in entries])
        add("    textbook formula", [DASH if e is None else number((e.get("formula_bytes") or 0) / MIB, "{:.2f}")
                                     for e in entries])
        add("    pinned host memory", [DASH if not (e or {}).get("peak", {}).get(PINNED) else
                                       pair(e["predicted"].get(PINNED, 0), e["peak"][PINNED]) for e in entries])
        add("    frames in flight, peak", [DASH if not (e or {}).get("transport_peak_bytes") else
                                           number(e["transport_peak_bytes"] / MIB, "{:.2f}") for e in entries])
    gpus = [fullest_gpu(r) for r in firsts]
    for words, key in (("  GPU, in use by everything", "used_bytes"), ("    of which counted, all ranks", "ledger_bytes"),
                       ("    of which workspaces", "workspace_bytes"), ("    of which context and others", "other_bytes")):
        add(words, [DASH if g is None else number(None if g[key] is None else g[key] / MIB, "{:.2f}")
                    for g in gpus])
    out.append(("bytes per step (MiB), predicted/measured", []))
    for role in all_roles(firsts):
        wires = [r.wire_of(role) or {} for r in firsts]
        add(f"  {role} sends", [pair(w.get("predicted_sent"), w.get("sent_per_step")) for w in wires])
        add(f"  {role} receives", [pair(w.get("predicted_received"), w.get("received_per_step")) for w in wires])
    add("allocations after the first step", [number(sum(e.get("late_allocations") or 0 for e in r.memory or []))
                                             for r in firsts])
    add("skipped steps", [number(r.skipped) for r in firsts])
    hashes = [str(r.weights_hash).removeprefix("0x") for r in firsts]
    out.append(("weights hash", [h[:8] for h in hashes]))
    out.append(("", [h[8:] for h in hashes]))
    return out


def model_state(entry):
    """Bytes of weights, gradients, masters, moments and server state: what the textbook formulas count."""
    peak = entry["peak"]
    return sum(peak.get(c, 0) for c in ("parameter", "gradient", "master", "optimizer", "server"))


def fullest_gpu(run):
    """The entry of summary.json's "devices" with most memory in use, None where no rank was on a GPU."""
    return max(run.devices or [], key=lambda d: d["used_bytes"], default=None)


def all_roles(runs):
    seen = {role: None for run in runs for role in run.roles()}
    return sorted(seen, key=lambda role: {"worker": 0, "server": 1}.get(role, 2))


def text_table(groups, width=WIDTH):
    """One column per run, in blocks of as many as fit `width`; the footnotes below."""
    lines = [("", [g[0].label for g in groups])] + rows(groups)
    first = max(len(label) for label, cells in lines if cells)
    widths = [max(len(cells[i]) for _, cells in lines if cells) for i in range(len(groups))]
    blocks = [[]]
    for i, w in enumerate(widths):
        if blocks[-1] and first + sum(widths[j] + 2 for j in blocks[-1]) + w + 2 > width:
            blocks.append([])
        blocks[-1].append(i)
    out = []
    for block in blocks:
        for i, (label, cells) in enumerate(lines):
            cells = [(cells[j] if cells else "").rjust(widths[j]) for j in block]
            out.append("  ".join([label.ljust(first)] + cells).rstrip())
            if i == 0:
                out.append("-" * (first + sum(widths[j] + 2 for j in block)))
        out.append("")
    return "\n".join(out[:-1] + [textwrap.fill(text, width) for text in footnotes(groups)])


def markdown_table(groups):
    """The same for a README."""
    out = ["| | " + " | ".join(g[0].label for g in groups) + " |", "|---|" + "---:|" * len(groups)]
    for label, cells in rows(groups):
        indent = "&nbsp;&nbsp;" * ((len(label) - len(label.lstrip())) // 2)
        name = label.strip() if cells else f"*{label.strip()}*"
        out.append(f"| {indent}{name} | " + " | ".join(cells or [""] * len(groups)) + " |")
    return "\n".join(out + [""] + [f"{text}  " for text in footnotes(groups)])


def csv_record(run):
    """One flat record per run; bytes are bytes, times seconds per step."""
    record = {"run": run.name, "label": run.label}
    for key in ("topology", "stage", "consistency", "workers", "servers", "model", "dtype", "device", "params", "seed",
                "data", "steps", "skipped", "tokens_per_step", "train_batch_size", "tokens_per_second"):
        record[key] = run.summary.get(key)
    for key in ("median", "p5", "p95"):
        record[f"step_seconds_{key}"] = run.get("step_seconds", key)
    record["loss_first"], record["loss_last"] = run.losses[0], run.losses[-1]
    record["val_loss"], record["unigram_entropy"] = run.val_loss, run.unigram_entropy
    record["weights_hash"] = run.weights_hash
    for key, value in time_per_step(run).items():
        record[f"seconds_per_step_{key}"] = f"{value:.6g}"
    for role, entry in run.roles().items():
        for kind in ("predicted", "peak"):
            word = {"peak": "measured"}.get(kind, kind)
            for name in CLASSES + [PINNED]:
                record[f"{role}_{name}_bytes_{word}"] = entry[kind].get(name, 0)
            record[f"{role}_bytes_{word}"] = device_bytes(entry[kind])
        for key in ("formula_bytes", "rss_bytes", "transport_peak_bytes"):
            record[f"{role}_{key}"] = entry.get(key)
        for key, value in (run.wire_of(role) or {}).items():
            if key not in ("rank", "role"):
                record[f"{role}_wire_{key}"] = value
    gpu = fullest_gpu(run) or {}
    for key in ("name", "used_bytes", "ledger_bytes", "workspace_bytes", "other_bytes"):
        record[f"gpu_{key}"] = gpu.get(key)
    record["step_seconds_spread"] = noise.spread_of(run)
    for key in ("others_share", "stolen_share", "own_cpu_seconds", "busy_cpu_seconds", "cores"):
        record[f"load_{key}"] = run.load.get(key)
    record["noisy"] = "; ".join(noise.why_noisy(run))
    for key, value in run.point:
        record[f"sweep_{key}"] = value
    for key in ("mean", "max"):
        record[f"staleness_{key}"] = run.get("staleness", key)
    return record


def write_csv(path, runs):
    records = [csv_record(r) for r in runs]
    fields = list(dict.fromkeys(key for record in records for key in record))
    with open(path, "w", newline="", encoding="utf-8") as f:
        writer = csv.DictWriter(f, fieldnames=fields, restval="")
        writer.writeheader()
        writer.writerows(records)
