#!/usr/bin/env python3
"""The key of a job as people meet it: `starring keygen`, what is refused and in which words, and whole jobs of roles that are
started one by one."""
import os
import re
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import JOB_KEY, PROGRAM, Runs, free_port

SIZE = ["--model", "tiny", "--data", "demo", "--seq", "16", "--batch", "1", "--threads", "1", "--steps", "3", "--set", "eval_batches=none"]
STAR = ["--topology", "ps:sync", "--workers", "2", *SIZE]
MAKE = "export STARRING_JOB_KEY=$(starring keygen)"


def with_key(key):
    return {"STARRING_JOB_KEY": key}


class Case(Runs):
    def is_refused(self, words, *said, status=2, **how):
        err = self.refused(*words, said=said, status=status, **how)
        self.assertEqual(err.count("starring: error"), 1, err)
        return err


class Keygen(Case):
    def test_it_prints_a_key(self):
        keys = set()
        for _ in range(3):
            p = self.run_it("keygen")
            self.assertEqual(p.stderr, "")
            self.assertRegex(p.stdout, r"\A[0-9a-f]{64}\n\Z")
            keys.add(p.stdout)
        self.assertEqual(len(keys), 3)

    def test_a_file_that_others_can_read(self):
        for mode in (0o644, 0o640, 0o604, 0o600):
            with open(self.at("job.key"), "w", encoding="ascii") as f:
                os.chmod(self.at("job.key"), mode)
                p = subprocess.run([PROGRAM, "keygen"], stdout=f, stderr=subprocess.PIPE, text=True, check=False)
            if mode == 0o600:
                self.assertEqual((p.returncode, len(self.read("job.key"))), (0, 65), p.stderr)
            else:
                self.assertEqual((p.returncode, self.read("job.key")), (1, ""), p.stderr)
                self.assertIn(f"others can read the file that the key would go to (mode {mode:04o}): remove it, and (umask 077;", p.stderr)

    def test_what_it_made_before(self):
        for words in (["keys"], ["keys", "--workers", "2", "--servers", "2"], ["--workers", "2"], ["--servers", "1"]):
            self.is_refused(["keygen", *words], "keygen takes no directory and no numbers: all processes of a job have one key", MAKE)
        self.assertEqual(os.listdir(self.folder), [])


class Refusals(Case):
    """Before anything is started."""

    def train(self, *words):
        return ["train", *STAR, "--out", "r", *words]

    def test_a_role_without_a_key(self):
        for address in ("tcp://127.0.0.1:9000", "tcp://192.0.2.1:9000"):
            for role, *words in (("scheduler", "--bind", address), ("server", "--rank", "0", "--scheduler", address),
                                  ("worker", "--rank", "0", "--scheduler", address)):
                self.is_refused([role, *STAR, *words], "no key: any process that reaches", MAKE, "all of them --insecure, so that any process may join",
                                env=with_key(""))

    def test_what_is_no_key(self):
        for words in (self.train(), ["worker", *STAR, "--rank", "0", "--scheduler", "tcp://127.0.0.1:9"]):
            for key in ("short", JOB_KEY[:-1], JOB_KEY + "0", "x" * 64):
                said = self.is_refused(words, "STARRING_JOB_KEY is not 64 hexadecimal digits", MAKE, env=with_key(key))
                self.assertNotIn(key, said)
        self.is_refused(self.train(), "STARRING_JOB_SECRET is no longer read", MAKE, env={"STARRING_JOB_SECRET": "x" * 32})
        self.assertFalse(os.path.exists(self.at("r")))

    def test_a_key_and_nobody_asked(self):
        for words in (self.train("--insecure"), ["worker", *STAR, "--rank", "0", "--insecure", "--scheduler", "tcp://127.0.0.1:9"]):
            self.is_refused(words, "--insecure admits every process, and STARRING_JOB_KEY only those that have it: leave one of them out",
                            env=with_key(JOB_KEY))

    def test_a_key_of_each_role(self):
        self.is_refused(self.train("--keys", "keys"), "unknown option --keys: all processes of a job have one key", MAKE)
        self.is_refused(self.train("--set", "security.keys=keys"), "security.keys: all processes of a job have one key", MAKE)

    def test_topologies_without_a_star(self):
        for topology in ("local", "zero:1"):
            self.is_refused(["train", "--topology", topology, *SIZE, "--insecure"], "--insecure: security.insecure is a key of a star's processes",
                            topology, "ps:sync")


