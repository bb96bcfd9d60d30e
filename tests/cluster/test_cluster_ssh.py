#!/usr/bin/env python3
"""experiments/over_ssh.py over a real sshd: what is said of hosts where it cannot begin; Ctrl-C, deaths and cut connections of whole runs on
hosts that share one folder alone; and that nothing is left on any of them."""
import contextlib
import json
import os
import shutil
import signal
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import EXPERIMENTS, PROGRAM, Runs, send
from fixture_hosts import Hosts

SCRIPT = os.path.join(EXPERIMENTS, "over_ssh.py")
WORDS = ["--model", "tiny", "--data", "text.txt", "--seq", "16", "--batch", "1", "--threads", "1", "--dtype", "bf16",
         "--set", "eval_batches=0", "--no-weights", "--out", "run"]
TOPOLOGIES = {"ring": ["--topology", "zero:2"], "star": ["--topology", "ps:sync", "--servers", "2"]}
FOREVER = "1000000"


class Case(Runs):
    shared, corpus = True, 1200

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.hosts = Hosts(cls, 3, ssh=True, shared=True)

    def setUp(self):
        for host in self.hosts.all:
            shutil.rmtree(host.path("run"), ignore_errors=True)

    def over_ssh(self, kind, *more, hosts="h1,h2", steps="4", script=()):
        return self.hosts[0].start(self, sys.executable, SCRIPT, "--hosts", hosts, *script, PROGRAM, "train", *WORDS, *TOPOLOGIES[kind],
                                   "--steps", steps, *more)

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

    def no(self, hosts, *said, ssh=None):
        p = self.over_ssh("ring", hosts=hosts, script=["--ssh", ssh] if ssh else [])
        words = p.ends(2, limit_s=60)
        for part in said:
            self.assertIn(part, words)

    def test_a_name_that_nobody_has(self):
        self.no("h1,nowhere.example", "error: nowhere.example: ssh: Could not resolve hostname")

    def test_a_login_that_is_refused(self):
        self.no("h1,h2", "error: h1: ", "error: h2: ", "Permission denied", ssh="ssh -o BatchMode=yes -o PubkeyAuthentication=no")

    def test_nobody_listens(self):
        self.no("h1,h2", "error: h2: ", "refused", ssh="ssh -o BatchMode=yes -p 2222")

    def test_a_program_that_is_not_there(self):
        folder, h2 = os.path.dirname(PROGRAM), self.hosts[1]
        h2.run("mount", "-t", "tmpfs", "tmpfs", folder)
        self.addCleanup(h2.run, "umount", folder)
        self.no("h1,h2", f"error: h2: {PROGRAM}: not found; no rank was started")


class Underway(Case):
    def the_script(self, p):
        """The process of the script itself: p is what took it to its host."""
        return next(pid for pid, argv in p.left().items() if argv[1:2] == [SCRIPT])

    def rank(self, p, r):
        """Rank r's first process, wherever it is."""
        found = []
        for pid, argv in p.left().items():
            with contextlib.suppress(OSError):
                with open(f"/proc/{pid}/environ", "rb") as f:
                    if b"RANK=%d" % r in f.read().split(b"\0") and argv[:2] == [PROGRAM, "train"]:
                        found.append(pid)
        return min(found)

    def test_a_text_that_is_not_there(self):
        os.rename(self.hosts[1].path("text.txt"), self.hosts[1].path("other.txt"))
        self.addCleanup(os.rename, self.hosts[1].path("other.txt"), self.hosts[1].path("text.txt"))
        for kind in TOPOLOGIES:
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
        for kind in TOPOLOGIES:
            with self.subTest(kind):
                p = self.underway(kind)
                send(signal.SIGINT, [self.the_script(p)])
                p.ends(130, limit_s=60, settle_s=10)
                with open(self.hosts[0].path("run", "summary.json"), encoding="utf-8") as f:
                    self.assertIn('"interrupted"', f.read())
            self.setUp()

    def test_the_script_is_killed(self):
        for kind in TOPOLOGIES:
            with self.subTest(kind):
                p = self.underway(kind)
                send(signal.SIGKILL, [self.the_script(p)])
                p.ends(None, limit_s=60, settle_s=20)
            self.setUp()

    def test_a_rank_dies(self):
        for kind in TOPOLOGIES:
            with self.subTest(kind):
                p = self.underway(kind)
                send(signal.SIGKILL, [self.rank(p, 1)])
                self.assertIn("error: rank 1 on h2 was killed by signal 9 (Killed)", p.ends(1, limit_s=60, settle_s=10))
            self.setUp()

    def test_a_connection_is_cut(self):
        """Its host ends the rank by itself."""
        for kind in TOPOLOGIES:
            with self.subTest(kind):
                p = self.underway(kind)
                send(signal.SIGKILL, [pid for pid, argv in p.left().items() if argv[0] == "ssh" and "h2" in argv])
                self.assertIn("error: the connection to rank 1 on h2 has ended", p.ends(1, limit_s=60, settle_s=20))
            self.setUp()

    def test_it_goes_on(self):
        """The same words again cost the steps since the last checkpoint, and the weights are those of a run that nobody disturbed."""
        for kind in TOPOLOGIES:
            with self.subTest(kind):
                out = "shared/" + kind
                words = [kind, "--resume", "latest", "--checkpoint-every", "10", "--out", out]
                p = self.over_ssh(*words, steps=FOREVER)
                p.until(lambda: self.steps_there(out) > 15, "a checkpoint")
                send(signal.SIGKILL, [self.rank(p, 1)])
                p.ends(1, settle_s=10)
                done = self.steps_there(out)
                self.over_ssh(*words, steps=str(done + 20)).ends(0, settle_s=10)
                self.run_it("train", *WORDS[:-1], kind, *TOPOLOGIES[kind], "--steps", str(done + 20), "--workers", "2")
                self.assertEqual(self.hash(out), self.hash(kind))
            self.setUp()

    def test_elastic(self):
        """The others go on without a rank that dies."""
        p = self.over_ssh("star", "--elastic", "2:3", "--servers-on", "0", steps="200", hosts="h1,h2,h3", script=["--go-on"])
        p.until(lambda: self.steps_there() > 2, "a few steps")
        send(signal.SIGKILL, [self.rank(p, 2)])
        self.assertIn("rank 2 on h3 was killed by signal 9", p.ends(0, settle_s=10))
        with open(self.hosts[0].path("run", "summary.json"), encoding="utf-8") as f:
            self.assertEqual(json.load(f)["steps"], 200)


if __name__ == "__main__":
    unittest.main()
