#!/usr/bin/env python3
"""Failures between hosts: one that never joins, joins twice, has another version or configuration, a port in use, a name that does not
resolve, lost packets, a host that vanishes during the run. Each ends within its deadline with a sentence that names
it, on every host, with nothing left; or, where that is what was asked for, the job goes on. In both topologies."""
import contextlib
import json
import os
import re
import shutil
import signal
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import PROGRAM, Runs, send
from fixture_hosts import Hosts
from fixture_starters import all_end, said, torch_environment

DEADLINE_S = 5  # of the program, where it ends by it
PATIENT_S = 60  # the deadline of a job that is to end well
WORDS = ["--model", "tiny", "--data", "text.txt", "--seq", "16", "--batch", "1", "--threads", "1", "--dtype", "bf16",
         "--set", "eval_batches=0", "--set", f"parameter_server.deadline_ms={1000 * DEADLINE_S}", "--no-weights", "--quiet"]
TOPOLOGIES = {"ring": ["--topology", "zero:2"], "star": ["--topology", "ps:sync", "--servers", "2"]}
FOREVER = "1000000"


class Case(Runs):
    shared, corpus = True, 1200

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.hosts = Hosts(cls, 3, shared=True)

    def setUp(self):
        for host in self.hosts.all:
            for out in ("run", "shared/run"):
                shutil.rmtree(host.path(out), ignore_errors=True)

    def rank(self, r, kind, *more, on=None, size=3, steps="4", program=PROGRAM, master="h1", env=None, out="run"):
        """Rank r of a job, on its host or another, under way."""
        host = self.hosts[r if on is None else on]
        return host.start(self, program, "train", *WORDS, *TOPOLOGIES[kind], "--steps", steps, "--out", out, *more,
                          env={**torch_environment(r, size, 0, 1, host=master), **(env or {})})

    def steps_there(self, out="run"):
        """That rank 0 has recorded."""
        with contextlib.suppress(OSError):
            with open(self.hosts[0].path(out, "metrics.jsonl"), encoding="utf-8") as f:
                return len(f.readlines())
        return 0

    def underway(self, kind, *more, steps=FOREVER):
        """Three ranks that have done a few steps."""
        ranks = [self.rank(r, kind, *more, steps=steps) for r in range(3)]
        ranks[0].until(lambda: self.steps_there() > 2, "a few steps")
        return ranks

    def each(self, what):
        """Calls what(kind) for both topologies."""
        for kind in TOPOLOGIES:
            with self.subTest(kind):
                what(kind)
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

    def test_another_version(self):
        """h3 has a program that says of itself that it is another one."""
        with open(PROGRAM, "rb") as f:
            content = f.read()
        other = re.sub(rb"starring 0\.\d", b"starring 0.x", content)
        self.assertNotEqual(other, content)
        h3 = self.hosts[2]
        h3.run("sh", "-c", f"mkdir program; cp -a {PROGRAM} program/starring; cp -a {os.path.dirname(PROGRAM)}/*.so program; :")
        with open(h3.path("program", "starring"), "wb") as f:
            f.write(other)

        def different(kind):
            ranks = [self.rank(0, kind), self.rank(1, kind), self.rank(2, kind, program=os.path.join(self.hosts.folder, "program", "starring"))]
            all_end(ranks, None)
            self.assertTrue(all(p.returncode in (1, 2) for p in ranks), said(ranks))
            self.assertRegex(said(ranks), r"rank 2\b.*h3")
            self.assertRegex(said(ranks), r"starring 0\.x")
        self.each(different)

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
    def test_a_process_that_dies(self):
        def dies(kind):
            ranks = self.underway(kind)
            ranks[2].kill()
            ranks[2].end_all()
            self.all_say(ranks[:2], r"(rank|worker) 2|h3")
        self.each(dies)


class GoesOn(Case):
    """Where --restart or --elastic asks for it."""

    def test_a_worker_of_another_host_begins_again(self):
        ranks = [self.rank(r, "star", "--restart", "1", "--checkpoint-every", "5", steps="40", out="shared/run") for r in range(3)]
        ranks[0].until(lambda: self.steps_there("shared/run") > 8, "a checkpoint")
        send(signal.SIGKILL, ranks[1].find("worker 1"))
        all_end(ranks)
        self.run_it("train", *WORDS, *TOPOLOGIES["star"], "--steps", "40", "--workers", "3", "--out", "undisturbed")
        self.assertEqual(self.hash("shared/run"), self.hash("undisturbed"))

    def test_elastic_begins_with_those_who_are_there(self):
        """Its third host never comes: after the deadline the other two train."""
        ranks = [self.rank(r, "star", "--elastic", "2:3", steps="10") for r in range(2)]
        all_end(ranks)
        with open(self.hosts[0].path("run", "summary.json"), encoding="utf-8") as f:
            self.assertEqual(json.load(f)["steps"], 10)


class Dropped(Case):
    def test_lost_packets(self):
        """A fifth of the time nothing reaches h2: it takes longer, and that is all."""
        for kind in TOPOLOGIES:
            with self.subTest(kind):
                with self.hosts[1].dropping(0.2):
                    all_end([self.rank(r, kind, "--set", f"parameter_server.deadline_ms={1000 * PATIENT_S}", steps="20") for r in range(3)])
                os.symlink(self.hosts[0].path("run"), self.at("far-" + kind))
                self.run_it("train", *WORDS, *TOPOLOGIES[kind], "--steps", "20", "--workers", "3", "--out", kind)
                self.assert_same_run("far-" + kind, kind)
            self.setUp()


class Vanished(Runs):
    """A host that is off cannot be had again: each test has its own."""
    corpus = 1200
    rank, all_say, underway, steps_there = Case.rank, Case.all_say, Case.underway, Case.steps_there

    def test_ring(self):
        self.vanishes("ring")

    def test_star(self):
        self.vanishes("star")

    def vanishes(self, kind):
        self.hosts = Hosts(self, 3)
        ranks = self.underway(kind)
        self.hosts[2].vanish()
        self.all_say(ranks[:2], r"h3|(rank|worker) 2\b")
        self.assertIn("h3", ranks[0].said())
        self.assertRegex(ranks[0].said(), r"(rank|worker|server) \d")

    def test_elastic_star(self):
        """Those who are there go on and end."""
        self.hosts = Hosts(self, 3)
        ranks = self.underway("star", "--elastic", "2:3", "--servers-on", "0", steps="200")
        self.hosts[2].vanish()
        all_end(ranks[:2])
        with open(self.hosts[0].path("run", "summary.json"), encoding="utf-8") as f:
            self.assertEqual(json.load(f)["steps"], 200)


if __name__ == "__main__":
    unittest.main()
