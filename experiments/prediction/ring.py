"""Simulates the steps of rings, gossip and local ranks, over all ranks and many steps.

Two executors of one graph of tasks:

    flows      simulates every flow of every transfer, and all computing (network.Simulation). Transfers of different streams share links, and
               ranks of one machine share its cores. A rank sends a piece as soon as it and the receiver are ready
    patterns   is for many ranks. SimGrid is asked once how long a byte of each kind of transfer takes (all its flows at the same time; for an
               all-to-all of thousands of ranks, a sample of its shifts). Then all ranks' tasks are computed as arrays. A transfer begins
               when its last rank is ready, and two transfers at the same time share the link

A step's time is split as in docs/measuring.md. While the compute stream is busy, the time is forward, backward or optimizer. While it waits
for a transfer, the time is "wait" until the transfer's last rank is ready, and "exposed" after that.
"""
import collections
import math
from dataclasses import dataclass

import numpy as np

from . import CannotPredict, network
from .compute import Compute, Trouble
from .dryrun import Task
from .result import WARM_UP, Outcome

FLOWS_MOST = 100_000   # the most flows that are simulated one by one, which takes a few seconds; four times as many if ranks share cores, which only this executor models fully
FLOW_RANKS = 64
PART_OF = {"forward": "forward", "backward": "backward", "begin": "host"}   # all other computing tasks belong to "optimizer"


# ---------------------------------------------------------------- the graph
@dataclass(frozen=True)
class Kind:
    """A kind of transfer. A byte takes the same time in all transfers of one kind."""
    pattern: str
    team: str
    size: int
    distance: int = 0

    def members(self, rank, ranks):
        if self.team == "within":
            first = rank // self.size * self.size
            return range(first, first + self.size)
        if self.team == "across":
            step = ranks // self.size
            return range(rank % step, ranks, step)
        return range(ranks)

    def pairs(self, ranks):
        """[(sender, receiver)] of all flows of such a transfer."""
        if self.pattern == "neighbours":
            return [(r, (r + self.distance) % ranks) for r in range(ranks)]
        if self.pattern == "ring":
            return [(r, self.next_of(r, ranks)) for r in range(ranks)]
        return [(r, p) for r in range(ranks) for p in self.members(r, ranks) if p != r]

    def next_of(self, rank, ranks):
        members = self.members(rank, ranks)
        return members[(members.index(rank) + 1) % len(members)]

    def sends_first(self, rank, ranks):
        """For neighbours: whether the rank sends before it receives. Along the cycle rank, rank + distance, .., starting with its lowest
        rank, every other rank does (decentral/gossip.c)."""
        length = ranks // math.gcd(ranks, self.distance)
        cycle = [(rank + i * self.distance) % ranks for i in range(length)]
        lowest = cycle.index(min(cycle))
        return (length - lowest) % length % 2 == 0

    def phases(self, ranks):
        """The number of successive phases of a transfer. Neighbours alternate between sending and receiving, so theirs has at least two."""
        if self.pattern != "neighbours":
            return 1
        return 2 + ranks // math.gcd(ranks, self.distance) % 2

    @property
    def flows_of_rank(self):
        return 1 if self.pattern in ("neighbours", "ring") else self.size - 1


