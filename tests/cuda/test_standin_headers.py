#!/usr/bin/env python3
"""Code that is tested on a faked CUDA runtime compiles on a machine without CUDA's headers too.

There the declarations of tests/emulation/headers stand in for them; they include less than CUDA's own headers do, so
a file that forgets an include of its own compiles where CUDA is installed and nowhere else.
"""

import glob
import os
import shutil
import subprocess
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
STANDIN = "tests/emulation/headers"


class Standin(unittest.TestCase):
    def test_every_user_of_cuda_compiles(self):
        compiler = next((c for c in ("gcc", "cc", "clang") if shutil.which(c)), None)
        if compiler is None:
            self.skipTest("no C compiler")
        sources = sorted(glob.glob("tests/cuda/*.c", root_dir=TOP)
                         + glob.glob("tests/decentral/test_decentral_nccl*.c", root_dir=TOP))
        self.assertGreater(len(sources), 5)
        flags = subprocess.run(["pkg-config", "--cflags", "libzmq", "libcjson"], capture_output=True, text=True).stdout.split()
        for source in sources:
            with self.subTest(source):
                # The stand-ins first, even where CUDA's headers are among the system's.
                done = subprocess.run([compiler, "-std=gnu17", "-D_GNU_SOURCE", "-fsyntax-only", "-I.", f"-isystem{STANDIN}",
                                       "-Werror=implicit-function-declaration", *flags, source],
                                      cwd=TOP, capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
