#!/usr/bin/env python3
"""A gradient that overflows at the minimum loss scale ends the run with rank and tensor, in every topology; and no run whose weights
are lost, or in which nothing was applied, ends as if it had trained, however short it is."""
import os
import re
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs

SETTINGS = ["train", "--model", "tiny", "--data", "demo", "--dtype", "fp16", "--steps", "20", "--seq", "64", "--lr", "1e6", "--seed", "1",
            "--set", "gradient_clipping=0", "--set", "fp16.initial_scale_power=2", "--set", "fp16.min_loss_scale=4",
            "--set", "fp16.hysteresis=1", "--set", "eval_batches=none", "--no-weights", "--quiet", "--force"]

LOST = ["train", "--model", "tiny", "--data", "demo", "--steps", "6", "--seq", "24", "--batch", "1", "--lr", "1e38", "--set", "eval_batches=none",
        "--no-weights", "--quiet", "--force", "--out", "run", "--threads", "1"]  # behind its first step


class Lost(Runs):
    def test_every_topology(self):
        for topology in ("local", "zero:0", "zero:3", "gossip", "ps:sync", "ps:async", "ps:ringleader", "ps:ssp:1", "ps:backup:1", "ps:quorum:1"):
            # A ringleader's update needs a gradient of each worker: a late one of two might come after the other has taken all batches.
            workers = ["--workers", "1" if topology in ("local", "ps:ringleader") else "2"]
            for more in ([], ["--dtype", "bf16"], ["--local-steps", "2"]):
                if more[:1] == ["--local-steps"] and topology not in ("zero:0", "ps:sync", "ps:async"):
                    continue
                with self.subTest(topology, more=more):
                    said = self.run_it(*LOST, "--topology", topology, *workers, *more, status=1).stderr
                    self.assertRegex(said, r"the last [2-8] gradients held infinities or NaN")  # 8 of one that takes more batches

    def test_a_loss_scale_that_does_not_move(self):
        words = ["--topology", "local", "--dtype", "fp16", "--set", "fp16.loss_scale=1e30"]
        said = self.run_it(*LOST, *words, "--steps", "20", "--lr", "0.001", status=1).stderr
        self.assertIn("step 8: the last 8 gradients held infinities or NaN", said)

    def test_a_loss_scale_that_is_looked_for(self):
        """Nothing is wrong with the model: it is said, and no failure."""
        for topology in ("local", "zero:1", "ps:sync"):
            said = self.run_it(*LOST, "--topology", topology, "--dtype", "fp16", "--set", "fp16.initial_scale_power=100", "--lr", "0.001").stderr
            self.assertIn("no step was applied: all 6 overflowed, and the loss scale is", said)

    def test_what_a_star_does_instead_is_said(self):
        """Without clipping its keys are updated as they come: at the start, and in the error."""
        unclipped = ["--set", "gradient_clipping=0", "--workers", "2"]
        p = self.run_it(*[w for w in LOST if w != "--quiet"], "--topology", "ps:sync", *unclipped, status=1)
        self.assertIn("no gradient clipping: a key is updated when its gradients have arrived", p.stdout)
        self.assertIn("gradient_clipping, to 1e30 if nothing is to be clipped", p.stderr)
        # As the error says: the ring's bits.
        for topology in ("ps:sync", "zero:1"):
            self.run_it(*LOST, "--topology", topology, "--workers", "2", "--set", f"gradient_clipping={'1e30' if topology == 'ps:sync' else 0}",
                        "--lr", "0.01", "--out", topology.replace(":", ""))
        self.assertEqual(self.hash("pssync"), self.hash("zero1"))
        self.assertEqual([line["loss"] for line in self.lines("pssync", "metrics.jsonl")], [line["loss"] for line in self.lines("zero1", "metrics.jsonl")])


class Overflow(Runs):
    def ends(self, *args):
        done = self.run_it(*SETTINGS, *args, "--out", "run", status=1)
        found = re.search(r"step 2: a gradient is not finite although the fp16 loss scale is at its minimum 4: rank (\d+) has (\d+) "
                          r"such values in ([a-z0-9_.]+), its first such tensor(.*?); the run ends here", done.stderr)
        self.assertTrue(found, done.stderr)
        self.assertEqual(found.group(3), "embedding.wte")
        self.assertGreater(int(found.group(2)), 0)
        return int(found.group(1)), found.group(4)

    def test_local(self):
        self.assertEqual(self.ends("--topology", "local"), (0, ""))

    def test_ring(self):
        for stage in range(4):
            rank, others = self.ends("--topology", f"zero:{stage}", "--workers", "3")
            self.assertEqual((rank, others), (0, ", and 2 other ranks have some too"))

    def test_accumulation(self):
        self.ends("--topology", "zero:2", "--workers", "2", "--set", "gradient_accumulation_steps=2")

    def test_star(self):
        rank, others = self.ends("--topology", "ps:sync", "--workers", "2")
        self.assertEqual((rank, others), (0, ", and 1 other rank has some too"))

    def test_elastic(self):
        rank, _ = self.ends("--topology", "ps:sync", "--workers", "3", "--elastic", "1:3")
        self.assertIn(rank, (0, 1, 2))

    def test_async(self):
        rank, others = self.ends("--topology", "ps:async", "--workers", "2")
        self.assertIn(rank, (0, 1))
        self.assertEqual(others, "")


if __name__ == "__main__":
    unittest.main()
