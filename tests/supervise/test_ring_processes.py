#!/usr/bin/env python3
"""The command that starts a ring's ranks as processes watches over them, as it does over a star's roles: one that is killed or
stands still is named in one message, all others are ended by the deadline, the exit status is one that is documented, and
nothing is left. And a few things of ranks under mpirun."""
import contextlib
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
LIMIT_S = 180  # a hang; far above what anything here takes
FOREVER = "1000000"
DEADLINE_S = 6  # a rank that only waits for a core is heard within it
LONG_S = 600
SMALL = ["--model", "tiny", "--seq", "16", "--batch", "1", "--threads", "1", "--data", "text.txt", "--no-weights", "--topology", "zero:1",
         "--workers", "2", "--launch", "processes"]


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="starring-supervise-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        cls.environment = dict(os.environ)
        for name, lines in (("text.txt", 1200),):
            with open(cls.at(name), "w", encoding="utf-8") as f:
                f.write("".join(f"{n} bottles of beer on the wall, {n * n % 97} of them green\n" for n in range(lines)))

    @classmethod
    def at(cls, *path):
        return os.path.join(cls.folder, *path)

    def setUp(self):
        self.out = self.at("run")
        shutil.rmtree(self.out, ignore_errors=True)

    def argv(self, *more, steps=FOREVER, deadline_s=LONG_S, evaluation="0"):
        return [PROGRAM, "train", *SMALL, "--out", self.out, "--steps", steps, "--set", f"eval_batches={evaluation}", "--set",
                f"parameter_server.deadline_ms={deadline_s * 1000:.0f}", *more]

    def start(self, *more, under=(), **how):
        p = subprocess.Popen([*under, *self.argv("--quiet", *more, **how)], cwd=self.folder, text=True, stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=self.environment)
        self.addCleanup(p.stderr.close)
        self.addCleanup(lambda: p.poll() is None and p.kill())
        return p

    # ---------------------------------------------------------------- who is there
    def all(self):
        """Processes of this test's run: [(pid, parent, rank or None)]."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as f:
                    line = f.read()
                with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
                    state, parent = f.read().rpartition(")")[2].split()[:2]
                with open(f"/proc/{pid}/environ", encoding="utf-8", errors="replace") as f:
                    variables = dict(entry.partition("=")[::2] for entry in f.read().split("\0"))
            except OSError:
                continue
            if self.out in line and state != "Z":
                found.append((int(pid), int(parent), variables.get("STARRING_RANK", variables.get("OMPI_COMM_WORLD_RANK"))))
        return found

    def ranks(self):
        return {int(rank): pid for pid, _, rank in self.all() if rank is not None}

    def until(self, p, what, happened):
        end = time.monotonic() + LIMIT_S
        while not (value := happened()):
            if p.poll() is not None:
                self.fail(f"ended with {p.returncode} before {what}: {p.stderr.read()}")
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.005)
        return value

    def steps(self):
        with contextlib.suppress(OSError), open(os.path.join(self.out, "metrics.jsonl"), encoding="utf-8") as f:
            return f.read().count("\n")
        return 0

    def in_a_step(self, p):
        self.until(p, "a step", lambda: self.steps() >= 2)
        return self.ranks()

    def begun(self, p):
        """The ranks as soon as there are both."""
        return self.until(p, "both ranks", lambda: len(self.ranks()) == 2 and self.ranks())

    # ---------------------------------------------------------------- how it ends
    def left(self):
        return [pid for pid, _, _ in self.all()]

    def ends(self, p, status):
        try:
            _, said = p.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            self.fail("it hangs")
        self.assertEqual(p.returncode, status, said)
        self.assertEqual(self.left(), [], said)
        return said

    def state(self):
        with open(os.path.join(self.out, "state.json"), encoding="utf-8") as f:
            return json.load(f)

    def names(self, p, pattern, status=1, recorded=True):
        words = self.ends(p, status).splitlines()
        self.assertEqual(len(words), 1, words)
        self.assertRegex(words[0], pattern)
        if recorded:
            self.assertEqual(self.state()["state"], "failed")
            self.assertRegex(self.state()["why"], pattern)

    def in_shm(self):
        return set(os.listdir("/dev/shm"))


class Killed(Case):
    def test_a_rank(self):
        for rank in (0, 1):
            shutil.rmtree(self.out, ignore_errors=True)
            p = self.start()
            ranks = self.in_a_step(p)
            os.kill(ranks[rank], signal.SIGKILL)
            self.names(p, rf"rank {rank} \(pid {ranks[rank]}\) was killed.* after step \d+")

    def test_a_rank_that_begins(self):
        p = self.start()
        ranks = self.begun(p)
        os.kill(ranks[1], signal.SIGKILL)
        self.names(p, rf"rank 1 \(pid {ranks[1]}\) was killed by signal 9 \(Killed\)")

    def test_both(self):
        p = self.start()
        ranks = self.in_a_step(p)
        for pid in ranks.values():
            os.kill(pid, signal.SIGKILL)
        self.names(p, r"rank [01] \(pid \d+\) was killed.* after step \d+")

    def test_a_rank_that_is_started_again(self):
        """The one message is a warning, and the bits are those of a run in which nobody died."""
        hashes = []
        for dies in (True, False):
            shutil.rmtree(self.out, ignore_errors=True)
            p = self.start("--restart", "1", "--checkpoint-every", "5", steps="40", deadline_s=DEADLINE_S)
            if dies:
                self.until(p, "a checkpoint", lambda: glob.glob(os.path.join(self.out, "checkpoints", "step-*", "*")))
                os.kill(self.ranks()[1], signal.SIGKILL)
            words = self.ends(p, 0).splitlines()
            self.assertEqual([len(words), "starting it again; 0 of 1 restarts are left" in "".join(words)], [dies, dies], words)
            with open(os.path.join(self.out, "metrics.jsonl"), encoding="utf-8") as f:
                hashes.append([(line["step"], line["loss"]) for line in map(json.loads, f)])
        self.assertEqual(*hashes)

    def test_a_rank_once_too_often(self):
        p = self.start("--restart", "1", deadline_s=DEADLINE_S)
        for _ in range(2):
            ranks = self.until(p, "both ranks", lambda: len(self.ranks()) == 2 and self.ranks())
            os.kill(ranks[0], signal.SIGKILL)
            self.until_gone(p, ranks[1])
        said = self.ends(p, 1)
        self.assertIn("all restarts are used up", said)

    def until_gone(self, p, pid):
        end = time.monotonic() + LIMIT_S
        while os.path.exists(f"/proc/{pid}") and p.poll() is None:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.005)

    def test_the_command_beside_a_stopped_rank(self):
        """Nobody is left who could be told: all are ended all the same, those that stand still too."""
        p = self.start()
        ranks = self.in_a_step(p)
        os.kill(ranks[1], signal.SIGSTOP)
        p.kill()
        p.communicate()
        end = time.monotonic() + LIMIT_S
        while self.left() and time.monotonic() < end:
            time.sleep(0.02)
        self.assertEqual(self.left(), [])


class StandsStill(Case):
    def stop(self, p, pid, pattern, **how):
        os.kill(pid, signal.SIGSTOP)
        self.names(p, pattern, **how)

    def test_that_begins(self):
        p = self.start(deadline_s=DEADLINE_S)
        self.stop(p, self.begun(p)[1], "rank 1 .* gave no sign of life")

    def test_in_a_step(self):
        p = self.start(deadline_s=DEADLINE_S)
        self.stop(p, self.in_a_step(p)[0], "rank 0 .* gave no sign of life.* after step")

    def test_of_which_the_others_wait_in_vain(self):
        """A life that is given up is started again, like one that was killed."""
        p = self.start("--restart", "1", "--delay", "0:constant:50", steps="30", deadline_s=DEADLINE_S)
        os.kill(self.in_a_step(p)[1], signal.SIGSTOP)
        self.assertRegex(self.ends(p, 0), "rank 1 .* gave no sign of life .* starting it again")


class Interrupted(Case):
    def one_message(self, said, name):
        """Behind the answer at once, if there were ranks to be asked."""
        words = said.splitlines()
        words = words[1:] if words[0].endswith(f"{name}: ending after this step; again ends now") else words
        self.assertEqual(len(words), 1, words)
        self.assertIn(f"{name}: ended", words[0])
        return words[0]

    def test_in_a_step(self):
        for number, name in ((signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")):
            shutil.rmtree(self.out, ignore_errors=True)
            p = self.start()
            self.in_a_step(p)
            p.send_signal(number)
            self.assertIn("after step", self.one_message(self.ends(p, 128 + number), name))
            self.assertEqual(self.state()["state"], "interrupted")

    def test_before_the_first_step(self):
        p = self.start()
        self.begun(p)
        p.send_signal(signal.SIGTERM)
        self.one_message(self.ends(p, 143), "SIGTERM")

    def test_beside_a_death(self):
        """The step in hand will not end before the deadline, which is far away."""
        p = self.start()
        ranks = self.in_a_step(p)
        p.send_signal(signal.SIGSTOP)  # it hears of both at once
        os.kill(ranks[1], signal.SIGKILL)
        p.send_signal(signal.SIGTERM)
        p.send_signal(signal.SIGCONT)
        self.one_message(self.ends(p, 143), "SIGTERM")
        self.assertEqual(self.state()["state"], "interrupted")

    def test_twice(self):
        p = self.start()
        os.kill(self.in_a_step(p)[1], signal.SIGSTOP)
        until = time.monotonic() + LIMIT_S
        while p.poll() is None and time.monotonic() < until:
            p.send_signal(signal.SIGINT)
            time.sleep(0.05)
        self.one_message(self.ends(p, 130), "Ctrl-C")

    def test_beside_a_rank_that_stands_still(self):
        """The step in hand ends with the deadline: that is no failure of the ranks that waited."""
        for rank in (0, 1):
            shutil.rmtree(self.out, ignore_errors=True)
            p = self.start(deadline_s=DEADLINE_S)
            os.kill(self.in_a_step(p)[rank], signal.SIGSTOP)
            p.send_signal(signal.SIGINT)
            self.assertRegex(self.one_message(self.ends(p, 130), "Ctrl-C"), f"rank {rank} .* gave no sign of life")
            self.assertEqual(self.state()["state"], "interrupted")


class Fails(Case):
    def test_a_run_directory_that_cannot_be(self):
        self.out = self.at("n" * 300)  # what is known before is said before
        said = self.ends(self.start(steps="3", deadline_s=DEADLINE_S), 2)
        self.assertIn("n: cannot make the directory: File name too long", said)
        self.assertNotIn("egmentation", said)

    def test_a_refused_configuration(self):
        p = self.start("--data", "nothing.txt", steps="3")
        words = self.ends(p, 2).splitlines()
        self.assertEqual(len(words), 1, words)
        self.assertIn("nothing.txt", words[0])

    def test_a_rank_that_fails_in_a_step(self):
        p = self.start("--dtype", "fp32", "--lr", "1e30", steps="200")
        said = self.ends(p, 1)
        self.assertIn("diverged", said)
        self.assertEqual(self.state()["state"], "failed")


class Output(Case):
    """What becomes of what is printed is no reason to fail, whoever prints it."""

    LAUNCHES = (("--launch", "processes"), ("--launch", "threads"), ("--launch", "threads", "--topology", "local", "--workers", "1"),
                ("--launch", "processes", "--topology", "ps:sync"))

    def launches(self):
        for i, launch in enumerate(self.LAUNCHES):
            self.out = self.at(f"printed{i}")
            shutil.rmtree(self.out, ignore_errors=True)
            yield self.argv(*launch, steps="12")

    def complete(self):
        self.assertEqual(self.state()["state"], "complete")
        self.assertEqual(self.steps(), 12)

    def test_the_reader_leaves(self):
        for argv in self.launches():
            argv += ["--delay", "0:constant:200"]  # there is more to print when the reader has left
            with subprocess.Popen(argv, cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  env=self.environment) as p:
                p.stdout.readline()
                p.stdout.close()
                _, said = p.communicate(timeout=LIMIT_S)
            self.assertEqual(p.returncode, 0, said)
            self.assertEqual(said.count("nobody reads standard output"), 1, said)
            self.complete()

    def test_the_disk_is_full(self):
        for argv in self.launches():
            with open("/dev/full", "w", encoding="utf-8") as full:
                p = subprocess.run([*argv, "--set", "gradient_clipping=1"], cwd=self.folder, text=True, stdout=full,
                                   stderr=subprocess.PIPE, timeout=LIMIT_S, check=False, env=self.environment)
            self.assertEqual(p.returncode, 1, p.stderr)
            self.assertEqual(p.stderr.count("No space left on device"), 1, p.stderr)
            self.assertEqual(len(p.stderr.splitlines()), 1, p.stderr)
            self.complete()

    def test_closed_streams(self):
        for argv in self.launches():
            for closes in ("<&-", ">&-", "<&- >&- 2>&-"):
                shutil.rmtree(self.out, ignore_errors=True)
                p = subprocess.run(["sh", "-c", f'exec "$@" {closes}', "sh", *argv], cwd=self.folder, capture_output=True,
                                   timeout=LIMIT_S, check=False, env=self.environment)
                self.assertEqual(p.returncode, 0, p.stderr)
                with open(os.path.join(self.out, "metrics.jsonl"), encoding="utf-8") as f:
                    self.assertEqual([json.loads(line)["step"] for line in f], list(range(1, 13)), closes)


@unittest.skipUnless(shutil.which("mpirun") and os.path.exists(os.path.join(os.path.dirname(PROGRAM), "libstarring_mpi.so")),
                     "Open MPI is not installed, or the program was built without it")
class Mpi(Case):
    """mpirun starts and ends its ranks, and says so."""

    def test_a_death(self):
        p = self.start("--launch", "mpi")
        ranks = self.in_a_step(p)
        os.kill(ranks[1], signal.SIGKILL)
        _, said = p.communicate(timeout=LIMIT_S)
        self.assertNotEqual(p.returncode, 0)
        self.assertIn("signal 9", said)
        self.assertEqual(self.left(), [])

    def test_a_death_with_a_restart(self):
        p = self.start("--launch", "mpi", "--restart", "1", "--checkpoint-every", "5", steps="40")
        self.until(p, "a checkpoint", lambda: glob.glob(os.path.join(self.out, "checkpoints", "step-*", "*")))
        os.kill(self.ranks()[1], signal.SIGKILL)
        self.assertIn("starting it again; 0 of 1 restarts are left", self.ends(p, 0))

    def test_an_mpirun_that_is_not_there(self):
        self.environment = {**self.environment, "PATH": "/nowhere"}
        self.assertIn("mpirun: No such file or directory; install Open MPI", self.ends(self.start("--launch", "mpi"), 1))


del Case  # unittest would run it

if __name__ == "__main__":
    unittest.main()
