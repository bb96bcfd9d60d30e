#!/usr/bin/env python3
"""Each row of tests/mutate.py finds its line and its test; what it says of a rule that is kept, of one that is not, and of a row that
has lost its line, over a made-up tree."""
import os
import shutil
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import TOP, Runs
import mutate

MAKEFILE = "build/tests/test_x:\n\t@mkdir -p build/tests\n\t@cp tests/test_x.sh $@ && chmod +x $@\nbuild/starring:\n\t@mkdir -p build && touch $@\n"
ROWS = """
RULES = [Rule("two", "rule.c", "int two = 2;", "int two = 3;", "test_x"), Rule("unkept", "rule.c", "int one = 1;", "int one = 0;", "test_x"),
         Rule("a case", "rule.c", "int two = 2;", "", "room/test_y.py Y.test_two"), Rule("lost", "rule.c", "int three", "", "test_x")]
if __name__"""


class Mutations(Runs):
    def test_each_row_fits(self):
        for row in mutate.RULES:
            with self.subTest(rule=row.rule):
                self.assertEqual(mutate.found(row), "")
                name = row.test.split()[0]
                self.assertTrue(name.endswith(".py") or any(name + ".c" in names for _, _, names in os.walk(os.path.join(TOP, "tests"))), name)
        self.assertEqual(len({row.rule for row in mutate.RULES}), len(mutate.RULES))

    def test_what_it_says(self):
        with open(os.path.join(TOP, "tests", "mutate.py"), encoding="utf-8") as f:
            script = f.read().replace("\nif __name__", ROWS, 1)
        self.write(script, "tests", "mutate.py")
        self.write(MAKEFILE, "Makefile")
        self.write("int one = 1;\nint two = 2;\n", "rule.c")
        self.write("#!/bin/sh\ngrep -q 'two = 2' rule.c\n", "tests", "test_x.sh")
        self.write("import unittest\nclass Y(unittest.TestCase):\n    def test_two(self): self.assertIn('two = 2', open('rule.c').read())\n"
                   "    def test_wrong(self): self.fail()\nunittest.main()\n", "tests", "room", "test_y.py")
        self.write("old", "build", "tests", "left-out")

        def said(*words, status=1):
            return self.run_it(self.at("tests", "mutate.py"), *words, program=sys.executable, status=status).stdout.splitlines()
        lines = said()
        self.assertTrue(any(line.startswith("unchanged: test_x: passes (") for line in lines), lines)
        for begin, rule in (("caught (", "two"), ("SURVIVED", "unkept"), ("caught (", "a case"), ("'int three' is 0 times in rule.c", "lost")):
            self.assertTrue(any(line.startswith(begin) and f": {rule} (rule.c, " in line for line in lines), (rule, lines))
        self.assertEqual(lines[-1], "2 of 4 broken rules were caught, 2 WERE NOT")
        self.assertEqual(said("two", "a case", status=0)[-1], "2 of 2 broken rules were caught")
        self.assertEqual(self.read("rule.c"), "int one = 1;\nint two = 2;\n")
        self.assertIn("    'int three' is 0 times in rule.c, not once: write the row anew", said("--list"))
        said("nothing", status=2)
        self.write("#!/bin/sh\nexit 1\n", "tests", "test_x.sh")
        self.assertIn("its test fails by itself: two (rule.c, test_x)", said("two"))
        shutil.rmtree(self.at("tests", "room"))
        self.assertTrue(any("there is no test room/test_y.py" in line for line in said("--list", "a case")))


if __name__ == "__main__":
    unittest.main()
