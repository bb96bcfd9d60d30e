#!/usr/bin/env python3
"""ps:ringleader in real processes: what it needs and moves is as predicted, all keys take pushes in one order, no gradient is older than
2N - 2 updates, and a run can be recorded, repeated and resumed. (test_ps_ringleader.c compares its bits with a plain trainer.)"""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs

SMALL = ["--model", "tiny", "--seq", "16", "--threads", "1", "--lr", "0.01", "--data", "text.txt", "--batch", "1", "--quiet", "--seed", "5"]
THREE = ["--topology", "ps:ringleader", "--workers", "3", "--servers", "2"]


class Ringleader(Runs):
    corpus = 1200

    def words(self, out, steps, *more):
        return ["train", *SMALL, "--steps", str(steps), "--out", out, *more]

    def check(self, out, steps, workers=3):
        s = self.summary(out)
        self.assert_as_predicted(s, out)
        for rank in s["wire"]:
            self.assertEqual((rank["sent_per_step"], rank["received_per_step"]), (rank["predicted_sent"], rank["predicted_received"]), rank)
        self.assertEqual(sum(s["batches"]), workers * steps)
        self.assertLessEqual(s["samples_applied"], workers * steps)
        self.assertLessEqual(s["staleness"]["max"], 2 * workers - 2)
        self.assertEqual(s["staleness"]["spread"]["max"], 0)  # versions of one worker's keys
        self.assertEqual(self.lines(out, "evals.jsonl")[-1]["updates"], s["updates_applied"])
        return s

    def test_a_slow_worker(self):
        """The others do not wait for it, and it is in every update."""
        self.run_it(*self.words("slow", 12, *THREE, "--delay", "2:constant:20", "--record-arrivals"))
        s = self.check("slow", 12)
        self.assertLess(s["batches"][2], min(s["batches"][:2]))
        self.assertLess(s["updates_applied"], s["samples_applied"])
        self.run_it(*self.words("again", 12, *THREE, "--replay-arrivals", "slow"))
        self.assertEqual(self.hash("again"), self.hash("slow"))
        self.assertEqual(self.check("again", 12)["batches"], s["batches"])

    def test_transports_and_codes(self):
        self.run_it(*self.words("tcp", 8, *THREE, "--medium", "tcp", "--dtype", "bf16", "--set", "parameter_server.partition_bytes=8192",
                                  "--set", "parameter_server.credit_bytes=16384"))
        self.check("tcp", 8)
        self.run_it(*self.words("code", 8, *THREE, "--set", "parameter_server.compression=int8"))
        self.check("code", 8)

    def test_one_worker_is_local(self):
        """Each push is the whole table, and an update on the newest weights."""
        plain = ["--set", "gradient_clipping=0"]
        self.run_it(*self.words("one", 8, "--topology", "ps:ringleader", "--workers", "1", *plain))
        self.run_it(*self.words("local", 8, "--topology", "local", *plain))
        self.assertEqual(self.hash("one"), self.hash("local"))
        self.assertEqual(self.check("one", 8, workers=1)["updates_applied"], 8)

    def test_a_checkpoint(self):
        """A run that goes on begins with an empty table, and does the batches that are left."""
        self.run_it(*self.words("kept", 9, *THREE, "--checkpoint-every", "3"))
        first = self.check("kept", 9)
        newest = max(int(name[5:]) for name in os.listdir(self.at("kept", "checkpoints")) if name.startswith("step-"))
        self.run_it(*self.words("kept", 20, *THREE, "--checkpoint-every", "3", "--resume", "latest"))
        s = self.summary("kept")
        self.assert_as_predicted(s)
        self.assertGreater(sum(s["batches"]), 3 * 20 - sum(first["batches"]) - 1)
        self.assertGreater(newest, 0)
        self.assertLessEqual(s["staleness"]["max"], 4)

    def test_too_many_workers(self):
        self.refused(*self.words("many", 2, "--topology", "ps:ringleader", "--workers", "65", "--dry-run"), said="at most 64 workers: there are 65")


if __name__ == "__main__":
    unittest.main()
