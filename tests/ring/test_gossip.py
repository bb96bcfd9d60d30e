#!/usr/bin/env python3
"""Gossip as a program: the same bits from threads, processes and MPI; one rank equals local; a checkpoint carries each rank's own
state, from which the same ranks go on to the bit; what is predicted is measured; a rank that leaves or dies."""
import os
import signal
import shutil
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs

SMALL = ["train", "--model", "tiny", "--seq", "16", "--threads", "1", "--lr", "0.01", "--data", "text.txt", "--no-weights",
         "--set", "train_batch_size=6", "--set", "eval_batches=1", "--set", "eval_every=2", "--steps", "6"]
KEEP = ["--checkpoint-every", "2", "--checkpoint-keep", "0"]


class Gossip(Runs):
    shared, corpus = True, 1200

    def gossip(self, out, *more, workers=3, **how):
        self.remove(out)
        return self.run_it(*SMALL, "--topology", "gossip", "--workers", str(workers), "--out", out, *more, **how)

    def test_engines_and_figures(self):
        for graph in ("ring", "exponential", "static_exponential"):
            option = ["--set", f"gossip.graph={graph}"]
            self.gossip("threads", *option, *KEEP, "--launch", "threads", "--dtype", "bf16")
            self.gossip("processes", *option, *KEEP, "--launch", "processes", "--dtype", "bf16")
            self.assert_same_run("processes", "threads")
            if shutil.which("mpirun"):
                self.gossip("mpi", *option, *KEEP, "--launch", "mpi", "--dtype", "bf16")
                self.assert_same_run("mpi", "threads")
            for run in ("threads", "processes"):
                s = self.summary(run)
                self.assert_as_predicted(s, graph)
                self.assertEqual(s["graph"], graph)
                for rank in s["wire"]:
                    self.assertGreater(rank["predicted_sent"], 0)
                    self.assertEqual(rank["sent_per_step"], rank["predicted_sent"])
                    self.assertEqual(rank["received_per_step"], rank["predicted_received"])
                self.assertEqual([line["step"] for line in self.lines(run, "evals.jsonl")], [2, 4, 6])
            # The snapshot of the last weights and the one before are means: neither is rank 0's.
            self.assertTrue(all(self.json("threads", "ranks", f"worker-{r}.json")["consensus_distance"] > 0 for r in range(3)))
        one = [self.json("threads", "ranks", f"worker-{r}.json")["consensus_distance"] for r in range(3)]
        two = [self.json("processes", "ranks", f"worker-{r}.json")["consensus_distance"] for r in range(3)]
        self.assertEqual(one, two)

    def test_one_rank_is_local(self):
        self.gossip("one", workers=1)
        self.run_it(*SMALL, "--topology", "local", "--out", "local")
        self.assert_same_run("one", "local")

    def test_resume(self):
        for dtype in ("fp32", "bf16"):
            self.gossip("whole", *KEEP, "--dtype", dtype)
            for begin in (2, 4):
                self.gossip("again", "--dtype", dtype, "--resume", f"whole/checkpoints/step-{begin}")
                self.assert_same_run("again", "whole", begin)
            self.gossip("aside", *KEEP, "--checkpoint-background", "--dtype", dtype)
            self.assert_same_run("aside", "whole")
            self.assert_as_predicted(self.summary("aside"))
        self.refused(*SMALL, "--topology", "gossip", "--workers", "2", "--dtype", "bf16", "--out", "two", "--resume", "whole/checkpoints/step-2",
                     said=["holds no weights of gossip's own for each of 2 ranks", "--resume-weights-only"], status=1)
        self.run_it(*SMALL, "--topology", "zero:0", "--workers", "2", "--out", "mean", "--dtype", "bf16",
                    "--resume", "whole/checkpoints/step-4", "--resume-weights-only")
        # After the checkpoint of the last step nothing is left to do: its masters' mean is the run's weights.
        self.run_it(*SMALL, "--topology", "local", "--out", "last", "--dtype", "bf16", "--set", "workers=1",
                    "--resume", "whole/checkpoints/step-6")
        self.assertEqual(self.hash("last"), self.hash("whole"))

    def test_all_leave_together_and_go_on(self):
        slow = ["--delay", "0:constant:600"]  # the interrupt is sent long before the last step, on a busy machine as well
        self.gossip("left", *KEEP)
        self.remove("asked")
        p = self.start(*SMALL, "--topology", "gossip", "--workers", "3", "--out", "asked", *KEEP, *slow)
        p.behind(1)
        p.send_signal(signal.SIGINT)
        p.ends(status=None)
        step = self.steps("asked")
        self.assertLess(step, 6)
        self.assertIn(f"step-{step}", self.checkpoints("asked"))
        self.run_it(*SMALL, "--topology", "gossip", "--workers", "3", "--out", "asked", *KEEP, "--resume", "latest")
        self.assertEqual(self.hash("asked"), self.hash("left"))

    def test_a_dead_rank(self):
        self.remove("dead")
        words = [*SMALL, "--topology", "gossip", "--workers", "3", *KEEP, "--delay", "0:constant:60", "--restart", "1"]
        p = self.start(*words, "--out", "dead")
        p.until(lambda: os.path.exists(self.at("dead", "checkpoints", "step-2", "manifest.json")), "a checkpoint")
        p.kill_now("rank 1")
        p.ends()
        self.gossip("whole", *KEEP)
        self.assertEqual(self.hash("dead"), self.hash("whole"))

    def test_refusals(self):
        for words, said in (
                (["--servers", "2"], "--servers: topology gossip has no servers: leave it out, or use ps:sync"), (["--resident", "units"], "parameter_server.resident is a key of a star's servers"),
                (["--servers-on", "workers"], "parameter_server.servers_on is a key of a star's servers"),
                (["--elastic", "1:3"], "topology gossip needs all of its ranks"),
                (["--local-steps", "2"], "choose one of them"), (["--reduce-group", "3"], "its sums have no groups"),
                (["--dtype", "fp16"], "use --dtype bf16 or fp32"), (["--documents", "whole"], "use --documents packed"),
                (["--set", "eval_every=0", "--set", "eval_every_seconds=1"], "use eval_every"),
                (["--set", "optimizer.type=OneBitAdam"], "use Adam"), (["--set", "reduce=native"], "leave \"reduce\" out"),
                (["--set", "zero_optimization.overlap_comm=false"], "leave zero_optimization.overlap_comm out"),
                (["--set", "ring.no_sync=true"], "it is of zero:2 and zero:3"), (["--set", "local.delay=1"], "local.delay 1 is of --topology local")):
            with self.subTest(words=words):
                self.refused(*SMALL, "--topology", "gossip", "--workers", "3", "--out", "refused", *words, said=said)


if __name__ == "__main__":
    unittest.main()
