#!/usr/bin/env python3
"""Repeats of experiments/compare.py: the random order, intervals, the sentences on times; media and who is grouped with whom."""
import math
import os
import random
import re
import unittest
from argparse import Namespace
from unittest import mock

from test_compare import Case, FakeProgram, make_run
import compare
from comparison import claims, learning, likeness, plan, sentences, spread, table
from comparison.pages import findings
from comparison.runs import Run, RunError, UsageError, load


class Intervals(unittest.TestCase):
    def coverage(self, draw, runs, tries=400):
        """Share of the intervals that hold the true median, which `draw` has at 1."""
        rng = random.Random(7)
        with mock.patch.object(spread, "RESAMPLES", 300):
            found = [spread.estimate([draw(rng) for _ in range(runs)], seed) for seed in range(tries)]
        return sum(e.low <= 1.0 <= e.high for e in found) / tries

    def test_intervals_hold_the_true_median_as_often_as_they_say(self):
        for runs in (2, 3, 5, 10):
            found = self.coverage(lambda rng: math.exp(rng.gauss(0, 0.05)), runs)
            self.assertTrue(0.89 <= found <= 0.99, (runs, found))

    def test_a_plain_bootstrap_of_three_runs_would_not(self):
        with mock.patch.object(spread, "t_quantile", lambda chance, freedom: spread.NORMAL), mock.patch.object(spread.math, "sqrt", lambda x: 1.0):
            self.assertLess(self.coverage(lambda rng: math.exp(rng.gauss(0, 0.05)), 3), 0.85)

    def test_equal_seeds_give_equal_intervals(self):
        values = [3.0, 3.3, 2.9, 3.1, 3.6, 2.7, 3.05]
        self.assertEqual(spread.estimate(values, 5), spread.estimate(values, 5))
        self.assertEqual(spread.resampled_medians(values, 5), spread.resampled_medians(values, 5))
        self.assertNotEqual(spread.resampled_medians(values, 5), spread.resampled_medians(values, 6))

    def test_known_samples(self):
        e = spread.estimate([100.0, 110.0, 104.0])
        wider = math.sqrt(3 / 2) * 4.302653 / 1.959964  # resampled medians of three reach from the lowest to the highest
        self.assertEqual((e.value, e.count), (104.0, 3))
        self.assertAlmostEqual(e.low, 104 * (100 / 104) ** wider, 4)
        self.assertAlmostEqual(e.high, 104 * (110 / 104) ** wider, 4)
        self.assertEqual(spread.estimate([5.0, 5.0, 5.0]), spread.Estimate(5.0, 5.0, 5.0, 3))

    def test_one_run_has_no_interval(self):
        self.assertEqual(spread.estimate([7.0]), spread.Estimate(7.0, None, None, 1))
        self.assertIsNone(spread.estimate([None, float("nan")]))

    def test_quantiles_of_student(self):
        for chance, freedom, wanted in ((0.05, 1, 12.7062), (0.05, 2, 4.3027), (0.05, 3, 3.1824), (0.05, 20, 2.0860), (0.01, 5, 4.0321),
                                        (0.001, 10, 4.5869), (0.05, 10**4, 1.9602)):
            self.assertAlmostEqual(spread.t_quantile(chance, freedom), wanted, 3)


