#!/usr/bin/env python3
"""A rank that is stopped and goes on, at moments that nobody knows beforehand: the others' lost time is waiting for that rank,
by name, in stars and rings. The lost time is taken from the trace and from this test's own clock, not from the table."""
import os
import random
import signal
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import LIMIT_S, PARTS, Runs, send, thread_names

STEPS, BEGIN, END = 30, 3, 26   # frozen from the one to the other
FREEZE, GO = 0.2, 0.13          # seconds: stopped, and between two stops on average
SHARE = 0.85
ARGS = ["--model", "demo", "--data", "demo", "--seq", "64", "--batch", "4", "--steps", str(STEPS), "--threads", "1", "--workers", "2",
        "--quiet", "--no-weights", "--trace", "--set", "eval_batches=0"]

def either():
    return random.choice(("shm", "tcp"))


def union(spans):
    """Disjoint, in order."""
    out = []
    for begin, end in sorted(spans):
        if out and begin <= out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((begin, end))
    return out


def without(spans, others):
    """The spans, where none of the others is."""
    out, others = [], union(others)
    for begin, end in union(spans):
        for at, to in others:
            if to <= begin or at >= end:
                continue
            if at > begin:
                out.append((begin, at))
            begin = max(begin, to)
        if begin < end:
            out.append((begin, end))
    return out


def seconds(spans):
    return sum(end - begin for begin, end in union(spans))


def covered(spans, windows):
    """Seconds of the windows that the spans lie in."""
    return seconds(windows) - seconds(without(windows, spans))


class Frozen:
    """A run one rank of which was stopped again and again."""

    def __init__(self, test, args, role, rank):
        self.windows = []
        run = test.start("train", *ARGS, *args, "--out", "run")
        self.freeze(run, f"{role if args[1].startswith('ps:') else 'rank'} {rank}")
        run.wait(LIMIT_S)
        if run.returncode == 2 and ("tcp" in args or "shm" in args):
            test.skipTest(run.said())
        run.ends()
        self.summary, self.events = test.summary("run"), test.events("run")
        # A worker's own, which knows of no stop of others.
        self.reports = [test.json("run", "ranks", f"worker-{w}.json") for w in range(len(self.summary["time_per_rank"]))]
        names = os.listdir(test.at("run", "ranks"))
        self.servers = [test.json("run", "ranks", f"server-{s}.json") for s in range(len(names)) if f"server-{s}.json" in names]

    def freeze(self, run, name):
        def before(step):
            return run.poll() is None and run.case.steps("run") < step
        while before(BEGIN):
            time.sleep(0.01)
        pid = run.roles().get(name)
        while pid and before(END):
            time.sleep(random.uniform(0, 2 * GO))
            try:
                send(signal.SIGSTOP, [pid])
                at = time.monotonic()
                time.sleep(FREEZE)
                self.windows.append((at, time.monotonic()))
                send(signal.SIGCONT, [pid])
            except ProcessLookupError:
                return

    def spans(self, pid, thread, *categories):
        threads = thread_names(self.events)
        return [(e["ts"] * 1e-6, (e["ts"] + e["dur"]) * 1e-6) for e in self.events if e["ph"] == "X" and e["pid"] == pid
                and threads[e["pid"], e["tid"]] == thread and e["cat"] in categories]

    def waits(self, rank, role, peer):
        """When computing waited for this one, by the trace."""
        return [(e["ts"] * 1e-6, (e["ts"] + e["dur"]) * 1e-6) for e in self.events if e["ph"] == "X" and e["pid"] == rank
                and e["cat"] == "wait" and e["args"].get(role) == peer]


class FrozenTime(Runs):
    def check(self, *args, role="worker", rank=1, watcher=0):
        self.remove("run")
        run = Frozen(self, args, role, rank)
        workers = len(run.summary["time_per_rank"])
        stood = [s for s in run.summary["stood_still"] if (s["role"], s["rank"]) == (role, rank)]
        clock = run.reports[watcher]["clock"]
        windows = [(max(b, clock["begin_ns"] * 1e-9), min(e, clock["end_ns"] * 1e-9)) for b, e in run.windows]
        windows = [w for w in windows if w[1] > w[0]]  # while it trained
        frozen = seconds(windows)
        self.assertGreater(len(windows), 2)
        # The rank knows by itself how long it did not run.
        self.assertGreater(stood[0]["seconds"], SHARE * frozen)
        # So does the trace.
        frozen_row = run.spans(rank if role == "worker" else workers + rank, "stood still", "stood_still")
        self.assertGreater(covered(frozen_row, windows), SHARE * frozen)
        # The watcher's lost time: all that its compute stream was not busy with, only by this test's clock and that stream's spans, except
        # for times in which it, or another process that was not stopped, was kept from running: a loaded machine.
        others = [r for reports, name in ((run.reports, "worker"), (run.servers, "server")) for i, r in enumerate(reports)
                  if (name, i) != (role, rank)]
        kept = [(b * 1e-9, e * 1e-9) for r in others for kind in ("stalls", "without_core") for b, e in r["moments"][kind]]
        lost = without(without(windows, kept), run.spans(watcher, "compute", "forward", "backward", "optimizer", "comm", "other"))
        waited = covered(run.waits(watcher, role, rank), lost)
        mine = run.summary["time_per_rank"][watcher]
        named = {(w["role"], w["rank"]): w["seconds"] for w in mine["waited_for"]}
        before = run.reports[rank]["time"] if role == "worker" else None
        self.assertGreater(seconds(lost), 0.2)
        self.assertGreater(waited, SHARE * seconds(lost), f"{named}: of {frozen:.2f} s frozen {seconds(lost):.2f} were lost, {waited:.2f} waiting")
        # The table says so too.
        self.assertGreater(named.get((role, rank), 0.0), SHARE * seconds(lost), f"{named}")
        self.assertEqual(max(named, key=named.get), (role, rank))
        self.assertAlmostEqual(sum(named.values()), mine["wait"], delta=0.02 * mine["wait"] + 0.01)
        self.assertAlmostEqual(sum(mine[p] for p in PARTS) / mine["total"], 1.0, delta=0.01)
        if before:
            # For the frozen rank itself it was neither communication nor computing, but its host's.
            own_time = run.summary["time_per_rank"][rank]
            self.assertGreater(own_time["host"], 0.6 * frozen)
            self.assertAlmostEqual(sum(own_time[p] for p in PARTS), sum(before[p] for p in PARTS), places=6)

    def test_star(self):
        for medium in ("shm", "tcp"):
            with self.subTest(medium=medium):
                self.check("--topology", "ps:sync", "--medium", medium)

    def test_server(self):
        self.check("--topology", "ps:sync", "--medium", either(), "--servers", "2", role="server", rank=0)

    def test_server_of_an_asynchronous_star(self):
        self.check("--topology", "ps:async", "--medium", either(), role="server", rank=0)

    def test_rings(self):
        for stage in range(4):
            medium = either()
            with self.subTest(stage=stage, medium=medium):
                self.check("--topology", f"zero:{stage}", "--medium", medium)

    def test_three_ranks(self):
        stage = random.randrange(4)
        with self.subTest(stage=stage):
            self.check("--topology", f"zero:{stage}", "--medium", either(), "--workers", "3", rank=2)


if __name__ == "__main__":
    unittest.main()
