#!/usr/bin/env python3
"""zero_optimization.overlap_comm: false moves nothing while a worker computes, in the star as in the ring: the split says
so, and the bits stay the same."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs

TOPOLOGIES = ["zero:0", "zero:2", "zero:3", "ps:sync", "ps:sync --set gradient_clipping=0 --medium tcp",
              "ps:async --workers 1 --set gradient_clipping=0"]
COMMON = ["--model", "demo", "--data", "demo", "--seq", "32", "--batch", "1", "--threads", "1", "--steps", "4", "--quiet",
          "--no-weights", "--set", "eval_batches=0"]
TRIES = 3  # on a loaded machine a communication thread may not run while a worker computes, and may end late what it moved before


class Overlap(Runs):
    def run_with(self, overlap, topology):
        self.run_it("train", "--topology", *topology.split(), *COMMON, "--force", "--out", "run", "--set",
                    f"zero_optimization.overlap_comm={overlap}")
        run = self.summary("run")
        moved = run["time"]["comm_overlapped"] + run["time"]["comm_exposed"]
        return run["weights_hash"], run["time"]["comm_overlapped"] / moved

    def test_nothing_moves_while_a_worker_computes(self):
        for topology in TOPOLOGIES:
            with self.subTest(topology=topology):
                for _ in range(TRIES):
                    apart_bits, apart = self.run_with("false", topology)
                    if apart < 0.05:
                        break
                self.assertLess(apart, 0.05)
                for _ in range(TRIES):
                    bits, share = self.run_with("true", topology)
                    self.assertEqual(bits, apart_bits)
                    if share > 0.1:
                        break
                self.assertGreater(share, 0.1)


if __name__ == "__main__":
    unittest.main()
