#!/usr/bin/env python3
"""One answer everywhere: the same words on one host, under srun, in an sbatch script, under mpirun, with torchrun's variables, under
torchrun itself and over ssh give the same curve and the same weights for the same number of ranks, in both topologies, on hosts
that share no folder; and the summary says by what it was started and where."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs
from fixture_hosts import Hosts
from fixture_slurm import Slurm
from fixture_starters import STARTERS, all_end, said

WORDS = ["--model", "tiny", "--data", "text.txt", "--seq", "16", "--batch", "1", "--threads", "1", "--dtype", "bf16", "--steps", "4",
         "--set", "eval_batches=0"]
HOSTS, EACH = 2, 2
RANKS = HOSTS * EACH
TOPOLOGIES = {"ring": ["--topology", "zero:2"], "star": ["--topology", "ps:sync", "--servers", "2"]}


BY = {"torchrun's variables": "torchrun", "ssh": "torchrun", "srun": "Slurm's srun", "sbatch": "Slurm's srun"}  # as the summary calls it


class Cluster:
    """Hosts with what the starters need: Slurm begins with its first job."""

    def __init__(self, case, **how):
        self.hosts = Hosts(case, HOSTS, **how)
        self._slurm = None

    def slurm(self):
        self._slurm = self._slurm or Slurm(self.hosts)
        return self._slurm


class Equal(Runs):
    shared, corpus = True, 1200

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.cluster = Cluster(cls, ssh=True)
        cls.alone = {}

    def one_machine(self, kind):
        """The name of the run of that topology with as many workers on this machine alone."""
        if kind not in self.alone:
            self.run_it("train", *WORDS, *TOPOLOGIES[kind], "--workers", str(RANKS), "--out", kind)
            self.alone[kind] = kind
        return kind

    def joined(self, name, kind):
        starter = STARTERS[name]
        if reason := starter.missing():
            self.skipTest(reason)
        out = f"{name.replace(' ', '-')}-{kind}".replace("'", "")
        processes = starter.start(self, self.cluster, EACH, "train", *WORDS, *TOPOLOGIES[kind], "--out", out)
        all_end(processes)
        os.symlink(self.cluster.hosts[0].path(out), self.at(out))  # rank 0's directory
        self.assertTrue(os.path.exists(self.at(out, "summary.json")), said(processes))
        self.assert_same_run(out, self.one_machine(kind))
        summary = self.summary(out)
        self.assertEqual(summary["workers"], RANKS)
        roles = {"ring": ("workers 0-1", "workers 2-3"), "star": ("scheduler, workers 0-1, server 0", "workers 2-3, server 1")}[kind]
        self.assertEqual(summary["placement"], f"{BY.get(name, name)}, on 2 machines: h1: {roles[0]}; h2: {roles[1]}")


class OneFolder(Runs):
    """Hosts that share a folder, with the run's directory in it."""
    corpus = 1200

    def test_one_directory_of_all(self):
        cluster = Cluster(self, shared=True)
        starter = STARTERS["torchrun's variables"]
        for kind in TOPOLOGIES:
            with self.subTest(kind):
                out = "shared/" + kind
                all_end(starter.start(self, cluster, EACH, "train", *WORDS, *TOPOLOGIES[kind], "--out", out, "--checkpoint-every", "2"))
                self.run_it("train", *WORDS, *TOPOLOGIES[kind], "--workers", str(RANKS), "--out", kind)
                self.assert_same_run(out, kind)
                self.assertEqual(self.checkpoints(out), ["step-2", "step-4"])
                # And from what they left one host goes on.
                self.run_it("train", *WORDS, *TOPOLOGIES[kind], "--workers", str(RANKS), "--steps", "6", "--resume", out, "--out", "on-" + kind)
                self.run_it("train", *WORDS, *TOPOLOGIES[kind], "--workers", str(RANKS), "--steps", "6", "--out", "all-" + kind)
                self.assertEqual(self.hash("on-" + kind), self.hash("all-" + kind))


def add(name, kind):
    def test(self):
        self.joined(name, kind)
    setattr(Equal, f"test_{kind}_{name.replace(' ', '_')}".replace("'", ""), test)


for each in STARTERS:
    for topology in TOPOLOGIES:
        add(each, topology)

if __name__ == "__main__":
    unittest.main()
