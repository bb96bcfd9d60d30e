#!/usr/bin/env python3
"""--elastic, --restart and Ctrl-C as a user meets them: what is said of a worker's death is what happens, who was away when is
in summary.json, and Ctrl-C in the moment of a death keeps the last checkpoint, or says what is lost."""
import glob
import os
import re
import signal
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import LIMIT_S, Runs, processes

FOREVER = "100000"
SMALL = ["--model", "tiny", "--seq", "16", "--threads", "1", "--lr", "0.01", "--data", "text.txt", "--no-weights", "--batch", "2",
         "--set", "eval_batches=0", "--quiet", "--delay", "0:constant:10"]
STAR = ["--topology", "ps:sync", "--workers", "3", "--servers", "2", "--set", "parameter_server.deadline_ms=20000"]


class Case(Runs):
    corpus = 1200

    def train(self, steps, *more):
        return self.start("train", *SMALL, "--steps", str(steps), "--out", "run", *more)

    def records(self):
        return self.lines_yet("run", "metrics.jsonl")


class Interrupted(Case):
    def interrupted(self, victim, *more, every=4, at_once=True):
        """Ctrl-C, which its launcher finds together with the death, or just behind it. -> what it says, the newest checkpoint
        (or -1) and how many steps were done."""
        self.remove("run")
        p = self.train(FOREVER, "--checkpoint-every", str(every), *more)
        p.behind(6)
        kept = self.at("run", "checkpoints", "step-*")
        p.until(lambda: every > 6 or glob.glob(kept), "a checkpoint")
        if at_once:
            p.send_signal(signal.SIGSTOP)
            p.until(lambda: processes.stat_of(p.pid)[0] == "T", "it stands")
        p.kill_now(victim)
        p.send_signal(signal.SIGINT)
        p.send_signal(signal.SIGCONT)
        said = p.ends(130)
        steps = self.records()[-1]["step"]
        self.assertIn(f"Ctrl-C: ended after step {steps}", said)
        newest = max([-1] + [int(path.rpartition("-")[2]) for path in glob.glob(kept)])
        lost = re.search(r"the newest checkpoint of .* is step-(\d+): the (\d+) steps? after it (?:is|are) lost", said)
        if newest < 0:
            self.assertIn(f"has no checkpoint: the {steps} steps that were done are lost", said)
        else:
            self.assertEqual((int(lost[1]), int(lost[2])) if lost else (steps, 0), (newest, steps - newest), said)
        return said, newest, steps

    def test_the_others_end_in_order(self):
        for more in ((), ("--restart", "2")):
            said, newest, steps = self.interrupted("worker 1", *STAR, "--elastic", "2:3", *more)
            self.assertEqual(newest, steps, said)
            self.assertIn("worker 1 (pid ", said)
            self.assertIn("the others end without it", said)
            self.assertEqual(self.summary("run")["state"], "interrupted")

    def test_while_it_is_started_again(self):
        """No process waits until it counts as lost, half a deadline later: longer than a test may take."""
        p = self.train(FOREVER, "--checkpoint-every", "4", *STAR, "--set", f"parameter_server.deadline_ms={4000 * LIMIT_S}", "--elastic", "2:3",
                       "--restart", "2")
        p.behind(6)
        dead, = p.kill_now("worker 1")
        p.until(lambda: p.roles().get("worker 1", dead) != dead, "another worker 1")
        p.send_signal(signal.SIGINT)
        said = p.ends(130)
        steps = self.records()[-1]["step"]
        self.assertTrue(os.path.isdir(self.at("run", "checkpoints", f"step-{steps}")), said)
        self.assertEqual(self.summary("run")["state"], "interrupted")

    def test_what_is_lost_is_said(self):
        # Whether the launcher hears of the death before it hears of Ctrl-C or behind it: there is no step any more.
        _, newest, _ = self.interrupted("worker 1", *STAR, "--restart", "2", every=1000)
        self.assertEqual(newest, -1)
        self.interrupted("worker 1", *STAR, "--restart", "2")
        self.interrupted("server 1", *STAR, "--restart", "2", at_once=False)

    def test_of_a_ring_too(self):
        ring = ["--topology", "zero:2", "--workers", "2", "--restart", "2"]
        for every in (4, 1000):
            said, newest, _ = self.interrupted("rank 1", *ring, every=every)
            self.assertIn("was killed by signal 9", said)
            self.assertEqual(newest < 0, every == 1000)


