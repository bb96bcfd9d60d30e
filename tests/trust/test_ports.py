#!/usr/bin/env python3
"""A stranger at the ports of whole jobs: he takes the port of a scheduler that has died, or holds all connections that a
server can have. The job goes on, and its checkpoints are written."""
import ctypes
import os
import signal
import socket
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs, people

HOLDERS = 400  # more than a server takes of strangers
JOB = ["--model", "tiny", "--data", "demo", "--seq", "16", "--batch", "1", "--threads", "1", "--topology", "ps:sync", "--workers", "2", "--servers",
       "1", "--steps", "1000000", "--set", "eval_batches=none", "--no-weights", "--checkpoint-every", "5"]
GREETING = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x00"


def listening(pid):
    """The ports that the process listens on."""
    mine = {os.readlink(f"/proc/{pid}/fd/{fd}")[8:-1] for fd in os.listdir(f"/proc/{pid}/fd")}
    lines = (line.split() for line in people.read("/proc/net/tcp").decode().splitlines()[1:])
    return [int(words[1].rpartition(":")[2], 16) for words in lines if words[3] == "0A" and words[9] in mine]


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

    # ---------------------------------------------------------------- a port that has become free
    def squat(self, port, taken, seconds, answer):
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            while not self.ending.is_set():
                try:
                    s.bind(("127.0.0.1", port))
                    s.listen()
                    break
                except OSError:
                    continue
            taken.set()
            s.settimeout(0.1)
            end = time.monotonic() + seconds
            while time.monotonic() < end and not self.ending.is_set():
                try:
                    with s.accept()[0] as peer:
                        peer.sendall(answer)
                        peer.settimeout(0.1)
                        peer.recv(1000)
                except OSError:
                    continue

    def check_squatted(self, answer):
        self.train("--restart", "3")
        pid, = self.job.find("scheduler")
        taken = threading.Event()
        thief = threading.Thread(target=self.squat, args=(listening(pid)[0], taken, 3, answer), daemon=True)
        thief.start()
        os.kill(pid, signal.SIGKILL)
        self.job.until(lambda: taken.is_set() or not thief.is_alive(), "the port is taken")
        before = self.checkpoint()
        self.job.until(lambda: self.checkpoint() > before + 10, "later checkpoints")
        self.assertFalse(thief.is_alive())
        self.assertIn("was killed by signal 9", self.said())
        self.assertNotIn("error", self.said())

    def test_the_port_of_a_dead_scheduler(self):
        for name, answer in (("nothing", b""), ("another mode", GREETING + b"NULL".ljust(20, b"\0") + b"\x01" + bytes(31))):
            with self.subTest(name):
                self.check_squatted(answer)
                self.doCleanups()
                self.setUp()

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

    def hold_all(self, role):
        """Until the process has as many descriptors as it may."""
        pid, = self.job.find(role)
        port = listening(pid)[0]
        with open(f"/proc/{pid}/limits", encoding="ascii") as f:
            most = next(int(line.split()[3]) for line in f if line.startswith("Max open files"))
        for _ in range(HOLDERS):
            threading.Thread(target=self.hold, args=(port,), daemon=True).start()
        self.job.until(lambda: len(os.listdir(f"/proc/{pid}/fd")) >= most, "all are taken")

    @unittest.skipUnless(own_table_is_allowed(), "no thread may have its own descriptors here")
    def test_checkpoints_while_all_connections_are_held(self):
        self.train()
        self.hold_all("server 0")
        before = self.checkpoint()
        self.job.until(lambda: self.checkpoint() >= before + 25, "later checkpoints")
        self.assertNotIn("given up", self.said())

    @unittest.skipUnless(own_table_is_allowed(), "no thread may have its own descriptors here")
    def test_a_death_while_all_connections_are_held(self):
        # Members that log in again have to get through: they have the login's deadline.
        self.train("--restart", "3", "--set", "parameter_server.deadline_ms=60000")
        self.hold_all("scheduler")
        self.job.kill_now("worker 1")
        self.job.until(lambda: "epoch 2 " in self.said(), "a second epoch")
        self.assertNotIn("Too many open files", self.said())
        self.ending.set()
        before = self.checkpoint()
        self.job.until(lambda: self.checkpoint() > before + 10, "later checkpoints")
        self.assertIn("epoch 2 goes on behind step", self.said())


if __name__ == "__main__":
    unittest.main()
