#!/usr/bin/env python3
"""experiments/over_ssh.py: which hosts it takes, what each rank is told, labels, Ctrl-C, deaths, and that nothing stays behind. ssh is a
script that runs the command here, and a rank is a small one that says what it was told."""
import os
import re
import signal
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import EXPERIMENTS, PROGRAM, TINY, Runs, send

SCRIPT = os.path.join(EXPERIMENTS, "over_ssh.py")
# The host's name says what is wrong with it. A login may print something first.
SSH = r"""#!/bin/sh
echo "$0 $*" >>ssh.log
[ "$1" = gone ] && { echo "ssh: Could not resolve hostname gone: Name or service not known" >&2; exit 255; }
[ "$1" = shut ] && { echo "me@shut: Permission denied (publickey)." >&2; exit 255; }
[ "$1" = slow ] && exec sleep 1000
echo "Welcome to $1"
exec /bin/sh -c "$2"
"""


class Case(Runs):
    def setUp(self):
        super().setUp()
        self.words = ["--ssh", self.script(SSH, "ssh.sh")]

    def rank(self, script, before=""):
        """The command of ranks that do this, and leave came.RANK."""
        return self.script(f"#!/bin/sh\n{before}\ntouch came.$RANK\n{script}\n", "rank.sh")

    def over_ssh(self, *words, hosts="h1:2,me@h2", **how):
        return self.run_script("over_ssh.py", *self.words, *(["--hosts", hosts] if hosts else []), *words, **how)

    def underway(self, *words, hosts="h1:2,me@h2", ranks=3):
        p = self.start(SCRIPT, *self.words, "--hosts", hosts, *words, program=sys.executable)
        p.until(lambda: all(os.path.exists(self.at(f"came.{r}")) for r in range(ranks)), "all are there")
        return p


class Told(Case):
    def test_variables_labels_and_folder(self):
        p = self.over_ssh(self.rank('echo told $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT "$PWD" "$@"; '
                                    'echo said $STARRING_JOB_KEY >&2; printf "no newline"'), "it's $HOME `x` \"y\" \\", "--force")
        port = re.search(r"^told 0 3 0 2 h1 (2\d{4}) ", p.stdout, re.M)[1]
        rest = f"h1 {port} {os.path.realpath(self.folder)} it's $HOME `x` \"y\" \\ --force\n"
        for label, numbers in (("", "0 3 0 2"), ("[h1:1] ", "1 3 1 2"), ("[h2:2] ", "2 3 0 1")):
            self.assertIn(f"{label}told {numbers} {rest}", p.stdout)
        self.assertEqual(p.stdout.count("no newline\n"), 3)
        said = re.findall(r"^\[(\S+)\] said (.*)$", p.stderr, re.M)
        self.assertEqual(sorted(label for label, _ in said), ["h1:0", "h1:1", "h2:2"])
        keys = {key for _, key in said}
        self.assertEqual(len(keys), 1)
        key = keys.pop()
        self.assertRegex(key, r"^[0-9a-f]{64}$")
        log = self.read("ssh.log")
        self.assertEqual(log.count("exec sh -c"), 3)
        self.assertNotIn(key, log)
        self.assertNotIn("Welcome", p.stdout)
        self.assertNotEqual(self.over_ssh(self.rank("echo $STARRING_JOB_KEY"), hosts="h1").stdout.strip(), key)

    def test_of_the_environment_here(self):
        p = self.over_ssh(self.rank("echo $MASTER_ADDR $MASTER_PORT $STARRING_JOB_KEY"), hosts="h1",
                          env={"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234", "STARRING_JOB_KEY": 64 * "a"})
        self.assertEqual(p.stdout, f"10.0.0.1 1234 {64 * 'a'}\n")

    def test_a_program_is_that_of_here(self):
        """The host need not find it by its own PATH."""
        self.script("#!/bin/sh\necho the program\n", "bin", "known")
        self.over_ssh("known", env={"PATH": f"{self.at('bin')}:{os.environ['PATH']}"})
        self.assertIn(self.at("bin", "known"), self.read("ssh.log"))

    def test_nothing_is_started_but_said(self):
        p = self.over_ssh("--dry-run", self.rank(""), "a b")
        lines = p.stdout.splitlines()
        self.assertEqual([line.split()[:2] for line in lines], [[self.at("ssh.sh"), host] for host in ("h1", "h1", "me@h2")])
        for number, line in enumerate(lines):
            self.assertIn(f"RANK={number} ", line)
        self.assertFalse(os.path.exists(self.at("ssh.log")))

    def test_a_star_and_a_ring(self):
        """The program itself, as ranks on one host: all that it needs is in their environment."""
        self.write("text " * 400, "text.txt")
        words = [*TINY, "--data", "text.txt", "--seq", "16", "--batch", "1", "--steps", "2", "--set", "eval_batches=0", "--out"]
        for topology in ("ps:sync", "zero:1"):
            out, alone = topology.replace(":", "-"), "alone-" + topology.replace(":", "-")
            self.over_ssh(PROGRAM, "train", "--topology", topology, *words, out, hosts="localhost:2")
            self.run_it("train", "--topology", topology, *words, alone)
            self.assert_same_curve(out, alone)

    def assert_same_curve(self, out, alone):
        self.assertEqual(self.curve(out), self.curve(alone))
        self.assertTrue(self.curve(out))


