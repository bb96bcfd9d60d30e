#!/usr/bin/env python3
"""Repeats of experiments/compare.py: the random order, intervals, the sentences on times; media and who is grouped with whom."""
import math
import os
import random
import re
import unittest
from argparse import Namespace
from unittest import mock

from made_run import make_run
from test_compare import Case, FakeProgram
import compare
from comparison import claims, command, learning, comparability, plan, sentences, speed, spread, table
from comparison.pages import findings
from comparison.runs import Run, UsageError, load


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
        drawn = [spread.resampled_medians(values, seed).tolist() for seed in (5, 5, 6)]
        self.assertEqual(drawn[0], drawn[1])
        self.assertNotEqual(drawn[0], drawn[2])

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

    def families(self, speeds):
        """The two families of claims, each corrected together: the times of runs, and all else."""
        groups = self.groups(speeds)
        with mock.patch.object(spread, "RESAMPLES", 3):  # intervals of the tokens/s, which nothing here looks at
            speeds = speed.speeds_of(groups)
        return [[(s.group, s.reference, "time", s.time) for s in speeds if s.time], sentences.compared(groups, None)]

    def compared(self, speeds):
        return sum(self.families(speeds), [])


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
                told = [noise.families([1000] * sides) for _ in range(self.TRIES)]
                for family in (0, 1):
                    wrong = share(any(ratio.differs for *_, ratio in families[family]) for families in told)
                    self.assertLessEqual(wrong, 0.05 + self.SLACK, (shape, repeats, sides, family))

    def test_without_the_correction_it_would_in_more(self):
        noise = Noise(3, 3)
        wrong = share(any(r.chance < 0.05 for *_, r in noise.compared([1000, 1000])) for _ in range(self.TRIES))
        self.assertGreater(wrong, 0.15)

    def test_known_differences_are_found_and_alone(self):
        noise = Noise(5, 5, deviation=0.02)
        claimed = [[(words, round(ratio.value, 1)) for _, _, words, ratio in noise.compared([1000, 1300]) if ratio.differs] for _ in range(200)]
        self.assertGreater(share(("time", 0.8) in found for found in claimed), 0.97)
        self.assertLess(share(len(found) > 1 for found in claimed), 0.10)

    def test_the_smallest_difference_that_is_told_is_seen_half_of_the_time(self):
        for repeats, deviation in ((3, 0.08), (5, 0.08), (5, 0.01), (10, 0.03)):
            told = claims.smallest(deviation * math.sqrt(2), repeats, 1)
            noise = Noise(repeats, repeats, deviation=deviation)
            seen = share(next(r.differs for _, _, words, r in noise.compared([1000, 1000 * math.exp(told)]) if words == "time")
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
            return claims.Ratio(value, 3, 1.0, 3.0, 0.1, chance, freedom=2)
        self.assertEqual([r.differs for r in claims.claim([ratio(0.024), ratio(0.016)])], [True, True])
        self.assertEqual([r.differs for r in claims.claim([ratio(0.024), ratio(0.026)])], [True, True])
        self.assertEqual([r.differs for r in claims.claim([ratio(0.026), ratio(0.027)])], [False, False])
        self.assertEqual([r.differs for r in claims.claim([ratio(0.001, 1.019), ratio(0.001, 1.021), ratio(0.001, 0.99)])], [False, True, False])
        self.assertEqual(claims.claim([claims.Ratio(2.0, 1)]), [claims.Ratio(2.0, 1)])

    def test_what_is_not_claimed_has_an_interval_that_says_so(self):
        rng = random.Random(3)
        for _ in range(300):
            found = claims.claim([claims.ratio([(math.exp(rng.gauss(rng.choice((0, 0.05)), 0.03)), 1.0) for _ in range(4)]) for _ in range(6)])
            for r in found:
                self.assertTrue(r.least <= r.low <= r.value <= r.high <= r.most)
                self.assertEqual(r.differs, not r.least <= 1 <= r.most and abs(math.log(r.value)) >= claims.LEAST)

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
    def test_each_time_has_a_sentence_with_its_interval(self):
        groups = words_of(self, {"ps:sync": [1000, 900, 950], "zero:2": [925, 832.5, 878.75], "zero:3": [1100, 800, 1000]})
        said = speed.sentences(groups)
        self.assertEqual(said[0], "zero:2 needs 1.08 times ps:sync's time (1.08 to 1.08).")
        low, high, more = re.match(r"zero:3 needs 0\.99 times ps:sync's time \((0\.\d\d) to (1\.\d\d)\): not decided; ([\d,]+) more repeats would decide 5%\.$",
                                   said[1]).groups()
        self.assertTrue(float(low) < 0.9 and float(high) > 1.1 and int(more.replace(",", "")) > 3, said)
        self.assertEqual(len(said), 3)
        self.assertIn("it is not known what else ran", said[2])
        table_text = table.text_table(groups)
        self.assertRegex(table_text, r"time over ps:sync's +- +1\.08 +0\.99 ~\n +95% interval +- +±[\d.e-]+% +±\d\d(\.\d)?%\n")

    def test_what_is_not_beyond_noise_stands_beside_the_interval_that_says_so(self):
        groups = words_of(self, {"ps:sync": [1000, 900, 950], "zero:2": [1005, 897, 953], "zero:3": [1004, 898, 951]})
        said = speed.sentences(groups)
        self.assertRegex(said[0], r"^zero:2 needs 1\.00 times ps:sync's time \(0\.99 to 1\.01\): not beyond noise \(corrected for 2 ratios: 0\.98 to 1\.01\)\.$")

    def test_a_sure_difference_below_two_percent_is_not_claimed(self):
        groups = words_of(self, {"ps:sync": [1000, 900, 950], "zero:2": [990, 891, 940.5]})
        self.assertEqual(speed.sentences(groups)[0], "zero:2 needs 1.01 times ps:sync's time (1.01 to 1.01): less than 2% is not claimed.")

    def test_other_figures_of_repeats(self):
        groups = words_of(self, {"ps:sync": [1000, 900, 950], "zero:2": [1010, 880, 949]})
        said = sentences.in_words(groups, None)
        self.assertIn("The runs do not differ in them, as far as these repeats show.", said)
        self.assertIn("with twice as many repeats): CPU seconds 2% (2%), resident memory of the job 2% (2%)", said[-1])

    def test_two_sides_are_compared_in_their_parts_as_well(self):
        slow = {"forward": 0.9, "backward": 1.0, "comm_exposed": 0.1, "wait": 0.05, "host": 0.15, "total": 2.4}
        groups = words_of(self, {"ps:sync": [1000, 900], "zero:2": [1000, 900]}, zero2={"time": slow})
        first, second, *_ = [text for text in sentences.in_words(groups, None) if " needs " not in text and "~" not in text]
        self.assertIn("zero:2 takes 1.80 (1.80 to 1.80) times the forward time of ps:sync", first)
        for words in ("CPU seconds", "backward time", "time waiting for peers", "exposed communication", "host time"):
            self.assertIn(words, second)

    def test_a_figure_stands_whatever_else_ran_and_its_cause_has_its_own_advice(self):
        groups = words_of(self, {"ps:sync": [1000, 900, 950], "zero:2": [2000, 1500, 2600]})
        for load, words in (({"others_share": 0.5, "stolen_share": 0.0}, "other programs took 50% of the cores: end them"),
                            ({"others_share": 0.01, "stolen_share": 0.3}, "the hypervisor took 30% of the cores (steal)"),
                            ({"others_share": 0.01, "stolen_share": 0.0}, "hardly any other program ran (they took 1% of the cores): this machine's speed changes by itself")):
            for run in groups[0] + groups[1]:
                run.load = load
            (said,) = [text for text in speed.sentences(groups) if "~" in text]
            self.assertIn(words, said)
            self.assertEqual(sum(word in said for word in ("other programs took", "hypervisor", "changes by itself")), 1)
            self.assertNotIn("noisy", " ".join(speed.sentences(groups)) + table.text_table(groups))
            self.assertEqual([s.text for s in speed.speeds_of(groups)], ["950 ~", "2,000 ~"])

    def test_one_run_each_proves_nothing(self):
        said = speed.sentences(words_of(self, {"ps:sync": [1000], "zero:2": [1100]}))
        self.assertEqual(said, ["zero:2 needs 0.91 times ps:sync's time.", "A ratio without an interval is of one run each, which do not show how "
                                "much repeats differ: it claims nothing (--repeat 3)."])
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
        self.assertRegex(text, r"tokens/s +1,040 ~ +2,000 ~\n +95% interval +\d[\d,]*\.\.1,\d\d\d +-\n")
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
        planned = plan.plan(asked("--topologies", "local,ps:sync,zero:2", "--medium", "shm,tcp"))
        self.assertEqual([(p.label, p.medium) for p in planned], [("local", None), ("ps:sync shm", "shm"), ("ps:sync tcp", "tcp"),
                                                                  ("zero:2 shm", "shm"), ("zero:2 tcp", "tcp")])
        for p in planned:
            self.assertEqual("--medium" in p.argv, p.medium is not None)
        self.assertEqual(planned[2].argv[planned[2].argv.index("--medium") + 1], "tcp")

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
        self.assertEqual(comparability.unlike(groups), {})
        groups[1][0].medium_asked = "shm"
        self.assertEqual(list(comparability.unlike(groups)), ["medium"])
        for group in groups:
            group[0].summary["device"] = "cuda"  # NCCL, or what the star takes
        self.assertEqual(comparability.unlike(groups), {})

    def test_what_is_swept_may_differ_but_within_a_point_nothing(self):
        groups = []
        for name, lr, point in (("a", 1e-3, "x"), ("b", 1e-3, "x"), ("c", 3e-3, "y")):
            run = load(name, make_run(self.at(name), "zero:1", config={"optimizer": {"params": {"lr": lr}}}))
            run.point = [("optimizer.params.lr", point)]
            run.summary["params"] = {"x": 3000000, "y": 7}[point]  # as lora.r does
            groups.append([run])
        self.assertEqual(comparability.unlike(groups), {})
        groups[1][0].point = [("optimizer.params.lr", "y")]
        groups[1][0].summary["params"] = 7
        self.assertEqual(list(comparability.unlike(groups)), ["lr"])
        groups[1][0].summary["params"] = 8
        self.assertEqual(list(comparability.unlike(groups)), ["params", "lr"])


class Order(FakeProgram):
    def orders(self, *argv):
        p = self.run_it("--program", self.program, "--topologies", "ps:sync,zero:0,zero:1,zero:3", "--repeat", "3", "--device", "cpu", *argv)
        ran = [line.split()[2] for line in self.order()]
        os.remove(os.path.join(self.out, "order.txt"))
        return ran, p.stdout

    def test_the_order_that_is_printed_is_the_order_that_is_run(self):
        ran, said = self.orders()
        seed = re.search(r"order \(--order-seed (\d+)\):", said).group(1)
        lines = re.findall(r"(?m)^\[\d+/12\] .*", said)
        self.assertEqual([bool(re.search(r"; about \d+:\d\d left$", line)) for line in lines], [True] * 11 + [False], lines)
        for line in lines:  # each run tells its speed, whatever else ran
            self.assertRegex(line, r", [\d,]+( ~)? tokens/s(;|$)")
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

    def test_passes_go_on_until_it_is_decided_unless_their_number_is_asked_for(self):
        args = asked("--a", "zero:1")
        self.assertEqual((args.repeat, args.decide, args.within), (1, 0.05, 120))
        self.assertEqual(asked("--a", "zero:1", "--repeat", "2").decide, None)
        self.assertEqual(asked("--a", "zero:1", "--repeat", "2", "--decide", "2.5%").decide, 0.025)


class Together(Case):
    def test_repeats_and_seeds_of_finished_runs_stand_together(self):
        names = []
        for topology in ("ps:sync", "zero:2"):
            for seed in (1, 2):
                for repeat in (1, 2):
                    names.append(make_run(self.at(f"{topology.replace(':', '-')}-seed={seed}.r{repeat}"), topology, seed=seed))
        groups, _ = command.read_runs(Namespace(runs=names))
        self.assertEqual([[(r.seed, r.repeat) for r in g] for g in groups], [[(1, 0), (1, 1), (2, 0), (2, 1)]] * 2)
        self.assertEqual([g[0].label for g in groups], ["ps:sync", "zero:2"])
        self.assertEqual(comparability.unlike(groups), {})
        self.assertEqual(list(comparability.unlike([groups[0], groups[1][:2]])), ["seed"])

    def test_other_names_stand_alone(self):
        names = [make_run(self.at(n), "zero:2") for n in ("lab-1", "lab-2")]
        groups, _ = command.read_runs(Namespace(runs=names))
        self.assertEqual([[r.label for r in g] for g in groups], [["zero:2 (lab-1)"], ["zero:2 (lab-2)"]])


if __name__ == "__main__":
    unittest.main()
