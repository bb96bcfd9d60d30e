#!/usr/bin/env python3
"""Steps that go on without those that are late (ps:backup:B, ps:quorum:Q), in real processes: with all workers ps:sync bit for
bit; a slow worker holds nobody up, be it worker 0; every step is recorded, and who was late is told; a run that goes on from a
checkpoint, or behind a death, ends in the bits of one undisturbed, where the same worker is always late."""
import json
import os
import re
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs

SMALL = ["--model", "tiny", "--seq", "16", "--threads", "1", "--lr", "0.01", "--data", "text.txt", "--no-weights", "--batch", "2",
         "--set", "eval_batches=0", "--quiet", "--seed", "5"]
STEPS = 30
ALWAYS = "constant:1000"  # longer than the run without it, on a busy machine too


class Case(Runs):
    corpus = 1200

    def words(self, out, topology, *more, steps=STEPS, workers=3):
        return ["train", *SMALL, "--topology", topology, "--workers", str(workers), "--set", "parameter_server.servers=2", "--steps", str(steps), "--out", out, *more]

    def train(self, out, topology, *more, status=0, **how):
        self.remove(out)
        return self.run_it(*self.words(out, topology, *more, **how), status=status).stderr

    def assert_told(self, out, needs, steps=STEPS, workers=3):
        """Each step is recorded, with its number of workers; samples, and what each worker lacks, follow from these."""
        s, lines = self.summary(out), self.lines(out, "metrics.jsonl")
        self.assertEqual([line["step"] for line in lines], list(range(1, steps + 1)))
        self.assertEqual([line["workers"] for line in lines], [needs] * steps)
        applied = [2 * needs * sum(not before["skipped"] for before in lines[:i + 1]) for i in range(steps)]
        self.assertEqual([line["samples"] for line in lines], applied)
        self.assertEqual(s["samples_applied"], applied[-1])
        lacks = [late + missed for late, missed in zip(s["late_steps"], s["missed_steps"])]
        self.assertEqual(sum(lacks), (workers - needs) * steps)
        self.assert_as_predicted(s)
        for wire in s["wire"]:
            if wire["role"] == "worker":
                self.assertEqual([wire["sent_per_step"], wire["received_per_step"]], [wire["predicted_sent"], wire["predicted_received"]])
        return lacks


class Equal(Case):
    def test_all_workers(self):
        """Whoever is slow: with as many as there are, a step waits for all."""
        for more in (["--dtype", "bf16", "--set", "gradient_clipping=0.5"], ["--medium", "tcp", "--delay", "0:constant:5"], ["--dtype", "fp16"]):
            self.train("sync", "ps:sync", *more, steps=8)
            for topology in ("ps:backup:0", "ps:quorum:3"):
                self.train("all", topology, *more, steps=8)
                self.assert_same_run("all", "sync")

    def test_medium(self):
        """The same set of every step is the same run, through memory or messages, with and without clipping's wait."""
        for dtype in ("bf16", "fp16"):
            for late in ("0", "2"):
                self.train("memory", "ps:backup:1", "--delay", f"{late}:{ALWAYS}", "--dtype", dtype)
                self.assertEqual(self.assert_told("memory", 2)[int(late)], STEPS)
                self.train("tcp", "ps:quorum:2", "--delay", f"{late}:{ALWAYS}", "--dtype", dtype, "--medium", "tcp")
                self.assert_same_run("tcp", "memory")


