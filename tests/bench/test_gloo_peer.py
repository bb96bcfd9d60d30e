#!/usr/bin/env python3
"""experiments/gloo_peer.py on a stand-in for PyTorch, whose calls take a known time, and beside the program."""
import json
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import EXPERIMENTS, PROGRAM, Runs

SCRIPT = os.path.join(EXPERIMENTS, "gloo_peer.py")
TORCH = '''
class Tensor(list):
    def chunk(self, n):
        return [self[i::n] for i in range(n)]
    def item(self):
        return self[0]
float64 = None
def zeros(n):
    return Tensor([0.0] * n)
def tensor(values, dtype=None):
    return Tensor(values)
def set_num_threads(n):
    assert n >= 1
'''
DISTRIBUTED = '''
import os, time
class ReduceOp:
    MAX = 1
def init_process_group(name, init_method, rank, world_size):
    assert name == "gloo" and init_method.startswith("tcp://127.0.0.1:") and 0 <= rank < world_size
def barrier(): pass
def destroy_process_group(): pass
def broadcast(x, root): time.sleep(0.002)
def reduce(x, root): pass
def all_reduce(x, op=None): pass
def all_gather(parts, x): assert sum(map(len, parts)) == len(x) * len(parts)
def reduce_scatter(y, parts): raise RuntimeError("there is none\\nhere")
'''


class GlooPeer(Runs):
    def peer(self, *words, status=0, torch=True):
        if torch:
            os.makedirs(self.at("torch"), exist_ok=True)
            self.write(TORCH, "torch/__init__.py")
            self.write(DISTRIBUTED, "torch/distributed.py")
        p = subprocess.run([sys.executable, SCRIPT, "--iterations", "3", "--warmup", "1", *words], check=False, capture_output=True, text=True,
                           env={**os.environ, "PYTHONPATH": self.at(".")})
        self.assertEqual(p.returncode, status, p.stderr)
        return p

    def test_the_table_is_that_of_bench_collective(self):
        p = self.peer("--min-bytes", "4K", "--max-bytes", "64K", "--json")
        told = json.loads(p.stdout)
        self.assertEqual([(r["operation"], r["size"]) for r in told["rows"]],
                         [(op, size) for op in ("broadcast", "all_reduce", "reduce", "all_gather") for size in (4096, 16384, 65536)])
        self.assertIn("reduce_scatter: this PyTorch's Gloo does not have it: there is none\n", p.stderr)
        self.assertGreaterEqual(told["rows"][0]["in_place"]["seconds"], 0.002)
        own = json.loads(self.run_it("bench", "collective", "--ranks", "2", "--device", "cpu", "--op", "broadcast", "--max-bytes", "1K", "--iterations", "1", "--json").stdout)
        self.assertLessEqual(set(told), set(own))
        self.assertLessEqual(set(told["rows"][0]), set(own["rows"][0]))
        self.assertLessEqual(set(told["rows"][0]["in_place"]), set(own["rows"][0]["in_place"]))
        self.assertRegex(self.peer("--op", "broadcast", "--max-bytes", "4K").stdout, r"(?m)^  broadcast +4096 +\d+\.\d\d +\d+\.\d{3} +\d+\.\d{3}$")

    def test_in_turn_with_the_program(self):
        told = json.loads(self.peer("--program", PROGRAM, "--rounds", "2", "--op", "broadcast", "--min-bytes", "4K", "--max-bytes", "16K", "--json").stdout)
        self.assertEqual([(r["operation"], r["size"]) for r in told["rows"]], [("broadcast", 4096), ("broadcast", 16384)])
        for row in told["rows"]:
            self.assertGreater(row["tcp_seconds"], 0)
            self.assertGreater(row["over_gloo"], 0)

    def test_what_it_cannot_do_is_said(self):
        self.assertIn("--op all_to_all: expected some of broadcast", self.peer("--op", "all_to_all", status=2).stderr)
        self.assertIn("at least 2 ranks", self.peer("--ranks", "1", status=2).stderr)


if __name__ == "__main__":
    unittest.main()
