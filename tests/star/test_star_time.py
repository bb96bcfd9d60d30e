#!/usr/bin/env python3
"""Where a star's time goes. A worker that is late by a known time shows as waiting for peers on the others; a link of
known bandwidth shows as exposed communication. Neither shows as the other."""
import os
import queue
import socket
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import PARTS, Runs, free_port

COMMON = ["--model", "tiny", "--data", "demo", "--seq", "8", "--batch", "1", "--threads", "1", "--quiet",
          "--set", "eval_batches=0"]
LEAST = 0.5  # of a known time that must show: a loaded machine, late by itself, hides some of it, and adds to any part
AHEAD_S = 100000  # of a clock of its own


class Link(threading.Thread):
    """Forwards connections to a port; what clients send passes at `rate` bytes a second, answers at once."""

    def __init__(self, port, rate):
        super().__init__(daemon=True)
        self.to, self.rate, self.ends = port, rate, []
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        self.start()

    def run(self):
        while True:
            try:
                client, _ = self.listening.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.to))
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.ends.append(end)
            for one, other, rate in ((client, server, self.rate), (server, client, None)):
                arrived = queue.Queue()
                threading.Thread(target=self.take, args=(one, arrived), daemon=True).start()
                threading.Thread(target=self.give, args=(other, arrived, rate), daemon=True).start()

    def close(self):
        for end in [self.listening, *self.ends]:
            end.close()

    @staticmethod
    def take(source, arrived):
        data = b"more"
        while data:
            try:
                data = source.recv(8192)
            except OSError:
                data = b""
            arrived.put((time.monotonic(), data))

    @staticmethod
    def give(sink, arrived, rate):
        free = 0.0  # when the link has passed on all before; a late sender here makes nothing later that has arrived
        try:
            while True:
                at, data = arrived.get()
                if not data:
                    return sink.shutdown(socket.SHUT_WR)
                if rate:
                    free = max(free, at) + len(data) / rate
                    time.sleep(max(0.0, free - time.monotonic()))
                sink.sendall(data)
        except OSError:
            return None


