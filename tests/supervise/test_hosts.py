#!/usr/bin/env python3
"""Ranks that this program starts on other hosts: what it asks of them before, what each is told, labels, Ctrl-C, deaths and
restarts. ssh is a script that runs the command here, and a rank is a stand-in that says what it was told."""
import glob
import json
import os
import re
import signal
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import PROGRAM, Runs, send

# The host's name says what is wrong with it.
SSH = r"""#!/bin/sh
host=$1
[ "$host" = gone ] && { echo "ssh: Could not resolve hostname gone: Name or service not known" >&2; exit 255; }
[ "$host" = shut ] && { echo "me@shut: Permission denied (publickey)." >&2; exit 255; }
[ "$host" = slow ] && exec sleep 1000
command=$2
[ "$host" = bare ] && command=$(printf %s "$command" | sed 's#PROGRAM --version#/nowhere/starring --version#')
[ "$host" = old ] && command=$(printf %s "$command" | sed 's#PROGRAM --version#echo starring 0.0.1#')
[ "$host" = patient ] && command=$(printf %s "$command" | sed 's#tar -C#sleep 30; tar -C#')
[ "$host" = full ] && command=$(printf %s "$command" | sed 's#mkdir /tmp#mkdir /nowhere/tmp#')
[ "$host" = empty ] && command=$(printf %s "$command" | sed 's#cd #cd /nowhere#')
command=$(printf %s "$command" | sed 's#[^ ]*/starring train#STAND_IN train#')
exec sh -c "$command"
""".replace("PROGRAM", PROGRAM)

RANK = r"""#!PYTHON
import os, signal, sys, time
words = dict(line.split(" ", 1) for line in iter(lambda: sys.stdin.readline().rstrip("\n"), "go"))
rank, life = int(os.environ["RANK"]), int(words.get("life", "1").split()[0])
ask = os.environ.get("ASK", "")
def leave(number, frame):
    print(f"rank {rank} hears {number}", flush=True)
    if rank == 0:
        time.sleep(1)  # it ends the run
        print("the table", flush=True)
    sys.exit(130 if ask == "late" else 0)
told = [os.environ[n] for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "STARRING_STARTED_BY")]
print("told", *told, len(words["key"]), os.getcwd(), sys.argv[1:], flush=True)
print("life", words.get("life"), file=sys.stderr, flush=True)
with open(f"{rank}.{life}", "w") as f:
    f.write(f"{os.getpid()} {words['key']} {words.get('life', '')}")
if ask == "stage":
    folder = os.path.dirname(sys.argv[sys.argv.index("-c") + 1])
    print("config", open(folder + "/config.json").read().replace("\n", " "))
    print("files", sorted(os.path.join(d, n) for d, _, names in os.walk(folder) for n in names), flush=True)
if ask == "dies" and rank == 1 and life < 3:
    os.kill(os.getpid(), signal.SIGKILL)
if ask in ("fails", "refuses") and rank == 1:
    sys.exit(1 if ask == "fails" else 2)
if ask == "first dies" and rank == 0:
    os.kill(os.getpid(), signal.SIGKILL)
if ask == "first" and rank == 0 or ask == "dies" and life < 3:
    time.sleep(0.1)
    sys.exit(1)  # it has lost the one that dies, whose news come later
if ask == "first" and rank == 1:
    time.sleep(0.15)
    os.kill(os.getpid(), signal.SIGKILL)
if ask == "goes on" and rank == 0:
    time.sleep(2)
    sys.exit(0)
if ask in ("stays", "late", "kill", "goes on", "refuses", "first dies"):
    for line in sys.stdin:
        leave(int(line.split()[1]), None)
    sys.exit(1)
print("no newline", end="" if rank else "\n")
""".replace("PYTHON", sys.executable)


class Hosts(Runs):
    corpus = 1200

    def setUp(self):
        super().setUp()
        stand_in = self.script(RANK, "rank.py")
        ssh = self.script(SSH.replace("STAND_IN", stand_in), "ssh.sh")
        self.env = {"STARRING_SSH": ssh}

    def words(self, *more, hosts="h1:2,me@h2"):
        return ["train", "--model", "tiny", "--data", "text.txt", "--topology", "zero:1", *(["--hosts", hosts] if hosts else []),
                "--out", "run", *more]

    def asked(self, how):
        return {**self.env, "ASK": how}

    def told(self, rank, life=1):
        """Its process, and the first words it heard: the key, and the life, the job and the last death."""
        return self.read(f"{rank}.{life}").split(" ", 4)


