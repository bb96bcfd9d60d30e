#!/usr/bin/env python3
"""Runs that fail in a comparison that keeps going, and finished runs that cannot be read or are not there."""
import os
import unittest

from made_run import make_run
from test_compare import FakeProgram


class KeepGoing(FakeProgram):
    def going_on(self, how, *argv):
        p = self.run_it("--program", self.program, "--topologies", "ps:sync,zero:1,zero:3", "--keep-going", "--markdown", *argv, env={"BREAK": how}, status=1)
        self.assertRegex(p.stderr, r"(?m)^compare.py: zero:3: [^\n]*: starring: error: \[rank 1\] could not gather unit 3 \([^\n]*output.txt\)$")
        self.assertNotIn("reading", p.stderr)   # what came before, and after
        return p

    def test_a_failed_run_does_not_end_the_comparison_that_keeps_going(self):
        p = self.going_on("1", "--repeat", "1")
        self.assertEqual(len(self.order()), 3)
        log = os.path.join(self.out, "zero-3", "output.txt")
        why = f"exit status 1: starring: error: [rank 1] could not gather unit 3 ({log})"
        self.assertEqual("".join(p.stdout.split()).count("".join(f"failed: zero:3: {why}".split())), 2)  # both tables
        self.assertIn("ps:sync = zero:1: equal to the last bit", p.stdout)
        self.assertIn(f"<b>Failed.</b>These runs are not in the comparison:<ul><li>zero:3: {why}</li></ul>", self.read("out", "report.html"))
        found = {row["run"]: row for row in self.table()}
        self.assertEqual((found["zero-3"]["failed"], found["zero-3"]["tokens_per_second"], found["ps-sync"]["failed"]), (why, "", ""))

    def test_the_short_table_says_so_too(self):
        argv = ["--program", self.program, "--a", "ps:sync", "--b", "zero:3", "--repeat", "1", "--keep-going"]
        p = self.run_it(*argv, env={"BREAK": "1"}, full=False, status=1)
        self.assertIn("failed: zero:3: exit status 1: starring: error: [rank 1] could not", p.stdout)

    def test_of_repeats_the_others_stay(self):
        p = self.going_on("second", "--repeat", "3")
        self.assertEqual(len(self.order()), 9)
        self.assertIn("failed: zero:3 (1 of 3 runs): exit status 1: ", p.stdout)
        self.assertRegex(p.stdout, r"ps:sync = zero:1 = zero:3")

    def test_a_signal_is_called_one(self):
        self.assertIn("failed: zero:3: ended by signal 9 (Killed): ", self.going_on("killed", "--repeat", "1").stdout)

    def test_a_run_that_was_ended_has_no_last_words(self):
        p = self.run_it("--program", self.program, "--a", "zero:1", "--repeat", "1", "--limit", "0.001", status=1)
        self.assertIn(f"compare.py: zero:1: still running after 0.001 s; it was ended ({os.path.join(self.out, 'zero-1', 'output.txt')})\n", p.stderr)

    def test_nothing_is_left(self):
        p = self.going_on("all", "--repeat", "1")
        self.assertIn("no run is left to compare:\nps:sync: exit status 1: ", p.stderr)
        self.assertFalse(os.path.exists(os.path.join(self.out, "report.html")))

    def test_of_finished_runs_what_cannot_be_read_is_left_out(self):
        good, torn = make_run(self.at("good"), "zero:1"), make_run(self.at("torn"), "zero:2")
        os.remove(os.path.join(torn, "metrics.jsonl"))
        self.run_it("--runs", good, torn, status=1)
        p = self.run_it("--runs", good, torn, "--keep-going", status=1)
        self.assertIn("".join(f"failed: torn: {torn}/metrics.jsonl: not there".split()), "".join(p.stdout.split()))

    def test_a_run_that_is_not_there_is_a_wrong_command_line(self):
        good = make_run(self.at("good"), "zero:1")
        for more in ([], ["--keep-going"]):
            p = self.run_it("--runs", good, self.at("none"), os.path.join(good, "summary.json"), *more, status=2)
            self.assertEqual((p.returncode, p.stdout), (2, ""))
            self.assertEqual(p.stderr, f"compare.py: --runs {self.at('none')}: there is no such directory\n--runs {good}/summary.json: there is no such directory\n")
        p = self.run_it("--runs", good, good + "/", status=2)
        self.assertEqual((p.returncode, p.stdout), (2, ""))
        self.assertIn(f"--runs {good}/: this run is named twice", p.stderr)

    def test_flags_that_say_how_to_train(self):
        for words in (("--medium", "tcp"), ("--sweep", "workers=1,2"), ("--repeat", "3"), ("--set", "steps=1"), ("--config", "x.json"),
                      ("--model", "tiny"), ("--steps", "0"), ("--insecure",)):
            p = self.run_it("--runs", "x", *words, status=2)
            self.assertIn(f"{words[0]} is an option of training: it has no use with --runs", p.stderr)


if __name__ == "__main__":
    unittest.main()
