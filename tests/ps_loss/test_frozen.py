#!/usr/bin/env python3
"""A process that is frozen (SIGSTOP) is found by its silence and named; without --restart the job ends by the deadline, with
it the frozen one counts as dead: it is killed, another takes its place, and the weights are those of an undisturbed run."""
import json
import os
import re
import signal
import socket
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs, free_port

COMMON = (
    "train --model demo --data demo --dtype bf16 --steps 16 --seq 16 --batch 1 --threads 1 --topology ps:sync --workers 2 "
    "--servers 2 --seed 1 --delay 0:constant:150 --set eval_batches=1 --set parameter_server.deadline_ms=8000 "
    "--set parameter_server.heartbeat_ms=100 --checkpoint-every 4 --quiet"
).split()


class Frozen(Runs):
    def frozen(self, victim, *more):
        """A run of which a role is frozen behind some steps; and the role's process."""
        p = self.start(*COMMON, *more, "--out", victim)
        p.behind(6)
        return p, *p.stop(victim)

    def test_without_restart_it_is_named_and_the_job_ends(self):
        # A worker: test_who_wakes_up_finds_the_job_over.
        p, pid = self.frozen("server 0")
        words = rf"server 0 was lost at step \d+: silent for \d+\.\d s \(process {pid} on host "
        self.assertRegex(p.ends(1), words + re.escape(socket.gethostname()[:39]))
        self.assertFalse(os.path.exists(f"/proc/{pid}"), "the frozen process is still there")

    def test_with_restart_another_takes_its_place(self):
        self.run_it(*COMMON, "--out", "plain")
        for victim in ("worker 1", "server 0"):
            p, pid = self.frozen(victim, "--restart", "2")
            p.ends()
            self.assertEqual(self.hash(victim), self.hash("plain"), victim)
            self.assertFalse(os.path.exists(f"/proc/{pid}"), f"the frozen {victim} is still there")

    def jobs_roles(self, *restarts):
        """Roles of a job that nobody watches over: the words of one that joins, the roles, and the two workers."""
        self.run_it(*COMMON, *restarts, "--out", "config", "--steps", "1")
        self.write(json.dumps(self.json("config", "config.json") | {"steps": 40}), "config.json")
        address, words = f"tcp://127.0.0.1:{free_port()}", ["-c", "config.json", "--out", "run"]
        join = [*words, "--scheduler", address, "--rank"]
        roles = [self.start("scheduler", "--bind", address, *words), *(self.start("server", *join, r) for r in "01")]
        return join, roles, [self.start("worker", *join, r) for r in "01"]

    def test_who_wakes_up_finds_the_job_over(self):
        _, roles, workers = self.jobs_roles()
        workers[0].behind(3)
        workers[1].send_signal(signal.SIGSTOP)
        for one in roles + workers[:1]:
            self.assertRegex(one.ends(1), rf"worker 1 was lost at step \d+: silent for .* \(process {workers[1].pid} on host")
        workers[1].send_signal(signal.SIGCONT)
        self.assertRegex(workers[1].ends(1), r"the scheduler was lost: the scheduler at 127.0.0.1:\d+ has .* this process had stood still for")

    def test_who_wakes_up_finds_its_place_taken(self):
        join, roles, workers = self.jobs_roles("--restart", "3")
        workers[0].behind(6)
        workers[1].send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        second = self.start("worker", *join, "1")
        workers[0].behind(12)
        workers[1].send_signal(signal.SIGCONT)
        self.assertIn("worker 1 has been started again", workers[1].ends(1))
        for one in [*roles, workers[0], second]:
            one.ends()


if __name__ == "__main__":
    unittest.main()
