#!/usr/bin/env python3
"""experiments/compare.py over made-up run directories, and over a made-up program."""
import csv
import dataclasses
import html.parser
import json
import os
import re
import sys
import unittest
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import EXPERIMENTS, Runs
from comparison import equality, comparability, table
from comparison.draw import svg
from comparison.pages import curves
from comparison.plan import split_values
from comparison.runs import RunError, load
from made_run import HASH, LOSSES, make_run

COMPARE = os.path.join(EXPERIMENTS, "compare.py")
PROGRAM = """#!{python} -S
import json, os, sys
sys.path.insert(0, {tests!r})
from made_run import LOSSES, make_run
argv = sys.argv[1:]
value = lambda flag, other=None: argv[argv.index(flag) + 1] if flag in argv else other
if "--dry-run" in argv:
    print(*argv, file=open(__file__ + ".asked", "a"))
    if value("--topology") == "zero:3" and os.environ.get("REFUSE") == "1":
        sys.exit("starring: error: zero:3 takes no such thing")
    sys.exit(print(json.dumps({{"here": {{"fits": os.environ.get("REFUSE") != "memory", "limits": [
        {{"limit": "the machine's memory", "predicted_bytes": 8e9, "allowed_bytes": 1e9, "available_bytes": 2e9, "fits": False}}]}}}})))
if "--print-config" in argv:
    sys.exit(print(json.dumps({{"memory": {{"check": "off" if "memory.check=off" in argv else "auto"}}}})))
with open(os.path.join(os.path.dirname(os.path.abspath(value("--out"))), "order.txt"), "a") as f:
    f.write(" ".join(argv) + "\\n")
broken = os.environ.get("BREAK") in ("1", "killed") or os.environ.get("BREAK") == "second" and value("--out").endswith(".r2")
if value("--topology") == "zero:3" and broken or os.environ.get("BREAK") == "all":
    print("reading\\nstarring: error: [rank 1] could not gather unit 3\\nstarring: error: rank 0 saw it\\nthe end", flush=True)
    os.kill(os.getpid(), 9) if os.environ["BREAK"] == "killed" else sys.exit(1)
losses = list(LOSSES)
if value("--topology") == "zero:3" and os.environ.get("BREAK") == "bit":
    losses[2] = "5.2500000000000009"
if value("--seed", "1") != "1":
    losses[1] = "5.4" + value("--seed")
make_run(value("--out"), value("--topology"), losses, seed=int(value("--seed", 1)),
         workers=1 if value("--topology") == "local" else int(value("--workers", 2)))
"""


# The settings of a second run that must not be compared with the first.
UNLIKE = {"tokens_per_step": {"tokens_per_step": 2048}, "model": {"model": "tiny"}, "params": {"params": 7}, "seed": {"seed": 2},
          "data": {"data": "other.txt"}, "dtype": {"dtype": "fp32"}, "steps": {"steps": 5}, "device": {"device": "cuda"},
          "medium": {"medium": "threads"}, "host": {"machine": {"host": "there"}}, "revision": {"revision": "def0"},
          "lr": {"config": {"optimizer": {"params": {"lr": 3e-3}}}}, "clip": {"config": {"gradient_clipping": 0.5}},
          "schedule": {"config": {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 3}}}},
          "optimizer": {"config": {"optimizer": {"params": {"lr": 1e-3, "eps": 1e-6}}}},
          "trouble": {"trouble": {"straggle": ["1:3"], "text": "rank 1 computes 3 times as long"}}}


class Case(Runs):
    def setUp(self):
        super().setUp()
        self.out = self.at("out")

    def run_it(self, *argv, env=None, full=True, status=0):
        return self.call_script("compare.py", *argv, *["--full"] * full, "--out", self.out, env=env, status=status)

    def table(self):
        """The rows of compare.csv."""
        return list(csv.DictReader(self.read("out", "compare.csv").splitlines()))

    def two(self, **second):
        make_run(self.at("a"), "ps:sync")
        make_run(self.at("b"), "zero:2", **second)
        return ["--runs", self.at("a"), self.at("b")]


