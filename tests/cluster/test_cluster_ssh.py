#!/usr/bin/env python3
"""`starring train --hosts` over a real sshd: what is said of hosts where it cannot begin; Ctrl-C, deaths and second lives of whole
runs on hosts that share no folder; and that nothing is left on any of them."""
import contextlib
import json
import os
import shutil
import signal
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import PROGRAM, Runs, send
from fixture_hosts import Hosts
from fixture_starters import joined

WORDS = ["--model", "tiny", "--data", "text.txt", "--seq", "16", "--batch", "1", "--threads", "1", "--dtype", "bf16",
         "--set", "eval_batches=0", "--no-weights", "--out", "run"]
TOPOLOGIES = {"ring": ["--topology", "zero:2"], "star": ["--topology", "ps:sync", "--servers", "2"]}
FOREVER = "1000000"


class Case(Runs):
    shared, corpus, trains = True, 1200, True

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.hosts = Hosts(cls, 3, ssh=True, shared=True)

    def setUp(self):
        if self.trains:
            joined(self, TOPOLOGIES)
        for host in self.hosts.all:
            shutil.rmtree(host.path("run"), ignore_errors=True)

    def over_ssh(self, kind, *more, hosts="h1,h2", steps="4", env=None):
        return self.hosts[0].start(self, PROGRAM, "train", *WORDS, *TOPOLOGIES[kind], "--steps", steps, "--hosts", hosts, *more, env=env)

    def steps_there(self, out="run"):
        with contextlib.suppress(OSError):
            with open(self.hosts[0].path(out, "metrics.jsonl"), encoding="utf-8") as f:
                return len(f.readlines())
        return 0

    def underway(self, kind, *more, **how):
        p = self.over_ssh(kind, *more, steps=FOREVER, **how)
        p.until(lambda: self.steps_there() > 2, "a few steps")
        return p


class Refused(Case):
    trains = False

    def no(self, hosts, *said, env=None):
        p = self.over_ssh("ring", hosts=hosts, env=env)
        words = p.ends(2, limit_s=60)
        for part in said:
            self.assertIn(part, words)

    def test_a_name_that_nobody_has(self):
        self.no("h1,nowhere.example", "nowhere.example", "Could not resolve hostname")

    def test_a_login_that_is_refused(self):
        self.no("h1,h2", "h1", "h2", "Permission denied", env={
            "STARRING_SSH": "ssh -o BatchMode=yes -o PubkeyAuthentication=no"})

    def test_nobody_listens(self):
        self.no("h1,h2", "h2", "refused", env={"STARRING_SSH": "ssh -o BatchMode=yes -p 2222"})

    def without(self, folder):
        """h2 without what is in a folder."""
        self.hosts[1].run("mount", "-t", "tmpfs", "tmpfs", folder)
        self.addCleanup(self.hosts[1].run, "umount", folder)

    def test_a_program_that_is_not_there(self):
        self.without(os.path.dirname(PROGRAM))
        self.no("h1,h2", "h2", PROGRAM)


