#!/usr/bin/env python3
"""A stranger at the ports of whole jobs holds all connections that a server or the scheduler can have. The job goes on, its checkpoints
are written, and its launcher starts children."""
import ctypes
import os
import socket
import sys
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs, processes

HOLDERS = 400  # more than a server takes of strangers
JOB = ["--model", "tiny", "--data", "demo", "--seq", "16", "--batch", "1", "--threads", "1", "--topology", "ps:sync", "--workers", "2", "--servers",
       "1", "--steps", "1000000", "--set", "eval_batches=none", "--no-weights", "--checkpoint-every", "5"]
GREETING = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x00"


def own_table_is_allowed():
    """Whether a thread may have a table of descriptors of its own: containers may forbid it."""
    allowed = []
    thread = threading.Thread(target=lambda: allowed.append(ctypes.CDLL(None).unshare(0x400) == 0))
    thread.start()
    thread.join()
    return allowed[0]


class Ports(Runs):
    def setUp(self):
        super().setUp()
        self.ending = threading.Event()
        self.addCleanup(self.ending.set)

    def said(self):
        return "".join(line for line in self.job.said().splitlines(True) if line.startswith("starring:"))

    def train(self, *more):
        self.job = self.start("train", *JOB, *more, "--out", "run")
        self.job.until(lambda: self.checkpoint() > 0, "a checkpoint")

    def checkpoint(self):
        """The newest that is whole."""
        try:
            names = os.listdir(self.at("run", "checkpoints"))
        except OSError:
            return 0
        return max((int(name[5:]) for name in names if name.startswith("step-") and name[5:].isdigit()), default=0)

    # ---------------------------------------------------------------- all connections
    def hold(self, port):
        while not self.ending.is_set():
            try:
                with socket.create_connection(("127.0.0.1", port), 1) as s:
                    s.sendall(GREETING[:10])
                    while s.recv(100):
                        pass
            except OSError:
                self.ending.wait(0.01)

    def hold_all(self, pid):
        """Until a table of the process has as many descriptors as it may."""
        port = min(processes.listening([pid]))
        with open(f"/proc/{pid}/limits", encoding="ascii") as f:
            most = next(int(line.split()[3]) for line in f if line.startswith("Max open files"))
        for _ in range(HOLDERS):
            threading.Thread(target=self.hold, args=(port,), daemon=True).start()
        self.job.until(lambda: max(map(len, processes.descriptors(pid))) >= most, "all are taken")

    @unittest.skipUnless(own_table_is_allowed(), "no thread may have its own descriptors here")
    def test_checkpoints_while_all_connections_are_held(self):
        self.train()
        self.hold_all(*self.job.find("server 0"))
        before = self.checkpoint()
        self.job.until(lambda: self.checkpoint() >= before + 25, "later checkpoints")
        self.assertNotIn("given up", self.said())

    @unittest.skipUnless(own_table_is_allowed(), "no thread may have its own descriptors here")
    def test_a_death_while_all_connections_are_held(self):
        # Members that come anew have to get through: they have the start's deadline. The launcher has the scheduler in it.
        self.train("--restart", "3", "--set", "parameter_server.deadline_ms=60000")
        self.hold_all(self.job.pid)
        self.job.kill_now("worker 1")
        self.job.until(lambda: "epoch 2 " in self.said(), "a second epoch")
        self.assertNotIn("Too many open files", self.said())
        self.ending.set()
        before = self.checkpoint()
        self.job.until(lambda: self.checkpoint() > before + 10, "later checkpoints")
        self.assertIn("epoch 2 resumes after step", self.said())


if __name__ == "__main__":
    unittest.main()
