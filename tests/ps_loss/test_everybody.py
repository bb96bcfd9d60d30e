#!/usr/bin/env python3
"""Every process of a star stands still (SIGSTOP) for longer than all deadlines, its launcher too: as it starts, before its start, in a
step, about its end. That is nobody's death: all steps are done, no restart is taken, nobody is said to be lost."""
import concurrent.futures
import os
import signal
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs, processes

STEPS, DEADLINE_S, LIMIT_S = 30, 6, 150
STANDS_S = 1.5 * DEADLINE_S  # a role waits for the start for 1.25 of it
FLAGS = ["--model", "tiny", "--data", "demo", "--topology", "ps:sync", "--workers", "2", "--servers", "2", "--seq", "64", "--batch", "2", "--threads", "1", "--seed", "5", "--steps", str(STEPS), "--checkpoint-every", "10", "--delay", "0:constant:50",
         "--set", "eval_batches=none", "--set", "parameter_server.threads=4", "--set", f"parameter_server.deadline_ms={1000 * DEADLINE_S}", "--set", "parameter_server.heartbeat_ms=200"]
AT_ONCE = 4


class Everybody(Runs):
    def reached(self, p, moment, since):
        kind, value = moment
        if kind == "seconds":
            return time.monotonic() - since >= value
        if kind == "roles":
            return sum(role is not None for role in p.roles()) > value
        return self.steps(p.out) >= value

    def one(self, moment, more):
        out, since = f"{moment[0]}-{moment[1]}-{len(more)}", time.monotonic()
        p = self.start("train", *FLAGS, *more, "--out", out)
        while p.poll() is None and not self.reached(p, moment, since) and time.monotonic() - since < LIMIT_S:
            time.sleep(0.005)
        stopped = set()
        while new := set(p.left()) - stopped:  # a launcher that is stopped starts nobody
            for pid in sorted(new):
                processes.send(pid, signal.SIGSTOP)
            stopped |= new
        time.sleep(STANDS_S)
        for pid in stopped:
            processes.send(pid, signal.SIGCONT)
        said = p.ends(status=None, limit_s=LIMIT_S)
        return p.returncode, said, self.lives(out), self.steps(out)

    def test_it_is_nobodys_death(self):
        moments = [("seconds", s) for s in (0.05, 0.1, 0.2)] + [("roles", n) for n in (1, 3, 5)] + [("steps", n) for n in (1, 10, 28)]
        jobs = [(moment, more) for moment in moments for more in ([], ["--restart", "2"])]
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            for job, (status, said, lives, steps) in zip(jobs, list(pool.map(lambda job: self.one(*job), jobs))):
                with self.subTest(job):
                    self.assertEqual((status, steps), (0, STEPS), said)
                    self.assertEqual([life["restarts"] for life in lives], [0] if job[1] else [], said)
                    self.assertNotRegex(said, "lost|did not|killed")


if __name__ == "__main__":
    unittest.main()
