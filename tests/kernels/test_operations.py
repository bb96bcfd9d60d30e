#!/usr/bin/env python3
"""Every operation of kernels/operations.h is compared with its reference, on the host, on a device and in emulation, and
its bits are hashed. (That it has a row of `bench kernels` is tests/job/test_job_bench.c's.)"""
import os
import re
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Operations without a kernel of our own to emulate, and why.
NOT_EMULATED = {"OP_MATMUL": "cuBLASLt's; tests/cuda/test_kernels_cuda_matmul.c has what we ask of it"}


def read(*path):
    with open(os.path.join(TOP, *path), encoding="utf-8") as f:
        return f.read()


def operations(text):
    return re.findall(r"^ +OPERATION\((OP_\w+),", text, re.M)


def updates(text):
    """The rows of UPDATES: where a test goes over that list, it has them all."""
    return re.findall(r"^ +ROW\(first, (OP_\w+),", text, re.M)


def families(makefile, name):
    """The families of tests that a makefile lists: NAME = a b c."""
    return re.search(rf"^{name} *= *(.*)$", makefile, re.M).group(1).split()


def missing(wanted, texts):
    rows = updates(read("kernels", "update.h"))
    return [op for op in wanted
            if not any(re.search(r"\bUPDATES\(" if op in rows else rf"\b{op}\b", text) for text in texts)]


class Operations(unittest.TestCase):
    def setUp(self):
        self.operations = operations(read("kernels", "operations.h")) + updates(read("kernels", "update.h"))
        self.families = families(read("tests", "device", "device.mk"), "KERNEL_FAMILIES")
        self.tests = {f: read("tests", "kernels", f"test_kernels_{f}.c") for f in self.families}

    def test_each_is_compared_with_its_reference(self):
        self.assertEqual(missing(self.operations, self.tests.values()), [])

    def test_each_is_emulated(self):
        self.assertIn("$(filter-out matmul,$(KERNEL_FAMILIES))", read("tests", "emulation", "emulation.mk"))
        emulated = [text for family, text in self.tests.items() if family != "matmul"]
        self.assertEqual(missing(self.operations, emulated), list(NOT_EMULATED))

    def test_the_bits_of_each_are_hashed(self):
        self.assertEqual(missing(self.operations, [read("tests", "bits", "bits.c")]), [])

    def test_the_rule_itself(self):
        self.assertGreater(len(self.operations), 20)
        self.assertEqual(len(self.operations), len(set(self.operations)))
        self.assertEqual(missing(["OP_ADD", "OP_ADDITION"], ["kt_check(OP_ADD, &a)"]), ["OP_ADDITION"])


if __name__ == "__main__":
    unittest.main()
