#!/usr/bin/env python3
"""A stranger at the ports of whole jobs: he takes the port of a scheduler that has died, or holds all connections that a
server can have. The job goes on, and its checkpoints are written."""
import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
PROGRAM = os.environ.get("STARRING", os.path.join(TOP, "build", "starring"))
sys.path.insert(0, os.path.join(TOP, "experiments"))
from drill import people  # noqa: E402

LIMIT_S = 150
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


class Ports(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = os.path.join(folder.name, "run")
        self.log = open(os.path.join(folder.name, "log"), "w+", encoding="utf-8")
        self.addCleanup(self.log.close)
        self.mark = f"ports-{os.getpid()}-{self._testMethodName}"
        self.addCleanup(people.end_all, self.mark)
        self.ending = threading.Event()
        self.addCleanup(self.ending.set)

    def said(self):
        with open(self.log.name, encoding="utf-8") as f:
            return "".join(line for line in f if line.startswith("starring:"))

    def start(self, *more):
        env = {k: v for k, v in os.environ.items() if k != "STARRING_JOB_SECRET"}
        self.job = subprocess.Popen([PROGRAM, "train", *JOB, *more, "--out", self.out], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                    env=env | {people.MARK: self.mark})
        self.addCleanup(self.job.wait)
        self.addCleanup(self.job.kill)
        self.wait_for(lambda: self.checkpoint() > 0)

    def role(self, name):
        return next(pid for pid, argv in people.marked(self.mark).items() if people.role_of(argv, people.environment_of(pid)) == name)

    def checkpoint(self):
        """The newest that is whole."""
        try:
            names = os.listdir(os.path.join(self.out, "checkpoints"))
        except OSError:
            return 0
        return max((int(name[5:]) for name in names if name.startswith("step-") and name[5:].isdigit()), default=0)

    def wait_for(self, true):
        end = time.monotonic() + LIMIT_S
        while not true():
            self.assertIsNone(self.job.poll(), self.said())
            self.assertLess(time.monotonic(), end, self.said())
            time.sleep(0.02)

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
        self.start("--restart", "3")
        pid = self.role("scheduler")
        taken = threading.Event()
        thief = threading.Thread(target=self.squat, args=(listening(pid)[0], taken, 3, answer), daemon=True)
        thief.start()
        os.kill(pid, signal.SIGKILL)
        self.wait_for(lambda: taken.is_set() or not thief.is_alive())
        before = self.checkpoint()
        self.wait_for(lambda: self.checkpoint() > before + 10)
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
        pid = self.role(role)
        port = listening(pid)[0]
        with open(f"/proc/{pid}/limits", encoding="ascii") as f:
            most = next(int(line.split()[3]) for line in f if line.startswith("Max open files"))
        for _ in range(HOLDERS):
            threading.Thread(target=self.hold, args=(port,), daemon=True).start()
        self.wait_for(lambda: len(os.listdir(f"/proc/{pid}/fd")) >= most)

    @unittest.skipUnless(own_table_is_allowed(), "no thread may have its own descriptors here")
    def test_checkpoints_while_all_connections_are_held(self):
        self.start()
        self.hold_all("server 0")
        before = self.checkpoint()
        self.wait_for(lambda: self.checkpoint() >= before + 25)
        self.assertNotIn("given up", self.said())

    @unittest.skipUnless(own_table_is_allowed(), "no thread may have its own descriptors here")
    def test_a_death_while_all_connections_are_held(self):
        # Members that log in again have to get through: they have the login's deadline.
        self.start("--restart", "3", "--set", "parameter_server.deadline_ms=60000")
        self.hold_all("scheduler")
        os.kill(self.role("worker 1"), signal.SIGKILL)
        self.wait_for(lambda: "epoch 2 " in self.said())
        self.assertNotIn("Too many open files", self.said())
        self.ending.set()
        before = self.checkpoint()
        self.wait_for(lambda: self.checkpoint() > before + 10)
        self.assertIn("epoch 2 goes on behind step", self.said())


if __name__ == "__main__":
    unittest.main()