class Noise:
    """Made-up comparisons: runs whose times and throughput scatter around truths, some of it common to a repeat, some to a run,
    some to each measure."""
    PARTS = ("forward", "backward", "wait", "comm_exposed", "host")
    LEAN = {"normal": lambda rng: rng.gauss(0, 1), "skewed": lambda rng: rng.expovariate(1) - 1,
            "flat": lambda rng: rng.uniform(-3**0.5, 3**0.5), "outliers": lambda rng: rng.gauss(0, 0.5 if rng.random() < 0.9 else 2.8)}

    def __init__(self, seed, repeats, shape="normal", deviation=0.08):
        self.rng, self.repeats, self.draw, self.deviation = random.Random(seed), repeats, self.LEAN[shape], deviation

    def value(self, truth):
        return truth * math.exp(self.deviation * self.draw(self.rng))

    def groups(self, speeds):
        """[[Run ..] ..] of these true tokens/s; all else is equal."""
        out = [[] for _ in speeds]
        for repeat in range(self.repeats):
            common = math.exp(0.2 * self.rng.gauss(0, 1))
            for place, (group, speed) in enumerate(zip(out, speeds)):
                run = Run(f"{place}.r{repeat}", "nowhere")
                run.label, run.repeat, run.losses = f"zero:{place}", repeat, ["3.0"]
                time = {part: self.value(common) for part in self.PARTS} | {"total": 5.0}
                run.summary = {"topology": f"zero:{place}", "seed": 1, "tokens_per_second": self.value(speed / common), "time": time,
                               "totals": {"cpu_seconds": self.value(common), "pss_bytes": self.value(1e9)}}
                group.append(run)
        return out

    def compared(self, speeds):
        return sentences.compared(self.groups(speeds), None)


def share(found):
    found = list(found)
    return sum(found) / len(found)


class Claims(unittest.TestCase):
    TRIES = 600
    SLACK = 3 * math.sqrt(0.05 * 0.95 / TRIES)

    def test_a_thing_compared_with_itself_differs_in_one_of_twenty_comparisons_at_most(self):
        for shape in Noise.LEAN:
            for repeats, sides in ((3, 2), (5, 2), (4, 4)):
                noise = Noise(repeats, repeats, shape)
                wrong = share(any(ratio.differs for *_, ratio in noise.compared([1000] * sides)) for _ in range(self.TRIES))
                self.assertLessEqual(wrong, 0.05 + self.SLACK, (shape, repeats, sides))

    def test_without_the_correction_it_would_in_more(self):
        noise = Noise(3, 3)
        wrong = share(any(r.chance < 0.05 for *_, r in noise.compared([1000, 1000])) for _ in range(self.TRIES))
        self.assertGreater(wrong, 0.15)

    def test_known_differences_are_found_and_alone(self):
        noise = Noise(5, 5, deviation=0.02)
        claimed = [[(words, round(ratio.value, 1)) for _, _, words, ratio in noise.compared([1000, 1300]) if ratio.differs] for _ in range(200)]
        self.assertGreater(share(("tokens/s", 1.3) in found for found in claimed), 0.97)
        self.assertLess(share(len(found) > 1 for found in claimed), 0.10)

    def test_the_smallest_difference_that_is_told_is_seen_half_of_the_time(self):
        for repeats, deviation in ((3, 0.08), (5, 0.08), (5, 0.01), (10, 0.03)):
            told = claims.smallest(deviation * math.sqrt(2), repeats, 8)
            noise = Noise(repeats, repeats, deviation=deviation)
            seen = share(next(r.differs for _, _, words, r in noise.compared([1000, 1000 * math.exp(told)]) if words == "tokens/s")
                         for _ in range(self.TRIES))
            self.assertAlmostEqual(seen, 0.5, delta=0.07, msg=(repeats, deviation))

    def test_three_repeats_of_runs_that_spread_over_8_percent(self):
        self.assertEqual([claims.in_percent(claims.smallest(0.08 * math.sqrt(2), 3, m)) for m in (1, 8)], ["27%", "99%"])
        self.assertEqual([claims.in_percent(effect) for effect in (math.log(1.02), math.log(3.44), 50)], ["2%", "3.4 times", "over 100 times"])

    def test_spreads_of_one_measure_are_pooled(self):
        def repeated(spread, count=3):
            return claims.Ratio(1.0, count, 1.0, 1.0, spread, 1.0)
        found = claims.unseen([("tokens/s", repeated(0.03)), ("tokens/s", repeated(0.04, 5)), ("host time", repeated(0.0)), ("alone", claims.Ratio(1.0, 1))])
        pooled = math.sqrt((0.03**2 + 0.04**2) / 2)
        self.assertEqual(found, [("tokens/s", claims.smallest(pooled, 3, 3), claims.smallest(pooled, 6, 3)), ("host time", claims.LEAST, claims.LEAST)])

    def test_the_surest_must_hold_against_all_and_the_next_against_the_rest(self):
        def ratio(chance, value=2.0):
            return claims.Ratio(value, 3, 1.0, 3.0, 0.1, chance)
        self.assertEqual([r.differs for r in claims.claim([ratio(0.024), ratio(0.016)])], [True, True])
        self.assertEqual([r.differs for r in claims.claim([ratio(0.024), ratio(0.026)])], [True, True])
        self.assertEqual([r.differs for r in claims.claim([ratio(0.026), ratio(0.027)])], [False, False])
        self.assertEqual([r.differs for r in claims.claim([ratio(0.001, 1.019), ratio(0.001, 1.021), ratio(0.001, 0.99)])], [False, True, False])
        self.assertEqual(claims.claim([claims.Ratio(2.0, 1)]), [claims.Ratio(2.0, 1)])

    def test_ratios_are_taken_within_a_repeat(self):
        slow = [0.5, 1.0, 2.0]  # what slowed a whole repeat slowed both
        found = claims.ratio([(1.1 * s, s) for s in slow])
        self.assertAlmostEqual(found.value, 1.1)
        self.assertAlmostEqual(found.high - found.low, 0.0)
        self.assertLess(found.chance, 1e-6)
        self.assertIsNone(claims.ratio([(0.0, 1.0), (None, 2.0)]))
        self.assertEqual(claims.ratio([(3.0, 2.0)]), claims.Ratio(1.5, 1))

    def test_a_known_sample(self):
        found = claims.ratio([(1.0, 1.0), (1.2, 1.0), (1.1, 1.0)])
        logs = [0.0, math.log(1.2), math.log(1.1)]
        mean = sum(logs) / 3
        spread_of = math.sqrt(sum((x - mean)**2 for x in logs) / 2)
        self.assertAlmostEqual(found.value, math.exp(mean))
        self.assertAlmostEqual(found.low, math.exp(mean - 4.3027 * spread_of / math.sqrt(3)), 4)
        self.assertAlmostEqual(spread.t_quantile(found.chance, 2), mean / spread_of * math.sqrt(3), 6)


