#!/usr/bin/env python3
"""Runs that take turns: ranks of every topology stand at a gate and end as they would without one; what a gate's time is not; gates
that are none; and intervals of ratios that hold what is true of a recorded machine."""
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
import types
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import ENVIRONMENT, EXPERIMENTS, LIMIT_S, PROGRAM, TINY, Runs, folder_for
from comparison import claims, speed, turns
from comparison.execute import why_whole

STEPS = 12
STOOD_S = 5
# (topology and its settings, whether equal runs end in equal bits)
WAYS = [("local", [], True), ("ps:sync", [], True), ("ps:async", [], False), ("ps:ssp:1", ["--workers", "3"], False),
        ("ps:backup:1", ["--workers", "3"], False), ("ps:quorum:2", ["--workers", "3"], False), ("ps:sync", ["--elastic", "1:2"], True),
        ("zero:0", [], True), ("zero:3", [], True), ("zero:2", ["--launch", "threads"], True),
        ("zero:1", ["--launch", "mpi", "--medium", "tcp"], True), ("gossip", ["--workers", "4"], True),
        ("zero:0", ["--set", "local_steps.steps=4"], True), ("ps:sync", ["--set", "local_steps.steps=4"], True),
        ("ps:async", ["--set", "local_steps.steps=4"], False), ("ps:sync", ["--medium", "tcp", "--servers", "2"], True)]


class Gated(Runs):
    def setUp(self):
        super().setUp()
        self.folder = folder_for(self, 4000)

    def argv(self, out, topology, settings):
        words = [*TINY, "--data", "text.txt", "--steps", str(STEPS), "--batch", "2", "--seq", "32", "--topology", topology, *settings, "--quiet"]
        if topology == "local":
            words[words.index("--workers") + 1] = "1"
        return [PROGRAM, "train", *words, "--out", os.path.join(self.folder, out)]

    def begin(self, out, topology="ps:sync", settings=(), gate=None):
        """A Player whose ranks stand at their first step."""
        where = open(os.path.join(self.folder, out + ".txt"), "wb")
        self.addCleanup(where.close)

        def start(path):
            return subprocess.Popen(self.argv(out, topology, settings), cwd=self.folder, stdin=subprocess.DEVNULL, stdout=where,
                                    stderr=subprocess.STDOUT, env={**ENVIRONMENT, turns.VARIABLE: gate or path})
        player = turns.PausableRun(start)
        self.addCleanup(player.gate.close)
        self.addCleanup(player.process.wait)
        self.addCleanup(player.process.kill)
        return player

    def said(self, out):
        with open(os.path.join(self.folder, out + ".txt"), encoding="utf-8") as f:
            return f.read()

    def summary_of(self, out):
        with open(os.path.join(self.folder, out, "summary.json"), encoding="utf-8") as f:
            return json.load(f)

    def whole(self, out, topology, settings):
        p = subprocess.run(self.argv(out, topology, settings), cwd=self.folder, capture_output=True, text=True, env=ENVIRONMENT, check=False)
        self.assertEqual(p.returncode, 0, p.stderr)
        return self.summary_of(out)


