#!/usr/bin/env python3
"""`bench step`: the arithmetic of a step's floor; and --peer, with a program that speaks as PyTorch's step does and one that does not."""
import json
import os
import signal
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs

STEP = ("bench", "step", "--model", "tiny", "--batch", "2", "--seq", "16", "--matmul", "64", "--device", "cpu")
PARAMS = 125248  # of tiny
# A peer: answers the job with $READY, then eager and compiled rounds, and keeps in "heard" what it was told.
PEER = """#!/bin/sh
read job
echo "$job" > {0}/heard
echo '{1}'
while read asked; do
    echo "$asked" >> {0}/heard
    case "$asked" in *true*) echo '{3}' ;; *) echo '{2}' ;; esac
done
"""
READY = json.dumps({"version": "9.9", "cuda": None, "threads": 2, "params": PARAMS})
EAGER = json.dumps({"seconds": [3.0, 5.0], "product_seconds": [1, 2], "peak_bytes": 1000})
COMPILED = json.dumps({"seconds": [2.0, 2.0], "product_seconds": [2, 9], "peak_bytes": 2000})


class Floor(Runs):
    def step(self, *words):
        return json.loads(self.run_it(*STEP, "--steps", "2", "--json", *words).stdout)

    def test_it_is_products_and_bytes_at_the_measured_rates(self):
        for words in ((), ("--dtype", "fp32")):
            j = self.step(*words)
            floor = j["floor"]
            self.assertAlmostEqual(floor["product_seconds"] * j["matmul_flops_per_second"], floor["product_flops"], delta=1)
            self.assertAlmostEqual(floor["copy_seconds"] * floor["copy_bytes_per_second"], floor["copy_bytes"], delta=1)
            self.assertAlmostEqual(floor["product_seconds"] + floor["copy_seconds"], floor["seconds"], delta=1e-9)
            shares = [floor[k] for k in ("share", "forward_share", "backward_share", "optimizer_share")]
            self.assertTrue(all(s > 0 for s in shares), floor)
            if j["shares_possible"]:
                self.assertLessEqual(max(shares), 1)

    def test_its_flops_are_those_of_the_products(self):
        """By hand: three products of each layer, and attention's seven causal ones of each block."""
        products = 6 * 2 * 16 * (2 * (192 * 64 + 3 * 64 * 176) + 256 * 64)
        attention = 2 * 7 * (2 * 16 * 16 * 4 * 16)
        once = self.step()["floor"]
        self.assertEqual(once["product_flops"], products + attention)
        twice = self.step("--set", "gradient_accumulation_steps=2")["floor"]
        self.assertEqual(twice["product_flops"], 2 * (products + attention))

    def test_its_bytes_hold_those_of_the_update(self):
        """A gradient is read twice, for the norm and the update; masters and moments are read and written, weights written."""
        for dtype, update in (("bf16", 2 + 2 + 24 + 2), ("fp32", 4 + 4 + 24)):
            by_length = [self.step("--dtype", dtype, "--seq", str(t))["floor"]["copy_bytes"] for t in (16, 32)]
            rest = by_length[0] - (by_length[1] - by_length[0])  # what does not grow with the tokens
            self.assertGreaterEqual(rest, PARAMS * update)
            self.assertLess(rest, 1.5 * PARAMS * update)


