#!/usr/bin/env python3
"""Jobs under attack by another user of the host: every bit stays, no job ends, nothing is told, no memory grows.

The attacker is attacker.py, another user where these tests may become one (root), else this one: what is read of files
is then left out. A job with --insecure shows that it can do harm once it is admitted.
"""
import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs, processes

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS = 40
CONFIG = {
    "model": "tiny", "data": "demo", "steps": STEPS, "train_micro_batch_size_per_gpu": 2, "seed": 5, "eval_batches": "none", "quiet": True,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.003}}, "bf16": {"enabled": True},
    "trouble": {"delay": ["0:constant:50"]},  # there is time to attack
}
FLAGS = ["--seq", "64", "--threads", "1", "--no-weights"]
STAR = ["--topology", "ps:sync", "--workers", "2", "--servers", "2"]
RING = ["--topology", "zero:2", "--workers", "2", "--launch", "processes"]
GROWTH_BYTES = 96 << 20  # of a process, beside what it has without an attacker; one flood alone is 256 MiB
LIMIT_S = 120


def nobody():
    """The user that the attacker becomes, or None where it can become no other."""
    try:
        return pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None
    except KeyError:
        return None


def peak_of(pid):
    for line in processes.read(f"/proc/{pid}/status").decode(errors="replace").splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    return 0


class Attacker:
    def __init__(self, directory, *more):
        self.path = os.path.join(directory, "attacker.py")
        shutil.copy(os.path.join(HERE, "attacker.py"), self.path)
        os.chmod(directory, 0o755)
        os.chmod(self.path, 0o755)
        user = nobody()
        who = {} if user is None else {"user": user, "group": user, "extra_groups": []}
        self.process = subprocess.Popen([shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable, "-I", self.path,
                                         str(os.geteuid()), str(LIMIT_S), *more], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, cwd="/", **who)
        self.process.stdout.readline()

    def targets(self, ports):
        self.process.stdin.write(" ".join(map(str, sorted(ports))) + "\n")
        self.process.stdin.flush()

    def end(self):
        out, _ = self.process.communicate(timeout=LIMIT_S)
        return json.loads(out)


class Watch(threading.Thread):
    """Tells the attacker the ports of the processes of some runs, and notes their memory."""

    def __init__(self, runs, attacker):
        super().__init__(daemon=True)
        self.runs, self.attacker, self.peak, self.ending = runs, attacker, {}, threading.Event()
        self.ports = set()
        self.start()

    def run(self):
        while not self.ending.is_set():
            pids = {pid: argv for run in list(self.runs) for pid, argv in run.left().items()}
            for pid, argv in pids.items():
                role = processes.role_of(argv, processes.environment_of(pid)) or "launcher"
                self.peak[role] = max(self.peak.get(role, 0), peak_of(pid))
            ports = processes.listening(pids)
            if ports != self.ports and self.attacker:
                self.ports = ports
                self.attacker.targets(ports)
            self.ending.wait(0.02)

    def stop(self):
        self.ending.set()
        self.join()
        return self.peak


class Relay:
    """Between a member and its scheduler: what the member says is kept, as somebody on the wire would."""

    def __init__(self, port):
        self.port, self.said = port, []
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self.server.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near = self.server.accept()[0]
                far = socket.create_connection(("127.0.0.1", self.port))
            except OSError:
                return
            kept = bytearray()
            self.said.append(kept)
            threading.Thread(target=self.pass_on, args=(near, far, kept), daemon=True).start()
            threading.Thread(target=self.pass_on, args=(far, near, None), daemon=True).start()

    @staticmethod
    def pass_on(source, sink, kept):
        try:
            while data := source.recv(65536):
                if kept is not None:
                    kept += data
                sink.sendall(data)
        except OSError:
            pass
        sink.close()