class Gate(Gated):
    def test_every_topology_stands_between_two_steps_and_ends_as_without_a_gate(self):
        for i, (topology, settings, same) in enumerate(WAYS):
            with self.subTest(topology=topology, settings=settings):
                out = f"gated{i}"
                player = self.begin(out, topology, settings)
                self.assertTrue(player.wait(limit=LIMIT_S), self.said(out))
                self.assertEqual([seat.done for seat in player.gate.seats()], [0] * player.gate.head.ranks)
                unit, total = player.gate.head.unit, player.gate.head.total
                places = []
                for number in range(STEPS):
                    if player.steps_left() > 0:
                        self.assertTrue(player.slice(number, 1, limit=LIMIT_S), self.said(out))  # a unit: one step, or a round of local ones
                        done = sum(seat.done for seat in player.gate.seats())
                        time.sleep(0.03)
                        self.assertEqual(done, sum(seat.done for seat in player.gate.seats()))  # nobody goes on
                        places.append(done)
                self.assertEqual(places[-1], total)
                self.assertEqual(places[:-1], [min(unit * (k + 1), total) for k in range(len(places) - 1)])
                player.finish()
                self.assertEqual(player.process.wait(timeout=LIMIT_S), 0, self.said(out))
                found = self.summary_of(out)
                self.assertAlmostEqual(found["time"]["check"], 1, delta=0.02)
                if same:
                    self.assertEqual(found["weights_hash"], self.whole(f"whole{i}", topology, settings)["weights_hash"])

    def test_time_at_a_gate_is_no_time_of_the_run_and_no_silence(self):
        for topology in ("ps:sync", "ps:async", "zero:2"):
            with self.subTest(topology=topology):
                out = "late-" + topology.replace(":", "-")
                player = self.begin(out, topology, ["--set", "parameter_server.deadline_ms=2000"])
                self.assertTrue(player.wait(limit=LIMIT_S), self.said(out))
                self.assertTrue(player.slice(0, 4, limit=LIMIT_S))
                time.sleep(STOOD_S)  # more than two deadlines
                self.assertTrue(player.slice(1, 4, limit=LIMIT_S), self.said(out))
                self.assertTrue(player.slice(2, 4, limit=LIMIT_S))
                player.finish()
                self.assertEqual(player.process.wait(timeout=LIMIT_S), 0, self.said(out))
                found = self.summary_of(out)
                with open(os.path.join(self.folder, out, "metrics.jsonl"), encoding="utf-8") as f:
                    steps = [json.loads(line) for line in f]
                # All clocks lack the time at the gate; a busy machine comes late to it, or away from it.
                most = sum(s["wall_seconds"] for s in player.slices) + STOOD_S / 2
                self.assertLess(found["seconds"], most)
                self.assertLess(steps[-1]["elapsed"], most)
                self.assertLess(sum(s["seconds"] for s in steps), most)
                if topology != "ps:async":  # whose rate is without the time in which a worker had no batch left
                    self.assertAlmostEqual(found["tokens_per_second"] * found["seconds"] / found["tokens_applied"], 1)
                for server in found.get("server_time") or []:
                    self.assertLess(server["total"], most)  # of one thread

    def test_a_slice_in_which_ranks_were_started_anew_has_no_rate(self):
        for topology in ("ps:sync", "zero:1"):
            with self.subTest(topology=topology):
                out = "anew-" + topology.replace(":", "-")
                player = self.begin(out, topology, ["--restart", "2"])
                self.assertTrue(player.wait(limit=LIMIT_S), self.said(out))
                self.assertTrue(player.slice(0, 4, limit=LIMIT_S), self.said(out))
                worker = subprocess.run(["pgrep", "-P", str(player.process.pid)], capture_output=True, text=True, check=True).stdout.split()[-1]
                os.kill(int(worker), signal.SIGKILL)
                self.assertTrue(player.slice(1, 4, limit=LIMIT_S), self.said(out))
                self.assertTrue(player.slice(2, 4, limit=LIMIT_S), self.said(out))
                player.finish()
                self.assertEqual(player.process.wait(timeout=LIMIT_S), 0, self.said(out))
                self.assertEqual([s["tokens_per_second"] is None for s in player.slices], [False, True, False])

    def test_a_run_that_is_asked_to_leave_stands_at_no_gate(self):
        player = self.begin("left")
        self.assertTrue(player.wait(limit=LIMIT_S), self.said("left"))
        player.process.send_signal(signal.SIGTERM)
        self.assertEqual(player.process.wait(timeout=LIMIT_S), 143, self.said("left"))

    def test_a_file_that_is_no_gate_is_named(self):
        for name, content, words in (("none", None, "No such file"), ("short", b"STARGATE", "too short"), ("other", bytes(4096), "does not begin with STARGATE"),
                                     ("cut", b"STARGATE" + (4096).to_bytes(8, "little") + bytes(500), "too short for the number of records")):
            path = os.path.join(self.folder, name)
            if content is not None:
                with open(path, "wb") as f:
                    f.write(content)
            p = subprocess.run(self.argv("no" + name, "zero:1", []), cwd=self.folder, capture_output=True, text=True,
                               env={**ENVIRONMENT, turns.VARIABLE: path}, check=False)
            self.assertEqual(p.returncode, 1, p.stderr)
            self.assertIn(f"{turns.VARIABLE}={path}: ", p.stderr)
            self.assertIn(words, p.stderr)

    def test_a_run_does_not_stand_for_a_comparison_that_is_gone(self):
        other = subprocess.Popen(["true"])
        other.wait()
        player = self.begin("orphan", "zero:1")
        player.gate.head.holder = other.pid
        self.assertEqual(player.process.wait(timeout=LIMIT_S), 1)
        self.assertIn("has ended", self.said("orphan"))


