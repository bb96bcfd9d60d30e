#!/usr/bin/env python3
"""Servers beside workers, and workers that keep two units at a time: the bits of ps:sync and of zero:3, whatever the servers, the
medium, the number of micro-batches and the messages; memory and bytes as predicted, bytes as a ring's stage 3 moves them; a
checkpoint, a restart and a snapshot as in any star; and what cannot be is refused."""
import itertools
import json
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs

SMALL = ["--model", "tiny", "--data", "demo", "--seq", "24", "--batch", "1", "--threads", "1", "--quiet", "--json", "--no-weights", "--force",
         "--out", "run", "--set", "eval_batches=none"]
UNITS = ("ps:sync", "--resident", "units")
BESIDE = (*UNITS, "--servers-on", "workers")
MICRO = ("--set", "gradient_accumulation_steps=3")


class Units(Runs):
    def train(self, *options, status=0):
        return self.run_it("train", *SMALL, "--steps", "4", "--set", "parameter_server.partition_bytes=4096", *options, status=status)

    def bits(self, *options):
        summary = json.loads(self.train(*options).stdout)
        self.assert_as_predicted(summary, options)
        for rank in summary["wire"]:
            for where, way in itertools.product((rank, rank.get("local", {})), ("sent", "received")):
                self.assertEqual(where.get(f"{way}_per_step"), where.get(f"predicted_{way}"), f"{options}: {rank}")
        self.wire, self.memory = summary["wire"], summary["memory"]
        return summary["weights_hash"], json.dumps(summary["loss"])

    def all_of(self, *options, topologies):
        found = {words: self.bits(*options, "--topology", *words) for words in topologies}
        self.assertEqual(len(set(found.values())), 1, f"{options}: {found}")
        return next(iter(found.values()))

    def test_one_micro_batch(self):
        """The bits of any star, for each number of servers and workers."""
        for workers, dtype in ((1, "bf16"), (2, "fp32"), (3, "bf16")):
            stars = [(*UNITS, "--servers", str(servers), "--medium", medium) for servers in sorted({1, 2, workers}) for medium in ("shm", "tcp")]
            beside = [(*BESIDE, "--medium", "shm"), (*BESIDE, "--medium", "tcp"), ("ps:sync", "--servers-on", "workers"),
                      ("ps:sync", "--servers-on", "workers", "--medium", "tcp")]
            self.all_of("--workers", str(workers), "--dtype", dtype, topologies=(("ps:sync",), ("zero:3",), *stars, *beside))
            # Nothing is decided about a step: a worker begins the next one while others may be at work on this one.
            self.all_of("--workers", str(workers), "--dtype", dtype, "--set", "gradient_clipping=0", topologies=(("zero:3",), stars[0], *beside[:2]))

    def test_several_micro_batches(self):
        """Summed as stage 3 sums them: of each micro-batch first, and then in fp32."""
        for workers, dtype in ((1, "fp32"), (2, "bf16"), (3, "bf16")):
            of_star = self.bits("--workers", str(workers), "--dtype", dtype, *MICRO, "--topology", "ps:sync")
            of_units = self.all_of("--workers", str(workers), "--dtype", dtype, *MICRO,
                                   topologies=(("zero:3",), UNITS, (*UNITS, "--servers", "2", "--medium", "tcp"), BESIDE,
                                               (*BESIDE, "--medium", "tcp"), (*BESIDE, "--set", "parameter_server.threads=2")))
            self.assertEqual(of_star == of_units, workers == 1)
            self.all_of("--workers", str(workers), "--dtype", dtype, *MICRO, "--set", "gradient_clipping=0",
                        topologies=(("zero:3",), UNITS, BESIDE, (*BESIDE, "--medium", "tcp")))

    def test_bytes_of_stage_3(self):
        """With a server beside each worker a pair moves what a rank of stage 3 moves, and holds 18P/N beside its slots."""
        for micro in ((), MICRO):
            self.bits("--workers", "2", "--dtype", "bf16", *micro, "--topology", "zero:3")
            of_ring = [(rank["sent_per_step"], rank["received_per_step"]) for rank in self.wire]
            for medium in ("shm", "tcp"):
                self.bits("--workers", "2", "--dtype", "bf16", *micro, "--topology", *BESIDE, "--medium", medium)
                pairs = [[rank for rank in self.wire if rank["rank"] == r] for r in range(2)]
                self.assertEqual([tuple(sum(rank[f"{way}_per_step"] for rank in pair) for way in ("sent", "received")) for pair in pairs], of_ring)
                for worker, server in pairs:  # what lies on the own server is on no wire
                    self.assertEqual(worker["local"]["sent_per_step"], server["local"]["received_per_step"])
                    self.assertEqual(worker["local"]["received_per_step"], worker["received_per_step"])
        plan = json.loads(self.train("--workers", "2", "--dtype", "bf16", *MICRO, "--topology", *BESIDE, "--dry-run").stdout)
        told = {(rank["role"], rank["rank"]): rank for rank in plan["wire"]}
        for rank in self.wire:
            for where, of in ((rank, told[rank["role"], rank["rank"]]), (rank["local"], told[rank["role"], rank["rank"]]["local"])):
                self.assertEqual((where["predicted_sent"], where["predicted_received"]), (of["predicted_sent"], of["predicted_received"]))
        self.assertEqual({rank["formula"] for rank in plan["memory"]}, {"0, and slots", "18P/S"})

    def test_clipping_and_skips(self):
        clip = ("--set", "gradient_clipping=0.5", *MICRO)
        self.all_of("--workers", "3", "--dtype", "bf16", *clip, topologies=(("zero:3",), UNITS, (*BESIDE, "--medium", "tcp")))
        scale = ("--set", "fp16.initial_scale_power=20", "--set", "fp16.loss_scale_window=2", "--set", "fp16.hysteresis=1", *MICRO)
        self.all_of("--workers", "2", "--dtype", "fp16", *scale, topologies=(("zero:3",), BESIDE, (*UNITS, "--medium", "tcp")))

    def test_messages_and_credits(self):
        """Messages that are lost, come twice and overtake each other; a worker that is ahead, with few credits and with many."""
        base = ("--workers", "3", "--dtype", "bf16", *MICRO)
        expected = self.bits(*base, "--topology", "zero:3")
        for medium, credit in itertools.product(("shm", "tcp"), ("8192", "67108864")):
            words = ("--topology", *BESIDE, "--medium", medium, "--set", f"parameter_server.credit_bytes={credit}")
            self.assertEqual(self.bits(*base, *words, "--straggle", "0:3", "--straggle", "1:2"), expected)
        done = self.train(*base, "--topology", *BESIDE, "--medium", "tcp", "--fault", "drop=0.05,dup=0.1,reorder=0.2")
        self.assertEqual(json.loads(done.stdout)["weights_hash"], expected[0])

    def test_goes_on(self):
        """From a checkpoint of its own, of a ring and of another star; and a worker or a server that is killed."""
        base = ("--workers", "2", "--dtype", "bf16", *MICRO, "--steps", "8", "--checkpoint-every", "2", "--set", "recovery.checkpoint_keep=0")
        expected = self.bits(*base, "--topology", "zero:3")
        for words in (BESIDE, (*UNITS, "--medium", "tcp")):
            self.assertEqual(self.bits(*base, "--topology", *words), expected)
            self.remove("kept")
            os.rename(os.path.join(self.folder, "run"), os.path.join(self.folder, "kept"))
            for after in (BESIDE, ("zero:3",)):
                done = self.train(*base, "--topology", *after, "--resume", "kept/checkpoints/step-4")
                self.assertEqual(json.loads(done.stdout)["weights_hash"], expected[0])
        clip = ("--set", "gradient_clipping=0")
        undecided = self.bits(*base, *clip, "--topology", "zero:3")
        for role, medium, how in (("worker 1", "shm", ()), ("server 0", "tcp", clip)):
            p = self.start("train", *SMALL, *base, *how, "--set", "parameter_server.partition_bytes=4096", "--topology", *BESIDE, "--medium", medium,
                           "--restart", "1", "--delay", "0:constant:100")
            p.behind(3)
            p.kill_now(role)
            p.ends()
            self.assertEqual(self.hash("run"), (undecided if how else expected)[0], role)

    def test_a_death_is_said(self):
        for role in ("worker 1", "server 1"):
            p = self.start("train", *SMALL, "--steps", "400", "--workers", "2", *MICRO, "--topology", *BESIDE, "--delay", "0:constant:50")
            p.behind(2)
            p.kill_now(role)
            self.assertIn(role, p.ends(1))
            self.remove("run")

    def test_snapshots(self):
        """Evaluated weights are those of the same steps in a ring, and the bytes of a step do not depend on them."""
        base = ("--workers", "2", *MICRO, "--set", "eval_batches=1", "--set", "eval_every=2")
        expected = self.bits(*base, "--topology", "zero:3")
        losses = self.evaluated()
        self.assertEqual(self.bits(*base, "--topology", *BESIDE), expected)
        self.assertEqual(self.evaluated(), losses)

    def evaluated(self):
        with open(os.path.join(self.folder, "run", "evals.jsonl"), encoding="utf-8") as f:
            return [(line["step"], line["val_loss"]) for line in map(json.loads, f)]

    def test_what_cannot_be_is_refused(self):
        for words, expected in (
                (("ps:sync", "--servers-on", "workers", "--servers", "3"), "puts one server next to each of the 2 workers: leave it out"),
                (("zero:3", "--resident", "units"), "is a key of a star's servers, and --topology is zero:3"),
                (("zero:3", "--servers-on", "workers"), "is a key of a star's servers, and --topology is zero:3"),
                (("gossip", "--resident", "units"), "is a key of a star's servers, and --topology is gossip")):
            self.assertIn(expected, self.train("--workers", "2", "--topology", *words, status=2).stderr)


if __name__ == "__main__":
    unittest.main()
