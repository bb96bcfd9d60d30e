#!/usr/bin/env python3
"""docs/ring.md and docs/star-codecs.md: the figures that follow from a prediction are what the program predicts now."""
import json
import os
import re
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import EXPERIMENTS, TOP, Runs

with open(os.path.join(TOP, "docs", "ring.md"), encoding="utf-8") as page:
    PAGE = page.read()
with open(os.path.join(TOP, "docs", "star-codecs.md"), encoding="utf-8") as page:
    CODES = page.read()


def table(page, heading):
    """The cells of each row of the table below the row that begins so."""
    lines = page[page.index(heading):].split("\n")
    end = next(i for i, line in enumerate(lines) if not line.startswith("|"))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:end]]


class RingPage(Runs):
    def whole(self, *args):
        return json.loads(self.run_it("train", "--dry-run", "--json", *args).stdout)

    def dry(self, *args):
        return self.whole(*args)["wire"][0]

    def near(self, text, count, share=0.0006):
        self.assertAlmostEqual(float(text.removesuffix(" MiB")), count / 2**20, delta=share * count / 2**20, msg=text)

    def test_many_ranks(self):
        rows = table(PAGE, "| ranks | sent a step |")
        self.assertEqual([row[0] for row in rows], ["8", "64", "512", "4,096"])
        for ranks, sent, messages, across, there, without, memory in rows:
            said = self.whole("--model", "gpt2-124m", "--topology", "zero:3", "--dtype", "bf16", "--reduce-group", "8",
                         "--workers", ranks.replace(",", ""))
            wire = said["wire"][0]
            self.near(sent, wire["predicted_sent"])
            self.near(across, wire["across"]["predicted_sent"])
            self.near(without, wire["across"]["predicted_sent_ungrouped"])
            self.near(memory, said["memory"][0]["predicted_bytes"])
            self.assertEqual((messages, there), (f"{wire['messages']:,}", f"{wire['across']['messages']:,}"))

    def test_gathering_once(self):
        for model, textbook, sent, less in table(PAGE, "| model | textbook, 3U |"):
            said = self.whole("--model", model.split()[0], "--topology", "zero:3", "--workers", "2", "--dtype", "bf16")
            three = self.dry("--model", model.split()[0], "--topology", "zero:2", "--workers", "2", "--dtype", "bf16")["predicted_sent"] * 3 // 2
            count = said["wire"][0]["predicted_sent"]
            for text, value in ((textbook, three), (sent, count)):
                self.assertEqual(text, f"{value / 1e6:.0f} MB" if "MB" in text else f"{value / 2**20:.2f} MiB", model)
            self.assertEqual(less, f"{100 * (count / three - 1):.0f}%", model)

    def test_secondary_shards(self):
        rows = table(PAGE, "| | sent | of it to other groups | messages | there | weights kept |")
        self.assertEqual(len(rows), 4)
        args = ["--model", "gpt2-124m", "--topology", "zero:3", "--workers", "64", "--dtype", "bf16", "--seq", "256"]
        shards, groups = ["--set", "zero_optimization.zero_hpz_partition_size=8"], ["--reduce-group", "8"]
        neither = self.whole(*args, *groups)["wire"][0]["across"]["predicted_sent_ungrouped"]
        for (_, sent, across, messages, there, kept), more in zip(rows, ([], shards, groups, groups + shards)):
            said = self.whole(*args, *more)
            wire = said["wire"][0]
            self.near(sent, wire["predicted_sent"], 0.001)
            self.near(across, wire["across"]["predicted_sent"] if more else neither, 0.001)
            self.near(kept, said["memory"][0]["predicted"]["parameter"], 0.001)
            self.assertEqual((messages, there), (f"{wire['messages']:,}", f"{wire['across']['messages']:,}" if more else ""))

    def test_recomputation(self):
        for model, *cells in table(PAGE, "| | none | cheap | block | block, inputs on the host |"):
            for cell, how, host in zip(cells, ("none", "cheap", "block", "block"), ("false", "false", "false", "true")):
                entry = self.whole("--model", model, "--topology", "local", "--dtype", "bf16", "--batch", "4", "--seq", "1024", "--set",
                              f"activation_checkpointing.recompute={how}", "--set", f"activation_checkpointing.cpu_checkpointing={host}")["memory"][0]
                pinned = f", and {entry['pinned_bytes'] / 2**20:.1f} pinned" if entry["pinned_bytes"] else ""
                self.assertEqual(cell, f"{entry['predicted']['activation'] / 2**20:.1f}{pinned}", (model, how, host))

    def test_codes(self):
        for code, _, _, sent, received in table(CODES, "| `ps:sync` | loss | held out |"):
            name, share = re.fullmatch(r"`(\w+)`(?:, share ([0-9.]+))?", code).groups()
            wire = self.dry("-c", os.path.join(EXPERIMENTS, "demo.json"), "--topology", "ps:sync", "--workers", "2", "--set",
                       f"parameter_server.compression={name}", *(["--set", f"parameter_server.compression_share={share}"] if share else []))
            count, less, *_ = re.split(r": | times", sent) + [""]
            self.assertEqual((count, received), (f"{wire['predicted_sent']:,}", f"{wire['predicted_received']:,}"), code)
            if less:
                self.assertEqual(float(less), round(wire["predicted_received"] / wire["predicted_sent"], len(less.partition(".")[2])), code)

    def test_gathering_ahead(self):
        loop = re.search(r"for p in 0 auto 1e9; do\s+build/starring train (.*?) \\\n\s+(.*?)\$p --out", PAGE)
        args = loop.group(1).split() + loop.group(2).split()
        said = re.search(r"two micro-batches a step: ([0-9,]+), ([0-9,]+) and ([0-9,]+) bytes sent a step", PAGE).groups()
        for value, count in zip(("0", "auto", "1e9"), said):
            wire = self.dry(*args[:-1], args[-1] + value)
            self.assertEqual(format(wire["predicted_sent"], ","), count, value)

    def test_bundles(self):
        part = PAGE[PAGE.index("## Small units together"):]
        rows = re.findall(r"^\| ([0-9, ]+) \| (\d+) \| (\d+) \| (\d+) \|$", part[:part.index("## Groups")], re.M)
        self.assertEqual([stages for stages, *_ in rows], ["0, 1, 2", "3"])
        for stages, *messages in rows:
            for stage in stages.split(", "):
                for bucket, count in zip(("auto", "15e6", "5e8"), messages):
                    sizes = [w for way in ("reduce", "allgather") for w in ("--set", f"zero_optimization.{way}_bucket_size={bucket}")]
                    wire = self.dry("--model", "gpt2-124m", "--workers", "2", "--topology", f"zero:{stage}", "--dtype", "bf16", *sizes)
                    self.assertEqual(wire["messages"], int(count), (stage, bucket))


if __name__ == "__main__":
    unittest.main()
