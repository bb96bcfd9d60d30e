#!/usr/bin/env python3
"""Predicted steps of stars: against formulas, and facts about queues that can be derived by hand."""
import random
import statistics
import unittest

import made
import program
from made import GB, Step, made_machine, needs_simgrid
from prediction import CannotPredict, network, servers, shares
from prediction.queues import Channel

FORWARD, BACKWARD, UNITS = 1e-3, 2e-3, 3
STEP = UNITS * (FORWARD + BACKWARD)
NOTHING = 1e-12   # seconds, where computing is to take no time


class Star(Step):
    """A step of `units` equal units, each pushed when its gradient is complete; the push asks for the next weights."""

    def __init__(self, workers, servers, size, units=UNITS, keys=4, threads=1):
        super().__init__(workers)
        self.units, self.servers = [f"block.{u}" for u in range(units)], servers
        forward = [self.add("forward", "compute", unit=u, micro=0) for u in range(units)]
        for u in reversed(range(units)):
            backward = self.add("backward", "compute", unit=u, micro=0)
            push = self.add("push", "push", (backward,), unit=u, bytes=size, sent=size, received=0, pattern="servers")
            pull = self.add("pull", "pull", (push,), unit=u, bytes=size, sent=0, received=size, pattern="servers")
            self.tasks[forward[u]]["needs_previous"] = [pull]
        self.keys = [{"unit": u, "bytes": size / keys, "pull_bytes": size / keys, "server": (u * keys + k) % servers, "shard": k % threads}
                     for u in range(units) for k in range(keys)]

    def star(self, name="sync", every=1, **more):
        told = self.told(f"ps:{name}", every=every, keys=self.keys, consistency=rule_of(name, self.workers, **more))
        return made.dryrun.read({**told, "servers": self.servers})


def rule_of(name, workers, bound=0, commit="key", **more):
    """step.consistency of a dry run."""
    alone, lead = name in ("async", "ringleader"), bound if name == "ssp" else 0
    needs = 1 if alone else {"backup": workers - bound, "quorum": bound}.get(name, workers)
    return {"name": name, "policy": {"async": "on_arrival", "ringleader": "ringleader"}.get(name, "in_order"), "commit": commit, "needs": needs,
            "exact": name == "backup", "lead": lead, "lag": lead or int(needs == workers and commit == "key" and not alone), **more}


def machine(rate=1000 * GB, forward=FORWARD, backward=BACKWARD, **sections):
    network = {"bytes_per_second": rate, **sections.pop("network", {})}
    return made_machine(units={"seconds": {"block": {"forward": forward, "backward": backward}}}, network=network, **sections)


def happened(document, at=None, straggle=None, delay=None, steps=10, **more):
    from prediction import star
    return star.run(document, at or machine(), straggle, delay, steps, **more)[0]


def median(seen, rank=0):
    return statistics.median(seconds for _, _, seconds, _ in seen.workers[rank][2:])


def mean(counts):
    return sum(age * count for age, count in counts.items()) / sum(counts.values())


@needs_simgrid
class SharesOfALink(unittest.TestCase):
    def test_unequal_until_they_settle(self):
        """Each busy time of a connection has a draw of its own, which counts as long as the calibration measured the spread."""
        from prediction import star
        settled = shares.FIRST * shares.WINDOW
        drawn = star.Shares(random.Random(1), 1.0)
        found = [(drawn.at(0.0), drawn.at(0.5 * settled), drawn.at(settled)) for _ in range(200)]
        self.assertEqual(set(range(1, 7)), {first for first, _, _ in found})
        self.assertTrue(all(first == later and equal == star.SHARES for first, later, equal in found))

    def test_a_channel_asks_for_them_with_each_message(self):
        asked, flows = [], []

        class Clock:
            now = 5.0

            def flow(self, source, target, size, then, *args, shares):
                flows.append((size, shares, lambda: then(*args)))

            def after(self, seconds, then):
                then()
        clock = Clock()
        channel = Channel(clock, 0, 1, shares=lambda seconds: asked.append(seconds) or len(asked))
        for size in (10, 20):
            channel.send(size, lambda: None)
        clock.now = 5.5
        flows[0][2]()
        clock.now = 6.0
        flows[1][2]()
        channel.send(30, lambda: None)
        self.assertEqual([0.0, 0.5, 0.0], asked, "seconds since the connection became busy")
        self.assertEqual([(10, 1), (20, 2), (30, 3)], [(size, found) for size, found, _ in flows])