class Peer(Runs):
    def peer(self, *words, ready=READY, eager=EAGER, compiled=COMPILED, status=0):
        path = self.script(PEER.format(self.folder, ready, eager, compiled), "python")
        return self.run_it(*STEP, "--steps", "2", "--peer", path, *words, status=status)

    def test_the_better_of_both_counts(self):
        peer = json.loads(self.peer("--rounds", "3", "--json").stdout)["peer"]
        self.assertEqual((peer["pytorch"], peer["threads"], peer["better"], peer["peak_bytes"]), ("9.9", 2, "compiled", 2000))
        self.assertEqual((peer["eager"]["rounds"], peer["compiled"]["rounds"]), ([4.0] * 3, [2.0] * 3))
        self.assertEqual(peer["compiled"]["tokens_per_second"], 2 * 16 / 2.0)
        ratios = sorted(2.0 / ours for ours in peer["starring"]["rounds"])
        for key, ratio in zip(("ratio_least", "ratio", "ratio_most"), ratios):
            self.assertAlmostEqual(peer[key] / ratio, 1)
        job, *asked = [json.loads(line) for line in self.read("heard").splitlines()]
        self.assertEqual(asked, [{"compile": way, "steps": 2, "warmup": 0 if i else 2} for i in range(3) for way in (False, True)])
        model = job.pop("model")
        self.assertEqual((peer["matmul_flops_per_second"], job["matmul"], job["launches"]), (2 * 64**3 / 2, 64, 1))
        self.assertEqual((job["batch"], job["seq"], job["dtype"], job["device"], job["clip"]), (2, 16, "bf16", "cpu", 1))
        self.assertEqual((model["norm"], model["mlp"], model["heads"], model["kv_heads"], model["positions"], model["tied"]),
                         ("rms", "swiglu", 4, 2, 0, False))
        self.assertIn(" times the better, eager, is this step: ",
                      self.peer(eager=COMPILED, compiled=EAGER).stdout)

    def test_what_is_not_compiled_counts_eager(self):
        p = self.peer("--rounds", "2", compiled='{"error": "InvalidCxxCompiler: none"}')
        self.assertIn("8.0 tokens/s eager, not compiled (InvalidCxxCompiler: none)", p.stdout)
        self.assertIn("the better, eager,", p.stdout)
        self.assertEqual(self.read("heard").count("true"), 1)  # not asked for again

    def test_no_program_of_that_name(self):
        for name in ("nowhere/python", self.folder, self.write("text", "text"), "no-such-python"):
            self.refused(*STEP, "--peer", name, said=(f"--peer {name}: there is no such program", "a Python that has PyTorch"))

    def test_what_pytorch_has_no_step_for(self):
        for words, said in ((("--dtype", "fp16"), "give --dtype bf16 or fp32"), (("--set", "optimizer.type=SGD"), "AdamW"),
                            (("--set", "gradient_accumulation_steps=2"), "one micro-batch"),
                            (("--set", "activation_checkpointing.recompute=block"), "recomputes nothing")):
            self.refused(*STEP, *words, "--peer", "sh", said=("bench step: --peer: PyTorch's step", said))
        self.refused(*STEP, "--rounds", "2", said="--rounds needs --peer")

    def test_without_pytorch(self):
        bare = self.script(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n', "bare")
        self.refused(*STEP, "--peer", bare, said=(f"--peer {bare}: PyTorch is not installed for it (No module named 'torch')",
                                                  f"{bare} -m pip install torch"))
        for version, said in (("2.4.1", "its PyTorch 2.4.1 is older than 2.5"),):
            self.write(f'__version__ = "{version}"\n', "torch.py")
            old = self.script(f'#!/bin/sh\nPYTHONPATH={self.folder} exec {sys.executable} "$@"\n', "old")
            self.refused(*STEP, "--peer", old, said=said)

    def test_what_speaks_of_other_things(self):
        for program in ("true", "cat"):
            self.refused(*STEP, "--peer", program, said=("PyTorch's step did not answer", "give a Python that has PyTorch"))
        self.assertIn('said "hello"', self.peer(ready="hello", status=2).stderr)

    def test_another_model(self):
        other = json.dumps({"version": "9.9", "threads": 2, "params": 7})
        self.assertIn(f"tiny has {PARAMS} parameters here and 7 in PyTorch's step", self.peer(ready=other, status=1).stderr)

    def test_no_room(self):
        none = '{"no_room": "CUDA out of memory"}'
        self.assertIn("model failed beside ours; a smaller --batch needs less: CUDA out of memory",
                      self.peer(ready=none, status=1).stderr)
        self.assertIn("eager step failed beside ours; a smaller --batch needs less: CUDA out of memory",
                      self.peer(eager=none, status=1).stderr)

    def test_ctrl_c_in_its_turn_ends_both(self):
        """The bench's own thread waits for such signals now and then, and the others never: either way it ends by the signal."""
        slow = self.script(f"#!/bin/sh\nread job\necho '{READY}'\nread asked\necho $$ > {self.folder}/pid\nexec sleep 600\n", "python")
        p = self.start(*STEP, "--steps", "2", "--peer", slow)
        p.until(lambda: os.path.exists(self.at("pid")) and self.read("pid").endswith("\n"), "the peer's turn")
        p.send_signal(signal.SIGINT)
        p.ends(-signal.SIGINT)  # and no process is left

    def test_it_dies_in_its_turn(self):
        dies = self.script(f"#!/bin/sh\nread job\necho '{READY}'\nread asked\nkill -9 $$\n", "python")
        self.refused(*STEP, "--steps", "2", "--peer", dies, status=1, said="PyTorch (pid")


if __name__ == "__main__":
    unittest.main()
