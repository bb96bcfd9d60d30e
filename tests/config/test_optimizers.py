#!/usr/bin/env python3
"""Every optimizer and OneCycle's moving betas, in whole runs: star and ring end with the same bits, a checkpoint of one goes
on in the other, and the optimizer's memory is its states, predicted and measured."""
import json
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs

STEPS = 4
TINY = ["--model", "tiny", "--seq", "16", "--batch", "2", "--threads", "1", "--no-weights", "--quiet", "--data", "text.txt",
        "--set", "eval_batches=none"]
DECAY = {"weight_decay": 0.1}
CYCLE = {"type": "OneCycle", "params": {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-2, "cycle_first_step_size": 2,
                                        "cycle_min_mom": 0.5}}
# name: (type, parameters, states per parameter, scheduler)
OPTIMIZERS = {
    "plain": ("SGD", {"lr": 0.1, **DECAY}, 0, None),
    "momentum": ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.25, **DECAY}, 1, None),
    "nesterov": ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}, 1, None),
    "lion": ("Lion", {"lr": 1e-3, "betas": [0.9, 0.99], **DECAY}, 1, None),
    "rmsprop": ("RMSprop", {"lr": 1e-3, "alpha": 0.95, **DECAY}, 1, None),
    "rmsprop-momentum": ("RMSprop", {"lr": 1e-3, "momentum": 0.9}, 2, None),
    "cycle": ("AdamW", {"lr": 1e-3, **DECAY}, 2, CYCLE),
}


def ring(stage):
    return ["--topology", f"zero:{stage}", "--workers", "2"]


def star(servers):
    return ["--topology", "ps:sync", "--workers", "2", "--servers", str(servers)]


class Optimizers(Runs):
    corpus = 900

    def setUp(self):
        super().setUp()
        for name, (kind, params, _, scheduler) in OPTIMIZERS.items():
            self.write(json.dumps({"optimizer": {"type": kind, "params": params}, **({"scheduler": scheduler} if scheduler else {})}), name + ".json")

    def train(self, name, where, *more, dtype="bf16", steps=STEPS):
        return json.loads(self.run_it("train", "-c", name + ".json", *TINY, *where, "--dtype", dtype, "--steps", str(steps), "--json", *more).stdout)

    def check_memory(self, summary, states, what):
        """Masters and each state are fp32 of the same elements; predicted to the byte."""
        self.assert_as_predicted(summary, what)
        for m in summary["memory"]:
            self.assertEqual(m["peak"]["optimizer"], states * m["peak"]["master"], what)

    def test_bits_and_memory(self):
        for name, (_, _, states, _) in OPTIMIZERS.items():
            runs = [self.train(name, where) for where in (star(2), ring(0), ring(1), ring(3))]
            self.assertEqual({r["weights_hash"] for r in runs}, {runs[0]["weights_hash"]}, name)
            self.assertLess(runs[0]["loss"]["last"], runs[0]["loss"]["first"], name)
            for run in runs:
                self.check_memory(run, states, (name, run["topology"]))

    def test_on_the_host(self):
        for name in OPTIMIZERS:
            here = self.train(name, ring(2))
            there = self.train(name, ring(2), "--set", "zero_optimization.offload_optimizer.device=cpu")
            self.assertEqual(there["weights_hash"], here["weights_hash"], name)
            self.assert_as_predicted(there, name)

    def test_a_checkpoint_goes_on_elsewhere(self):
        for name in ("plain", "momentum", "lion", "cycle"):
            whole = self.train(name, ring(2), dtype="fp16")
            self.train(name, star(2), "--checkpoint-every", "2", "--out", name, dtype="fp16", steps=2)
            rest = self.train(name, ring(3), "--resume", name, "--out", name + "-rest", dtype="fp16")
            self.assertEqual(rest["weights_hash"], whole["weights_hash"], name)

    def test_each_setting_counts(self):
        """A key that is left out changes the result: no key is read for nothing."""
        base = {name: self.train(name, ring(1))["weights_hash"] for name in ("momentum", "lion", "rmsprop", "cycle")}
        self.assertEqual(len(set(base.values())), 4)
        for name, change in (("momentum", "optimizer.params.dampening=0"), ("momentum", "optimizer.params.momentum=0.8"),
                             ("momentum", "optimizer.params.weight_decay=0"), ("lion", "optimizer.params.betas=[0.9,0.9]"),
                             ("lion", "optimizer.params.weight_decay=0"),
                             ("rmsprop", "optimizer.params.alpha=0.9"), ("rmsprop", "optimizer.params.momentum=0.5"),
                             ("rmsprop", "optimizer.params.eps=1e-3"), ("rmsprop", "optimizer.params.weight_decay=0"),
                             ("cycle", "scheduler.params.cycle_momentum=false"), ("cycle", "scheduler.params.cycle_min_mom=0.6"),
                             ("cycle", "scheduler.params.cycle_first_stair_count=1"),
                             ("momentum", "optimizer.params.nesterov=true")):
            more = ["--set", "optimizer.params.dampening=0"] if "nesterov" in change else []
            other = self.train(name, ring(1), "--set", change, *more)["weights_hash"]
            self.assertNotEqual(other, base[name], change)


if __name__ == "__main__":
    unittest.main()
