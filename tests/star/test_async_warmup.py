#!/usr/bin/env python3
"""Synchronous first, then updates on arrival: ps:async goes on from a checkpoint of ps:sync. With one worker nothing can be told from a
run that was never cut: curve, rates and weights are local's, and a code's errors are carried on. With several, steps and samples
go on where they were, and the budget is what is left."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs

FIRST, STEPS = 4, 10
SLOPE = ["--set", "scheduler.type=WarmupLR", "--set", "scheduler.params.warmup_num_steps=60", "--set", "scheduler.params.warmup_max_lr=0.01"]
SMALL = ["train", "--model", "tiny", "--data", "text.txt", "--seq", "16", "--threads", "1", "--lr", "0.01", "--quiet", "--no-weights", "--set",
         "train_batch_size=4", "--set", "eval_batches=none"]


class WarmUp(Runs):
    shared, corpus = True, 1200

    def both(self, *more):
        """The recipe: FIRST steps in which all wait for all, then as many as are left in which nobody waits. Returns its folder's name."""
        self.remove("warm")
        self.run_it(*SMALL, *more, "--topology", "ps:sync", "--steps", str(FIRST), "--checkpoint-every", str(FIRST), "--out", "warm")
        self.run_it(*SMALL, *more, "--topology", "ps:async", "--steps", str(STEPS), "--out", "warm", "--resume", "latest")
        return "warm"

    def test_one_worker_is_local(self):
        for dtype, more in (("fp32", []), ("bf16", ["--set", "gradient_clipping=0.5"])):
            with self.subTest(dtype=dtype):
                more = ["--dtype", dtype, *SLOPE, *more]
                self.remove("local")
                self.run_it(*SMALL, *more, "--topology", "local", "--steps", str(STEPS), "--out", "local")
                self.assert_same_run(self.both(*more, "--workers", "1"), "local")
                self.assertEqual([line["lr"] for line in self.curve("warm")], [line["lr"] for line in self.curve("local")])
                self.assertGreater(len({line["lr"] for line in self.curve("warm")}), STEPS // 2)

    def test_a_code_goes_on(self):
        """The remainder that a code left out of the first pushes is in the next ones, whichever consistency sends them."""
        code = ["--dtype", "bf16", "--workers", "1", "--set", "gradient_clipping=0", "--set", "parameter_server.compression=int8"]
        self.remove("whole")
        self.run_it(*SMALL, *code, "--topology", "ps:async", "--steps", str(STEPS), "--out", "whole")
        self.assertEqual(self.hash(self.both(*code)), self.hash("whole"))

    def test_several_workers(self):
        self.both("--dtype", "bf16", "--workers", "2", "--servers", "2", *SLOPE)
        curve, s = self.curve("warm"), self.summary("warm")
        steps, samples = [line["step"] for line in curve], [line["samples"] for line in curve]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))
        self.assertEqual(samples[:FIRST], [4 * n for n in range(1, FIRST + 1)])
        self.assertTrue(all(a < b for a, b in zip(samples, samples[1:])), samples)
        self.assertEqual([s["resumed_from"], s["steps"], sum(s["batches"]), s["updates_applied"]], [FIRST, STEPS, 12, 12])
        # The rate follows the samples that are in the weights, in both parts.
        rates = [line["lr"] for line in curve]
        self.assertEqual(rates, sorted(rates))
        self.assertGreater(rates[-1], rates[FIRST - 1])

    def test_another_rate_is_refused(self):
        """A rate that is to fall where the workers part is a schedule's."""
        self.both("--dtype", "bf16", "--workers", "2")
        self.refused(*SMALL, "--dtype", "bf16", "--workers", "2", "--lr", "0.001", "--topology", "ps:async", "--steps", str(STEPS), "--out",
                     "other", "--resume", f"warm/checkpoints/step-{FIRST}", said=["optimizer.params.lr = 0.01, this run has 0.001", "--resume-weights-only"])


if __name__ == "__main__":
    unittest.main()
