#!/usr/bin/env python3
"""The command that starts a ring's ranks as processes watches over them, as it does over a star's roles: one that is killed or
stands still is named in one message, all others are ended by the deadline, the exit status is one that is documented, and
nothing is left. And a few things of ranks under mpirun."""
import glob
import os
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import PROGRAM, Runs, send

FOREVER = "1000000"
DEADLINE_S = 6  # a rank that only waits for a core is heard within it
LONG_S = 600
SMALL = ["--model", "tiny", "--seq", "16", "--batch", "1", "--threads", "1", "--data", "text.txt", "--no-weights", "--topology", "zero:1",
         "--workers", "2", "--launch", "processes"]


def state_of(stat):
    with open(stat, encoding="utf-8") as f:
        return f.read().rpartition(")")[2].split()[0]


class Case(Runs):
    shared, corpus = True, 1200
    out = "run"

    def setUp(self):
        self.remove(self.out)

    def argv(self, *more, steps=FOREVER, deadline_s=LONG_S):
        return ["train", *SMALL, "--out", self.out, "--steps", steps, "--set", "eval_batches=0", "--set",
                f"parameter_server.deadline_ms={deadline_s * 1000:.0f}", *more]

    def train(self, *more, env=None, **how):
        return self.start(*self.argv("--quiet", *more, **how), env=env)

    def both(self, p):
        """The ranks' processes, as soon as there are both."""
        return p.find("rank 0", "rank 1")

    def in_a_step(self, p):
        p.behind(2)
        return self.both(p)

    def checkpoint(self, p):
        p.until(lambda: glob.glob(self.at(self.out, "checkpoints", "step-*", "*")), "a checkpoint")

    def state(self):
        return self.json(self.out, "state.json")

    def words(self, said):
        """Its lines but for those about a rank that is slow: on a loaded machine a rank that waits may say so before the launcher knows better."""
        return [line for line in said.splitlines() if not line.startswith("starring: waiting for rank ")]

    def names(self, p, pattern):
        """One message says who died; behind steps that are done another says what that has cost."""
        words = self.words(p.ends(1))
        for cost in words[1:]:
            self.assertRegex(cost, "run has no checkpoint: the .* lost: --checkpoint-every K")
        self.assertLessEqual(len(words), 2, words)
        self.assertRegex(words[0], pattern)
        self.assertEqual(self.state()["state"], "failed")
        self.assertRegex(self.state()["why"], pattern)


class Killed(Case):
    def test_a_rank(self):
        for rank in (0, 1):
            self.remove(self.out)
            p = self.train()
            ranks = self.in_a_step(p)
            send(signal.SIGKILL, [ranks[rank]])
            self.names(p, rf"rank {rank} \(pid {ranks[rank]}\) was killed.* after step \d+")

    def test_a_rank_that_begins(self):
        p = self.train()
        ranks = self.both(p)
        send(signal.SIGKILL, ranks[1:])
        self.names(p, rf"rank 1 \(pid {ranks[1]}\) was killed by signal 9 \(Killed\)")

    def test_both(self):
        p = self.train()
        send(signal.SIGKILL, self.in_a_step(p))
        self.names(p, r"rank [01] \(pid \d+\) was killed.* after step \d+")

    def test_a_rank_that_is_started_again(self):
        """The one message is a warning, and the bits are those of a run in which nobody died."""
        curves = []
        for dies in (True, False):
            self.remove(self.out)
            p = self.train("--restart", "1", "--checkpoint-every", "5", steps="40", deadline_s=DEADLINE_S)
            if dies:
                self.checkpoint(p)
                p.kill_now("rank 1")
            words = p.ends().splitlines()
            self.assertEqual([len(words), "starting it again; 0 of 1 restarts are left" in "".join(words)], [dies, dies], words)
            curves.append(self.curve(self.out))
        self.assertEqual(*curves)

    def test_a_rank_once_too_often(self):
        p = self.train("--restart", "1", deadline_s=DEADLINE_S)
        for _ in range(2):
            ranks = self.both(p)
            send(signal.SIGKILL, ranks[:1])
            while os.path.exists(f"/proc/{ranks[1]}") and p.poll() is None:
                time.sleep(0.005)
        self.assertIn("all restarts are used up", p.ends(1))

    def test_the_command_beside_a_stopped_rank(self):
        """No rank is left to be informed: all are ended all the same, also the stopped ones."""
        p = self.train()
        send(signal.SIGSTOP, self.in_a_step(p)[1:])
        p.kill()
        p.ends(-9)


