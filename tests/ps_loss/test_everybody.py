#!/usr/bin/env python3
"""Every process of a star stands still (SIGSTOP) for longer than all deadlines, its launcher too: as it starts, at its login, in a
step, about its end. That is nobody's death: all steps are done, no restart is taken, nobody is said to be lost."""
import concurrent.futures
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.environ.get("STARRING", os.path.join(TOP, "build", "starring"))
sys.path.insert(0, os.path.join(TOP, "experiments"))
from drill import people  # noqa: E402

STEPS, DEADLINE_S, LIMIT_S = 30, 6, 150
STANDS_S = 1.5 * DEADLINE_S  # a role waits for START for 1.25 of it
FLAGS = ["--model", "tiny", "--data", "demo", "--topology", "ps:sync", "--workers", "2", "--servers", "2", "--seq", "64", "--batch", "2", "--threads", "1", "--seed", "5", "--steps", str(STEPS), "--checkpoint-every", "10", "--delay", "0:constant:50",
         "--set", "eval_batches=none", "--set", "parameter_server.threads=4", "--set", f"parameter_server.deadline_ms={1000 * DEADLINE_S}", "--set", "parameter_server.heartbeat_ms=200"]
AT_ONCE = 4


class Everybody(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="everybody-")
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)

    def lines(self, out, name):
        try:
            with open(os.path.join(out, name), encoding="utf-8") as f:
                return [json.loads(line) for line in f if line.endswith("\n")]
        except OSError:
            return []

    def reached(self, out, mark, moment, since):
        kind, value = moment
        if kind == "seconds":
            return time.monotonic() - since >= value
        if kind == "roles":
            return sum(role is not None for role in people.roles(mark)) > value
        return len(self.lines(out, "metrics.jsonl")) >= value

    def stop_all(self, mark):
        stopped = set()
        while new := set(people.marked(mark)) - stopped:  # a launcher that is stopped starts nobody
            for pid in sorted(new):
                people.send(pid, signal.SIGSTOP)
            stopped |= new
        return stopped

    def one(self, moment, more):
        out = os.path.join(self.directory, f"{moment[0]}-{moment[1]}-{len(more)}")
        mark = f"everybody-{os.getpid()}-{os.path.basename(out)}"
        since = time.monotonic()
        with subprocess.Popen([PROGRAM, "train", *FLAGS, *more, "--out", out], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True, env={**os.environ, people.MARK: mark}) as p:
            try:
                while p.poll() is None and not self.reached(out, mark, moment, since) and time.monotonic() - since < LIMIT_S:
                    time.sleep(0.005)
                stopped = self.stop_all(mark)
                time.sleep(STANDS_S)
                for pid in stopped:
                    people.send(pid, signal.SIGCONT)
                said = p.communicate(timeout=LIMIT_S)[1]
            finally:
                people.end_all(mark)
        return p.returncode, said, self.lines(out, "lives.jsonl"), len(self.lines(out, "metrics.jsonl"))

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
