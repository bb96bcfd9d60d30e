#!/usr/bin/env python3
"""gpu_check.py and the device programs that it runs: on the emulated CUDA device where it was built, and what they say
where there is no device; gpu_peers.py where there is no PyTorch."""
import json
import os
import stat
import subprocess
import sys
import tempfile
import types
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(TOP, "experiments"))

from gpucheck import correct, page, place, speed, work  # noqa: E402  pylint: disable=wrong-import-position

PROGRAM = os.environ.get("STARRING", os.path.join(TOP, "build", "starring"))
BUILD = os.path.dirname(PROGRAM)
EMULATED = os.path.join(BUILD, "tests", "emulated")
CHECK = os.path.join(TOP, "experiments", "gpu_check.py")
PEERS = os.path.join(TOP, "experiments", "gpu_peers.py")


def run(*argv, env=None, limit=280):
    return subprocess.run(list(argv), capture_output=True, text=True, cwd=TOP, timeout=limit, check=False,
                          env={**os.environ, **(env or {})})


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def script(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write("#!/bin/sh\n" + text)
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        return path

    def checker(self, **options):
        here = types.SimpleNamespace(top=TOP, env=dict(os.environ), libraries=[], program=PROGRAM)
        return work.Checker(here, self.folder, 60, types.SimpleNamespace(**{"quick": True, "seed": 1, **options}))


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
        self.assertFalse(os.path.exists(os.path.join(self.folder, "gpu-check.json")))

    def test_gpu_check_wants_a_build(self):
        p = run(sys.executable, CHECK, "--build", self.folder, "--out", self.folder)
        self.assertEqual(p.returncode, 1)
        self.assertIn("run make", p.stderr)

    def test_peers_without_pytorch(self):
        bare = self.script("python", f'exec {sys.executable} -S "$@"\n')
        p = run(sys.executable, PEERS, "--program", PROGRAM, "--python", bare, "--device", "cpu", "--models", "tiny")
        self.assertEqual(p.returncode, 3, p.stderr)
        self.assertIn("nothing to compare with: PyTorch is not installed", p.stderr)


@unittest.skipUnless(os.path.exists(os.path.join(EMULATED, "libstarring_cuda.so")), "no emulated device was built")
class OnTheEmulatedDevice(Folder):
    ENV = {"STARRING_CUDA_SO": os.path.join(EMULATED, "libstarring_cuda.so"), "LD_LIBRARY_PATH": EMULATED}

    def check(self, *argv, env=None):
        """(exit status, the document, output) of gpu_check.py."""
        p = run(sys.executable, CHECK, "--build", BUILD, "--out", self.folder, "--quick", "--seed", "1", *argv,
                env={**self.ENV, **(env or {})})
        with open(os.path.join(self.folder, "gpu-check.json"), encoding="utf-8") as f:
            return p.returncode, json.load(f), p.stdout + p.stderr

    def test_everything_passes(self):
        parts = ["device", "kernels", "parity", "topologies", "steps", "bench", "collectives"]
        status, document, text = self.check("--parts", ",".join(parts))
        self.assertEqual(status, 0, text)
        self.assertTrue(document["passed"])
        self.assertEqual(document["device"]["name"], "emulated GPU")
        found = {p["name"]: p for p in document["parts"]}
        self.assertEqual([p["name"] for p in document["parts"]], parts)
        for name in parts:
            self.assertEqual(found[name]["status"], "passed", text)
        passed = {c["name"] for p in document["parts"] for c in p["checks"] if c["status"] == "passed"}
        for name in ("optimizer: adamw_matches_ref", "reduce: reduce_matches_ref", "reduce: cast_matches_ref",
                     "matmul: test_against_reference", "attention without cuDNN: test_against_reference",
                     "PyTorch's vectors: gpt2_device", "bf16, 1 rank: zero:3 = local", "bf16, 1 rank: ps:sync = local",
                     "bf16, 2 ranks: ps:sync = zero:0", "bf16, 2 ranks: zero:3 = zero:0", "bf16, 2 ranks: zero:0 again",
                     "bf16, 2 ranks: zero:2: memory as predicted, to the byte", "tiny: bench step", "NCCL, 1 rank"):
            self.assertIn(name, passed, text)
        self.assertGreater(len(found["bench"]["figures"]), 20)
        with open(os.path.join(self.folder, "gpu-check.md"), encoding="utf-8") as f:
            page = f.read()
        self.assertTrue(page.startswith("# emulated GPU, "))
        self.assertIn("| star and ring, equality of bits | ok |", page)

    def test_other_random_numbers_pass_twice(self):
        p = run(os.path.join(BUILD, "tests", "device", "test_device_optimizer"), env=self.ENV)
        self.assertEqual(p.returncode, 0, p.stdout + p.stderr)
        self.assertIn("device: random numbers of STARRING_TEST_SEED=", p.stdout)
        self.assertNotIn("SKIPPED", p.stdout)

    def test_a_part_without_time_is_skipped_and_nothing_is_called_passed(self):
        status, document, _ = self.check("--parts", "kernels,parity", "--budget", "1")
        self.assertEqual(status, 1)
        self.assertFalse(document["passed"])
        self.assertEqual([p["why"] for p in document["parts"]], ["no time left"] * 2)

    def test_the_sanitizer_is_believed(self):
        self.script("compute-sanitizer", 'case "$5" in *_norm) echo "========= ERROR SUMMARY: 2 errors"; exit 99;; esac\n'
                                         'echo "========= ERROR SUMMARY: 0 errors"\n')
        status, document, _ = self.check("--parts", "memcheck", env={"PATH": self.folder + ":" + os.environ["PATH"]})
        self.assertEqual(status, 1)
        checks = {c["name"]: c for c in document["parts"][0]["checks"]}
        self.assertEqual(checks["norm"]["status"], "failed")
        self.assertIn("2 errors", checks["norm"]["why"])
        self.assertEqual(checks["reduce"]["status"], "passed")
        self.assertEqual(len(checks), 8)


class Results(Folder):
    """What gpu_check.py makes of programs that fail."""

    def take(self, text, status=0, errors=""):
        part = work.Part("kernels", "", 10)
        correct.take_tests(part, "norm", work.Outcome(["norm"], status, text, errors, 1.0))
        return {c["name"]: (c["status"], c.get("why", "")) for c in part.checks}

    def test_tests_that_fail_say_why(self):
        place_of = "[   LINE   ] --- ./a.h:3: error: Failure!\n"
        found = self.take("[       OK ] a\n[  FAILED  ] b\n[  FAILED  ] c\n", 2, "ERROR: element 3: got 1\n[  ERROR   ] --- "
                          + place_of + "[  ERROR   ] --- 0x1 != 0x2\n" + place_of + "[  FAILED  ] 2 test(s), listed below:\n"
                          "[  FAILED  ] b\n[  FAILED  ] c\n")
        self.assertEqual(found, {"norm: a": ("passed", ""), "norm: b": ("failed", "element 3: got 1"),
                                 "norm: c": ("failed", "0x1 != 0x2")})

    def test_a_test_that_finds_no_device_has_failed(self):
        found = self.take("device: skipped: no driver\n[  SKIPPED ] a\n[  SKIPPED ] 1 test(s), listed below:\n")
        self.assertEqual(found, {"norm: a": ("failed", "no driver")})

    def test_crashes_hangs_and_silence(self):
        self.assertEqual(self.take("[       OK ] a\n", -11)["norm: the program"], ("failed", "died of SIGSEGV"))
        self.assertEqual(self.take("[       OK ] a\n", None)["norm: the program"], ("failed", "still running after 1 s"))
        self.assertEqual(self.take("")["norm: the program"], ("failed", "ran no test"))
        self.assertEqual(self.take("[       OK ] a\n", 3, "oh\n")["norm: the program"], ("failed", "oh"))

    def test_unequal_runs_fail(self):
        """A trainer whose zero:2 has another loss in step 2, and whose ps:sync does not run."""
        def train(name, label, *_):
            if label == "ps:sync":
                raise correct.NoRun("failed", "refused")
            r = correct.runs.Run(name, "")
            r.label, r.losses, r.metrics = label, ["1.5", "1.25" if label == "zero:2" else "1.125"], [{"step": 1}, {"step": 2}]
            r.summary = {"weights_hash": "ab", "memory": [{"role": "worker", "rank": 0, "predicted": {"gradient": 8},
                                                           "peak": {"gradient": 8 + 8 * (label == "zero:3")}}]}
            return r
        part = work.Part("topologies", "", 60)
        correct.check_group(types.SimpleNamespace(checker=self.checker(), run=train), part, "fp32", 2)
        failed = {c["name"]: c["why"] for c in part.checks if c["status"] == "failed"}
        self.assertEqual(sorted(failed), ["fp32, 2 ranks: ps:sync", "fp32, 2 ranks: zero:2 = zero:0",
                                          "fp32, 2 ranks: zero:3: memory as predicted, to the byte"])
        self.assertIn("at step 2", failed["fp32, 2 ranks: zero:2 = zero:0"])
        self.assertIn("predicted 8, counted 16", failed["fp32, 2 ranks: zero:3: memory as predicted, to the byte"])
        self.assertEqual(part.status, "failed")

    def test_the_page_shows_targets_and_failures(self):
        steps, peers = work.Part("steps", "training steps", 10), work.Part("peers", "PyTorch", 10)
        steps.check("gpt2-124m: bench step", "failed", "no memory")
        steps.figure("tiny", batch=2, seq=32, step_seconds=0.002, tokens_per_second=32000.0, mfu_datasheet=0.25,
                     share_of_matmul=0.5, wanted=0.4, met=False, memory={"ledger_peak_bytes": 2**30})
        side = {"tokens_per_second": 1000.0, "peak_bytes": 2**31}
        peers.figure("tiny", batch=2, seq=32, starring=side, pytorch=side, ratio=1.2, wanted=1.1, met=True)
        text = page.page({"device": {"name": "G"}, "when": "2026-01-02 03:04 UTC", "command": "c", "seconds": 1.0, "host": "h",
                          "versions": {"starring": "r"}}, [steps, peers])
        self.assertIn("# G, 2026-01-02\n", text)
        self.assertIn("- FAILED: gpt2-124m: bench step: no memory", text)
        self.assertIn("| tiny | 2 | 32 | 2.00 | 32,000 | 25.0% | 40.0% | missed | 50.0% | 1.0 |", text)
        self.assertIn("| tiny | 2 | 32 | 1,000 | 1,000 | 1.20 | 1.10 | reached | 2.0 | 2.0 |", text)

    def test_a_program_is_ended_at_its_limit(self):
        outcome = self.checker().run(["/bin/sh", "-c", "echo began; sleep 60"], limit=0.5)
        self.assertIsNone(outcome.status)
        self.assertEqual((outcome.text, outcome.verdict), ("began\n", "failed"))
        self.assertIn("still running after", outcome.why())
        self.assertLess(outcome.seconds, 20)

    def test_a_program_for_which_the_part_has_no_time_is_skipped(self):
        checker = self.checker()
        checker.begin(work.Part("kernels", "", 0.5))
        outcome = checker.run(["sleep", "60"])
        self.assertEqual((outcome.verdict, outcome.why()), ("skipped", "no time left"))

    def test_largest_batch_that_fits(self):
        checker = self.checker()
        checker.facts = {"memory_bytes": speed.RESERVE + 20 * 2**30}
        checker.run = lambda argv, **_: work.Outcome(argv, 0, json.dumps(
            {"memory": [{"predicted_bytes": int(argv[argv.index("--batch") + 1]) * 2**30}]}), "", 0.1)
        self.assertEqual(speed.largest_batch(checker, "gpt2-1558m"), 16)

    def test_libraries_of_pip_are_found(self):
        packages = os.path.join(self.folder, "site")
        for name in ("nvidia/cu77/lib/libcublasLt.so.77", "nvidia/cudnn/lib/libcudnn.so.9"):
            os.makedirs(os.path.dirname(os.path.join(packages, name)))
            with open(os.path.join(packages, name), "wb"):
                pass
        with open(os.path.join(self.folder, "starring"), "wb"):
            pass
        with open(os.path.join(self.folder, place.CUDA_SO), "wb") as f:
            f.write(b"\0libcublasLt.so.77\0")
        known, sites = place.cached_libraries, place.site_packages
        place.cached_libraries, place.site_packages = dict, lambda: [packages]
        given = {k: os.environ.pop(k) for k in ("STARRING_CUDA_SO", "LD_LIBRARY_PATH") if k in os.environ}
        try:
            found = place.Place(self.folder)
        finally:
            place.cached_libraries, place.site_packages = known, sites
            os.environ.update(given)
        self.assertEqual(found.libraries[0], ("libcublasLt.so.77", os.path.join(packages, "nvidia/cu77/lib"), "pip's packages"))
        self.assertIn(os.path.join(packages, "nvidia/cu77/lib"), found.env["LD_LIBRARY_PATH"].split(":"))
        self.assertEqual(found.env["STARRING_CUDA_SO"], os.path.join(self.folder, place.CUDA_SO))


if __name__ == "__main__":
    unittest.main()
