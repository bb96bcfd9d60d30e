#!/usr/bin/env python3
"""experiments/consistency.py: the runs of a study over a made-up program, what is kept after an interrupt or a failure, refusals, the
arithmetic of its verdicts, and that the program takes each study of experiments/studies."""
import csv
import glob
import json
import math
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import EXPERIMENTS, PROGRAM, Runs, folder_for
from made_run import make_run
import tables
from comparison import claims
from comparison.runs import UsageError, load
from study import page, plan, results

# Starts fast: it copies a finished run that the test has made, and changes what the command asks for.
MADE_UP = """#!{python} -IS
import json, os, sys
argv = sys.argv[1:]
value = lambda flag: argv[argv.index(flag) + 1]
sets = dict(argv[i + 1].split("=", 1) for i, word in enumerate(argv) if word == "--set")
if "--dry-run" in argv:
    sys.exit("starring: error: no such thing" if "refuse" in sets else print("{{}}"))
out, seed = value("--out"), int(value("--seed"))
open({log!r}, "a").write(os.path.basename(out) + "\\n")
if os.environ.get("BREAK") == os.path.basename(out):
    sys.exit("starring: error: worker 1 is gone")
os.makedirs(out, exist_ok=True)
for name in ("metrics.jsonl", "evals.jsonl", "config.json", "summary.json"):
    text = open(os.path.join({run!r}, name)).read()
    if name == "evals.jsonl":
        gain = float(sets.get("gain", 0)) + 0.001 * seed
        slow = 4.0 if "trouble.straggle" in sets and value("--topology") == "ps:sync" else 1.0
        lines = [json.loads(line) for line in text.splitlines()]
        text = "".join(json.dumps(e | {{"seconds": slow * e["seconds"], "val_loss": e["val_loss"] + gain}}) + "\\n" for e in lines)
    elif name == "config.json":
        text = json.dumps({{"optimizer": {{"params": {{"lr": float(sets.get("optimizer.params.lr", 1e-3))}}}}}})
    elif name == "summary.json":
        text = json.dumps(json.loads(text) | {{"topology": value("--topology"), "seed": seed, "model": sets.get("model.name", "demo"),
                          "steps_planned": int(sets.get("steps", 4)), "trouble": {{"text": sets.get("trouble.straggle", "none")}}}})
    open(os.path.join(out, name), "w").write(text)
"""


def study(**more):
    return {"title": "A study", "config": {"workers": 2}, "seeds": [1, 2, 3], "reference": "sync",
            "rows": [{"name": "sync", "topology": "ps:sync"}, {"name": "async", "topology": "ps:async", "settings": {"gain": 0.25}}], **more}


class Case(Runs):
    def setUp(self):
        super().setUp()
        made = make_run(self.at("made"), "ps:sync", evals=[(2, 3.0), (4, 2.5)], updates_applied=4, samples_applied=32)
        self.program = self.script(MADE_UP.format(python=sys.executable, run=made, log=self.at("log")), "program")
        self.out = self.at("out")

    def study(self, found, *words, env=None, status=0):
        self.write(json.dumps(found), "study.json")
        return self.call_script("consistency.py", self.at("study.json"), "--out", self.out, "--program", self.program, *words, env=env, status=status)

    def trained(self):
        """The runs that the program was started for since the last look."""
        try:
            found = sorted(self.read("log").split())
        except FileNotFoundError:
            return []
        os.remove(self.at("log"))
        return found


ALL = [f"{row}.seed{seed}" for row in ("async", "sync") for seed in (1, 2, 3)]


