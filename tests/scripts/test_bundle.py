#!/usr/bin/env python3
"""bundle/make_bundle.py on what the tests were built from: what it takes along, what it leaves, its limit."""
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import PROGRAM, TOP, Runs
sys.path.append(os.path.join(TOP, "bundle"))
import make_bundle

BUILD = os.path.dirname(PROGRAM)
TEST = os.path.join(BUILD, "tests", "test_kernels_reduce")


def sanitized():
    return os.path.exists(PROGRAM) and any(n.startswith(("libasan", "libtsan", "libubsan")) for n in make_bundle.needed(PROGRAM))


@unittest.skipIf(sanitized(), "a sanitized build is not for taking along")
class Bundle(Runs):
    def setUp(self):
        super().setUp()
        self.out = self.at("bundle")

    def test_what_is_in_it(self):
        p = self.run_it(os.path.join(TOP, "bundle", "make_bundle.py"), "--build", BUILD, "--out", self.out, TEST, program=sys.executable)
        self.assertRegex(p.stdout, r"needs glibc 2\.\d+ or newer")
        libraries = os.listdir(os.path.join(self.out, "lib"))
        for name in ("libzmq.so.5", "libmpi.so.40", "libopen-rte.so.40", "libcjson.so.1", "libcmocka.so.0", "libsodium.so.23", "liburing.so.2"):
            self.assertIn(name, libraries)
        for name in libraries:
            self.assertFalse(name.startswith(("libc.so", "libm.so", "ld-linux", "libcuda", "libcublas", "libstdc++")), name)
        for name in ("bin/starring", "bin/mpirun", "bin/gpu-check", "openmpi/bin/orterun", "tests/test_kernels_reduce",
                     "tests/data/vectors/llama/config.json", "experiments/gpu_check.py", "LICENSE", "README.md", "REVISION", "docs/gpu.md"):
            self.assertTrue(os.path.exists(os.path.join(self.out, name)), name)
        self.assertTrue(os.path.exists(self.out + ".tar.gz"))
        for folder, _, names in os.walk(os.path.join(self.out, "lib")):
            for name in names:
                if name != "libstarring_cuda.so":
                    dynamic = subprocess.run(["readelf", "-d", os.path.join(folder, name)], capture_output=True, text=True, check=True)
                    self.assertNotRegex(dynamic.stdout, r"\((RPATH|RUNPATH)\)", name)
        shown = subprocess.run([os.path.join(self.out, "bin", "mpirun"), "--version"], capture_output=True, text=True, check=False)
        self.assertRegex(shown.stdout, r"\d+\.\d+\.\d+", shown.stderr)

    def test_the_limit_is_that_of_the_folder(self):
        bundle = make_bundle.Bundle(self.out)
        for path in (bundle.at("lib", "large"), self.out + ".tar.gz"):
            with open(path, "wb") as f:
                f.truncate(3 << 20)
        self.assertTrue(make_bundle.within_limit(bundle, 3))
        self.assertFalse(make_bundle.within_limit(bundle, 2.9))

    def test_a_missing_library_is_named(self):
        path = self.at("program")
        with open(TEST, "rb") as f:
            data = f.read()
        self.assertIn(b"libcmocka.so.0\0", data)
        with open(path, "wb") as f:
            f.write(data.replace(b"libcmocka.so.0\0", b"libnowhere.so0\0"))
        os.chmod(path, 0o755)
        with self.assertRaisesRegex(make_bundle.Failed, "needs libnowhere.so0"):
            make_bundle.needed(path)

    def test_a_library_keeps_its_other_entries(self):
        path = self.at("libmpi.so")
        with open(make_bundle.needed(os.path.join(BUILD, "libstarring_mpi.so"))["libmpi.so.40"], "rb") as f, open(path, "wb") as to:
            to.write(f.read())

        def entries():
            text = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
            return [line.split(None, 1)[1] for line in text.splitlines() if line.startswith(" 0x") and "NULL" not in line]

        before = entries()
        make_bundle.drop_runpath(path)
        self.assertEqual(entries(), [e for e in before if not e.startswith(("(RUNPATH)", "(RPATH)"))])


if __name__ == "__main__":
    unittest.main()
