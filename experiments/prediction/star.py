"""Simulates a star's steps with SimGrid: workers, the shards of servers, and the scheduler, with the program's own rules.

The dry run's graph of tasks gives what a worker computes, pushes and pulls; its list of keys gives the shard of each key. The consistency
(servers.py) decides when pushes become an update and when a pull is answered. Common to all stars, and in this file, are:

    worker      one compute stream, in the graph's order; one communication thread, which sends keys of the oldest step and of the first
                units first, as many as credits and the window of bytes in flight allow, and receives the answers
    connection  between a worker and a shard thread, each way: messages one after the other (queues.Channel)
    shard       one thread, which receives messages, adds, updates and answers; its costs are the machine file's "server"
    scheduler   one thread: reports, sums, decisions, sets, batches of the budget

network.Simulation simulates links, and cores that ranks share. A server has a node of its own (`spread`), or is on its worker's node. In
that case the two share memory, and the bytes between them use no link.

Many keys and ranks
    bundles   If a step has at most MESSAGES messages, each key is one message. Else the keys of a unit on one shard form one message, and if
              these are still too many, so do the keys of neighbouring units.
    merged    If there are more workers than CLASSES, and the consistency is sync or ssp, m workers become one with m times the link, whose
              computing takes as long as that of the slowest of them. q servers become one with q times the link and q times the speed. All
              flows keep their shares of a link, since m is the same for all. The bytes between merged workers and servers of one node are
              spread over the other connections, so that each link carries its true number of bytes. A straggler slows all workers
              that are merged with it.
    servers   Asynchronous workers, and workers that a step may close without, are not merged, since each has its own order. With one switch
              and more than PAIRS connections, their servers are merged: a worker sends the same to all servers at the same time. The
              servers of few synchronous workers are merged likewise. In other networks, and if ranks share cores, no server is merged.
    steps     As many as EFFORT messages allow, and at least LEAST_STEPS. If more steps of an asynchronous star are asked for, the others count
              like the simulated ones without the first two, whose gradients are fresher. So a short simulation gives a long run's staleness.
"""
import copy
import heapq
import itertools
import math
import random
from dataclasses import dataclass, field, replace

from . import compute, network, result, servers, shares
from .queues import Channel, Thread

WINDOW_MOST, WINDOW_SECONDS, FADE = 32 << 20, 0.06, 0.95   # the window of bytes in flight: ps/worker/worker_core_state.h
SHARES = 2
MESSAGES = 4000        # the most messages of a step that are simulated, over all workers, one way
CLASSES = 64, 16       # the most workers, and servers, that are simulated separately; more are merged
CONNECTIONS = 8192     # the most connections of merged workers; if there are more, and the network is one switch, servers are merged as well
PAIRS = 512            # the most connections of workers that are not merged; if there are more, and the network is one switch, servers are merged
EFFORT = 100000        # the messages of a simulation, from which the number of simulated steps follows
LEAST_STEPS = 5 + result.WARM_UP


class Costs:
    """The costs of messages and servers in seconds, from the machine file; 0 for those that it does not have."""

    def __init__(self, machine):
        def of(section, key, default=0.0):
            return (getattr(machine, section) or {}).get(key) or default
        self.sum_byte = 1 / of("server", "sum_bytes_per_second", math.inf)           # per byte of a gradient
        self.update_element = 1 / of("server", "update_elements_per_second", math.inf)
        self.answer = of("server", "answer_latency_seconds")                         # until an answer has left, while the thread goes on
        self.reply = of("server", "reply_seconds")                                   # per answer with weights
        self.message = of("network", "per_message_seconds")                          # host time to start a message
        self.spread = of("network", "share_spread")                                  # standard deviation / mean of the shares that connections get of a congested link


# ---------------------------------------------------------------- what is simulated
@dataclass
class Key:
    """The content of one simulated message: one key, or several keys of a shard, of one unit or of neighbouring units. Bytes are per
    worker."""
    index: int
    units: tuple
    push: float
    pull: float
    elements: float
    server: int
    shard: int
    messages: int = 0


