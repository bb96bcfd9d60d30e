"""Simulates the servers of a star: shards, the scheduler, and the consistencies, each with the program's own rules (ps/server/push_*.c,
ps/agree/). star.py has the workers and the connections.

    InOrder      sync, ssp, resident units: gradients are added in worker order; a frame that comes early is held
    Set          backup, quorum: gradients are held until the scheduler has fixed the step's workers
    OnArrival    async: each push, or the mean of K, is an update when it arrives; one budget of batches for all workers
    Ringleader   async with a table by worker; the scheduler fixes one order of pushes for all keys
"""
import math
import os
from collections import Counter
from dataclasses import dataclass

from . import CannotPredict, result
from .queues import Thread

SCHEDULER_SECONDS = 30e-6   # per message: docs/results/2026-11-27-cluster.md
FP32 = 4                    # bytes


def keeps_two_units(document):
    """Whether workers keep only two units (resident units). Then pulls do not follow pushes, and each micro-batch is pushed."""
    return any(t.task == "pull" and not any(document.tasks[j].task == "push" for j in t.needs) for t in document.tasks)


@dataclass(frozen=True)
class Rule:
    """A consistency and its parameters, from the dry run."""
    policy: type          # the Policy of its servers, unless a step may close without late workers (policy_of)
    workers: int
    needs: int            # the number of pushes after which a step is complete
    exact: bool
    grace: float
    lead: int             # steps that may be open besides the oldest one
    lag: int              # earlier steps whose outcome a worker need not have when it begins a step
    commit_waits: bool    # an update waits for the scheduler's decision about the step
    per_update: int
    max_lead: int
    max_staleness: int    # None: no limit
    oldest: bool
    by_units: bool
    micro: int
    credit_bytes: float

    @staticmethod
    def of(document, workers):
        c = document.step["consistency"]
        if c["policy"] not in POLICIES:
            raise CannotPredict(f"ps:{c['name']}: its servers' policy, {c['policy']}, has no simulation: choose a topology whose policy is "
                                f"{' or '.join(POLICIES)}, or write a class for it in {os.path.relpath(__file__)}")
        units = keeps_two_units(document)
        return Rule(POLICIES[c["policy"]], workers, min(c["needs"], workers), c["exact"], (c.get("grace_ms") or 0) / 1e3, c["lead"], c["lag"], c.get("commit") == "step",
                    c.get("pushes_per_update") or 1, c.get("max_lead") or 0, c.get("max_staleness"),
                    c.get("read") == "oldest", units, document.micro_batches if units else 1, c.get("credit_bytes") or 0)

    @property
    def alone(self):
        """Whether each push is an update of its own, so that no worker waits for the end of a step."""
        return issubclass(self.policy, Alone)

    @property
    def drops(self):
        """Whether a step may close without late workers."""
        return not self.alone and self.needs < self.workers

    @property
    def everyone(self):
        """Whether each step waits for all workers."""
        return not self.alone and not self.drops and not self.lead


@dataclass(frozen=True)
class Push:
    """A push. version: of the weights that it was computed on; ready: when the gradient was complete."""
    worker: int
    key: object
    step: int
    micro: int
    task: int
    version: int
    ready: float


class KeyState:
    """A shard's state of a key."""

    def __init__(self, key, workers):
        self.key, self.step, self.version = key, 0, 0
        self.next, self.micro = 0, 0                 # the worker and micro-batch that are added next
        self.held = {}                               # (step, micro, worker): Push
        self.pushed = [0] * workers                  # per worker: steps whose pushes were taken
        self.pulls = {}                              # {waiting worker: the step whose weights it wants}
        self.ready = 0.0                             # when the last gradient in the weights was complete
        self.ready_of = {}                           # {step: the same}
        self.complete = False                        # its sum is complete, and waits for the decision
        self.sum = []                                # pushes of a mean that is not complete
        self.slowest = 0                             # with max_lead: the smallest number of a worker's pushes, without those of an incomplete mean


