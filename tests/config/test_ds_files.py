#!/usr/bin/env python3
"""DeepSpeed's files of tests/data/ds_configs as people have them, run as they stand: a few steps of a small model in the stage
that each asks for, with the bits of the plainest run of the same settings."""
import json
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import TOP, Runs

FILES = os.path.join(TOP, "tests", "data", "ds_configs")
TINY = ["--model", "tiny", "--seq", "16", "--threads", "1", "--steps", "2", "--no-weights", "--quiet", "--json",
        "--data", "text.txt", "--workers", "2", "--set", "eval_batches=none"]
# file: (stage, dtype, sequences of a step, what it says of the file)
RUNS = {
    "01-zero1-adam-warmup": (1, "fp32", 8, []),
    "02-zero2-fp16-auto-offload": (2, "fp32", 8, ["unknown key min_lr is ignored",
                                                  "requests something unsupported (zero_optimization.offload_param.device)"]),
    "03-onebit-adam-nccl": (0, "fp32", 8, []),
    "04-zero3-fp16-adamw": (3, "fp16", 8, []),
    "05-zero3-offload-optimizer-cpu": (3, "fp32", 8, []),
    "06-zero3-offload-param-cpu-missing-comma": (3, "fp32", 8, []),
    "07-zero3-offload-nvme": (3, "fp32", 8, []),
    "08-llama-practice": (2, "fp16", 32, []),
    "09-zero3-bf16-auto": (3, "bf16", 8, []),
}
# Bytes that are then not on the device, by the ledger.
OFFLOADED = {
    "02-zero2-fp16-auto-offload": ("master", "optimizer"),
    "05-zero3-offload-optimizer-cpu": ("master", "optimizer"),
    "06-zero3-offload-param-cpu-missing-comma": ("master", "optimizer", "parameter"),
}


class DeepSpeedFiles(Runs):
    shared, corpus = True, 900

    def train(self, name, *more, status=0):
        return self.run_it("train", "-c", os.path.join(FILES, name + ".json"), *TINY, *more, status=status)

    @staticmethod
    def nvme(folder):
        """07's paths are placeholders."""
        return [word for part in ("optimizer", "param") for word in
                ("--set", f"zero_optimization.offload_{part}.nvme_path={folder}")]

    def test_each_runs_as_it_stands(self):
        for name, (stage, dtype, batch, words) in RUNS.items():
            with self.subTest(name):
                p = self.train(name, *(self.nvme(self.folder) if "nvme" in name else []))
                summary, said = json.loads(p.stdout), p.stderr
                self.assertEqual((summary["topology"], summary["dtype"]), (f"zero:{stage}", dtype))
                self.assertEqual(summary["tokens_per_step"], batch * 16)
                for word in words:
                    self.assertIn(word, said)
                self.assert_as_predicted(summary, name)
                for m in summary["memory"]:
                    for kind in OFFLOADED.get(name, ()):
                        self.assertEqual(m["peak"][kind], 0, (name, kind))
                    self.assertTrue(name not in OFFLOADED or m["peak"]["offload"] > 0, name)
                off = [word for part in ("optimizer", "param") for word in
                       ("--set", f"zero_optimization.offload_{part}={{\"device\": \"none\"}}")]
                # Several micro-batches (08) are summed in another order in other stages.
                plain = json.loads(self.train(name, "--topology", f"zero:{stage if batch > 8 else 0}", *off).stdout)
                self.assertEqual(summary["weights_hash"], plain["weights_hash"], name)

    def test_the_placeholder_is_told(self):
        self.assertRegex(self.train("07-zero3-offload-nvme", status=2).stderr,
                         r"nvme_path /nvme_data does not exist: give it with --set \S+nvme_path=DIR")

    def test_all_files_are_here(self):
        self.assertEqual({f[:-5] for f in os.listdir(FILES) if f.endswith(".json")}, {*RUNS})


if __name__ == "__main__":
    unittest.main()