# ---------------------------------------------------------------- comparisons
COMPARE = os.path.join(EXPERIMENTS, "compare.py")
SMALL = ["--a", "ps:sync", "--b", "zero:1", "--c", "ps:async", "--model", "tiny", "--data", "text.txt", "--batch", "2", "--seq", "32"]


class Comparison(Gated):
    def compare(self, *words, status=0):
        p = subprocess.run([sys.executable, COMPARE, "--program", PROGRAM, *SMALL, "--out", "out", *words], cwd=self.folder, capture_output=True,
                           text=True, env=ENVIRONMENT, check=False)
        self.assertEqual(p.returncode, status, p.stderr + p.stdout)
        return p.stdout

    def rounds(self, name):
        return turns.read(os.path.join(self.folder, "out", name))

    def test_runs_take_turns_and_times_are_ratios_of_rounds(self):
        said = self.compare("--steps", "40", "--repeat", "1", "--assert-equal", "promised", "--order-seed", "3")
        self.assertIn("3 runs take turns", said)
        found = {name: self.rounds(name) for name in ("ps-sync", "zero-1", "ps-async")}
        self.assertEqual(len({one["comparison"] for one in found.values()}), 1)
        orders = set()
        for number in range(8):
            at = {name: next(s for s in one["slices"] if s["round"] == number) for name, one in found.items()}
            self.assertEqual(len({s["tokens"] for s in at.values()}), 1)
            spans = sorted((s["began"], s["began"] + s["wall_seconds"]) for s in at.values())
            for (_, end), (begin, _) in zip(spans, spans[1:]):
                self.assertLessEqual(end, begin + 0.001)  # one at a time
            orders.add(tuple(sorted(at, key=lambda name: at[name]["began"])))
        self.assertGreater(len(orders), 1)
        self.assertRegex(said, r"zero:1 needs \d+\.\d\d times ps:sync's time \(\d+\.\d\d to \d+\.\d\d\)")
        self.assertNotIn("noisy", said)
        self.assertEqual(said.count(" tokens/s"), 4)  # of each run a figure

    def test_passes_are_added_until_it_is_decided(self):
        said = self.compare("--steps", "16", "--decide", "90%", "--within", "300")
        self.assertNotIn("no further pass", said)
        said = self.compare("--steps", "16", "--decide", "0.01%", "--within", "0.1")
        self.assertEqual((said.count("runs take turns"), said.count("no further pass: it would take ")), (1, 1))
        self.assertRegex(said, r"not decided; [\d,]+ more rounds would decide 0\.01%")
        said = self.compare("--steps", "16", "--repeat", "2", "--assert-equal", "promised")
        self.assertEqual(said.count("runs take turns"), 2)
        self.assertGreater(len(self.rounds("zero-1.r2")["slices"]), 3)

    def test_it_says_why_whole_runs_take_turns(self):
        def needs(gb):
            return {"here": {"limits": [{"limit": "MemAvailable", "predicted_bytes": gb * 1e9, "allowed_bytes": 1e9, "available_bytes": 10e9}]}}

        class Args:
            bandwidth = None
        self.assertEqual(why_whole(Args, [1, 2], [needs(3), needs(4)]), "")
        self.assertIn("together they need 11.0 GB, and 10.0 GB are left (MemAvailable)", why_whole(Args, [1, 2], [needs(4), needs(5)]))
        self.assertIn("GPU", why_whole(Args, [1, 2], [{"device": "cuda"}, {"device": "cuda"}]))
        Args.bandwidth = "1Gbit"
        self.assertIn("--bandwidth", why_whole(Args, [1, 2], [needs(1), needs(1)]))

    def test_nothing_stands_behind_a_comparison_that_ends(self):
        for number in (signal.SIGINT, signal.SIGKILL):
            p = self.start_script(COMPARE, "--program", PROGRAM, *SMALL, "--steps", "100000", "--out", f"out{number}")
            p.until(lambda: len(p.left()) > 8, "its runs are there")
            time.sleep(0.5)
            p.send_signal(number)
            p.wait()
            end = time.monotonic() + LIMIT_S
            while p.left() and time.monotonic() < end:
                time.sleep(0.05)
            self.assertEqual(p.left(), {})

    def start_script(self, *words):
        from fixture import Started
        return Started(self, [sys.executable, *words], cwd=self.folder)


