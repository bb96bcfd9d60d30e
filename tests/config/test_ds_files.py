#!/usr/bin/env python3
"""DeepSpeed's files of tests/data/ds_configs as people have them, run as they stand: a few steps of a small model in the stage
that each asks for, with the bits of the plainest run of the same settings."""
import json
import os
import subprocess
import tempfile
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.environ.get("STARRING", os.path.join(TOP, "build", "starring"))
FILES = os.path.join(TOP, "tests", "data", "ds_configs")
LIMIT_S = 240
TINY = ["--model", "tiny", "--seq", "16", "--threads", "1", "--steps", "2", "--no-weights", "--quiet", "--json",
        "--data", "text.txt", "--workers", "2", "--set", "eval_batches=none"]
# file: (stage, dtype, sequences of a step, what it says of the file)
RUNS = {
    "01-zero1-adam-warmup": (1, "fp32", 8, []),
    "02-zero2-fp16-auto-offload": (2, "fp32", 8, ["unknown key min_lr is ignored", "offload_param",
                                                  "without effect below stage 3, in DeepSpeed as here"]),
    "03-onebit-adam-nccl": (0, "fp32", 8, []),
    "04-zero3-fp16-adamw": (3, "fp16", 8, []),
    "05-zero3-offload-optimizer-cpu": (3, "fp32", 8, []),
    "06-zero3-offload-param-cpu-missing-comma": (3, "fp32", 8, []),
    "07-zero3-offload-nvme": (3, "fp32", 8, []),
    "08-llama-practice": (2, "fp16", 32, []),
    "09-zero3-bf16-auto": (3, "bf16", 8, []),
}
# What is then not on the device, by the ledger.
OFFLOADED = {
    "02-zero2-fp16-auto-offload": ("master", "optimizer"),
    "05-zero3-offload-optimizer-cpu": ("master", "optimizer"),
    "06-zero3-offload-param-cpu-missing-comma": ("master", "optimizer", "parameter"),
}


class DeepSpeedFiles(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        with open(os.path.join(cls.folder, "text.txt"), "w", encoding="utf-8") as f:
            f.write("".join(f"{n} miles to go before {n * n % 83} sleeps\n" for n in range(900)))

    def run_it(self, name, *more):
        return subprocess.run([PROGRAM, "train", "-c", os.path.join(FILES, name + ".json"), *TINY, *more], cwd=self.folder,
                              capture_output=True, text=True, timeout=LIMIT_S, check=False)

    def train(self, name, *more):
        p = self.run_it(name, *more)
        self.assertEqual(p.returncode, 0, (name, p.stderr))
        return json.loads(p.stdout), p.stderr

    @staticmethod
    def nvme(folder):
        """07's paths are placeholders."""
        return [word for part in ("optimizer", "param") for word in
                ("--set", f"zero_optimization.offload_{part}.nvme_path={folder}")]

    def test_each_runs_as_it_stands(self):
        for name, (stage, dtype, batch, words) in RUNS.items():
            with self.subTest(name):
                summary, said = self.train(name, *(self.nvme(self.folder) if "nvme" in name else []))
                self.assertEqual((summary["topology"], summary["dtype"]), (f"zero:{stage}", dtype))
                self.assertEqual(summary["tokens_per_step"], batch * 16)
                for word in words:
                    self.assertIn(word, said)
                for m in summary["memory"]:
                    self.assertEqual(m["predicted"], m["peak"], name)
                    for kind in OFFLOADED.get(name, ()):
                        self.assertEqual(m["peak"][kind], 0, (name, kind))
                    self.assertTrue(name not in OFFLOADED or m["peak"]["offload"] > 0, name)
                off = [word for part in ("optimizer", "param") for word in
                       ("--set", f"zero_optimization.offload_{part}={{\"device\": \"none\"}}")]
                # Several micro-batches (08) are summed in another order in other stages.
                plain, _ = self.train(name, "--topology", f"zero:{stage if batch > 8 else 0}", *off)
                self.assertEqual(summary["weights_hash"], plain["weights_hash"], name)

    def test_the_placeholder_is_told(self):
        p = self.run_it("07-zero3-offload-nvme")
        self.assertEqual(p.returncode, 2, p.stderr)
        self.assertRegex(p.stderr, r"nvme_path /nvme_data does not exist: give it with --set \S+nvme_path=DIR")

    def test_all_files_are_here(self):
        self.assertEqual({f[:-5] for f in os.listdir(FILES) if f.endswith(".json")}, {*RUNS})


if __name__ == "__main__":
    unittest.main()
