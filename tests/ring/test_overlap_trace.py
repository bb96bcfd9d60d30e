#!/usr/bin/env python3
"""zero_optimization.overlap_comm, read off the trace: in the ring and in the star: with false no transfer runs while its
rank computes, with true some do, and the bits are the same."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs, thread_names

TRANSFERS = {"all_gather", "reduce_scatter", "all_reduce", "push", "pull"}
RINGS = ("zero:0", "zero:1", "zero:2", "zero:3")
STARS = ("ps:sync", "ps:sync --set gradient_clipping=0 --medium tcp", "ps:async --workers 1 --set gradient_clipping=0")


def spans(trace, rank):
    """([(begin, end)] of computing, of transfers), microseconds."""
    streams, computing, moving = thread_names(trace), [], []
    for e in trace:
        if e["ph"] != "X" or e["pid"] != rank:
            continue
        stream, span = streams.get((e["pid"], e["tid"])), (e["ts"], e["ts"] + e["dur"])
        if stream == "compute" and e["name"] != "wait":
            computing.append(span)
        elif stream in ("gather", "reduce", "communication") and e["name"] in TRANSFERS:
            moving.append(span)
    return computing, moving


def together(a, b):
    return sum(max(0.0, min(x[1], y[1]) - max(x[0], y[0])) for x in a for y in b)


class Overlap(Runs):
    def run_with(self, topology, overlap):
        """The (computing, moving) of each rank, and the run's weights."""
        self.run_it("train", "--workers", "2", "--model", "demo", "--data", "demo", "--steps", "3", "--seq", "64", "--batch", "1", "--threads", "1",
                    "--trace", "--quiet", "--no-weights", "--force", "--out", "run", "--set", "eval_batches=none", "--set",
                    f"zero_optimization.overlap_comm={overlap}", "--topology", *topology.split())
        trace, run = self.events("run"), self.summary("run")
        return [spans(trace, rank) for rank in range(run["workers"])], run["weights_hash"]

    def test_false_keeps_them_apart_and_the_bits_are_the_same(self):
        for topology in RINGS + STARS:
            with self.subTest(topology=topology):
                ranks, apart = self.run_with(topology, "false")
                for computing, moving in ranks:
                    self.assertGreater(len(computing), 100)
                    self.assertGreater(len(moving), 20)
                    self.assertEqual(together(computing, moving), 0)
                ranks, beside = self.run_with(topology, "true")
                self.assertEqual(beside, apart)
                if topology not in ("zero:1", "zero:2"):
                    self.assertGreater(sum(together(*rank) for rank in ranks), 0)


if __name__ == "__main__":
    unittest.main()
