#!/usr/bin/env python3
"""Where a run computes: threads by the affinity mask, what is said of too many of them, and what the summary has of it."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs

SHORT = ["train", "--model", "tiny", "--seq", "16", "--batch", "1", "--steps", "2", "--no-weights", "--data", "text.txt", "--set",
         "eval_batches=0"]


class Placement(Runs):
    corpus = 1200

    def bound(self, *words):
        """The messages of a run that may use one processor."""
        one = sorted(os.sched_getaffinity(0))[:1]
        return self.run_it(*SHORT, "--out", "run", "--force", *words, preexec_fn=lambda: os.sched_setaffinity(0, one)).stderr

    def test_more_threads_than_processors(self):
        self.assertIn("1 rank with 3 threads each: affinity mask and quota give 1 processor here", self.bound("--threads", "3"))
        self.assertIn("2 ranks with 1 thread each: affinity mask and quota give 1 processor here",
                      self.bound("--threads", "1", "--topology", "zero:1", "--launch", "threads"))
        self.assertNotIn("affinity", self.bound())
        self.assertNotIn("affinity", self.bound("--threads", "1"))

    def test_the_summary(self):
        self.bound()
        machine = self.summary("run")["machine"]
        self.assertEqual(machine["processors"], 1)
        self.assertEqual(machine["cores"], os.cpu_count())
        nodes = [n for n in os.listdir("/sys/devices/system/node") if n[4:].isdigit()] if os.path.exists("/sys/devices/system/node") else []
        self.assertEqual(machine["numa_nodes"], len(nodes) or None)
        if nodes:
            self.assertIn(machine["numa_node"], range(1, len(nodes) + 1))


if __name__ == "__main__":
    unittest.main()
