"""What a simulated star queues: the jobs of a thread, the messages of a connection, and what an idle shaped link may send at once."""
from collections import deque


class Thread:
    """Jobs of one endpoint that are done one after the other. Jobs that a job adds by `first` are done before all that wait."""

    def __init__(self, simulation, endpoint):
        self._simulation, self._endpoint = simulation, endpoint
        self._jobs, self._busy, self._nested = deque(), False, None
        self.seconds = 0.0  # of work done

    def do(self, seconds, then):
        """then() after `seconds` of this thread's work, once all that was asked for before is done."""
        self._jobs.append((seconds, then))
        self._go()

    def first(self, seconds, then):
        """Called from a job: this one is done next, after those that the job has added so before."""
        if self._nested is None:
            self.do(seconds, then)
        else:
            self._nested.append((seconds, then))

    def _go(self):
        while self._jobs and not self._busy:
            seconds, then = self._jobs.popleft()
            self._busy = True
            self.seconds += seconds
            if seconds > 0:
                self._simulation.compute(self._endpoint, seconds, self._end, then)
                return
            self._finish(then)

    def _end(self, then):
        self._finish(then)
        self._go()

    def _finish(self, then):
        self._nested = []
        then()
        self._jobs.extendleft(reversed(self._nested))
        self._nested = None
        self._busy = False


class Bucket:
    """What a shaped link, one way, may send at once after it was idle: a token bucket of `most` bytes. It fills while nothing is under way."""

    def __init__(self, simulation, rate, most):
        self._simulation, self._rate, self.most = simulation, rate, most
        self._bytes, self._active, self._since = most, 0, simulation.now

    def holds(self):
        """Bytes that may leave at once."""
        idle = 0.0 if self._active else self._simulation.now - self._since
        return min(self.most, self._bytes + idle * self._rate)

    def begin(self, taken):
        """A message takes so many of them and is under way."""
        self._bytes = self.holds() - taken
        self._active += 1

    def end(self):
        """It has left."""
        self._active -= 1
        self._since = self._simulation.now


class Channel:
    """The messages of one connection, one way: each leaves when the one before it has left, and arrives a latency later, so that messages
    which follow each other pay it once.

    buckets: of the links that it uses. draw: how many equal shares of a link the connection gets while it is busy, drawn anew each time it
    becomes busy: connections that begin at the same time get unequal shares of a congested link for a while (TCP's windows have to settle).
    None: one."""

    def __init__(self, simulation, source, target, latency=0.0, buckets=(), draw=None):
        self._simulation, self._source, self._target, self._latency, self._buckets = simulation, source, target, latency, buckets
        self._waiting, self._busy, self._draw, self._shares, self._left_of = deque(), False, draw, 1, 0

    def send(self, size, then):
        """then() when the message has arrived."""
        self._waiting.append((size, then))
        if not self._busy:
            self._shares = self._draw() if self._draw else 1
            self._go()

    def _go(self):
        # Messages without a payload need no bandwidth: they follow the one before them at once.
        while self._waiting and not self._busy:
            size, then = self._waiting.popleft()
            at_once = min([size, *(b.holds() for b in self._buckets)]) if self._buckets and size >= 1 else 0
            for bucket in self._buckets if size >= 1 else ():
                bucket.begin(at_once)
            if size - at_once < 1:
                for bucket in self._buckets if size >= 1 else ():
                    bucket.end()
                self._simulation.after(self._latency, then)
                continue
            self._busy, self._left_of = True, self._shares
            for _ in range(self._shares):
                self._simulation.flow(self._source, self._target, (size - at_once) / self._shares, self._left, then)

    def _left(self, then):
        self._left_of -= 1
        if self._left_of:
            return
        for bucket in self._buckets:
            bucket.end()
        self._busy = False
        self._simulation.after(self._latency, then)
        self._go()
