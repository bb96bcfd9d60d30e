#!/usr/bin/env python3
"""A star whose ranks others have started, here by torchrun's variables on this machine: each rank's process starts its worker and what
is laid beside it. The same bits as where one command starts all, and the ends that such a star may come to."""
import json
import os
import signal
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import JOB_KEY, PROGRAM, Runs, Started, free_port, processes
from fixture_starters import torch_environment

JOB = ["train", "--model", "tiny", "--topology", "ps:sync", "--threads", "1", "--dtype", "bf16", "--no-weights",
       "--set", "parameter_server.deadline_ms=8000"]


class Star(Runs):
    def ranks(self, count, *words, env=None, out="runs"):
        """So many under way, and the job's words."""
        port = free_port()
        return [Started(self, [PROGRAM, *JOB, *words, *(["--out", out] if out else [])], env={
            **torch_environment(r, count, r, count, "127.0.0.1", port), **(env or {})}) for r in range(count)]

    def steps_of(self, ranks, step):
        ranks[0].until(lambda: self.steps("runs") >= step, f"step {step}")

    def ended(self, ranks, *statuses):
        return [rank.ends(status) for rank, status in zip(ranks, statuses)]

    def summary(self, out="runs"):
        return json.loads(self.read(out, "summary.json"))


class Equal(Star):
    def test_the_bits_are_those_of_one_launcher(self):
        for words in (["--servers", "2"], ["--servers-on", "workers", "--resident", "units"], ["--servers-on", "0", "--servers", "3"]):
            self.remove("runs")
            self.run_it(*JOB, *words, "--steps", "4", "--workers", "3", "--out", "one")
            self.ended(self.ranks(3, *words, "--steps", "4"), 0, 0, 0)
            self.assertEqual(self.summary()["loss"], self.summary("one")["loss"])
            self.assertEqual(self.summary()["launch"], "torchrun")
            self.assertRegex(self.summary()["placement"], r"^torchrun, on 1 machine: \S+: scheduler, workers 0-2, servers 0-[12]$")
            self.assertEqual(len(self.summary()["memory"]), len(self.summary("one")["memory"]))
            self.remove("one")

    def test_without_out_all_take_the_directory_of_rank_0(self):
        self.ended(self.ranks(2, "--steps", "2", out=None), 0, 0)
        self.assertEqual(len(os.listdir(self.at("runs"))), 1)

    def test_only_rank_0_prints_and_prints_once(self):
        ranks = self.ranks(2, "--steps", "2")
        self.ended(ranks, 0, 0)
        self.assertEqual(ranks[0].printed().count("weights  "), 1)
        self.assertEqual(ranks[1].printed(), "")
        self.assertEqual(ranks[1].said(), "")


class Key(Star):
    def keys_of_roles(self, **env):
        ranks = self.ranks(2, "--steps", "100000", env=env)
        self.steps_of(ranks, 2)
        roles = [pid for rank in ranks for name, pid in rank.roles().items() if name]
        self.assertGreaterEqual(len(roles), 3)
        found = {processes.environment_of(pid).get("STARRING_JOB_KEY") for pid in roles}
        ranks[0].send_signal(signal.SIGTERM)
        self.ended(ranks, None, None)
        self.remove("runs")
        return found

    def test_all_roles_have_the_jobs(self):
        self.assertEqual(self.keys_of_roles(STARRING_JOB_KEY=JOB_KEY), {JOB_KEY})
        made, = self.keys_of_roles()  # rank 0 makes one
        self.assertRegex(made, r"\A[0-9a-f]{64}\Z")

    def test_another_key_is_named_on_both_sides(self):
        port = free_port()
        for keys in ((JOB_KEY, "f0" * 32), (JOB_KEY, "")):
            ranks = [Started(self, [PROGRAM, *JOB, "--out", "runs", "--steps", "2", "--set", "parameter_server.deadline_ms=5000"], env={
                **torch_environment(r, 2, r, 2, "127.0.0.1", port), "STARRING_JOB_KEY": keys[r]}) for r in range(2)]
            said = self.ended(ranks, 1, 1)
            self.assertRegex(said[0], r"rank 0 of 2: rank 1 did not join at 127.0.0.1:\d+ within 5 s: .*: a process tried to join with another STARRING_JOB_KEY, or with none")
            self.assertIn(f"rank 1: what listens at 127.0.0.1:{port} does not let this process in: the job's key (STARRING_JOB_KEY) differs there, or one "
                          "side has none, or another program listens: give all ranks the same key, or the job another port", said[1])


class Refused(Star):
    def test_words_that_do_not_fit(self):
        for words, said in ((["--workers", "3"], "--workers 3, but torchrun started 2 ranks, and each is the launcher of one worker"),
                            (["--servers-on", "h7"], "--servers-on h7: h7 is no machine of this job, which has 0 ")):
            ranks = self.ranks(2, "--steps", "2", *words)
            self.assertIn(said, self.ended(ranks, 2, None)[0])

    def test_a_rank_whose_own_words_do_not_fit_says_so(self):
        """The others heard nothing of them, and can say only that it never came."""
        port = free_port()
        ranks = [Started(self, [PROGRAM, *JOB, "--out", "runs", "--steps", "2", *words], env=torch_environment(
            r, 2, r, 2, "127.0.0.1", port)) for r, words in enumerate(([], ["--workers", "4"]))]
        self.assertIn("rank 1: --workers 4, but torchrun started 2 ranks", self.ended(ranks, 1, 2)[1])

    def test_ranks_of_other_words_are_named(self):
        port = free_port()
        ranks = [Started(self, [PROGRAM, *JOB, "--out", "runs", "--steps", "2", "--lr", lr], env=torch_environment(
            r, 2, r, 2, "127.0.0.1", port)) for r, lr in enumerate(("1e-3", "2e-3"))]
        self.assertIn("optimizer.params.lr", "".join(self.ended(ranks, 1, 1)))

    def test_a_directory_that_rank_0_may_not_take_ends_all(self):
        self.run_it(*JOB, "--steps", "2", "--out", "runs")
        ranks = self.ranks(2, "--steps", "2")
        said = self.ended(ranks, 2, 1)
        self.assertIn("--force", said[0])


