"""A prediction's figures. An executor (ring.py, star.py) returns an `Outcome`; `document` makes it JSON, and `table` prints it.

    configuration   topology, workers, servers, model, dtype, micro_batch_size, micro_batches, seq_len, machine, network, straggler, steps, how
    memory          per role, of the rank that needs most: predicted_bytes, parts {class: bytes}, formula, formula_bytes
    wire            per role, of the rank that moves most: sent, received, formula
    step_seconds    median, mean, p5, p95, p99 over the simulated steps, without the first ones
    parts           forward, backward, optimizer, exposed, wait, host: mean seconds of a step and rank; they add up to the mean step
    tokens_per_second
    limit           what a faster step would need: one of LIMITS
    staleness       null, or mean, max, histogram
    fits            null, or whether each rank's memory fits the machine's device
    error           null, or mean, worst, of: the error of similar predictions, as measured by --judge
    notes           sentences on the basis of the figures
"""
from dataclasses import dataclass, field

import numpy as np
import tables
from netlab import rate as rates

LIMITS = ("compute", "worker's link", "server's link", "server's update", "latency", "straggler")
PARTS = ("forward", "backward", "optimizer", "exposed", "wait", "host")
WARM_UP = 2   # first steps, which are in no figure


@dataclass
class Outcome:
    """steps: seconds of each counted step of the job (synchronous: of all ranks; asynchronous: workers' steps); rate: steps of the whole job a
    second, which counts tokens_per_step each (None: 1 / mean of steps). parts: as above. staleness: None, or {staleness: how often}."""
    steps: list
    parts: dict
    limit: str
    how: str                      # a sentence on which flows were simulated
    staleness: dict = None
    rate: float = None
    notes: list = field(default_factory=list)


def busiest(rows, key):
    """For each role, the row with the largest value of `key`."""
    out = {}
    for row in rows:
        if row["role"] not in out or row[key] > out[row["role"]][key]:
            out[row["role"]] = row
    return out


def memory_of(told):
    return [{"role": role, "predicted_bytes": row["predicted_bytes"], "parts": row["predicted"], "pinned_bytes": row.get("pinned_bytes", 0),
             "formula": row.get("formula"), "formula_bytes": row.get("formula_bytes")}
            for role, row in busiest(told["memory"], "predicted_bytes").items()]


def wire_of(told):
    rows = told.get("wire", [])
    return [{"role": role, "sent": row["predicted_sent"], "received": row["predicted_received"], "formula": row.get("formula")}
            for role, row in busiest([{**row, "both": row["predicted_sent"] + row["predicted_received"]} for row in rows], "both").items()]


def staleness_of(counts):
    if counts is None:
        return None
    total = sum(counts.values())
    most = max(counts, default=0)
    return {"mean": sum(k * n for k, n in counts.items()) / total if total else 0.0, "max": most,
            "histogram": [counts.get(k, 0) for k in range(most + 1)]}


def fits(machine, memory):
    """Whether the ranks' memory fits the device, if the machine file states the device's memory. Roles on the host are not counted."""
    room = machine.device and machine.device.get("memory_bytes")
    worker = next((row for row in memory if row["role"] == "worker"), None)
    return worker["predicted_bytes"] <= room if room and worker else None


def document(asked, machine, straggler, outcome, error=None):
    """The JSON document of a prediction. asked: the dryrun.Document. straggler: the options as text, or None."""
    steps, told = np.asarray(outcome.steps, float), asked.told
    quantile = dict(zip(("p5", "median", "p95", "p99"), np.percentile(steps, (5, 50, 95, 99)).tolist()))
    mean = float(steps.mean())
    memory = memory_of(told)
    network = machine.network
    return {
        "configuration": {
            "topology": told["topology"], "workers": told["workers"], "servers": told["servers"], "model": told["model"], "dtype": told["dtype"],
            "micro_batch_size": told["micro_batch_size"], "micro_batches": asked.micro_batches, "seq_len": told["seq_len"], "params": told["params"],
            "machine": machine.name, "network": {"kind": network["kind"], "oversubscription": network["oversubscription"],
                                                 "bytes_per_second": network["bytes_per_second"], "latency_seconds": network["latency_seconds"],
                                                 "per_node": machine.per_node},
            "straggler": straggler, "steps": len(steps), "how": outcome.how},
        "memory": memory, "wire": wire_of(told),
        "step_seconds": {"median": quantile["median"], "mean": mean, "p5": quantile["p5"], "p95": quantile["p95"], "p99": quantile["p99"]},
        "parts": {part: float(outcome.parts.get(part, 0.0)) for part in PARTS},
        "tokens_per_second": told["tokens_per_step"] * (outcome.rate if outcome.rate is not None else 1 / mean if mean else 0.0),
        "limit": outcome.limit, "staleness": staleness_of(outcome.staleness), "fits": fits(machine, memory), "error": error,
        "notes": outcome.notes}