@needs_simgrid
class Synchronous(unittest.TestCase):
    def bound(self, workers, servers, size=1_000_000, keys=20, **more):
        """Measured seconds of a step whose computing takes no time, over the formula's of one way."""
        rate = 1e7
        seen = happened(Star(workers, servers, size, keys=keys).star(**more), machine(rate, NOTHING, NOTHING))
        return median(seen) / (UNITS * size / rate * max(1, workers / servers))

    def test_links(self):
        """max(M/B, N M/(S B)): pushes and pulls at once, apart from the first key's and the last one's way."""
        for workers, servers in ((1, 1), (2, 1), (4, 1), (4, 2), (4, 4), (6, 3)):
            self.assertAlmostEqual(1, self.bound(workers, servers), delta=0.13, msg=(workers, servers))

    def test_links_with_clipping(self):
        """All pushes, then all pulls: twice that."""
        for workers, servers in ((2, 1), (4, 1), (4, 2), (4, 4)):
            self.assertAlmostEqual(2, self.bound(workers, servers, commit="step"), delta=0.01, msg=(workers, servers))

    def test_an_answers_latency_is_no_work(self):
        """A server's thread works for each answer in turn; their latencies pass at the same time."""
        workers, keys, seconds = 2, 20, 1e-3
        work, latency = (median(happened(Star(workers, 1, 1000, keys=keys).star(), machine(forward=NOTHING, backward=NOTHING, server={key: seconds})))
                         for key in ("reply_seconds", "answer_latency_seconds"))
        self.assertAlmostEqual(workers * UNITS * keys * seconds, work, delta=0.1 * work)
        self.assertAlmostEqual(seconds, latency, delta=0.2 * seconds)

    def test_smaller_keys_overlap_more(self):
        self.assertLess(self.bound(4, 4, keys=40), self.bound(4, 4, keys=4) - 0.05)

    def test_waits_for_the_slowest(self):
        seen = happened(Star(4, 2, 1000).star(), straggle="1:3")
        for rank in range(4):
            self.assertAlmostEqual(3 * STEP, median(seen, rank), 5)
        parts = seen.workers[0][4][3]
        self.assertAlmostEqual(2 * STEP, parts["wait"], 5)
        self.assertAlmostEqual(STEP, parts["forward"] + parts["backward"], 5)
        self.assertAlmostEqual(seen.workers[0][4][2], sum(parts.values()), 9)

    def test_a_server_that_adds_slowly(self):
        """Each of N gradients costs its bytes, and the sum an update."""
        at = machine(forward=NOTHING, backward=NOTHING, server={"sum_bytes_per_second": 1e8, "update_elements_per_second": 1e7})
        size, workers = 1_000_000, 4
        seen = happened(Star(workers, 1, size, keys=10).star(), at)
        self.assertAlmostEqual(UNITS * (workers * size / 1e8 + size / 4 / 1e7), median(seen), delta=0.02 * median(seen))
        seen = happened(Star(workers, 1, size, keys=10, threads=2).star(), at)
        self.assertAlmostEqual(UNITS * (workers * size / 1e8 + size / 4 / 1e7) / 2, median(seen), delta=0.02 * median(seen))

    def test_latency_is_paid_once_by_messages_that_follow_each_other(self):
        size, rate = 1_000_000, 1e7
        without = median(happened(Star(1, 1, size, keys=50).star(), machine(rate, NOTHING, NOTHING)))
        late = median(happened(Star(1, 1, size, keys=50).star(), machine(rate, NOTHING, NOTHING, network={"latency_seconds": 1e-3})))
        self.assertAlmostEqual(2e-3, late - without, delta=1.5e-3)

    def test_local_steps_exchange_once_in_h(self):
        size, rate = 1_000_000, 1e8
        seen = happened(Star(2, 1, size, keys=20).star(every=4, commit="step"), machine(rate), steps=12)
        round_of_4 = sum(seconds for _, _, seconds, _ in seen.workers[0][4:8])
        one_way = UNITS * size * 2 / rate
        self.assertAlmostEqual(4 * STEP + 2 * one_way, round_of_4, delta=0.15 * round_of_4)

    def test_servers_on_workers_move_all_but_their_own(self):
        """2 (N-1)/N M / B with clipping: pushes, then pulls, each machine both sending and receiving."""
        workers, size, rate = 4, 1_000_000, 1e7
        star = Star(workers, workers, size, keys=20)
        for task in star.tasks:
            if task["task"] in ("push", "pull"):
                way = "sent" if task["task"] == "push" else "received"
                task[way] = task[way] * (workers - 1) // workers
        seen = happened(star.star(commit="step"), machine(rate, NOTHING, NOTHING))
        self.assertAlmostEqual(2 * 0.75 * UNITS * size / rate, median(seen), delta=0.02 * median(seen))

    def test_two_units_at_a_time_on_workers(self):
        """Resident units: pulls for the forward and again for the backward pass, pushes per unit; a server copies what is early, so the
        workers of one step need not be equally fast. Links: three quarters of M out for pushes, and of the pulls in."""
        workers, size, rate, star = 4, 1_000_000, 1e7, Star(4, 4, 1_000_000, keys=4)
        star.tasks = []

        def pull(u, needs, previous=()):
            return star.add("pull", "pull", needs, previous, unit=u, micro=0, bytes=size, sent=0, received=size * 3 // 4, pattern="servers")
        pushes = {2: 8, 1: 10, 0: 13}
        first = [pull(u, (), (pushes[u],)) for u in (0, 1)]                               # 0, 1
        forward = star.add("forward", "compute", (first[0],), unit=0, micro=0)            # 2
        third = pull(2, (forward,), (pushes[2],))                                         # 3
        star.add("forward", "compute", (first[1],), unit=1, micro=0)                      # 4
        star.add("forward", "compute", (third,), unit=2, micro=0)                         # 5
        again = None
        for u in (2, 1, 0):
            backward = star.add("backward", "compute", () if again is None or u == 1 else (again,), unit=u, micro=0)
            if u == 2:
                again = pull(0, (backward,))                                              # 7
            push = star.add("push", "push", (backward,), unit=u, micro=0, bytes=size, sent=size * 3 // 4, received=0, pattern="servers")
            if u == 1:
                star.add("decide", "compute", (), pattern="scheduler")                    # 11
            self.assertEqual(pushes[u], push)
        seen = happened(star.star(commit="step"), machine(rate, NOTHING, NOTHING), straggle="1:2")
        out, back = 0.75 * 3 * size / rate, 0.75 * 4 * size / rate
        self.assertGreater(median(seen), 0.98 * (out + back) - 0.1)
        self.assertLess(median(seen), 1.05 * (out + back))

    def test_merged_ranks_are_all_ranks(self):
        """The same star rank by rank, and with many ranks as one."""
        from prediction import star
        kept = star.CLASSES
        for commit in ("key", "step"):
            document = Star(16, 8, 1_000_000, keys=16).star(commit=commit)
            whole = happened(document, machine(2e8), straggle="3:1.5")
            try:
                star.CLASSES = 4, 2
                few = happened(document, machine(2e8), straggle="3:1.5")
            finally:
                star.CLASSES = kept
            self.assertEqual((16, 4), (len(whole.workers), len(few.workers)))
            self.assertAlmostEqual(median(whole), median(few), delta=0.05 * median(whole))

    def test_merged_servers_of_merged_workers(self):
        """Below one switch a merged server's link may be wider than a merged worker's; many servers are then few."""
        from prediction import star
        document, kept, seen = Star(16, 16, 1_000_000, keys=16).star(), (star.CLASSES, star.CONNECTIONS), []
        try:
            star.CLASSES = 4, 2
            for star.CONNECTIONS in (64, 8):
                seen.append(star.run(document, machine(2e8, node={"devices": 4}), None, None))
        finally:
            star.CLASSES, star.CONNECTIONS = kept
        (whole, of_all, _), (few, of_few, _) = seen
        self.assertEqual((16, 4), (of_all.servers, of_few.servers))
        self.assertAlmostEqual(median(whole), median(few), delta=0.02 * median(whole))

    def test_bundled_keys_are_all_keys(self):
        from prediction import star
        document = Star(4, 2, 1_000_000, units=8, keys=8).star(commit="step")
        whole, kept = happened(document, machine(2e8)), star.MESSAGES
        try:
            star.MESSAGES = 64
            few = happened(document, machine(2e8))
        finally:
            star.MESSAGES = kept
        self.assertLess(few.flows, whole.flows / 3)
        self.assertAlmostEqual(median(whole), median(few), delta=0.05 * median(whole))


@needs_simgrid
class NotAllTogether(unittest.TestCase):
    def test_ssp_hides_stragglers_up_to_its_bound(self):
        """Two workers are late in turn. Synchronous steps pay both, steps with a bound the later worker's own."""
        def seconds(bound, name="ssp"):
            from prediction import star

            class Late(star.Draws):
                def _step(self, number):
                    factors, extra = super()._step(number)
                    extra[:] = 0
                    if number in (4, 6):
                        extra[number // 2 - 2] = 2 * STEP
                    return factors, extra
            kept, star.Draws = star.Draws, Late
            try:
                return happened(Star(4, 2, 1000).star(name, bound=bound), delay="*:exponential:1", steps=16).seconds
            finally:
                star.Draws = kept
        together = 16 * STEP + 4 * STEP
        self.assertAlmostEqual(together, seconds(0, "sync"), delta=0.05 * STEP)
        self.assertAlmostEqual(together, seconds(0), delta=0.05 * STEP)
        self.assertAlmostEqual(together - STEP, seconds(1), delta=0.05 * STEP)
        self.assertAlmostEqual(together - 2 * STEP, seconds(2), delta=0.05 * STEP)
        self.assertAlmostEqual(together - 2 * STEP, seconds(6), delta=0.05 * STEP)

    def test_ssp_reads_within_its_bound(self):
        for bound in (0, 1, 3):
            seen = happened(Star(4, 2, 1000).star("ssp", bound=bound), delay="*:exponential:20", steps=60)
            self.assertLessEqual(max(seen.staleness), bound)
            self.assertEqual(bound > 0, len(seen.staleness) > 1)
        seen = happened(Star(4, 2, 1000).star("ssp", bound=2, read="oldest"), steps=20)
        self.assertEqual({0: 48, 1: 48, 2: 18 * 48}, seen.staleness, "always the oldest: 4 workers, 12 keys")

    def backup(self, backups, delays, steps=400):
        """Mean seconds of a step by hand: the workers that have ended their last step draw, and the first N - B end the step; those that
        are late compute on."""
        free, begins, seconds = [0.0] * 4, [None] * 4, 0.0
        for step in range(steps):
            for w in range(4):
                if free[w] <= seconds:
                    begins[w] = seconds
                    free[w] = seconds + delays(w, step) + STEP
            ends = []
            # A worker that ends a late step meanwhile joins the open one.
            late = [w for w in range(4) if begins[w] != seconds]
            ends = [free[w] for w in range(4) if w not in late] + [free[w] + delays(w, step) + STEP for w in late]
            closes = sorted(ends)[4 - backups - 1]
            for w in late:
                if free[w] < closes:
                    begins[w], free[w] = free[w], free[w] + delays(w, step) + STEP
            seconds = closes
        return seconds / steps

    def test_backup_is_an_order_statistic(self):
        """Where every delay is far longer than a step's computing, and dropped work goes on: against a loop by hand with the same law."""
        for backups in (0, 1, 2):
            draw = random.Random(backups)
            by_hand = self.backup(backups, lambda w, step, draw=draw: draw.expovariate(1 / 0.02))
            seen = happened(Star(4, 2, 1000).star("backup", bound=backups), delay="*:exponential:20", steps=400)
            self.assertAlmostEqual(by_hand, seen.closes[-1] / len(seen.closes), delta=0.1 * by_hand, msg=backups)
            self.assertEqual(backups > 0, seen.dropped > 0)
        whole = sum(0.02 / n for n in (1, 2, 3, 4)) + STEP
        seen = happened(Star(4, 2, 1000).star("backup", bound=0), delay="*:exponential:20", steps=400)
        self.assertAlmostEqual(whole, seen.closes[-1] / 400, delta=0.1 * whole, msg="the mean of the largest of four")

    def test_backup_leaves_the_straggler_out(self):
        seen = happened(Star(4, 2, 1000).star("backup", bound=1), straggle="2:5", steps=40)
        self.assertAlmostEqual(STEP, seen.closes[-1] / 40, delta=0.05 * STEP)
        self.assertGreater(seen.skipped[2], 25)
        self.assertEqual([0, 0, 0], [seen.skipped[w] for w in (0, 1, 3)])

    def test_quorum_waits_its_grace(self):
        """Three are there at once; the fourth is not in time, or is if the grace is longer than what it lacks."""
        for grace_ms, expected in ((0, STEP), (4, STEP + 4e-3), (1000, 2 * STEP)):
            seen = happened(Star(4, 2, 1000).star("quorum", bound=3, grace_ms=grace_ms), straggle="2:2", steps=60)
            self.assertAlmostEqual(expected, statistics.median(b - a for a, b in zip(seen.closes, seen.closes[1:])), delta=0.06 * expected, msg=grace_ms)

    def asynchronous(self, workers, keys=1, steps=50, at=None, straggle=None, delay=None, name="async", **more):
        return happened(Star(workers, 1, 1000, units=1, keys=keys).star(name, **more), at, straggle, delay, steps)

    def test_equal_workers_are_n_minus_1_updates_behind(self):
        """Between a worker's pull and its push each other worker pushes once."""
        for workers in (1, 2, 4, 8):
            seen = self.asynchronous(workers)
            warm = sum(range(workers))   # the first pushes of each worker: 0, 1, .. N-1 behind
            self.assertAlmostEqual(workers - 1, (mean(seen.staleness) * 50 * workers - warm) / (50 * workers - workers), places=9)
            self.assertEqual([50] * workers, seen.batches)

    def test_staleness_has_the_mean_n_minus_1_whatever_the_delays(self):
        """As many updates are made between two pushes of a worker as by the others: with one key the mean over all pushes is N - 1, less
        what the beginning lacks."""
        seen = self.asynchronous(5, delay="*:exponential:5", steps=200)
        self.assertAlmostEqual(4, mean(seen.staleness), delta=0.06)
        self.assertGreater(max(seen.staleness), 6)

    def test_workers_share_a_budget(self):
        """A worker three times as slow takes a third of the batches of the others, and all are used."""
        seen = self.asynchronous(4, straggle="1:3", steps=50)
        self.assertEqual(200, sum(seen.batches))
        self.assertEqual([60, 20, 60, 60], seen.batches)
        self.assertEqual(200, len(seen.taken))
        self.assertEqual(200, sum(seen.staleness.values()))

    def test_lead_is_bounded(self):
        """No worker is more than max_lead steps ahead of one that still pushes, so a straggler holds the others."""
        seen = self.asynchronous(4, straggle="1:3", steps=50, max_lead=2)
        self.assertLessEqual(max(seen.batches) - min(seen.batches), 3)
        self.assertEqual(200, sum(seen.batches))
        free = self.asynchronous(4, straggle="1:3", steps=50)
        self.assertGreater(seen.seconds, 2 * free.seconds)

    def test_means_of_k_pushes_are_fewer_updates(self):
        one, four = self.asynchronous(4, delay="*:exponential:5"), self.asynchronous(4, delay="*:exponential:5", pushes_per_update=4)
        self.assertLess(mean(four.staleness), mean(one.staleness) / 2)
        self.assertLess(0, mean(four.staleness))

    def test_stale_pushes_are_dropped(self):
        seen = self.asynchronous(4, delay="*:exponential:5", max_staleness=2)
        self.assertLessEqual(max(seen.staleness), 2)
        self.assertEqual(seen.pushes, seen.dropped + sum(seen.staleness.values()))
        self.assertGreater(seen.dropped, 0)

    def test_ringleader_is_at_most_2n_minus_2_behind(self):
        seen = self.asynchronous(4, keys=3, name="ringleader", delay="*:exponential:5", straggle="1:3")
        self.assertLessEqual(max(seen.staleness), 2 * 4 - 2)
        self.assertGreater(max(seen.staleness), 3)
        self.assertEqual(200, sum(seen.batches))


    def test_ringleader_passes_over_its_table(self):
        """One worker, fp32: the gradient is read and the row written, read into part_acc, copied to acc, rounded, and the weights are copied:
        ten times the key's bytes."""
        size, rate = 1_000_000, 1e8
        document = Star(1, 1, size, units=1, keys=1).star("ringleader")
        seen = happened(document, machine(forward=NOTHING, backward=NOTHING, server={"sum_bytes_per_second": rate}), steps=20)
        self.assertAlmostEqual(10 * size / rate, median(seen), delta=0.01 * median(seen))

    def test_merged_servers_are_all_servers(self):
        """Sixteen workers that are not merged, two to a node, with each server, and with all servers as one."""
        from prediction import star
        at = {"rate": 2e8, "node": {"devices": 2}, "server": {"sum_bytes_per_second": 2e9, "update_elements_per_second": 1e9}}
        for name, more in (("async", {}), ("ringleader", {}), ("ssp", {"bound": 2}), ("backup", {"bound": 2}), ("quorum", {"bound": 12, "grace_ms": 2})):
            document, kept, seen = Star(16, 8, 1_000_000, keys=16).star(name, **more), star.PAIRS, []
            try:
                for star.PAIRS in (kept, 1):
                    seen.append(star.run(document, machine(**at), None, "*:exponential:20", 40))
            finally:
                star.PAIRS = kept
            (whole, of_all, _), (few, of_few, _) = seen
            self.assertEqual((8, 1), (of_all.servers, of_few.servers))
            self.assertEqual((16, 16), (len(whole.workers), len(few.workers)))
            self.assertLess(few.flows, whole.flows / 3)
            self.assertAlmostEqual(whole.seconds, few.seconds, delta=0.05 * whole.seconds, msg=name)
            if name in ("async", "ringleader"):
                self.assertAlmostEqual(mean(whole.staleness), mean(few.staleness), delta=0.05 * mean(whole.staleness), msg=name)

    def test_a_short_simulation_has_the_staleness_of_a_long_one(self):
        from prediction import star
        document, kept = Star(8, 1, 1000, units=1, keys=1).star("async"), star.EFFORT
        whole = star.execute(document, machine(), None, "*:exponential:5", 100, 1)
        try:
            star.EFFORT = 1
            few = star.execute(document, machine(), None, "*:exponential:5", 100, 1)
        finally:
            star.EFFORT = kept
        self.assertLess(len(few.steps), len(whole.steps) / 10)
        self.assertAlmostEqual(mean(whole.staleness), mean(few.staleness), delta=0.04 * mean(whole.staleness))
        self.assertAlmostEqual(sum(whole.staleness.values()), sum(few.staleness.values()), delta=0.01 * sum(whole.staleness.values()))

    def test_credits_hold_a_worker_back(self):
        """Credits of one key: each push waits until the one before it is in the sum, a latency there and one back. Bundled keys as many."""
        from prediction import star
        at, keys = machine(1e9, NOTHING, NOTHING, network={"latency_seconds": 1e-3}), 8
        free, one = (median(happened(Star(1, 1, 8000, keys=keys).star(credit_bytes=credit), at)) for credit in (None, 1000))
        self.assertGreater(one, UNITS * keys * 2e-3)
        self.assertLess(free, one / 2)

    def test_a_policy_without_a_simulation_is_refused(self):
        made_star = Star(2, 1, 1000)
        with self.assertRaisesRegex(CannotPredict, "^ps:half: its servers' policy, median, has no simulation: .*in_order or .*servers.py"):
            servers.Rule.of(made_star.star("half", policy="median"), 2)
        self.assertTrue(servers.Rule.of(made_star.star("half"), 2).everyone, "a row with a known policy is simulated, whatever its name")

    def test_the_program_says_credits_and_ages(self):
        """Settings of a star are in its dry run, and so in its prediction; those that it leaves out are null."""
        words = ("--topology", "ps:async", "--workers", "2", "--servers", "1", "--model", "tiny", "--steps", "10")
        for given, expected in (((), (None, None, 0)), (("--set", "parameter_server.max_staleness=3", "--set", "parameter_server.credit_bytes=8M"),
                                                        (3, 8 << 20, 8 << 20)),
                                (("--set", "parameter_server.max_staleness=0"), (0, None, 0))):
            document = made.dryrun.ask(program.built(), (*words, *given))
            told, rule = document.step["consistency"], servers.Rule.of(document, 2)
            self.assertEqual(expected, (told["max_staleness"], told["credit_bytes"], rule.credit_bytes))
            self.assertEqual(expected[0], rule.max_staleness)


@needs_simgrid
class Outcomes(unittest.TestCase):
    def outcome(self, document, at=None, straggle=None, delay=None, steps=20):
        from prediction import star
        return star.execute(document, at or machine(server={"sum_bytes_per_second": 1e12}), straggle, delay, steps, 1)

    def test_parts_add_up(self):
        for name, more in (("sync", {}), ("ssp", {"bound": 2}), ("backup", {"bound": 1}), ("async", {}), ("ringleader", {})):
            outcome = self.outcome(Star(4, 2, 1_000_000).star(name, **more), machine(1e8), delay="*:exponential:5")
            self.assertAlmostEqual(statistics.fmean(outcome.steps), sum(outcome.parts.values()), delta=0.12 * statistics.fmean(outcome.steps), msg=name)
            self.assertEqual(name in ("ssp", "async", "ringleader"), outcome.staleness is not None)

    def test_limits(self):
        star = Star(4, 1, 1_000_000).star()
        self.assertEqual("server's link", self.outcome(star, machine(1e7)).limit)
        self.assertEqual("compute", self.outcome(star).limit)
        self.assertEqual("straggler", self.outcome(star, straggle="1:3").limit)
        self.assertEqual("server's update", self.outcome(star, machine(server={"sum_bytes_per_second": 1e7})).limit)
        self.assertEqual("latency", self.outcome(star, machine(network={"per_message_seconds": 1.0})).limit)
        self.assertEqual("worker's link", self.outcome(Star(2, 4, 1_000_000).star(), machine(1e7)).limit)
        self.assertEqual("latency", self.outcome(star, machine(forward=NOTHING, backward=NOTHING, network={"latency_seconds": 0.01})).limit)

    def test_what_the_machine_does_not_say(self):
        self.assertTrue(any("servers" in note for note in self.outcome(Star(2, 1, 1000).star(), machine()).notes))

    def test_equal_seeds(self):
        star = Star(3, 1, 100_000).star("async")
        first, again = (self.outcome(star, machine(1e8), delay="*:lognormal:5") for _ in range(2))
        self.assertEqual(first.steps, again.steps)


@needs_simgrid
class Places(unittest.TestCase):
    """Where servers are in a network that is not one switch."""

    def test_neighbours_by_number_are_below_different_switches(self):
        from prediction import star
        tree = made_machine(network={"kind": "fat_tree", "oversubscription": 4})
        for workers, count, width in ((128, 128, 1), (64, 64, 2), (128, 1, 1), (3, 2, 1), (100, 61, 1), (1, 70, 1)):
            leaf = network.LEAF // width
            order = star.spread(tree, workers, count, width)
            self.assertEqual(sorted(order), list(range(workers + count)))   # each place once
            groups = -(-(workers + count) // leaf)
            below = [place // leaf for place in order[workers:]]
            self.assertEqual(below[:groups], list(range(min(groups, count))))
            whole = [below.count(g) for g in range(groups - 1)]
            self.assertLessEqual(max(whole, default=0) - min(whole, default=0), 1 if (workers + count) % leaf == 0 else leaf)
        self.assertEqual(star.spread(made_machine(), 4, 3), list(range(7)))

    def test_a_window_of_servers_is_reached_over_many_links(self):
        """All workers push to 32 servers with neighbouring numbers at a time: they are not all below one switch."""
        from prediction import star
        tree = made_machine(network={"kind": "fat_tree", "oversubscription": 4})
        found = {}
        for name, nodes in (("behind", list(range(256))), ("among", star.spread(tree, 128, 128))):
            found[name] = network.in_child(flows_to, tree, nodes, range(32))
        self.assertEqual(len(found["behind"]), 8)
        self.assertEqual(len(found["among"]), 32)
        self.assertLess(max(found["among"].values()), max(found["behind"].values()) / 4)


def flows_to(machine, nodes, servers):
    """{link from an upper switch to a lower one: routes of 128 workers to these servers that use it}"""
    platform, out = network.Platform(machine, nodes), {}
    for worker in platform.endpoints[:128]:
        for server in servers:
            for link in worker.route_to(platform.endpoints[128 + server])[0][1:-1]:
                if link.name.endswith("DOWN"):
                    out[link.name] = out.get(link.name, 0) + 1
    return out


if __name__ == "__main__":
    unittest.main()