class Started(Hosts):
    def test_what_ranks_are_told_and_labels(self):
        p = self.run_it(*self.words("--set", "seed=7", "--steps", "3"), env=self.env)
        port = re.search(r"^told 0 3 0 2 h1 (2\d{4}) ssh 64 ", p.stdout, re.M)[1]
        where = re.escape(f" ssh 64 {os.path.realpath(self.folder)} ['train', '--workers', '3', '--out', 'run', '--model', 'tiny'")
        for said, label in (("0 3 0 2", ""), ("1 3 1 2", r"\[h1:1\] "), ("2 3 0 1", r"\[h2:0\] ")):
            self.assertRegex(p.stdout, rf"(?m)^{label}told {said} h1 {port}{where}")
        for label in ("h1:0", "h1:1", "h2:0"):
            self.assertIn(f"[{label}] life None\n", p.stderr)
        self.assertIn("[h1:1] no newline", p.stdout)
        self.assertEqual(len({self.told(r)[1] for r in range(3)}), 1)
        self.assertNotIn(self.told(0)[1], p.stdout + p.stderr)

    def test_a_port_and_a_file_of_hosts(self):
        self.write("h1 slots=1\nh2 slots=1\n", "hosts")
        p = self.run_it(*self.words("--hostfile", "hosts", hosts=None), env={**self.env, "MASTER_PORT": "1234"})
        self.assertIn("told 0 2 0 1 h1 1234 ssh", p.stdout)

    def test_words_that_a_shell_would_read(self):
        name = "it's $HOME `x` \"y\" \\"
        p = self.run_it(*self.words("--set", f"tensorboard.job_name={name}"), env=self.env)
        self.assertIn(repr(f"tensorboard.job_name={name}"), p.stdout)


class Staged(Hosts):
    def folders(self):
        return set(glob.glob("/tmp/starring-stage-*"))

    def test_all_is_there_and_goes(self):
        """The stand-in lists the folder, whose configuration the program reads."""
        before = self.folders()
        os.makedirs(self.at("own"))
        self.write(self.read("text.txt"), "own", "my text.txt")
        self.write('{"steps": 7, "data": {"path": "own/my text.txt"}}', "job.json")
        p = self.run_it("train", "-c", "job.json", "--topology", "zero:1", "--hosts", "h1,h2", "--stage", "--no-weights", "--out", "run",
                        env=self.asked("stage"))
        words = re.search(r"^told .* (\[.*\])$", p.stdout, re.M)[1]
        folder = re.search(r"'-c', '(/tmp/starring-stage-[^/]*)/config.json', '--no-weights'\]$", words)[1]
        there = json.loads(re.search(r"^config (.*)$", p.stdout, re.M)[1])
        self.assertEqual((there["steps"], there["data"]["path"], there["workers"]), (7, f"{folder}/1/my text.txt", 2))
        files = re.search(r"^files (.*)$", p.stdout, re.M)[1]
        for name in ("bin/starring", "1/my text.txt", "config.json"):
            self.assertIn(f"'{folder}/{name}'", files)
        self.assertEqual(self.folders() - before, set())

    def test_ctrl_c_while_it_copies(self):
        before = self.folders()
        for number in (signal.SIGINT, signal.SIGTERM):
            p = self.start(*self.words("--stage", hosts="h1,patient"), env=self.env)
            p.until(lambda: len(self.folders() - before) > 1, "a copy")
            send(number, [p.pid])
            self.assertIn("ended while --stage copied", p.ends(128 + number, limit_s=20, settle_s=5))
            self.assertEqual(self.folders() - before, set())

    def test_no_room(self):
        said = self.refused(*self.words("--stage", hosts="full"), said="full: --stage: /tmp/starring-stage-", env=self.env)
        self.assertIn("could not be made: ", said)
        self.refused(*self.words("--stage", hosts=None), said="--stage: it copies to the hosts of --hosts", env=self.env)


class Refused(Hosts):
    def no(self, *more, said, hosts="h1", **how):
        self.refused(*self.words(*more, hosts=hosts), said=said, env={**self.env, **how})

    def test_hosts(self):
        self.no(hosts="h1,gone", said="gone: ssh could not come in: ssh: Could not resolve hostname gone")
        self.no(hosts="h1,shut", said=["shut: ssh could not come in: me@shut: Permission denied (publickey).; see that `", "shut true`"])
        self.no(hosts="bare", said=[f"bare: {PROGRAM} does not run there (sh: ", "not found"])
        self.no(hosts="old", said=["old: ", "\"starring 0.0.1\""])
        self.no(hosts="empty", said="empty: there is no folder ")
        self.no(hosts="gone,shut", said=["gone: ssh", "shut: ssh"])
        self.no(hosts="127.0.0.1,h2", said="do not reach the first one as 127.0.0.1")
        self.assertFalse(os.path.exists(self.at("run")))

    def test_words(self):
        self.no("--workers", "3", said="--workers 3, but the hosts have 1 slots")
        self.no("--hostfile", "x", said="--hosts, --hostfile: the one says")
        self.no("--launch", "processes", said="--launch processes, --hosts")
        self.no("--launch", "ssh", hosts=None, said="--launch ssh: on which hosts?")
        self.no("--topology", "local", said="--launch ssh: --topology local is one process")
        self.no(said="--hosts: started by torchrun", RANK="0", WORLD_SIZE="2", MASTER_ADDR="n1")
        self.no(said="MASTER_PORT=x", MASTER_PORT="x")
        self.no(hosts="a:0", said="0 slots")
        self.no("--interface", "lo", hosts=None, said="--interface lo: the ranks of this run are on one machine")
        self.no("--interface", "eth1", "--collective", "mpi", hosts=None, said="set OMPI_MCA_btl_tcp_if_include=eth1")

    def test_collectives(self):
        for name in ("shm", "local"):
            self.no("--collective", name, hosts="h1,h2", said=f"--collective {name}: 2 hosts share no memory; use --collective gloo, or leave")
        self.no("--collective", "mpi", said="--collective mpi: ssh does not start ranks of MPI; use --collective gloo")

    def test_a_prediction(self):
        self.assertIn("All ranks, if they were on this machine:\n", self.run_it(*self.words("--dry-run"), env=self.env).stdout)

    def test_a_rank_that_nobody_talks_to(self):
        self.no(said="nobody says more on standard input", STARRING_STARTED_BY="ssh")