class Late(Case):
    def test_sooner(self):
        """A straggler holds ps:sync up at every step; of backup workers nobody waits for it, and it is worker 0 as well."""
        for late in (0, 1):
            slow = ["--delay", f"{late}:constant:40"]
            self.train("sync", "ps:sync", *slow)
            self.train("backup", "ps:backup:1", *slow)
            lacks = self.assert_told("backup", 2)
            self.assertGreater(lacks[late], 0)
            # No update has what came late: ages and lines of the log are of the others.
            self.train("logged", "ps:backup:1", *slow, "--log-updates")
            s, keys = self.summary("logged"), {line["key"] for line in self.lines("logged", "updates.jsonl")}
            self.assertEqual([s["staleness"]["max"], sum(s["staleness"]["histogram"])], [0, 2 * STEPS * len(keys)])
            self.assertEqual(len(self.lines("logged", "updates.jsonl")), 2 * STEPS * len(keys))
            self.assertEqual(len(s["dropped_pushes"]), 2)
            self.assertGreaterEqual(self.summary("sync")["seconds"], 0.040 * STEPS)
            # On a busy machine another worker may be late at some steps as well, and the line names every one.
            self.assertRegex(self.run_it("summary", "backup").stdout, rf"\nlate  .*\bworker {late} in {lacks[late]} of 30 steps")

    def test_grace(self):
        """A quorum waits a while for others: a delay within it costs no gradients, one beyond it does."""
        for delay, grace, workers in ((3, 100000, 3), (2000, 150, 2)):
            self.train("run", "ps:quorum:2", "--delay", f"1:constant:{delay}", "--set", f"parameter_server.grace_ms={grace}", steps=6)
            count = [line["workers"] for line in self.lines("run", "metrics.jsonl")]
            self.assertGreaterEqual(count.count(workers), 5, count)

    def test_no_overlap(self):
        self.train("run", "ps:backup:1", "--delay", "0:constant:20", "--set", "zero_optimization.overlap_comm=false")
        self.assert_told("run", 2)


class Again(Case):
    """Worker 1, or 0, is late at every step."""

    def test_resume(self):
        """The last state of a shorter run is waited for, however slow the disk is; one that others overtake may be given up."""
        for late in (0, 1):
            more = ["--delay", f"{late}:{ALWAYS}", "--checkpoint-every", "10"]
            self.train("whole", "ps:backup:1", *more)
            self.train("begun", "ps:backup:1", *more, steps=10)
            more += ["--resume", "begun/checkpoints/step-10"]
            said = self.train("again", "ps:quorum:2", *more)
            self.assertIn("the checkpoint has consistency = backup:1, this run has quorum:2", said)
            self.train("again", "ps:backup:1", *more)
            self.assert_same_run("again", "whole", 10)


class Replay(Case):
    """The sets of a run's steps, recorded under random stragglers and repeated under others, bit for bit."""

    def test_replay(self):
        for topology, medium in (("ps:backup:1", "shm"), ("ps:quorum:1", "tcp")):
            slow = [word for w in range(3) for word in ("--straggle", f"{w}:6:0.5")]
            self.train("first", topology, *slow, "--record-arrivals", "--medium", medium, "--dtype", "fp16")
            self.assertGreater(len({line["loss"] for line in self.lines("first", "metrics.jsonl")}), 1)
            for more in (["--delay", "0:constant:8"], ["--delay", "2:exponential:5"]):
                self.train("again", topology, *more, "--medium", medium, "--dtype", "fp16", "--replay-arrivals", "first", "--record-arrivals")
                self.assert_same_run("again", "first")
                for shard in range(2):
                    self.assertEqual(self.read("again", f"arrivals.{shard}"), self.read("first", f"arrivals.{shard}"))

    def test_snapshots(self):
        """Weights are evaluated at the steps that were asked for, and are those of a repetition. A step that worker 0, who keeps them, has
        jumped over is left out: on a machine that gives it no time any but the last may be."""
        evals = ["--set", "eval_batches=1", "--set", "eval_every=10", "--topology", "ps:backup:1"]

        def found(run):
            return {line["step"]: {k: v for k, v in line.items() if k != "seconds"} for line in self.lines(run, "evals.jsonl")}
        for late in (0, 1):
            self.train("first", "ps:backup:1", *evals, "--delay", f"{late}:constant:25", "--delay", f"{1 - late}:constant:10",
                       "--delay", "2:constant:10", "--record-arrivals")
            self.train("again", "ps:backup:1", *evals, "--delay", f"{1 - late}:constant:5", "--replay-arrivals", "first")
            first, again = found("first"), found("again")
            for run in (first, again):
                self.assertLessEqual(set(run), {10, 20, 30})
                self.assertEqual({step: line["samples"] for step, line in run.items()}, {step: 4 * step for step in run})
            self.assertIn(30, set(first) & set(again))
            self.assertEqual([again[step] for step in again if step in first], [first[step] for step in again if step in first])

    def test_refused(self):
        self.train("first", "ps:backup:1", "--record-arrivals", steps=4)
        whole = self.read("first", "arrivals.0")
        for old, new, said in ((r"(key 0:) (\S+) (\S+)", r"\1 \3 \2", "has steps, or workers of a step, that do not follow"),
                               (r"(key 0: \S+ \S+) \S+ \S+", r"\1", "versions that do not follow each other"),
                               (r"(key 0:.*) \S+ \S+\n", r"\1\n", "has fewer steps than the run"), (r"ps:backup,", "ps:quorum,", "is of another run")):
            with self.subTest(new=new):
                self.write(re.sub(old, new, whole, count=1), "first", "arrivals.0")
                self.assertIn(said, self.train("again", "ps:backup:1", "--replay-arrivals", "first", steps=4, status=None))
        self.refused(*self.words("run", "ps:backup:0", "--record-arrivals"), said="do not depend on the order of arrival")