class Shard:
    """A thread of a server and its keys."""

    def __init__(self, star, server, shard):
        self.star, self.server, self.number = star, server, shard
        self.endpoint = star.place.workers + server
        self.thread = Thread(star.simulation, self.endpoint)
        self.keys = {}
        self.complete = Counter()   # {step: number of keys whose sum is complete}
        self.arrived = Counter()    # {(step, worker): number of keys that have arrived}
        self.sets = {}              # {step: the workers whose gradients count}

    def add(self, key):
        self.keys[key.index] = KeyState(key, self.star.place.workers)

    # ---- costs, in this thread's seconds
    def adds(self, key, count=1):
        return count * key.push * self.star.costs.sum_byte * self.star.m / self.star.q

    def moves(self, size):
        """Seconds to read and write so many bytes of state, at the rate at which a sum reads gradients."""
        return size * self.star.costs.sum_byte / self.star.q

    def updates(self, key):
        return key.elements * self.star.costs.update_element / self.star.q

    # ---- messages
    def pushed(self, push):
        """A push has arrived, and with it the pull that it contains."""
        def take():
            state = self.keys[push.key.index]
            if not self.star.rule.by_units:
                state.pulls[push.worker] = push.step + 1
            self.star.policy.push(self, state, push)
        self.thread.do(self.star.costs.message * push.key.messages * self.star.m / self.star.q, take)

    def pulled(self, rank, key, want):
        """A pull in its own message has arrived."""
        def take():
            state = self.keys[key.index]
            state.pulls[rank] = want
            self.answer(state, rank)
        self.thread.do(0.0, take)

    def acknowledge(self, push, held=False):
        worker = self.star.workers[push.worker]
        self.star.to_worker(push.worker, push.key, 0, lambda: worker.answered(push, held))

    def answer(self, state, rank):
        """Answers a worker's pull if the consistency allows it."""
        policy, want = self.star.policy, state.pulls.get(rank)
        if want is None or not policy.may_read(state, rank, want):
            return
        del state.pulls[rank]
        step, version, ready = policy.reads(state, rank, want)
        worker, key = self.star.workers[rank], state.key
        cost = self.star.costs.reply * key.messages * self.star.m / self.star.q
        self.thread.first(cost, lambda: self.star.to_worker(rank, key, key.pull, lambda: worker.weights(key, step, version, ready)))

    def answer_all(self, state):
        for rank in sorted(state.pulls):
            self.answer(state, rank)


class Scheduler:
    """The scheduler, one thread: receives reports and sums, fixes sets of workers, hands out batches."""

    def __init__(self, star):
        self.star, self.endpoint = star, star.place.workers + star.place.servers
        self.thread = Thread(star.simulation, self.endpoint)
        self.closes = []           # when each step was closed
        self.reports, self.sums = Counter(), Counter()
        self.arrived = {}          # {(step, worker): number of shards that have all its keys}
        self.reported = set()      # {(step, worker)} that have reported
        self.whole = {}            # {step: workers that have reported it and whose keys have arrived at all shards}
        self.fixed = {}            # {step: the set of workers that is fixed}
        self.grace = set()         # steps in their grace period

    def tell(self, endpoint, then, merged):
        """Sends a message to the scheduler from each of the ranks that an endpoint stands for."""
        self.star.control(endpoint, self.endpoint, lambda: self.thread.do(SCHEDULER_SECONDS * merged, then))

    def report(self, worker, step):
        def take():
            self.reports[step] += 1
            self.reported.add((step, worker.rank))
            self._counts(worker.rank, step)
            self._advance(step)
        self.tell(worker.endpoint, take, self.star.m)

    def sum(self, shard, step):
        def take():
            self.sums[step] += 1
            self._advance(step)
        self.tell(shard.endpoint, take, self.star.q)

    def _advance(self, step):
        """Decides and closes the step when every report and every shard's sum has arrived."""
        rule, star = self.star.rule, self.star
        if rule.drops:
            self.fix(step)
        if self.sums[step] < len(star.shards) or (not rule.drops and self.reports[step] < star.place.workers) or len(self.closes) != step:
            return
        self.closes.append(star.simulation.now)
        if rule.commit_waits:
            for shard in star.shards.values():
                star.control(self.endpoint, shard.endpoint, lambda s=shard: s.thread.do(0.0, lambda: star.policy.decided(s, step)))
        for worker in star.workers:
            star.control(self.endpoint, worker.endpoint, lambda w=worker: star.policy.closed(w, step))
        self._advance(step + 1)

    # ---- sets of workers
    def has_arrived(self, shard, worker, step):
        def take():
            self.arrived[step, worker] = self.arrived.get((step, worker), 0) + 1
            self._counts(worker, step)
            self._advance(step)
        self.tell(shard.endpoint, take, self.star.q)

    def _counts(self, worker, step):
        if (step, worker) in self.reported and self.arrived.get((step, worker), 0) == len(self.star.shards):
            self.whole.setdefault(step, []).append(worker)

    def fix(self, step):
        """Fixes the set of a step when it has enough workers, and the grace period is over or no worker is missing."""
        star, rule = self.star, self.star.rule
        if step in self.fixed or step != len(self.closes):
            return
        count, whole = star.place.workers, self.whole.get(step, ())
        if len(whole) < rule.needs:
            return
        if rule.grace and len(whole) < count and step not in self.grace:
            self.grace.add(step)
            star.simulation.after(rule.grace, lambda: self.thread.do(0.0, lambda: self.settle(step)))
            return
        if step in self.grace and len(whole) < count:
            return
        self.settle(step)

    def settle(self, step):
        star, rule = self.star, self.star.rule
        if step in self.fixed:
            return
        count, whole = star.place.workers, self.whole[step]
        if rule.exact:   # if more are complete at the same time, the first ones count, starting with worker (step mod N)
            whole = sorted(whole, key=lambda w: (w - step) % count)[:rule.needs]
        self.fixed[step] = frozenset(whole)
        for shard in star.shards.values():
            star.control(self.endpoint, shard.endpoint, lambda s=shard: s.thread.do(0.0, lambda: star.policy.fixed(s, step)))