class Hosts(Case):
    def names(self, *words):
        p = self.over_ssh(*words, "--dry-run", "true", hosts=None)
        return [line.split()[1] for line in p.stdout.splitlines()]

    def test_files(self):
        self.write("# all\nh1 slots=2  # two\n\nme@h2 slots = 1 max_slots=4\nh3 max-slots=2 slots=1\nh4\nh5:2\nh1\n[fd00::1]\n", "hosts")
        self.assertEqual(self.names("--hostfile", "hosts"), ["h1"] * 3 + ["me@h2", "h3", "h4", "h5", "h5", "fd00::1"])

    def test_lists(self):
        self.assertEqual(self.names("--hosts", "h1:2,u@[fe80::1%eth0]:1,h-3.example.org"), ["h1", "h1", "u@fe80::1%eth0", "h-3.example.org"])

    def no(self, *words, said, command=("true",), **how):
        p = self.over_ssh(*words, *command, hosts=None, status=2, **how)
        self.assertIn(said, p.stderr)
        self.assertFalse(os.path.exists(self.at("ssh.log")))

    def test_refused(self):
        for words in ("h1:0", "-oProxyCommand=x", "h1 h2", "fe80::1", "a;b", "h1:x", "@h1"):
            self.no(f"--hosts={words}", said=f"--hosts: \"{words}\": write h1, me@h1, h1:2")
        for line in ("h1 slots=0", "h1 gpus=2", "h1 slots=", "h1 2"):
            self.write(f"h0\n{line}\n", "hosts")
            self.no("--hostfile", "hosts", said=f"--hostfile hosts: \"{line}\": write")
        self.write("# none\n", "hosts")
        self.no("--hostfile", "hosts", said="--hostfile hosts: no host is named")
        self.no("--hostfile", "nowhere", said="nowhere")
        self.no("--hosts", "h1", "--hostfile", "hosts", said="not allowed with")
        self.no(said="--hosts --hostfile is required")
        self.no("--hosts", "h1", command=(), said="which command?")
        self.no("--hosts", "127.0.0.1,h2", said="do not reach the first as 127.0.0.1")

    def test_where_it_cannot_begin(self):
        command = self.rank("sleep 100")
        for hosts, what, *said in (
                ("h1,gone,shut:2", command, "gone: ssh: Could not resolve hostname gone", "shut: me@shut: Permission denied (publickey).; no rank was started"),
                ("h1:2,h2", "./nowhere", "h1: ./nowhere: not found; no rank was started", "h2: ./nowhere: not found")):
            p = self.over_ssh(what, hosts=hosts, status=2)
            for words in said:
                self.assertEqual(p.stderr.count(words), 1, p.stderr)
        self.assertFalse(os.path.exists(self.at("came.0")))
        self.words = ["--ssh", "/nowhere/ssh"]
        self.assertIn("/nowhere/ssh", self.over_ssh(command, status=2).stderr)


