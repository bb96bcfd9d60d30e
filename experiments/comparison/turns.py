"""Lets runs take turns: all are started, and each trains for a slice of steps while the others pause between two steps, in a new random
order each round. A change of the machine's speed affects all runs of a round, so the ratios within a round are not distorted.

The gate is a file that every rank maps (shared/time/gate.h has its layout). A slice's rate ignores the first step after the gate,
which begins with cold caches and an empty pipeline. The rate is the tokens from the end of a worker's first step to the end of its
last one, divided by that time, for the workers that set the job's pace (rate_of)."""
import ctypes
import json
import math
import mmap
import os
import platform
import random
import statistics
import time

import regular

from . import noise

FILE = "turns.json"
VARIABLE = "STARRING_GATE"
SEATS = 1024
SLICE_S = 0.25        # the wanted length of a slice
LEAST_STEPS = 4       # the fewest steps of a slice; the first is not measured
LEAST_ROUNDS = 10     # the fewest rounds: a run with few steps has shorter slices
OPEN = 2**63 - 1      # the gate's limit at which no rank pauses any more
START_S = 600         # the time limit in which a run's ranks must reach their first step
FUTEX = {"x86_64": 202, "i686": 240, "i386": 240, "armv7l": 240}.get(platform.machine(), 98)
FUTEX_WAKE = 1
OWN, SLOWEST, FASTEST = range(3)  # a job's pace


class Head(ctypes.Structure):
    _fields_ = [("magic", ctypes.c_char * 8), ("seats", ctypes.c_int64), ("limit", ctypes.c_int64), ("bell", ctypes.c_uint32),
                ("spare", ctypes.c_uint32), ("stood", ctypes.c_int64), ("since", ctypes.c_int64), ("holder", ctypes.c_int64),
                ("unit", ctypes.c_int64), ("total", ctypes.c_int64), ("ranks", ctypes.c_int64), ("pace", ctypes.c_int64),
                ("taken", ctypes.c_int64), ("reserved", ctypes.c_int64 * 4)]


class Seat(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("stands", "done", "tokens", "passed_ns", "first_ns", "first_tokens", "last_ns",
                                                    "steps")] + [("reserved", ctypes.c_int64 * 8)]


class Gate:
    """The file of one run, from its creation to close(). It is not in any folder, so nothing is left of it."""

    def __init__(self):
        self.fd = os.memfd_create("starring-gate")
        self.path = f"/proc/{os.getpid()}/fd/{self.fd}"
        size = ctypes.sizeof(Head) + SEATS * ctypes.sizeof(Seat)
        os.ftruncate(self.fd, size)
        self.map = mmap.mmap(self.fd, size)
        self.head = Head.from_buffer(self.map)
        self.all = (Seat * SEATS).from_buffer(self.map, ctypes.sizeof(Head))
        self.head.seats, self.head.holder, self.head.magic = SEATS, os.getpid(), b"STARGATE"
        self.libc = ctypes.CDLL(None)

    def seats(self):
        return self.all[:min(self.head.ranks, SEATS)]

    def wake(self):
        self.head.bell += 1
        at = ctypes.addressof(self.head) + Head.bell.offset
        self.libc.syscall(FUTEX, ctypes.c_void_p(at), FUTEX_WAKE, 2**31 - 1, None, None, 0)

    def raise_limit(self, limit):
        """Lets all ranks continue up to `limit`."""
        since, self.head.since = self.head.since, 0
        if since:
            self.head.stood += time.monotonic_ns() - since
        self.head.limit = limit
        self.wake()

    def note_all_stand(self):
        """Records the time since which all ranks have paused, so that the ranks can subtract it from their waiting (gate_held_ns)."""
        self.head.since = max((seat.last_ns for seat in self.seats()), default=0) or time.monotonic_ns()

    def all_stand(self):
        """Whether the slice is over: every rank pauses at the limit, or all work below the limit is done, and the ranks that do not pause wait for
        work above it."""
        seats, limit = self.seats(), self.head.limit
        standing = [seat.stands == limit + 1 for seat in seats]
        done = limit > 0 and sum(seat.done for seat in seats) >= min(limit, self.head.total)
        return bool(seats) and (all(standing) or (done and any(standing)))

    def close(self):
        if self.fd is not None:
            os.close(self.fd)
        self.fd = None


def rate_of(seats, before, pace):
    """(tokens/s, seconds) of a slice that has ended; (None, None) if no token counted. before: each seat's (steps, tokens) when it began.
    pace: when a step is over. SLOWEST: when all ranks have ended it, though some may run ahead of others (ps:ssp:S). FASTEST: without
    the late ranks (ps:backup:B). OWN: each rank has its own steps; if it has done only one in this slice, that step is measured whole,
    from the gate on."""
    at_work = [(seat, tokens) for seat, (steps, tokens) in zip(seats, before) if seat.steps > steps + (pace != OWN)]
    if pace == OWN:
        spans = [(seat.last_ns - seat.first_ns, seat.tokens - seat.first_tokens) if seat.last_ns > seat.first_ns
                 else (seat.last_ns - seat.passed_ns, seat.tokens - tokens) for seat, tokens in at_work]
    else:
        over = max if pace == SLOWEST else min
        ns = over((seat.last_ns for seat, _ in at_work), default=0) - over((seat.first_ns for seat, _ in at_work), default=0)
        spans = [(ns, sum(seat.tokens - seat.first_tokens for seat, _ in at_work))]
    spans = [(1e-9 * ns, tokens) for ns, tokens in spans if ns > 0 and tokens > 0]
    return (sum(tokens / seconds for seconds, tokens in spans), max(seconds for seconds, _ in spans)) if spans else (None, None)


