"""What the tests of experiments/gpu_check.py share: where things are, a folder to work in, a build whose device programs
are scripts."""
import json
import os
import stat
import subprocess
import sys
import tempfile
import types
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "experiments"))

from gpucheck import work  # noqa: E402  pylint: disable=wrong-import-position

PROGRAM = os.environ.get("STARRING", os.path.join(TOP, "build", "starring"))
BUILD = os.path.dirname(PROGRAM)
EMULATED = os.path.join(BUILD, "tests", "emulated")
EMULATION = {"STARRING_CUDA_SO": os.path.join(EMULATED, "libstarring_cuda.so"), "LD_LIBRARY_PATH": EMULATED}
CHECK = os.path.join(TOP, "experiments", "gpu_check.py")
on_the_emulated_device = unittest.skipUnless(os.path.exists(EMULATION["STARRING_CUDA_SO"]), "no emulated device was built")


def run(*argv, env=None, limit=None):  # a hang: the runner's limit
    return subprocess.run(list(argv), capture_output=True, text=True, cwd=TOP, timeout=limit, check=False,
                          env={**os.environ, **(env or {})})


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def script(self, name, text):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as f:
            f.write("#!/bin/sh\n" + text)
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        return path

    def checker(self, facts=None, limit=60, **options):
        here = types.SimpleNamespace(top=TOP, env=dict(os.environ), libraries=[], program=PROGRAM)
        checker = work.Checker(here, self.folder, types.SimpleNamespace(**{"quick": True, "seed": 1, "python": None, **options}))
        checker.facts = facts or {}
        checker.begin(work.Part("part", "", limit))
        return checker

    def document(self, out):
        with open(os.path.join(out, "gpu-check.json"), encoding="utf-8") as f:
            return json.load(f)

    def toy_build(self, name, **families):
        """A folder for --build: the program, and device programs that are these scripts."""
        for family, text in families.items():
            self.script(os.path.join(name, "tests", "device", f"test_device_{family}"), text)
        os.symlink(PROGRAM, os.path.join(self.folder, name, "starring"))
        return os.path.join(self.folder, name)

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
