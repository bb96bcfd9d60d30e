#!/usr/bin/env python3
"""SIGSTOP of every role of a star, at its login, in a step, and about its end: the job ends by its deadlines, says whom it
waited for, and leaves nothing - or it had ended well already."""
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

STEPS, DEADLINE_S = 30, 12  # nobody is silent for half of it who only waits for a core
LIMIT_S = 100  # of a run: far more than its deadlines, on a machine that does much else
CONFIG = {
    "model": "tiny", "data": "demo", "steps": STEPS, "train_micro_batch_size_per_gpu": 2, "seed": 5, "eval_batches": "none", "quiet": True,
    "bf16": {"enabled": True}, "parameter_server": {"deadline_ms": 1000 * DEADLINE_S, "heartbeat_ms": 200},
}
FLAGS = ["--topology", "ps:sync", "--workers", "2", "--servers", "2", "--seq", "64", "--threads", "1",
         "--delay", "0:constant:100"]  # there is time to find somebody
ROLES = ("scheduler", "server 0", "server 1", "worker 0", "worker 1")
AT_ONCE = 5


class Stopped(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="stopped-")
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.config = os.path.join(self.directory, "job.json")
        with open(self.config, "w", encoding="utf-8") as f:
            json.dump(CONFIG, f)

    def steps(self, out):
        try:
            with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
                return sum(1 for _ in f)
        except OSError:
            return 0

    def one(self, role, at_step):
        """Stops the role once so many steps are done (0: as soon as it is there). (pid or None, status, words, what is left)"""
        name = f"{role.replace(' ', '-')}-{at_step}"
        out, mark = os.path.join(self.directory, name), f"stopped-{os.getpid()}-{name}"
        with subprocess.Popen([PROGRAM, "train", "-c", self.config, "--out", out, *FLAGS], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, env={**os.environ, people.MARK: mark}) as p:
            pid = None
            while p.poll() is None:
                pid = people.roles(mark).get(role) if self.steps(out) >= at_step else None
                if pid and people.send(pid, signal.SIGSTOP):
                    break
                pid = None
                time.sleep(0.001)
            try:
                said = p.communicate(timeout=LIMIT_S)[0]
            except subprocess.TimeoutExpired:
                people.end_all(mark)
                return pid, None, p.communicate()[0], "everything: it hung"
            left = people.marked(mark)
            people.end_all(mark)
        return pid, p.returncode, said, ", ".join(" ".join(words[:2]) for words in left.values())

    def all_roles(self, at_step):
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            return zip(ROLES, list(pool.map(lambda role: self.one(role, at_step), ROLES)))

    def check(self, at_step, always):
        for role, (pid, status, said, left) in self.all_roles(at_step):
            with self.subTest(role):
                self.assertEqual(left, "", said)
                if always:
                    self.assertIsNotNone(pid, said)
                self.assertIn(status, (1,) if always else (0, 1), said)
                if status:
                    self.assertIn(role, said)

    def test_login(self):
        self.check(0, always=True)

    def test_step(self):
        self.check(STEPS // 3, always=False)

    def test_end(self):
        self.check(STEPS, always=False)


if __name__ == "__main__":
    unittest.main()