class Held(Case):
    """The memory that servers hold next to their ledger: --dry-run says how much it is at most; it is that much where the first worker is late,
    and nothing
    where memory is shared."""

    def held(self, topology, *more):
        """[(at most, measured)] of the servers, and their predicted bytes of a step."""
        self.train("run", topology, *more, "--dtype", "bf16", steps=6)
        s = self.summary("run")
        self.assert_as_predicted(s)
        said = self.run_it(*self.words("run", topology, *more, "--dtype", "bf16", "--dry-run", "--json", steps=6)).stdout
        servers = [rank for rank in s["memory"] if rank["role"] == "server"]
        bounds = [rank["transport_bound_bytes"] for rank in json.loads(said)["memory"] if rank["role"] == "server"]
        self.assertEqual([rank["transport_bound_bytes"] for rank in servers], bounds)
        moved = [(w["predicted_received"], w["predicted_sent"]) for w in s["wire"] if w["role"] == "server"]
        return [(rank["transport_bound_bytes"], rank["transport_peak_bytes"]) for rank in servers], moved

    def test_gradients(self):
        for workers, delay in ((2, ["--delay", "0:constant:150"]), (3, ["--delay", "0:constant:150"])):
            held, moved = self.held("ps:sync", "--medium", "tcp", *delay, "--workers", str(workers))
            for (most, peak), (received, _) in zip(held, moved):
                self.assertEqual((most, peak), (received * (workers - 1) // workers,) * 2)
        words = self.words("run", "ps:sync", "--medium", "tcp", "--dry-run")
        self.assertIn("\n  frames held ", self.run_it(*words[:words.index("--quiet")], *words[words.index("--quiet") + 1:]).stdout)

    def test_answers_too(self):
        """In steps that continue without the late workers, answers are copies: a message to a frozen worker keeps no other waiting."""
        held, moved = self.held("ps:backup:1", "--medium", "tcp", "--delay", "1:constant:30")
        for (most, peak), (received, sent) in zip(held, moved):
            self.assertEqual(most, received + sent)
            self.assertGreaterEqual(peak, received // 3)
        held, moved = self.held("ps:async", "--medium", "tcp")
        for (most, peak), (_, sent) in zip(held, moved):
            self.assertEqual(most, sent)
            self.assertGreater(peak, 0)

    def test_shared_memory(self):
        for topology in ("ps:sync", "ps:async", "ps:ssp:2", "ps:backup:1", "ps:quorum:2"):
            self.assertEqual(self.held(topology, "--medium", "shm", "--delay", "0:constant:10")[0], [(0, 0)] * 2, topology)


class Refused(Case):
    def test_refused(self):
        for words, said in ((("ps:backup:3",), "a step needs at least one of the 3 workers: B must be below 3"),
                            (("ps:quorum:4",), "Q must be 1 to 3"), (("ps:quorum:0",), "Q must be 1 to 3"),
                            (("ps:sync", "--set", "parameter_server.grace_ms=5"), "use ps:quorum:Q"),
                            (("ps:quorum:3", "--set", "parameter_server.grace_ms=5"), "with Q below the number of workers"),
                            (("zero:1", "--set", "parameter_server.grace_ms=5"), "parameter_server.grace_ms")):
            with self.subTest(words=words):
                self.refused(*self.words("run", *words), said=said)


if __name__ == "__main__":
    unittest.main()
