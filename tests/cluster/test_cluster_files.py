#!/usr/bin/env python3
"""Hosts that share no folder train, and what their ranks leave comes to rank 0; what all ranks write or read together, parts of
checkpoints, needs a folder that all see, and the run says so before its first step. A file system that stands still is waited for, in words."""
import os
import shutil
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "recovery"))
from fixture import Runs, free_port
from fixture_hosts import Hosts
from fixture_starters import STARTERS, all_end, torch_environment
from test_standing_files import SHIM

WORDS = ["--model", "tiny", "--data", "text.txt", "--seq", "16", "--batch", "1", "--threads", "1", "--dtype", "bf16", "--seed", "3"]
STAR, RING = ["--topology", "ps:sync", "--servers", "2"], ["--topology", "zero:2"]
EACH = 2
STANDS_S, DEADLINE_MS = 14, 4000


class Cluster:
    def __init__(self, case):
        self.hosts = Hosts(case, 2)


class Apart(Runs):
    """Two hosts, each with a disk of its own."""
    corpus = 1200

    def setUp(self):
        super().setUp()
        self.cluster = Cluster(self)

    def ranks(self, *words, status=0):
        return all_end(STARTERS["torchrun's variables"].start(self, self.cluster, EACH, "train", *WORDS, *words), status)

    def trains(self, *topology, evals):
        words = [*topology, "--steps", "6", "--trace", "--out", "run"]
        said = self.ranks(*words, *(["--set", "eval_every=3"] if len(evals) > 1 else []))
        self.assertEqual(said.count("rank 2 on h2, and 1 more, does not see run of rank 0, on h1"), 1, said)
        shutil.copytree(self.cluster.hosts[0].path("run"), self.at("run"))  # rank 0's
        self.run_it("train", *WORDS, *words[:-2], "--workers", str(2 * EACH), "--out", "alone")
        summary = self.summary("run")
        self.assert_same_run("run", "alone")
        self.assertEqual(len(summary["memory"]), len(self.summary("alone")["memory"]))
        self.assertEqual(sorted(os.listdir(self.at("run", "ranks"))), sorted(os.listdir(self.at("alone", "ranks"))))
        self.assertEqual([e["step"] for e in self.lines("run", "evals.jsonl")], evals)
        self.assertTrue(os.path.exists(self.at("run", "weights", "model.safetensors")))
        names = {e["args"]["name"] for e in self.json("run", "trace.json")["traceEvents"] if e.get("name") == "process_name"}
        self.assertEqual(len(names - {"scheduler"}), len(summary["memory"]), names)
        self.assertFalse(os.path.exists(self.cluster.hosts[1].path("run")))

    def test_a_star(self):
        self.trains(*STAR, evals=[3, 6])  # worker 0 writes snapshots alone

    def test_a_ring(self):
        self.trains(*RING, evals=[6])

    def test_checkpoints_are_refused_before_the_first_step(self):
        for topology in (STAR, RING):
            said = self.ranks(*topology, "--steps", "100000", "--checkpoint-every", "2", "--out", "run", status=None)
            self.assertRegex(said, "--checkpoint-every: all ranks write their parts into one folder, and rank 2 on h2, and 1 more, does not see run "
                                   "of rank 0, on h1: give --out a folder that all of them see, or leave --checkpoint-every out")
            for host in (0, 1):
                self.assertFalse(os.path.exists(self.cluster.hosts[host].path("run")))