class Hostile(Runs):
    def setUp(self):
        # Not below a directory that only its owner enters, as another user is to start the attacker; nor one that the attacker looks into.
        self.folder = tempfile.mkdtemp(prefix="hostile-", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.write(json.dumps(CONFIG), "job.json")

    def train(self, out, *flags, attacker=None):
        """(exit status, what it said, its summary, {role: most bytes})"""
        p = self.start("train", "-c", "job.json", "--out", out, *FLAGS, *flags)
        watch = Watch([p], attacker)
        try:
            said = p.ends(status=None, limit_s=LIMIT_S)
        finally:
            peak = watch.stop()
        return p.returncode, p.printed() + said, self.summary(out) if os.path.exists(self.at(out, "summary.json")) else {}, peak

    def attacked(self, *flags):
        """Trains alone, then under attack; returns what the attacker counted."""
        status, said, alone, before = self.train("alone", *flags, "--force")
        self.assertEqual(status, 0, said)
        attacker = Attacker(self.folder)
        try:
            status, said, summary, peak = self.train("attacked", *flags, "--force", attacker=attacker)
        finally:
            seen = attacker.end()
        self.assertEqual(status, 0, f"{said}\n{seen}")
        self.assertEqual((summary["weights_hash"], summary["steps"]), (alone["weights_hash"], STEPS), seen)
        for role, bytes_ in peak.items():
            self.assertLess(bytes_, before.get(role, 0) + GROWTH_BYTES, f"{role}: {seen}")
        counts = seen["counts"]
        for secret in ("secrets on command lines", *(("secrets in environments", "files read") if nobody() is not None else ())):
            self.assertEqual(counts.get(secret, 0), 0, seen)
        return seen

    def check_nothing_told(self, seen):
        counts = seen["counts"]
        self.assertGreater(counts["connected"], 50, seen)
        self.assertEqual(counts.get("answers heard", 0) + counts.get("told at a taken port", 0), 0, seen)
        self.assertEqual([name for name in counts if name.startswith("admitted as ")], [], seen)

    def test_star(self):
        for medium in ("shm", "tcp"):
            with self.subTest(medium):
                seen = self.attacked(*STAR, "--medium", medium)
                self.assertGreaterEqual(seen["counts"]["ports"], 3, seen)  # the scheduler's, and each server's
                self.check_nothing_told(seen)

    # ---------------------------------------------------------------- by hand, with somebody on the wire
    def role(self, *words):
        return self.start(words[0], "-c", "job.json", *FLAGS[:2], *STAR, "--out", "by-hand", *words[1:])

    def test_replays(self):
        """Others repeat two members' messages to the scheduler: while the job runs, and to the next one of
        the same key at the same port."""
        status, said, alone, _ = self.train("alone", *STAR)
        self.assertEqual(status, 0, said)
        recorded, bind = [], "tcp://127.0.0.1:*"
        for number in range(2):
            scheduler = self.role("scheduler", "--bind", bind)
            bind = scheduler.address()
            self.assertRegex(bind, r"^tcp://127.0.0.1:\d+$")
            relays = [Relay(int(bind.rpartition(":")[2])) for _ in range(2)]
            attacker = Attacker(self.folder, *(word for path in recorded for word in ("--replay", path)))
            roles = [scheduler]
            watch = Watch(roles, attacker)
            roles += [self.role("server", "--scheduler", relays[0].address, "--rank", "0"), self.role("server", "--scheduler", bind, "--rank", "1"),
                     self.role("worker", "--scheduler", relays[1].address, "--rank", "0", "--no-weights", "--force"),
                     self.role("worker", "--scheduler", bind, "--rank", "1", "--no-weights")]
            said = [p.ends(status=None, limit_s=LIMIT_S) for p in roles]
            watch.stop()
            seen = attacker.end()
            self.assertEqual([p.returncode for p in roles], [0] * 5, f"{said}\n{seen}")
            self.assertEqual(self.hash("by-hand"), alone["weights_hash"], seen)
            self.check_nothing_told(seen)
            self.assertEqual(seen["counts"].get("recordings replayed", 0) > 0, number == 1, seen)
            for relay in relays:  # a handshake at least; one that took too long was begun again
                self.assertGreater(max(map(len, relay.said)), 400)
            for i, data in enumerate(bytes(kept) for relay in relays for kept in relay.said):
                recorded.append(self.at(f"recording-{i}"))
                with open(recorded[-1], "wb") as f:
                    f.write(data)
                os.chmod(recorded[-1], 0o644)
                self.assertNotIn(b"worker", data.replace(b"worker 0", b"", 1))  # nothing is said in the open

    # ---------------------------------------------------------------- others
    def test_ring(self):
        self.attacked(*RING)

    def test_a_member_does_harm(self):
        """Without this the tests above might pass because the attacker cannot do anything at all."""
        attacker = Attacker(self.folder)
        try:
            self.train("open", *STAR, "--insecure", attacker=attacker)
        finally:
            seen = attacker.end()
        self.assertGreater(seen["counts"].get("admitted as NULL", 0), 0, seen)
        self.assertGreater(seen["counts"].get("messages said", 0), 0, seen)


if __name__ == "__main__":
    unittest.main()
