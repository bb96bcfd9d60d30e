"""Simulates a machine's network with SimGrid, flow by flow, together with the computing of its ranks.

`in_child(function, ..)` runs function(..) in a child process, because SimGrid has one engine per process. Inside it, `Simulation` is a clock
with four activities; each calls a function when it has ended:

    flow(src, dst, bytes, then)        bytes from one endpoint to another; flows share links by max-min fairness (shares=2: it counts as two)
    compute(endpoint, seconds, then)   the endpoint computes; if a machine's ranks share cores, they get them in turn (Turns)
    spin(endpoint, seconds, then)      so many seconds pass while the endpoint keeps its cores busy, as an injected delay does
    after(seconds, then)               time passes

`run()` returns when no activity is left. One actor waits for all flows, since an actor per rank would be a thread per rank.

An endpoint is a process with its device: a rank or a server. nodes[i] is the node that endpoint i is on.

    endpoint --- device link --- node --- network link --- switch, fat tree, dragonfly or torus of all nodes

A machine file has the rate that an application reaches (its `efficiency`), measured or published. SimGrid's defaults (LV08: 0.97 of the
bandwidth, 13 times the latency) were fitted to one cluster's TCP over Gigabit Ethernet. So the factors of its model are set as follows:
    network/model CM02, bandwidth-factor 1, latency-factor 1   rates and latencies are those of the file
    network/TCP-gamma 0      no window: a long fat link is filled, as by RDMA, or by several connections
    network/crosstraffic 0   acknowledgements use no bandwidth of the other direction: `efficiency` includes them
    network/weight-S 0       all flows get equal shares of a link

A shaped link (burst_seconds) has a token bucket at each end: after it was idle so many seconds of its rate pass at once (Bucket).

Cores are simulated as a link: a set of C cores has capacity C, and a rank that computes with T threads is a flow of at most rate T on it. At
most C / T ranks compute at the same time. If the machine file has the CPU time of a byte (transport_seconds_per_byte), a flow ends only when
both ends have also computed for its bytes. While a rank polls for a transfer, its set of cores is smaller by waiting_share (`waits` and
`waited`). While more threads compute than there are cores, all are slower by `crowding`.
"""
import collections
import functools
import heapq
import itertools
import math
import multiprocessing
import os
import signal
import traceback

from . import CannotPredict
from .grid import grid

SETTINGS = ("network/model:CM02", "network/TCP-gamma:0", "network/crosstraffic:0", "network/weight-S:0", "network/bandwidth-factor:1",
            "network/latency-factor:1", "contexts/stack-size:256")
WORK = 1e9             # a core is simulated as a link: bytes per second of computing
LEAF = 32              # the most nodes of a fat tree's lowest switch
WHOLE_FLOWS = 20000    # the most flows of an all-to-all that is simulated whole; for a larger one a sample of its shifts is simulated
SHIFTS = 12
PROBE = 1 << 20        # bytes of a flow when a pattern's rate is determined


# ---------------------------------------------------------------- a child process
def work(pipe, function, args):
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        pipe.send((True, function(*args)))
    except CannotPredict as e:
        pipe.send((False, e))
    except BaseException:   # a programming error: the trace is printed, and nothing is sent through the pipe
        traceback.print_exc()
        os._exit(1)
    pipe.close()
    os._exit(0)   # skips SimGrid's exit handler, which would wait for actors


def in_child(function, *args):
    """Runs function(*args) in a forked process. Returns its result, or raises its CannotPredict."""
    grid()   # reports a missing SimGrid before the fork
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=work, args=(theirs, function, args), daemon=True)
    child.start()
    theirs.close()
    try:
        good, result = ours.recv()
    except EOFError:
        child.join()
        raise CannotPredict(f"the simulation ended with status {child.exitcode}; its own error is above") from None
    finally:
        if child.is_alive():
            child.join(1)
        ours.close()
    if not good:
        raise result
    return result


# ---------------------------------------------------------------- the platform
def factors(count, dimensions):
    """The smallest nearly cubic shape with at least `count` positions. No size is 1, which a torus does not allow."""
    sizes = []
    for left in range(dimensions, 0, -1):
        sizes.append(math.ceil(round(count ** (1 / left), 9)))
        count = math.ceil(count / sizes[-1])
    return [size for size in sizes if size > 1]


def fat_tree_shape(nodes, oversubscription):
    """SimGrid's (levels, down, up, parallel) of a fat tree with at least so many leaves: each lowest switch has up to LEAF nodes, and one
    link to each of LEAF / oversubscription upper switches."""
    below = min(LEAF, nodes)
    pods = math.ceil(nodes / below)
    if pods == 1:
        return 1, [below], [1], [1]
    return 2, [below, pods], [1, max(1, round(below / oversubscription))], [1, 1]


