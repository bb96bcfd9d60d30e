#!/usr/bin/env python3
"""zero_optimization.overlap_comm, read off the trace: with false no transfer runs while its rank computes, with true some do."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs, thread_names

TRANSFERS = {"all_gather", "reduce_scatter", "all_reduce"}


def spans(trace, rank):
    """([(begin, end)] of computing, of transfers), microseconds."""
    streams, computing, moving = thread_names(trace), [], []
    for e in trace:
        if e["ph"] != "X" or e["pid"] != rank:
            continue
        stream, span = streams.get((e["pid"], e["tid"])), (e["ts"], e["ts"] + e["dur"])
        if stream == "compute" and e["name"] != "wait":
            computing.append(span)
        elif stream in ("gather", "reduce") and e["name"] in TRANSFERS:
            moving.append(span)
    return computing, moving


def together(a, b):
    return sum(max(0.0, min(x[1], y[1]) - max(x[0], y[0])) for x in a for y in b)


class Overlap(Runs):
    def run_with(self, stage, overlap):
        self.run_it("train", "--topology", stage, "--workers", "2", "--model", "demo", "--data", "demo", "--steps", "3", "--seq", "64", "--batch",
                    "1", "--threads", "1", "--trace", "--quiet", "--no-weights", "--force", "--out", "run", "--set", "eval_batches=none", "--set",
                    f"zero_optimization.overlap_comm={overlap}")
        return self.events("run")

    def test_false_keeps_them_apart(self):
        for stage in ("zero:0", "zero:1", "zero:2", "zero:3"):
            with self.subTest(stage=stage):
                trace = self.run_with(stage, "false")
                for rank in (0, 1):
                    computing, moving = spans(trace, rank)
                    self.assertGreater(len(computing), 100)
                    self.assertGreater(len(moving), 20)
                    self.assertEqual(together(computing, moving), 0)

    def test_true_lets_them_run_together(self):
        for stage in ("zero:0", "zero:3"):
            with self.subTest(stage=stage):
                trace = self.run_with(stage, "true")
                self.assertGreater(sum(together(*spans(trace, rank)) for rank in (0, 1)), 0)


if __name__ == "__main__":
    unittest.main()
