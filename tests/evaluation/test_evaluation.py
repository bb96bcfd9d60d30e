#!/usr/bin/env python3
"""Evaluation apart from the run: the same losses from every topology, no cost in the measured time, whole held-out text,
snapshots by steps and by seconds, what is broken or interrupted."""
import fcntl
import glob
import json
import os
import re
import shutil
import signal
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs
from comparison import learning, runs

SMALL = ["--model", "tiny", "--seq", "32", "--batch", "2", "--threads", "1", "--workers", "2", "--dtype", "bf16",
         "--data", "text.txt", "--no-weights"]


class Evaluation(Runs):
    shared, corpus = True, 1200

    def train(self, out, *more, steps="6", status=0):
        return self.run_it("train", *SMALL, "--steps", steps, "--out", out, *more, status=status)

    def losses(self, out):
        return [(e["step"], e["val_loss"]) for e in self.lines(out, "evals.jsonl")]

    def test_the_same_losses_from_every_topology(self):
        found = {}
        for topology in ("ps:sync", "zero:0", "zero:1", "zero:2", "zero:3"):
            out = topology.replace(":", "-")
            self.train(out, "--quiet", "--topology", topology, "--eval-every", "2", "--set", "eval_batches=all")
            found[topology] = self.losses(out)
            evals, metrics = self.lines(out, "evals.jsonl"), self.lines(out, "metrics.jsonl")
            self.assertEqual([e["step"] for e in evals], [2, 4, 6])
            self.assertEqual([(e["updates"], e["samples"]) for e in evals], [(2, 8), (4, 16), (6, 24)])
            for e in evals:
                # Seconds are those of training when the snapshot was taken.
                at = metrics[e["step"] - 1]["elapsed"]
                self.assertLessEqual(at, e["seconds"])
                if e["step"] < 6:
                    self.assertLess(e["seconds"], metrics[e["step"]]["elapsed"])
            self.assertEqual(os.path.exists(self.at(out, "snapshots")), False)
            self.assertAlmostEqual(self.summary(out)["val_loss"], evals[-1]["val_loss"], delta=1e-12)
        self.assertEqual(len({json.dumps(f) for f in found.values()}), 1, found)
        # The whole of it: every window that is held out, and one token more to be predicted.
        held = os.path.getsize(self.at("text.txt"))
        tokens = self.lines("zero-0", "evals.jsonl")[0]["tokens"]
        self.assertEqual(tokens % 32, 0)
        self.assertGreater(tokens, 0.05 * held - 64)
        # And the text has windows that fill no batch.
        self.assertNotEqual(tokens // 32 % 32, 0)

    def test_a_snapshot_is_the_run_that_ends_there(self):
        p = self.train("long", "--topology", "zero:2", "--eval-every", "3")
        said = [line for line in p.stdout.splitlines() if "held-out loss" in line]
        self.assertEqual([line.endswith(" left") for line in said], [True, False], said)  # while others wait
        for topology in ("ps:sync", "zero:1"):
            self.train("short", "--quiet", "--force", "--topology", topology, steps="3")
            self.assertEqual(self.losses("short")[0], self.losses("long")[0])

    def test_asynchronous_snapshots(self):
        self.train("async", "--quiet", "--topology", "ps:async", "--eval-every", "5", "--set",
                   "parameter_server.threads=2", steps="30")
        evals = self.lines("async", "evals.jsonl")
        self.assertEqual(evals[-1]["step"], 30)
        self.assertEqual(evals[-1]["updates"], 60)
        self.assertGreater(len(evals), 1)
        for e in evals:
            self.assertEqual(e["samples"], 2 * e["updates"])
            self.assertGreaterEqual(e["updates"], 2 * e["step"])
        self.assertEqual(sorted(e["seconds"] for e in evals), [e["seconds"] for e in evals])
        self.assertEqual(self.summary("async")["samples_applied"], 120)

    def test_workers_that_do_not_wait_begin_with_worker_0(self):
        """It stands in its first words, which go to a pipe that is full; the first snapshot is of what all do from then on."""
        for topology, updates in (("ps:async", 8), ("ps:backup:1", 4)):
            with self.subTest(topology):
                to_read, to_write = os.pipe()
                os.write(to_write, bytes(fcntl.fcntl(to_write, fcntl.F_SETPIPE_SZ, 4096)))
                p = self.start("train", *SMALL, "--topology", topology, "--steps", "8", "--eval-every", "4", "--force", "--out", "piped",
                               stdout=to_write)
                os.close(to_write)
                p.until(lambda: os.path.exists(self.at("piped", "metrics.jsonl")), "it opens its files")
                time.sleep(1)  # the others would have done the run by then
                with open(to_read, "rb") as f:
                    f.read()
                p.ends()
                first = self.lines("piped", "evals.jsonl")[0]
                self.assertEqual((first["step"], first["updates"]), (4, updates))

    def test_the_last_weights_are_there_when_the_slowest_worker_has_ended(self):
        self.train("late", "--quiet", "--topology", "ps:async", "--straggle", "1:8", "--eval-every", "4", steps="12")
        s, evals = self.summary("late"), self.lines("late", "evals.jsonl")
        self.assertEqual(sum(s["batches"]), 24)
        self.assertEqual(s["samples_applied"], 48)
        self.assertEqual(evals[-1]["samples"], s["samples_applied"])

    def test_by_seconds(self):
        for topology in ("zero:1", "ps:sync", "ps:async"):
            self.train("timed", "--quiet", "--force", "--topology", topology, "--set", "eval_every_seconds=0.1",
                       steps="150")
            evals = self.lines("timed", "evals.jsonl")
            self.assertGreater(len(evals), 1, topology)
            self.assertLessEqual(len(evals) - 1, evals[-1]["seconds"] / 0.1, topology)
            self.assertEqual(evals[-1]["step"], 150)

    def test_it_costs_no_measured_time(self):
        # Evaluations, each many times as long as a step, come behind the last step's line: the run's time has ended there.
        start = time.time()
        self.train("with", "--quiet", "--force", "--topology", "zero:1", "--eval-every", "1", steps="12")
        trained = os.stat(self.at("with", "metrics.jsonl")).st_mtime
        self.assertEqual(len(self.lines("with", "evals.jsonl")), 12)
        self.assertGreater(os.stat(self.at("with", "evals.jsonl")).st_mtime, trained)
        self.assertLess(self.summary("with")["seconds"], trained - start)

    def test_limits(self):
        self.train("part", "--quiet", "--topology", "local", "--workers", "1", "--set", "eval_batches=3")
        self.assertEqual(self.lines("part", "evals.jsonl")[0]["tokens"], 3 * 2 * 32)
        # 32 windows fill a batch of the evaluation; two more are as likely as they are.
        mean = {}
        for batches in (16, 17):
            self.train("part", "--quiet", "--force", "--topology", "local", "--workers", "1", "--set",
                       f"eval_batches={batches}", steps="1")
            mean[batches] = self.lines("part", "evals.jsonl")[0]["val_loss"]
        rest = (34 * mean[17] - 32 * mean[16]) / 2
        self.assertAlmostEqual(rest, mean[16], delta=0.1)
        self.assertNotEqual(rest, mean[16])
        said = self.train("more", "--topology", "local", "--workers", "1", "--set", "eval_batches=100000", steps="1").stdout
        self.assertEqual(said.count("eval_batches 100000 would be more than there is: the text is used once"), 1, said)
        said = self.train("all", "--topology", "local", "--workers", "1", "--set", "eval_batches=all", steps="1").stdout
        self.assertNotIn("would be more", said)
        self.assertEqual(self.lines("more", "evals.jsonl")[0]["tokens"], self.lines("all", "evals.jsonl")[0]["tokens"])
        self.assertEqual(self.losses("more"), self.losses("all"))
        for none in ("none", "0"):
            self.train("none", "--quiet", "--force", "--topology", "local", "--workers", "1", "--set",
                       "eval_batches=" + none, "--eval-every", "1")
            self.assertFalse(os.path.exists(self.at("none", "evals.jsonl")))
            self.assertFalse(os.path.exists(self.at("none", "snapshots")))
            self.assertIsNone(self.summary("none")["val_loss"])
        p = self.train("all-read", "--topology", "zero:1", "--set", "data.val_fraction=0", "--eval-every", "2")
        self.assertEqual(p.stderr.count("nothing is evaluated: text.txt holds out 0 tokens"), 1, p.stderr)
        self.assertFalse(os.path.exists(self.at("all-read", "snapshots")))
        p = self.train("both", "--set", "eval_every=2", "--set", "eval_every_seconds=1", status=2)
        self.assertIn("give one of them", p.stderr)
        p = self.train("both", "--set", "eval_batches=most", status=2)
        self.assertIn('"none", "all"', p.stderr)

    def test_time_to_a_loss(self):
        self.train("aimed", "--quiet", "--topology", "zero:0", "--eval-every", "2", "--lr", "0.01", "--set",
                   "target_loss=3.1", steps="8")
        evals = self.lines("aimed", "evals.jsonl")
        after = next(e for e in evals if e["val_loss"] <= 3.1)
        before = evals[evals.index(after) - 1]
        self.assertNotEqual(after, evals[0])
        share = (before["val_loss"] - 3.1) / (before["val_loss"] - after["val_loss"])
        found = self.summary("aimed")["time_to_loss"]
        self.assertEqual(set(found), {"step", "samples", "updates", "seconds", "val_loss"})
        for key in found:
            self.assertAlmostEqual(found[key], before[key] + share * (after[key] - before[key]), delta=1e-12 * found[key])
        self.assertLess(before["seconds"], found["seconds"])
        self.assertLess(found["seconds"], after["seconds"])
        self.train("missed", "--quiet", "--topology", "zero:0", "--set", "target_loss=0.01")
        self.assertIsNone(self.summary("missed")["time_to_loss"])

    def test_the_time_to_a_loss_is_the_one_that_a_comparison_tells(self):
        self.train("told", "--quiet", "--topology", "local", "--workers", "1", "--set", "target_loss=3.25", steps="2")
        for losses, seconds in (([4.0, 3.0, 2.0], 1.75), ([4.0, 3.25], 2.0), ([3.0, 2.0], 1.0), ([4.0, 3.5], None),
                                ([4.0, 3.0, 3.5, 2.0], 1.75), ([None, 3.0], 2.0), ([4.0, None, 2.0], 1.75), ([], None)):
            self.write("".join(json.dumps({"step": 10 * i, "samples": 70 * i, "updates": 10 * i, "seconds": float(i), "val_loss": loss,
                                           "unigram_entropy": 3.0, "tokens": 64}) + "\n" for i, loss in enumerate(losses, 1)), "told", "evals.jsonl")
            os.remove(self.at("told", "summary.json"))
            self.run_it("summary", "told")  # puts it together again
            run, found = runs.load("told", self.at("told")), self.summary("told")["time_to_loss"] or {}
            for key in ("seconds", "samples", "updates"):
                self.assertEqual(found.get(key), learning.reached(run, 3.25, key), (key, losses))
            self.assertEqual(found.get("seconds"), seconds, losses)

    def test_broken_snapshots_are_named(self):
        self.train("kept", "--quiet", "--topology", "zero:3", "--eval-every", "2", "--keep-snapshots")
        names = sorted(os.path.basename(p) for p in glob.glob(self.at("kept", "snapshots", "*")))
        self.assertEqual(names, ["step-2", "step-4", "step-6"])
        before = self.losses("kept")
        os.truncate(self.at("kept", "snapshots", "step-2", "worker-0.safetensors"), 6000)
        os.remove(self.at("kept", "snapshots", "step-4", "worker-1.safetensors"))
        os.remove(self.at("kept", "evals.jsonl"))
        p = self.run_it("evaluate", "kept", status=1)
        self.assertRegex(p.stderr, "kept/snapshots/step-2/worker-0.safetensors: .* it is cut short or another file")
        self.assertRegex(p.stderr, "kept/snapshots/step-4/worker-1.safetensors: .*No such file")
        self.assertEqual(self.losses("kept"), before[2:])
        self.assertAlmostEqual(self.summary("kept")["val_loss"], before[2][1], delta=1e-12)
        p = self.run_it("evaluate", "kept", "--json", status=1)
        self.assertEqual([(e["step"], e["val_loss"]) for e in json.loads(p.stdout)["evals"]], before[2:])
        self.run_it("evaluate", "nowhere", status=2)

    def test_a_snapshot_that_cannot_be_written_ends_nothing(self):
        self.write("", "full", "snapshots")
        for topology in ("zero:1", "ps:sync"):
            p = self.train("full", "--force", "--topology", topology, "--eval-every", "2")
            self.assertIn("warning: ", p.stderr)
            self.assertIn("full/snapshots", p.stderr)
            self.assertEqual(self.summary("full")["updates_applied"], 6)
            self.assertIsNone(self.summary("full")["val_loss"])

    def test_by_itself_it_predicts_no_more_tokens_than_training_did(self):
        for steps, every, batches in ((6, 0, 6), (6, 2, 2), (6, 3, 3), (3, 5, 3)):
            self.train("own", "--quiet", "--force", "--topology", "zero:1", "--eval-every", str(every), steps=str(steps))
            evals = self.lines("own", "evals.jsonl")
            self.assertEqual([e["tokens"] for e in evals], [batches * 2 * 2 * 32] * len(evals))
            self.assertLessEqual(sum(e["tokens"] for e in evals), steps * 2 * 2 * 32)
        self.train("own", "--quiet", "--force", "--topology", "zero:1", "--set", "eval_every_seconds=1000", steps="6")
        self.assertEqual([e["tokens"] for e in self.lines("own", "evals.jsonl")], [2 * 2 * 32])

    def test_an_evaluation_may_be_interrupted(self):
        # It says how long it still takes. The run is complete by then, and evaluate goes on with what is left.
        held = self.at("held.txt")
        self.write(self.read("text.txt") * 100, "held.txt")
        p = self.start("train", *SMALL, "--model", "demo", "--steps", "2", "--topology", "ps:sync", "--set", "data.val_path=held.txt", "--set",
                       "eval_batches=all", "--out", "stopped")
        p.until(lambda: re.search(r"(?m)^evaluated +\d+%  \d.* left$", p.printed()), "it is evaluated")
        p.send_signal(signal.SIGINT)
        err, out = p.ends(130), p.printed()
        self.assertRegex(err, r"evaluation interrupted: 1 snapshot is not evaluated yet: .*starring evaluate stopped evaluates it\n")
        self.assertIn("weights     hash", out)
        self.assertEqual(self.summary("stopped")["state"], "complete")
        self.assertIsNone(self.summary("stopped")["val_loss"])
        self.assertEqual(os.listdir(self.at("stopped", "snapshots")), ["step-2"])
        os.truncate(held, 12000)
        self.run_it("evaluate", "stopped")
        self.assertEqual([step for step, _ in self.losses("stopped")], [2])
        self.assertIsNotNone(self.summary("stopped")["val_loss"])

    def test_roles_by_hand(self):
        """The last one to leave evaluates, and the loss is that of a run which train started."""
        star = [*SMALL[:-1], "--topology", "ps:sync", "--steps", "4", "--eval-every", "2"]
        others = [*star, "--out", "byhand"]
        roles = self.by_hand(star, ["server", *others], ["worker", *others], ["worker", *others])
        said = [p.ends() for p in roles]
        self.assertEqual(sum("held-out loss" in p.printed() for p in roles), 1, said)
        self.train("started", "--quiet", "--topology", "ps:sync", "--eval-every", "2", steps="4")
        self.assertEqual(self.losses("byhand"), self.losses("started"))
        self.assertEqual([step for step, _ in self.losses("byhand")], [2, 4])

    def test_what_an_interruption_left_is_evaluated_later(self):
        p = self.start("train", *SMALL, "--steps", "100000", "--topology", "zero:1", "--eval-every", "5", "--out", "cut")
        p.until(lambda: os.path.exists(self.at("cut", "snapshots", "step-5")), "a snapshot")
        time.sleep(0.2)
        p.send_signal(signal.SIGINT)
        err = p.ends(130)
        self.assertIn("starring evaluate cut", err)
        for path in glob.glob(self.at("cut", "snapshots", "step-*")):
            if not path.endswith("/step-5"):
                shutil.rmtree(path)
        p = self.run_it("evaluate", "cut")
        self.assertIn("step    5/100000  held-out loss", p.stdout)
        self.train("five", "--quiet", "--topology", "zero:3", steps="5")
        self.assertEqual(self.losses("cut"), self.losses("five"))
        self.assertFalse(os.path.exists(self.at("cut", "snapshots")))
        self.remove("cut")


if __name__ == "__main__":
    unittest.main()