class Platform:
    """Builds the platform. nodes: the node of each endpoint. threads: of each endpoint's computing; None: the machine's. scale_latency 0:
    without latencies. devices, rates: {endpoint: bytes per second} and {node: bytes per second} of links with another rate than the
    machine's; rates only for a network with one switch."""

    def __init__(self, machine, nodes, threads=None, scale_latency=1, devices=None, rates=None):
        self.grid, self.machine, self.nodes, self.scale = grid(), machine, list(nodes), scale_latency
        self.devices, self.rates = devices or {}, rates or {}
        self.engine = self.grid.sg.Engine(["predict", *("--cfg=" + setting for setting in SETTINGS), "--log=root.thres:critical", "--log=no_loc"])
        self.root = self.grid.root(self.engine)
        self.endpoints = [None] * len(self.nodes)
        self.by_node = {}
        for endpoint, node in enumerate(self.nodes):
            self.by_node.setdefault(node, []).append(endpoint)
        self.up = self.grid.sg.LinkInRoute.Direction.UP
        self.order, self.idle = sorted(self.by_node), itertools.count()
        self.zones = any(len(inside) > 1 for inside in self.by_node.values())
        self._network()
        self.cores = self._cores(threads)
        self.root.seal()

    def _link(self, zone, name, rate, latency):
        link = self.grid.make(zone, "split_duplex_link", name, rate)
        link.set_latency(latency * self.scale)
        link.seal()
        return link

    def _node(self, parent, node):
        """Makes a node's zone. If every node has one endpoint, that is the zone's entry; else the entry is a router to which the endpoints
        have links. node: None for an unused position."""
        grid, inside = self.grid, self.by_node.get(node, [])
        zone = grid.star(parent, f"node{node}" if node is not None else f"idle{next(self.idle)}")
        way = None
        if self.zones or not inside:
            way = grid.make(zone, "router", zone.name + ".way")
        for endpoint in inside:
            host = self.endpoints[endpoint] = grid.make(zone, "host", f"e{endpoint}", WORK)
            if way is None:
                break
            rate = self.devices.get(endpoint, self.machine.node["bytes_per_second"])
            link = self._link(zone, f"device{endpoint}", rate, self.machine.node["latency_seconds"] / 2)
            grid.route(zone, host, link, self.up)
        grid.enter(zone, way or self.endpoints[inside[0]].netpoint)
        zone.seal()
        return zone

    def _network(self):
        network, rate = self.machine.network, self.machine.rate
        latency, count, kind = network["latency_seconds"] / 2, len(self.order), network["kind"]   # a route through one switch has two links
        if kind == "switch" or count == 1:
            zone = self.grid.star(self.root, "network")
            for node in self.order:
                link = self._link(zone, f"network{node}", self.rates.get(node, rate), latency)
                self.grid.route(zone, self._node(zone, node), link, self.up)
            zone.seal()
            return

        # SimGrid numbers the leaves of a zone itself, and not always from 0, so they are taken in order. Leaves without a node are unused.
        nodes = itertools.chain(self.order, itertools.repeat(None))
        if kind == "fat_tree":
            kind, shape = "fatTree", fat_tree_shape(count, network["oversubscription"])
        elif kind == "torus":
            shape = [factors(count, 3)]
        else:
            # Groups of 4 chassis with 4 routers of 2 nodes, as in a small Cray XC; more nodes get more groups.
            shape = (max(1, math.ceil(count / 32)), 4), (4, 4), (4, 1), 2
        self.grid.cluster(self.root, kind, shape, lambda zone: self._node(zone, next(nodes)), rate, latency * self.scale).seal()

    def _cores(self, threads):
        """(start, end, threads, set of cores) of each endpoint's computing, which is simulated as a flow from start to end: over a link of
        its own, and over the link of its set of cores, which all share. None: nothing is shared."""
        zone, shared = None, {}
        found = [None] * len(self.nodes)
        for endpoint, node in enumerate(self.nodes):
            number = self.machine.cores_of(node)
            if number is None:
                continue
            zone = zone or self.grid.star(self.root, "cores")
            if number not in shared:
                shared[number] = self._way(zone, f"cores{number}", self.machine.cores["count"])
            used = min(threads[endpoint] if threads else self.machine.threads, self.machine.cores["count"])
            start = self._way(zone, f"threads{endpoint}", used, self.grid.sg.Link.SharingPolicy.FATPIPE)[0]
            found[endpoint] = start, shared[number][0], used, shared[number][1]
        if zone is not None:
            zone.seal()
        return found

    def _way(self, zone, name, cores, policy=None):
        """Makes a host with a link that stands for so many cores. Returns (host, link)."""
        host, link = self.grid.make(zone, "host", name, WORK), self.grid.make(zone, "link", name + ".link", cores * WORK)
        link.set_latency(0)
        if policy is not None:
            link.set_sharing_policy(policy, None)
        link.seal()
        self.grid.route(zone, host, link)
        return host, link


