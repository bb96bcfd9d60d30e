"""Computes the time that the wire alone would take for a step, and prints it with the measured time as a table.

M = P*b is the bytes of all P weights, b in the run's format; N workers, S servers, B bytes per second each way of every link.
The formula is the textbook's and uses no prediction or count of the program. The program pads its weights, and its zero:3
gathers some units only once; other columns of the table have the bytes that it really moves.

    star    max(M/B, N*M/(S*B))     each server receives N*M/S and sends as much; full duplex, so both at the same time
    ring    2(N-1)/N * M/B          the reduce-scatter, then the all-gather
            3(N-1)/N * M/B          zero:3, which gathers before forward and before backward

In a star, pulls overlap pushes only if a key may be updated as soon as its last gradient has arrived. Clipping by the global
norm, and fp16's check for overflow, need all gradients first. Then the pulls follow the pushes, and a step takes twice the
formula. In a ring the collectives always follow each other, and its formula adds them.
"""
import json
import os
import statistics
from dataclasses import dataclass

import regular
import tables

from . import rate as rates
from . import train

LEFT = "netlab.json"
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}   # per number


class Measured:
    """One run over a lab, read back from its directory."""

    def __init__(self, directory):
        with regular.open_file(os.path.join(directory, "summary.json"), limit=regular.WHOLE, encoding="utf-8") as f:
            self.summary = json.load(f)
        with regular.open_file(os.path.join(directory, "config.json"), limit=regular.WHOLE, encoding="utf-8") as f:
            self.config = json.load(f)
        with regular.open_file(os.path.join(directory, LEFT), limit=regular.WHOLE, encoding="utf-8") as f:
            self.lab = json.load(f)
        with regular.open_file(os.path.join(directory, "metrics.jsonl"), limit=regular.WHOLE, encoding="utf-8") as f:
            seconds = [json.loads(line)["seconds"] for line in f]
        self.seconds = statistics.median(seconds[1:] or seconds)  # the first step waits for connections

    @property
    def topology(self):
        return self.summary["topology"]

    @property
    def bytes_per_second(self):
        return self.lab["bits_per_second"] / 8

    @property
    def servers(self):
        return self.summary["servers"] or 0

    def weights(self):
        """The bytes of all weights, M."""
        return self.summary["params"] * BYTES[self.summary["dtype"]]

    def formula(self):
        """Seconds of a step by the formula at the top of this file."""
        return seconds(self.topology, self.weights(), self.summary["workers"], self.servers, self.bytes_per_second)

    def serial(self):
        """The factor of the formula's time: 2 if a star's pulls wait for the end of all pushes, else 1."""
        together = self.summary["dtype"] == "fp16" or (self.config.get("gradient_clipping") or 0) > 0
        return 2 if self.topology == "ps:sync" and together else 1

    def steps_of(self, wire):
        """The number of steps that an entry of the summary's "wire" is a mean over: those since the checkpoint that was resumed; for an asynchronous
        worker, its own batches."""
        batches = self.summary.get("batches")
        if batches and wire["role"] == "worker":
            return batches[wire["rank"]]
        return self.summary["steps"] - (self.summary.get("resumed_from") or 0)

    def links(self):
        """[(host, payload sent, payload received, link sent, link received)] of the whole run, in bytes."""
        out = []
        for w in self.summary["wire"]:
            host = train.server_host(self.config, w["rank"]) if w["role"] == "server" else f"{'w' if self.servers else 'r'}{w['rank']}"
            steps = self.steps_of(w)
            link = self.lab["links"][host]
            out.append((host, w["sent_per_step"] * steps, w["received_per_step"] * steps, link["sent_bytes"], link["received_bytes"]))
        return out


def seconds(topology, weights, workers, servers, bytes_per_second):
    """The formula's seconds of a step."""
    if topology.startswith("ps:"):
        return max(1, workers / servers) * weights / bytes_per_second
    return (3 if topology == "zero:3" else 2) * (workers - 1) / workers * weights / bytes_per_second


@dataclass(frozen=True)
class Link:
    """The links of a compared run. words: their bandwidth as text; bound: seconds per step that the wire alone takes by the formula; seconds: the
    measured ones (the median of all steps except the first)."""
    words: str
    bound: float
    seconds: float


def link_of(run):
    """The Link of a run in a lab; None for other runs. run: as comparison/runs.py reads it."""
    if not os.path.exists(os.path.join(run.directory, LEFT)):
        return None
    try:
        found = Measured(run.directory)
        return Link(rates.text(found.lab["bits_per_second"]), found.formula() * found.serial(), found.seconds)
    except (OSError, ValueError, KeyError, TypeError):  # as runs.link_rate
        return None


def table(runs):
    """The table: measured and formula's time per run, with the bytes of the busiest link."""
    lines = [["topology", "servers", "link", "M", "formula", "bound", "measured", "/ bound", "payload out", "link out", "payload in", "link in"]]
    for run in runs:
        bound = run.formula() * run.serial()
        _, sent, received, link_sent, link_received = max(run.links(), key=lambda row: row[1])
        lines.append([run.topology, run.servers or "-", rates.text(run.lab["bits_per_second"]), mb(run.weights()),
                      *(f"{s:.3f} s" for s in (run.formula(), bound, run.seconds)), f"{run.seconds / bound:.2f}", *map(mb, (sent, link_sent, received, link_received))])
    return f"""{tables.text(lines)}

formula: star max(M/B, N*M/(S*B)), ring 2(N-1)/N*M/B (zero:3: 3(N-1)/N*M/B); bound: twice that where clipping or
fp16 makes a star's pulls wait for all pushes. measured: median step but the first. payload, link: of the run, on
the busiest rank's link; the link also carries the first weights, headers and acknowledgements."""


def mb(count):
    return f"{count / 1e6:.1f} MB"