class PausableRun:
    """One run that takes turns. start: starts its process, given the gate's path, and returns it."""

    def __init__(self, start):
        self.gate, self.slices, self.limit = Gate(), [], 0
        self.watch, self.used = noise.SliceWatch(), 0.0  # seconds of its own turns
        self.began = time.monotonic()
        try:
            self.process = start(self.gate.path)
        except BaseException:
            self.gate.close()
            raise

    def over(self):
        """Whether the run has ended by itself."""
        return self.process.poll() is not None

    def wait(self, expected=0.0, limit=None):
        """Waits until all ranks pause. Returns True; False if the run has ended, or took longer than `limit` seconds."""
        end = None if limit is None else time.monotonic() + limit
        time.sleep(0.8 * expected)
        while not self.gate.all_stand():
            if self.over() or (end is not None and time.monotonic() > end):
                return False
            time.sleep(0.001 if expected else 0.005)
        self.gate.note_all_stand()
        return True

    def steps_left(self):
        return (self.gate.head.total - self.limit) // max(self.gate.head.unit, 1)

    def slice(self, number, steps, expected=0.0, limit=None):
        """Runs a slice of so many steps. Returns whether the run has paused again and its slices together have taken at most `limit` seconds."""
        head, before = self.gate.head, [(seat.steps, seat.tokens) for seat in self.gate.seats()]
        left = self.steps_left()
        # If too few steps are left for another slice, this slice includes them.
        self.limit = head.total if left < steps + max(3, steps // 2 + 1) else self.limit + steps * head.unit
        self.watch.begin(self.process.pid)
        began, taken = time.monotonic(), head.taken
        self.gate.raise_limit(self.limit)
        stands = self.wait(expected, None if limit is None else limit - self.used)
        wall = time.monotonic() - began
        self.used += wall
        if not stands:
            return False
        load = self.watch.end(self.process.pid)
        seats = self.gate.seats()
        # Restarted ranks have repeated steps, so such a slice gives no rate.
        rate, seconds = rate_of(seats, before, head.pace) if head.taken == taken else (None, None)
        done = (seats[0].steps if len(seats) == 1 else sum(s.steps for s in seats) / len(seats)) - statistics.fmean(s for s, _ in before)
        self.slices.append({"round": number, "began": round(began, 4), "wall_seconds": round(wall, 5), "steps": round(done, 3),
                            "tokens": sum(s.tokens for s in seats) - sum(t for _, t in before), "seconds": seconds and round(seconds, 6),
                            "tokens_per_second": rate and round(rate, 3), **load})
        return True

    def finish(self):
        """Opens the gate for all remaining steps."""
        self.gate.raise_limit(OPEN)

    def write(self, directory, comparison, decide):
        """Writes FILE. comparison: an identifier that all runs of the comparison share; decide: the share that ratios are to be known to."""
        if self.slices:
            with open(os.path.join(directory, FILE), "w", encoding="utf-8") as f:
                json.dump({"comparison": comparison, "decide": decide, "slices": self.slices}, f, indent=1)
                f.write("\n")


def read(directory):
    """Reads FILE of a run; None if the run did not take turns."""
    try:
        with regular.open_file(os.path.join(directory, FILE), limit=regular.WHOLE, encoding="utf-8") as f:
            found = json.load(f)
        slices = [s for s in found["slices"] if isinstance(s["round"], int)]
        decide = found["decide"] if isinstance(found.get("decide"), (int, float)) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return {"comparison": str(found.get("comparison")), "decide": decide, "slices": slices} if slices else None


def slice_steps(seconds, left):
    """The number of steps of a slice, the same for all runs. seconds: of one step of each run; left: the steps that are left."""
    middle = statistics.median(seconds)
    steps = max(math.ceil(SLICE_S / middle) + 1, LEAST_STEPS) if middle > 0 else LEAST_STEPS
    return max(2, min(steps, left // LEAST_ROUNDS))


def play(players, rng, failed, limit=None, tell=lambda done: None):
    """Runs all rounds. players: {name: PausableRun}, each paused at its first step. rng draws the order of each round. failed(name, player)
    is called for a run that does not pause again; the other runs continue. tell(share) is called with the fraction of the steps that is
    done."""
    left = dict(players)

    def turn(name, number, steps, expected=0.0):
        if not left[name].slice(number, steps, expected, limit):
            failed(name, left.pop(name))

    def shuffled():
        names = [name for name in left if left[name].steps_left() > 0]
        rng.shuffle(names)
        return names

    warm = max(2, min([p.steps_left() for p in left.values()], default=0) // (2 * LEAST_ROUNDS)) if left else 2
    for name in shuffled():
        turn(name, -1, min(warm, 4))  # a slice to warm up, which is not measured
    seconds = {name: p.slices[-1]["wall_seconds"] / max(p.slices[-1]["steps"], 1) for name, p in left.items() if p.slices}
    for p in left.values():
        p.slices.clear()
    if not seconds:
        return
    steps = slice_steps(list(seconds.values()), min(p.steps_left() for p in left.values()))
    number = 0
    while any(p.steps_left() > 0 for p in left.values()):
        for name in shuffled():
            turn(name, number, steps, 0.8 * steps * seconds[name])
            if name in left:
                last = left[name].slices[-1]
                seconds[name] = min(seconds[name], last["wall_seconds"] / max(last["steps"], 1))
        number += 1
        tell(1 - max((p.steps_left() / max(p.gate.head.total // p.gate.head.unit, 1) for p in left.values()), default=0))


def drawn(seed, repeat):
    """The random source of one pass's orders."""
    return random.Random(f"{seed} {repeat}")
