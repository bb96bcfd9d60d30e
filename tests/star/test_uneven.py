#!/usr/bin/env python3
"""Uneven ends, in real processes: seven workers and five servers, tensors of one element, parts of a KiB that end in odd tails, more
servers than keys, more threads than keys, and batches that do not come out even. Nothing hangs, and the mean is the right one: the
bits of the ring, or of the step that all have made."""
import json
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs

WORKERS, STEPS = 7, 3
MODEL = {"model_type": "gpt2", "vocab_size": 257, "n_positions": 32, "n_layer": 1, "n_head": 1, "layer_norm_epsilon": 1e-5,
         "activation_function": "gelu_new"}
PARTS = ["--set", "parameter_server.partition_bytes=1024"]
SHAPES = (["--servers", "5", *PARTS], ["--servers", "5", *PARTS, "--medium", "tcp"],
          ["--servers", "16", "--set", "parameter_server.partition_bytes=1073741824"],
          ["--servers", "2", "--set", "parameter_server.threads=64", "--medium", "tcp"],
          ["--servers-on", "workers", "--set", "parameter_server.resident=units", *PARTS, "--medium", "tcp"])


class Uneven(Runs):
    corpus = 200

    def train(self, out, topology, *more, width=8, steps=STEPS, status=0):
        self.remove(out)
        with open(self.at("model.json"), "w", encoding="utf-8") as f:
            json.dump({**MODEL, "n_embd": width}, f)
        words = ["train", "--model", "model.json", "--tokenizer", "byte", "--data", "text.txt", "--seq", "8", "--batch", "1", "--threads",
                 "1", "--dtype", "bf16", "--no-weights", "--quiet", "--set", "eval_batches=0", "--steps", str(steps), "--workers",
                 str(WORKERS), "--topology", topology, "--out", out, *more]
        said = self.run_it(*words, status=status).stderr
        if status:
            return said
        s = self.summary(out)
        self.assert_as_predicted(s)
        return s

    def test_bits(self):
        """Each star's are the ring's, whatever the parts are; a width of 1 has tensors of one element."""
        for width in (8, 1):
            self.train("ring", "zero:3", width=width)
            for shape in SHAPES:
                with self.subTest(width=width, shape=shape):
                    self.train("star", "ps:sync", *shape, width=width)
                    self.assert_same_run("star", "ring")

    def test_all_of_them(self):
        """Steps that wait for all of seven workers, by another name."""
        self.train("sync", "ps:sync", *SHAPES[0])
        for topology in ("ps:backup:0", "ps:quorum:7"):
            for shape in SHAPES[1:4]:
                self.train("star", topology, *shape)
                self.assert_same_run("star", "sync")

    def test_some_of_them(self):
        """Steps that some workers are left out of; a batch of the budget is used once, whoever takes it."""
        for topology in ("ps:backup:2", "ps:quorum:3"):
            for shape in SHAPES[1:3]:
                s = self.train("star", topology, *shape)
                self.assertEqual(s["steps"], STEPS)
        for number, more in enumerate(([], ["--set", "parameter_server.max_lead=1", "--straggle", "0:3"], ["--straggle", "6:3"],
                                       ["--set", "parameter_server.pushes_per_update=4"])):  # 21 pushes: one is left
            shape = SHAPES[number]
            with self.subTest(more=more, shape=shape):
                s = self.train("star", "ps:async", *shape, *more)
                self.assertEqual([s["samples_applied"], s["tokens_applied"]], [WORKERS * STEPS, 8 * WORKERS * STEPS])

    def test_goes_on(self):
        """Servers without a key, and threads without one, are no part of a checkpoint, and nobody waits for theirs."""
        for topology, shape, kept in (("ps:sync", SHAPES[2], 3), ("ps:async", SHAPES[3], 1)):
            more = [*shape, "--checkpoint-every", "2"]
            with self.subTest(topology=topology, shape=shape):
                # A run's last state is waited for; one that others overtake may be given up. In ps:async it counts worker 0's own steps.
                self.train("begun", topology, *more, steps=2)
                last = max(os.listdir(self.at("begun", "checkpoints")), key=lambda name: int(name.removeprefix("step-")))
                parts = [name for name in os.listdir(self.at("begun", "checkpoints", last)) if name.startswith("server-")]
                self.assertEqual(len(parts), kept)
                self.train("again", topology, *more, "--resume", f"begun/checkpoints/{last}")
                if topology != "ps:async":
                    self.train("whole", topology, *more)
                    self.assert_same_run("again", "whole", 2)

    def test_refused(self):
        """A batch that seven workers cannot share evenly is no batch."""
        for topology in ("ps:sync", "ps:async", "zero:1"):
            said = self.train("star", topology, "--set", "train_batch_size=10", status=2)
            self.assertIn("train_batch_size 10 is no multiple of", said)


if __name__ == "__main__":
    unittest.main()