class Rates(unittest.TestCase):
    """The rate of a slice, from nanoseconds and tokens made by hand."""

    @staticmethod
    def seat(passed, first, last, tokens, steps):
        """A step has ten tokens that count, if any do."""
        return types.SimpleNamespace(passed_ns=passed, first_ns=first, last_ns=last, tokens=tokens, first_tokens=min(tokens, 10), steps=steps)

    def rate(self, seats, pace):
        return turns.rate_of(seats, [(0, 0)] * len(seats), pace)[0]

    def test_the_slowest_sets_the_pace_of_those_that_go_together(self):
        fast, slow = self.seat(0, 1e9, 4e9, 40, 4), self.seat(0, 3e9, 12e9, 40, 4)
        self.assertAlmostEqual(self.rate([fast, slow], turns.SLOWEST), 60 / 9)

    def test_steps_that_go_on_without_a_late_worker_have_the_pace_of_the_others(self):
        fast, slow = self.seat(0, 1e9, 4e9, 40, 4), self.seat(0, 3e9, 6e9, 40, 4)
        self.assertAlmostEqual(self.rate([fast, slow], turns.FASTEST), 60 / 3)

    def test_each_has_a_pace_of_its_own_where_they_share_a_budget(self):
        fast, slow = self.seat(0, 1e9, 4e9, 40, 4), self.seat(0, 3e9, 6e9, 20, 2)
        self.assertAlmostEqual(self.rate([fast, slow], turns.OWN), 30 / 3 + 10 / 3)
        once, late, never = self.seat(0, 5e9, 5e9, 10, 1), self.seat(0, 1e9, 4e9, 0, 4), self.seat(0, 1e9, 4e9, 0, 0)
        self.assertAlmostEqual(self.rate([fast, once], turns.OWN), 30 / 3 + 10 / 5)
        self.assertAlmostEqual(self.rate([fast, late, never], turns.OWN), 30 / 3)
        self.assertEqual(self.rate([late, never], turns.OWN), None)


class Speeds(Runs):
    def test_rounds_are_paired_whatever_the_machine_does_between_them(self):
        from made_run import make_run
        from comparison.runs import load
        rng, groups = random.Random(1), []
        speeds = [math.exp(rng.gauss(0, 0.3)) for _ in range(30)]
        for topology, cost in (("ps:sync", 1.0), ("zero:1", 1.25)):
            run = load(topology, make_run(self.at(topology.replace(":", "-")), topology))
            run.turns = {"comparison": "a", "decide": None, "slices": [{"round": i, "tokens_per_second": 1000 * s / cost * math.exp(rng.gauss(0, 0.01))}
                                                                       for i, s in enumerate(speeds)]}
            groups.append([run])
        first, second = speed.speeds_of(groups)
        self.assertAlmostEqual(second.time.value, 1.25, delta=0.02)
        self.assertTrue(second.decided and second.time.differs and second.unit == "rounds" and not second.uncertain)
        self.assertAlmostEqual(first.rate.value / second.rate.value, second.time.value, 6)
        self.assertTrue(first.uncertain)  # 30% from round to round: the figure itself is
        self.assertEqual(speed.sentences(groups)[0][:26], "zero:1 needs 1.25 times ps")
        self.assertAlmostEqual(speed.clock(groups)["zero:1"], second.time.value)  # both say 2,000 tokens/s of their own clocks
        groups[1][0].turns["comparison"] = "b"  # another comparison's rounds met other moments
        self.assertEqual(speed.speeds_of(groups)[1].unit, "repeats")