def words_of(case, speeds, **summaries):
    """The groups of runs with these tokens/s, {topology: [one per repeat]}."""
    groups = []
    for topology, values in speeds.items():
        group = []
        for i, speed in enumerate(values):
            run = load(topology, make_run(case.at(f"{topology.replace(':', '-')}.r{i}"), topology, tokens_per_second=speed,
                                          **summaries.get(topology.replace(":", ""), {})))
            run.repeat = i
            group.append(run)
        groups.append(group)
    return groups


class Sentences(Case):
    def test_what_differs_is_said_with_its_interval_and_the_rest_is_noise(self):
        groups = words_of(self, {"ps:sync": [1000, 900, 950], "zero:2": [1085, 970, 1030], "zero:3": [1100, 800, 1000]})
        first, second, third = sentences.in_words(groups, None)
        low, high = re.match(r"zero:2 reaches 1\.08 \((1\.0\d) to (1\.\d\d)\) times the tokens/s of ps:sync; "
                             r"nothing else differs, as far as these repeats can tell\.$", first).groups()
        self.assertTrue(1.0 < float(low) < 1.08 <= float(high), first)
        self.assertIn("4 ratios, each with 3 repeats. A difference is claimed if it is at least 2%, and if ", second)
        found = sentences.compared(groups, None)
        (_, now, twice), other = claims.unseen([(words, ratio) for _, _, words, ratio in found])
        self.assertTrue(1.2 < math.exp(now) < 3 and now > 2 * twice, (now, twice))
        self.assertIn(f"with twice as many repeats): tokens/s {claims.in_percent(now)} ({claims.in_percent(twice)}), CPU seconds 2% (2%).", third)
        self.assertEqual(other[1], claims.LEAST)

    def test_nothing_differs(self):
        groups = words_of(self, {"ps:sync": [1000, 900, 950], "zero:2": [1010, 880, 949]})
        self.assertEqual(sentences.in_words(groups, None)[0], "The runs do not differ, as far as these repeats can tell.")

    def test_two_sides_are_compared_in_their_parts_as_well(self):
        slow = {"forward": 0.9, "backward": 1.0, "comm_exposed": 0.1, "wait": 0.05, "host": 0.15, "total": 2.4}
        groups = words_of(self, {"ps:sync": [1000, 900], "zero:2": [1000, 900]}, zero2={"time": slow})
        first, second, _ = sentences.in_words(groups, None)
        self.assertIn("zero:2 takes 1.80 (1.80 to 1.80) times the forward time of ps:sync", first)
        for words in ("tokens/s", "CPU seconds", "backward time", "time waiting for peers", "exposed communication", "host time"):
            self.assertIn(words, second)

    def test_a_noisy_run_gives_no_sentence_about_times(self):
        groups = words_of(self, {"ps:sync": [1000, 900, 950], "zero:2": [2000, 1800, 190000]})
        groups[1][2].load = {"others_share": 0.5}
        first, noisy, second, _ = sentences.in_words(groups, None)
        self.assertEqual(noisy, "The times of noisy runs are not compared: zero:2 (1 of 3 runs).")
        self.assertIn("zero:2 reaches 2.00 (2.00 to 2.00) times the tokens/s of ps:sync", first)
        self.assertIn("each with 2 or more repeats", second)  # memory is no time
        groups[0][0].load = {"stolen_share": 0.5}
        first, noisy, second, _ = sentences.in_words(groups, None)
        self.assertIn("ps:sync (1 of 3 runs), zero:2 (1 of 3 runs)", noisy)
        self.assertEqual([first, second.split(";")[0]], ["The runs use the same resident memory, as far as these repeats can tell.",
                                                          "Compared: resident memory of the job"])
        # The report's sentence on speed does not pass for one on speed where no time was looked at, whatever memory does.
        self.assertEqual(findings.of_speed(groups, None), f"{first} {noisy}")
        for run in groups[1]:
            run.summary["totals"]["pss_bytes"] *= 2
        self.assertEqual(sentences.in_words(groups, None)[0], "zero:2 takes 2.00 (2.00 to 2.00) times the resident memory of the job of ps:sync.")
        for run in groups[0]:
            run.load = {"stolen_share": 0.5}
        self.assertNotIn("tokens/s", " ".join(sentences.in_words(groups, None)))

    def test_one_noisy_run_each_says_nothing(self):
        groups = words_of(self, {"ps:sync": [1000], "zero:2": [1100], "zero:3": [1200]})
        groups[1][0].load = {"others_share": 0.5}
        noisy, said = sentences.in_words(groups, None)
        self.assertEqual(noisy, "The times of noisy runs are not compared: zero:2.")
        self.assertRegex(said, r"^zero:3 reaches 1\.20 times the tokens/s of ps:sync\. One quiet run each does not show ")
        groups[0][0].load = {"others_share": 0.5}
        self.assertEqual(sentences.in_words(groups, None), ["The times of noisy runs are not compared: ps:sync, zero:2."])

    def test_one_run_each_proves_nothing(self):
        said = sentences.in_words(words_of(self, {"ps:sync": [1000], "zero:2": [1100]}), None)
        self.assertEqual(len(said), 1)
        self.assertRegex(said[0], r"^zero:2 reaches 1\.10 times the tokens/s of ps:sync\. One run each .*no difference is claimed")
        self.assertEqual(sentences.in_words(words_of(self, {"ps:sync": [1000]}), None), [])

    def test_everything_is_compared_with_the_first_star_or_ring_on_its_medium(self):
        groups = words_of(self, {"local": [500, 510], "ps:sync": [1000, 990], "zero:2": [1000, 990]})
        self.assertEqual([sentences.reference_of(g, groups) for g in groups], [groups[1], None, groups[1]])
        both = words_of(self, {"ps:sync": [1000, 990], "zero:2": [1000, 990]}) + words_of(self, {"ps:sync": [700, 690], "zero:2": [600, 590]})
        for group, medium in zip(both, ("shm", "shm", "tcp", "tcp")):
            for run in group:
                run.medium_asked = medium
        self.assertEqual([sentences.reference_of(g, both) for g in both], [None, both[0], both[0], both[2]])

    def test_the_table_has_medians_and_their_intervals(self):
        text = table.text_table(words_of(self, {"ps:sync": [1000, 1100, 1040], "zero:2": [2000, 2000, 2000]}))
        self.assertRegex(text, r"tokens/s \(median\) +1,040 +2,000\n +95% interval +\d[\d,]*\.\.1,\d\d\d +-\n")
        self.assertIn("widened for few runs (Hesterberg 2015)", " ".join(text.split()))


