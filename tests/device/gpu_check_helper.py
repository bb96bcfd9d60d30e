"""What the tests of experiments/gpu_check.py share: where things are, a folder to work in, a build whose device programs
are scripts."""
import os
import subprocess
import sys
import types
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import EXPERIMENTS, PROGRAM, TOP, Runs
from gpucheck import work

BUILD = os.path.dirname(PROGRAM)
EMULATED = os.path.join(BUILD, "tests", "emulated")
EMULATION = {"STARRING_CUDA_SO": os.path.join(EMULATED, "libstarring_cuda.so"), "LD_LIBRARY_PATH": EMULATED}
CHECK = os.path.join(EXPERIMENTS, "gpu_check.py")
on_the_emulated_device = unittest.skipUnless(os.path.exists(EMULATION["STARRING_CUDA_SO"]), "no emulated device was built")


def run(*argv, env=None, limit=None):  # a hang: the runner's limit
    return subprocess.run(list(argv), capture_output=True, text=True, cwd=TOP, timeout=limit, check=False,
                          env={**os.environ, **(env or {})})


class Folder(Runs):
    def script(self, name, text):
        return super().script("#!/bin/sh\n" + text, name)

    def checker(self, facts=None, limit=60, **options):
        here = types.SimpleNamespace(top=TOP, env=dict(os.environ), libraries=[], program=PROGRAM)
        checker = work.Checker(here, self.folder, types.SimpleNamespace(**{"quick": True, "seed": 1, "python": None, **options}))
        checker.facts = facts or {}
        checker.begin(work.Part("part", "", limit))
        return checker

    def document(self, out):
        return self.json(out, "gpu-check.json")

    def toy_build(self, name, **families):
        """A folder for --build: the program, and device programs that are these scripts."""
        for family, text in families.items():
            self.script(os.path.join(name, "tests", "device", f"test_device_{family}"), text)
        os.symlink(PROGRAM, self.at(name, "starring"))
        return self.at(name)

    def argv(self, build, out, *words):
        return [sys.executable, CHECK, "--build", build, "--out", out, "--quick", "--seed", "1", *words]

    # The parts' limits are those of an H200 that is lent for minutes; this machine may have much else to do.
    PATIENT = ("import sys; sys.path.insert(0, sys.argv.pop(1)); import gpu_check; from gpucheck import correct, parts\n"
               "correct.RUN_LIMIT = correct.TEST_LIMIT = 6000\n"
               "for row in parts.ROWS: row.limit = 6000\n"
               "sys.exit(gpu_check.main())")

    def check(self, build, out, *words, env=None):
        """(exit status, the document, output) of gpu_check.py on the emulated device."""
        python, script, *words = self.argv(build, out, *words)
        p = run(python, "-c", self.PATIENT, os.path.dirname(script), *words, env={**EMULATION, **(env or {})})
        found = self.document(out) if os.path.exists(os.path.join(out, "gpu-check.json")) else None
        return p.returncode, found, p.stdout + p.stderr
