#!/usr/bin/env python3
"""A gradient that overflows at the minimum loss scale ends the run with rank and tensor, in every topology."""
import os
import re
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs

SETTINGS = ["train", "--model", "tiny", "--data", "demo", "--dtype", "fp16", "--steps", "20", "--seq", "64", "--lr", "1e6", "--seed", "1",
            "--set", "gradient_clipping=0", "--set", "fp16.initial_scale_power=2", "--set", "fp16.min_loss_scale=4",
            "--set", "fp16.hysteresis=1", "--set", "eval_batches=none", "--no-weights", "--quiet", "--force"]


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