def own_address():
    """An address of this machine that other machines could reach; None where it has none."""
    try:
        found = subprocess.run(["hostname", "-I"], capture_output=True, text=True, timeout=10, check=False).stdout.split()
    except OSError:
        return None
    return next((a for a in found if re.fullmatch(r"[0-9.]+", a) and not a.startswith("127.")), None)


class Hand(Case):
    """Two workers and a server, started one by one."""

    JOB = [*STAR, "--set", "parameter_server.deadline_ms=20000"]

    def roles(self, address, words, **env):
        """scheduler, server, worker 0, worker 1, all told `words`."""
        at = f"tcp://{address}:{free_port(address)}"
        p = [self.start("scheduler", *self.JOB, *words, "--bind", at, env=env)]
        bind = ["--set", f"parameter_server.bind=tcp://{address}:*"]
        for role, more, rank in (("server", bind, 0), ("worker", [], 0), ("worker", [], 1)):
            p.append(self.start(role, *self.JOB, *words, *more, "--rank", str(rank), "--out", "run", "--scheduler", at, env=env))
        return p

    def end_well(self, roles):
        for p in roles:
            p.ends()
        return self.summary("run")

    def undisturbed(self):
        self.run_it("train", *self.JOB, "--out", "undisturbed")
        return self.hash("undisturbed")

    def other_address(self):
        address = own_address()
        if not address:
            self.skipTest("this machine has no address but loopback")
        return address

    def is_in_no_file(self, key):
        for folder, _, names in os.walk(self.at("run")):
            for name in names:
                with open(os.path.join(folder, name), "rb") as f:
                    self.assertNotIn(key.encode(), f.read(), name)


class Job(Hand):
    """Whole jobs."""

    def test_by_hand_on_loopback(self):
        key = self.run_it("keygen").stdout.strip()
        roles = self.roles("127.0.0.1", [], **with_key(key))
        summary = self.end_well(roles)
        self.assertEqual((summary["security"], summary["weights_hash"]), ("loopback", self.undisturbed()))
        self.assertIn("security loopback: ", roles[2].printed())
        self.is_in_no_file(key)

    def test_over_an_address_of_this_machine(self):
        roles = self.roles(self.other_address(), [])
        summary = self.end_well(roles)
        self.assertEqual((summary["security"], summary["weights_hash"]), ("job", self.undisturbed()))
        self.assertIn("security job: ", roles[2].printed())
        self.is_in_no_file(JOB_KEY)

    def test_insecure_over_an_address_of_this_machine(self):
        roles = self.roles(self.other_address(), ["--insecure"])
        self.assertEqual(self.end_well(roles)["security"], "insecure")
        self.assertIn("security insecure: ANYBODY WHO REACHES THE PORTS", roles[2].printed())
        self.assertIn("ANYBODY", roles[0].said())  # the scheduler, which is started first

    def test_the_launcher_makes_one_for_any_address(self):
        bind = f"parameter_server.bind=tcp://{self.other_address()}:*"
        self.assertIn("security job: ", self.run_it("train", *self.JOB, "--medium", "tcp", "--set", bind, "--out", "run").stdout)
        summary = self.summary("run")
        self.assertEqual((summary["security"], summary["weights_hash"]), ("job", self.undisturbed()))


class Impostors(Hand):
    """Roles that have another key, or none, beside a job that waits for the right one: they are told so, with the address, and
    the job is as if they had not been there."""

    PATIENT = ["--set", "parameter_server.deadline_ms=60000"]

    def beside(self, words, impostors):
        """A job with a worker 0 that comes last; before it the impostors, [(words, environment)]."""
        at = f"tcp://127.0.0.1:{free_port()}"
        job = [*self.JOB, *self.PATIENT]
        there = [self.start("scheduler", *job, *words, "--bind", at)]
        joins = ["--scheduler", at, "--out", "run"]
        there += [self.start(role, *job, *words, *joins, "--rank", str(rank)) for role, rank in (("server", 0), ("worker", 1))]
        for more, env in impostors:
            self.refused("worker", *self.JOB, *joins, "--rank", "0", *more, status=1, env=env,
                         said=(f"what listens at {at[6:]} does not let this process in: the job's key (STARRING_JOB_KEY) differs there, or one "
                               "side has none, or another program listens: give all roles of the job the same key, or all --insecure"))
        there.append(self.start("worker", *job, *words, *joins, "--rank", "0"))
        self.assertEqual(self.end_well(there)["weights_hash"], self.undisturbed())

    def test_a_job_with_a_key(self):
        self.beside([], [([], with_key("f0" * 32)), (["--insecure"], {})])

    def test_a_job_without_one(self):
        self.beside(["--insecure"], [([], {})])


if __name__ == "__main__":
    unittest.main()
