#!/usr/bin/env python3
"""A rank that is stopped and goes on, at moments that nobody knows beforehand: the others' lost time is waiting for that rank,
by name, in stars and rings. What was lost is taken from the trace and from this test's own clock, not from the table."""
import json
import os
import random
import signal
import subprocess
import tempfile
import time
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.environ.get("STARRING", os.path.join(TOP, "build", "starring"))
STEPS, BEGIN, END = 30, 3, 26   # frozen from the one to the other
FREEZE, GO = 0.2, 0.13          # seconds: stopped, and between two stops on average
SHARE = 0.85
ARGS = ["--model", "demo", "--data", "demo", "--seq", "64", "--batch", "4", "--steps", str(STEPS), "--threads", "1", "--workers", "2",
        "--quiet", "--no-weights", "--trace", "--set", "eval_batches=0"]
PARTS = ["data", "forward", "backward", "optimizer", "comm_exposed", "wait", "host"]


def descendants(pid):
    """All processes below one."""
    parents = {}
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as f:
                parents.setdefault(int(f.read().rsplit(")", 1)[1].split()[1]), []).append(int(name))
        except (OSError, ValueError):
            continue
    out, todo = [], [pid]
    while todo:
        found = parents.get(todo.pop(), [])
        out += found
        todo += found
    return out


def read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read()
    except OSError:
        return ""


def process_of(pid, role, rank):
    """The process that is this rank: a star's by its command, a ring's by what Open MPI tells it."""
    for one in descendants(pid):
        words = read(f"/proc/{one}/cmdline").split("\0")
        star = role in words and ("--rank", str(rank)) in zip(words, words[1:])
        ring = f"OMPI_COMM_WORLD_RANK={rank}\0" in read(f"/proc/{one}/environ") and "train" in words and "mpirun" not in words[0]
        if star or ring:
            return one
    return None


def covered(spans, windows):
    """Seconds of the disjoint windows that the spans (begin, end) lie in."""
    return sum(max(0.0, min(e, to) - max(b, at)) for b, e in spans for at, to in windows)


class Frozen:
    """A run one rank of which was stopped again and again."""

    def __init__(self, test, folder, args, role, rank):
        self.out, self.windows = os.path.join(folder, "run"), []
        with open(os.path.join(folder, "log"), "w+", encoding="utf-8") as log:
            run = subprocess.Popen([PROGRAM, "train", *ARGS, *args, "--out", self.out], stdout=log, stderr=log)
            try:
                self.freeze(run, role, rank)
                status = run.wait(timeout=120)
            finally:
                if run.poll() is None:
                    run.terminate()
                    run.wait(timeout=60)
            log.seek(0)
            text = log.read()
        if status == 2 and ("mpi" in args or "shm" in args):
            test.skipTest(text)
        test.assertEqual(status, 0, text)
        self.summary = json.loads(read(os.path.join(self.out, "summary.json")))
        self.events = json.loads(read(os.path.join(self.out, "trace.json")))["traceEvents"]

    def steps(self):
        return read(os.path.join(self.out, "metrics.jsonl")).count("\n")

    def freeze(self, run, role, rank):
        while run.poll() is None and self.steps() < BEGIN:
            time.sleep(0.01)
        pid = process_of(run.pid, role, rank)
        while run.poll() is None and pid and self.steps() < END:
            time.sleep(random.uniform(0, 2 * GO))
            try:
                os.kill(pid, signal.SIGSTOP)
                at = time.monotonic()
                time.sleep(FREEZE)
                self.windows.append((at, time.monotonic()))
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                return

    def report(self, rank):
        """A worker's own, which knows of no stop of others."""
        return json.loads(read(os.path.join(self.out, "ranks", f"worker-{rank}.json")))

    def spans(self, pid, thread, *categories):
        threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in self.events if e["ph"] == "M" and e["name"] == "thread_name"}
        return [(e["ts"] * 1e-6, (e["ts"] + e["dur"]) * 1e-6) for e in self.events if e["ph"] == "X" and e["pid"] == pid
                and threads[e["pid"], e["tid"]] == thread and e["cat"] in categories]

    def gaps(self, rank, *categories):
        """When computing stood still for a transfer."""
        return self.spans(rank, "standing still", *categories)


