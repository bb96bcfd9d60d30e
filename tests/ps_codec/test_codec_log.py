#!/usr/bin/env python3
"""--log-updates where workers push codes: a line's norm is that of what the code says. In the first step, which has no errors yet,
that is the gradient's for a share of all elements, and nearly so for blocks; of few elements it is less."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs


class Log(Runs):
    def norms(self, *options):
        """The first step's pushes, by worker and key."""
        self.run_it("train", "--model", "tiny", "--data", "demo", "--steps", "2", "--seq", "24", "--batch", "1", "--workers", "2", "--threads",
                    "1", "--quiet", "--no-weights", "--force", "--out", "run", "--log-updates", "--set", "eval_batches=none", *options)
        lines = self.lines("run", "updates.jsonl")
        return {(line["worker"], line["key"]): line["norm"] for line in lines if line["step"] == 1}

    def test_norms_of_what_codes_say(self):
        for dtype, medium in (("bf16", "shm"), ("fp32", "tcp")):
            base = ("--topology", "ps:sync", "--dtype", dtype, "--medium", medium, "--set")
            plain = self.norms(*base, "parameter_server.compression=none")
            for code, share, least in (("int8", 0.01, 0.99), ("onebit", 0.01, 0.99), ("topk", 1, 1), ("topk", 0.01, 0.01), ("topk", 1e-9, 1e-6)):
                coded = self.norms(*base, f"parameter_server.compression={code}", "--set", f"parameter_server.compression_share={share}")
                self.assertEqual(coded.keys(), plain.keys())
                for key, norm in plain.items():
                    self.assertGreaterEqual(coded[key], norm * least * (1 - 1e-5), (dtype, code, share, key))
                    self.assertLessEqual(coded[key], norm * (1.01 if share == 0.01 and code != "topk" else 1 + 1e-5), (dtype, code, share, key))
                    if code == "topk" and share < 1:
                        self.assertLess(coded[key], norm, (dtype, code, share, key))

    def test_while_others_come(self):
        """A server has decoded what it applies as it comes."""
        plain = self.norms("--topology", "ps:async", "--workers", "1", "--set", "gradient_clipping=0")
        for code in ("int8", "onebit"):
            norms = self.norms("--topology", "ps:async", "--workers", "1", "--set", "gradient_clipping=0",
                               "--set", f"parameter_server.compression={code}")
            for key, norm in norms.items():
                self.assertLess(abs(norm - plain[key]), 0.01 * plain[key], (code, key))

    def test_codes_larger_than_weights(self):
        """8 bytes an element kept, in frames: servers let them in."""
        base = ("--topology", "ps:sync", "--medium", "tcp", "--dtype", "fp32", "--set")
        self.assertEqual(self.norms(*base, "parameter_server.compression=topk", "--set", "parameter_server.compression_share=1"),
                         self.norms(*base, "parameter_server.compression=none"))


if __name__ == "__main__":
    unittest.main()