# ---------------------------------------------------------------- intervals over a recorded machine
class Machine:
    """The speed of a machine from moment to moment, as a trace of equal steps shows it: seconds of each, of which `ordinary` are a
    usual one's. Programs run on it one at a time."""

    def __init__(self, seconds, first):
        self.seconds, self.at, self.left = seconds, first, 1.0
        self.ordinary = sorted(seconds)[len(seconds) // 2]

    def run(self, work):
        """Seconds that so much work takes, in ordinary seconds of it."""
        took, work = 0.0, work / self.ordinary
        while work > 0:
            part = min(work, self.left)
            took += part * self.seconds[self.at % len(self.seconds)]
            work, self.left = work - part, self.left - part
            if self.left <= 1e-12:
                self.at, self.left = self.at + 1, 1.0
        return took


def rounds_on(machine, rng, costs, rounds, steps):
    """[(rate of the second, rate of the first)] of programs with these costs of a step that take turns on the machine."""
    out = []
    for _ in range(rounds):
        rates = {}
        for program in rng.sample(range(len(costs)), len(costs)):
            machine.run(costs[program])  # the first step behind the gate is left out
            rates[program] = (steps - 1) / machine.run(costs[program] * (steps - 1))
        out.append((1 / rates[1], 1 / rates[0]))
    return out


class Intervals(unittest.TestCase):
    TRIES = 300

    @classmethod
    def setUpClass(cls):
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "machine_steps.json"), encoding="utf-8") as f:
            cls.trace = [ms / 1000 for ms in json.load(f)["milliseconds"]]

    def coverage(self, truth, rounds, programs=3):
        rng, held, widths = random.Random(f"{truth} {rounds}"), 0, []
        for _ in range(self.TRIES):
            machine = Machine(self.trace, rng.randrange(len(self.trace)))
            costs = [machine.ordinary, machine.ordinary * truth] + [machine.ordinary] * (programs - 2)
            found = claims.ratio(rounds_on(machine, rng, costs, rounds, 4), rounds=True)
            held += found.low <= truth <= found.high
            widths.append(found.width())
        return held / self.TRIES, sorted(widths)[self.TRIES // 2]

    def test_the_interval_of_a_ratio_holds_what_is_true(self):
        slack = 2.5 * math.sqrt(0.05 * 0.95 / self.TRIES)
        for truth in (1.0, 1.07, 1.5):
            widths = []
            for rounds in (10, 20, 40):
                held, width = self.coverage(truth, rounds)
                widths.append(width)
                print(f"true ratio {truth}, {rounds} rounds: held in {held:.1%}, reaches {width:.1%} to its farther side", file=sys.stderr)
                self.assertGreaterEqual(held, 0.95 - slack, (truth, rounds))
            self.assertLess(widths[2], 0.75 * widths[0])

    def test_whole_runs_on_such_a_machine_would_say_less(self):
        """The same time, spent on one program and then on the other."""
        rng, pairs, turned = random.Random(4), [], []
        for _ in range(60):
            machine = Machine(self.trace, rng.randrange(len(self.trace)))
            first = machine.run(machine.ordinary * 60)
            pairs.append(abs(math.log(machine.run(machine.ordinary * 60) / first)))
            machine = Machine(self.trace, rng.randrange(len(self.trace)))
            turned.append(abs(math.log(claims.ratio(rounds_on(machine, rng, [machine.ordinary] * 2, 15, 4), rounds=True).value)))
        self.assertLess(sorted(turned)[30], sorted(pairs)[30])


if __name__ == "__main__":
    unittest.main()
