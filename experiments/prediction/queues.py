"""The queues of a simulated star: the jobs of a thread, and the messages of a connection."""
from collections import deque


class Thread:
    """A simulated thread of one endpoint, which does its jobs one after the other. Jobs that a job adds with `first` are done before all
    others in the queue."""

    def __init__(self, simulation, endpoint):
        self._simulation, self._endpoint = simulation, endpoint
        self._jobs, self._busy, self._nested = deque(), False, None
        self.seconds = 0.0  # total time of its jobs

    def do(self, seconds, then):
        """Adds a job of `seconds` to the queue, and calls then() when it is done."""
        self._jobs.append((seconds, then))
        self._go()

    def first(self, seconds, then):
        """Called from a job: adds a job that is done next, after those that the job has already added with `first`."""
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


class Channel:
    """The messages of one connection, one way: each is sent when the one before it has been sent, and arrives one latency later, so that
    messages in a row wait for the latency only once. shares(seconds): returns the number of shares of its links that the connection gets
    so long after it became busy; called for each message. None: one share."""

    def __init__(self, simulation, source, target, latency=0.0, shares=None):
        self._simulation, self._source, self._target, self._latency, self._shares = simulation, source, target, latency, shares
        self._waiting, self._busy, self._since = deque(), False, 0.0

    def send(self, size, then):
        """Sends a message, and calls then() when it has arrived."""
        self._waiting.append((size, then))
        if not self._busy:
            self._since = self._simulation.now
            self._go()

    def _go(self):
        # Messages without a payload need no bandwidth, so they are sent at once after the message before them.
        while self._waiting and not self._busy:
            size, then = self._waiting.popleft()
            if size < 1:
                self._simulation.after(self._latency, then)
                continue
            self._busy = True
            shares = self._shares(self._simulation.now - self._since) if self._shares else 1
            self._simulation.flow(self._source, self._target, size, self._left, then, shares=shares)

    def _left(self, then):
        self._busy = False
        self._simulation.after(self._latency, then)
        self._go()
