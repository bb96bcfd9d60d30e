#!/usr/bin/env python3
"""The CPU's bits do not depend on the vector instructions that a program was built for, on what the processor has when
it starts, or on the number of threads: tests/bits/bits.c with the program's own objects and as built in two other ways, a whole training with the C library told
of an older processor, and the sources themselves."""
import os
import re
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import PROGRAM, TOP, Runs

BITS = os.path.join(os.path.dirname(PROGRAM), "tests", "bits")
# glibc then takes the variants of its functions that a processor without these has; unknown names are passed over.
OLDER = {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-FMA,-FMA4,-AVX2,-AVX2_Usable,-FMA_Usable,-AVX512F"}
# Objects that call libm's transcendental functions, whose last bits differ between processors and releases.
LIBM = re.compile(r"(?<![\w.>])(?:exp|exp2|expm1|log|log2|log10|log1p|pow|sin|cos|tan|tanh|sinh|cosh|erf|cbrt|hypot)f?\s*\(")
WAYS = ("fma", "avx512_bf16", "amx")
COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)


def hashes(build, env=None):
    """{"matmul fp32": hash}"""
    p = subprocess.run([os.path.join(BITS, build)], capture_output=True, text=True, check=False,
                       env={**os.environ, **(env or {})})
    if p.returncode != 0:
        raise AssertionError(f"{build}: exit status {p.returncode}\n{p.stdout}{p.stderr}")
    return dict(line.rsplit(" ", 1) for line in p.stdout.splitlines())


@unittest.skipUnless(os.path.exists(PROGRAM), f"{PROGRAM} is not built: make check builds and names it")
class Bits(unittest.TestCase):
    def test_vectors_of_any_width(self):
        own, wide = hashes("own"), hashes("vec16")
        self.assertGreaterEqual(len(own), 27)
        self.assertEqual(own, wide)

    def test_a_processor_without_avx_and_fma(self):
        plain, own = hashes("plain", OLDER), hashes("own")
        self.assertGreaterEqual(len(plain), 27)
        self.assertEqual(own, plain)


@unittest.skipUnless(os.path.exists(PROGRAM), f"{PROGRAM} is not built: make check builds and names it")
class Training(Runs):
    def train(self, name, *flags, **how):
        p = self.run_it("train", "--model", "tiny", "--data", "demo", "--steps", "3", "--seq", "32", "--device", "cpu", "--topology", "local",
                        "--out", name, *flags, **how)
        return p, self.summary(name) if p.returncode == 0 else None

    def norms(self, name):
        return [line["grad_norm"] for line in self.curve(name)]

    def test_the_c_librarys_variants_do_not_matter(self):
        for dtype in ("fp32", "bf16", "fp16"):
            _, here = self.train(dtype, "--dtype", dtype)
            _, older = self.train(dtype + "-older", "--dtype", dtype, env=OLDER)
            self.assertEqual(here["weights_hash"], older["weights_hash"], dtype)
            self.assertEqual(here["loss"], older["loss"], dtype)

    def test_every_way_of_the_cpu_has_the_same_bits(self):
        _, auto = self.train("auto", "--dtype", "bf16")
        self.assertIn(auto["cpu_kernel"]["name"], WAYS)
        for way in WAYS:
            p, found = self.train(way, "--dtype", "bf16", "--set", f"cpu.kernel={way}", status=None)
            if found is None:
                self.assertNotIn(way, ("fma", auto["cpu_kernel"]["name"]))
                self.assertEqual(p.returncode, 2)
                self.assertRegex(p.stderr, rf"cpu\.kernel {way}: this pro(gram|cessor) .*: auto takes the fastest way that there is, to the same bits")
                continue
            self.assertEqual(found["cpu_kernel"]["name"], way)
            self.assertIn(f"cpu kernel  {way} (program built for ", self.run_it("summary", way).stdout)
            self.assertIn(f"weights     hash {auto['weights_hash']}\n", p.stdout)
            # Three steps of Adam in bf16 may round to the same weights; the gradients' norm shows a difference at once.
            self.assertEqual(self.norms(way), self.norms("auto"))
            # As it was asked for: another machine that reads it may have other ways.
            self.assertEqual([self.json(name, "config.json")["cpu"]["kernel"] for name in (way, "auto")], [way, "auto"])

    def test_a_way_that_would_do_nothing_is_refused(self):
        for dtype in ("fp32", "fp16"):
            for more in ((), ("--dry-run",)):
                p, _ = self.train(dtype, "--dtype", dtype, "--set", "cpu.kernel=fma", *more, status=2)
                self.assertIn(f"cpu.kernel fma: it is about products of bf16, and this run's dtype is {dtype}: leave it out", p.stderr)
        p, _ = self.train("unknown", "--set", "cpu.kernel=avx2", status=2)
        self.assertIn('"avx512_bf16"', p.stderr)


class Sources(unittest.TestCase):
    def test_nothing_that_enters_weights_calls_libm(self):
        found = []
        for module in ("kernels", "shared", "ps", "decentral"):
            for folder, _, names in os.walk(os.path.join(TOP, module)):
                if re.search(r"/kernels/(ref|cuda)\b", folder):
                    continue  # the oracle, and another device
                for name in names:
                    if not name.endswith((".c", ".h")):
                        continue
                    with open(os.path.join(folder, name), encoding="utf-8") as f:
                        text = COMMENT.sub("", f.read())
                    found += [f"{folder}/{name}: {hit}" for hit in LIBM.findall(text)]
        self.assertEqual(found, [], "their bits differ between machines: take kernels/exact_math.h")


if __name__ == "__main__":
    unittest.main()