class Studies(Case):
    def test_each_row_trains_under_each_condition_with_each_seed(self):
        conditions = [{"name": "even"}, {"name": "one slow", "settings": {"trouble.straggle": ["1:4"]}}]
        p = self.study(study(conditions=conditions), "--picture", self.at("picture.svg"), "--markdown")
        self.assertEqual(len(self.trained()), 12)
        found = self.json("out", "study.json")
        self.assertEqual([(r["condition"], r["row"], len(r["runs"])) for r in found["rows"]],
                         [(c, r, 3) for c in ("even", "one slow") for r in ("sync", "async")])
        self.assertEqual(found["targets"], {"even": 2.503, "one slow": 2.503})
        self.assertAlmostEqual(found["rows"][1]["estimates"]["loss"]["median"], 2.752)
        with open(self.at("out", "study.csv"), encoding="utf-8") as f:
            self.assertEqual({(r["condition"], r["row"], r["seed"]) for r in csv.DictReader(f)},
                             {(c, r, str(s)) for c in ("even", "one slow") for r in ("sync", "async") for s in (1, 2, 3)})
        html, svg = self.read("out", "study.html"), self.read("picture.svg")
        for words in ("one slow", "Held-out loss against MiB sent in the job", "default-src 'none'"):
            self.assertIn(words, html)
        self.assertNotIn("http", html.replace("http-equiv", "").replace("http://www.w3.org", ""))
        self.assertIn("one slow: held-out loss against seconds of training", svg)
        self.assertRegex(p.stdout, r"\| sync +\| +2\.5020 \(")
        self.assertIn("even: least held-out loss at the end: sync. Beyond noise: async +0.250 (+0.250 to +0.250) nats.", p.stdout)
        self.assertIn("one slow: least seconds for the whole budget: async. Beyond noise: sync 4.00 (4.00 to 4.00) times as much.", p.stdout)
        self.assertIn("even: least seconds for the whole budget: sync. Equal to it with every seed: async.", p.stdout)
        self.assertIn("Not in every run, or never: async", p.stdout)

    def test_what_is_done_is_not_done_again(self):
        self.study(study())
        self.assertEqual(self.trained(), ALL)
        self.study(study())
        self.assertEqual(self.trained(), [])
        changed = study()
        changed["rows"][1]["settings"]["gain"] = 0.5
        self.study(changed)
        self.assertEqual(self.trained(), ALL[:3])
        with open(self.program, "a", encoding="utf-8") as f:  # as another build
            f.write("# another\n")
        self.study(changed, "--read")
        self.assertEqual(self.trained(), [])
        self.study(changed)
        self.assertEqual(self.trained(), ALL)

    def test_a_changed_configuration_is_trained_anew(self):
        self.study(study())
        self.trained()
        self.study(study(config={"workers": 3}))
        self.assertEqual(self.trained(), ALL)

    def test_a_run_that_fails_is_named_and_tried_again(self):
        p = self.study(study(), env={"BREAK": "async.seed2"}, status=1)
        self.assertIn("FAILED async (1 of 3 runs): exit status 1: starring: error: worker 1 is gone", p.stdout)
        self.assertIn("async (2 of 3 runs)", p.stdout)
        self.assertIn("async +0.250", p.stdout)
        self.assertEqual([len(r["runs"]) for r in self.json("out", "study.json")["rows"]], [3, 2])
        self.trained()
        self.study(study())
        self.assertEqual(self.trained(), ["async.seed2"])

    def test_rows_conditions_and_seeds_of_the_command_line(self):
        self.study(study(), "--rows", "async", "--seeds", "7")
        self.assertEqual(self.trained(), ["async.seed7"])

    def test_a_row_that_goes_on_from_another(self):
        begin = {"topology": "ps:sync", "steps": 2}
        rows = [{"name": "sync", "topology": "ps:sync"}, {"name": "warm", "topology": "ps:async", "begin": begin}]
        self.study(study(rows=rows, seeds=[1]))
        self.assertEqual(self.trained(), ["sync.seed1", "warm.seed1", "warm.seed1"])
        said = self.json("out", "undisturbed", "warm.seed1", "command.json")["argv"]
        self.assertEqual(said[-4:], ["--steps", "2", "--checkpoint-every", "2"])
        self.assertEqual([said[i + 1] for i, word in enumerate(said) if word == "--topology"], ["ps:async", "ps:sync"])
        self.study(study(rows=rows, seeds=[1]))
        self.assertEqual(self.trained(), [])
        begin["steps"] = 1
        self.study(study(rows=rows, seeds=[1]))
        self.assertEqual(self.trained(), ["warm.seed1", "warm.seed1"])
        begin["steps"] = "1"
        self.assertIn("expected an object with name, topology, settings, begin", self.study(study(rows=rows), status=2).stderr)

    def test_unequal_runs_are_refused(self):
        for settings, said in (({"model.name": "tiny"}, "unequal model"), ({"steps": 8}, "unequal budgets of samples")):
            with self.subTest(settings=settings):
                rows = [{"name": "one", "topology": "ps:sync"}, {"name": "two", "topology": "ps:sync", "settings": settings}]
                p = self.study(study(rows=rows, reference="one"), status=None)
                self.assertIn(said, p.stderr)
                self.assertNotIn("--force", p.stderr)  # there is none
                self.assertNotEqual(p.returncode, 0)

    def test_what_conditions_vary_may_not_differ_within_one(self):
        conditions = [{"name": "one"}, {"name": "two", "settings": {"trouble.straggle": ["1:4"]}}]
        self.study(study(conditions=conditions))
        changed = self.json("out", "one", "sync.seed1", "summary.json") | {"trouble": {"text": "other"}}
        self.write(json.dumps(changed), "out", "one", "sync.seed1", "summary.json")
        self.assertIn("unequal trouble", self.study(study(conditions=conditions), status=1).stderr)

    def test_a_learning_rate_may_differ_where_a_row_sets_it(self):
        rows = [{"name": "one", "topology": "ps:sync"}, {"name": "two", "topology": "ps:sync", "settings": {"optimizer.params.lr": 3e-3}}]
        self.study(study(rows=rows, reference="one"))

    def test_what_the_program_refuses_is_known_before_the_first_run(self):
        rows = study()["rows"] + [{"name": "wrong", "topology": "ps:sync", "settings": {"refuse": 1}}]
        p = self.study(study(rows=rows), status=2)
        self.assertIn("wrong seed=1: ", p.stderr)
        self.assertEqual(self.trained(), [])

    def test_wrong_studies(self):
        row = {"name": "a", "topology": "local"}
        for found, said in ((study(row=1), "row: unknown"), (study(seeds=[1, 1]), "seeds"), (study(reference="none"), "there is no row none"),
                            (study(rows=[{"name": "a"}]), "expected an object"), (study(rows=[row, row], reference="a"), "a name of its own"),
                            (study(picture=["weeks"]), "picture: weeks"), (study(figures=["speed"]), "figures: speed"), ([], "an object with"),
                            (study(title=3), "title: of a wrong type"), (study(seeds=[[1]]), "seeds"), (study(seeds=[True]), "seeds"),
                            (study(seeds=[]), "seeds"), (study(target_loss=True), "target_loss: expected a number"),
                            (study(target_loss=math.nan), "target_loss: expected a number"), (study(picture=[]), "picture: expected one"),
                            (study(conditions=[{"name": ".."}]), "letters or digits"), (study(conditions=[{"name": "!"}]), "letters or digits"),
                            (study(rows=[row, {"name": "a ", "topology": "local"}], reference="a"), "two runs would have this folder")):
            with self.subTest(said=said):
                self.assertIn(said, self.study(found, status=2).stderr)
        self.assertIn("the study has sync, async", self.study(study(), "--rows", "ssp", status=2).stderr)
        for words in (["--seeds", "1,1"], ["--seeds=-1"], ["--seeds", "x"], ["--target-loss", "nan"]):
            with self.subTest(words=words):
                self.assertIn(f"{words[0].split('=')[0]}", self.study(study(), *words, status=2).stderr)
        self.assertEqual(self.run_script("consistency.py", status=2).stdout, "")