class StandsStill(Case):
    def test_that_begins(self):
        p = self.train(deadline_s=DEADLINE_S)
        send(signal.SIGSTOP, self.both(p)[1:])
        self.names(p, "rank 1 .* gave no sign of life")

    def test_in_a_step(self):
        p = self.train(deadline_s=DEADLINE_S)
        send(signal.SIGSTOP, self.in_a_step(p)[:1])
        self.names(p, "rank 0 .* gave no sign of life.* after step")

    def test_of_which_the_others_wait_in_vain(self):
        """A life that is given up is started again, like one that was killed."""
        p = self.train("--restart", "1", "--delay", "0:constant:50", steps="30", deadline_s=DEADLINE_S)
        send(signal.SIGSTOP, self.in_a_step(p)[1:])
        self.assertRegex(p.ends(), "rank 1 .* gave no sign of life .* starting it again")

    def test_that_another_one_gives_up(self):
        """The launcher is stopped too and sees nothing of it. A rank that rank 0 misses is a death, and its report is why the run has
        failed."""
        p = self.train("--restart", "1", deadline_s=DEADLINE_S)
        first = self.both(p)
        send(signal.SIGKILL, first[:1])
        p.until(lambda: not any(os.path.exists(f"/proc/{rank}") for rank in first), "the end of the first life")
        send(signal.SIGSTOP, [p.pid, *self.in_a_step(p)[1:]])
        p.until(lambda: "did not come within" in p.said(), "what rank 0 misses")
        p.send_signal(signal.SIGCONT)
        self.assertRegex(p.ends(1), r"rank 0 \(pid \d+\) gave up a rank and ended .* all restarts are used up \(--restart 1\)")
        self.assertRegex(self.state()["why"], "rank 1 did not come within")