class StarTime(Runs):
    def roles(self, args, workers, servers, rate, last=()):
        """The summary of a star whose roles are started one by one, its servers behind links of this rate; last: what the last worker
        is started by."""
        def start(role, *more, **how):
            started.append(self.start(role, *COMMON, *args, "--out", "run", *more, **how))
            return started[-1]
        started, links = [], []
        try:
            scheduler = ["--scheduler", start("scheduler").address()]
            for i in range(servers):
                port = free_port()
                links.append(Link(port, rate))
                start("server", *scheduler, "--rank", str(i), "--set", f"parameter_server.bind=tcp://127.0.0.1:{port}",
                      "--advertise", f"tcp://127.0.0.1:{links[-1].port}")
            for i in range(workers):
                start("worker", *scheduler, "--rank", str(i), "--no-weights", under=last if i == workers - 1 else ())
            for role in started:
                role.ends()
        finally:
            for role in started:
                role.end_all()
            for link in links:
                link.close()
        return self.summary("run")

    def check_sums(self, summary):
        """Parts of every worker and server add up, and to what the loop's own clock says."""
        for t in summary["time_per_rank"]:
            self.assertGreater(t["total"], 0)  # an asynchronous worker that came late may find no batch left
            self.assertAlmostEqual(sum(t[p] for p in PARTS) / t["total"], 1.0, delta=0.01)
            self.assertAlmostEqual(t["check"], 1.0, delta=0.01)
        for t in summary["server_time"]:
            parts = sum(t[p] for p in ("receive", "sum", "hold", "wait", "update", "reply"))
            self.assertAlmostEqual(parts / t["total"], 1.0, delta=0.001)

    # ---------------------------------------------------------------- a straggler
    def test_a_fast_worker_takes_more(self):
        """The job's batches, which asynchronous workers share; the slow one's last is the tail at most."""
        self.run_it("train", *COMMON, "--topology", "ps:async", "--steps", "40", "--workers", "2", "--no-weights", "--straggle", "1:8",
                    "--out", "run")
        summary = self.summary("run")
        fast, slow = summary["batches"]
        self.assertEqual(fast + slow, 80)
        self.assertGreater(fast, slow)
        self.assertLessEqual(summary["tail_batches"], 2)

    def straggler(self, *args, waits=True):
        steps, late = 4, 0.25
        total = steps * late
        self.remove("run")
        done = self.run_it("train", *COMMON, "--steps", str(steps), "--workers", "2", "--no-weights", "--delay",
                           f"1:constant:{late * 1e3}", *args, "--out", "run", status=None)
        if done.returncode == 2 and "shm" in args:
            self.skipTest(done.stderr)
        self.assertEqual(done.returncode, 0, done.stderr)
        summary = self.summary("run")
        self.check_sums(summary)
        other, straggler = summary["time_per_rank"]
        if not waits:
            self.assertLess(other["wait"], LEAST * total)  # it has done its steps before the other's first is over
            return
        self.assertGreater(straggler["total"] - straggler["wait"] - straggler["comm_exposed"], LEAST * total)  # its own part
        # The peer's part is most of what the other lost, and is named after the peer.
        self.assertGreater(other["wait"], max(LEAST * total, other["comm_exposed"], straggler["wait"]))
        self.assertEqual(max(other["waited_for"], key=lambda w: w["seconds"])["rank"], 1)
        # The servers have had the other worker's gradients all the while.
        hold = sum(t["hold"] / t["threads"] for t in summary["server_time"]) / len(summary["server_time"])
        self.assertGreater(hold, LEAST * total)

    def test_stragglers(self):
        """With a commit round of the scheduler's and without, over either medium; and one that nobody waits for."""
        units = ["ps:sync", "--resident", "units", "--servers-on", "workers", "--set", "gradient_accumulation_steps=2"]
        for words in ([*units, "--medium", "tcp"], [*units, "--set", "gradient_clipping=0"], ["ps:sync", "--servers", "2", "--medium", "tcp"], ["ps:sync", "--set", "gradient_clipping=0", "--medium", "tcp"],
                      ["ps:sync", "--servers", "2", "--medium", "shm", "--set", "gradient_clipping=0"], ["ps:async"]):
            with self.subTest(words):
                self.straggler("--topology", *words, waits=words != ["ps:async"])

    def clock_ahead(self):
        """The command that starts a role with a monotonic clock of its own."""
        ahead = ["unshare", "--time", "--monotonic", str(AHEAD_S), "--fork"]
        if subprocess.run([*ahead, "true"], capture_output=True).returncode:
            self.skipTest("needs root, for a clock of its own")
        return ahead

    def test_link_with_another_clock(self):
        self.link(1, "--set", "gradient_clipping=0", last=self.clock_ahead())

    def test_straggler_with_another_clock(self):
        """The straggler is in a time namespace, as if on another host: its clock is hours ahead."""
        steps, late, ahead = 4, 0.25, self.clock_ahead()
        summary = self.roles(["--topology", "ps:sync", "--steps", str(steps), "--workers", "2", "--servers", "2", "--medium", "tcp",
                              "--trace", "--delay", f"1:constant:{late * 1e3}"], 2, 2, 1e9, last=ahead)
        self.check_sums(summary)
        other, straggler = summary["time_per_rank"]
        self.assertGreater(other["wait"], max(LEAST * steps * late, straggler["wait"]))
        # The error is said, and files have all times on one clock: what is left of 100,000 seconds is how long it took.
        self.assertGreater(straggler["clock_error_s"], 0)
        self.assertLess(straggler["clock_error_s"], AHEAD_S / 1000)
        begins = {e["pid"]: e["ts"] for e in self.events("run") if e.get("cat") == "step"}
        self.assertLess(max(begins.values()) - min(begins.values()), AHEAD_S / 100 * 1e6)
        times = [e["ts"] for e in self.events("run") if "ts" in e]
        self.assertLess(max(times) - min(times), AHEAD_S / 100 * 1e6)

    # ---------------------------------------------------------------- a slow link
    def link(self, servers, *args, topology="ps:sync", unseen=0, last=()):
        """unseen: of each worker's steps those that do not wait for its own gradient to pass."""
        steps, rate, workers = 4, 1.2e6, 2
        options = ["--topology", topology, "--steps", str(steps), "--workers", str(workers), "--set", f"parameter_server.servers={servers}",
                   "--medium", "tcp", *args]
        summary = self.roles(options, workers, servers, rate, last)
        self.check_sums(summary)
        # Each server is behind a link of its own: the slowest one has the largest share of the bytes.
        share = max(w["received_per_step"] for w in summary["wire"] if w["role"] == "server") / workers
        # Workers that share one budget do as many steps as they come to.
        for t, done in zip(summary["time_per_rank"], summary.get("batches") or [steps] * workers):
            expected = (done - unseen) * share / rate
            self.assertGreaterEqual(t["comm_exposed"], LEAST * expected)

    def test_link_with_commit_round(self):
        self.link(2)

    def test_link_without_commit_round(self):
        self.link(1, "--set", "gradient_clipping=0")

    def test_link_where_nobody_waits_for_others(self):
        # The weights of a step tell that its gradient has passed: those of the last step come behind the steps.
        self.link(1, "--set", "gradient_clipping=0", topology="ps:async", unseen=1)


if __name__ == "__main__":
    unittest.main()
