#!/usr/bin/env python3
"""What goes wrong between hosts: one that never comes, comes twice, has another version or configuration, a port in use, a name that
does not resolve, packets that are lost, a host that vanishes in mid-run. Each ends within its deadline with a sentence that names
it, on every host, with nothing left; or, where that is what was asked for, the job goes on. In both topologies."""
import contextlib
import os
import re
import shutil
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import PROGRAM, Runs
from fixture_hosts import Hosts
from fixture_starters import all_end, said, torch_environment, why_not_joined

DEADLINE_S = 5  # of the program, where it ends by it
BEYOND_S = 20   # behind that nothing may be under way; a busy machine has its share of it
WORDS = ["--model", "tiny", "--data", "text.txt", "--seq", "16", "--batch", "1", "--threads", "1", "--dtype", "bf16",
         "--set", "eval_batches=0", "--set", f"parameter_server.deadline_ms={1000 * DEADLINE_S}", "--no-weights", "--quiet"]
TOPOLOGIES = {"ring": ["--topology", "zero:2"], "star": ["--topology", "ps:sync", "--servers", "2"]}
FOREVER = "1000000"


def skip_unless_joined(case):
    if reason := next(filter(None, (why_not_joined(*words) for words in TOPOLOGIES.values())), None):
        case.skipTest(reason)


class Case(Runs):
    shared, corpus = True, 1200

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.hosts = Hosts(cls, 3)

    def setUp(self):
        skip_unless_joined(self)
        for host in self.hosts.all:
            shutil.rmtree(host.path("run"), ignore_errors=True)

    def rank(self, r, kind, *more, on=None, size=3, steps="4", program=PROGRAM, master="h1", env=None):
        """Rank r of a job, on its host or another, under way."""
        host = self.hosts[r if on is None else on]
        return host.start(self, program, "train", *WORDS, *TOPOLOGIES[kind], "--steps", steps, "--out", "run", *more,
                          env={**torch_environment(r, size, 0, 1, host=master), **(env or {})})

    def each(self, what):
        """Of both topologies, what(kind), with the seconds that it took at most."""
        for kind in TOPOLOGIES:
            with self.subTest(kind):
                began = time.monotonic()
                what(kind)
                self.assertLess(time.monotonic() - began, DEADLINE_S + BEYOND_S)
            self.setUp()

    def all_say(self, processes, *patterns):
        """Each ended with an error and said each of these; one sentence is enough for one rank."""
        for p in processes:
            words = p.ends(None)
            self.assertIn(p.returncode, (1, 2), words)
            for pattern in patterns:
                self.assertRegex(words, pattern)


class Meeting(Case):
    def test_a_host_that_never_comes(self):
        self.each(lambda kind: self.all_say([self.rank(0, kind), self.rank(1, kind)], r"rank 2", r"h1:29511"))

    def test_rank_0_never_comes(self):
        self.each(lambda kind: self.all_say([self.rank(1, kind), self.rank(2, kind)], r"h1:29511"))

    def test_a_rank_that_comes_twice(self):
        def twice(kind):
            ranks = [self.rank(0, kind), self.rank(1, kind), self.rank(1, kind, on=2)]
            all_end(ranks, None)
            self.assertRegex(said(ranks), r"rank 1\b.*(twice|another|already)")
            self.assertRegex(said(ranks), r"h2.*h3|h3.*h2")
            self.assertTrue(all(p.returncode in (1, 2) for p in ranks), said(ranks))
        self.each(twice)

    def test_another_configuration(self):
        def other(kind):
            ranks = [self.rank(0, kind), self.rank(1, kind), self.rank(2, kind, "--lr", "0.5")]
            all_end(ranks, None)
            self.assertTrue(all(p.returncode in (1, 2) for p in ranks), said(ranks))
            self.assertRegex(said(ranks), r"rank 2\b.*h3")
            self.assertRegex(said(ranks), r"configuration|learning.rate|\blr\b")
        self.each(other)

    def test_a_port_in_use(self):
        holder = self.hosts[0].start(self, "python3", "-c", "import socket, time\ns = socket.socket()\ns.setsockopt(socket.SOL_SOCKET, "
                                     "socket.SO_REUSEADDR, 1)\ns.bind(('', 29511))\ns.listen()\nprint('there', flush=True)\ntime.sleep(1000)")
        holder.until(lambda: "there" in holder.printed(), "the port is taken")

        def taken(kind):
            ranks = [self.rank(0, kind), self.rank(1, kind), self.rank(2, kind)]
            self.all_say(ranks, r"h1:29511")
            self.assertRegex(ranks[0].said(), r"[Aa]ddress already in use")
        self.each(taken)

    def test_a_name_that_does_not_resolve(self):
        self.each(lambda kind: self.all_say([self.rank(r, kind, master="nowhere.example") for r in range(3)], r"nowhere\.example"))


class Underway(Case):
    def lost(self, kind, *more):
        """Rank 2's host is off in mid-run; the ranks that are left, under way."""
        ranks = [self.rank(r, kind, *more, steps=FOREVER) for r in range(3)]
        metrics = self.hosts[0].path("run", "metrics.jsonl")

        def steps():
            with contextlib.suppress(OSError):
                with open(metrics, encoding="utf-8") as f:
                    return len(f.readlines())
            return 0
        ranks[0].until(lambda: steps() > 2, "a few steps")
        return ranks

    def test_a_process_that_dies(self):
        def dies(kind):
            ranks = self.lost(kind)
            ranks[2].kill()
            ranks[2].end_all()
            self.all_say(ranks[:2], r"(rank|worker) 2|h3")
        self.each(dies)


class Dropped(Case):
    def test_lost_packets(self):
        """A fifth of the time nothing reaches h2: it takes longer, and that is all."""
        for kind in TOPOLOGIES:
            with self.subTest(kind):
                with self.hosts[1].dropping(0.2):
                    all_end([self.rank(r, kind, steps="20") for r in range(3)])
                os.symlink(self.hosts[0].path("run"), self.at("far-" + kind))
                self.run_it("train", *WORDS, *TOPOLOGIES[kind], "--steps", "20", "--workers", "3", "--out", kind)
                self.assert_same_run("far-" + kind, kind)
            self.setUp()


class Vanished(Runs):
    """A host that is off cannot be had again: each test has its own."""
    corpus = 1200
    rank, all_say, lost = Case.rank, Case.all_say, Underway.lost

    def test_ring(self):
        self.vanishes("ring")

    def test_star(self):
        self.vanishes("star")

    def vanishes(self, kind):
        skip_unless_joined(self)
        self.hosts = Hosts(self, 3)
        ranks = self.lost(kind)
        began = time.monotonic()
        self.hosts[2].vanish()
        self.all_say(ranks[:2], r"h3")
        self.assertLess(time.monotonic() - began, DEADLINE_S + BEYOND_S)
        self.assertTrue(re.search(r"(rank|worker|server) \d", ranks[0].said()), ranks[0].said())


if __name__ == "__main__":
    unittest.main()
