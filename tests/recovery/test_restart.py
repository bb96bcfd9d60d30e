#!/usr/bin/env python3
"""--restart: whatever is killed, the run goes back to its last checkpoint and on, to the weights of an undisturbed run;
nothing is left behind; restarts are bounded; who fails by itself is not started again."""
import glob
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
STEPS = 24
SMALL = ["--model", "tiny", "--seq", "16", "--threads", "1", "--lr", "0.01", "--data", "text.txt", "--no-weights", "--batch", "2",
         "--dtype", "fp32", "--set", "eval_batches=0", "--steps", str(STEPS)]
STAR = ["--topology", "ps:sync", "--workers", "2", "--servers", "2", "--set", "parameter_server.deadline_ms=20000"]
PROCESSES = ["--topology", "zero:2", "--workers", "2"]
RING = [*PROCESSES, "--launch", "threads"]
SLOW = ["--delay", "0:constant:100"]  # there is time to kill somebody
SOON = ["--set", "parameter_server.deadline_ms=8000", "--set", "parameter_server.heartbeat_ms=200"]
ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "OMPI_MCA_rmaps_base_oversubscribe": "1"}


class Restart(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="starring-restart-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        with open(cls.at("text.txt"), "w", encoding="utf-8") as f:
            f.write("".join(f"{n} bottles of beer on the wall, {n * n % 97} of them green\n" for n in range(1200)))
        subprocess.run([PROGRAM, "train", *SMALL, *STAR, "--out", cls.at("undisturbed")], cwd=cls.folder, check=True,
                       capture_output=True, timeout=LIMIT_S, env=ENVIRONMENT)

    @classmethod
    def at(cls, *path):
        return os.path.join(cls.folder, *path)

    def setUp(self):
        self.segments = self.named_memory()
        self.out = self.at("run")
        shutil.rmtree(self.out, ignore_errors=True)

    @staticmethod
    def named_memory():
        return {name for name in glob.glob("/dev/shm/*") if ("starring" in name or "vader" in name) and "fuzz" not in name}

    def start(self, *more, program=PROGRAM):
        p = subprocess.Popen([program, "train", *SMALL, "--out", self.out, *more], cwd=self.folder, text=True,
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=ENVIRONMENT)
        self.addCleanup(p.stderr.close)
        self.addCleanup(lambda: p.poll() is None and p.kill())
        return p

    def processes(self, *words):
        """Those of this test's runs with all of these words in their command line, the youngest last."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as f:
                    line = f.read().replace("\0", " ")
                with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
                    started = int(f.read().rpartition(")")[2].split()[19])
            except OSError:
                continue
            if self.folder in line and all(word in line for word in words):
                found.append((started, int(pid)))
        return [pid for _, pid in sorted(found)]

    def steps(self):
        try:
            with open(os.path.join(self.out, "metrics.jsonl"), encoding="utf-8") as f:
                return sum(line.endswith("\n") for line in f)
        except OSError:
            return 0

    def until(self, p, what, happened):
        end = time.monotonic() + LIMIT_S
        while not happened():
            self.assertIsNone(p.poll(), f"ended before {what}")
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.002)

    def find(self, p, *words):
        pids = []
        self.until(p, f"there is {words}", lambda: pids.extend(self.processes(*words)) or pids)
        return pids[-1]

    def kill(self, p, *words):
        pid = self.find(p, *words)
        os.kill(pid, signal.SIGKILL)
        return pid

    def ends(self, p, status=0):
        _, said = p.communicate(timeout=LIMIT_S)
        self.assertEqual(p.returncode, status, said)
        end = time.monotonic() + 60
        left = self.named_memory() - self.segments
        while (self.processes() or left) and time.monotonic() < end:
            time.sleep(0.01)
            left &= self.named_memory()  # what another program shares has a name for a moment only
        self.assertEqual(self.processes(), [], said)
        self.assertEqual(left, set(), said)
        return said

    def curve(self, out):
        with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
            lines = [json.loads(line) for line in f]
        return [(line["step"], line["loss"], line["samples"]) for line in lines]

    def hash(self, out):
        with open(os.path.join(out, "summary.json"), encoding="utf-8") as f:
            return json.load(f)["weights_hash"]

    def assert_undisturbed(self):
        self.assertEqual(self.hash(self.out), self.hash(self.at("undisturbed")))
        self.assertEqual(self.curve(self.out), self.curve(self.at("undisturbed")))

    def summary(self):
        with open(os.path.join(self.out, "summary.json"), encoding="utf-8") as f:
            return json.load(f)

    def lives(self):
        with open(os.path.join(self.out, "lives.jsonl"), encoding="utf-8") as f:
            return [json.loads(line) for line in f]

    def behind(self, p, step):
        self.until(p, f"step {step}", lambda: self.steps() >= step)

    def kill_behind(self, p, step, checkpoints, *kills, number=signal.SIGKILL):
        """Whom each of `kills` finds, found before: looking through all processes may take longer than the rest of the run."""
        self.behind(p, 1)
        pids = [self.find(p, *words) for words in kills]
        self.behind(p, step)
        if checkpoints:
            self.until(p, "a checkpoint", lambda: glob.glob(os.path.join(self.out, "checkpoints", "step-*")))
        for pid in pids:
            os.kill(pid, number)

    # ---------------------------------------------------------------- the star
    def star(self, *kills, checkpoints=4, step=10):
        p = self.start(*STAR, *SLOW, "--restart", "2", "--checkpoint-every", str(checkpoints))
        self.kill_behind(p, step, checkpoints, *kills)
        said = self.ends(p)
        self.assert_undisturbed()
        lives = self.lives()
        self.assertEqual([life["epoch"] for life in lives], list(range(1, len(lives) + 1)), said)
        self.assertEqual(len({life["job"] for life in lives}), len(lives))
        self.assertEqual(lives[0]["why"], None)
        self.assertIn("was killed by signal 9", lives[1]["why"])
        self.assertEqual(lives[1]["restarts"], 1)
        self.assertEqual(self.summary()["lives"], {"start": 1, "count": len(lives), "earlier": 0, "earlier_steps_lost": 0,
                                                   "steps_lost": sum(life["steps_lost"] for life in lives[1:])})
        self.assertEqual("all steps are done again" in said, not checkpoints, said)
        self.assertIn("starting it again; 1 of 2 restarts is left", said)
        for life in lives[1:]:
            self.assertEqual(life["resumed_from"] is not None, checkpoints > 0)
        return lives

    def test_worker(self):
        self.star(("starring worker", "--rank 1 "))

    def test_worker_0(self):
        self.star(("starring worker", "--rank 0 "))

    def test_server_from_the_beginning(self):
        self.star(("starring server",), checkpoints=0)

    def test_scheduler(self):
        self.assertIn("scheduler", self.star(("starring scheduler",))[1]["why"])

    def test_two_at_once(self):
        self.star(("starring worker", "--rank 1 "), ("starring server", "--rank 0 "))

    def test_asynchronous(self):
        p = self.start(*STAR, "--topology", "ps:async", *SLOW, "--delay", "1:constant:400", "--restart", "2")
        self.kill_behind(p, 6, 0, ("starring worker", "--rank 1 "))
        said = self.ends(p)
        self.assertGreaterEqual(self.lives()[1]["steps_lost"], 6, said)  # the scheduler decides none: worker 0's lines tell

    def test_in_login(self):
        p = self.start(*STAR, *SLOW, "--restart", "2")
        self.kill(p, "starring server", "--rank 1 ")
        said = self.ends(p)
        self.assert_undisturbed()
        self.assertIn("server 1 (pid", said)

    def test_frozen_before_its_login(self):
        p = self.start(*STAR, *SLOW, *SOON, "--restart", "2", "--checkpoint-every", "4")
        self.behind(p, 6)
        dead, again = self.kill(p, "starring server", "--rank 0 "), []
        self.until(p, "another server 0", lambda: again.extend(
            pid for pid in self.processes("starring server", "--rank 0 ") if pid != dead) or again)
        os.kill(again[0], signal.SIGSTOP)
        self.ends(p)
        self.assert_undisturbed()

    def test_restarts_are_used_up(self):
        p = self.start(*STAR, *SLOW, "--restart", "1")
        self.behind(p, 2)
        self.kill(p, "starring worker", "--rank 1 ")
        self.until(p, "a second life", lambda: len(self.lives()) == 2)
        self.kill(p, "starring worker", "--rank 1 ")
        said = self.ends(p, status=1)
        self.assertIn("all restarts are used up", said)
        self.assertIn("worker 1 (pid", said)

    def test_one_says_that_the_scheduler_died(self):
        """Without restarts: the launcher, and not every worker once more."""
        p = self.start(*STAR[:-1], "parameter_server.deadline_ms=4000", *SLOW)
        self.behind(p, 2)
        self.kill(p, "starring scheduler")
        said = self.ends(p, status=1)
        self.assertIn("scheduler (pid", said)
        self.assertNotIn("was lost", said)

    def test_error_is_final(self):
        p = self.start(*STAR, "--restart", "2", "--insecure", "--set", "parameter_server.bind=tcp://256.0.0.1:1")
        said = self.ends(p, status=1)
        self.assertNotIn("starting it again", said)

    def test_interrupted(self):
        p = self.start(*STAR, *SLOW, "--restart", "2")
        self.behind(p, 2)
        p.send_signal(signal.SIGINT)
        self.ends(p, status=130)
        self.assertEqual(len(self.lives()), 1)

    def test_no_place_for_lives(self):
        """What cannot be noted of a life is warned of, and the job goes on."""
        for topology, dies in ((STAR, ("starring worker", "--rank 1 ")), (RING, ("train --life",))):
            with self.subTest(topology[1]):
                self.setUp()
                os.makedirs(os.path.join(self.out, "lives.jsonl"))
                p = self.start(*topology, *SLOW, "--force", "--restart", "2", "--checkpoint-every", "4")
                self.kill_behind(p, 6, 4, dies)
                said = self.ends(p)
                self.assert_undisturbed()
                self.assertEqual(said.count("lives.jsonl: cannot write: Is a directory"), 2, said)

    # ---------------------------------------------------------------- the ring
    def ring(self, *kill, launch=(), checkpoints=4, number=signal.SIGKILL):
        p = self.start(*(PROCESSES if launch else RING), *SLOW, "--restart", "1", "--checkpoint-every", str(checkpoints), *launch)
        self.kill_behind(p, 6, checkpoints, kill, number=number)
        said = self.ends(p)
        self.assert_undisturbed()
        lives = self.lives()
        self.assertEqual([life["epoch"] for life in lives], [1, 2], said)
        self.assertIn("was killed", lives[1]["why"])
        self.assertIsNotNone(lives[1]["resumed_from"])
        self.assertGreaterEqual(lives[1]["steps_lost"], 0)
        self.assertEqual(self.summary()["lives"], {"start": 1, "count": 2, "steps_lost": lives[1]["steps_lost"], "earlier": 0,
                                                   "earlier_steps_lost": 0})
        return said

    def test_ring(self):
        self.ring("train --life")

    def test_rank_of_processes(self):
        said = self.ring("starring train --life", launch=("--launch", "processes"))
        self.assertRegex(said, r"rank [01] \(pid \d+\) was killed")

    def test_rank_stands_still(self):
        self.ring("starring train --life", launch=("--launch", "processes", *SOON), number=signal.SIGSTOP)
        self.assertRegex(self.lives()[1]["why"], r"^rank [01] \(pid \d+\) gave no sign of life for the deadline and was killed$")

    def test_processes_interrupted(self):
        p = self.start(*PROCESSES, *SLOW, "--restart", "1")
        self.behind(p, 2)
        p.send_signal(signal.SIGINT)
        said = self.ends(p, status=130)
        self.assertIn("Ctrl-C: ended after step", said)
        self.assertEqual(len(self.lives()), 1)

    def test_ring_used_up(self):
        p = self.start(*RING, *SLOW, "--restart", "1")
        for life in (1, 2):
            self.until(p, f"life {life}", lambda: len(self.processes("train --life")) == 1 and self.steps() > 1 and
                       len(self.lives()) == life)
            self.kill(p, "train --life")
        self.assertIn("all restarts are used up (--restart 1)", self.ends(p, status=1))

    def test_ring_without_its_program(self):
        program = shutil.copy(PROGRAM, self.at("starring-gone"))
        p = self.start(*RING, *SLOW, "--restart", "1", program=program)
        self.behind(p, 2)
        os.unlink(program)
        self.kill(p, "train --life")
        self.assertRegex(self.ends(p, status=1), r"cannot start the run \(.*starring-gone\): No such file or directory")

    def test_ring_without_its_state(self):
        """A later life has nothing to say there: the process that stands for the run lives on, and says how it ends."""
        p = self.start(*RING, *SLOW, "--restart", "1", "--checkpoint-every", "4")
        self.behind(p, 1)
        state, aside = os.path.join(self.out, "state.json"), os.path.join(self.out, "aside")
        child = self.find(p, "train --life")
        self.behind(p, 6)
        os.rename(state, aside)
        os.makedirs(os.path.join(state, "full"))
        os.kill(child, signal.SIGKILL)
        self.until(p, "a second life", lambda: len(self.lives()) == 2)
        self.behind(p, STEPS - 4)
        shutil.rmtree(state)
        os.rename(aside, state)
        said = self.ends(p)
        self.assert_undisturbed()
        self.assertNotIn("state.json", said)
        with open(state, encoding="utf-8") as f:
            self.assertEqual(json.load(f)["state"], "complete")

    def test_ring_interrupted(self):
        p = self.start(*RING, *SLOW, "--restart", "1")
        self.behind(p, 2)
        p.send_signal(signal.SIGTERM)
        self.ends(p, status=143)
        self.assertEqual(len(self.lives()), 1)

    def test_history_of_a_run(self):
        """Who goes on in the directory adds to its lives; restarts count anew; who begins there begins them too."""
        for topology in (STAR, RING):
            shutil.rmtree(self.out, ignore_errors=True)
            more = [*topology, *SLOW, "--restart", "1", "--checkpoint-every", "4"]
            dies = ("starring worker", "--rank 1 ") if topology is STAR else ("train --life",)
            for start in (1, 2):
                p = self.start(*more, *(["--resume", "latest"] if start == 2 else []))
                self.until(p, "its first life", lambda n=2 * start - 1: len(self.lives_so_far()) == n)
                self.behind(p, 6 if start == 1 else 13)
                self.kill(p, *dies)
                self.until(p, "its second life", lambda n=2 * start: len(self.lives_so_far()) == n)
                if start == 1:
                    self.behind(p, 10)
                    p.send_signal(signal.SIGINT)
                    self.ends(p, status=130)
            self.ends(p)
            self.assert_undisturbed()
            lives = self.lives()
            self.assertEqual([(life["start"], life["epoch"], life["restarts"]) for life in lives],
                             [(1, 1, 0), (1, 2, 1), (2, 1, 0), (2, 2, 1)])
            self.assertEqual([life["why"] is None for life in lives], [True, False, True, False])
            self.assertEqual(lives[2]["steps_lost"], 0)  # Ctrl-C has left a checkpoint
            self.assertEqual(self.summary()["lives"], {
                "start": 2, "count": 2, "steps_lost": lives[3]["steps_lost"], "earlier": 2,
                "earlier_steps_lost": lives[1]["steps_lost"]})
            self.ends(self.start(*topology, "--restart", "1", "--force"))
            self.assertEqual([life["start"] for life in self.lives()], [1])

    def lives_so_far(self):
        try:
            return self.lives()
        except OSError:
            return []

    def test_supervisor_killed(self):
        p = self.start(*RING, *SLOW, "--restart", "1")
        self.behind(p, 2)
        p.kill()
        self.ends(p, status=-9)

    def test_rank_of_another(self):
        p = subprocess.run([PROGRAM, "train", *SMALL, *PROCESSES, "--out", self.out, "--restart", "1"], cwd=self.folder, text=True,
                           capture_output=True, timeout=LIMIT_S, check=False,
                           env={**ENVIRONMENT, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"})
        self.assertEqual(p.returncode, 2)
        self.assertIn("--resume latest", p.stderr)


if __name__ == "__main__":
    unittest.main()
