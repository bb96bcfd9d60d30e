#!/usr/bin/env python3
"""experiments/checkpoint_costs.py: what it makes of made-up steps, and a whole small measurement. No speed is looked at."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import PROGRAM, Runs
from drill import costs

SAID = {"written": 3, "failed": 0, "bytes": 300.0, "seconds_writing": 0.1, "bytes_per_second": 3000.0,
        "step_slowed_seconds": {"mean": 0.25, "max": 0.5}}


def steps(count, slow):
    """Steps of 1 s, but 9 s of warming up, and what `slow` says: {index: seconds}."""
    return [9.0] * costs.WARM + [slow.get(n, 1.0) for n in range(costs.WARM, count)]


class MadeUp(unittest.TestCase):
    def test_windows(self):
        # Kept are the states behind steps 5, 10, 15 (from 0: 4, 9, 14); none of 20 has a step behind it.
        run = costs.Run(steps(20, {}), 5)
        self.assertEqual(run.windows(), [4, 9, 14])
        self.assertEqual(len(run.others()), 20 - costs.WARM - 3 * costs.WINDOW - 1)
        self.assertEqual(costs.Run(steps(20, {}), 0).others(), [1.0] * (20 - costs.WARM))
        self.assertEqual(costs.Run(steps(21, {}), 5).windows(), [4, 9, 14, 19])

    def test_what_a_checkpoint_adds(self):
        # Either of the window's steps may be the slow one; what is slow elsewhere is not the checkpoint's.
        run = costs.Run(steps(20, {4: 1.5, 10: 1.25, 14: 2.0, 15: 2.0, 7: 50.0}), 5)
        self.assertEqual(run.slowed(), [0.5, 0.25, 2.0])

    def test_rows(self):
        none = costs.Run(steps(20, {}), 0)
        slow = costs.Run([2 * s for s in steps(20, {4: 1.5, 9: 2.5, 14: 3.5})], 5, SAID)
        row = costs.step_row("local", "direct", [{"none": none, "direct": slow}] * 2)
        self.assertEqual((row["step_seconds"], row["others_over_none"], row["slowed_seconds"], row["slowed_most"]), (2.0, 2.0, 3.0, 5.0))
        self.assertEqual((row["slowed_steps"], row["checkpoints"], row["bytes"], row["waited_seconds"]), (1.5, 6, 100, 0.25))
        self.assertAlmostEqual(row["mean_over_none"], (2 * (18 + 0.5 + 1.5 + 2.5)) / 18)
        plain = costs.step_row("local", "none", [{"none": none}])
        self.assertNotIn("slowed_seconds", plain)
        lines = costs.step_table([plain, row]).splitlines()
        self.assertEqual({line.count("|") for line in lines}, {len(costs.STEP_HEAD) + 1})
        self.assertIn(" 3000.0 |", lines[3])
        dead = costs.death_row("local", "run", [(1.0, 3), (4.0, 7), (2.0, 5)])
        self.assertEqual((dead["seconds"], dead["seconds_most"], dead["steps_again"], dead["steps_again_most"]), (2.0, 4.0, 5, 7))
        self.assertIn("|     3 |", costs.death_table([dead]))


class Whole(Runs):
    def measure(self, *words, status=0):
        """Returns the messages and the document."""
        p = self.run_script("checkpoint_costs.py", "--program", PROGRAM, "--model", "tiny", "--seq", "64", "--out", "runs", "--json", "costs.json",
                            *words, status=status)
        return p, self.json("costs.json") if status == 0 else None

    def test_small_runs(self):
        p, got = self.measure("--job", "local", "--steps", "17", "--every", "8", "--rounds", "1", "--kills", "1")
        self.assertEqual([r["way"] for r in got["steps"]], ["none", "direct", "background"])
        for row in got["steps"][1:]:
            self.assertEqual((row["checkpoints"], row["failed"]), (3, 0))  # of steps 8, 16 and 17
            self.assertGreater(row["bytes"], 3 * 4 * 125248)
            self.assertGreater(row["step_seconds"], 0)
        death, = got["deaths"]
        self.assertEqual((death["role"], death["deaths"]), ("run", 1))
        self.assertGreater(death["seconds"], 0)
        # After the first checkpoint or a later one: never more than two intervals and the step in progress.
        self.assertLessEqual(death["steps_again"], 3 * 8)
        self.assertIn("| local | run ", p.stdout)
        self.assertEqual(os.listdir(self.at("runs")), [])

    def test_a_run_that_fails_is_named(self):
        p, _ = self.measure("--job", "local", "--rounds", "1", "--kills", "0", "--model", "nothing", status=1)
        self.assertIn("local, checkpoints none: exit status 2", p.stderr)
        self.assertIn("--model nothing", p.stderr)
        p, _ = self.measure("--job", "local", "--rounds", "0", "--kills", "1", "--model", "nothing", status=1)
        self.assertIn("local: run could not be killed, the run had ended", p.stderr)
        self.assertEqual(os.listdir(self.at("runs")), [])

    def test_refusals(self):
        for words in (["--every", "3"], ["--every", "10", "--steps", "19"], ["--batch", "0"], ["--job", "zero:7"], ["--kills", "-1"]):
            p, _ = self.measure(*words, status=2)
            self.assertIn(words[0], p.stderr)


if __name__ == "__main__":
    unittest.main()
