#!/usr/bin/env python3
"""A ring whose ranks others have started, here by torchrun's variables on this machine: each process is one rank. The same bits as
where one command starts all, and the ends that such a ring may come to."""
import json
import os
import signal
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import LIMIT_S, PROGRAM, Runs, Started, free_port
from fixture_starters import torch_environment

JOB = ["train", "--model", "tiny", "--threads", "1", "--dtype", "bf16", "--no-weights", "--set", "parameter_server.deadline_ms=8000"]


class Ring(Runs):
    def ranks(self, count, *words, out="runs", here=None):
        """So many under way, and the job's words."""
        port = free_port()
        return [Started(self, [PROGRAM, *JOB, "--topology", "zero:2", *words, *(["--out", out] if out else [])], env=torch_environment(
            r, count, r, count if here is None else here, "127.0.0.1", port)) for r in range(count)]

    def steps_of(self, ranks, step):
        ranks[0].until(lambda: self.steps("runs") >= step, f"step {step}")

    def ended(self, ranks, *statuses):
        return [rank.ends(status) for rank, status in zip(ranks, statuses)]

    def summary(self, out="runs"):
        return json.loads(self.read(out, "summary.json"))


class Equal(Ring):
    def test_the_bits_are_those_of_one_launcher(self):
        for topology in ("zero:3", "gossip"):
            self.run_it(*JOB, "--topology", topology, "--steps", "4", "--workers", "3", "--out", "one")
            ranks = self.ranks(3, "--topology", topology, "--steps", "4")
            self.ended(ranks, 0, 0, 0)
            self.assertEqual(self.summary()["loss"], self.summary("one")["loss"])
            self.assertEqual((self.summary()["launch"], self.summary()["medium"]), ("torchrun", "shm"))
            self.assertEqual(ranks[1].printed(), "")
            self.remove("one")
            self.remove("runs")

    def test_without_out_all_take_the_directory_of_rank_0(self):
        self.ended(self.ranks(2, "--steps", "2", out=None), 0, 0)
        self.assertEqual(len(os.listdir(self.at("runs"))), 1)


def variables(rank, size, *names):
    """The variables that a launcher with four of them gives a rank of this machine."""
    return dict(zip(names, map(str, (rank, size, rank, size))))


class OtherLaunchers(Ring):
    HYDRA = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    MVAPICH = tuple("MV2_COMM_WORLD_" + name for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))

    def test_their_variables_start_both_topologies(self):
        for topology, names, by in (("zero:1", self.HYDRA, "mpiexec"), ("ps:sync", self.MVAPICH, "MVAPICH's mpirun")):
            with self.subTest(by):
                words = [PROGRAM, *JOB, "--topology", topology, "--steps", "2", "--out", "runs"]
                self.ended([Started(self, words, env=variables(r, 2, *names)) for r in range(2)], 0, 0)
                self.assertEqual((self.summary()["launch"], self.summary()["workers"]), (by, 2))
                self.remove("runs")

    def test_what_is_not_understood_trains_nothing(self):
        for env in ({"DMLC_ROLE": "worker"}, {"PMI_RANK": "1", "PMI_SIZE": "2"}, {"HOROVOD_RANK": "0"}):
            said = Started(self, [PROGRAM, *JOB, "--topology", "zero:1", "--steps", "2", "--out", "runs"], env=env).ends(2)
            self.assertIn(f"environment: {next(iter(env))}=", said)
            self.assertFalse(os.path.exists(self.at("runs")))


class Refused(Ring):
    def test_words_that_do_not_fit(self):
        for words, said in ((["--workers", "3"], "--workers 3, but torchrun started 2 ranks"),
                            (["--collective", "local"], "--collective local: started by torchrun, the ranks are processes of their own; use --collective shm"),
                            (["--collective", "mpi"], "--collective mpi: started by torchrun, and MPI gives the ranks no addresses of each other; use --collective shm")):
            self.assertIn(said, self.ended(self.ranks(2, "--steps", "2", *words), 2, None)[0])

    def test_memory_of_several_machines(self):
        said = self.ended(self.ranks(2, "--steps", "2", "--collective", "shm", here=1), 2, None)[0]
        self.assertIn("--collective shm: started by torchrun, the ranks are processes of their own, and not known to be on one machine", said)
        self.assertIn("use --collective tcp", said)

    def test_ranks_of_other_words_are_named(self):
        port = free_port()
        ranks = [Started(self, [PROGRAM, *JOB, "--topology", "zero:2", "--out", "runs", "--steps", "2", "--lr", lr], env=torch_environment(
            r, 2, r, 2, "127.0.0.1", port)) for r, lr in enumerate(("1e-3", "2e-3"))]
        self.assertIn("optimizer.params.lr", "".join(self.ended(ranks, 1, 1)))


class Ends(Ring):
    def test_a_killed_rank_is_named_at_once(self):
        """No rank waits for a deadline, which is longer than a test may take."""
        ranks = self.ranks(3, "--steps", "100000", "--set", f"parameter_server.deadline_ms={4000 * LIMIT_S}")
        self.steps_of(ranks, 3)
        ranks[2].send_signal(signal.SIGKILL)
        said = self.ended(ranks[:2], 1, 1)
        self.assertIn("rank 2 on ", said[0])

    def test_rank_0_is_killed(self):
        ranks = self.ranks(2, "--steps", "100000")
        self.steps_of(ranks, 3)
        ranks[0].send_signal(signal.SIGKILL)
        self.assertIn("has gone", ranks[1].ends(1))

    def test_ctrl_c_ends_all_in_order(self):
        ranks = self.ranks(2, "--steps", "100000")
        self.steps_of(ranks, 3)
        for rank in ranks:
            rank.send_signal(signal.SIGINT)
        said = self.ended(ranks, 130, 130)
        self.assertIn("Ctrl-C: ended after step", said[0])
        self.assertEqual(said[1], "")
        self.assertLess(self.summary()["steps"], 100000)

    def test_it_goes_on(self):
        self.ended(self.ranks(2, "--steps", "4", "--checkpoint-every", "2"), 0, 0)
        self.ended(self.ranks(2, "--steps", "6", "--checkpoint-every", "2", "--resume", "latest"), 0, 0)
        self.run_it(*JOB, "--topology", "zero:2", "--steps", "6", "--workers", "2", "--out", "one")
        self.assertEqual(self.summary()["loss"]["last"], self.summary("one")["loss"]["last"])


if __name__ == "__main__":
    unittest.main()
