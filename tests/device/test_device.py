#!/usr/bin/env python3
"""gpu_check.py and the device programs that it runs: on the emulated CUDA device where it was built, and what they say
where there is no device."""
import os
import re
import sys
import unittest

from gpu_check_helper import BUILD, CHECK, EMULATION, PROGRAM, Folder, on_the_emulated_device, run


@unittest.skipUnless(os.path.exists(PROGRAM), f"{PROGRAM} is not built: make check builds and names it")
class WithoutADevice(Folder):
    MISSING = {"STARRING_CUDA_SO": "/nowhere/libstarring_cuda.so"}

    def test_device_programs_are_skipped_with_the_reason(self):
        p = run(os.path.join(BUILD, "tests", "device", "test_device_reduce"), env=self.MISSING)
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertIn("device: skipped: STARRING_CUDA_SO names /nowhere/libstarring_cuda.so", p.stdout)
        self.assertIn("[  SKIPPED ] reduce_matches_ref", p.stdout)
        self.assertNotIn("[       OK ]", p.stdout)

    def test_gpu_check_ends_at_once_with_the_reason(self):
        p = run(sys.executable, CHECK, "--build", BUILD, "--out", self.folder, env=self.MISSING, limit=60)
        self.assertEqual(p.returncode, 1)
        self.assertIn("gpu-check: no GPU to check: --device cuda: STARRING_CUDA_SO names", p.stderr)
        self.assertFalse(os.path.exists(self.at("gpu-check.json")))

    def test_gpu_check_wants_a_build(self):
        p = run(sys.executable, CHECK, "--build", self.folder, "--out", self.folder)
        self.assertEqual(p.returncode, 1)
        self.assertIn("run make", p.stderr)


@on_the_emulated_device
class OnTheEmulatedDevice(Folder):
    def check_parts(self, *words, env=None):
        return self.check(BUILD, self.folder, *words, env=env)

    def test_everything_passes(self):
        parts = ["facts", "ops", "parity", "bits", "collectives", "step-0.5b", "choices-124m", "kernels-124m"]
        status, document, text = self.check_parts(*parts)
        self.assertEqual(status, 0, text)
        self.assertTrue(document["passed"])
        self.assertEqual(document["device"]["name"], "emulated GPU")
        found = {p["name"]: p for p in document["parts"]}
        self.assertEqual([p["name"] for p in document["parts"]], parts)
        for name in parts:
            self.assertEqual(found[name]["status"], "passed", text)
        passed = {c["name"] for p in document["parts"] for c in p["checks"] if c["status"] == "passed"}
        for name in ("optimizer: each_update_matches_ref", "reduce: reduce_matches_ref", "reduce: cast_matches_ref",
                     "matmul: test_against_reference", "attention without cuDNN: test_against_reference",
                     "PyTorch's vectors: gpt2_device", "bf16, 1 rank: zero:3 = local", "bf16, 1 rank: ps:sync over shm = local",
                     "bf16, 2 ranks: ps:sync over tcp = zero:0", "bf16, 2 ranks: zero:3 = zero:0", "bf16, 2 ranks: zero:0 again",
                     "bf16, 2 ranks: zero:2: memory as predicted, to the byte", "tiny, logits 1.25 GiB", "tiny, GELU: apart",
                     "tiny, bias gradient: epilogue", "NCCL, 1 rank"):
            self.assertIn(name, passed, text)
        self.assertGreater(len(found["kernels-124m"]["figures"]), 20)
        page = re.sub(" +", " ", self.read("gpu-check.md"))
        self.assertTrue(page.startswith("# emulated GPU, "))
        self.assertIn("| star and ring, equality of bits, bf16 | ok |", page)

    def test_other_random_numbers_pass_twice(self):
        p = run(os.path.join(BUILD, "tests", "device", "test_device_optimizer"), env=EMULATION)
        self.assertEqual(p.returncode, 0, p.stdout + p.stderr)
        self.assertIn("device: random numbers of STARRING_TEST_SEED=", p.stdout)
        self.assertNotIn("SKIPPED", p.stdout)

    def test_the_sanitizer_is_believed(self):
        self.script("compute-sanitizer", 'case "$5" in *_norm) echo "========= ERROR SUMMARY: 2 errors"; exit 99;; esac\n'
                                         'echo "========= ERROR SUMMARY: 0 errors"\n')
        status, document, _ = self.check_parts("memcheck", env={"PATH": self.folder + ":" + os.environ["PATH"]})
        self.assertEqual(status, 1)
        checks = {c["name"]: c for c in document["parts"][0]["checks"]}
        self.assertEqual(checks["norm"]["status"], "failed")
        self.assertIn("2 errors", checks["norm"]["why"])
        self.assertEqual(checks["reduce"]["status"], "passed")
        self.assertEqual(len(checks), 10)


if __name__ == "__main__":
    unittest.main()
