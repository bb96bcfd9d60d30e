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
# What calls libm's transcendental functions: their last bits differ between processors and releases.
LIBM = re.compile(r"(?<![\w.>])(?:exp|exp2|expm1|log|log2|log10|log1p|pow|sin|cos|tan|tanh|sinh|cosh|erf|cbrt|hypot)f?\s*\(")
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
        self.assertEqual({k: v for k, v in own.items() if k in plain}, plain)
        self.assertLessEqual(set(own) - set(plain), {"matmul-pairs bf16"})  # wants hardware fma

    def test_the_two_products_differ(self):
        # Else comparing them apart, and refusing to mix them, would be for nothing.
        found = hashes("own")
        if "matmul-pairs bf16" not in found:
            self.skipTest("built without fused multiply-adds")
        self.assertNotEqual(found["matmul bf16"], found["matmul-pairs bf16"])


@unittest.skipUnless(os.path.exists(PROGRAM), f"{PROGRAM} is not built: make check builds and names it")
class Training(Runs):
    def train(self, name, *flags, **how):
        p = self.run_it("train", "--model", "tiny", "--data", "demo", "--steps", "3", "--seq", "32", "--device", "cpu", "--topology", "local",
                        "--out", name, *flags, **how)
        return p, self.summary(name) if p.returncode == 0 else None

    def norms(self, name):
        return [line["grad_norm"] for line in self.curve(name)]

    def test_the_c_librarys_variants_do_not_matter(self):
        for dtype in ("fp32", "fp16"):
            _, here = self.train(dtype, "--dtype", dtype)
            _, older = self.train(dtype + "-older", "--dtype", dtype, env=OLDER)
            self.assertEqual(here["weights_hash"], older["weights_hash"], dtype)
            self.assertEqual(here["loss"], older["loss"], dtype)

    def test_the_kernel_is_named_and_can_be_chosen(self):
        p, fma = self.train("fma", "--dtype", "bf16", "--set", "cpu.kernel=fma")
        self.assertEqual(fma["cpu_kernel"]["product"], "fma")
        self.assertIn("cpu kernel fma", p.stdout)
        self.assertIn(f"weights     hash {fma['weights_hash']} (fma)\n", p.stdout)
        self.assertNotIn("other bits", p.stdout)
        self.assertEqual(self.json("fma", "config.json")["cpu"]["kernel"], "fma")
        p, pairs = self.train("pairs", "--dtype", "bf16", "--set", "cpu.kernel=bf16-pairs", status=None)
        if pairs is None:
            self.assertIn("built without fused multiply-adds", p.stderr)
            self.assertEqual(p.returncode, 2)
            return
        self.assertEqual(pairs["cpu_kernel"]["product"], "bf16-pairs")
        again = self.run_it("summary", "pairs")
        for text in (p.stdout, again.stdout):
            self.assertIn(f"weights     hash {pairs['weights_hash']} (bf16-pairs: other bits than fma's, which --set "
                          "cpu.kernel=fma gives everywhere)\n", text)
        # Three steps of Adam in bf16 may round to the same weights; the gradients' norm shows the difference at once.
        self.assertNotEqual(self.norms("pairs"), self.norms("fma"))

    def test_what_cannot_be_is_refused(self):
        p, _ = self.train("fp32", "--dtype", "fp32", "--set", "cpu.kernel=bf16-pairs", status=2)
        self.assertIn("cpu.kernel bf16-pairs", p.stderr)
        self.assertIn("--set cpu.kernel=fma", p.stderr)
        p, _ = self.train("unknown", "--set", "cpu.kernel=avx2", status=2)
        self.assertIn('"bf16-pairs"', p.stderr)


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