class Interrupted(Case):
    def one_message(self, said, name):
        """At once after the answer, if there were ranks to be asked."""
        words = self.words(said)
        words = words[1:] if words[0].endswith(f"{name}: ending after this step; again ends now") else words
        self.assertEqual(len(words), 1, words)
        self.assertIn(f"{name}: ended", words[0])
        return words[0]

    def test_in_a_step(self):
        for number, name in ((signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")):
            self.remove(self.out)
            p = self.train()
            self.in_a_step(p)
            p.send_signal(number)
            self.assertIn("after step", self.one_message(p.ends(128 + number), name))
            self.assertEqual(self.state()["state"], "interrupted")

    def test_before_the_first_step(self):
        p = self.train()
        self.both(p)
        p.send_signal(signal.SIGTERM)
        self.one_message(p.ends(143), "SIGTERM")

    def test_beside_a_death(self):
        """The step in hand will not end before the deadline, which is far away."""
        p = self.train()
        ranks = self.in_a_step(p)
        p.send_signal(signal.SIGSTOP)  # it hears of both at once, and a thread of it may run on for a moment
        p.until(lambda: all(state == "T" for state in map(state_of, glob.glob(f"/proc/{p.pid}/task/*/stat"))), "all threads are stopped")
        send(signal.SIGKILL, ranks[1:])
        p.send_signal(signal.SIGTERM)
        p.send_signal(signal.SIGCONT)
        self.one_message(p.ends(143), "SIGTERM")
        self.assertEqual(self.state()["state"], "interrupted")

    def test_twice(self):
        p = self.train()
        send(signal.SIGSTOP, self.in_a_step(p)[1:])
        while p.poll() is None:
            p.send_signal(signal.SIGINT)
            time.sleep(0.05)
        self.one_message(p.ends(130), "Ctrl-C")

    def test_beside_a_rank_that_stands_still(self):
        """The step in hand ends with the deadline: that is no failure of the ranks that waited."""
        for rank in (0, 1):
            self.remove(self.out)
            p = self.train(deadline_s=DEADLINE_S)
            send(signal.SIGSTOP, [self.in_a_step(p)[rank]])
            p.send_signal(signal.SIGINT)
            self.assertRegex(self.one_message(p.ends(130), "Ctrl-C"), f"rank {rank} .* gave no sign of life")
            self.assertEqual(self.state()["state"], "interrupted")


class Fails(Case):
    def test_a_run_directory_that_cannot_be(self):
        self.out = "n" * 300  # what is known before is said before
        said = self.train(steps="3", deadline_s=DEADLINE_S).ends(2)
        self.assertIn("n: cannot make the directory: File name too long", said)
        self.assertNotIn("egmentation", said)

    def test_a_refused_configuration(self):
        p = self.train("--data", "nothing.txt", steps="3")
        words = p.ends(2).splitlines()
        self.assertEqual(len(words), 1, words)
        self.assertIn("nothing.txt", words[0])

    def test_a_rank_that_fails_in_a_step(self):
        p = self.train("--dtype", "fp32", "--lr", "1e30", steps="200")
        said = p.ends(1)
        self.assertIn("diverged", said)
        self.assertEqual(self.state()["state"], "failed")


class Output(Case):
    """Unwritable output is no reason to fail, whichever process prints it."""

    LAUNCHES = (("--launch", "processes"), ("--launch", "threads"), ("--launch", "threads", "--topology", "local", "--workers", "1"),
                ("--launch", "processes", "--topology", "ps:sync"))

    def launches(self):
        for i, launch in enumerate(self.LAUNCHES):
            self.out = f"printed{i}"
            self.remove(self.out)
            yield self.argv(*launch, steps="12")

    def complete(self):
        self.assertEqual(self.state()["state"], "complete")
        self.assertEqual(self.steps(self.out), 12)

    def test_the_reader_leaves(self):
        for argv in self.launches():
            p = self.start(*argv, "--delay", "0:constant:200", stdout=subprocess.PIPE)  # there is more to print when the reader has left
            p.stdout.readline()
            p.stdout.close()
            said = p.ends()
            self.assertEqual(said.count("standard output has no reader"), 1, said)
            self.complete()

    def test_the_disk_is_full(self):
        for argv in self.launches():
            with open("/dev/full", "w", encoding="utf-8") as full:
                said = self.start(*argv, "--set", "gradient_clipping=1", stdout=full).ends(1)
            self.assertEqual(said.count("No space left on device"), 1, said)
            self.assertEqual(len(said.splitlines()), 1, said)
            self.complete()

    def test_closed_streams(self):
        for argv in self.launches():
            for closes in ("<&-", ">&-", "<&- >&- 2>&-"):
                self.remove(self.out)
                self.start(*argv, under=("sh", "-c", f'exec "$@" {closes}', "sh")).ends()
                self.assertEqual([line["step"] for line in self.curve(self.out)], list(range(1, 13)), closes)


@unittest.skipUnless(shutil.which("mpirun") and os.path.exists(os.path.join(os.path.dirname(PROGRAM), "libstarring_mpi.so")),
                     "Open MPI is not installed, or the program was built without it")
class Mpi(Case):
    """mpirun starts and ends its ranks, and says so."""

    def test_a_death(self):
        p = self.train("--launch", "mpi")
        send(signal.SIGKILL, self.in_a_step(p)[1:])
        self.assertIn("signal 9", p.ends(status=None))
        self.assertNotEqual(p.returncode, 0)

    def test_a_death_with_a_restart(self):
        p = self.train("--launch", "mpi", "--restart", "1", "--checkpoint-every", "5", steps="40")
        self.checkpoint(p)
        p.kill_now("rank 1")
        self.assertIn("starting it again; 0 of 1 restarts are left", p.ends())

    def test_ctrl_c_ends_in_order(self):
        """mpirun that is told to end ends with an error, however its ranks have: their reports are there, and so is the summary."""
        p = self.train("--launch", "mpi")
        self.in_a_step(p)
        p.send_signal(signal.SIGINT)
        said = p.ends(130)
        self.assertRegex(said, "Ctrl-C: ended after step .* has its figures")
        self.assertNotIn("error", said)
        self.assertEqual(len(self.summary(self.out)["memory"]), 2)

    def test_what_is_stopped_is_ended_in_words(self):
        """mpirun itself, of which its ranks would wait for ever behind their last step; and a rank there, for which mpirun would."""
        for name, steps, behind in (("mpirun", "300", 3), ("rank", "60", 60)):
            self.remove(self.out)
            p = self.train("--launch", "mpi", steps=steps, deadline_s=DEADLINE_S)
            p.behind(behind)
            pids = p.find(name) if name == "mpirun" else p.find("rank 1")
            send(signal.SIGSTOP, pids)
            words = p.ends(None, settle_s=60)  # of an mpirun that was killed the kernel ends the ranks
            self.assertIn(p.returncode, (0, 1) if name == "rank" else (1,), words)  # a rank may have ended just before
            if p.returncode:
                # If the others still need the rank, they may say it first.
                self.assertRegex(words, rf"{name}.* \(pid \d+\) gave no sign of life for the deadline and was killed|rank 1 .*gives no sign of life")

    def test_an_mpirun_that_is_not_there(self):
        said = self.train("--launch", "mpi", env={"PATH": "/nowhere"}).ends(1)
        self.assertIn("mpirun: No such file or directory; install Open MPI", said)


del Case  # unittest would run it

if __name__ == "__main__":
    unittest.main()
