#!/usr/bin/env python3
"""Predicted steps of rings: against formulas, as both executors say them, and what may not change them for the worse."""
import unittest

import made
from made import COMPUTING, GB, Step, gathered, made_machine, needs_simgrid, reduced, updated

EXECUTORS = ("flows", "patterns")


def execute(document, machine, **more):
    from prediction import ring
    return ring.execute(document, machine, **more)


def median(outcome):
    import numpy
    return float(numpy.median(outcome.steps))


@needs_simgrid
class Formulas(unittest.TestCase):
    def step(self, document, machine, expected, places=4, **more):
        """Both executors say `expected`; returns the last outcome."""
        for executor in EXECUTORS:
            outcome = execute(document, machine, executor=executor, **more)
            self.assertAlmostEqual(expected, median(outcome), places, executor)
            self.assertAlmostEqual(sum(outcome.steps) / len(outcome.steps), sum(outcome.parts.values()), 9, "the parts add up to the mean")
        return outcome

    def test_nothing_moves(self):
        step = Step(1)
        step.forward()
        for u in (3, 2, 1, 0):
            step.add("backward", "compute", unit=u, micro=0)
        outcome = self.step(step.document("local"), made_machine(), COMPUTING)
        self.assertEqual("compute", outcome.limit)
        self.assertAlmostEqual(0.23, outcome.parts["forward"])
        self.assertAlmostEqual(0.46, outcome.parts["backward"])

    def test_two_units_of_bytes(self):
        """A link so slow that nothing else counts: 2 (N-1)/N M / B, M all gradients; the first waits for the head's backward."""
        n, size = 4, 400_000_000
        wire = 2 * (n - 1) / n * 4 * size / GB
        outcome = self.step(reduced(n, size).document(), made_machine(), 0.23 + 0.04 + wire)
        self.assertEqual("worker's link", outcome.limit)
        self.assertAlmostEqual(wire - 0.42, outcome.parts["exposed"], 4)

    def test_hidden_below_computing(self):
        """Transfers that end before the next unit's backward does: only the last unit's is exposed."""
        n, size = 4, 10_000_000
        outcome = self.step(reduced(n, size).document(), made_machine(), COMPUTING + 2 * 0.75 * size / GB)
        self.assertAlmostEqual(2 * 0.75 * size / GB, outcome.parts["exposed"], 6)
        self.assertEqual(0, outcome.parts["wait"])

    def test_gathers_and_reductions_share_a_link(self):
        """zero:3 on a slow link moves 3 U, however its two streams take turns; each waits only for the last unit of computing."""
        n, size = 4, 1_000_000_000
        wire = 3 * (n - 1) / n * 4 * size / GB
        for executor in EXECUTORS:
            took = median(execute(gathered(n, size).document("zero:3"), made_machine(), executor=executor))
            self.assertGreater(took, wire - 1e-6)
            self.assertLess(took, wire + COMPUTING)

    def test_a_straggler_is_waited_for(self):
        """Rank 1 computes 3 times as long: a step takes its time, and the others wait."""
        n, size = 4, 1_000_000
        outcome = self.step(reduced(n, size).document(), made_machine(), 3 * COMPUTING + 2 * 0.75 * size / GB, straggle="1:3")
        self.assertAlmostEqual(3 / 4 * 2 * COMPUTING, outcome.parts["wait"], 2)
        self.assertAlmostEqual(COMPUTING * 6 / 4, outcome.parts["forward"] + outcome.parts["backward"], 4)

    def test_a_straggler_limits(self):
        outcome = execute(reduced(8, 1_000_000).document(), made_machine(), straggle="1:10")
        self.assertEqual("straggler", outcome.limit)

    def test_a_delay_in_some_steps(self):
        """Half of the steps 5 times as long: the quantiles stand on both sides."""
        import numpy
        outcome = execute(reduced(2, 1000).document(), made_machine(), straggle="0:5:0.5", steps=200)
        low, high = numpy.percentile(outcome.steps, (5, 95))
        self.assertAlmostEqual(COMPUTING, low, 3)
        self.assertAlmostEqual(5 * COMPUTING, high, 3)
        self.assertAlmostEqual(3 * COMPUTING, numpy.mean(outcome.steps), delta=0.5)

    def test_latency_counts_once_a_transfer(self):
        n = 4
        outcome = self.step(reduced(n, 4).document(), made_machine(network={"latency_seconds": 0.5}), 0.23 + 0.04 + 8 * 0.5)
        self.assertEqual("latency", outcome.limit)

    def test_teams_inside_nodes_use_their_links(self):
        """Pieces within a node go at the node's rate: 100 times the network's."""
        n, size = 8, 80_000_000
        within = reduced(n, size, team="within", team_size=4)
        machine = made_machine(node={"devices": 4})
        self.step(within.document(), machine, COMPUTING + 2 * 0.75 * size / (100 * GB))
        across = reduced(n, size, team="across", team_size=2)
        # All four ranks of a node send half of the buffer through its one link.
        wire = 2 * 4 * 0.5 * size / GB
        self.step(across.document(), machine, max(COMPUTING + wire, 0.27 + 4 * wire))

    def test_neighbours(self):
        """Both neighbours' models, while forward and backward run. A rank sends and receives in turn: two phases, three in a cycle of three."""
        def document(ranks, distances):
            step = Step(ranks)
            moved = [step.add("exchange", "reduce", bytes=10, sent=100_000_000, received=100_000_000, pattern="neighbours", neighbour=i)
                     for i in range(len(distances))]
            step.forward()
            for u in (3, 2, 1, 0):
                step.add("backward", "compute", unit=u, micro=0)
            step.add("mix", "compute", moved, elements=4)
            return step.document("gossip", distances=[distances])
        self.step(document(6, [1, 5]), made_machine(), COMPUTING)
        slow = made_machine(network={"bytes_per_second": GB / 4})
        self.step(document(6, [1, 5]), slow, 2 * 2 * 0.4)
        self.step(document(2, [1]), slow, 2 * 0.4)
        self.step(document(3, [1]), slow, 3 * 0.4)
        self.step(document(6, [2]), slow, 3 * 0.4)   # two cycles of three

    def test_rounds_of_local_steps(self):
        """With every = 4 three steps of four move nothing."""
        step = Step(2)
        step.forward()
        for u in (3, 2, 1, 0):
            step.add("backward", "compute", unit=u, micro=0)
        delta = step.add("delta", "compute", unit=0, elements=4, round=True)
        moved = step.move("all_gather", "reduce", 2 * 10 ** 9, (delta,), round=True)
        step.add("update", "compute", (moved,), unit=0, elements=4, round=True)
        for executor in EXECUTORS:
            outcome = execute(step.document("local", every=4), made_machine(), executor=executor)
            self.assertEqual(0, len(outcome.steps) % 4)
            self.assertAlmostEqual(COMPUTING + 1 / 4, sum(outcome.steps) / len(outcome.steps), 4)
            self.assertAlmostEqual(COMPUTING, median(outcome), 4)

    def test_ranks_share_cores(self):
        """Four ranks on two cores compute half as fast; on a node each they do not, unless it is one machine's lab."""
        document = reduced(4, 4).document()
        cores = {"count": 2, "ranks_share": True}
        self.step(document, made_machine(cores=cores, node={"devices": 4}), 2 * COMPUTING)
        self.step(document, made_machine(cores=cores), COMPUTING)
        self.step(document, made_machine(cores={"count": 2, "ranks_share": "job"}), 2 * COMPUTING)

    def test_ranks_take_turns(self):
        """Two ranks on one core: the second computes when the first has, so the first transfer begins late, and hides little."""
        size = 400_000_000
        outcome = execute(reduced(2, size).document(), made_machine(cores={"count": 1, "ranks_share": "job"}), executor="flows")
        self.assertAlmostEqual(COMPUTING + 0.27 + 4 * size / GB, median(outcome), 3)

    def test_a_turn_ends_with_the_step(self):
        """Two ranks on one core that wait for nobody: each step of the one follows a step of the other."""
        step = Step(2)
        step.forward()
        machine = made_machine(cores={"count": 1, "ranks_share": "job"}, units={"begin_seconds": 0.5})
        outcome = execute(step.document("local"), machine, executor="flows")
        self.assertEqual([2 * 0.73] * len(outcome.steps), [round(seconds, 4) for seconds in outcome.steps])

    def test_a_bucket_lets_an_idle_link_s_bytes_through(self):
        """0.2 s at the rate pass at once, after a pause that is long enough to fill the bucket."""
        size = 400_000_000
        self.step(reduced(2, size).document(), made_machine(network={"burst_seconds": 0.2}), 0.27 + 8 * 0.2 - 0.2)

    def test_the_host_begins(self):
        outcome = self.step(reduced(1, 4).document(), made_machine(units={"begin_seconds": 0.5}), COMPUTING + 0.5)
        self.assertAlmostEqual(0.5, outcome.parts["host"])

    def test_transport_takes_cores(self):
        """Two ranks on one core: their bytes' computing competes with their own."""
        cores = {"count": 1, "ranks_share": "job", "transport_seconds_per_byte": 1e-9}
        outcome = execute(reduced(2, 100_000_000).document(), made_machine(cores=cores, network={"bytes_per_second": 1000 * GB}), executor="flows")
        moved = 2 * 8 * 50_000_000   # of both ranks
        self.assertAlmostEqual(2 * COMPUTING + moved * 1e-9, median(outcome), 2)

    def test_crowded_cores_are_slower(self):
        """Four ranks on two cores: the first two take 1.25 times as long while the others wait; two ranks have a core each."""
        cores = {"count": 2, "ranks_share": "job", "crowding": 1.25}
        for ranks, expected in ((4, 2.25 * COMPUTING), (2, COMPUTING)):
            outcome = execute(reduced(ranks, 4).document(), made_machine(cores=cores), executor="flows")
            self.assertAlmostEqual(expected, median(outcome), 4)

    def test_a_delay_is_time_of_a_clock(self):
        """Four ranks on two cores: a delay of each takes as long as it says, and no longer for having half a core; computing takes twice as long."""
        cores = {"count": 2, "ranks_share": "job"}
        outcome = execute(reduced(4, 4).document(), made_machine(cores=cores), delay="*:constant:300", executor="flows")
        # While two of them spin, the update of the others has one core of two.
        self.assertAlmostEqual(0.3 + 2 * COMPUTING, median(outcome), delta=0.02)
        outcome = execute(reduced(4, 4).document(), made_machine(cores=cores), delay="0:constant:300", executor="flows")
        # Meanwhile the three others have what the spinning one leaves: 1.5 of 2 cores.
        self.assertGreater(median(outcome), 0.3 + COMPUTING)
        self.assertLess(median(outcome), 0.3 + 2 * COMPUTING)

    def test_polling_takes_cores(self):
        """While a transfer is under way each of two ranks polls with a quarter of a core: computing has 1.5 of 2 cores."""
        cores = {"count": 2, "ranks_share": "job", "waiting_share": 0.25}
        step = Step(2)
        moved = step.move("all_gather", "gather", 10 ** 10)   # 5 s: longer than the computing, which does not need it
        step.forward()
        step.add("update", "compute", (moved,), unit=0, elements=4)
        outcome = execute(step.document(), made_machine(cores=cores), executor="flows")
        self.assertAlmostEqual(0.23 / 0.75, outcome.parts["forward"], 4)

    def test_a_fat_tree_with_fewer_links_up(self):
        """64 nodes below two switches: half of the pieces go up, through a quarter of the links."""
        size = 64_000_000
        document = reduced(64, size).document()
        times = [median(execute(document, made_machine(network={"kind": "fat_tree", "oversubscription": o, "bytes_per_second": GB / 10}),
                                executor="patterns")) for o in (1, 4)]
        self.assertAlmostEqual(0.27 + 8 * 63 * 10e6 / GB, times[0], 2)
        self.assertAlmostEqual(0.27 + 8 * 32 * 4 * 10e6 / GB, times[1], 1)