class Said(Case):
    def death(self, status, *more):
        p = self.train(60, *STAR, *more)
        p.behind(6)
        p.kill_now("worker 1")
        said = p.ends(status)
        line = next(line for line in said.splitlines() if line.startswith(("starring: warning: worker 1", "starring: error: worker 1")))
        return said, line

    def test_others_go_on(self):
        self.assertTrue(self.death(0, "--elastic", "2:3")[1].endswith(": the others continue without it"))

    def test_started_again(self):
        line = self.death(0, "--elastic", "2:3", "--restart", "2")[1]
        self.assertTrue(line.endswith(": the others continue; starting it again; 1 of 2 restarts is left"), line)

    def test_all_begin_anew(self):
        said, line = self.death(0, "--elastic", "3:3", "--restart", "2", "--checkpoint-every", "4")
        self.assertNotIn("others continue", said)
        self.assertTrue(line.endswith("starting it again; 1 of 2 restarts is left"), line)
        self.assertEqual(len(self.lives("run")), 2)

    def test_the_job_ends(self):
        said, line = self.death(1, "--elastic", "3:3")
        self.assertNotIn("others continue", said)
        self.assertIn("fewer than 3 workers are left, which --elastic 3:3 needs: ending the other processes", line)


class Away(Case):
    def away(self):
        """summary.json's list, which explains every step's number of workers."""
        away = self.summary("run")["away"]
        self.assertTrue(self.records())
        for line in self.records():
            missing = [a["worker"] for a in away if a["from_step"] <= line["step"] <= a["to_step"]]
            self.assertEqual(len(set(missing)), len(missing), away)
            self.assertEqual(line["workers"], 3 - len(missing), (line, away))
        return away

    def returned(self, p):
        """After so many steps all have returned."""
        count = len(self.records())
        p.until(lambda: [line for line in self.records()[count:] if line["workers"] == 3], "the worker is back")

    def test_died_and_back(self):
        p = self.train(10000, *STAR, "--elastic", "1:3", "--restart", "1")
        p.behind(6)
        p.kill_now("worker 1")
        p.until(lambda: self.records()[-1]["workers"] == 2, "it is away")
        self.returned(p)
        p.kill_now("worker 2")  # nobody starts it again
        p.until(lambda: self.records()[-1]["workers"] == 2, "it is away")
        p.send_signal(signal.SIGINT)
        p.ends(130)
        first, second = self.away()
        self.assertEqual((first["worker"], first["cause"], first["returned"]), (1, "died", True))
        self.assertRegex(first["why"], r"^worker 1 \(pid \d+\) was killed by signal 9")
        self.assertEqual((second["worker"], second["cause"], second["returned"]), (2, "died", False))
        self.assertEqual(second["to_step"], self.summary("run")["steps"])
        table = self.run_it("summary", "run", status=None).stdout
        self.assertIn("\naway        worker 1 in step", table)
        self.assertIn(f", worker 2 from step {second['from_step']} on (died)\n", table)

    def test_silent(self):
        p = self.train(10000, *STAR, "--elastic", "1:3", "--set", "parameter_server.deadline_ms=8000", "--set",
                       "parameter_server.heartbeat_ms=200")
        p.behind(6)
        p.stop("worker 1")
        p.until(lambda: self.records()[-1]["workers"] == 2, "it is away")
        p.send_signal(signal.SIGINT)
        p.ends(130)
        self.assertEqual([(a["worker"], a["cause"]) for a in self.away()], [(1, "silent")])

    def test_steps_that_are_done_again(self):
        """An epoch begins with all workers: what was after its checkpoint is forgotten, as in metrics.jsonl; and so it is when
        the run is resumed."""
        more = [*STAR, "--elastic", "2:3", "--restart", "3", "--checkpoint-every", "4"]
        p = self.train(10000, *more)
        p.behind(6)
        p.kill_now("worker 1")
        p.until(lambda: self.records()[-1]["workers"] == 2, "it is away")
        self.returned(p)
        count = len(self.records())
        p.behind(count + 10)  # there is a checkpoint behind that
        p.kill_now("worker 2")
        p.until(lambda: self.records()[-1]["workers"] == 2, "it is away")
        p.kill_now("worker 0")
        p.until(lambda: len(self.lives("run")) == 2, "a second life")
        p.behind(1)
        p.send_signal(signal.SIGINT)
        p.ends(130)
        steps = self.records()[-1]["step"]
        p = self.train(steps + 5, *more, "--resume", "latest")
        p.ends()
        away = self.away()
        self.assertEqual((away[0]["worker"], away[0]["returned"]), (1, True))
        self.assertEqual(self.records()[-1]["step"], steps + 5)

    def test_nobody(self):
        p = self.train(5, *STAR, "--elastic", "1:3")
        p.ends()
        self.assertEqual(self.away(), [])


if __name__ == "__main__":
    unittest.main()
