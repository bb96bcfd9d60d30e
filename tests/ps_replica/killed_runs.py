"""Small runs with replicas of servers, of which processes are killed; and what must hold behind that."""
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.environ.get("STARRING", os.path.join(TOP, "build", "starring"))
LIMIT_S = 120
STEPS = 120
SMALL = ["--model", "tiny", "--seq", "16", "--batch", "2", "--threads", "1", "--steps", str(STEPS), "--data", "text.txt",
         "--set", "eval_batches=0", "--no-weights", "--quiet"]
REPLICATE = ["--replicate", "--restart", "2", "--delay", "0:constant:25"]  # there is time to kill somebody


def processes():
    """{pid: (parent, words)} of all that can be read."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
                parent = int(f.read().rsplit(")", 1)[1].split()[1])
            with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as f:
                found[int(pid)] = (parent, f.read().split("\0"))
        except (OSError, IndexError):
            pass
    return found


class KilledRuns(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        with open(cls.at("text.txt"), "w", encoding="utf-8") as f:
            f.write("".join(f"{n} bottles of beer on the wall, {n * n % 97} of them green\n" for n in range(1200)))

    @classmethod
    def at(cls, *path):
        return os.path.join(cls.folder, *path)

    def star(self, servers, dtype):
        return ["--topology", "ps:sync", "--workers", "2", "--servers", str(servers), "--dtype", dtype]

    def undisturbed(self, servers, dtype):
        out = f"undisturbed-{dtype}"
        if not os.path.exists(self.at(out)):
            subprocess.run([PROGRAM, "train", *SMALL, *self.star(servers, dtype), "--out", out], cwd=self.folder,
                           capture_output=True, timeout=LIMIT_S, check=True)
        return out

    def curve(self, out):
        with open(self.at(out, "metrics.jsonl"), encoding="utf-8") as f:
            return [json.loads(line) for line in f]

    def steps(self, out):
        try:
            return len(self.curve(out))
        except (OSError, ValueError):
            return 0

    def lives(self, out):
        with open(self.at(out, "lives.jsonl"), encoding="utf-8") as f:
            return [json.loads(line) for line in f]

    def summary(self, out):
        with open(self.at(out, "summary.json"), encoding="utf-8") as f:
            return json.load(f)

    def find(self, launcher, roles):
        """The processes of (role, rank)s; rank None: of a role that has none."""
        pids = []
        for pid, (parent, words) in processes().items():
            if parent == launcher and len(words) > 1:
                rank = int(words[words.index("--rank") + 1]) if "--rank" in words else None
                if (words[1], rank) in roles:
                    pids.append(pid)
        self.assertEqual(len(pids), len(roles))
        return pids

    def kill(self, launcher, roles):
        """At one moment: they stand still before the first one dies."""
        pids = self.find(launcher, roles)
        for what in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                os.kill(pid, what)

    @contextlib.contextmanager
    def begun(self, out, *more, servers=2, dtype="bf16", at=STEPS // 3, restore_signals=True):
        """A run that has made `at` steps."""
        shutil.rmtree(self.at(out), ignore_errors=True)
        with subprocess.Popen([PROGRAM, "train", *SMALL, *self.star(servers, dtype), *REPLICATE, "--out", out, *more],
                              cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              restore_signals=restore_signals) as p:
            try:
                self.await_true(lambda: self.steps(out) >= at or p.poll() is not None)
                self.assertIsNone(p.poll())
                yield p
            finally:
                if p.poll() is None:
                    p.kill()  # its processes die with it, those that stand still too

    def await_true(self, ask):
        end = time.monotonic() + LIMIT_S
        while not ask():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.002)

    def is_ours(self, pid, words):
        """A process of a run of this test: others train under the same names elsewhere."""
        try:
            return len(words) > 1 and words[0] == PROGRAM and os.readlink(f"/proc/{pid}/cwd") == os.path.realpath(self.folder)
        except OSError:
            return False

    def goes_on(self, p, out):
        """It ends well, in a second life, and leaves nothing behind: that life's line, and what was printed."""
        said = p.communicate(timeout=LIMIT_S)[0]
        self.assertEqual(p.returncode, 0, said)
        self.assertEqual([words for pid, (_, words) in processes().items() if self.is_ours(pid, words) and out in words], [])
        lives = self.lives(out)
        self.assertEqual([life["epoch"] for life in lives], [1, 2], said)
        if os.path.exists(self.at(out, "checkpoints")):
            self.assertEqual([x for x in os.listdir(self.at(out, "checkpoints")) if not x.startswith("step-")], [])
        return lives[1], said

    def run_and_kill(self, out, roles, *more, **how):
        with self.begun(out, *more, **how) as p:
            self.kill(p.pid, roles)
            return self.goes_on(p, out)

    def check_same(self, out, servers=2, dtype="bf16"):
        other = self.undisturbed(servers, dtype)
        own = ("seconds", "elapsed", "memory_bytes")
        curves = [[{k: v for k, v in line.items() if k not in own} for line in self.curve(x)] for x in (out, other)]
        self.assertEqual(curves[0], curves[1])
        self.assertEqual(self.summary(out)["state"], "complete")
        self.assertEqual(self.summary(out)["weights_hash"], self.summary(other)["weights_hash"])

    def check_no_step_lost(self, out, life, at=STEPS // 3):
        self.assertEqual(life["steps_lost"], 0)
        step = int(life["resumed_from"].split("-")[1])
        self.assertGreaterEqual(step, at)
        self.assertLess(step, STEPS)
        self.assertEqual(os.listdir(self.at(out, "checkpoints")), [f"step-{step}"])
