#!/usr/bin/env python3
"""zero_optimization.overlap_comm, read off the trace: with false no transfer runs while its rank computes, with true some do."""
import json
import os
import subprocess
import tempfile
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
STARRING = os.environ.get("STARRING", os.path.join(TOP, "build", "starring"))
TRANSFERS = {"all_gather", "reduce_scatter", "all_reduce"}


def spans(trace, rank):
    """([(begin, end)] of computing, of transfers), microseconds."""
    streams = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace if e["ph"] == "M" and e["name"] == "thread_name"}
    computing, moving = [], []
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


class Overlap(unittest.TestCase):
    def run_with(self, stage, overlap):
        with tempfile.TemporaryDirectory() as d:
            done = subprocess.run([STARRING, "train", "--topology", stage, "--workers", "2", "--model", "demo", "--data", "demo", "--steps",
                                   "3", "--seq", "64", "--batch", "1", "--threads", "1", "--trace", "--quiet", "--no-weights", "--out",
                                   os.path.join(d, "run"), "--set", "eval_batches=none", "--set",
                                   f"zero_optimization.overlap_comm={overlap}"], capture_output=True, text=True, timeout=300, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(os.path.join(d, "run", "trace.json"), encoding="utf-8") as f:
                found = json.load(f)
        return found["traceEvents"] if isinstance(found, dict) else found

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