def all_to_all(machine, nodes):
    """(seconds, flows that arrived) of a flow of 1 MB between each two endpoints. Inside a child process."""
    from prediction import network
    simulation, arrived = network.Simulation(machine, nodes), []

    def begin():
        for i in range(len(nodes)):
            for j in range(len(nodes)):
                simulation.flow(i, j, 1e6, arrived.append, (i, j))
    return simulation.run(begin), len(arrived)


def bytes_beside_spinners(machine):
    """When a flow of 10 MB ends, beside four endpoints that spin. Inside a child process."""
    from prediction import network
    simulation, ended = network.Simulation(machine, range(4)), []

    def begin():
        for i in range(4):
            simulation.spin(i, 2.0, lambda: None)
        simulation.flow(0, 1, 1e7, lambda: ended.append(simulation.now))
    simulation.run(begin)
    return ended[0]


def bytes_after_half_a_link(machine):
    """When 0.1 GB arrive from an endpoint that has sent at half its link's rate for 0.2 s. Inside a child process."""
    from prediction import network
    simulation, ended = network.Simulation(machine, range(4)), []

    def begin():
        for source in (0, 2):
            simulation.flow(source, 1, GB, lambda: None)
        simulation.after(0.2, simulation.flow, 0, 3, GB / 10, lambda: ended.append(simulation.now))
    simulation.run(begin)
    return ended[0]


