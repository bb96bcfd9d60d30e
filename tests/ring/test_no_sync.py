#!/usr/bin/env python3
"""ring.no_sync: stages 2 and 3 reduce once a step, with the bits of stages 0 and 1 and of the star, as predicted."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs

NO_SYNC = ("--set", "ring.no_sync=true")
ACCUMULATE = ("--set", "gradient_accumulation_steps=3")
OWN_TYPE = ("--set", "data_types.grad_accum_dtype=bf16")


class NoSync(Runs):
    def call(self, topology, *args, status=0):
        return self.run_it("train", "--model", "tiny", "--data", "demo", "--topology", topology, "--workers", "3", "--steps", "3",
                           "--seq", "32", "--batch", "1", "--seed", "1", "--set", "eval_batches=none", "--no-weights", "--quiet",
                           "--force", "--out", "run", *args, status=status)

    def run_of(self, topology, *args):
        self.call(topology, *args)
        s = self.summary("run")
        for m in s["memory"]:
            for name, count in m["predicted"].items():
                self.assertEqual(m["peak"].get(name, 0), count, (topology, args, name))
        for w in s["wire"]:
            self.assertEqual(w["sent_per_step"], w["predicted_sent"], (topology, args))
            self.assertEqual(w["received_per_step"], w["predicted_received"], (topology, args))
        return s

    def equal(self, *more):
        runs = {t: self.run_of(t, *ACCUMULATE, *more) for t in ("ps:sync", "zero:0", "zero:1")}
        hashes = {t: r["weights_hash"] for t, r in runs.items()}
        for t in ("zero:2", "zero:3"):
            each, once = (self.run_of(t, *ACCUMULATE, *more, *extra) for extra in ((), NO_SYNC))
            hashes[t] = once["weights_hash"]
            self.assertLess(once["wire"][0]["sent_per_step"], each["wire"][0]["sent_per_step"])
            if t == "zero:2":
                self.assertEqual(once["wire"][0]["sent_per_step"], runs["zero:1"]["wire"][0]["sent_per_step"])
            self.assertGreater(once["memory"][0]["peak"]["gradient"], each["memory"][0]["peak"]["gradient"])
        self.assertEqual(len(set(hashes.values())), 1, hashes)
        return hashes["zero:2"]

    def test_bf16_summed_in_fp32(self):
        self.equal("--dtype", "bf16")

    def test_bf16_summed_in_its_own_type(self):
        self.equal("--dtype", "bf16", *OWN_TYPE)

    def test_fp32(self):
        self.equal("--dtype", "fp32")

    def test_with_all_else(self):
        plain = self.run_of("zero:1", *ACCUMULATE, "--dtype", "bf16")["weights_hash"]
        for more in (("--set", "zero_optimization.overlap_comm=false"),
                     ("--set", "activation_checkpointing.recompute=block"),
                     ("--set", "zero_optimization.offload_optimizer.device=cpu"),
                     ("--set", "zero_optimization.offload_optimizer.device=cpu", "--set", "zero_optimization.offload_param.device=cpu"),
                     ("--set", "zero_optimization.stage3_prefetch_bucket_size=0")):
            got = self.run_of("zero:3", *ACCUMULATE, "--dtype", "bf16", *NO_SYNC, *more)
            self.assertEqual(got["weights_hash"], plain, more)

    def test_nothing_to_leave_out(self):
        for topology, args, words in (("zero:1", ACCUMULATE, "zero:1 reduces whole gradients once per step"),
                                      ("zero:3", (), "one micro-batch"),
                                      ("ps:sync", ACCUMULATE, "zero:2 and zero:3"), ):
            done = self.call(topology, *args, *NO_SYNC, status=2)
            self.assertIn("ring.no_sync", done.stderr)
            self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main()
