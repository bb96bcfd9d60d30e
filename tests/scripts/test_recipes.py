#!/usr/bin/env python3
"""experiments/recipes/ and their pages: every JSON is one that the program takes, every page names a command that is right
for its program, and figures that do not depend on load are those that the program gives."""
import glob
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.environ.get("STARRING", os.path.join(TOP, "build", "starring"))
PAGES = os.path.join(TOP, "docs", "experiments")
RECIPES = "experiments/recipes"
sys.path.insert(0, os.path.join(TOP, "experiments"))
from comparison import options  # noqa: E402


def text_of(name):
    with open(os.path.join(PAGES, name + ".md"), encoding="utf-8") as f:
        return f.read()


def names():
    return sorted(os.path.basename(p)[:-3] for p in glob.glob(os.path.join(PAGES, "*.md")) if not p.endswith("README.md"))


def commands(name):
    """The commands that a page shows, as lists of words."""
    lines = re.findall(r"^    ((?:sudo )?(?:experiments|build)/\S.*)$", text_of(name), re.MULTILINE)
    return [[w for w in shlex.split(line) if w != "sudo"] for line in lines]


def run(*argv):
    p = subprocess.run([PROGRAM, *argv], cwd=TOP, capture_output=True, text=True, timeout=120, check=False)
    return p.returncode, p.stdout, p.stderr


def document(*argv):
    status, out, err = run(*argv)
    if status:
        raise AssertionError(f"{argv}: {err}")
    return json.loads(out)


def rows(name, column):
    """{first cell: cells of the columns up to the one called so} of each row of a page's tables that have it."""
    found, head = {}, []
    for line in text_of(name).splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            head = []
        elif not head:
            head = cells
        elif column in head and not cells[0].startswith("---"):
            found[cells[0]] = dict(zip(head, cells))
    return found


class Recipes(unittest.TestCase):
    def test_each_recipe_has_its_page_and_each_page_its_recipe(self):
        recipes = {os.path.basename(p)[:-5] for p in glob.glob(os.path.join(TOP, RECIPES, "*.json"))}
        self.assertEqual(recipes - {"memory-model"}, set(names()))
        with open(os.path.join(PAGES, "README.md"), encoding="utf-8") as f:
            index = f.read()
        for name in names():
            self.assertIn(f"[{name}]({name}.md)", index)
            self.assertTrue([c for c in commands(name) if f"{RECIPES}/{name}.json" in c], f"{name}: no command")

    def test_the_program_takes_every_recipe(self):
        for name in names():
            with self.subTest(recipe=name):
                path = f"{RECIPES}/{name}.json"
                for topology in ("ps:sync", "zero:2"):
                    status, _, err = run("train", "-c", path, "--topology", topology, "--print-config")
                    self.assertEqual((status, "warning" in err, "unknown" in err), (0, False, False), err)

    def test_every_command_is_one(self):
        for name in names():
            for command in commands(name):
                with self.subTest(command=" ".join(command)):
                    self.check(*command)

    def check(self, program, *words):
        if program == "experiments/compare.py":
            args = options.parse(list(words), "", PROGRAM)
            for sweep in args.sweep:
                key, values = sweep.split("=", 1) if isinstance(sweep, str) else (sweep[0], ",".join(sweep[1]))
                for value in values.split(","):
                    status, _, err = run("train", "-c", args.config, "--topology", "zero:1", "--set", f"{key}={value}",
                                         "--print-config")
                    self.assertEqual(status, 0, err)
        elif program == "experiments/netlab.py":
            p = subprocess.run([sys.executable, os.path.join(TOP, program), *words, "--help"], capture_output=True, check=False)
            self.assertEqual(p.returncode, 0)
        else:
            self.assertEqual(program, "build/starring")
            dry = ["--dry-run"] if words[:2] == ("bench", "zero") and "--dry-run" not in words else []
            status, _, err = run(*words, *dry)
            self.assertEqual(status, 0, err)


class Figures(unittest.TestCase):
    def test_memory_of_the_paper_s_row(self):
        shown = rows("memory", "predicted here (bytes)")
        self.assertEqual(sorted(shown), ["zero:0", "zero:1", "zero:2", "zero:3"])
        for stage, row in shown.items():
            said = document("train", "-c", f"{RECIPES}/memory.json", "--topology", stage, "--dry-run", "--json")["memory"][0]
            self.assertEqual(int(row["predicted here (bytes)"]), said["predicted_bytes"])
            self.assertEqual(int(row["of which slots (bytes)"]), said["predicted"]["communication"])
            self.assertEqual(row["formula"], said["formula"])
            self.assertEqual(float(row["formula here (GB)"]), round(said["formula_bytes"] * 1e-9, 1))
            self.assertEqual(float(row["predicted here (GB)"]), round(said["predicted_bytes"] * 1e-9, 1))
            self.assertEqual(float(row["paper (GB)"]), float(row["formula here (GB)"]))

    def test_memory_of_20_linear_layers(self):
        shown, moments = rows("memory", "predicted = counted (bytes)"), rows("memory", "after the step")
        said = document("bench", "zero", "--dry-run", "--json")
        self.assertEqual((said["params"], len(said["rows"])), (80040000, 4))
        for stage in said["rows"]:
            row, predicted = shown[f"zero:{stage['stage']}"], stage["predicted"]
            self.assertEqual(int(row["predicted = counted (bytes)"]), predicted["total"])
            for column, kind in (("weights", "parameter"), ("gradients", "gradient"), ("moments", "optimizer"),
                                 ("slots", "communication")):
                self.assertEqual(row[column], f"{predicted.get(kind, 0) * 1e-6:.2f}")
            for moment in ("model created", "before the step", "after the step"):
                self.assertEqual(int(moments[f"zero:{stage['stage']}"][moment]), round(predicted["total"] * 1e-6))

    def test_what_bench_zero_counts_is_what_it_predicts(self):
        for dtype in ("fp32", "bf16"):
            size = ["--units", "3", "--width", "60", "--workers", "3", "--dtype", dtype, "--json"]
            counted, predicted = document("bench", "zero", *size), document("bench", "zero", *size, "--dry-run")
            for one, other in zip(counted["rows"], predicted["rows"]):
                self.assertEqual(one["predicted"], other["predicted"])
                for moment in ("created", "before_step", "after_step"):
                    self.assertEqual(one[moment], one["predicted"])
                self.assertAlmostEqual(one["gradient_norm"], 6 * counted["params"] ** 0.5, delta=0.01)
        self.assertEqual(run("bench", "zero", "--stage", "4")[0], 2)
        self.assertEqual(run("bench", "zero", "--dtype", "fp64")[0], 2)

    def test_hashes(self):
        self.assertEqual(text_of("overlap").count("ends with weights"), 2)
        for name in names():
            for topology, words, said in re.findall(r"`(\S+)( [^`]*)?` ends with weights `([0-9a-f]{16})`", text_of(name)):
                with self.subTest(recipe=name, run=topology + words), tempfile.TemporaryDirectory() as out:
                    status, _, err = run("train", "-c", f"{RECIPES}/{name}.json", "--topology", topology, *shlex.split(words),
                                         "--set", "trouble.straggle=[]", "--set", "eval_batches=0", "--no-weights", "--out", out)
                    self.assertEqual(status, 0, err)
                    with open(os.path.join(out, "summary.json"), encoding="utf-8") as f:
                        self.assertEqual(json.load(f)["weights_hash"], said)


if __name__ == "__main__":
    unittest.main()