@needs_simgrid
class Platforms(unittest.TestCase):
    def test_tokens_come_while_a_link_is_half_used(self):
        from prediction import network
        self.assertAlmostEqual(0.2, network.in_child(bytes_after_half_a_link, made_machine(network={"burst_seconds": 0.2})), 2)

    def test_spinners_leave_bytes_their_share(self):
        from prediction import network
        machine = made_machine(cores={"count": 2, "ranks_share": "job", "transport_seconds_per_byte": 1e-8})
        self.assertAlmostEqual(0.25, network.in_child(bytes_beside_spinners, machine), 2)   # 0.1 s of a core, with a fifth of two

    def test_any_endpoints_on_any_nodes(self):
        """Nodes with one endpoint beside nodes with several, and numbers of nodes that no shape has."""
        from prediction import network
        for kind in ("switch", "fat_tree", "torus", "dragonfly"):
            for nodes in ([0, 1], [0, 0], [0, 0, 1], [0, 0, 0, 0, 7], [3, 1, 1, 2], list(range(7)), list(range(33))):
                with self.subTest(kind=kind, nodes=nodes):
                    seconds, arrived = network.in_child(all_to_all, made_machine(network={"kind": kind}), nodes)
                    self.assertEqual(len(nodes) ** 2, arrived)
                    if len(set(nodes)) > 1 and kind != "torus":   # the busiest node's link is full
                        busiest = max(nodes.count(n) * (len(nodes) - nodes.count(n)) for n in nodes)
                        self.assertGreater(seconds, 0.999 * busiest * 1e6 / GB)