class Libraries(Case):
    """-S: a Python that has its standard library and no package."""
    def bare(self, name, *words, status=0):
        return Runs.run_it(self, "-S", os.path.join(EXPERIMENTS, name), *words, program=sys.executable, status=status)

    def test_without_them_a_script_says_what_to_install(self):
        for name, words in (("compare.py", ["--a", "zero:1"]), ("consistency.py", ["--quick"])):
            with self.subTest(name):
                said = self.bare(name, *words, status=2).stderr
                self.assertIn("lacks scipy, jinja2: run `make deps`, or apt install python3-scipy python3-jinja2, or ", said)
                self.assertEqual(len(said.splitlines()), 1)

    def test_no_script_needs_them_for_its_help(self):
        for name in sorted(os.listdir(EXPERIMENTS)):
            if os.access(os.path.join(EXPERIMENTS, name), os.X_OK) and name.endswith(".py"):
                with self.subTest(name):
                    self.assertIn("usage: ", self.bare(name, "--help").stdout)


class FinishedRuns(Case):
    def test_equal_runs_are_called_equal(self):
        p = self.run_it(*self.two(), "--assert-equal")
        self.assertIn("ps:sync = zero:2: equal to the last bit", p.stdout)

    def test_one_bit_of_one_loss(self):
        p = self.run_it(*self.two(losses=LOSSES[:2] + ["5.2500000000000009"] + LOSSES[3:]), "--assert-equal", status=1)
        self.assertIn("ps:sync and zero:2 differ at step 3: loss 5.25 in ps:sync, 5.2500000000000009 in zero:2", p.stderr)
        self.assertIn("BROKEN PROMISE", p.stdout)

    def test_digits_that_a_double_would_lose_count(self):
        p = self.run_it(*self.two(losses=LOSSES[:3] + ["5.12500000000000000001"]), "--assert-equal", status=1)
        self.assertIn("step 4", p.stderr)

    def test_equal_losses_but_other_weights(self):
        p = self.run_it(*self.two(weights_hash="0x0123456789abcdee"), "--assert-equal", status=1)
        self.assertIn("equal losses, but weights", p.stderr)

    def test_pinned_host_memory_is_no_device_memory(self):
        classes = {"parameter": 2 << 20, "pinned": 5 << 20}
        gpu = {"name": "some GPU", "host": "here", "bus_id": "0000:01:00.0", "driver": "13.1", "runtime": "13.0",
               "cublaslt": 130000, "cudnn": None, "used_bytes": 9 << 20, "ledger_bytes": 4 << 20,
               "workspace_bytes": 1 << 20, "other_bytes": 4 << 20}
        memory = [{"rank": 0, "role": "worker", "predicted": classes, "peak": dict(classes), "formula_bytes": 1 << 20}]
        p = self.run_it(*self.two(memory=memory, devices=[gpu]))
        cells = [re.split(r"\s{2,}", line.strip()) for line in p.stdout.splitlines()]
        lines = {name: " ".join(rest).split() for name, *rest in cells}
        self.assertEqual(lines["worker"], ["5.00", "=", "2.00", "="])
        self.assertEqual(lines["pinned host memory"], ["-", "5.00", "="])
        self.assertEqual(lines["GPU, in use by everything"], ["-", "9.00"])
        self.assertEqual(lines["of which context and others"], ["-", "4.00"])
        first, second = self.table()
        self.assertEqual(second["worker_bytes_measured"], str(2 << 20))
        self.assertEqual(second["worker_pinned_bytes_measured"], str(5 << 20))
        self.assertEqual((first["worker_pinned_bytes_measured"], first["gpu_name"]), ("0", ""))
        self.assertEqual((second["gpu_name"], second["gpu_used_bytes"]), ("some GPU", str(9 << 20)))
        report = self.read("out", "report.html")
        self.assertIn("some GPU, 0000:01:00.0, driver 13.1", report)
        self.assertIn("Page-locked host memory", report)

    def test_a_missing_step_is_a_difference(self):
        p = self.run_it(*self.two(losses=LOSSES[:3], steps_planned=4), "--assert-equal", status=1)
        self.assertIn("at step 4", p.stderr)

    def test_without_assert_a_difference_is_only_told(self):
        p = self.run_it(*self.two(losses=LOSSES[:3] + ["5.0"]))

    def test_only_what_is_promised_must_be_equal(self):
        argv = self.two() + [make_run(self.at("c"), "ps:async", LOSSES[:3] + ["5.0"], weights_hash="0x2"),
                             make_run(self.at("d"), "local", LOSSES[:3] + ["5.124"], weights_hash="0x3")]
        p = self.run_it(*argv, "--assert-equal", "promised")
        self.assertIn("ps:async is not equal to ps:sync: first at step 4", p.stdout)
        self.assertIn("Why: the servers of ps:async do as they like. Staleness: mean 0.33, at most 1.", " ".join(p.stdout.split()))
        self.assertIn("it is one worker", p.stdout)
        make_run(self.at("b"), "zero:2", LOSSES[:3] + ["5.0"])
        p = self.run_it(*argv, "--assert-equal", "promised", status=1)
        self.assertIn("BROKEN PROMISE: ps:sync and zero:2 differ at step 4", p.stderr)

    def test_a_topology_says_itself_why_it_differs(self):
        """No list of topologies here: gossip, and what a later version has."""
        for topology, summary, words in (("gossip", {}, "Why: the servers of gossip do as they like."), ("later", {"explained": None}, "another version"),
                                         ("zero:2", {"explained": {"differs": None}}, "Nothing in their configuration explains it.")):
            argv = self.two() + [make_run(self.at("c"), topology, LOSSES[:3] + ["5.0"], weights_hash="0x2", **summary)]
            p = self.run_it(*argv, "--assert-equal", "promised", status=int(topology == "zero:2"))
            self.assertIn(words, " ".join(p.stdout.split()))
        make_run(self.at("a"), "gossip")
        make_run(self.at("b"), "zero:2", weights_hash="0x2")
        self.assertIn("Why, of gossip: the servers of gossip", " ".join(self.run_it("--runs", self.at("a"), self.at("b")).stdout.split()))

    def test_nothing_is_promised_across_configurations(self):
        argv = self.two(losses=LOSSES[:3] + ["5.0"], config={"gradient_clipping": 0.5})
        self.run_it(*argv, "--assert-equal", "promised", status=1)  # unlike: refused
        p = self.run_it(*argv, "--assert-equal", "promised", "--force")
        self.assertIn("configured differently: gradient_clipping", p.stdout)

    def test_unlike_runs_are_refused(self):
        for key, value in UNLIKE.items():
            groups = [[load(d, d)] for d in self.two(**value)[1:]]
            self.assertEqual(list(comparability.unlike(groups)), [key])
            with self.assertRaisesRegex(RunError, f"unequal {key} .*compare anyway with --force"):
                comparability.refuse_unlike(groups, False)
            self.assertRegex(table.text_table(groups), rf"(?m)^unlike: {key} \S.* / \S")
        comparability.refuse_unlike([[load(d, d)] for d in self.two()[1:]], False)

    def test_what_only_one_run_says_is_unlike(self):
        for key in ("medium", "host", "revision"):
            groups = [[load(d, d)] for d in self.two()[1:]]
            groups[0][0].summary["machine" if key == "host" else key] = None
            self.assertEqual(list(comparability.unlike(groups)), [key])

    def test_held_out_text_of_two_sizes_is_refused(self):
        groups = [[load(d, d)] for d in self.two()[1:]]
        run = groups[0][0]
        run.evals = [dataclasses.replace(e, tokens=64) for e in run.evals]
        self.assertEqual(comparability.unlike(groups)["held_out"], {"64": [run.label], "4096": [groups[1][0].label]})

    def test_rows_that_need_a_word(self):
        star, ring = ([load(d, d)] for d in self.two()[1:])
        told = table.remarks([star, ring])
        self.assertIn(table.STAR_IN_PLACE, told)
        self.assertIn(table.RESIDENT, told)
        self.assertNotIn(table.STAR_IN_PLACE, table.remarks([ring]))
        star[0].device = "cuda"  # it computes in memory of its own
        self.assertNotIn(table.STAR_IN_PLACE, table.remarks([star]))
        star[0].device = "cpu"
        star[0].summary.update(topology="ps:async", batches=[36, 4], tail_seconds=0.25, medium="tcp")
        (words,) = [text for text in table.remarks([star]) if "one budget" in text]
        self.assertRegex(words, r"did 36, 4 of it. Tokens/s .* all are at work; the last 0.25 s are not in it\.$")
        star[0].summary["batches"] = [20, 20]
        self.assertFalse([text for text in table.remarks([star]) if "budget" in text or text == table.STAR_IN_PLACE])

    def test_a_run_keeps_its_colour_in_all_curves(self):
        groups = [[load(d, d)] for d in (make_run(self.at("l"), "local", losses=LOSSES[:3] + ["5.0"]), *self.two()[1:])]
        with mock.patch.object(curves, "key_of", return_value="") as keys:
            curves.losses(groups)
        seen = {}
        for call in keys.call_args_list:
            for series in call.args[0]:
                seen.setdefault(series["label"].split(" = ")[0], set()).add(series["color"])
        self.assertEqual(seen["local"], {0})
        self.assertEqual(seen["ps:sync"], {1})

    def test_force_lets_unlike_runs_pass_and_names_them(self):
        argv = self.two(**UNLIKE["dtype"])
        p = self.run_it(*argv, status=1)
        self.assertIn("unequal dtype", p.stderr)
        self.assertFalse(os.path.exists(os.path.join(self.out, "report.html")))
        p = self.run_it(*argv, "--force")
        self.assertEqual(p.stderr.count("warning: the runs are not comparable: unequal dtype"), 1)
        self.assertIn("\nunlike: dtype bf16 / fp32\n", p.stdout)
        self.assertIn("dtype bf16 / fp32", self.read("out", "report.html"))

    def test_how_a_cpu_multiplied_makes_no_difference(self):
        ways = [{"name": n, "built_for": b} for n, b in (("amx", "AVX-512 with bf16"), ("fma", "AVX2 and FMA"))]
        argv = self.two(cpu_kernel=ways[0])
        make_run(self.at("a"), "ps:sync", LOSSES, cpu_kernel=ways[1])
        p = self.run_it(*argv, "--assert-equal")
        self.assertEqual((p.returncode, p.stderr), (0, ""))
        self.assertEqual([r["cpu_kernel"] for r in self.table()], ["fma", "amx"])

    def test_broken_directories_are_named(self):
        argv = self.two()
        with open(self.at("b", "metrics.jsonl"), "a", encoding="utf-8") as f:
            f.write('{"step": 5, "lo')
        p = self.run_it(*argv, status=1)
        self.assertIn("metrics.jsonl:5", p.stderr)
        with open(self.at("a", "evals.jsonl"), "a", encoding="utf-8") as f:
            f.write('{"step": 5}\n')
        p = self.run_it(*argv, status=1)
        self.assertIn("evals.jsonl:2", p.stderr)
        os.remove(self.at("a", "evals.jsonl"))
        os.remove(self.at("b", "summary.json"))
        p = self.run_it(*argv, status=1)
        self.assertIn("summary.json: not there", p.stderr)

    def test_interrupted_runs_are_named(self):
        argv = ["--runs", make_run(self.at("a"), "zero:1", LOSSES),
                make_run(self.at("b"), "zero:2", LOSSES, state="interrupted", steps_planned=9, weights_hash=None)]
        p = self.run_it(*argv, status=1)
        self.assertIn("interrupted after step 4 of 9", p.stderr)

    def test_diverged_losses_are_compared_and_drawn(self):
        losses = LOSSES[:3] + ["null"]
        argv = ["--runs", make_run(self.at("a"), "zero:1", LOSSES), make_run(self.at("b"), "zero:2", LOSSES)]
        for name in "ab":
            path = self.at(name, "metrics.jsonl")
            with open(path, encoding="utf-8") as f:
                text = f.read().replace("5.125", losses[3])
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
        p = self.run_it(*argv, "--assert-equal")
        self.assertIn("zero:1 = zero:2", p.stdout)