# ---------------------------------------------------------------- consistencies
class Policy:
    """The parts that all consistencies share."""

    def __init__(self, star):
        self.star, self.rule = star, star.rule
        self.staleness, self.settled = Counter(), Counter()   # of all pushes; of all pushes after the first steps
        self.pushes = self.dropped = 0
        self.batches, self.taken_at = [0] * star.place.workers, []
        self.reported = {}         # {step: when the last worker that it needs had computed it}

    # ---- the workers' loop
    def begin(self, worker):
        worker.plan(0)

    def left(self, worker):
        """A worker has done its last step."""

    def stepped(self, worker, step):
        """The worker has computed a step: it sends its report, and continues when enough earlier steps are closed."""
        if not step.exchanges:
            worker.end(step)
            worker.plan(step.number + 1)
            return
        if step.round not in self.star.scheduler.fixed:
            self.reported[step.round] = self.star.simulation.now
        self.star.scheduler.report(worker, step.round)
        worker.ended = step
        self.go_on(worker)

    def go_on(self, worker):
        step = worker.ended
        if step and worker.closed >= step.round - self.rule.lag:
            worker.ended = None
            worker.end(step, self.reported.get(step.round - self.rule.lag, 0.0))
            worker.plan(step.number + 1)

    def closed(self, worker, step):
        worker.closed = max(worker.closed, step)
        self.go_on(worker)

    def count(self, age, key, step, pushes=1):
        """Counts the staleness of a push of a key: `age` updates. step: the worker's."""
        self.staleness[age] += pushes * key.messages
        if step >= result.WARM_UP:
            self.settled[age] += pushes * key.messages


class InOrder(Policy):
    """All workers' gradients are added in worker order. The weights that a worker reads are at most `lead` steps old."""

    def push(self, shard, state, push):
        self.pushes += push.key.messages
        self.count(push.step - push.version, push.key, push.step)
        state.held[push.step, push.micro, push.worker] = push
        state.ready_of[push.step] = max(state.ready_of.get(push.step, 0.0), push.ready)
        if push.micro == self.rule.micro - 1:
            state.pushed[push.worker] = push.step + 1
        shard.answer(state, push.worker)
        if (push.step, push.micro, push.worker) == (state.step, state.micro, state.next):
            self.advance(shard, state)
        elif self.rule.by_units or not self.star.local(push.worker, push.key.server):   # else the frame stays in shared memory
            shard.acknowledge(push, held=True)

    def advance(self, shard, state):
        """Adds the gradients that are next in order."""
        if state.complete:
            return
        run = []
        while (state.step, state.micro, state.next + len(run)) in state.held:
            run.append(state.held.pop((state.step, state.micro, state.next + len(run))))
        if not run:
            return
        state.next += len(run)

        def added():
            for push in run:
                shard.acknowledge(push)
            if state.next < self.star.place.workers:
                return
            state.next = 0
            state.micro += 1
            if state.micro < self.rule.micro:
                self.advance(shard, state)
                return
            state.micro = 0
            self.summed(shard, state)
        shard.thread.first(shard.adds(state.key, len(run)), added)

    def summed(self, shard, state):
        """A key's sum of the step is complete."""
        step = state.step
        state.complete = True
        shard.complete[step] += 1
        if shard.complete[step] == len(shard.keys):
            self.star.scheduler.sum(shard, step)
        if not self.rule.commit_waits:
            shard.thread.first(shard.updates(state.key), lambda: self.commit(shard, state))

    def decided(self, shard, step):
        for state in shard.keys.values():
            if state.complete and state.step == step:
                shard.thread.first(shard.updates(state.key), lambda s=state: self.commit(shard, s))

    def commit(self, shard, state):
        state.ready = state.ready_of.pop(state.step, 0.0)
        state.complete = False
        state.step += 1
        state.version += 1
        shard.answer_all(state)
        self.advance(shard, state)

    def may_read(self, state, rank, want):
        return state.pushed[rank] >= want and state.step >= want - self.rule.lead

    def reads(self, state, rank, want):
        version = max(0, want - self.rule.lead) if self.rule.oldest else min(state.step, want)
        return want, version, state.ready