# ---------------------------------------------------------------- turns
class Turns:
    """A set of cores, which endpoints get in the order of their requests. An endpoint keeps its core as long as it requests the next work
    when one ends: a rank's operations are queued, and its thread does not sleep between them. anew: the next work is of another thread,
    which queues behind the others."""

    def __init__(self, cores):
        self._free, self._waiting, self._at = cores, collections.deque(), collections.Counter()

    def ask(self, endpoint, begin, anew=False):
        if self._at[endpoint] and not (anew and self._waiting):
            self._at[endpoint] += 1
            begin()
        elif self._free:
            self._free -= 1
            self._at[endpoint] += 1
            begin()
        else:
            self._waiting.append((endpoint, begin))

    def over(self, endpoint, then):
        then()
        self._at[endpoint] -= 1
        if self._at[endpoint]:
            return
        self._free += 1
        while self._free and self._waiting:
            self.ask(*self._waiting.popleft())


# ---------------------------------------------------------------- shaped links
class Bucket:
    """The token bucket of a shaped link. Tokens (bytes) arrive at the link's rate, and bytes that move consume them. A flow moves as many
    bytes as there are tokens at once, and the rest at the rate."""

    def __init__(self, size, rate):
        self._size, self._rate, self._tokens, self._since, self._flows = size, rate, size, 0.0, []   # flows: [flow, bytes left]

    def filled(self, now):
        """The tokens at `now`."""
        moved = 0.0
        for entry in self._flows:
            left = entry[0].remaining
            moved += entry[1] - left
            entry[1] = left
        self._flows = [entry for entry in self._flows if entry[1] > 0]
        self._tokens = max(0.0, min(self._size, self._tokens + (now - self._since) * self._rate - moved))
        self._since = now
        return self._tokens

    def take(self, size, flows):
        self._tokens -= size
        self._flows += [[flow, flow.remaining] for flow in flows]


