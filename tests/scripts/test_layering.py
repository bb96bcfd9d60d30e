#!/usr/bin/env python3
"""Who may include whom, and the house rules a machine can check: file and function lengths."""
import os
import re
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MODULES = {
    "kernels": {"kernels"},
    "shared": {"shared", "kernels", "proto"},
    "ps": {"ps", "shared", "kernels", "proto"},
    "decentral": {"decentral", "shared", "kernels"},
}
# header pattern: the only files that may include it
PRIVATE = {
    r"zmq\.h": r"ps/net/.*|shared/launch/rendezvous\.[ch]",
    r"mpi\.h": r"decentral/collective/collective_mpi\.c",
    r"nccl\.h": r"tests/.*",
    r"(cuda|cublas|cudnn|cuda_).*": r"kernels/cuda/.*",
}
FILE_LINES, FUNCTION_LINES = 500, 70
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.M)


def includes_against_rules(path, text):
    """Sentences about the includes of one file; path is relative to the top of the repository."""
    module = path.split("/")[0]
    found = []
    for header in INCLUDE.findall(text):
        header = os.path.normpath(header)
        if header.startswith(".."):
            found.append(f"{path} includes {header}: write the path from the top of the repository")
        target = header.split("/")[0]
        if module in MODULES and "/" in header and target in set(MODULES) | {"proto", "tests", "experiments"} \
                and target not in MODULES[module]:
            found.append(f"{path} includes {header}: {module}/ may use {', '.join(sorted(MODULES[module]))} only")
        for pattern, allowed in PRIVATE.items():
            if re.fullmatch(pattern, header) and not re.fullmatch(allowed, path):
                if not path.startswith("tests/"):
                    found.append(f"{path} includes {header}: only {allowed} may")
    if path not in ("starring.c",) and not path.startswith("tests/"):
        if {"ps", "decentral"} <= {h.split("/")[0] for h in INCLUDE.findall(text)}:
            found.append(f"{path} sees both ps/ and decentral/: only starring.c may")
    return found


def functions_too_long(path, text):
    found, start = [], 0
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if re.match(r"[A-Za-z_].*\)\s*\{\s*$", line) or re.match(r"\{\s*$", line):
            start = number
        # A signature that goes on over several lines ends in ") {" with an indent.
        elif not start and re.match(r"\s+.*\)\s*\{\s*$", line) and number > 1 and re.match(r"[A-Za-z_].*,\s*$", lines[number - 2]):
            start = number - 1
        elif line.startswith("}"):
            if start and number - start > FUNCTION_LINES:
                found.append(f"{path}:{start}: a function of {number - start} lines")
            start = 0
    return found


def sources(*endings):
    for folder, folders, files in os.walk(TOP):
        folders[:] = [d for d in folders if not d.startswith((".", "build", "runs")) and d not in ("data", "vectors", "__pycache__")]
        for name in files:
            if name.endswith(endings):
                path = os.path.join(folder, name)
                with open(path, encoding="utf-8") as f:
                    yield os.path.relpath(path, TOP), f.read()


class Layering(unittest.TestCase):
    def test_includes(self):
        found = [s for path, text in sources(".c", ".h", ".cu", ".cuh") for s in includes_against_rules(path, text)]
        self.assertEqual(found, [], "\n" + "\n".join(found))

    def test_lengths_of_files(self):
        long = [f"{path}: {text.count(chr(10))} lines" for path, text in sources(".c", ".h", ".cu", ".cuh", ".py")
                if text.count("\n") > FILE_LINES]
        self.assertEqual(long, [], "\n" + "\n".join(long))

    def test_lengths_of_functions(self):
        long = [s for path, text in sources(".c", ".cu") for s in functions_too_long(path, text)]
        self.assertEqual(long, [], "\n" + "\n".join(long))

    def test_there_is_something_to_check(self):
        self.assertGreater(sum(1 for _ in sources(".c", ".h")), 20)


class TheRulesThemselves(unittest.TestCase):
    """The checks above must be able to fail."""

    def test_forbidden_includes_are_found(self):
        for path, header in (("shared/train/train.c", "ps/ps.h"), ("shared/report/x.c", "decentral/zero/zero.h"),
                             ("kernels/cpu/adamw.c", "shared/core/error.h"), ("ps/worker/worker.c", "decentral/zero/zero.h"),
                             ("decentral/zero/zero.c", "ps/net/wire.h"), ("decentral/zero/zero.c", "mpi.h"),
                             ("shared/train/train.c", "zmq.h"), ("kernels/cpu/x.c", "cuda_runtime.h"),
                             ("decentral/zero/zero.c", "nccl.h"), ("ps/server/server.c", "../shared/core/error.h")):
            self.assertEqual(len(includes_against_rules(path, f'#include "{header}"\n')), 1, (path, header))
        both = '#include "ps/ps.h"\n#include "decentral/zero/zero.h"\n'
        self.assertTrue(includes_against_rules("experiments/x.c", both))
        self.assertFalse(includes_against_rules("starring.c", both))

    def test_allowed_includes_pass(self):
        for path, header in (("ps/net/net.c", "zmq.h"), ("decentral/collective/collective_mpi.c", "mpi.h"),
                             ("ps/net/wire.c", "proto/ps.pb-c.h"), ("shared/train/train.c", "kernels/backend.h")):
            self.assertEqual(includes_against_rules(path, f"#include <{header}>\n"), [], (path, header))

    def test_long_functions_are_found(self):
        body = "    x();\n" * (FUNCTION_LINES + 1)
        self.assertTrue(functions_too_long("x.c", "int f(void) {\n" + body + "}\n"))
        self.assertTrue(functions_too_long("x.c", "int f(int a,\n      int b) {\n" + body + "}\n"))
        self.assertFalse(functions_too_long("x.c", "int f(void) {\n    x();\n}\n"))


if __name__ == "__main__":
    unittest.main()