class Plan:
    """The tasks of a step with what each needs, streams included, and their seconds on this machine."""

    def __init__(self, document, machine):
        self.document, self.machine, self.ranks = document, machine, document.workers
        self.compute = Compute(document, machine)
        # The host's part of a step comes first, and is last in the list, so that the others keep their positions.
        self.begin = len(document.tasks)
        self.tasks = (*document.tasks, Task("begin", "compute"))
        self.count = len(self.tasks)
        if not any(task.stream == "compute" for task in document.tasks):
            raise CannotPredict("the dry run has no task that computes")
        self._order_streams()
        self.order = self._topological()
        self.seconds = np.array([self._seconds(task) for task in self.tasks])
        self.distances = document.step.get("distances") or [[1]]
        self.nodes = [r // machine.per_node for r in range(self.ranks)]

    def _order_streams(self):
        """Adds the order of streams to the needs. before: the task before on the same stream, None for the first one. needs gets that task;
        previous of the first one gets the stream's last task of the previous step."""
        self.before, self.needs, self.previous, last = [], [], [], {}
        for i, task in enumerate(self.tasks):
            before = None if i == self.begin else last.get(task.stream, self.begin if task.stream == "compute" else None)
            self.before.append(before)
            self.needs.append(sorted({*task.needs, *([] if before is None else [before])}))
            if i != self.begin:
                last[task.stream] = i
        for i, task in enumerate(self.tasks):
            first = self.before[i] is None
            self.previous.append(sorted({*task.needs_previous, *([last[task.stream]] if first else [])}))

    def _topological(self):
        after, left = [[] for _ in self.tasks], [len(needs) for needs in self.needs]
        for i, needs in enumerate(self.needs):
            for need in needs:
                after[need].append(i)
        order, ready = [], collections.deque(i for i, n in enumerate(left) if not n)
        while ready:
            order.append(ready.popleft())
            for i in after[order[-1]]:
                left[i] -= 1
                if not left[i]:
                    ready.append(i)
        if len(order) < self.count:
            raise CannotPredict("the dry run's tasks wait for each other in a circle")
        return order

    def _seconds(self, task):
        if task.task == "begin":
            return self.compute.begin_seconds
        if task.computes:
            return self.compute.seconds(task)
        return self.compute.host_copy_seconds(task) if task.pattern == "host" else 0.0

    def moves(self, k):
        """Whether task k moves bytes between ranks."""
        task = self.tasks[k]
        if task.pattern in ("servers", "scheduler"):
            raise CannotPredict(f"task {k} ({task.task}) of {self.document.topology} is between servers and workers, which no ring has")
        return bool(task.pattern) and task.pattern != "host" and self.ranks > 1

    def kind(self, k, step):
        task = self.tasks[k]
        if task.pattern == "neighbours":
            row = self.distances[step % len(self.distances)]
            return Kind("neighbours", "all", self.ranks, row[task.neighbour])
        return Kind(task.pattern, task.team, task.team_size or self.ranks)

    def sent(self, k):
        """Bytes that a rank sends. A control task's bytes are those of the collective's pieces."""
        task = self.tasks[k]
        if not task.control:
            return task.sent
        return task.bytes * (2 if task.task == "all_reduce" else 1) * (self.ranks - 1) / self.ranks

    def stretched(self, k, kind):
        """Bytes that a rank sends, multiplied by the slowdown of an exchange between several ranks (machine.stretch)."""
        return self.sent(k) * (self.machine.stretch(kind.size, self.tasks[k].bytes) if kind.pattern == "all_to_all" and not self.inside(kind) else 1.0)

    def overhead(self, k):
        """Seconds of transfer k that do not depend on the bandwidth, without one latency: the host time of its messages, and the latencies
        of the further hops of a ring."""
        task = self.tasks[k]
        size = task.team_size or self.ranks
        messages = task.messages or (1 if task.pattern == "neighbours" else size - 1)
        more = 0.0
        if task.pattern == "ring":   # a piece moves from rank to rank; the first hop is counted by latency()
            across = 0 if self.inside(self.kind(k, 0)) else size if task.team == "across" else -(-size // self.machine.per_node)
            far, near = self.machine.network["latency_seconds"], self.machine.node["latency_seconds"]
            more = (across * far + (size - across) * near) * (size - 2) / size
        elif task.control and task.task == "all_reduce":   # two exchanges: the pieces, then their sums
            more = self.latency(self.kind(k, 0))
        return messages * self.machine.network["per_message_seconds"] + more

    def latency(self, kind):
        """The latency of one hop of a transfer, which is added outside of the simulation."""
        return self.machine.node["latency_seconds"] if self.inside(kind) else self.machine.network["latency_seconds"]

    def inside(self, kind):
        """Whether all flows of the kind stay inside nodes."""
        per = self.machine.per_node
        return self.ranks <= per or (kind.team == "within" and kind.size <= per and per % kind.size == 0)

    def skipped(self, k, step):
        """Whether the step skips task k, which only the last step of a round has."""
        return self.tasks[k].round and (step + 1) % self.document.every != 0

    def cycle(self):
        """Steps after which the graph repeats."""
        return math.lcm(self.document.every, len(self.distances))


def computing_seconds(plan, k, factors, extra, first):
    """(ranks) seconds of computing task k. Stragglers multiply each unit's forward and backward; delays are added to the first forward
    task."""
    task = plan.tasks[k]
    seconds = np.full(plan.ranks, plan.seconds[k])
    if task.task in ("forward", "backward"):
        seconds = seconds * factors[min(task.micro or 0, len(factors) - 1)]
    return seconds + extra if k == first else seconds


def first_of(plan):
    return next((k for k, task in enumerate(plan.tasks) if task.task == "forward"), -1)


# ---------------------------------------------------------------- every flow
class Flows:
    """The executor that simulates every flow. It runs inside a child process, since SimGrid has one engine per process."""

    def __init__(self, plan, trouble, steps):
        self.plan, self.steps = plan, steps
        self.sim = network.Simulation(plan.machine, plan.nodes)
        self.drawn = [trouble.step(plan.document.micro_batches) for _ in range(steps)]
        self.first = first_of(plan)
        self.seconds = [[computing_seconds(plan, k, factors, 0.0, -1) if task.computes else None for k, task in enumerate(plan.tasks)]
                        for factors, _ in self.drawn]
        shape = (steps, plan.count, plan.ranks)
        self.start, self.end = np.zeros(shape), np.zeros(shape)   # seconds; a skipped task begins and ends at once
        self.after = [[] for _ in plan.tasks]
        self.after_step = [[] for _ in plan.tasks]
        for k in range(plan.count):
            for need in plan.needs[k]:
                self.after[need].append(k)
            for need in plan.previous[k]:
                self.after_step[need].append(k)
        here = [len(needs) for needs in plan.needs]
        both = [n + len(plan.previous[k]) for k, n in enumerate(here)]
        self.left = [[list(here if t == 0 else both) for _ in range(plan.ranks)] for t in range(steps)]
        self.joined, self.open = {}, {}
        self.due, self.busy = collections.deque(), False

    def begin(self):
        for rank in range(self.plan.ranks):
            for k in range(self.plan.count):
                if not self.left[0][rank][k]:
                    self.due.append((0, rank, k))
        self._go()

    def _go(self):
        """Begins all tasks that are ready. A task of no duration makes others ready at once."""
        if self.busy:
            return
        self.busy = True
        while self.due:
            self._start(*self.due.popleft())
        self.busy = False

    def _start(self, t, rank, k):
        self.start[t, k, rank] = self.sim.now
        plan = self.plan
        if plan.skipped(k, t):
            self._done(t, rank, k)
        elif plan.moves(k):
            self.sim.waits(rank)
            overhead = plan.overhead(k)
            if overhead > 0:
                self.sim.after(overhead, self._join, t, rank, k)
            else:
                self._join(t, rank, k)
        elif plan.tasks[k].computes:
            delay = self.drawn[t][1][rank] if k == self.first else 0
            if delay > 0:
                self.sim.spin(rank, delay, self._compute, t, rank, k)
            else:
                self._compute(t, rank, k)
        else:
            self.sim.after(plan.seconds[k], self._done, t, rank, k)

    def _compute(self, t, rank, k):
        seconds = self.seconds[t][k][rank]
        if seconds > 0:
            self.sim.compute(rank, seconds, self._done, t, rank, k, anew=k == self.plan.begin)
        else:
            self._done(t, rank, k)

    def _done(self, t, rank, k):
        self.end[t, k, rank] = self.sim.now
        for at, others in ((t, self.after[k]), (t + 1, self.after_step[k])):
            if at == self.steps:
                break
            left = self.left[at][rank]
            for other in others:
                left[other] -= 1
                if not left[other]:
                    self.due.append((at, rank, other))
        self._go()

    def _join(self, t, rank, k):
        """The rank is ready for transfer k: begins the flows to and from each peer that is ready too."""
        plan, kind = self.plan, self.plan.kind(k, t)
        ready = self.joined.setdefault((t, k), set())
        ready.add(rank)
        size = plan.stretched(k, kind) / kind.flows_of_rank
        self.open.setdefault((t, rank, k), 2 * kind.flows_of_rank)
        if kind.pattern == "neighbours":
            pairs = self._turns(kind, t, rank, k)
        elif kind.pattern == "ring":   # a ring needs all members
            members = kind.members(rank, plan.ranks)
            pairs = [(m, kind.next_of(m, plan.ranks)) for m in members] if all(m in ready for m in members) else []
        else:
            pairs = [pair for p in kind.members(rank, plan.ranks) if p != rank and p in ready for pair in ((rank, p), (p, rank))]
        for src, dst in pairs:
            self.sim.flow(src, dst, size, self._arrived, t, src, dst, k)

    def _turns(self, kind, t, rank, k):
        """[(sender, receiver)] of the flow that can begin now between the rank and a neighbour, [] if none: each rank sends and receives
        one after the other, and both must have reached this flow."""
        def sends(r):   # whether r's next flow is a send; None: r is not ready, or has done both
            left, first = self.open.get((t, r, k)), kind.sends_first(r, self.plan.ranks)
            return None if left is None else first == (left == 2)
        to, back = (rank + kind.distance) % self.plan.ranks, (rank - kind.distance) % self.plan.ranks
        if sends(rank):
            return [(rank, to)] if sends(to) is False else []
        return [(back, rank)] if sends(back) else []

    def _arrived(self, t, src, dst, k):
        for rank in (src, dst):
            at = (t, rank, k)
            self.open[at] -= 1
            if not self.open[at]:
                del self.open[at]
                self.sim.waited(rank)
                self._done(t, rank, k)
            elif self.plan.tasks[k].pattern == "neighbours":
                kind = self.plan.kind(k, t)
                for pair in self._turns(kind, t, rank, k):
                    self.sim.flow(*pair, self.plan.sent(k) / kind.flows_of_rank, self._arrived, t, *pair, k)

    def run(self, first):
        """Simulates. Returns (Split of the steps from `first` on, a sentence on what was simulated)."""
        self.sim.run(self.begin)
        if self.open or any(n for left in self.left[-1] for n in left):
            raise CannotPredict("the simulated step did not end: some tasks of the dry run wait for tasks that it lacks")
        split = Split(self.plan, first)
        for t in range(self.steps):
            split.take(t, self.start[t], self.end[t])
        split.plan = None   # not needed by the parent, to which the Split is sent through a pipe
        return split, f"{self.sim.flow_count} flows of {self.steps} steps, each simulated"


def run_flows(plan, trouble, steps, first):
    return Flows(plan, trouble, steps).run(first)


# ---------------------------------------------------------------- patterns
def slopes(machine, nodes, kinds):
    """{kind: seconds per byte that each rank sends}, from SimGrid, without latencies. Runs inside a child process."""
    ranks, found = len(nodes), {}
    sim = network.Simulation(machine, nodes, scale_latency=0)
    waiting = list(kinds)
    random = np.random.default_rng(1)

    def batches(kind):
        """(batches of flows, pieces). The flows of a batch run at the same time. pieces: the number of flows of each rank in all
        batches."""
        flows = ranks * kind.flows_of_rank
        if flows <= network.WHOLE_FLOWS:
            return [kind.pairs(ranks)], kind.flows_of_rank
        # In shift s each member sends a piece to the member s positions after it. The sample has one random shift from each of `count`
        # equal ranges.
        count = min(network.SHIFTS, kind.size - 1)
        edges = np.linspace(1, kind.size, count + 1)
        shifts = [min(kind.size - 1, int(random.uniform(a, b))) for a, b in zip(edges, edges[1:])]
        places = [kind.members(r, ranks) for r in range(ranks)]
        where = [members.index(r) for r, members in enumerate(places)]
        return [[(r, places[r][(where[r] + shift) % kind.size]) for r in range(ranks)] for shift in shifts], count

    def next_kind():
        if waiting:
            kind = waiting.pop(0)
            todo, pieces = batches(kind)
            run_batch(kind, todo, pieces, sim.now)

    def run_batch(kind, todo, pieces, began):
        if not todo:
            found[kind] = (sim.now - began) / (pieces * network.PROBE)
            next_kind()
            return
        pairs, left = todo[0], [len(todo[0])]

        def arrived():
            left[0] -= 1
            if not left[0]:
                run_batch(kind, todo[1:], pieces, began)
        for src, dst in pairs:
            sim.flow(src, dst, network.PROBE, arrived)
    sim.run(next_kind)
    return found


class Patterns:
    """The executor for many ranks. If each transfer involves all ranks, it is one event for all. If teams or neighbours have different
    times, a transfer is an array with a time per rank, and each rank's link does one transfer after the other."""

    def __init__(self, plan, trouble, steps):
        self.plan, self.trouble, self.steps = plan, trouble, steps
        kinds = {plan.kind(k, t) for k in range(plan.count) if plan.moves(k) for t in range(plan.cycle())}
        self.slopes = network.in_child(slopes, plan.machine, plan.nodes, sorted(kinds, key=repr)) if kinds else {}
        self.crowd = self._crowd()
        self.first = first_of(plan)

    def _crowd(self):
        """The factor by which computing is slower if ranks share cores and all of them compute."""
        machine, sets = self.plan.machine, {}
        for node in self.plan.nodes:
            sets[machine.cores_of(node)] = sets.get(machine.cores_of(node), 0) + 1
        sets.pop(None, None)
        return max((1.0, *(n * machine.threads / machine.cores["count"] for n in sets.values())))

    def fixed(self, k, t):
        return self.plan.overhead(k) + self.plan.latency(self.plan.kind(k, t))

    def work(self, k, t):
        kind = self.plan.kind(k, t)
        return self.plan.stretched(k, kind) * self.slopes[kind] * kind.phases(self.plan.ranks)

    def run(self, first):
        """Does the same as Flows.run."""
        plan = self.plan
        same = all(self._all(k, t) for k in range(plan.count) if plan.moves(k) for t in range(plan.cycle()))
        self.rows = plan.ranks if self.trouble.any else 1   # without stragglers and delays all ranks have the same times
        self.split = Split(plan, first)
        self.start, self.end, self.drawn, self.left = {}, {}, {}, {}   # {step: ..} of the active steps: arrays (tasks, ranks), and the number of unfinished tasks
        self._open(0)
        if same or not self.trouble.any:
            self._events()
        else:
            self._arrays()
        return self.split, "the flows of each kind of transfer simulated once, all ranks' tasks as arrays"

    def _open(self, t):
        if t < self.steps and t not in self.start:
            shape = (self.plan.count, self.rows)
            self.start[t], self.end[t], self.left[t] = np.zeros(shape), np.zeros(shape), self.plan.count
            self.drawn[t] = self.trouble.step(self.plan.document.micro_batches)

    def _over(self, t):
        """Counts a task of step t that has ended. After the last one, the step's times are added to the Split, and the step before it is
        deleted."""
        self.left[t] -= 1
        if not self.left[t]:
            self.split.take(t, self.start[t], self.end[t])
            for kept in (self.start, self.end, self.drawn, self.left):
                kept.pop(t - 1, None)

    def _all(self, k, t):
        kind = self.plan.kind(k, t)
        return kind.pattern != "neighbours" and (kind.team == "all" or kind.size == self.plan.ranks)

    def _ready(self, t, k):
        """(ranks) the time at which all needs of task k have ended."""
        ready = np.zeros(self.rows)
        for need in self.plan.needs[k]:
            np.maximum(ready, self.end[t][need], out=ready)
        for need in self.plan.previous[k] if t else ():
            np.maximum(ready, self.end[t - 1][need], out=ready)
        return ready

    def _local(self, t, k):
        """Computes the start and end of a task that involves no other rank."""
        self.start[t][k] = ready = self._ready(t, k)
        if self.plan.skipped(k, t):
            self.end[t][k] = ready
        elif self.plan.tasks[k].computes:
            seconds = computing_seconds(self.plan, k, *self.drawn[t], self.first) * self.crowd
            self.end[t][k] = ready + seconds[:self.rows]
        else:
            self.end[t][k] = ready + self.plan.seconds[k]

    def _events(self):
        """Simulates transfers in the order of time. Transfers that overlap share the links of their kind (a node's, or the network's)."""
        plan = self.plan
        first = [len(needs) for needs in plan.needs]
        others = [n + len(plan.previous[k]) for k, n in enumerate(first)]
        left = {0: first}
        after, after_step = [[] for _ in plan.tasks], [[] for _ in plan.tasks]
        for k in range(plan.count):
            for need in plan.needs[k]:
                after[need].append(k)
            for need in plan.previous[k]:
                after_step[need].append(k)
        waiting, active, now = [], [], 0.0   # [start, t, k], [work left, t, k, place]
        tokens, idle_since = plan.machine.network["burst_seconds"], 0.0   # the token bucket of the network's links, as in network.Simulation, in seconds
        due = collections.deque((0, k) for k in range(plan.count) if not left[0][k])

        def over(t, k):
            if t + 1 < self.steps and t + 1 not in left:
                left[t + 1] = list(others)
                self._open(t + 1)
            self._over(t)
            if not self.left[t]:
                del left[t]   # all tasks of this step have begun
            for at, those in ((t, after[k]), (t + 1, after_step[k])):
                for other in those if at < self.steps else ():
                    left[at][other] -= 1
                    if not left[at][other]:
                        due.append((at, other))

        def settle():
            while due:
                t, k = due.popleft()
                if plan.moves(k) and not plan.skipped(k, t):
                    self.start[t][k] = self._ready(t, k)
                    waiting.append([float(self.start[t][k].max()) + self.fixed(k, t), t, k])
                else:
                    self._local(t, k)
                    over(t, k)
        settle()
        while waiting or active:
            sharing = collections.Counter(place for *_, place in active)
            ends = min((now + w * sharing[place] for w, _, _, place in active), default=math.inf)
            begins = min((w[0] for w in waiting), default=math.inf)
            until = max(now, min(ends, begins))
            for entry in active:
                entry[0] -= (until - now) / sharing[entry[3]]
            now = until
            for entry in [w for w in waiting if w[0] <= now]:
                waiting.remove(entry)
                _, t, k = entry
                place, work = "node" if plan.inside(plan.kind(k, t)) else "network", self.work(k, t)
                if place == "network":
                    if not any(a[3] == place for a in active):
                        tokens = min(plan.machine.network["burst_seconds"], tokens + now - idle_since)
                    at_once = min(tokens, work)
                    work, tokens = work - at_once, tokens - at_once
                active.append([work, t, k, place])
            done = [a for a in active if a[0] <= 1e-12 + 1e-9 * now]
            active = [a for a in active if a[0] > 1e-12 + 1e-9 * now]
            if any(a[3] == "network" for a in done):
                idle_since = now
            for _, t, k, _ in done:
                self.end[t][k] = now
                over(t, k)
            settle()

    def _arrays(self):
        plan, free = self.plan, {}
        for t in range(self.steps):
            self._open(t)
            for k in plan.order:
                if not plan.moves(k) or plan.skipped(k, t):
                    self._local(t, k)
                    self._over(t)
                    continue
                kind = plan.kind(k, t)
                self.start[t][k] = ready = self._ready(t, k)
                link = free.setdefault(plan.inside(kind), np.zeros(plan.ranks))
                begins = last_ready(kind, np.maximum(ready + self.fixed(k, t), link), both=True)
                free[plan.inside(kind)] = self.end[t][k] = begins + self.work(k, t)
                self._over(t)


# ---------------------------------------------------------------- the split
def last_ready(kind, own, both=False):
    """(ranks) the time at which the last rank that a transfer involves is ready. both: for neighbours, the receiver as well as the sender.
    own: (ranks) when each rank is ready, or (1) if all are equal."""
    if len(own) == 1:
        return own
    if kind.pattern == "neighbours":
        ready = np.maximum(own, np.roll(own, kind.distance))
        return np.maximum(ready, np.roll(own, -kind.distance)) if both else ready
    if kind.team == "within":
        return np.repeat(own.reshape(-1, kind.size).max(axis=1), kind.size)
    if kind.team == "across":
        return np.tile(own.reshape(kind.size, -1).max(axis=0), kind.size)
    return np.full(len(own), own.max())


class Split:
    """Splits the time of successive steps into parts. seconds: [(ranks) per step, from `first` on]; parts: sums over these steps of the
    means over the ranks."""

    def __init__(self, plan, first):
        self.plan, self.first = plan, first
        self.seconds, self.parts = [], collections.Counter()
        self.computing = [k for k in plan.order if plan.tasks[k].stream == "compute"]
        self.end, self.previous = None, None   # (tasks, ranks) the ends of this step's tasks, and of the step's before

    def take(self, t, start, end):
        self.previous, self.end = self.end, end
        if t < self.first:
            return
        began = before = self.previous[self.computing[-1]] if t else np.zeros(end.shape[1])
        for k in self.computing:
            gap = np.maximum(start[k] - before, 0)
            if gap.any():
                waited, exposed = self._idle(t, k, before, gap)
                self.parts["wait"] += waited.mean()
                self.parts["exposed"] += exposed.mean()
                self.parts["host"] += (gap - waited - exposed).mean()
            self.parts[PART_OF.get(self.plan.tasks[k].task, "optimizer")] += (end[k] - start[k]).mean()
            before = end[k]
        self.seconds.append(before - began)

    def means(self):
        return {part: float(total) / len(self.seconds) for part, total in self.parts.items()}

    def _own_ready(self, k, at, before):
        """(ranks) the time at which each rank has its data for transfer k, without regard to the order of the stream. A transfer without
        needs, such as the second half of an all-reduce, is ready with the transfer before it. at, before: the ends of the transfer's step,
        and of the step before (None for the first step)."""
        task = self.plan.tasks[k]
        if not task.needs and not (task.needs_previous and before is not None) and self.plan.before[k] is not None:
            return self._own_ready(self.plan.before[k], at, before)
        own = np.zeros(at.shape[1])
        for ends, needs in ((at, task.needs), (before, task.needs_previous if before is not None else ())):
            for need in needs:
                np.maximum(own, ends[need], out=own)
        return own

    def _idle(self, t, k, before, gap):
        """Splits the gap before compute task k into (waiting for other ranks, exposed transfer), by the last of the transfers that the task
        needs."""
        plan, task = self.plan, self.plan.tasks[k]
        causes = [(t, need) for need in task.needs] + [(t - 1, need) for need in task.needs_previous if t]
        causes = [(at, need) for at, need in causes if plan.tasks[need].pattern]
        waited = np.zeros(len(gap))
        if not causes:
            return waited, waited
        last = np.array([(self.end if at == t else self.previous)[need] for at, need in causes]).argmax(axis=0)
        for i, (at, need) in enumerate(causes):
            if plan.moves(need) and not plan.skipped(need, at):
                ends = (self.end, self.previous) if at == t else (self.previous, None)
                ready = last_ready(plan.kind(need, at), self._own_ready(need, *ends))
                waited = np.where(last == i, np.clip(ready - before, 0, gap), waited)
        return waited, gap - waited


# ---------------------------------------------------------------- together
def limit_of(plan, parts):
    """The resource that limits a step, from the largest part of its time."""
    computing = parts.get("forward", 0) + parts.get("backward", 0) + parts.get("optimizer", 0)
    exposed, wait = parts.get("exposed", 0), parts.get("wait", 0)
    if computing >= max(exposed, wait):
        return "compute"
    if wait > exposed:
        return "straggler"
    # Is it latency or bandwidth? fixed: seconds of latencies and messages; moved: the least seconds of the bytes.
    fixed, moved = 0.0, 0.0
    for k in range(plan.count):
        if plan.moves(k):
            inside = plan.inside(plan.kind(k, 0))
            rate = plan.machine.node["bytes_per_second"] if inside else plan.machine.rate / min(plan.machine.per_node, plan.ranks)
            fixed += plan.overhead(k) + plan.latency(plan.kind(k, 0))
            moved += plan.sent(k) / rate
    return "latency" if fixed > moved else "worker's link"


def execute(document, machine, straggle=None, delay=None, steps=200, seed=1, effort=1.0, executor=None):
    """The Outcome of a topology without servers. steps: the number of counted steps, if steps differ from each other. executor: "flows" or
    "patterns"; None: "flows" if there are few enough. `effort` multiplies that limit."""
    plan = Plan(document, machine)
    trouble = Trouble(straggle, delay, plan.ranks, seed, plan.compute.spread)
    cycle = plan.cycle()
    warm = -(-WARM_UP // cycle) * cycle
    counted = -(-(steps if trouble.drawn else 2) // cycle) * cycle
    flows = sum(plan.ranks * plan.kind(k, 0).flows_of_rank for k in range(plan.count) if plan.moves(k)) * (warm + counted)
    if executor is None:
        most = effort * FLOWS_MOST * (1 if machine.cores_of(0) is None else 4)
        executor = "flows" if plan.ranks <= FLOW_RANKS and flows <= most else "patterns"
    if executor == "flows":
        split, how = network.in_child(run_flows, plan, trouble, warm + counted, warm)
    else:
        split, how = Patterns(plan, trouble, warm + counted).run(warm)
    parts = split.means()
    return Outcome(steps=np.concatenate(split.seconds).tolist(), parts=parts, limit=limit_of(plan, parts), how=how, notes=list(plan.compute.notes))
