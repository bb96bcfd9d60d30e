#!/usr/bin/env python3
"""Gradients summed in groups of workers: one rule, the same bits in the star and in every stage of the ring, for every size of a
group; one group, or groups of one, are no groups."""
import itertools
import json
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import PROGRAM, Runs

SMALL = ["--model", "tiny", "--data", "demo", "--seq", "24", "--batch", "1", "--threads", "1", "--quiet", "--json", "--no-weights", "--force",
         "--out", "run", "--set", "eval_batches=none"]


class Groups(Runs):
    def train(self, *options, status=0):
        return self.run_it("train", *SMALL, "--steps", "4", "--set", "parameter_server.partition_bytes=4096", *options, status=status)

    def bits(self, *options):
        done = self.train(*options)
        summary = json.loads(done.stdout)
        self.assert_as_predicted(summary, options)
        for rank in summary["wire"]:
            for where, way in itertools.product((rank, rank.get("across", {})), ("sent", "received")):
                self.assertEqual(where.get(f"{way}_per_step"), where.get(f"predicted_{way}"), f"{options}: {rank}")
        self.wire, self.memory = summary["wire"], summary["memory"]
        self.assertEqual({"across" in rank for rank in self.wire}, {"zero:" in " ".join(options) and "--reduce-group" in options})
        return summary["weights_hash"], json.dumps(summary["loss"])

    def all_of(self, workers, group, dtype, *topologies):
        options = ["--workers", str(workers), "--dtype", dtype] + (["--reduce-group", str(group)] if group else [])
        found = {self.bits(*options, "--topology", *words) for words in topologies}
        self.assertEqual(len(found), 1, f"{workers} workers in groups of {group}, {dtype}")
        return found.pop()

    # Frames are added as they come, what lies in shared memory all at once.
    STARS = (("ps:sync", "--servers", "2"), ("ps:sync", "--medium", "tcp"), ("ps:sync", "--medium", "tcp", "--set", "gradient_clipping=0.5"))

    def test_star_and_ring(self):
        for dtype in ("bf16", "fp32"):
            plain = self.all_of(4, None, dtype, ("zero:2",))
            self.assertEqual(self.all_of(4, 1, dtype, ("zero:0",), *self.STARS[:2]), plain)
            self.assertEqual(self.all_of(4, 4, dtype, ("zero:3",), *self.STARS[:2]), plain)
            self.assertNotEqual(self.all_of(4, 2, dtype, ("zero:0",), ("zero:1",), ("zero:2",), ("zero:3",), *self.STARS[:2]), plain)
            self.assertNotEqual(self.all_of(6, 3, dtype, ("zero:1",), *self.STARS[:2]), self.all_of(6, None, dtype, ("zero:1",)))

    def test_with_clipping_and_skips(self):
        clip = ("--set", "gradient_clipping=0.5")
        self.all_of(4, 2, "bf16", ("zero:3", *clip), ("ps:sync", *clip, "--medium", "tcp"), ("ps:sync", *clip))
        scale = ("--set", "fp16.initial_scale_power=20", "--set", "fp16.loss_scale_window=2", "--set", "fp16.hysteresis=1")
        self.all_of(4, 2, "fp16", ("zero:2", *scale), ("ps:sync", *scale, "--medium", "tcp"), ("ps:sync", *scale))

    def test_what_cannot_be_is_refused(self):
        for words, expected in ((("zero:2", "--reduce-group", "3"), "are not groups of 3; give a number that divides them"),
                                (("ps:sync", "--reduce-group", "3"), "are not groups of 3; give a number that divides them"),
                                (("zero:2", "--reduce-group", "2", "--set", "reduce=native", "--launch", "mpi", "--dtype", "fp32"),
                                 "in its own order; leave one of them out")):
            self.assertIn(expected, self.train("--workers", "4", "--topology", *words, status=2).stderr)
        self.assertIn("its sums have no groups", self.train("--topology", "local", "--reduce-group", "1", status=2).stderr)

    def test_the_star_moves_what_it_moves_without_groups(self):
        """Each worker pushes its own gradient, whatever is added with it; a server has one more fp32 sum of each key."""
        runs = {}
        for group in (None, 2, 4, "host"):
            more = ("--reduce-group", str(group)) if group else ()
            for words in (), ("--medium", "tcp"), ("--log-updates",), ("--servers-on", "workers"):
                found = self.bits("--workers", "4", "--topology", "ps:sync", "--servers", "4", "--dtype", "bf16", *more, *words)
                self.assertEqual(runs.setdefault(group, found), found, words)
                bytes_moved = [[rank[f"{way}_per_step"] for way in ("sent", "received")] for rank in self.wire]
                self.assertEqual(runs.setdefault(words, bytes_moved), bytes_moved, group)
                sums = sum(rank["peak"]["gradient"] for rank in self.memory if rank["role"] == "server")
                self.assertEqual(sums, runs.setdefault((words, "sums"), sums) * (2 if group == 2 else 1), (group, words))
        self.assertEqual([runs[group] == runs[None] for group in (2, 4, "host")], [False, True, True])

    def test_messages_lost_and_twice(self):
        base = ("--workers", "4", "--reduce-group", "2", "--topology", "ps:sync", "--dtype", "bf16", "--set", "gradient_clipping=0.5")
        self.assertEqual(self.bits(*base), self.bits(*base, "--fault", "drop=0.1,dup=0.1,reorder=0.2"))

    def test_overlap_and_micro_batches(self):
        for words in (("--set", "gradient_accumulation_steps=3"), ("--set", "gradient_accumulation_steps=3", "--set", "data_types.grad_accum_dtype=fp32"),
                      ("--set", "activation_checkpointing.recompute=block")):
            self.all_of(4, 2, "bf16", ("zero:1", *words), ("ps:sync", *words),
                        ("ps:sync", *words, "--set", "zero_optimization.overlap_comm=false"))

    def test_a_worker_dies(self):
        """With restarts the run ends with the same bits, and its servers add in groups as before."""
        steps = ("--topology", "ps:sync", "--workers", "4", "--servers", "2", "--reduce-group", "2", "--steps", "20", "--checkpoint-every", "4")
        self.train(*steps)
        expected = self.hash("run")
        self.remove("run")
        p = self.start("train", *SMALL, *steps, "--delay", "0:constant:100", "--restart", "2")
        p.behind(3)
        p.kill_now("worker 3")
        self.assertIn("starting it again", p.ends())
        self.assertIn("step-20", self.checkpoints("run"))
        self.assertEqual(self.hash("run"), expected)

    def test_dry_run(self):
        done = self.train("--workers", "4", "--reduce-group", "2", "--topology", "ps:sync", "--dry-run")
        self.bits("--workers", "4", "--reduce-group", "2", "--topology", "ps:sync")
        told = {(w["role"], w["rank"]): w for w in json.loads(done.stdout)["wire"]}
        for rank in self.wire:
            w = told[rank["role"], rank["rank"]]
            self.assertEqual((w["predicted_sent"], w["predicted_received"]), (rank["predicted_sent"], rank["predicted_received"]))
            self.assertNotIn("across", w)

    def test_roles_started_one_by_one(self):
        self.refused("scheduler", "--topology", "ps:sync", "--workers", "4", "--set", "reduce_group=host", "--model", "tiny", "--data", "demo",
                     said="give the number of workers of each machine")

    def test_hundreds_of_ranks(self):
        """More ranks than a kernel of a GPU can add: the same sums in groups, whatever the stage."""
        many = ("--workers", "264", "--launch", "threads", "--reduce-group", "22", "--dtype", "bf16", "--steps", "2", "--seq", "8")
        self.assertEqual(self.bits(*many, "--topology", "zero:1"), self.bits(*many, "--topology", "zero:3"))
        self.assertIn("a ring has at most 4096 ranks",
                      self.train("--workers", "5000", "--topology", "zero:1", "--launch", "threads", status=2).stderr)

    def test_each_machine_is_a_group(self):
        """Four ranks on two machines, as Open MPI would tell them: the ranks agree on groups of two."""
        plain = self.bits("--workers", "4", "--topology", "zero:2", "--reduce-group", "2")
        own = self.bits("--workers", "4", "--topology", "zero:2", "--reduce-group", "host")
        self.assertEqual(own, self.bits("--workers", "4", "--topology", "zero:2"))
        self.assertNotEqual(own, plain)
        two = ('export OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=$((OMPI_COMM_WORLD_RANK % 2)); exec "$@"')
        odd = two.replace("% 2", "/ 2")
        for script, status in ((two, 0), (odd, 2)):
            done = self.run_it("-n", "4", "--oversubscribe", "--bind-to", "none", "sh", "-c", script, "sh", PROGRAM, "train", *SMALL, "--steps",
                               "4", "--workers", "4", "--topology", "zero:2", "--reduce-group", "host", program="mpirun", status=status)
            if status:
                self.assertIn("the ranks of a machine must be known and follow each other", done.stderr)
            else:
                self.assertEqual(json.loads(done.stdout)["weights_hash"], plain[0])

    def test_a_star_of_started_ranks_knows_its_machines(self):
        """Rank r is worker r: rank 1 of four on two machines, as torchrun tells it; and where ranks take turns between machines."""
        for rank, status in (("1", 0), ("0", 2)):  # rank 0 speaks
            for topology in ("ps:sync",) if status else ("ps:sync", "zero:1"):
                done = self.run_it(f"RANK={rank}", "WORLD_SIZE=4", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
                                   "MASTER_PORT=29511", PROGRAM, "train", "--workers", "4", "--topology", topology, "--reduce-group", "host",
                                   *(["--print-config"] if not status else []), program="env", status=status)
                if status:
                    self.assertIn("follow each other", done.stderr)
                else:
                    self.assertIn('"reduce_group":\t2', done.stdout)


if __name__ == "__main__":
    unittest.main()
