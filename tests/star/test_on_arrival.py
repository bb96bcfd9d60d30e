#!/usr/bin/env python3
"""Pushes that are applied on arrival, in real processes: gradients that are too old (max_staleness), sums of several pushes and how far a
worker may lead (max_lead), and recordings that were altered; what is dropped is counted."""
import os
import re
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs

SMALL = ["--model", "tiny", "--seq", "16", "--threads", "1", "--lr", "0.01", "--data", "text.txt", "--no-weights", "--batch", "1",
         "--set", "eval_batches=0", "--quiet", "--seed", "5", "--topology", "ps:async", "--workers", "3", "--servers", "2"]


def option(*settings):
    return [word for setting in settings for word in ("--set", f"parameter_server.{setting}")]


class Case(Runs):
    corpus = 1200

    def words(self, out, steps, *more):
        return ["train", *SMALL, "--steps", str(steps), "--out", out, *more]

    def assert_all_done(self, out, steps):
        s = self.summary(out)
        self.assertEqual((sum(s["batches"]), s["samples_applied"]), (3 * steps, 3 * steps))
        self.assert_as_predicted(s)
        return s

    def test_too_old(self):
        """One worker's gradients are always old, and with 0 nothing of them is applied but where it comes first."""
        self.remove("old")
        self.run_it(*self.words("old", 10, *option("max_staleness=0"), "--delay", "2:constant:30"))
        s = self.summary("old")
        self.assertEqual(sum(s["batches"]), 30)
        self.assertEqual(len(s["dropped_pushes"]), 2)
        self.assertGreater(sum(s["dropped_pushes"]), 0)
        self.assertLess(s["updates_applied"], 30)
        self.assertIn(f"\ndropped     {sum(s['dropped_pushes'])} of {sum(s['dropped_pushes'] + s['staleness']['histogram'])} gradients of keys",
                      self.run_it("summary", "old").stdout)
        self.assert_as_predicted(s)
        # A dropped gradient is in no count of ages, and has no line.
        self.remove("old")
        self.run_it(*self.words("old", 10, *option("max_staleness=1", "pushes_per_update=2"), "--delay", "2:constant:30", "--log-updates"))
        s, lines = self.summary("old"), self.lines("old", "updates.jsonl")
        keys = len({line["key"] for line in lines})
        self.assertEqual(len(lines), sum(s["staleness"]["histogram"]))
        self.assertEqual(len(lines) + sum(s["dropped_pushes"]), 30 * keys)
        # In updates, as tau is.
        self.assertLessEqual(max(line["version"] + line["tau"] for line in lines), s["updates_applied"] + 1)
        self.remove("any")
        self.run_it(*self.words("any", 10, *option("max_staleness=1000")))
        s = self.summary("any")
        self.assertEqual((s["dropped_pushes"], s["updates_applied"]), ([0, 0], 30))

    def test_recordings_that_were_altered(self):
        """A recording that no run leaves is refused, or ends the run in words: no sum of more pushes than it has room for, and nobody waits for ever."""
        settings = option("pushes_per_update=2")
        self.run_it(*self.words("kept", 4, *settings, "--record-arrivals"))
        kept = {name: self.read("kept", name) for name in os.listdir(self.at("kept")) if name.startswith("arrivals.")}
        alter = {"all at the first version": (r"@\d+(\+\d+)?", "@0"), "all of one age": (r"@(\d+)\+\d+", r"@\1")}
        for what, (pattern, by) in alter.items():
            for name, text in kept.items():
                self.write("".join(line if line.startswith(("starring", "end")) else re.sub(pattern, by, line) for line in text.splitlines(True)),
                           "kept", name)
            with self.subTest(what):
                self.remove("again")
                p = self.run_it(*self.words("again", 4, *settings, "--replay-arrivals", "kept", "--set", "parameter_server.deadline_ms=5000"), status=None)
                self.assertIn(p.returncode, (1, 2), p.stderr)
                self.assertRegex(p.stderr, "of another run|of the same run")

    def test_checkpoints_of_sums(self):
        """A batch that is in no update of a checkpoint is done again by the run that goes on: each counts once."""
        more = [*option("pushes_per_update=5"), "--checkpoint-every", "2", "--delay", "1:constant:5", "--set", "eval_batches=1"]
        self.remove("kept")
        p = self.start(*self.words("kept", 1000, *more))
        p.behind(5)
        p.kill_now("worker 1")
        p.ends(status=1)
        # Well after the newest checkpoint, however late the kill came; 3 x steps is a multiple of five.
        newest = max(int(name[5:]) for name in os.listdir(self.at("kept", "checkpoints"))
                     if re.fullmatch(r"step-\d+", name))
        steps = 40 + 10 * newest
        self.run_it(*self.words("kept", steps, *more, "--resume", "latest"))
        last = self.lines("kept", "evals.jsonl")[-1]
        self.assertEqual((last["samples"], last["updates"]), (3 * steps, 3 * steps // 5))

    def test_a_lead_and_sums(self):
        """A sum has no more pushes than a worker may lack, or workers would wait for each other."""
        self.refused(*self.words("lead", 4, *option("pushes_per_update=3", "max_lead=1")), said=("max_lead 1: ", "give max_lead 2 or more"))
        self.run_it(*self.words("lead", 10, *option("pushes_per_update=3", "max_lead=2"), "--delay", "1:constant:5"))
        self.assert_all_done("lead", 10)


if __name__ == "__main__":
    unittest.main()