class Ended(Case):
    STAYS = {"before": 'trap "echo hears INT; exit 130" INT; trap "echo hears TERM; exit 143" TERM', "script": "while :; do sleep 0.05; done"}
    DEAF = {"before": 'trap "" INT TERM', "script": "while :; do sleep 0.05; done & wait"}

    def test_a_death(self):
        p = self.over_ssh(self.rank('[ $RANK = 1 ] || exec sleep 1; echo my last words >&2; kill -KILL $$'), status=1)
        self.assertRegex(p.stderr, r"(?m)^over_ssh: error: rank 1 on h1 was killed by signal 9 \(Killed\) [\d.]+ s after the start: the first to fail, "
                                   r"the others are ended; its last line: my last words$")

    def test_a_failure(self):
        for status in (2, 3):
            p = self.over_ssh(self.rank(f'[ $RANK = 2 ] || exec sleep 1; exit {status}'), status=2 if status == 2 else 1)
            self.assertRegex(p.stderr, rf"error: rank 2 on h2 ended with exit status {status} [\d.]+ s after the start: the first to fail, the others are ended\n")

    def test_one_that_was_killed_comes_before_those_that_left_because_of_it(self):
        p = self.over_ssh(self.rank('[ $RANK = 1 ] || exit 1; sleep 0.1; kill -KILL $$'), status=1)
        self.assertIn("error: rank 1 on h1 was killed by signal 9", p.stderr)
        self.assertEqual(p.stderr.count("error"), 1)

    def test_ctrl_c_and_sigterm(self):
        for number, word in ((signal.SIGINT, "INT"), (signal.SIGTERM, "TERM"), (signal.SIGHUP, "TERM")):
            p = self.underway(self.rank(**self.STAYS))
            send(number, [p.pid])
            said = p.ends(128 + (signal.SIGTERM if word == "TERM" else number), settle_s=5)
            self.assertNotIn("error", said)
            for label in ("", "[h1:1] ", "[h2:2] "):
                self.assertIn(f"{label}hears {word}\n", p.printed())
            for rank in range(3):
                os.remove(self.at(f"came.{rank}"))

    def test_ctrl_c_before_all_are_there(self):
        p = self.start(SCRIPT, *self.words, "--hosts", "h1,slow:20", self.rank(""), program=sys.executable)
        p.until(lambda: os.path.exists(self.at("ssh.log")) and len(self.read("ssh.log").splitlines()) > 2, "some have begun")
        send(signal.SIGINT, [p.pid])
        self.assertEqual(p.ends(130, limit_s=50, settle_s=5), "")  # it does not wait for the answer of one that was just being started: 60 s
        self.assertFalse(os.path.exists(self.at("came.0")))

    def test_a_run_that_ends_well_after_ctrl_c(self):
        p = self.underway(self.rank("while :; do sleep 0.05; done", before='trap "exit 0" INT'))
        send(signal.SIGINT, [p.pid])
        p.ends(0, settle_s=5)

    def test_ctrl_c_twice(self):
        p = self.underway(self.rank(**self.DEAF))
        send(signal.SIGINT, [p.pid])
        time.sleep(1)
        self.assertIsNone(p.poll())
        send(signal.SIGINT, [p.pid])
        p.ends(130, settle_s=5)

    def test_the_script_is_killed(self):
        """Nothing stays behind, not even what takes no SIGTERM."""
        p = self.underway(self.rank(**self.DEAF))
        send(signal.SIGKILL, [p.pid])
        p.ends(None, settle_s=30)

    def test_a_connection_is_cut(self):
        p = self.underway(self.rank(**self.STAYS))
        ssh = next(pid for pid, argv in p.left().items() if " RANK=1 " in " ".join(argv) and os.getpgid(pid) == pid)
        send(signal.SIGKILL, [ssh])
        said = p.ends(1, settle_s=30)
        self.assertRegex(said, r"error: the connection to rank 1 on h1 has ended [\d.]+ s after the start: the first to fail")
        self.assertNotIn("Traceback", said)

    def test_who_reads_it_has_left(self):
        p = self.start(self.rank('yes | head -n 20000; echo done >done.$RANK'), program="sh", under=(
            "bash", "-c", 'shift; "$@" | head -n 1', "bash", "shift", sys.executable, SCRIPT, *self.words, "--hosts", "h1:2"))
        p.until(lambda: os.path.exists(self.at("done.0")) and os.path.exists(self.at("done.1")), "all have printed all")
        p.ends(0, settle_s=5)


class GoOn(Case):
    def test_a_rank_dies(self):
        p = self.over_ssh("--go-on", self.rank('[ $RANK = 1 ] && kill -KILL $$; sleep 0.5'))
        self.assertRegex(p.stderr, r"rank 1 on h1 was killed by signal 9 \(Killed\) [\d.]+ s after the start; the others continue, if they can\n")
        self.assertNotIn("error", p.stderr)

    def test_rank_0_ends_all(self):
        self.over_ssh("--go-on", self.rank('[ $RANK = 0 ] || exec sleep 100'))
        self.assertIn("rank 0 on h1 ended with exit status 1", self.over_ssh("--go-on", self.rank('[ $RANK = 0 ] || exec sleep 1; exit 1'), status=1).stderr)

    def test_words_that_are_refused_end_all(self):
        self.assertIn("rank 1 on h1 ended with exit status 2", self.over_ssh("--go-on", self.rank('[ $RANK = 1 ] || exec sleep 1; exit 2'), status=2).stderr)


if __name__ == "__main__":
    unittest.main()