class OneMachine(Runs):
    """Two ranks of this machine, which are told folders of their own."""
    corpus = 1200

    def ranks(self, *words, status=(0, 0), outs=("a", "b"), env=({}, {})):
        port = free_port()
        ranks = [self.start("train", *WORDS, *STAR, *words, "--out", outs[r], env=torch_environment(r, 2, r, 2, "127.0.0.1", port) | env[r])
                 for r in range(2)]
        for rank, expected in zip(ranks, status):
            rank.ends(expected)
        return "".join(rank.printed() + rank.said() for rank in ranks)

    def keep(self, out, *words):
        self.run_it("train", *WORDS, *STAR, "--workers", "2", "--steps", "4", "--checkpoint-every", "2", "--out", out, *words)

    def test_the_checkpoint_to_go_on_from(self):
        self.keep("old")
        self.run_it("train", *WORDS, *STAR, "--workers", "2", "--steps", "8", "--out", "whole")
        # 1. Rank 0's own, which the other does not see.
        shutil.copytree(self.at("old"), self.at("a"))
        before = sorted(os.listdir(self.at("a")))
        words = ["--steps", "8", "--resume", "latest"]
        said = self.ranks(*words, status=(2, 1))
        self.assertRegex(said, r"--resume: rank 1 on \S+ does not see \S+/a/checkpoints/step-4 of rank 0, on \S+: give a folder that all ranks see, "
                               "or copy the checkpoint to the same path there")
        self.assertEqual(sorted(os.listdir(self.at("a"))), before)
        self.assertFalse(os.path.exists(self.at("b")))
        # 2. Another one of that name.
        self.keep("b", "--seed", "9")
        self.assertRegex(self.ranks(*words, status=(2, 1)), r"rank 1 on \S+ has another checkpoint at \S+/a/checkpoints/step-4 than rank 0")
        # 3. A copy, beside a whole run of its own, of which nothing is touched; and checkpoints are a matter of one folder still.
        self.remove("b")
        shutil.copytree(self.at("old"), self.at("b"))
        self.assertIn("all ranks write their parts into one folder", self.ranks(*words, "--checkpoint-every", "2", status=(2, 1)))
        self.assertIn("does not see a of rank 0", self.ranks(*words))
        self.assertEqual((self.hash("a"), self.summary("a")["resumed_from"]), (self.hash("whole"), 4))
        self.assertEqual(sorted(os.listdir(self.at("b"))), before)
        self.assertEqual(self.summary("b"), self.summary("old"))
        # 4. A run whose steps are all done.
        self.assertIn("all 4 steps are done", self.ranks("--steps", "4", "--resume", "latest", outs=("old", "b")))

    def test_words_that_differ(self):
        self.keep("old")
        port = free_port()
        resume = ("old", "old/checkpoints/step-2")
        ranks = [self.start("train", *WORDS, *STAR, "--steps", "8", "--resume", resume[r], "--out", "new",
                            env=torch_environment(r, 2, r, 2, "127.0.0.1", port)) for r in range(2)]
        self.assertIn("rank 1 has --resume old/checkpoints/step-2, rank 0 has --resume old: give all ranks the same option",
                      all_end(ranks, None))

    def test_a_folder_that_stands_still_is_waited_for_in_words(self):
        for stands in (0, 1):
            with self.subTest(rank=stands):
                self.remove("run")
                self.write("", "stands")
                shim = {"LD_PRELOAD": self.preload(SHIM), "STANDS": self.at("stands"), "WHERE": self.at("run") + "/", "ONLY": "train"}
                port = free_port()
                ranks = [self.start("train", *WORDS, *STAR, "--steps", "4", "--out", self.at("run"), "--set",
                                    f"parameter_server.deadline_ms={DEADLINE_MS}",
                                    env=torch_environment(r, 2, r, 2, "127.0.0.1", port) | (shim if r == stands else {})) for r in range(2)]
                time.sleep(STANDS_S)
                self.assertEqual([r.poll() for r in ranks], [None, None], [r.said() for r in ranks])
                os.unlink(self.at("stands"))
                said = all_end(ranks)
                self.assertRegex(said, r"waiting for rank [01] on \S+ to (find its checkpoint and make|access|take) the run directory: 10 s, it is alive")
                self.assertEqual(self.summary("run")["state"], "complete")


if __name__ == "__main__":
    unittest.main()