# ---------------------------------------------------------------- the clock
class Simulation:
    """The clock that the head of this file describes. run(begin) calls begin() to start the first activities, and returns when no activity
    is left."""

    def __init__(self, machine, nodes, threads=None, scale_latency=1, devices=None, rates=None):
        self.machine, self.platform = machine, Platform(machine, nodes, threads, scale_latency, devices, rates)
        self.sg, self.engine = self.platform.grid.sg, self.platform.engine
        self.flows, self.thens = [], []
        self.timers, self.numbers = [], itertools.count()
        self.now = 0.0
        self.flow_count = 0
        cores = machine.cores or {}
        spends = cores.get("transport_seconds_per_byte", 0), cores.get("transport_seconds_per_message", 0)
        self.transport = spends if any(spends) and any(self.platform.cores) else None
        self.burst = machine.network["burst_seconds"] * machine.rate * scale_latency   # bytes
        self.buckets = collections.defaultdict(lambda: Bucket(self.burst, machine.rate))   # by (node, way)
        self.waiting_share, self.crowding = cores.get("waiting_share", 0), cores.get("crowding", 1)
        self.turns = {}
        self.waiting, self.computing, self.spinning = {}, {}, {}   # per set of cores: transfers that a rank waits for; threads that compute; threads that spin

    def flow(self, src, dst, size, then, *args, shares=1):
        if size < 1 or src == dst:
            self.after(0, then, *args)
            return
        nodes = self.platform.nodes[src], self.platform.nodes[dst]
        apart = nodes[0] != nodes[1]
        if self.transport and apart:
            then, args = self._parts(3, then, args), ()
            for end in (src, dst):
                self._compute(end, self.transport[0] * size / 2 + self.transport[1] / 2, 1, then)
        buckets = [self.buckets[link] for link in ((nodes[0], "out"), (nodes[1], "in"))] if self.burst and apart else []
        if buckets:
            free = min(size, *(bucket.filled(self.now) for bucket in buckets))
            size -= free
            then, args = functools.partial(self._left, buckets, then, args), ()
        ends = self.platform.endpoints
        if shares > 1:
            then, args = self._parts(shares, then, args), ()
        flows = [self.sg.Comm.sendto_async(ends[src], ends[dst], max(1, int(size / shares))) for _ in range(shares)]
        self.flows += flows
        self.thens += [(then, args)] * shares
        for bucket in buckets:
            bucket.take(free, flows)
        self.flow_count += 1

    @staticmethod
    def _parts(count, then, args):
        """A function to be called `count` times. Its last call calls then(*args)."""
        left = [count]

        def one():
            left[0] -= 1
            if not left[0]:
                then(*args)
        return one

    def _left(self, buckets, then, args):
        for bucket in buckets:
            bucket.filled(self.now)
        then(*args)

    def compute(self, endpoint, seconds, then, *args, anew=False):
        core = self.platform.cores[endpoint]
        if core is None or seconds <= 0:
            self._compute(endpoint, seconds, 1, then, *args)
            return
        turns = self.turns.setdefault(core[3].name, Turns(max(1, self.machine.cores["count"] // core[2])))
        self._change(self.computing, core, core[2])
        then = functools.partial(self._ended, self.computing, core, then, args)
        turns.ask(endpoint, functools.partial(self._compute, endpoint, seconds, core[2], turns.over, endpoint, then), anew)

    def spin(self, endpoint, seconds, then, *args):
        """The endpoint computes for so many seconds of simulated time, however few cores it gets."""
        core = self.platform.cores[endpoint]
        if core is not None and seconds > 0:
            self._change(self.spinning, core, core[2])
            then, args = functools.partial(self._ended, self.spinning, core, then, args), ()
        self.after(seconds, then, *args)

    def _ended(self, counts, core, then, args):
        self._change(counts, core, -core[2])
        then(*args)

    def _change(self, counts, core, change):
        """Changes a count of a set of cores, and sets the number of cores that are left for computing."""
        link, count = core[3], self.machine.cores["count"]
        counts[link.name] = counts.get(link.name, 0) + change
        computing, spinning = self.computing.get(link.name, 0), self.spinning.get(link.name, 0)
        left = max(count / 2, count - self.waiting_share * self.waiting.get(link.name, 0))   # ranks that poll get at most half of the cores, since the kernel shares cores fairly
        if spinning:
            left -= spinning * min(1, left / (max(1, computing) + spinning))   # if no rank computes, the transport still needs cores
        link.set_bandwidth(WORK * left / (self.crowding if computing + spinning > count else 1))

    def _compute(self, endpoint, seconds, threads, then, *args):
        core = self.platform.cores[endpoint]
        if core is None or seconds <= 0:
            self.after(seconds, then, *args)
            return
        self.flows.append(self.sg.Comm.sendto_async(core[0], core[1], max(1, int(seconds * threads * WORK))))
        self.thens.append((then, args))

    def waits(self, endpoint, change=1):
        """The endpoint waits for one more transfer, and polls while it waits."""
        core = self.platform.cores[endpoint]
        if core is not None and self.waiting_share:
            self._change(self.waiting, core, change)

    def waited(self, endpoint):
        self.waits(endpoint, -1)

    def after(self, seconds, then, *args):
        heapq.heappush(self.timers, (self.now + max(0, seconds), next(self.numbers), then, args))

    def run(self, begin, *args):
        self.platform.grid.actor(self.engine, self._any_host(), "clock", self._turn, begin, args)
        self.engine.run()
        return self.now

    def _any_host(self):
        return next(host for host in self.platform.endpoints if host is not None)

    def _turn(self, begin, args):
        begin(*args)
        while self.flows or self.timers:
            self._ring()
            if self.flows:
                self._wait()
            elif self.timers:
                self.sg.this_actor.sleep_until(self.timers[0][0])
                self.now = max(self.engine.clock, self.timers[0][0])
        self.now = max(self.now, self.engine.clock)

    def _ring(self):
        """Calls all functions that are due. These may add others that are due at once."""
        while self.timers and self.timers[0][0] <= self.now + 1e-12:
            _, _, then, args = heapq.heappop(self.timers)
            then(*args)

    def _wait(self):
        if not self.platform.grid.wait_any(self.flows, max(self.timers[0][0] - self.now, 1e-9) if self.timers else None):
            self.now = max(self.engine.clock, self.timers[0][0])
            return
        self.now = self.engine.clock
        done = [i for i, flow in enumerate(self.flows) if flow.remaining <= 0]
        thens = [self.thens[i] for i in done]
        for i in reversed(done):
            del self.flows[i], self.thens[i]
        for then, args in thens:
            then(*args)