class TimeToLoss(Case):
    def run_with(self, name, evals):
        return load(name, make_run(self.at(name), "zero:1", evals=evals))

    def test_the_crossing_lies_on_the_line_between_evaluations(self):
        run = self.run_with("a", [(2, 4.0), (4, 3.0), (8, 2.0)])
        self.assertEqual(learning.reached(run, 3.25), 0.5 * 2 + 0.75 * 1.0)
        self.assertEqual(learning.reached(run, 3.25, "samples"), 8 * 2 + 0.75 * 16)
        self.assertEqual(learning.reached(run, 3.0), 2.0)
        self.assertEqual(learning.reached(run, 5.0), 1.0)
        self.assertIsNone(learning.reached(run, 1.9))

    def test_the_target_is_what_the_worst_run_came_to(self):
        runs = [self.run_with("a", [(2, 4.0), (4, 2.0)]), self.run_with("b", [(2, 4.0), (4, 2.5)]), self.run_with("c", [(4, 2.25)])]
        self.assertEqual(learning.default_target(runs), 2.5)
        text = table.text_table([[r] for r in runs], 2.5)
        self.assertRegex(text, r"seconds to 2\.5000 on held-out text +1\.75 +2\.00 +2\.00\n")

    def test_a_target_of_ones_own(self):
        a, b = make_run(self.at("a"), "ps:sync", evals=[(2, 4.0), (4, 2.0)]), make_run(self.at("b"), "zero:2", evals=[(2, 4.0), (4, 3.0)])
        p = self.run_it("--runs", a, b, "--target-loss", "2.5")
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertRegex(p.stdout, r"seconds to 2\.5000 on held-out text +1\.75 +never\n")

    def test_files_that_say_the_step_alone(self):
        run = self.run_with("a", None)
        self.write('{"step": 3, "val_loss": 2.5, "unigram_entropy": 3.25, "seconds": 99}\n', "a", "evals.jsonl")
        self.assertEqual([(e.samples, e.updates, e.seconds) for e in load("a", run.directory).evals], [(24, 3, 1.5)])


