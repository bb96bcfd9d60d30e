"""What the tests of the built program share: where it is, a folder of the test's own, a text, runs and what they leave.

A test finds this file with: sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
"""
import json
import os
import subprocess
import tempfile
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAM = os.environ.get("STARRING", os.path.join(TOP, "build", "starring"))
LIMIT_S = 300  # of a run: it hangs
TINY = ["--model", "tiny", "--workers", "2", "--threads", "1", "--dtype", "bf16", "--no-weights"]


def folder_for(case):
    """A temporary folder that goes with a test, or with a class of tests."""
    folder = tempfile.TemporaryDirectory(prefix="starring-test-")
    (case.addClassCleanup if isinstance(case, type) else case.addCleanup)(folder.cleanup)
    return folder.name


def text(lines):
    """A text of so many lines that no two share, which the byte tokenizer takes."""
    return "".join(f"{n} bottles of beer on the wall, {n * n % 97} of them green\n" for n in range(lines))


class Runs(unittest.TestCase):
    """Tests that run the program in self.folder: one for each test, or, where setUpClass has made one, for the class."""
    folder = None

    def setUp(self):
        if not self.folder:
            self.folder = folder_for(self)

    def at(self, *names):
        return os.path.join(self.folder, *names)

    def write(self, content, *names):
        os.makedirs(os.path.dirname(self.at(*names)), exist_ok=True)
        with open(self.at(*names), "w", encoding="utf-8") as f:
            f.write(content)
        return self.at(*names)

    def read(self, *names):
        with open(self.at(*names), encoding="utf-8") as f:
            return f.read()

    def run_it(self, *words, status=0):
        """The ended process of PROGRAM words..., which ends with that status; None: with any."""
        p = subprocess.run([PROGRAM, *words], cwd=self.folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        if status is not None:
            self.assertEqual(p.returncode, status, p.stderr)
        return p

    def lines(self, run, name):
        """The documents of a run's file of JSON lines."""
        return [json.loads(line) for line in self.read(run, name).splitlines()]

    def summary(self, run):
        return json.loads(self.read(run, "summary.json"))