class Arithmetic(Runs):
    def cell(self, name, losses, seconds):
        runs = []
        for seed, (loss, s) in enumerate(zip(losses, seconds)):
            run = load(name, make_run(self.at(name, str(seed)), "ps:sync", seed=seed, evals=[(2, loss + 1), (4, loss)]))
            run.evals = [type(e)(e.step, e.loss, e.samples, e.updates, s * e.step / 4, e.tokens) for e in run.evals]
            runs.append(run)
        return results.Cell(plan.Part("here", {}), plan.Part(name, {}, "ps:sync"), runs)

    def study_of(self, cells, **more):
        return plan.Study("s", {}, [c.row for c in cells], [cells[0].condition], [0, 1, 2], cells[0].row.name, **more)

    def test_a_verdict_is_of_the_pairs_within_a_seed(self):
        a, b = self.cell("a", [2.0, 3.0, 4.0], [10, 20, 40]), self.cell("b", [2.1, 3.11, 4.09], [5.0, 10.1, 19.9])
        study = self.study_of([a, b])
        targets = results.target_of(study, [a, b])
        self.assertEqual(targets, {"here": 4.0})
        said = {v.key: v for v in results.verdicts(study, [a, b], targets)}
        (name, loss), (_, seconds) = said["loss"].ratios[0], said["seconds"].ratios[0]
        self.assertEqual((said["loss"].best, name, loss.differs), ("a", "b", True))
        self.assertAlmostEqual(math.log(loss.value), 0.1)
        self.assertEqual(said["seconds"].best, "b")
        self.assertAlmostEqual(seconds.value, (2 * 20 / 10.1 * 40 / 19.9) ** (1 / 3))
        self.assertTrue(seconds.low < seconds.value < seconds.high)
        self.assertEqual((said["samples_to_target"].best, said["samples_to_target"].never), ("a", ("b",)))

    def test_time_to_a_target_is_on_the_line_between_two_evaluations(self):
        a = self.cell("a", [2.0], [8.0])
        found = {key: read(a.runs[0]) for key, _, read, _ in results.figures_of(2.25)}
        self.assertAlmostEqual(found["seconds_to_target"], 4 + 0.75 * 4)
        self.assertAlmostEqual(found["samples_to_target"], 16 + 0.75 * 16)
        self.assertEqual((found["loss"], found["seconds"]), (2.0, 8.0))
        self.assertAlmostEqual(found["sent_mib"], 4 * 12)
        a.runs[0].summary["tokens_applied"] = 1 << 20
        read = {key: read for key, _, read, _ in results.figures_of(None)}
        self.assertAlmostEqual(read["sent_per_token"](a.runs[0]), 4 * 12)
        a.runs[0].summary["resumed_from"] = 2
        self.assertIsNone(read["sent_mib"](a.runs[0]))
        self.assertIsNone(next(read for key, _, read, _ in results.figures_of(1.5) if key == "seconds_to_target")(a.runs[0]))

    def test_consensus_is_the_mean_over_ranks(self):
        run = self.cell("a", [2.0], [1]).runs[0]
        self.assertIsNone(results.consensus(run))
        for rank, distance in enumerate((1.0, 3.0)):
            self.write(json.dumps({"consensus_distance": distance}), "a", "0", "ranks", f"worker-{rank}.json")
        self.assertEqual(results.consensus(run), 2.0)
        self.write("{}", "a", "0", "ranks", "worker-2.json")
        self.assertIsNone(results.consensus(run))

    def test_no_difference_is_claimed_of_one_seed_or_within_noise(self):
        a, b = self.cell("a", [2.0, 3.0, 4.0], [10, 20, 40]), self.cell("b", [2.3, 2.8, 4.2], [12, 18, 50])
        study = self.study_of([a, b])
        for verdict in results.verdicts(study, [a, b], {"here": 4.5}):
            self.assertFalse(any(r.differs for _, r in verdict.ratios), verdict)
            self.assertNotIn("Beyond noise", results.in_words(verdict))
        one = [self.cell("c", [2.0], [10]), self.cell("d", [3.0], [90])]
        for verdict in results.verdicts(self.study_of(one), one, {"here": 4.5}):
            self.assertFalse(any(r.differs for _, r in verdict.ratios))
        self.assertIn("One seed shows no noise", results.in_words(results.verdicts(self.study_of(one), one, {"here": 4.5})[0]))

    def test_the_turned_ratio(self):
        ratio = claims.ratio([(2.0, 1.0), (2.2, 1.0), (1.9, 1.0)])
        other = claims.ratio([(1.0, 2.0), (1.0, 2.2), (1.0, 1.9)])
        for what in ("value", "low", "high", "chance"):
            self.assertAlmostEqual(getattr(results.inverted(ratio), what), getattr(other, what))

    def test_budgets(self):
        a, b = self.cell("a", [2.0], [1]), self.cell("b", [2.0], [1])
        results.refuse_unequal_budgets([a, b])
        b.runs[0].summary["train_batch_size"] = 16
        with self.assertRaisesRegex(UsageError, r"a: 32, b: 64"):
            for cell in (a, b):
                cell.runs[0].label = cell.row.name
            results.refuse_unequal_budgets([a, b])

    def test_facts_that_may_differ_are_those_that_are_set(self):
        rows = [plan.Part("a", {"optimizer.params.lr": 1e-3}, "local")]
        conditions = [plan.Part("c", {"trouble.delay": []})]
        self.assertEqual(results.facts_that_may_differ(rows), {"lr", "optimizer", "seed"})
        self.assertEqual(results.facts_that_may_differ(rows + conditions), {"lr", "optimizer", "trouble", "seed"})

    def test_a_table_of_chosen_figures(self):
        a = self.cell("a", [2.0, 2.0], [1, 1])
        lines = page.table(self.study_of([a]), a.condition, [a], None, ["loss", "seconds"])
        self.assertEqual(lines, [["row", "held-out loss", "seconds in all"], ["a (2 of 3 runs)", "2.0000", "1.00"]])
        self.assertRegex(tables.markdown(lines).splitlines()[1], r"^\|-+\|-+:\|-+:\|$")


class Kept(unittest.TestCase):
    def test_the_program_takes_each_run_of_each_study(self):
        for path in sorted(glob.glob(os.path.join(EXPERIMENTS, "studies", "*.json"))):
            found = plan.read(path)
            base = os.path.join(folder_for(self), "base.json")
            with open(base, "w", encoding="utf-8") as f:
                json.dump(found.config, f)
            alone = plan.Study(found.title, found.config, found.rows, found.conditions, [1], found.reference)
            for _, _, one in plan.planned_of(alone, PROGRAM, base):
                with self.subTest(study=os.path.basename(path), run=one.name):
                    p = subprocess.run(one.argv + ["--dry-run", "--json"], capture_output=True, text=True, timeout=60, check=False)
                    self.assertEqual((p.returncode, "unknown" in p.stderr), (0, False), p.stderr)


if __name__ == "__main__":
    unittest.main()
