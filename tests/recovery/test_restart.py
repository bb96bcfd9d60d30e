#!/usr/bin/env python3
"""--restart: whatever is killed, the run goes back to its last checkpoint and on, to the weights of an undisturbed run;
nothing is left behind; restarts are bounded; who fails by itself is not started again."""
import glob
import os
import re
import shutil
import signal
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import PROGRAM, Runs, send

STEPS = 24
SMALL = ["--model", "tiny", "--seq", "16", "--threads", "1", "--lr", "0.01", "--data", "text.txt", "--no-weights", "--batch", "2",
         "--dtype", "fp32", "--set", "eval_batches=0", "--steps", str(STEPS)]
STAR = ["--topology", "ps:sync", "--workers", "2", "--servers", "2", "--set", "parameter_server.deadline_ms=20000"]
PROCESSES = ["--topology", "zero:2", "--workers", "2"]
RING = [*PROCESSES, "--launch", "threads"]
SLOW = ["--delay", "0:constant:100"]  # there is time to kill somebody
SOON = ["--set", "parameter_server.deadline_ms=8000", "--set", "parameter_server.heartbeat_ms=200"]


class Restart(Runs):
    shared, corpus = True, 1200

    def setUp(self):
        self.segments = self.named_memory()
        self.remove("run")

    @staticmethod
    def named_memory():
        return {name for name in glob.glob("/dev/shm/*") if ("starring" in name or "vader" in name) and "fuzz" not in name}

    def train(self, *more, **how):
        return self.start("train", *SMALL, "--out", "run", *more, **how)

    def ends(self, p, status=0):
        p.ends(status, settle_s=60)
        end = time.monotonic() + 60
        left = self.named_memory() - self.segments
        while left and time.monotonic() < end:
            time.sleep(0.01)
            left &= self.named_memory()  # what another program shares has a name for a moment only
        self.assertEqual(left, set(), p.said())
        return p.said()

    def assert_undisturbed(self):
        if not os.path.exists(self.at("undisturbed")):
            self.run_it("train", *SMALL, *STAR, "--out", "undisturbed")
        self.assert_same_run("run", "undisturbed")

    def kill_behind(self, p, step, checkpoints, *roles, number=signal.SIGKILL):
        """The roles, found before: looking through all processes may take longer than the rest of the run."""
        p.behind(1)
        pids = p.find(*roles)
        p.behind(step)
        if checkpoints:
            p.until(lambda: glob.glob(self.at("run", "checkpoints", "step-*")), "a checkpoint")
        send(number, pids)

    # ---------------------------------------------------------------- the star
    def star(self, *dies, checkpoints=4, step=10):
        p = self.train(*STAR, *SLOW, "--restart", "2", "--checkpoint-every", str(checkpoints))
        self.kill_behind(p, step, checkpoints, *dies)
        said = self.ends(p)
        self.assert_undisturbed()
        lives = self.lives("run")
        self.assertEqual([life["epoch"] for life in lives], list(range(1, len(lives) + 1)), said)
        self.assertEqual(len({life["job"] for life in lives}), len(lives))
        self.assertEqual(lives[0]["why"], None)
        self.assertIn("was killed by signal 9", lives[1]["why"])
        self.assertEqual(lives[1]["restarts"], 1)
        self.assertEqual(self.summary("run")["lives"], {"start": 1, "count": len(lives), "earlier": 0, "earlier_steps_lost": 0,
                                                   "steps_lost": sum(life["steps_lost"] for life in lives[1:])})
        self.assertEqual("all steps are repeated" in said, not checkpoints, said)
        self.assertIn("starting it again; 1 of 2 restarts is left", said)
        for life in lives[1:]:
            self.assertEqual(life["resumed_from"] is not None, checkpoints > 0)
        return lives

    def test_who_dies(self):
        """A server before there is a checkpoint: all begins anew."""
        for dies, checkpoints in ((["worker 1"], 4), (["worker 0"], 4), (["server 1"], 0), (["worker 1", "server 0"], 4)):
            with self.subTest(dies):
                self.setUp()
                self.star(*dies, checkpoints=checkpoints)

    def test_launcher(self):
        """It has the scheduler in it: all end with it at once, and the command goes on from the last checkpoint."""
        p = self.train(*STAR, *SLOW, "--restart", "2", "--checkpoint-every", "4")
        self.kill_behind(p, 10, 4, "worker 1")
        p.until(lambda: len(self.lives("run")) == 2, "a second life")
        p.kill()
        self.ends(p, status=-9)
        said = self.ends(self.train(*STAR, "--restart", "2", "--resume", "latest"))
        self.assertNotIn("starting it again", said)
        self.assert_undisturbed()
        self.assertEqual([(life["start"], life["restarts"]) for life in self.lives("run")], [(1, 0), (1, 1), (2, 0)])

    def test_asynchronous(self):
        p = self.train(*STAR, "--topology", "ps:async", *SLOW, "--delay", "1:constant:400", "--restart", "2")
        self.kill_behind(p, 6, 0, "worker 1")
        said = self.ends(p)
        self.assertGreaterEqual(self.lives("run")[1]["steps_lost"], 6, said)  # the scheduler decides none: worker 0's lines tell

    def test_before_the_start(self):
        p = self.train(*STAR, *SLOW, "--restart", "2")
        p.kill_now("server 1")
        said = self.ends(p)
        self.assert_undisturbed()
        self.assertIn("server 1 (pid", said)

    def test_frozen_before_its_start(self):
        p = self.train(*STAR, *SLOW, *SOON, "--restart", "2", "--checkpoint-every", "4")
        p.behind(6)
        dead, = p.kill_now("server 0")
        p.until(lambda: p.roles().get("server 0", dead) != dead, "another server 0")
        p.stop("server 0")
        self.ends(p)
        self.assert_undisturbed()

    def test_restarts_are_used_up(self):
        p = self.train(*STAR, *SLOW, "--restart", "1")
        p.behind(2)
        p.kill_now("worker 1")
        p.until(lambda: len(self.lives("run")) == 2, "a second life")
        p.kill_now("worker 1")
        said = self.ends(p, status=1)
        self.assertIn("all restarts are used up", said)
        self.assertIn("worker 1 (pid", said)

    def test_what_is_lost(self):
        """Without restarts a death is told with the steps that it costs, and what would have kept them: a server's as a rank's."""
        for how, dies in ((STAR, "server 1"), (PROCESSES, "rank 1")):
            for every, says in ((0, r"run has no checkpoint: the (\d+) steps that were done are lost: --checkpoint-every K keeps"),
                                (4, r"is step-\d+: the (\d+) steps? after it (?:is|are) lost: --resume latest continues from there")):
                with self.subTest(dies, every=every):
                    self.setUp()
                    p = self.train(*how, *SLOW, "--checkpoint-every", str(every))
                    self.kill_behind(p, 6, every, dies)
                    said, steps = self.ends(p, status=1), self.steps("run")
                    kept = max((int(path.rsplit("-", 1)[1]) for path in glob.glob(self.at("run", "checkpoints", "step-*"))), default=0)
                    lost = re.search(says, said)
                    self.assertEqual(steps > kept, lost is not None, said)
                    if lost:
                        self.assertEqual(int(lost.group(1)), steps - kept, said)
                        self.assertIn("with --restart N a run restarts by itself when a process is killed", said)

    def test_error_is_final(self):
        p = self.train(*STAR, "--restart", "2", "--insecure", "--set", "parameter_server.bind=tcp://256.0.0.1:1")
        said = self.ends(p, status=1)
        self.assertNotIn("starting it again", said)

    def test_interrupted(self):
        p = self.train(*STAR, *SLOW, "--restart", "2")
        p.behind(2)
        p.send_signal(signal.SIGINT)
        self.ends(p, status=130)
        self.assertEqual(len(self.lives("run")), 1)

    def test_no_place_for_lives(self):
        """A row that cannot be written costs a warning, and the job continues."""
        for topology, dies in ((STAR, "worker 1"), (RING, "run")):
            with self.subTest(topology[1]):
                self.setUp()
                os.makedirs(self.at("run", "history.jsonl"))
                p = self.train(*topology, *SLOW, "--force", "--restart", "2", "--checkpoint-every", "4")
                self.kill_behind(p, 6, 4, dies)
                said = self.ends(p)
                self.assert_undisturbed()
                self.assertEqual(said.count("history.jsonl: cannot write: Is a directory"), 2, said)

    # ---------------------------------------------------------------- the ring
    def ring(self, dies, launch=(), checkpoints=4, number=signal.SIGKILL):
        p = self.train(*(PROCESSES if launch else RING), *SLOW, "--restart", "1", "--checkpoint-every", str(checkpoints), *launch)
        self.kill_behind(p, 6, checkpoints, dies, number=number)
        said = self.ends(p)
        self.assert_undisturbed()
        lives = self.lives("run")
        self.assertEqual([life["epoch"] for life in lives], [1, 2], said)
        self.assertIn("was killed", lives[1]["why"])
        self.assertIsNotNone(lives[1]["resumed_from"])
        self.assertGreaterEqual(lives[1]["steps_lost"], 0)
        self.assertEqual(self.summary("run")["lives"], {"start": 1, "count": 2, "steps_lost": lives[1]["steps_lost"], "earlier": 0,
                                                   "earlier_steps_lost": 0})
        return said

    def test_ring(self):
        self.ring("run")

    def test_rank_of_processes(self):
        said = self.ring("rank 1", launch=("--launch", "processes"))
        self.assertRegex(said, r"rank [01] \(pid \d+\) was killed")

    def test_rank_stands_still(self):
        self.ring("rank 1", launch=("--launch", "processes", *SOON), number=signal.SIGSTOP)
        self.assertRegex(self.lives("run")[1]["why"], r"^rank [01] \(pid \d+\) gave no sign of life for the deadline and was killed$")

    def test_processes_interrupted(self):
        p = self.train(*PROCESSES, *SLOW, "--restart", "1")
        p.behind(2)
        p.send_signal(signal.SIGINT)
        said = self.ends(p, status=130)
        self.assertIn("Ctrl-C: ended after step", said)
        self.assertEqual(len(self.lives("run")), 1)

    def test_ring_used_up(self):
        p = self.train(*RING, *SLOW, "--restart", "1")
        for life in (1, 2):
            p.until(lambda: "run" in p.roles() and self.steps("run") > 1 and len(self.lives("run")) == life, f"life {life}")
            p.kill_now("run")
        self.assertIn("all restarts are used up (--restart 1)", self.ends(p, status=1))

    def test_ring_without_its_program(self):
        program = shutil.copy(PROGRAM, self.at("starring-gone"))
        p = self.train(*RING, *SLOW, "--restart", "1", program=program)
        p.behind(2)
        os.unlink(program)
        p.kill_now("run")
        self.assertRegex(self.ends(p, status=1), r"cannot start the run \(.*starring-gone\): No such file or directory")

    def test_ring_without_its_state(self):
        """A later life has nothing to say there: the process that stands for the run lives on, and says how it ends."""
        p = self.train(*RING, *SLOW, "--restart", "1", "--checkpoint-every", "4")
        p.behind(1)
        state, aside = self.at("run", "state.json"), self.at("run", "aside")
        child = p.find("run")
        p.behind(6)
        os.rename(state, aside)
        os.makedirs(os.path.join(state, "full"))
        send(signal.SIGKILL, child)
        p.until(lambda: len(self.lives("run")) == 2, "a second life")
        p.behind(STEPS - 4)
        shutil.rmtree(state)
        os.rename(aside, state)
        said = self.ends(p)
        self.assert_undisturbed()
        self.assertNotIn("state.json", said)
        self.assertEqual(self.json("run", "state.json")["state"], "complete")

    def test_ring_interrupted(self):
        p = self.train(*RING, *SLOW, "--restart", "1")
        p.behind(2)
        p.send_signal(signal.SIGTERM)
        self.ends(p, status=143)
        self.assertEqual(len(self.lives("run")), 1)

    def test_history_of_a_run(self):
        """A run that goes on in the directory adds to its lives, and its restarts count anew; a run that begins there begins them too."""
        for topology in (STAR, RING):
            self.remove("run")
            more = [*topology, *SLOW, "--restart", "1", "--checkpoint-every", "4"]
            dies = "worker 1" if topology is STAR else "run"
            for start in (1, 2):
                p = self.train(*more, *(["--resume", "latest"] if start == 2 else []))
                p.until(lambda n=2 * start - 1: len(self.lives("run")) == n, "its first life")
                self.kill_behind(p, 6 if start == 1 else 13, 4, dies)
                p.until(lambda n=2 * start: len(self.lives("run")) == n, "its second life")
                if start == 1:
                    # A step of this life: until it begins the records are those of the first one.
                    life = self.lives("run")[1]
                    p.behind(int(life["resumed_from"].removeprefix("step-")) + life["steps_lost"] + 2)
                    p.send_signal(signal.SIGINT)
                    self.ends(p, status=130)
            self.ends(p)
            self.assert_undisturbed()
            lives = self.lives("run")
            self.assertEqual([(life["start"], life["epoch"], life["restarts"]) for life in lives],
                             [(1, 1, 0), (1, 2, 1), (2, 1, 0), (2, 2, 1)])
            self.assertEqual([life["why"] is None for life in lives], [True, False, True, False])
            self.assertEqual(lives[2]["steps_lost"], 0)  # Ctrl-C has left a checkpoint
            self.assertEqual(self.summary("run")["lives"], {
                "start": 2, "count": 2, "steps_lost": lives[3]["steps_lost"], "earlier": 2,
                "earlier_steps_lost": lives[1]["steps_lost"]})
            self.ends(self.train(*topology, "--restart", "1", "--force"))
            self.assertEqual([life["start"] for life in self.lives("run")], [1])

    def test_supervisor_killed(self):
        p = self.train(*RING, *SLOW, "--restart", "1")
        p.behind(2)
        p.kill()
        self.ends(p, status=-9)

    def test_rank_of_another(self):
        self.refused("train", *SMALL, *PROCESSES, "--out", "run", "--restart", "1", said="--resume latest",
                     env={"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"})


if __name__ == "__main__":
    unittest.main()