class FrozenTime(unittest.TestCase):
    def check(self, *args, role="worker", rank=1, watcher=0):
        with tempfile.TemporaryDirectory() as folder:
            run = Frozen(self, folder, args, role, rank)
            stood = [s for s in run.summary["stood_still"] if (s["role"], s["rank"]) == (role, rank)]
            frozen = sum(to - at for at, to in run.windows)
            self.assertGreater(len(run.windows), 2)
            # The rank knows by itself how long it did not run.
            self.assertGreater(stood[0]["seconds"], SHARE * frozen)
            # So does the trace.
            frozen_row = run.spans(rank if role == "worker" else len(run.summary["time_per_rank"]) + rank, "stood still", "stood_still")
            self.assertGreater(covered(frozen_row, run.windows), SHARE * frozen)
            mine = run.summary["time_per_rank"][watcher]
            # Where this rank was itself kept from running it waited for nobody.
            report = run.report(watcher)
            stalls = [(b * 1e-9, e * 1e-9) for b, e in report["moments"]["stalls"]]
            own = [(max(b, at), min(e, to)) for b, e in stalls for at, to in run.windows if e > at and b < to]
            lost, exposed = (covered(gaps, run.windows) - covered(gaps, own) for gaps in (
                run.gaps(watcher, "wait", "comm_exposed"), run.gaps(watcher, "comm_exposed")))
            named = {(w["role"], w["rank"]): w["seconds"] for w in mine["waited_for"]}
            # Nor was it communication to the frozen rank itself, but its host's.
            own_time = run.summary["time_per_rank"][rank] if role == "worker" else None
            own_exposed, before = covered(run.gaps(rank, "comm_exposed"), frozen_row), run.report(rank)["time"] if own_time else None
        if own_time:
            freed = before["comm_exposed"] - own_time["comm_exposed"]
            self.assertGreater(freed, SHARE * own_exposed - 0.03, f"{own_exposed:.2f} s were exposed in its own stops")
            self.assertGreater(own_time["host"] - before["host"], 0.5 * own_exposed - 0.03)
            self.assertAlmostEqual(sum(own_time[p] for p in PARTS), sum(before[p] for p in PARTS), places=6)
        self.assertGreater(lost, 0.2)
        self.assertGreater(named.get((role, rank), 0.0), SHARE * lost, f"{named}: of {frozen:.2f} s frozen, {lost:.2f} were lost to it")
        # What was under way when it was stopped is no communication any more.
        moved = report["time"]["comm_exposed"] - mine["comm_exposed"]
        self.assertGreater(moved, SHARE * exposed - 0.03, f"{exposed:.2f} s of communication were exposed meanwhile")
        self.assertEqual(max(named, key=named.get), (role, rank))
        self.assertAlmostEqual(sum(mine[p] for p in PARTS) / mine["total"], 1.0, delta=0.01)
        self.assertAlmostEqual(sum(named.values()), mine["wait"], delta=0.02 * mine["wait"] + 0.01)

    def test_star_over_shared_memory(self):
        self.check("--topology", "ps:sync", "--medium", "shm")

    def test_star_over_tcp(self):
        self.check("--topology", "ps:sync", "--medium", "tcp")

    def test_server(self):
        self.check("--topology", "ps:sync", "--medium", "tcp", "--servers", "2", role="server", rank=0)

    def test_server_of_an_asynchronous_star(self):
        self.check("--topology", "ps:async", "--medium", "shm", role="server", rank=0)

    def ring(self, stage, medium):
        self.check("--topology", f"zero:{stage}", "--launch", "mpi", "--medium", medium)

    def test_zero_0(self):
        self.ring(0, "shm")

    def test_zero_1(self):
        self.ring(1, "tcp")

    def test_zero_2(self):
        self.ring(2, "shm")

    def test_zero_3(self):
        self.ring(3, "shm")

    def test_zero_3_over_tcp(self):
        self.ring(3, "tcp")


if __name__ == "__main__":
    unittest.main()
