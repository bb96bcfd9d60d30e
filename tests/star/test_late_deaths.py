#!/usr/bin/env python3
"""Steps that go on without those that are late, while processes die, stand still, come back or are ended: a run behind a death ends in
the bits of one undisturbed, where the same worker is always late."""
import os
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from test_late import STEPS, Case


class Stopped(Case):
    def test_stopped(self):
        """A worker that stands still for a while, thousands of steps long, comes back where the others are."""
        p = self.start(*self.words("run", "ps:backup:1", "--delay", "2:constant:0.2", steps=2500))
        for victim in ("worker 1", "worker 0"):
            p.behind(20)
            p.stop(victim)
            if victim == "worker 1":
                p.behind(self.steps("run") + 700)
            else:
                time.sleep(0.5)
            p.go_on(victim)
        p.ends()
        self.assertGreater(self.assert_told("run", 2, steps=2500)[1], 600)


class Deaths(Case):
    """Worker 1, or 0, is late at every step."""

    def test_restart(self):
        for late, victim in ((1, "server 1"), (0, "worker 2"), (1, "worker 0"), (1, "worker 1")):
            with self.subTest(late=late, victim=victim):
                more = ["--delay", f"{late}:constant:4000", "--delay", f"{3 - max(late, 1)}:constant:20", "--checkpoint-every", "5", "--restart", "1"]
                self.train("kept", "ps:backup:1", *more)
                self.remove("again")
                p = self.start(*self.words("again", "ps:backup:1", *more))
                if late:
                    p.behind(8)
                else:
                    p.until(lambda: os.path.exists(self.at("again", "checkpoints")) and os.listdir(self.at("again", "checkpoints")), "servers keep a step")
                p.kill_now(victim)
                p.ends()
                self.assertEqual(len(self.lives("again")), 2)
                self.assert_same_run("again", "kept")

    def test_without_restart(self):
        """A death is the job's end, as with ps:sync, also of a worker that is late."""
        for victim in ("worker 1", "worker 2"):
            self.remove("run")
            p = self.start(*self.words("run", "ps:backup:1", "--delay", "1:constant:100", "--delay", "2:constant:5", steps=100000))
            p.behind(5)
            p.kill_now(victim)
            self.assertIn(f"{victim} (pid ", p.ends(1))

    def test_elastic(self):
        """One of three workers is late, another dies: the steps go on with whoever is there, and there is nobody whom a step waits for."""
        p = self.start(*self.words("run", "ps:backup:1", "--delay", "1:constant:30", "--delay", "0:constant:2", "--elastic", "1:3", steps=200))
        p.behind(10)
        p.kill_now("worker 2")
        p.ends()
        lines = self.lines("run", "metrics.jsonl")
        self.assertEqual([line["step"] for line in lines], list(range(1, 201)))
        self.assertEqual({line["workers"] for line in lines}, {2})
        self.assertEqual([(a["worker"], a["cause"]) for a in self.summary("run")["away"]], [(2, "died")])

    def test_elastic_and_back(self):
        """A worker that has died and come back joins the steps, and may be late as any other."""
        p = self.start(*self.words("run", "ps:backup:1", "--delay", "1:constant:20", "--delay", "0:constant:2", "--elastic", "1:3", "--restart", "2",
                                   steps=100000))
        for victim in ("worker 2", "worker 1"):
            count = len(self.absences("run"))
            p.behind(self.steps("run") + 10)
            p.kill_now(victim)
            p.until(lambda: len(self.absences("run")) == count + 2, "it is back")
            p.behind(self.steps("run") + 30)
        p.send_signal(2)
        p.ends(130)
        steps = [line["step"] for line in self.lines("run", "metrics.jsonl")]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))
        self.assertEqual([(a["worker"], a["cause"], a["returned"]) for a in self.summary("run")["away"]], [(2, "died", True), (1, "died", True)])

    def test_back_too_late(self):
        """A worker that dies when the others have made the last step is started again, and hears that nothing is left to join."""
        for topology in ("ps:backup:1", "ps:quorum:1"):
            self.remove("run")
            p = self.start(*self.words("run", topology, "--delay", "1:constant:4000", "--elastic", "1:3", "--restart", "1"))
            p.behind(STEPS)
            p.stop("worker 2")  # the job is still there for whoever comes
            died, = p.kill_now("worker 1")
            p.until(lambda: p.roles().get("worker 1", died) != died, "worker 1 is back")
            p.until(lambda: "there is nothing left to join" in p.said(), "it hears so")
            p.go_on("worker 2")
            p.ends()
            self.assertEqual(self.summary("run")["steps"], STEPS)

    def test_interrupted(self):
        """Ctrl-C ends all workers behind the same step, with a checkpoint, however far worker 0 is behind."""
        for late in (0, 1):
            self.remove("run")
            p = self.start(*self.words("run", "ps:backup:1", "--delay", f"{late}:constant:400", "--delay", "2:constant:3",
                                       "--checkpoint-every", "50", steps=100000))
            p.until(lambda: os.path.exists(self.at("run", "checkpoints", "step-50")), "a checkpoint")
            p.send_signal(2)
            said = p.ends(130)
            steps = self.steps("run")
            self.assertIn(f"Ctrl-C: ended after step {steps}", said)
            self.assertIn(f"step-{steps}", self.checkpoints("run"), said)


if __name__ == "__main__":
    unittest.main()
