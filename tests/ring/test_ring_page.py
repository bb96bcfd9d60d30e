#!/usr/bin/env python3
"""docs/ring.md: the figures that stand beside a command are what the command says now."""
import json
import os
import re
import subprocess
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
STARRING = os.path.join(ROOT, "build", "starring")
with open(os.path.join(ROOT, "docs", "ring.md")) as page:
    PAGE = page.read()


def dry(*args):
    done = subprocess.run([STARRING, "train", "--dry-run", "--json", *args], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["wire"][0]


class RingPage(unittest.TestCase):
    def near(self, text, count):
        self.assertAlmostEqual(float(text.removesuffix(" MiB")), count / 2**20, delta=0.0006 * count / 2**20, msg=text)

    def test_many_ranks(self):
        part = PAGE[PAGE.index("**Many ranks.**"):]
        rows = re.findall(r"^\| ([0-9,]+) \|([^\n]*)\|$", part[:part.index("**DeepSpeed")], re.M)
        self.assertEqual([n for n, _ in rows], ["8", "64", "512", "4,096"])
        for ranks, cells in rows:
            sent, _, across, _, without, _ = [c.strip() for c in cells.split("|")]
            wire = dry("--model", "gpt2-124m", "--topology", "zero:3", "--dtype", "bf16", "--reduce-group", "8",
                       "--workers", ranks.replace(",", ""))
            self.near(sent, wire["predicted_sent"])
            self.near(across, wire["across"]["predicted_sent"])
            self.near(without, wire["across"]["predicted_sent_ungrouped"])

    def test_gathering_ahead(self):
        loop = re.search(r"for p in 0 auto 1e9; do\s+build/starring train (.*?) \\\n\s+(.*?)\$p --out", PAGE)
        args = loop.group(1).split() + loop.group(2).split()
        said = re.search(r"two micro-batches a step: ([0-9,]+), ([0-9,]+) and ([0-9,]+) bytes sent a step", PAGE).groups()
        for value, count in zip(("0", "auto", "1e9"), said):
            wire = dry(*args[:-1], args[-1] + value)
            self.assertEqual(format(wire["predicted_sent"], ","), count, value)

    def test_bundles(self):
        part = PAGE[PAGE.index("## Small units together"):]
        rows = re.findall(r"^\| ([0-9, ]+) \| (\d+) \| (\d+) \| (\d+) \|$", part[:part.index("**DeepSpeed")], re.M)
        self.assertEqual([stages for stages, *_ in rows], ["0, 1, 2", "3"])
        for stages, *messages in rows:
            for stage in stages.split(", "):
                for bucket, count in zip(("auto", "15e6", "5e8"), messages):
                    sizes = [w for way in ("reduce", "allgather") for w in ("--set", f"zero_optimization.{way}_bucket_size={bucket}")]
                    wire = dry("--model", "gpt2-124m", "--workers", "2", "--topology", f"zero:{stage}", "--dtype", "bf16", *sizes)
                    self.assertEqual(wire["messages"], int(count), (stage, bucket))


if __name__ == "__main__":
    unittest.main()