class Set(InOrder):
    """Gradients are held until the scheduler has fixed the step's workers; later ones are dropped."""

    def push(self, shard, state, push):
        key, star = push.key, self.star
        self.pushes += key.messages
        state.pushed[push.worker] = max(state.pushed[push.worker], push.step + 1)
        shard.acknowledge(push)
        if push.step < state.step or push.step in shard.sets:
            self.dropped += key.messages * star.m
            shard.answer(state, push.worker)
            return
        state.held[push.step, 0, push.worker] = push
        state.ready_of[push.step] = max(state.ready_of.get(push.step, 0.0), push.ready)
        shard.arrived[push.step, push.worker] += 1
        if shard.arrived[push.step, push.worker] == len(shard.keys):
            star.scheduler.has_arrived(shard, push.worker, push.step)

    def fixed(self, shard, step):
        members = self.star.scheduler.fixed[step]
        shard.sets[step] = members
        for state in shard.keys.values():
            here = [w for w in range(self.star.place.workers) if state.held.pop((step, 0, w), None)]
            self.dropped += sum(w not in members for w in here) * state.key.messages
            self.count(0, state.key, step, len(members))
            shard.thread.first(shard.adds(state.key, len(members)), lambda s=state: self.summed(shard, s))

    def advance(self, shard, state):
        pass

    def may_read(self, state, rank, want):
        return state.step >= want

    def reads(self, state, rank, want):
        state.pushed[rank] = max(state.pushed[rank], state.step)
        return max(want, state.step), state.step, state.ready


class Alone(Policy):
    """Workers share one budget of batches, and do not wait for the end of steps."""

    def begin(self, worker):
        self.take(worker, 0)

    def take(self, worker, number):
        """Asks the scheduler for the next batch."""
        scheduler, star = self.star.scheduler, self.star

        def asked():
            if len(self.taken_at) < star.count * star.place.workers:
                self.taken_at.append(star.simulation.now)
                self.batches[worker.rank] += 1
                star.control(scheduler.endpoint, worker.endpoint, lambda: worker.plan(number))
            else:
                star.control(scheduler.endpoint, worker.endpoint, lambda: star.finished(worker))
        scheduler.tell(worker.endpoint, asked, star.m)

    def stepped(self, worker, step):
        worker.end(step)
        self.take(worker, step.number + 1)

    def decided(self, shard, step):
        """Never called: these consistencies have no decision about a step."""