# ---------------------------------------------------------------- for people
def seconds_text(value):
    for unit, size in (("s", 1), ("ms", 1e-3), ("us", 1e-6)):
        if value >= size or unit == "us":
            return f"{value / size:.3g} {unit}" if value < 100 * size else f"{value / size:.0f} {unit}"
    return ""


def bytes_text(value):
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):   # the format of the program's dry run
        if value >= size:
            return f"{value / size:.3g} {unit}" if value < 100 * size else f"{value / size:.0f} {unit}"
    return f"{value} B"


def memory_cell(document):
    worker = next((row for row in document["memory"] if row["role"] == "worker"), document["memory"][0])
    return bytes_text(worker["predicted_bytes"]) + (" (!)" if document["fits"] is False else "")


def row(document):
    configuration, seconds, parts = document["configuration"], document["step_seconds"], document["parts"]
    sent = max((w["sent"] for w in document["wire"]), default=0)
    computing = parts["forward"] + parts["backward"] + parts["optimizer"]
    return [configuration["topology"], rates.text(8 * configuration["network"]["bytes_per_second"]), configuration["workers"], configuration["servers"] or "-", memory_cell(document), bytes_text(sent),
            seconds_text(seconds["median"]), f"{seconds_text(seconds['p5'])} .. {seconds_text(seconds['p95'])}", seconds_text(seconds["p99"]),
            *(seconds_text(x) if x > 0 else "-" for x in (computing, parts["exposed"], parts["wait"], parts["host"])),
            f"{document['tokens_per_second']:,.0f}", document["limit"],
            f"{document['staleness']['mean']:.2f}" if document["staleness"] else "-",
            f"{100 * document['error']['mean']:.1f}%, worst {100 * document['error']['worst']:.1f}%" if document["error"] else "-"]


HEAD = ["topology", "link", "N", "S", "memory", "sent", "step", "5% .. 95%", "99%", "computing", "exposed", "waiting", "host", "tokens/s", "limit",
        "staleness", "judged error"]


def table(documents):
    """The table of several predictions, without empty columns."""
    rows = [row(d) for d in documents]
    used = [i for i, name in enumerate(HEAD) if name not in ("staleness", "judged error", "host", "S") or any(r[i] != "-" for r in rows)]
    if len({r[1] for r in rows}) == 1:
        used.remove(1)
    lines = [tables.text([[r[i] for i in used] for r in [HEAD, *rows]])]
    lines.append("\nmemory, sent: of the busiest rank, from the program's dry run (memory: a worker's). step: median; the parts are means over ranks and steps.")
    if any(d["fits"] is False for d in documents):
        lines.append("(!) more than the device of this machine has: the run would be refused there.")
    lines += sorted({note for d in documents for note in d["notes"]})
    return "\n".join(lines)


def named(document):
    configuration = document["configuration"]
    return configuration["topology"] + (f" with {configuration['servers']} server{'s' * (configuration['servers'] > 1)}" if configuration["servers"] else "")


def winner(rows):
    """(name of the fastest row, a phrase on how much faster it is than the next one)"""
    best, second = sorted(rows, key=lambda d: d["tokens_per_second"], reverse=True)[:2]
    ahead = best["tokens_per_second"] / second["tokens_per_second"]
    if ahead < 1.005:
        return f"{named(best)} and {named(second)}", "equally fast"
    return named(best), f"{ahead:.3g} times as fast as {named(second)}"


def crossings(documents):
    """Sentences on which row is the fastest for each bandwidth and N, and at which values that changes."""
    groups = {}
    for document in documents:
        configuration = document["configuration"]
        groups.setdefault((configuration["network"]["bytes_per_second"], configuration["workers"]), []).append(document)
    several_n = len({workers for _, workers in groups}) > 1
    lines = {}   # the values along one axis: N if it varies, else the bandwidth
    for (speed, workers), rows in sorted(groups.items()):
        if len(rows) > 1:
            place = f"N = {workers}" if several_n else f"{rates.text(8 * speed)}"
            lines.setdefault(speed if several_n else None, []).append((place, *winner(rows)))
    out = []
    for speed, places in lines.items():
        changes = [p for i, p in enumerate(places) if not i or p[1] != places[i - 1][1]]
        words = ", ".join(f"{name}{f' from {place} on' if len(places) > 1 else ''} ({lead})" for place, name, lead in changes)
        over = f" over {rates.text(8 * speed)}" if speed and len(lines) > 1 else ""
        out.append(f"The fastest{over}: {words}.")
    return out