class Deaths(Star):
    def test_a_worker_ends_the_job_and_rank_0_says_why(self):
        for victim in (1, 0):  # beside rank 0's worker are servers that are asked to leave: that is no reason
            self.remove("runs")
            ranks = self.ranks(3, "--steps", "100000", "--servers", "4")
            self.steps_of(ranks, 3)
            ranks[victim].kill_now(f"worker {victim}")
            for r, text in enumerate(self.ended(ranks, 1, 1, 1)):
                whose = "" if r == victim else rf"(\[scheduler\] )?rank {victim}, on \S+: "
                self.assertRegex(text, rf"error: {whose}worker {victim} \(pid \d+\) was killed by signal 9")
                self.assertEqual(text.count("error:"), 1, text)
            self.assertIn(f"worker {victim}", json.loads(self.read("runs", "state.json"))["why"])

    def test_a_launcher_ends_the_job(self):
        ranks = self.ranks(3, "--steps", "100000")
        self.steps_of(ranks, 3)
        ranks[2].send_signal(signal.SIGKILL)
        said = self.ended(ranks[:2], 1, 1)
        self.assertRegex(said[0], r"rank 2, on \S+, is lost, with the roles that it started: the run ends")

    def test_rank_0_ends_the_others(self):
        ranks = self.ranks(2, "--steps", "100000")
        self.steps_of(ranks, 3)
        ranks[0].send_signal(signal.SIGKILL)
        self.ended(ranks[1:], 1)

    def test_a_worker_is_started_again_by_its_own_launcher(self):
        ranks = self.ranks(3, "--steps", "30", "--servers", "2", "--checkpoint-every", "5", "--restart", "2")
        self.steps_of(ranks, 12)
        ranks[1].kill_now("worker 1")
        said = self.ended(ranks, 0, 0, 0)
        self.assertRegex(said[1], r"worker 1 \(pid \d+\) was killed by signal 9 \(Killed\) [0-9.]+ s after the start: starting it again")
        self.assertIn("epoch 2 resumes after step", said[0])
        self.run_it(*JOB, "--steps", "30", "--workers", "3", "--servers", "2", "--out", "one")
        self.assertEqual(self.summary()["loss"], self.summary("one")["loss"])

    def test_elastic_goes_on_without_a_worker_and_with_it_again(self):
        for restarts, lines in (([], 1), (["--restart", "1"], 2)):
            ranks = self.ranks(3, "--steps", "80", "--elastic", "2:3", *restarts)
            self.steps_of(ranks, 3)
            ranks[1].kill_now("worker 1")
            said = self.ended(ranks, 0, 0, 0)
            self.assertIn("the others continue" + (" without it" if lines == 1 else "; starting it again"), said[1])
            self.assertIn("the job continues without it", said[0])
            self.assertEqual(len(self.absences("runs")), lines)
            self.remove("runs")

    def test_elastic_goes_on_when_a_launcher_has_gone(self):
        ranks = self.ranks(3, "--steps", "80", "--elastic", "2:3")
        self.steps_of(ranks, 3)
        ranks[2].send_signal(signal.SIGKILL)
        said = self.ended(ranks[:2], 0, 0)
        self.assertRegex(said[0], r"warning: rank 2, on \S+, is lost, with the roles that it started\n")

    def test_elastic_begins_with_those_who_are_there(self):
        port = free_port()
        ranks = [Started(self, [PROGRAM, *JOB, "--steps", "4", "--elastic", "2:3", "--set", "parameter_server.deadline_ms=3000", "--out", "runs"],
                         env=torch_environment(r, 3, r, 3, "127.0.0.1", port)) for r in range(2)]
        said = self.ended(ranks, 0, 0)
        self.assertIn("epoch 1 begins without worker 2", said[0])
        self.assertEqual([(row["kind"], row["worker"]) for row in self.absences("runs")], [("away", 2)])


class Interrupted(Star):
    def test_all_end_in_order_and_servers_wait_for_the_others_workers(self):
        ranks = self.ranks(2, "--steps", "100000", "--servers", "2", "--checkpoint-every", "100000")
        self.steps_of(ranks, 3)
        for rank in ranks:
            rank.send_signal(signal.SIGTERM)
        self.ended(ranks, 143, 143)
        self.assertEqual(self.summary()["state"], "interrupted")
        self.assertEqual(len(os.listdir(self.at("runs", "checkpoints"))), 1)

    def test_one_rank_that_is_asked_ends_all_in_order(self):
        ranks = self.ranks(2, "--steps", "100000")
        self.steps_of(ranks, 3)
        ranks[1].send_signal(signal.SIGTERM)
        self.ended(ranks, 1, 143)
        self.assertEqual(self.summary()["state"], "interrupted")


if __name__ == "__main__":
    unittest.main()