class Results(Case):
    def test_table_and_csv(self):
        p = self.run_it(*self.two(), "--markdown")
        self.assertRegex(p.stdout, r"worker +5\.00 = +5\.00 =")
        self.assertRegex(p.stdout, r"server +6\.00 = +-")
        self.assertRegex(p.stdout, r"waiting for peers +12\.5 +12\.5")
        self.assertRegex(p.stdout, r"\n  host +62\.5 +62\.5\n    of which reading data +25\.0 +25\.0")
        self.assertRegex(p.stdout, r"weights hash +01234567 +01234567\n +89abcdef +89abcdef\n")
        self.assertRegex(p.stdout, r"\| tokens/s +\| +2,000 \| +2,000 \|")
        rows = self.table()
        self.assertEqual([r["topology"] for r in rows], ["ps:sync", "zero:2"])
        self.assertEqual(rows[0]["loss_first"], LOSSES[0])
        self.assertEqual(rows[0]["server_master_bytes_measured"], str(6 << 20))
        self.assertEqual(rows[1]["worker_wire_sent_per_step"], str(3 << 20))

    def test_a_prediction_that_is_off_by_a_byte_is_shown(self):
        argv = self.two()
        path = self.at("b", "summary.json")
        with open(path, encoding="utf-8") as f:
            summary = json.load(f)
        summary["memory"][0]["peak"]["gradient"] += 1
        with open(path, "w", encoding="utf-8") as f:
            json.dump(summary, f)
        p = self.run_it(*argv)
        self.assertRegex(p.stdout, r"worker +5\.00 = +5\.00/5\.00")
        self.assertIn("Where the measurement is not the prediction, there are two bars", self.read("out", "report.html"))

    def test_report_is_one_offline_file(self):
        argv = ["--runs"] + [make_run(self.at(t.replace(":", "-")), t) for t in
                             ("local", "ps:sync", "zero:3")] + ["--title", "A <b>title</b> & more"]
        p = self.run_it(*argv)
        text = self.read("out", "report.html")
        self.assertIn("A &lt;b&gt;title&lt;/b&gt; &amp; more", text)
        self.assertNotRegex(text, r"<link|<img|@import|url\((?!#)|src=")
        self.assertEqual(set(re.findall(r"https?://[^\"' )<]+", text)) - {"http://www.w3.org/2000/svg"}, set())
        self.assertGreaterEqual(text.count("<figure>"), 5)
        checker = Balanced()
        checker.feed(text)
        self.assertEqual(checker.open, [])

    def test_exact_equality_is_judged_without_rounding(self):
        a = load("a", make_run(self.at("a"), "zero:0"))
        b = load("b", make_run(self.at("b"), "zero:1", [LOSSES[0], "5.50", *LOSSES[2:]]))
        self.assertEqual(equality.first_difference(a, b)[0], 2)
        self.assertIsNone(equality.first_difference(a, a))

    def test_time_parts_add_up(self):
        part = table.time_per_step(load("a", make_run(self.at("a"), "zero:0")))
        self.assertAlmostEqual(sum(part[k] for k, _ in table.TIMES), part["total"])

    def test_ticks_are_round_and_inside(self):
        for low, high in ((0, 1), (2.31, 5.54), (0, 12345), (1e-4, 2e-4), (3, 3)):
            marks = svg.ticks(low, high)
            self.assertGreaterEqual(len(marks), 1)
            self.assertTrue(all(low - 1e-9 <= t <= max(high, low + 1) + 1e-9 for t in marks))

        self.assertEqual(svg.ticks(1, 20, 8, whole=True), [5, 10, 15, 20])
        self.assertEqual(svg.ticks(1, 4, 8, whole=True), [1, 2, 3, 4])

    def test_values_of_a_sweep(self):
        self.assertEqual(split_values('1,[2,3],{"a":"b,c"},"x,y"'), ["1", "[2,3]", '{"a":"b,c"}', '"x,y"'])