def asked(*argv):
    return compare.options.parse(list(argv), "", "program")


class Media(Case):
    def media(self, *argv, config=None):
        with mock.patch.object(plan, "resolved", lambda args: config or {"device": "cpu", "medium": "auto"}):
            return plan.media(asked(*argv))

    def test_both_sides_are_on_one_medium_unless_asked(self):
        both = ("--a", "ps:sync", "--b", "zero:2")
        self.assertEqual(self.media(*both), [plan.MEDIUM])
        self.assertEqual(self.media(*both, "--medium", "tcp"), ["tcp"])
        self.assertEqual(self.media(*both, "--medium", "shm,tcp"), ["shm", "tcp"])
        self.assertEqual(self.media(*both, "--bandwidth", "1Gbit"), ["tcp"])

    def test_what_leaves_it_to_the_program(self):
        both = ("--a", "ps:sync", "--b", "zero:2")
        self.assertEqual(self.media(*both, config={"device": "cuda", "medium": "auto"}), [None])
        self.assertEqual(self.media(*both, config={"device": "cpu", "medium": "tcp"}), [None])
        self.assertEqual(self.media(*both, "--set", "medium=tcp"), [None])
        self.assertEqual(self.media("--a", "zero:1", "--launch", "threads"), [None])
        self.assertEqual(self.media("--a", "local"), [None])

    def test_each_topology_runs_on_each_medium_and_local_once(self):
        with mock.patch.object(plan.shutil, "which", lambda name: "/bin/mpirun"):
            planned = plan.plan(asked("--topologies", "local,ps:sync,zero:2", "--medium", "shm,tcp"))
        self.assertEqual([(p.label, p.medium) for p in planned], [("local", None), ("ps:sync shm", "shm"), ("ps:sync tcp", "tcp"),
                                                                  ("zero:2 shm", "shm"), ("zero:2 tcp", "tcp")])
        for p in planned:
            self.assertEqual("--medium" in p.argv, p.medium is not None)
        self.assertEqual(planned[2].argv[planned[2].argv.index("--medium") + 1], "tcp")

    def test_without_mpirun_a_ring_on_tcp_is_refused_with_what_to_do(self):
        with mock.patch.object(plan.shutil, "which", lambda name: None):
            with self.assertRaisesRegex(RunError, "mpirun is not installed.*openmpi-bin.*--medium shm"):
                plan.plan(asked("--a", "ps:sync", "--b", "zero:2", "--device", "cpu", "--medium", "tcp"))
            plan.plan(asked("--a", "ps:sync", "--b", "zero:2", "--device", "cpu"))
            plan.plan(asked("--a", "zero:1", "--b", "zero:2", "--launch", "threads"))

    def test_threads_are_not_compared_with_processes(self):
        both = ("--a", "ps:sync", "--b", "zero:2", "--launch", "threads")
        with self.assertRaisesRegex(UsageError, "--launch threads: a star's roles are processes"):
            plan.plan(asked(*both))
        star, ring = plan.plan(asked(*both, "--force"))
        self.assertNotIn("--launch", star.argv)
        self.assertEqual(ring.argv[ring.argv.index("--launch") + 1], "threads")

    def test_lists_that_are_none(self):
        for argv in (("--medium", "udp"), ("--medium", ""), ("--medium", "shm,shm"), ("--launch", "threads", "--medium", "shm"),
                     ("--bandwidth", "1Gbit", "--medium", "shm")):
            with self.assertRaises(SystemExit) as caught, mock.patch("sys.stderr"):
                asked("--a", "zero:1", *argv)
            self.assertEqual(caught.exception.code, 2, argv)

    def test_media_that_were_asked_for_are_not_unlike(self):
        groups = []
        for name, medium in (("a", "shm"), ("b", "tcp")):
            run = load(name, make_run(self.at(name), "zero:1", medium=medium))
            run.medium_asked = medium
            groups.append([run])
        self.assertEqual(likeness.unlike(groups), {})
        groups[1][0].medium_asked = "shm"
        self.assertEqual(list(likeness.unlike(groups)), ["medium"])
        for group in groups:
            group[0].summary["device"] = "cuda"  # NCCL, or what the star takes
        self.assertEqual(likeness.unlike(groups), {})

    def test_what_is_swept_may_differ_but_within_a_point_nothing(self):
        groups = []
        for name, lr, point in (("a", 1e-3, "x"), ("b", 1e-3, "x"), ("c", 3e-3, "y")):
            run = load(name, make_run(self.at(name), "zero:1", config={"optimizer": {"params": {"lr": lr}}}))
            run.point = [("optimizer.params.lr", point)]
            groups.append([run])
        self.assertEqual(likeness.unlike(groups), {})
        groups[1][0].point = [("optimizer.params.lr", "y")]
        self.assertEqual(list(likeness.unlike(groups)), ["lr"])


