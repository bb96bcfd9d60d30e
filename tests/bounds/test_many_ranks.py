#!/usr/bin/env python3
"""Predictions for 4,096 workers and 512 servers, against the formulas by hand."""
import json
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs

N, S, B = 4096, 512, 2  # workers, servers, bytes of bf16
MIB = 1 << 20           # 256 x N elements: to multiples of it units are padded
LLAMA = {"model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 16, "intermediate_size": 2816,
         "vocab_size": 32000, "max_position_embeddings": 128, "tie_word_embeddings": False}
EMBEDDING = 32000 * 1024
BLOCK = 2 * 1024 + 3 * 1024 * 1024 + 1024 * 1024 + 3 * 2816 * 1024
HEAD = 1024 + 32000 * 1024
UNITS = [EMBEDDING, BLOCK, BLOCK, HEAD]
PADDED = [-(-u // MIB) * MIB for u in UNITS]
P = sum(PADDED)
U = (N - 1) * P // N * B  # of one collective over all units


class ManyRanks(Runs):
    def predict(self, *words):
        model = self.write(json.dumps(LLAMA), "config.json")
        return json.loads(self.run_it("train", "--model", model, "--dtype", "bf16", "--seq", "32", "--batch", "1", "--workers", str(N), "--dry-run",
                                      "--json", *words).stdout)

    def ranks(self, said, what, role, count):
        rows = [row for row in said[what] if row["role"] == role]
        self.assertEqual([row["rank"] for row in rows], list(range(count)))
        return rows

    def test_a_star(self):
        self.assertEqual(P, (32 + 13 + 13 + 32) * MIB)
        said = self.predict("--topology", "ps:sync", "--servers", str(S))
        self.assertEqual(said["params"], sum(UNITS))
        for row in self.ranks(said, "wire", "worker", N):
            self.assertEqual(row["predicted_sent"], P * B)
            self.assertEqual(row["predicted_received"], P * B)
        servers = self.ranks(said, "wire", "server", S)
        for way in "predicted_sent", "predicted_received":
            self.assertEqual(sum(row[way] for row in servers), N * P * B)
            self.assertLess(max(row[way] for row in servers), 1.05 * N * P * B / S)
        memory = self.ranks(said, "memory", "server", S)
        self.assertEqual(sum(row["predicted"]["master"] for row in memory), 4 * P)
        self.assertEqual(sum(row["predicted"]["optimizer"] for row in memory), 8 * P)
        for row in memory:  # all gradients but the one whose turn it is
            self.assertEqual(row["transport_bound_bytes"], (N - 1) * row["predicted"]["master"] // 4 * B)
        self.assertEqual(self.ranks(said, "memory", "worker", N)[-1]["predicted"]["gradient"], P * B)

    def test_rings(self):
        for stage in range(4):
            said = self.predict("--topology", f"zero:{stage}")
            wire, memory = self.ranks(said, "wire", "worker", N), self.ranks(said, "memory", "worker", N)
            self.assertEqual({json.dumps({**row, "rank": 0}) for row in wire}, {json.dumps(wire[0])})
            sent, held = wire[0]["predicted_sent"], memory[-1]["predicted"]
            if stage < 3:
                self.assertEqual(sent, 2 * U)
            else:
                self.assertTrue(2 * U < sent <= 3 * U)
            self.assertEqual(held["master"], 4 * P // (N if stage else 1))
            self.assertEqual(held["optimizer"], 8 * P // (N if stage else 1))
            self.assertEqual(held["parameter"], P * B // (N if stage == 3 else 1))

    def test_groups(self):
        """Eight ranks of a host: 511 of 4,095 blocks leave it."""
        said = self.predict("--topology", "zero:1", "--reduce-group", "8")
        wire = said["wire"][0]
        self.assertEqual(wire["predicted_sent"], 2 * U)
        self.assertEqual(wire["across"]["predicted_sent"], 2 * U * 511 // 4095)
        self.assertEqual(wire["across"]["predicted_sent_ungrouped"], 2 * U * 4088 // 4095)
        self.assertEqual(wire["messages"], 2 * len(UNITS) * (512 * 7 + 511))
        self.assertEqual(wire["across"]["messages"], 2 * len(UNITS) * 511)


if __name__ == "__main__":
    unittest.main()