def bundled(document, place):
    """The messages that stand for the star's keys. The n-th keys of q merged servers form one message. If there are too many messages, c
    consecutive keys of a unit and shard are joined, and then those of neighbouring units as well."""
    workers, q = place.workers, place.q
    width, by_units = compute.BYTES[document.dtype], servers.keeps_two_units(document)
    order, most = [], {}
    for k in document.keys:
        at = k.unit, k.server, k.shard
        order.append(most.get(at, 0))
        most[at] = order[-1] + 1
    deepest = max(most.values())

    def joined(c, units):
        out = {}
        for k, n in zip(document.keys, order):
            whole = out.setdefault((k.unit // units, k.server // q, k.shard, n // c), Key(0, (), 0.0, 0.0, 0.0, k.server // q, k.shard, 0))
            whole.units = tuple(sorted({*whole.units, k.unit}))
            whole.push, whole.pull, whole.elements = whole.push + k.bytes, whole.pull + k.pull_bytes, whole.elements + k.pull_bytes / width
            whole.messages += 1
        return list(out.values())
    c = units = 1
    out = joined(c, units)
    while len(out) * workers > place.effort * MESSAGES and (c < deepest or (units < len(document.units) and not by_units)):
        c, units = (2 * c, units) if c < deepest else (c, 2 * units)
        out = joined(c, units)
    for i, k in enumerate(out):
        k.index = i
    return out


@dataclass
class Place:
    """The simulated endpoints (workers, servers, the scheduler), their nodes, and the number of ranks that each stands for: m workers, q
    servers."""
    workers: int
    servers: int
    m: int
    q: int
    paired: bool          # server r is on the node of worker r
    nodes: list
    machine: object
    devices: dict         # {endpoint: bytes per second} of links between an endpoint and its node that differ from the machine's
    width: int = 1        # the number of nodes that a simulated node stands for
    share: float = 1.0    # factor of a connection's bytes, which corrects for traffic between merged ranks
    effort: float = 1.0   # factor of MESSAGES
    rates: dict = field(default_factory=dict)   # {node: bytes per second} of network links that differ from the machine's

    @staticmethod
    def of(document, machine, merges, servers_alone=False, effort=1.0):
        workers, count = document.workers, document.servers
        pushes = [t for t in document.tasks if t.task == "push"]
        paired = sum(t.sent for t in pushes) < sum(t.bytes for t in pushes)
        m = q = 1
        per_node = min(machine.per_node, workers)
        most_workers, most_servers = (max(4, int(effort * most)) for most in CLASSES)
        if merges and workers > most_workers:
            m = workers // max(d for d in range(1, most_workers + 1) if workers % d == 0 and (workers // d) % per_node == 0)
            most = max(1, m // per_node)   # the link of a merged server is at most as wide as that of a merged worker
            if machine.network["kind"] == "switch":
                most = max(most, math.ceil(count * (workers // m) / CONNECTIONS))   # with one switch it may be wider
            q = m if paired else max(q for q in range(1, most + 1) if count % q == 0 and count // q >= min(count, most_servers))
        elif servers_alone and not paired and not machine.cores and machine.network["kind"] == "switch":
            q = max(q for q in range(1, count + 1) if count % q == 0 and count // q >= min(count, math.ceil(effort * PAIRS / workers)))
        classes, shards = workers // m, math.ceil(count / q)
        if m == 1:
            nodes = [r // per_node for r in range(workers)]
            first = nodes[-1] + 1
            own = [first + s for s in range(shards)]
            nodes += [nodes[r] for r in range(count)] if paired else own
            wide = own if q > 1 else ()
            order = spread(machine, first, 0 if paired else shards)
            return Place(workers, shards, 1, q, paired, [*(order[n] for n in nodes), len(order)], machine,
                         {workers + s: q * machine.node["bytes_per_second"] for s in range(len(wide))}, effort=effort,
                         rates={order[node]: q * machine.rate for node in wide})
        # A node's link is as wide as those of all nodes that it stands for. The device links limit each endpoint to the rate of its ranks.
        told, rate = copy.deepcopy(machine.told), machine.network["bytes_per_second"]
        width = max(1, m // per_node) if paired else max(m // per_node, q)
        told["network"]["bytes_per_second"] = rate * width
        told["node"]["bytes_per_second"] *= m   # for the scheduler, and for workers that share their node with a server
        told["cores"] = None
        merged = replace(machine, told=told)
        if paired:
            share = (workers - per_node) / workers / ((classes - 1) / classes) if classes > 1 else 1.0
            return Place(classes, shards, m, q, True, [*range(classes), *range(shards), 0], merged, {}, width, share, effort)
        devices = {**{c: machine.rate * max(1, m / per_node) for c in range(classes)}, **{classes + s: machine.rate * q for s in range(shards)}}
        order = spread(machine, classes, shards, width)
        return Place(classes, shards, m, q, False, order + order[classes:], merged, devices, width, effort=effort)


def spread(machine, workers, servers, width=1):
    """The positions in the network, of each worker's node and then of each server's. With one switch they follow the numbers. In other
    networks nodes form groups of the size of a fat tree's lowest switch, and servers are dealt to the groups in turn, among the workers'
    nodes. The reason: all workers push their keys to the servers in the same order, so servers with neighbouring numbers at one switch
    would all be reached over its few links at the same time. In each group the first server has another slot, since routes to equal slots
    use the same upper switch."""
    total = workers + servers
    if machine.network["kind"] == "switch":
        return list(range(total))
    leaf = max(1, network.LEAF // width)
    groups = [list(range(at, min(at + leaf, total))) for at in range(0, total, leaf)]
    turned = [slots[at:] + slots[:at] for slots, at in ((slots, i * len(slots) // len(groups)) for i, slots in enumerate(groups))]
    dealt = [place for places in itertools.zip_longest(*turned) for place in places if place is not None][:servers]
    return sorted(set(range(total)) - set(dealt)) + dealt


class Draws:
    """The compute times of workers in each step, with stragglers and delays. For merged workers the slowest one counts."""

    def __init__(self, document, machine, straggle, delay, seed, m):
        self.compute = compute.Compute(document, machine)
        self.trouble = compute.Trouble(straggle, delay, document.workers, seed, self.compute.spread)
        self.tasks, self.micro, self.m = document.tasks, document.micro_batches, m
        self.whole = [self.compute.seconds(t) if t.computes else 0.0 for t in document.tasks]
        self.first = next(i for i, t in enumerate(document.tasks) if t.computes)
        self.steps, self.seed = [], seed

    def _step(self, number):
        while len(self.steps) <= number:
            factors, seconds = self.trouble.step(self.micro)
            self.steps.append((factors.reshape(self.micro, -1, self.m).max(axis=2), seconds.reshape(-1, self.m).max(axis=1)))
        return self.steps[number]

    def seconds(self, rank, step, i):
        """Seconds of task i in the rank's step."""
        task = self.tasks[i]
        if task.task not in ("forward", "backward"):
            return self.whole[i]
        return self.whole[i] * self._step(step)[0][task.micro or 0][rank]

    def delay(self, rank, step, i):
        """Seconds of delay before task i. Only the first unit's forward pass has a delay, after its weights have arrived."""
        return self._step(step)[1][rank] if i == self.first else 0.0


# ---------------------------------------------------------------- credits
class Credits:
    """A worker's credits: bytes that it has pushed and that no sum contains yet. The same rules and names as struct credits of
    ps/worker/worker_core_state.h. scale: keys per message; the window is multiplied by it, so that as many messages are in flight as keys
    would be."""

    def __init__(self, most, opened, largest, scale):
        self.most, self.scale = (most or math.inf) * scale, scale
        self.taken = self.held = self.since = 0.0
        self.window, self.least, self.all = float(WINDOW_MOST * scale), 2 * largest, not most or most >= opened
        self._bytes = self._seconds = self._answer = 0.0

    def arrived(self, size, sent, now):
        """Bytes in flight since `sent` have arrived. Adapts the window to the rate."""
        if not size or now <= sent:
            return
        self._answer = min(self._answer or now - sent, now - sent)
        self._bytes = self._bytes * FADE + size
        self._seconds = self._seconds * FADE + now - self.since
        self.since = now
        window = self._bytes * (2 * self._answer + WINDOW_SECONDS) / self._seconds if self._seconds else WINDOW_MOST
        self.window = max(self.least, min(WINDOW_MOST, window) * self.scale)

    def allow(self, size, held_before):
        """Whether a key may be sent now. held_before: held bytes of more urgent keys."""
        under_way = self.taken - self.held
        if self.all:
            return under_way <= 0 or under_way + size <= self.window
        if under_way <= 0 and held_before <= 0:
            return self.taken <= self.most
        return (under_way + size <= self.window and under_way + held_before + size <= self.most / 2
                and self.taken + size <= self.most)


class Shares:
    """Shares that a connection gets of a congested link. Connections that begin together get unequal ones at first, since TCP's windows have to
    settle: one to six, SHARES on average, drawn each time that the connection becomes busy. As long as the spread was measured they stay so,
    and are equal then."""

    def __init__(self, random, spread):
        self._random, self._spread, self._drawn = random, spread, SHARES

    def at(self, seconds):
        """So long after the connection became busy."""
        if not seconds:
            self._drawn = min(6, max(1, round(SHARES * math.exp(self._random.gauss(0, self._spread)))))
        return self._drawn if seconds < shares.FIRST * shares.WINDOW else SHARES


# ---------------------------------------------------------------- a worker
@dataclass
class Step:
    """One step of a worker. open: per task, the number of its needs that have not ended; over: per task, whether it has ended."""
    number: int
    round: int               # the number of the exchange: the step's number, or the round's with local steps
    open: list
    over: list
    began: float
    exchanges: bool
    parts: dict = field(default_factory=lambda: dict.fromkeys(result.PARTS, 0.0))
    computes: bool = False   # the host time at its beginning is over
    busy: bool = False
    length: float = None


class Worker:
    """The compute stream and the communication thread of a worker."""

    def __init__(self, star, rank):
        self.star, self.rank, self.endpoint, self.simulation = star, rank, rank, star.simulation
        self.thread = Thread(star.simulation, rank)
        self.steps, self.done = {}, []             # {number: active step}; finished steps
        self.step, self.at = None, 0               # the step that is computed, and the position in its compute stream
        self.idle_since = 0.0
        self.queue = []                            # pushes to send: (step, unit, key, micro, task)
        keys = star.keys
        self.credits = Credits(star.rule.credit_bytes, sum(k.push for k in keys) * star.rule.micro * (1 + star.rule.lead),
                               max(k.push for k in keys), sum(k.messages for k in keys) / len(keys))
        self.sent = {}                             # {(key, step, micro): [when it was sent, bytes of credits, whether the shard holds it]}
        self.held_of = {}                          # {(step, unit): bytes that shards hold}
        self.taking = {}                           # {(step, push): number of keys that no shard has taken yet}
        self.missing = {}                          # {(step, pull): [number of keys that have not landed, function to call after the last one]}
        self.pulls = {}                            # {key: [(wanted step, (step, pull))]}: the pulls that wait for it
        self.landed = [0] * len(keys)              # per key: the step of its weights
        self.version = [0] * len(keys)             # per key: the version of its weights
        self.ready = {}                            # {(step, unit): when the gradient was complete}
        self.needed = 0.0                          # the latest time at which weights that have landed had all their gradients
        self.closed = -1                           # the last step that the scheduler has closed
        self.ended = None                          # the step whose end waits for earlier steps to close
        self.behind = False
        self.skipped = 0

    # ---- steps
    def plan(self, number):
        """Begins a step, or skips it if it was closed without this worker."""
        rule = self.star.rule
        if not rule.alone and number >= self.star.count:
            self.star.finished(self)
        elif rule.drops and self.closed >= number:
            self.behind = True
            self.skipped += 1
            self.plan(number + 1)
        elif rule.drops and self.behind:
            self.jump(number)
        else:
            self.start(number)

    def jump(self, number):
        """Pulls the weights of the open step. When they have landed, that step may be closed as well."""
        keys = [k for k in self.star.keys if self.landed[k.index] < number]
        self.behind = False
        if not keys:
            self.plan(number)
            return
        task = (number, "jump")
        self.missing[task] = [len(keys), lambda: self.plan(number)]
        for k in keys:
            self.pulls.setdefault(k.index, []).append((number, task))
            self.ask(k, number)

    def start(self, number):
        star, now = self.star, self.simulation.now
        before = self.steps.get(number - 1)
        step = Step(number, number // star.every, [len(n) for n in star.needs], [False] * len(star.tasks), now if not self.done else self.idle_since,
                    (number + 1) % star.every == 0)
        for i, task in enumerate(star.tasks):
            step.open[i] += sum(before is not None and not before.over[j] for j in task.needs_previous)
        step.parts["exposed" if star.rule.alone or star.rule.drops else "host"] += now - step.began
        self.steps[number] = self.step = step
        self.at = 0
        for i, count in enumerate(step.open):
            if not count and not star.tasks[i].computes and star.asks[i] is None:
                self.begin(step, i)
        self.simulation.compute(self.endpoint, star.draws.compute.begin_seconds, self.begun, step, now)

    def begun(self, step, since):
        self.idle_since = self.simulation.now
        step.parts["host"] += self.idle_since - since
        step.computes = True
        self.advance()

    def advance(self):
        """Computes the next task of the stream if all its needs have ended."""
        step, star, now = self.step, self.star, self.simulation.now
        if step is None or not step.computes or step.busy:
            return
        if self.at == len(star.computing):
            self.step = None
            star.policy.stepped(self, step)
            return
        i = star.computing[self.at]
        if step.open[i]:
            return
        self.stood(step, self.needed)
        step.busy = True
        delay = star.draws.delay(self.rank, step.number, i)
        if delay > 0:
            self.simulation.spin(self.endpoint, delay, self.compute, step, i, now)
        else:
            self.compute(step, i, now)

    def compute(self, step, i, since):
        self.simulation.compute(self.endpoint, self.star.draws.seconds(self.rank, step.number, i), self.computed, step, i, since)

    def computed(self, step, i, since):
        step.busy = False
        self.idle_since = self.simulation.now
        task = self.star.tasks[i].task
        step.parts[task if task in ("forward", "backward") else "optimizer"] += self.idle_since - since
        self.at += 1
        self.over(step, i)
        self.advance()

    def stood(self, step, needed):
        """Splits the idle time up to now. Until `needed` it is waiting, since some rank had not computed its gradient yet; after that it is
        exposed transfer."""
        now = self.simulation.now
        wait = min(now - self.idle_since, max(0.0, needed - self.idle_since))
        step.parts["wait"] += wait
        step.parts["exposed"] += now - self.idle_since - wait
        self.idle_since = now

    def end(self, step, needed=0.0):
        """The worker's loop has ended a step, and plan() begins the next one. needed: when all workers had computed the step for which it
        waited."""
        now = self.simulation.now
        self.stood(step, needed)
        step.length = now - step.began
        self.done.append(step)
        self.steps.pop(step.number - 1, None)

    # ---- tasks that do not compute
    def begin(self, step, i):
        """All needs of the task have ended: begins it."""
        task, star = self.star.tasks[i], self.star
        if task.task not in ("push", "pull") or not step.exchanges:
            self.over(step, i)   # the scheduler makes the decision, for which only the servers wait
            for j in star.after[i] if task.task == "push" else ():
                if star.asks[j] == i:
                    self.over(step, j)
            return
        keys = star.keys_of(task.units)
        if task.task == "pull":
            self.open_pull(step, i)
            for k in keys:
                self.ask(k, step.round + star.wants[i])
            return
        self.taking[step.number, i] = len(keys)
        for k in keys:
            self.ready[step.number, k.index] = self.simulation.now
            heapq.heappush(self.queue, (step.number, k.units[0], k.index, task.micro or 0, i))
        for j in star.after[i]:   # the pulls that this push contains
            if star.asks[j] == i:
                self.open_pull(step, j)
        self.pump()
        if not keys:
            self.over(step, i)

    def open_pull(self, step, i):
        keys = self.star.keys_of(self.star.tasks[i].units)
        if not keys:
            self.over(step, i)
            return
        self.missing[step.number, i] = [len(keys), lambda: self.over(step, i)]
        for k in keys:
            self.pulls.setdefault(k.index, []).append((step.round + self.star.wants[i], (step.number, i)))

    def over(self, step, i):
        """A task has ended: begins the tasks for which it was the last need."""
        star, later = self.star, self.steps.get(step.number + 1)
        if step.over[i]:
            return
        step.over[i] = True
        for which, after in ((step, star.after[i]), (later, star.after_next[i] if later else ())):
            for j in after:
                if star.asks[j] == i:
                    continue
                which.open[j] -= 1
                if not which.open[j] and not star.tasks[j].computes and star.asks[j] is None:
                    self.begin(which, j)
        self.advance()

    # ---- pushes
    def pump(self):
        """Sends the most urgent keys, as many as the credits allow."""
        star, now, credits = self.star, self.simulation.now, self.credits
        while self.queue:
            number, unit, index, micro, task = self.queue[0]
            step = number // star.every
            key = star.keys[index]
            pays = 0 if star.local(self.rank, key.server) else key.push
            held = sum(size for at, size in self.held_of.items() if size and at <= (step, unit)) if credits.held and not credits.all else 0
            if pays and not credits.allow(pays, held):
                return
            heapq.heappop(self.queue)
            if pays and credits.taken <= credits.held:
                credits.since = now
            credits.taken += pays
            self.sent[index, step, micro] = [now, pays, False]
            push = servers.Push(self.rank, key, step, micro, task, self.version[index], self.ready[number, index])
            self.thread.do(star.costs.message * key.messages, lambda push=push: star.to_shard(self, push))

    def answered(self, push, held):
        """The shard has the push, and either holds it until it is next in order, or has taken it."""
        at, unit = (push.key.index, push.step, push.micro), (push.step, push.key.units[0])
        if at not in self.sent:
            return
        sent, pays, was_held = self.sent[at]
        copied = self.star.rule.by_units   # then the worker's buffer is free, but the credits are still in use
        if not was_held:
            self.credits.arrived(pays, sent, self.simulation.now)
        if held:
            self.sent[at][2] = True
            self.credits.held += pays
            self.held_of[unit] = self.held_of.get(unit, 0) + pays
        else:
            del self.sent[at]
            self.credits.taken -= pays
            if was_held:
                self.credits.held -= pays
                self.held_of[unit] -= pays
        if not was_held if copied else not held:
            self.taken(push)
        self.pump()

    def taken(self, push):
        number = (push.step + 1) * self.star.every - 1   # the last step of the round
        at = number, push.task
        self.taking[at] -= 1
        if not self.taking[at]:
            del self.taking[at]
            if number in self.steps:
                self.over(self.steps[number], push.task)

    # ---- pulls
    def ask(self, key, want):
        """Sends a pull in a message of its own."""
        star = self.star
        self.thread.do(star.costs.message * key.messages,
                       lambda: star.up(self.rank, key).send(0, lambda: star.shard_of(key).pulled(self.rank, key, want)))

    def weights(self, key, step, version, needed):
        """Weights of a key have arrived: those for step `step`, whose gradients were all complete at `needed`."""
        self.landed[key.index] = max(self.landed[key.index], step)
        self.version[key.index] = version
        self.needed = max(self.needed, needed)
        waiting = self.pulls.pop(key.index, ())
        self.pulls[key.index] = [w for w in waiting if w[0] > step]
        for wanted, at in waiting:
            if wanted <= step:
                entry = self.missing[at]
                entry[0] -= 1
                if not entry[0]:
                    del self.missing[at]
                    entry[1]()


# ---------------------------------------------------------------- the star
class Star:
    """A simulation of `count` steps (for consistencies with a budget: of `count` batches per worker)."""

    def __init__(self, document, place, draws, count):
        self.document, self.place, self.draws, self.count = document, place, draws, count
        self.costs, self.m, self.q = Costs(place.machine), place.m, place.q
        threads = [place.machine.threads] * place.workers + [1] * (len(place.nodes) - place.workers)
        self.simulation = network.Simulation(place.machine, place.nodes, threads, scale_latency=0, devices=place.devices, rates=place.rates)
        self.simulation.burst = place.machine.network["burst_seconds"] * place.machine.rate
        self.tasks, self.every = document.tasks, document.every
        self.rule = servers.Rule.of(document, place.workers)
        self.keys = bundled(document, place)
        self.random = random.Random(draws.seed)
        self._graph()
        self._channels, self._of_units = {}, {}
        self.shards = {}
        for k in self.keys:
            at = k.server, k.shard
            if at not in self.shards:
                self.shards[at] = servers.Shard(self, *at)
            self.shards[at].add(k)
        self.scheduler = servers.Scheduler(self)
        self.policy = servers.policy_of(self)
        self.workers = [Worker(self, r) for r in range(place.workers)]
        self.running, self.ended = place.workers, 0.0

    def _graph(self):
        """The order of tasks. asks: of each pull the push that asks for it, None where it asks by itself; wants: how many steps after its own
        a pull's weights are."""
        tasks = self.tasks
        self.computing = [i for i, t in enumerate(tasks) if t.computes]
        self.after, self.after_next = [[] for _ in tasks], [[] for _ in tasks]
        self.asks, self.wants, self.needs = [None] * len(tasks), [0] * len(tasks), []
        for i, t in enumerate(tasks):
            needs = list(t.needs)
            if t.task == "pull":
                pushed = [j for j in needs if tasks[j].task == "push"]
                self.asks[i] = pushed[0] if pushed and not self.rule.by_units else None
                self.wants[i] = int(not self.rule.by_units)
                needs = [j for j in needs if tasks[j].task != "decide"]   # only the servers wait for the decision
            self.needs.append(needs)
            for j in needs:
                self.after[j].append(i)
            for j in t.needs_previous:
                self.after_next[j].append(i)

    def keys_of(self, units):
        """The keys of these units. A message of several units belongs to the first one: the backward pass computes its gradient last."""
        if units not in self._of_units:
            self._of_units[units] = [k for k in self.keys if k.units[0] in units]
        return self._of_units[units]

    # ---- connections
    def local(self, worker, server):
        """Whether a worker and a server share memory."""
        return self.place.paired and worker == server

    def latency(self, a, b):
        """Seconds of latency between two endpoints."""
        machine, nodes = self.place.machine, self.place.nodes
        return machine.node["latency_seconds"] if nodes[a] == nodes[b] else machine.network["latency_seconds"]

    def _channel(self, source, target, shard, more=0.0):
        at = source, target, shard
        if at not in self._channels:
            drawn = Shares(self.random, self.costs.spread).at if self.costs.spread else None
            self._channels[at] = Channel(self.simulation, source, target, self.latency(source, target) + more, drawn)
        return self._channels[at]

    def up(self, rank, key):
        """The Channel from a worker to a key's shard."""
        return self._channel(rank, self.place.workers + key.server, key.shard)

    def down(self, rank, key):
        """The Channel from a key's shard to a worker."""
        return self._channel(self.place.workers + key.server, rank, key.shard, self.costs.answer)

    def wire(self, rank, key, size):
        """Bytes on the simulated wire, for all merged workers, of one worker's `size` bytes of a key."""
        return 0 if self.local(rank, key.server) else size * self.m * self.place.share

    def to_shard(self, worker, push):
        """Sends a push to its shard."""
        shard, key = self.shard_of(push.key), push.key
        self.up(worker.rank, key).send(self.wire(worker.rank, key, key.push), lambda: shard.pushed(push))

    def to_worker(self, rank, key, size, then):
        """Sends an answer to a worker; size 0: without weights."""
        worker, size = self.workers[rank], self.wire(rank, key, size)
        self.down(rank, key).send(size, lambda: worker.thread.do(self.costs.message * key.messages if size else 0.0, then))

    def control(self, source, target, then, *args):
        """Sends a message without a payload between a rank and the scheduler."""
        self.simulation.after(self.latency(source, target), then, *args)

    def shard_of(self, key):
        return self.shards[key.server, key.shard]

    # ---- the run
    def finished(self, worker):
        """A worker has done its last step."""
        self.running -= 1
        self.ended = self.simulation.now
        self.policy.left(worker)

    def run(self):
        """Runs the simulation. Returns its Happened."""
        self.simulation.run(lambda: [self.policy.begin(w) for w in self.workers])
        policy = self.policy
        return Happened([[(s.number, s.began, s.length, s.parts) for s in w.done] for w in self.workers], [w.skipped for w in self.workers],
                        self.scheduler.closes, self.ended, dict(policy.staleness), policy.pushes, policy.dropped,
                        max(s.thread.seconds for s in self.shards.values()), policy.batches, policy.taken_at, self.simulation.flow_count,
                        [len(members) for members in self.scheduler.fixed.values()], dict(policy.settled), self.count)


@dataclass
class Happened:
    """The record of a simulation. workers: of each the steps (number, began, seconds, parts). closes: when the scheduler closed each step.
    taken: when each batch of the budget was. sets: how many workers each step had, where some may be late. staleness: {updates: pushes of keys}."""
    workers: list
    skipped: list
    closes: list
    seconds: float
    staleness: dict
    pushes: int
    dropped: int
    server_seconds: float
    batches: list
    taken: list
    flows: int
    sets: list
    settled: dict    # the staleness after the first steps
    count: int

    def staleness_of(self, steps):
        """The staleness of so many steps. Steps that were not simulated count like the last simulated ones."""
        more = (steps - self.count) / max(1, self.count - result.WARM_UP) if self.settled else 0
        return {age: round(found + more * self.settled.get(age, 0)) for age, found in self.staleness.items()}


def simulated(document, place, draws, count):
    """Runs a simulation. Called in a child process, since SimGrid has one engine per process."""
    network.LEAF = max(1, network.LEAF // place.width)   # each simulated node stands for `width` nodes, so a switch has fewer of them
    return Star(document, place, draws, count).run()


def run(document, machine, straggle=None, delay=None, steps=20, seed=1, effort=1.0, merges=True):
    """Simulates `steps` steps; fewer, but at least LEAST_STEPS, if they need more than EFFORT x `effort` messages. Returns (Happened, Place, Draws)."""
    rule = servers.Rule.of(document, document.workers)
    place = Place.of(document, machine, merges and not rule.alone and not rule.drops, merges, effort)
    draws = Draws(document, machine, straggle, delay, seed, place.m)
    messages = 2 * len(bundled(document, place)) * place.workers
    varies = draws.trouble.drawn or not rule.everyone or machine.network["share_spread"]
    count = min(steps, max(LEAST_STEPS, int(effort * EFFORT) // messages)) if varies else min(steps, LEAST_STEPS * document.every)
    return network.in_child(simulated, document, place, draws, count), place, draws


# ---------------------------------------------------------------- what it says
def execute(document, machine, straggle, delay, steps, seed, effort=1.0):
    """The result.Outcome of a star."""
    happened, place, draws = run(document, machine, straggle, delay, steps + result.WARM_UP, seed, effort)
    rule, warm = servers.Rule.of(document, document.workers), result.WARM_UP
    notes = list(draws.compute.notes)
    if not machine.server:
        notes.append(f"{machine.path} has no figures of servers: sums and updates take no time")
    counted = [s for steps_of in happened.workers for s in steps_of[warm:]] or [s for steps_of in happened.workers for s in steps_of]
    parts = {part: sum(s[3][part] for s in counted) / len(counted) for part in result.PARTS}
    rate = None
    if rule.alone:
        # The rate is measured while all workers have batches, as in a run's tokens per second.
        taken = happened.taken
        seconds = [s[2] for s in counted]
        skip = min(len(taken) // 2, warm * document.workers)
        rate = (len(taken) - 1 - skip) / (taken[-1] - taken[skip]) / document.workers if len(taken) > skip + 1 else None
    else:
        ends = happened.closes if rule.drops or rule.lead else [s[1] + s[2] for s in happened.workers[0]]
        seconds = [b - a for a, b in zip(ends, ends[1:])][warm - 1:] or [s[2] for s in counted]
        if rule.drops:
            parts = scaled(parts, sum(seconds) / len(seconds))
            rate = sum(happened.sets) / len(happened.sets) / document.workers / (sum(seconds) / len(seconds))   # only the gradients that count
    mean = sum(seconds) / len(seconds)
    staleness = happened.staleness_of(steps + warm) if rule.alone or rule.lead else None
    if rule.drops and happened.pushes:
        notes.append(f"{document.topology}: {100 * happened.dropped / happened.pushes:.0f}% of the pushes arrived too late and were dropped")
    how = f"{happened.flows} messages of {len(counted) // place.workers} steps of {place.workers} workers and {place.servers} servers"
    if place.m > 1 or place.q > 1:
        how += f" (each for {place.m} and {place.q} equal ones)"
    return result.Outcome(seconds, parts, limit(document, machine, draws, happened, parts, mean), how, staleness, rate, notes)


def scaled(parts, mean):
    """Scales the parts of workers' steps, which are longer than the job's steps if workers are late, so that they add up to the mean
    step."""
    total = sum(parts.values())
    return {k: v * mean / total for k, v in parts.items()} if total else parts


def limit(document, machine, draws, happened, parts, mean):
    """The resource that limits a step: the busiest one."""
    sent = sum(k.bytes for k in document.keys) / document.every
    received = sum(k.pull_bytes for k in document.keys) / document.every
    rate, turns = machine.rate, max(1, len(happened.closes) or len(happened.taken) / document.workers)
    of_server, of_shard = {}, {}
    for k in document.keys:
        of_shard[k.server, k.shard] = of_shard.get((k.server, k.shard), 0) + document.workers / document.every
        of_server[k.server] = of_server.get(k.server, 0) + max(k.bytes, k.pull_bytes) * document.workers / document.every
    whole = sum(parts.values()) or mean
    messages = max(of_shard.values(), default=0) * (machine.network["per_message_seconds"] or 0) / mean   # time that a server's thread needs for messages, besides its sums
    shares = {"compute": (parts["forward"] + parts["backward"] + parts["optimizer"]) / whole,
              "worker's link": max(sent, received) * min(machine.per_node, document.workers) / rate / mean,
              "server's link": max(of_server.values(), default=0) / rate / mean,
              "server's update": happened.server_seconds / turns / mean - messages, "latency": messages}
    if draws.trouble.any and parts["wait"] > 0.25 * whole:
        return "straggler"
    best = max(shares, key=shares.get)
    return best if shares[best] > 0.25 else "latency"