class OnArrival(Alone):
    """Each push, or the mean of K, is an update when it arrives."""

    def __init__(self, star):
        super().__init__(star)
        self.gone = set()

    def push(self, shard, state, push):
        key, rule = push.key, self.rule
        behind = state.version - push.version
        age = -(-behind // rule.per_update)
        self.pushes += key.messages
        used = rule.max_staleness is None or age <= rule.max_staleness
        if used:
            self.count(age, key, push.step)
        else:
            self.dropped += key.messages
        state.ready = max(state.ready, push.ready)

        def applied():
            state.pushed[push.worker] = push.step + 1
            shard.acknowledge(push)
            self.opens(shard, state, push.worker)
        cost = 0.0
        if used and rule.per_update == 1:
            cost = shard.updates(key)
            state.version += 1
        elif used:
            state.sum.append(push.worker)
            cost = shard.adds(key)
            if len(state.sum) >= rule.per_update or self.gone and len(state.sum) >= self.star.running:
                cost += shard.updates(key)
                state.version += len(state.sum)
                state.sum.clear()
        shard.thread.first(cost, applied)

    def may_read(self, state, rank, want):
        if state.pushed[rank] < want:
            return False
        lead = self.rule.max_lead
        return not lead or rank in self.gone or state.slowest >= want - lead

    def opens(self, shard, state, worker):
        """Answers the pulls that are possible after a worker's push: its own and, if the worker was the slowest, those of others."""
        if self.slower(state):
            shard.answer_all(state)
        else:
            shard.answer(state, worker)

    def slower(self, state):
        """Updates state.slowest, the pushes of the slowest worker that still pushes. Returns whether it has grown."""
        if not self.rule.max_lead:
            return False
        before, open_pushes = state.slowest, Counter(state.sum)
        state.slowest = min((pushed - open_pushes[w] for w, pushed in enumerate(state.pushed) if w not in self.gone), default=math.inf)
        return state.slowest > before

    def reads(self, state, rank, want):
        return want, state.version, state.ready

    def left(self, worker):
        self.gone.add(worker.rank)
        for shard in self.star.shards.values():
            for state in shard.keys.values():
                self.slower(state)
                shard.answer_all(state)


class Ringleader(Alone):
    """A table with a row of gradients per worker (ps/server/push_ringleader.c). The scheduler fixes one order of pushes for all keys."""

    def __init__(self, star):
        super().__init__(star)
        self.shards_of = Counter()     # {(worker, step): number of shards that have all its keys}
        n = star.place.workers
        self.tables = {}               # {key: the counts of its table}
        self.fresh = lambda: {"count": [0] * n, "updated": [False] * n, "model": [0] * n, "updates": 0, "done": 0}

    def push(self, shard, state, push):
        state.held[push.worker] = push
        shard.acknowledge(push)
        shard.arrived[push.step, push.worker] += 1
        if shard.arrived[push.step, push.worker] < len(shard.keys):
            return
        star = self.star

        def take():
            self.shards_of[push.worker, push.step] += 1
            if self.shards_of[push.worker, push.step] == len(star.shards):
                for other in star.shards.values():
                    star.control(star.scheduler.endpoint, other.endpoint, lambda s=other: s.thread.do(0.0, lambda: self.ordered(s, push.worker)))
        star.scheduler.tell(shard.endpoint, take, star.q)

    def ordered(self, shard, worker):
        """The scheduler has given the worker's push the next position in the order."""
        for state in shard.keys.values():
            push = state.held.pop(worker)
            t = self.tables.setdefault(push.key.index, self.fresh())
            n = self.star.place.workers
            first_use = t["updates"] - t["done"] + n if t["updated"][worker] else t["updates"]
            self.count(first_use - t["model"][worker], push.key, push.step)
            self.pushes += push.key.messages
            state.ready = max(state.ready, push.ready)
            # The gradient is widened and added to the worker's row of fp32.
            row = FP32 * push.key.elements
            cost = shard.moves(push.key.push + row * (2 if t["count"][worker] else 1))
            t["count"][worker] += 1
            if not t["updated"][worker] and all(u or c for u, c in zip(t["updated"], t["count"])):
                # The worker's row is added to the sum of the rows before it. The sum is copied, and each row without an update is added to
                # the copy; the direction is rounded; the worker gets a copy of the new weights.
                others = n - 1 - t["done"]
                cost += shard.moves(row * ((3 if t["done"] else 2) + 2 + 3 * others + 2) + 2 * push.key.pull) + shard.updates(push.key)
                t["updated"][worker], t["count"][worker] = True, 0
                t["updates"] += 1
                t["done"] += 1
                t["model"][worker] = t["updates"]
                if t["done"] == n:
                    t["updated"], t["done"] = [False] * n, 0

            def taken(state=state, push=push):
                state.pushed[worker] = push.step + 1
                shard.answer(state, worker)
            shard.thread.first(cost, taken)

    def may_read(self, state, rank, want):
        return state.pushed[rank] >= want

    def reads(self, state, rank, want):
        return want, 0, state.ready


# {the program's name of a policy (PUSH_POLICIES in ps/job/consistency.h): its Policy}
POLICIES = {"in_order": InOrder, "on_arrival": OnArrival, "ringleader": Ringleader}


def policy_of(star):
    """The Policy for the star's consistency."""
    return Set(star) if star.rule.drops else star.rule.policy(star)