class Ended(Hosts):
    def start_them(self, how, *more):
        p = self.start(*self.words(*more), env=self.asked(how))
        p.until(lambda: all(os.path.exists(self.at(f"{r}.1")) for r in range(3)), "all are there")
        return p

    def test_ctrl_c(self):
        for how in ("stays", "late"):
            p = self.start_them(how)
            time.sleep(0.2)
            send(signal.SIGINT, [p.pid])
            p.ends(0 if how == "stays" else 130)
            for r in range(3):
                self.assertIn(f"rank {r} hears 2", p.printed())
            self.assertIn("the table", p.printed())

    def test_ctrl_c_twice(self):
        p = self.start_them("kill")
        rank = int(self.told(1)[0])
        os.kill(rank, signal.SIGSTOP)
        send(signal.SIGINT, [p.pid])
        time.sleep(0.7)
        send(signal.SIGINT, [p.pid])
        self.assertEqual(p.wait(20), 130, p.said())
        os.kill(rank, signal.SIGCONT)  # its connection has gone
        p.ends(None, settle_s=5)

    def test_the_launcher_dies(self):
        p = self.start_them("stays")
        send(signal.SIGKILL, [p.pid])
        p.ends(None, settle_s=5)

    def test_a_death(self):
        for how in ("dies", "first"):
            p = self.start(*self.words(), env=self.asked(how))
            said = p.ends(1)
            self.assertRegex(said, r"error: rank 1 on h1 was killed by signal 9 \(Killed\) [\d.]+ s after the start: ending the other")
            self.assertEqual(said.count("starring: error"), 1, said)

    def test_a_connection_that_ends(self):
        p = self.start_them("stays")
        with open(f"/proc/{self.told(2)[0]}/stat", encoding="utf-8") as f:
            shell = int(f.read().rsplit(")", 1)[1].split()[1])
        send(signal.SIGKILL, [shell])
        self.assertRegex(p.ends(1, settle_s=5), r"error: rank 2 on h2 \(pid \d+\) was killed by signal 9")

    def test_a_failure(self):
        said = self.start(*self.words("--restart", "3"), env=self.asked("fails")).ends(1, settle_s=5)
        self.assertRegex(said, r"error: rank 1 on h1 \(pid \d+\) ended with exit status 1")

    def test_elastic(self):
        """The others go on without one that dies; with rank 0, or one that refuses its words, all end."""
        words = ["train", "--model", "tiny", "--data", "text.txt", "--topology", "ps:sync", "--hosts", "h1:2,h2", "--out", "run", "--elastic"]
        how = {"env": self.asked("goes on")}
        p = self.start(*words, "1:3", "--restart", "1", **how)
        p.until(lambda: all(os.path.exists(self.at(f"{r}.1")) for r in range(3)), "all are there")
        self.assertEqual(len(self.told(2)), 2 + 1, "it has no lives of the whole job")
        send(signal.SIGKILL, [int(self.told(2)[0])])
        said = p.ends(0)
        self.assertRegex(said, r"rank 2 on h2 was killed by signal 9 \(Killed\) [\d.]+ s after the start: the others go on, if they can\n")
        self.assertNotIn("error", said)
        self.assertRegex(self.start(*words, "1:3", env=self.asked("fails")).ends(0), r"rank 1 on h1 ended with exit status 1 ")
        self.assertRegex(self.start(*words, "1:3", env=self.asked("refuses")).ends(2), r"error: rank 1 on h1 \(pid \d+\) ended with exit status 2 ")
        said = self.start(*words, "1:3", env=self.asked("first dies")).ends(1, settle_s=5)
        self.assertRegex(said, r"error: rank 0 on h1 \(pid \d+\) ended with exit status 137 [\d.]+ s after the start: ending the other")

    def test_restarts(self):
        p = self.start(*self.words("--restart", "2"), env=self.asked("dies"))
        said = p.ends(0)
        self.assertIn("rank 1 on h1 was killed by signal 9", said)
        self.assertIn("1 of 2 restarts is left", said)
        (_, key, first, job, _), (_, other, third, again, why) = self.told(0), self.told(0, 3)
        self.assertEqual((first, third, job), ("1", "3", again))
        self.assertNotEqual(key, other)
        self.assertIn("rank 1 on h1 was killed", why)
        self.assertNotEqual(self.start(*self.words("--restart", "1"), env=self.asked("dies")).wait(), 0)


if __name__ == "__main__":
    unittest.main()