class Underway(Case):
    def starter(self, p):
        """The process of the command itself: p is what took it to its host."""
        return next(pid for pid, argv in p.left().items() if argv[0] == PROGRAM and "--hosts" in argv and argv[2] != "--workers")

    def rank(self, r):
        """Rank r's first process, wherever it is."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                with open(f"/proc/{pid}/environ", "rb") as f:
                    words = f.read().split(b"\0")
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    argv = f.read().split(b"\0")
                if b"RANK=%d" % r in words and b"STARRING_STARTED_BY=ssh" in words and argv[0] == PROGRAM.encode() and argv[1] == b"train":
                    found.append(int(pid))
        return min(found)

    def test_a_text_that_is_not_there(self):
        os.rename(self.hosts[1].path("text.txt"), self.hosts[1].path("other.txt"))
        self.addCleanup(os.rename, self.hosts[1].path("other.txt"), self.hosts[1].path("text.txt"))
        for kind in joined(self, TOPOLOGIES):
            with self.subTest(kind):
                p = self.over_ssh(kind)
                words = p.ends(None, limit_s=120)
                self.assertNotEqual(p.returncode, 0)
                self.assertIn("text.txt", words)
                self.assertIn("h2", words)
            self.setUp()

    def test_an_interface(self):
        self.over_ssh("star", "--interface", "eth0").ends(0, settle_s=10)
        words = self.over_ssh("star", "--interface", "eth9").ends(None, settle_s=10)
        self.assertRegex(words, r"\[h1:0\] .*this machine has no interface eth9; it has .*eth0")

    def test_ctrl_c(self):
        for kind in joined(self, TOPOLOGIES):
            with self.subTest(kind):
                p = self.underway(kind)
                send(signal.SIGINT, [self.starter(p)])
                p.ends(130, limit_s=60, settle_s=10)
                with open(self.hosts[0].path("run", "summary.json"), encoding="utf-8") as f:
                    self.assertIn('"interrupted"', f.read())
            self.setUp()

    def test_the_command_is_killed(self):
        for kind in joined(self, TOPOLOGIES):
            with self.subTest(kind):
                p = self.underway(kind)
                send(signal.SIGKILL, [self.starter(p)])
                p.ends(None, limit_s=60, settle_s=20)
            self.setUp()

    def test_a_rank_dies(self):
        for kind in joined(self, TOPOLOGIES):
            with self.subTest(kind):
                p = self.underway(kind)
                send(signal.SIGKILL, [self.rank(1)])
                words = p.ends(1, limit_s=60, settle_s=10)
                self.assertRegex(words, r"rank 1 on h2")
            self.setUp()

    def test_second_lives(self):
        """A death costs the steps since the last checkpoint, and the weights are those of a run that nobody disturbed."""
        for kind in joined(self, TOPOLOGIES):
            with self.subTest(kind):
                out = "shared/" + kind
                p = self.over_ssh(kind, "--restart", "1", "--checkpoint-every", "10", "--out", out, steps="60", hosts="h1,h2")
                p.until(lambda: self.steps_there(out) > 15, "a checkpoint")
                send(signal.SIGKILL, [self.rank(1)])
                p.ends(0, settle_s=10)
                self.run_it("train", *WORDS[:-1], kind, *TOPOLOGIES[kind], "--steps", "60", "--workers", "2")
                self.assertEqual(self.hash(out), self.hash(kind))
            self.setUp()

    def test_elastic(self):
        """The others go on without a rank that dies."""
        joined(self, {"star": TOPOLOGIES["star"]})
        p = self.over_ssh("star", "--elastic", "2:3", "--servers-on", "0", steps="200", hosts="h1,h2,h3")
        p.until(lambda: self.steps_there() > 2, "a few steps")
        send(signal.SIGKILL, [self.rank(2)])
        self.assertIn("rank 2 on h3 was killed by signal 9", p.ends(0, settle_s=10))
        with open(self.hosts[0].path("run", "summary.json"), encoding="utf-8") as f:
            self.assertEqual(json.load(f)["steps"], 200)

    def test_staged(self):
        """h2 has neither the program nor the text: --stage brings both, and takes them away again."""
        h2 = self.hosts[1]
        h2.run("mount", "-t", "tmpfs", "tmpfs", os.path.dirname(PROGRAM))
        shutil.move(h2.path("text.txt"), self.at("kept.txt"))
        self.addCleanup(lambda: (h2.run("umount", os.path.dirname(PROGRAM)), shutil.move(self.at("kept.txt"), h2.path("text.txt"))))
        for kind in joined(self, TOPOLOGIES):
            with self.subTest(kind):
                self.over_ssh(kind, "--stage").ends(0, settle_s=10)
                self.assertEqual([name for name in os.listdir(h2.path("tmp")) if "stage" in name], [])
            self.setUp()


if __name__ == "__main__":
    unittest.main()