@needs_simgrid
class Agreement(unittest.TestCase):
    def test_both_executors_agree(self):
        for name, document in (("zero:0", reduced(6, 30_000_000).document()), ("zero:3", gathered(6, 90_000_000).document("zero:3")),
                               ("zero:1", updated(6, 90_000_000).document("zero:1"))):
            for kind in ("switch", "fat_tree", "torus", "dragonfly"):
                for more in ({}, {"straggle": "2:2"}):
                    machine = made_machine(network={"kind": kind, "latency_seconds": 1e-4})
                    flows, patterns = (median(execute(document, machine, executor=executor, **more)) for executor in EXECUTORS)
                    with self.subTest(name=name, kind=kind, more=more):
                        self.assertLess(abs(patterns / flows - 1), 0.05, (flows, patterns))


@needs_simgrid
class Invariances(unittest.TestCase):
    def test_more_is_never_slower(self):
        document = gathered(6, 60_000_000).document("zero:3")
        for changes in ([{"network": {"bytes_per_second": b * GB}} for b in (0.1, 0.5, 1, 10)],
                        [{"network": {"latency_seconds": x}} for x in (0.1, 0.01, 0)],
                        [{"network": {"per_message_seconds": x}} for x in (0.1, 0.01, 0)],
                        [{"network": {"efficiency": x}} for x in (0.1, 0.5, 1)]):
            for executor in EXECUTORS:
                times = [median(execute(document, made_machine(**change), executor=executor)) for change in changes]
                self.assertEqual(sorted(times, reverse=True), times, changes)
                self.assertLess(times[-1], times[0])

    def test_the_same_seed_draws_the_same(self):
        document = reduced(3, 1000).document()
        one, same, other = (execute(document, made_machine(), delay="*:exponential:100", steps=20, seed=seed).steps for seed in (1, 1, 2))
        self.assertEqual(one, same)
        self.assertNotEqual(one, other)


@needs_simgrid
class Draws(unittest.TestCase):
    def test_means_are_those_of_the_words(self):
        import numpy
        from prediction.compute import Trouble
        for words in ("constant", "exponential", "lognormal", "pareto"):
            trouble = Trouble(None, f"*:{words}:20", 20000, 1)
            seconds = trouble.step(1)[1]
            self.assertAlmostEqual(0.020, numpy.mean(seconds), delta=0.002, msg=words)
            self.assertEqual(words != "constant", trouble.drawn)
            if words == "pareto":
                self.assertGreaterEqual(seconds.min(), 0.010)
            factors = Trouble(f"*:{words}:2", None, 20000, 1).step(2)[0]
            self.assertAlmostEqual(3, numpy.mean(factors), delta=0.2, msg=words)

    def test_only_the_named_rank(self):
        from prediction.compute import Trouble
        factors, seconds = Trouble("1:3", "2:constant:5", 4, 1).step(2)
        self.assertEqual([[1, 3, 1, 1]] * 2, factors.tolist())
        self.assertEqual([0, 0, 0.005, 0], seconds.tolist())


if __name__ == "__main__":
    assert made
    unittest.main()
