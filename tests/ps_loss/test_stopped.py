#!/usr/bin/env python3
"""SIGSTOP of every role of a star, before its start, in a step, while a checkpoint is written, and about its end: the job ends by
its deadlines, says whom it waited for, and leaves nothing - or it had ended well already. With --elastic it goes on without a
worker, with --restart with another process in the place of the stopped one, to the same bits."""
import collections
import concurrent.futures
import glob
import json
import os
import signal
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs, processes

STEPS, DEADLINE_S = 30, 12  # nobody is silent for half of it who only waits for a core
LIMIT_S = 100  # of a run: far more than its deadlines, on a machine that does much else
CONFIG = {
    "model": "tiny", "data": "demo", "steps": STEPS, "train_micro_batch_size_per_gpu": 2, "seed": 5, "eval_batches": "none", "quiet": True,
    "bf16": {"enabled": True}, "parameter_server": {"deadline_ms": 1000 * DEADLINE_S, "heartbeat_ms": 200},
}
FLAGS = ["--topology", "ps:sync", "--workers", "2", "--servers", "2", "--seq", "64", "--threads", "1",
         "--delay", "0:constant:100"]  # there is time to find somebody
ROLES = ("server 0", "server 1", "worker 0", "worker 1")
AT_ONCE = 5
OFTEN = ["--steps", "400", "--checkpoint-every", "1"]  # there is a checkpoint under way at some look
ELASTIC = ["--workers", "3", "--elastic", "2:3"]
RESTART = ["--servers", "3", "--restart", "2", "--checkpoint-every", "5"]
WRITING = "writing"
Ended = collections.namedtuple("Ended", "stopped status said steps hash")


class Stopped(Runs):
    def setUp(self):
        super().setUp()
        self.write(json.dumps(CONFIG), "job.json")

    def reached(self, out, at_step):
        if at_step == WRITING:
            return bool(glob.glob(self.at(glob.escape(out), "checkpoints", ".*.partial")))
        return self.steps(out) >= at_step

    def one(self, victims, at_step, more=()):
        """Stops the roles once so many steps are done (0: as soon as they are there), or once a checkpoint is being written. Returns
        the outcome."""
        out = "-".join([*victims, str(at_step)]).replace(" ", "-")
        p, stopped = self.start("train", "-c", "job.json", "--out", out, *FLAGS, *more), set()
        while p.poll() is None and len(stopped) < len(victims):
            roles = p.roles() if stopped or self.reached(out, at_step) else {}
            stopped |= {role for role in victims if role in roles and processes.send(roles[role], signal.SIGSTOP)}
            time.sleep(0.001)
        said = p.ends(status=None, limit_s=LIMIT_S)
        weights = self.summary(out).get("weights_hash") if os.path.exists(self.at(out, "summary.json")) else None
        return Ended(len(stopped) == len(victims), p.returncode, said, self.steps(out), weights)

    def all(self, jobs):
        """Each (roles, at_step, more): the same with what became of it."""
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            return zip(jobs, list(pool.map(lambda job: self.one(*job), jobs)))

    def failed(self, role, e, always):
        """The job failed because of it; unless always: or the role had done all that it was needed for."""
        self.assertIn(e.status, (1,) if always else (0, 1), e.said)
        if always:
            self.assertTrue(e.stopped, e.said)
        if e.status:
            self.assertIn(role, e.said)
        self.assertLessEqual(e.said.count("was lost") + e.said.count("did not join within"), 1, e.said)

    def went_on(self, victims, e, words):
        self.assertEqual((e.status, e.steps), (0, STEPS), e.said)
        for role in victims if e.stopped else ():
            self.assertRegex(e.said, rf"{role} \(pid \d+\) gave no sign of life for the deadline and was killed .*: {words}")

    def check(self, at_step, always, more=()):
        for ((role,), _, _), e in self.all([((role,), at_step, more) for role in ROLES]):
            with self.subTest(role):
                self.failed(role, e, always)

    def test_start(self):
        self.check(0, always=True)

    def test_step(self):
        self.check(STEPS // 3, always=False)

    def test_end(self):
        self.check(STEPS, always=False)

    def test_writing(self):
        self.check(WRITING, always=True, more=OFTEN)

    def test_elastic(self):
        roles = ("worker 1", "worker 2", "server 1", "worker 0")
        for ((role,), _, _), e in self.all([((role,), STEPS // 3, ELASTIC) for role in roles]):
            with self.subTest(role):
                if role in roles[:2]:
                    self.went_on([role], e, "the others continue without it")
                else:
                    self.failed(role, e, always=False)

    def test_restart(self):
        """Also two servers at once."""
        jobs = [((role,), STEPS // 3, RESTART) for role in ("server 1", "worker 1")] + [(("server 0", "server 1"), STEPS // 3, RESTART)]
        hashes = set()
        for (victims, at_step, _), e in self.all(jobs):
            with self.subTest(victims, at_step=at_step):
                self.went_on(victims, e, "starting it again")
                hashes.add(e.hash)
        self.assertEqual(len(hashes - {None}), 1, hashes)

    def launcher(self, at_step, more, seconds=LIMIT_S):
        """The launcher, with the scheduler in it, is stopped for so long, or until all others have given up."""
        out = f"launcher-{at_step}-{len(more)}-{seconds}"
        p = self.start("train", "-c", "job.json", "--out", out, *FLAGS, *more)
        p.until(lambda: self.reached(out, at_step) and len(p.left()) > 1, "that")
        processes.send(p.pid, signal.SIGSTOP)
        end = time.monotonic() + seconds
        while set(p.left()) - {p.pid} and time.monotonic() < end:
            time.sleep(0.05)
        left = set(p.left()) - {p.pid}
        processes.send(p.pid, signal.SIGCONT)
        said = p.ends(status=None, limit_s=LIMIT_S)
        return p.returncode, said, self.steps(out), left

    def test_launcher(self):
        """For longer than the deadline: its children leave, and say why; for less the job waits."""
        jobs = [(at_step, more) for at_step in (0, STEPS // 3) for more in ((), RESTART)]
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            for job, (status, said, _, left) in zip(jobs, list(pool.map(lambda job: self.launcher(*job), jobs))):
                with self.subTest(job):
                    self.assertEqual((status, left), (1, set()), said)
                    self.assertIn("scheduler", said)
        status, said, steps, _ = self.launcher(STEPS // 3, RESTART, seconds=2)
        self.assertEqual((status, steps), (0, STEPS), said)
        self.assertNotIn("starting it again", said)


if __name__ == "__main__":
    unittest.main()