class Order(FakeProgram):
    def orders(self, *argv):
        p = self.run_it("--program", self.program, "--topologies", "ps:sync,zero:0,zero:1,zero:3", "--repeat", "3", "--device", "cpu", *argv)
        self.assertEqual(p.returncode, 0, p.stderr)
        ran = [line.split()[2] for line in self.order()]
        os.remove(os.path.join(self.out, "order.txt"))
        return ran, p.stdout

    def test_the_order_that_is_printed_is_the_order_that_is_run(self):
        ran, said = self.orders()
        seed = re.search(r"order \(--order-seed (\d+)\):", said).group(1)
        lines = re.findall(r"(?m)^\[\d+/12\] .*", said)
        self.assertEqual([bool(re.search(r"; about \d+:\d\d left$", line)) for line in lines], [True] * 11 + [False], lines)
        for line in lines:  # of a noisy run no speed is told
            self.assertNotEqual("tokens/s" in line, "noisy: " in line, line)
        printed = [name for number in "123" for name in re.search(rf"(?m)^  {number}: (.*)$", said).group(1).split(", ")]
        self.assertEqual(ran, printed)
        for i in range(3):
            self.assertEqual(sorted(ran[4 * i:4 * i + 4]), ["ps:sync", "zero:0", "zero:1", "zero:3"])
        again, _ = self.orders("--order-seed", seed)
        self.assertEqual(again, ran)
        self.assertIn("Which times differ", self.read("out", "report.html"))

    def test_orders_are_random(self):
        planned = [Namespace(name=n) for n in "abcd"]
        firsts = {"".join(one.name for _, one in plan.schedule(planned, 1, seed)) for seed in range(40)}
        self.assertGreater(len(firsts), 15)
        blocks = ["".join(one.name for r, one in plan.schedule(planned, 6, 1) if r == k) for k in range(6)]
        self.assertGreater(len(set(blocks)), 3)  # each repeat has an order of its own

    def test_three_repeats_unless_asked(self):
        self.assertEqual(asked("--a", "zero:1").repeat, 3)


class Together(Case):
    def test_repeats_and_seeds_of_finished_runs_stand_together(self):
        names = []
        for topology in ("ps:sync", "zero:2"):
            for seed in (1, 2):
                for repeat in (1, 2):
                    names.append(make_run(self.at(f"{topology.replace(':', '-')}-seed={seed}.r{repeat}"), topology, seed=seed))
        groups, _ = compare.read_runs(Namespace(runs=names))
        self.assertEqual([[(r.seed, r.repeat) for r in g] for g in groups], [[(1, 0), (1, 1), (2, 0), (2, 1)]] * 2)
        self.assertEqual([g[0].label for g in groups], ["ps:sync", "zero:2"])
        self.assertEqual(likeness.unlike(groups), {})
        self.assertEqual(list(likeness.unlike([groups[0], groups[1][:2]])), ["seed"])

    def test_other_names_stand_alone(self):
        names = [make_run(self.at(n), "zero:2") for n in ("lab-1", "lab-2")]
        groups, _ = compare.read_runs(Namespace(runs=names))
        self.assertEqual([[r.label for r in g] for g in groups], [["zero:2 (lab-1)"], ["zero:2 (lab-2)"]])


if __name__ == "__main__":
    unittest.main()