class Balanced(html.parser.HTMLParser):
    VOID = {"meta", "br", "img", "link", "input", "hr"}

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            raise AssertionError(f"</{tag}> closes nothing that is open")


class FakeProgram(Case):
    """A program that leaves a run directory and the order in which it was called."""

    def setUp(self):
        super().setUp()
        self.program = self.script(PROGRAM.format(python=sys.executable, tests=os.path.dirname(os.path.abspath(__file__))), "program")

    def order(self):
        return self.read("out", "order.txt").splitlines()


class Running(FakeProgram):
    def test_two_topologies(self):
        p = self.run_it("--program", self.program, "--a", "ps:sync", "--b", "zero:3", "--workers", "2", "--steps", "4",
                        "--seed", "1", "--dtype", "bf16", "--assert-equal", "--repeat", "1")
        self.assertTrue(sorted(self.order())[0].startswith("train --topology ps:sync --workers 2 --steps 4 --dtype bf16 --seed 1"))
        self.assertTrue(os.path.exists(os.path.join(self.out, "zero-3", "output.txt")))

    def test_a_difference_fails_the_assertion(self):
        p = self.run_it("--program", self.program, "--a", "ps:sync", "--b", "zero:3", "--assert-equal", "--repeat", "1", env={"BREAK": "bit"}, status=1)
        self.assertIn("ps:sync and zero:3 differ at step 3", p.stderr)

    def test_the_end_of_a_failed_run_is_shown(self):
        p = self.run_it("--program", self.program, "--a", "ps:sync", "--b", "zero:3", "--repeat", "1", env={"BREAK": "1"}, status=1)
        self.assertIn("could not gather unit 3", p.stderr)
        self.assertIn("exit status 1", p.stderr)

    def test_repeats_are_interleaved(self):
        p = self.run_it("--program", self.program, "--topologies", "ps:sync,zero:1", "--repeat", "2", "--assert-equal")
        order = [line.split()[2] for line in self.order()]
        self.assertEqual((set(order[:2]), set(order[2:])), ({"ps:sync", "zero:1"}, {"ps:sync", "zero:1"}))
        self.assertRegex(p.stdout, r"\ntokens/s +2,000 +2,000\n")
        self.assertIn("ps:sync = zero:1 (2 runs of each): equal to the last bit", p.stdout)

    def test_sweep(self):
        p = self.run_it("--program", self.program, "--a", "zero:1", "--sweep", "workers=2,3", "--workers", "9",
                        "--sweep", "gradient_clipping=0.5,1", "--repeat", "1")
        lines = self.order()
        self.assertEqual(len(lines), 4)
        self.assertEqual(sum("--workers 3" in line and "--set gradient_clipping=0.5" in line for line in lines), 1)
        self.assertNotIn("--workers 9", " ".join(lines))

    def test_seeds_of_a_sweep_stand_together(self):
        p = self.run_it("--program", self.program, "--a", "ps:sync", "--b", "zero:3", "--sweep", "seed=1,2,3", "--repeat", "1",
                        "--assert-equal")
        self.assertEqual(len(self.order()), 6)
        for seed in "123":
            self.assertIn(f"Seed {seed}: ps:sync = zero:3: equal to the last bit", p.stdout)
        self.assertEqual(len(p.stdout[p.stdout.index("launch"):].splitlines()[0].split()), 3)  # two columns

    def test_a_directory_of_somebody_else_is_left_alone(self):
        os.makedirs(os.path.join(self.out, "zero-1"))
        path = os.path.join(self.out, "zero-1", "thesis.tex")
        with open(path, "w", encoding="utf-8") as f:
            f.write("precious")
        p = self.run_it("--program", self.program, "--a", "zero:1", "--b", "ps:sync", "--repeat", "1", status=1)
        self.assertEqual((p.returncode, p.stdout), (1, ""))  # before the first run
        self.assertIn("no comparison wrote", p.stderr)
        self.assertTrue(os.path.exists(path))

    def test_wrong_command_lines(self):
        for argv in ((), ("--a", "local", "--runs", "x"), ("--a", "local", "--repeat", "0"), ("--nonsense",)):
            self.run_it(*argv, status=2)
        p = self.run_it("--program", self.at("nothing"), "--a", "local", status=2)
        self.assertIn("build it with make", p.stderr)
        with self.assertRaises(RunError):
            load("x", self.at("nowhere"))


if __name__ == "__main__":
    unittest.main()
