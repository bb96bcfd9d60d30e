#!/usr/bin/env python3
"""The weights that docs/experiments/ name are those that the program ends with."""
import os
import re
import shlex
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import TOP, Runs
from test_recipes import RECIPES, names, text_of


class Hashes(Runs):
    def test_hashes(self):
        self.assertEqual(text_of("overlap").count("ends with weights"), 2)
        for name in names():
            for topology, words, said in re.findall(r"`(\S+)( [^`]*)?` ends with weights `([0-9a-f]{16})`", text_of(name)):
                with self.subTest(recipe=name, run=topology + words):
                    self.run_it("train", "-c", f"{RECIPES}/{name}.json", "--topology", topology, *shlex.split(words), "--set",
                                "trouble.straggle=[]", "--set", "eval_batches=0", "--no-weights", "--force", "--out", self.at("run"), cwd=TOP)
                    self.assertEqual(self.hash("run"), said)


if __name__ == "__main__":
    unittest.main()
