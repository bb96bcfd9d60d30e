"""A process that is frozen (SIGSTOP) is found by its silence and named; without --restart the job ends by the deadline, with
it the frozen one counts as dead: it is killed, another takes its place, and the weights are those of an undisturbed run."""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import time
import unittest

PROGRAM = os.environ.get("STARRING", str(pathlib.Path(__file__).resolve().parents[2] / "build" / "starring"))
COMMON = (
    "train --model demo --data demo --dtype bf16 --steps 16 --seq 16 --batch 1 --threads 1 --topology ps:sync --workers 2 "
    "--servers 2 --seed 1 --delay 0:constant:150 --set eval_batches=1 --set parameter_server.deadline_ms=8000 "
    "--set parameter_server.heartbeat_ms=100 --checkpoint-every 4 --quiet"
).split()


def role_of(pid):
    """("worker", 1) of a process of the program, or None."""
    try:
        words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return None
    if len(words) < 2 or words[1] not in ("worker", "server", "scheduler"):
        return None
    return words[1], int(words[words.index("--rank") + 1]) if "--rank" in words else 0


def children(pid):
    """Processes of the program below pid, by role and rank."""
    found = {}
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            role = role_of(int(child))
            if role:
                found[role] = int(child)
    return found


class Frozen(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.dir = pathlib.Path(self.scratch.name)

    def tearDown(self):
        self.scratch.cleanup()

    def run_and_freeze(self, victim, more):
        """Freezes the role behind some steps. Status, what was said, the pid, seconds from then on, its run directory."""
        out = self.dir / ("-".join(map(str, victim)) if victim else "plain")
        command = [PROGRAM, *COMMON, *more, "--out", str(out)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as job:
            pid, since = 0, time.monotonic()
            try:
                while victim and not pid and time.monotonic() - since < 60 and job.poll() is None:
                    time.sleep(0.02)
                    metrics = out / "metrics.jsonl"
                    if metrics.exists() and metrics.read_text().count("\n") >= 6:
                        pid = children(job.pid).get(victim, 0)
                        if pid:
                            os.kill(pid, signal.SIGSTOP)
                since = time.monotonic()
                said = job.communicate(timeout=90)[1]
            except BaseException:
                job.kill()
                raise
            return job.returncode, said, pid, time.monotonic() - since, out

    @staticmethod
    def weights_hash(out):
        return json.loads((out / "summary.json").read_text())["weights_hash"]

    def test_without_restart_it_is_named_and_the_job_ends(self):
        for victim in (("server", 0),):  # a worker: test_who_wakes_up_finds_the_job_over
            status, said, pid, seconds, _ = self.run_and_freeze(victim, [])
            self.assertTrue(pid, said)
            self.assertEqual(status, 1, said)
            words = rf"{victim[0]} {victim[1]} was lost at step \d+: silent for \d+\.\d s \(process {pid} on host "
            self.assertRegex(said, words + re.escape(socket.gethostname()[:39]))
            self.assertLess(seconds, 8 + 60)
            self.assertFalse(os.path.exists(f"/proc/{pid}"), "the frozen process is still there")

    def test_with_restart_another_takes_its_place(self):
        status, said, _, _, plain = self.run_and_freeze(None, [])
        self.assertEqual(status, 0, said)
        for victim in (("worker", 1), ("server", 0), ("scheduler", 0)):
            status, said, pid, _, out = self.run_and_freeze(victim, ["--restart", "2"])
            self.assertTrue(pid, said)
            self.assertEqual(status, 0, f"{victim}: {said}")
            self.assertEqual(self.weights_hash(out), self.weights_hash(plain), victim)
            self.assertFalse(os.path.exists(f"/proc/{pid}"), f"the frozen {victim} is still there")

    def start(self, *words):
        log = open(self.dir / f"{words[0]}-{len(self.logs)}.txt", "w+")
        self.logs.append(log)
        process = subprocess.Popen([PROGRAM, *words], stderr=log, stdout=subprocess.DEVNULL)
        self.addCleanup(lambda: (process.kill(), process.wait(), log.close()))
        return process, log

    def by_hand(self, restarts):
        """Roles of a job that nobody watches over: the scheduler's address, and the two workers."""
        config = self.dir / "config.json"
        command = [PROGRAM, *COMMON, *restarts, "--out", str(self.dir / "config"), "--steps", "1"]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        settings = json.loads((self.dir / "config" / "config.json").read_text())
        settings["steps"] = 40
        config.write_text(json.dumps(settings))
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            address = f"tcp://127.0.0.1:{s.getsockname()[1]}"
        out = ["-c", str(config), "--out", str(self.dir / "run")]
        roles = [self.start("scheduler", "--bind", address, "-c", str(config), "--out", str(self.dir / "run"))]
        rest = ["--scheduler", address, *out, "--rank"]
        roles += [self.start("server", *rest, str(r)) for r in range(2)]
        return rest, roles, [self.start("worker", *rest, str(r)) for r in range(2)]

    def wait_for_steps(self, steps, processes):
        metrics, since = self.dir / "run" / "metrics.jsonl", time.monotonic()
        while not metrics.exists() or metrics.read_text().count("\n") < steps:
            self.assertLess(time.monotonic() - since, 60)
            for process, log in processes:
                self.assertIsNone(process.poll(), pathlib.Path(log.name).read_text())
            time.sleep(0.02)

    def ends(self, process_and_log, limit):
        process, log = process_and_log
        status = process.wait(timeout=limit)
        return status, pathlib.Path(log.name).read_text()

    def test_who_wakes_up_finds_the_job_over(self):
        self.logs = []
        _, roles, workers = self.by_hand([])
        self.wait_for_steps(3, roles + workers)
        workers[1][0].send_signal(signal.SIGSTOP)
        for one in roles + workers[:1]:
            status, said = self.ends(one, 60)
            self.assertEqual(status, 1, said)
            self.assertRegex(said, rf"worker 1 was lost at step \d+: silent for .* \(process {workers[1][0].pid} on host")
        workers[1][0].send_signal(signal.SIGCONT)
        status, said = self.ends(workers[1], 60)
        self.assertEqual(status, 1, said)
        self.assertRegex(said, r"the scheduler was lost at step \d+: silent for .* this process had stood still for")

    def test_who_wakes_up_finds_its_place_taken(self):
        self.logs = []
        rest, roles, workers = self.by_hand(["--restart", "3"])
        self.wait_for_steps(6, roles + workers)
        workers[1][0].send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        second = self.start("worker", *rest, "1")
        self.wait_for_steps(12, roles + workers[:1] + [second])
        workers[1][0].send_signal(signal.SIGCONT)
        status, said = self.ends(workers[1], 60)
        self.assertEqual(status, 1, said)
        self.assertIn("worker 1 has been replaced while it was silent", said)
        for one in roles + [workers[0], second]:
            status, said = self.ends(one, 60)
            self.assertEqual(status, 0, said)


if __name__ == "__main__":
    unittest.main()
