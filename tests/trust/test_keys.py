#!/usr/bin/env python3
"""Keys of a star as people meet them: `starring keygen`, what is refused and in which words, and whole jobs of roles that are
started one by one."""
import os
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs, free_port

SIZE = ["--model", "tiny", "--data", "demo", "--seq", "16", "--batch", "1", "--threads", "1", "--steps", "3", "--set", "eval_batches=none"]


class Case(Runs):
    def setUp(self):
        super().setUp()
        # A place of this test's own for the secrets of schedulers started by hand.
        os.mkdir(self.at("runtime"), 0o700)
        self.env = {"XDG_RUNTIME_DIR": self.at("runtime")}

    def start(self, *words, env=None, **how):
        return super().start(*words, env=self.env | (env or {}), **how)

    def run_it(self, *words, env=None, **how):
        return super().run_it(*words, env=self.env | (env or {}), **how)

    def is_refused(self, words, *said, status=2):
        err = self.refused(*words, said=said, status=status)
        self.assertEqual(err.count("starring: error"), 1, err)
        return err

    def keygen(self, name="keys", workers=2, servers=1):
        p = self.run_it("keygen", name, "--workers", str(workers), "--servers", str(servers))
        self.assertEqual(p.stderr, "")
        return p.stdout


def contents(directory):
    found = {}
    for name in sorted(os.listdir(directory)):
        with open(os.path.join(directory, name), encoding="ascii") as f:
            found[name] = f.read()
    return found


class Keygen(Case):
    def test_it_makes_a_key_for_each_role(self):
        out = self.keygen(servers=2)
        self.assertIn("scheduler, 2 servers and 2 workers", out)
        found = contents(self.at("keys"))
        self.assertEqual(list(found), ["public.keys", "scheduler.key", "server-0.key", "server-1.key", "worker-0.key", "worker-1.key"])
        self.assertEqual(stat.S_IMODE(os.stat(self.at("keys")).st_mode), 0o700)
        listed = dict(line.rsplit(" ", 1) for line in found.pop("public.keys").splitlines()[1:])
        secrets = set()
        for name, text in found.items():
            self.assertEqual(stat.S_IMODE(os.stat(self.at("keys", name)).st_mode), 0o600)
            lines = dict(line.split(" ", 1) for line in text.splitlines()[1:])
            self.assertEqual(lines["role"], name[:-4].replace("-", " "))
            self.assertEqual(listed[lines["role"]], lines["public"])
            secrets.add(lines["secret"])
            self.assertNotIn(lines["secret"], out)
        self.assertEqual((len(secrets), len(set(listed.values()))), (5, 5))

    def test_two_directories_share_nothing(self):
        self.keygen("a")
        self.keygen("b")
        lines = [set(re.findall(r"(?:public|secret) (\S{40})", "".join(contents(self.at(d)).values()))) for d in "ab"]
        self.assertEqual((len(lines[0]), lines[0] & lines[1]), (8, set()))

    def test_it_replaces_nothing(self):
        self.keygen()
        before = contents(self.at("keys"))
        self.is_refused(["keygen", "keys"], "keys has ", "already", "replaces no key", status=1)
        os.unlink(self.at("keys", "public.keys"))
        self.is_refused(["keygen", "keys", "--workers", "3"], "already", "replaces no key", status=1)
        before.pop("public.keys")
        self.assertEqual(contents(self.at("keys")), before)

    def test_it_leaves_all_or_nothing(self):
        # The disk takes files of 200 bytes: each key, and not the list behind them.
        def small_files():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
        p = self.run_it("keygen", "keys", status=1, preexec_fn=small_files)
        self.assertIn("keys/public.keys: cannot write: File too large", p.stderr)
        self.assertEqual(os.listdir(self.at("keys")), [])

    def test_a_directory_that_others_write_in(self):
        os.mkdir(self.at("open"))
        os.chmod(self.at("open"), 0o777)
        self.is_refused(["keygen", "open"], "others than its owner can write in it", "chmod go-w", status=1)
        self.assertEqual(os.listdir(self.at("open")), [])

    def test_wrong_words(self):
        self.is_refused(["keygen"], "in which directory?")
        self.is_refused(["keygen", "a", "b"], "unexpected word \"b\"")
        self.is_refused(["keygen", "a", "--workers", "0"], "--workers")
        self.is_refused(["keygen", "a", "--servers", "4097"], "--servers")
        self.is_refused(["keygen", "none/a"], "none/a: No such file", status=1)
        self.assertFalse(os.path.exists(self.at("a")))


class Refusals(Case):
    """Before anything is started: a star on other addresses than loopback, and keys that are not as they should be."""

    STAR = ["--topology", "ps:sync", "--workers", "2", *SIZE]
    WORDS = ("that is not this host alone, and whoever reaches it could join", "starring keygen DIR --workers 2 --servers 1",
             "every role --keys DIR", "--insecure", "anybody who reaches the ports may join")

    def train(self, *words):
        return ["train", *self.STAR, "--out", "r", *words]

    def test_addresses_that_others_reach(self):
        for address in ("tcp://0.0.0.0:*", "tcp://*:*", "tcp://192.0.2.1:*", "tcp://[::]:*", "tcp://example.org:9000", "tcp://localhost.example.org:1",
                        "tcp://127.0.0.1.example.org:1", "tcp://eth0:*", "tcp://[2001:db8::1]:9"):
            said = self.is_refused(self.train("--set", f"parameter_server.bind={address}"), f"parameter_server.bind {address}: ", *self.WORDS)
            self.assertNotIn("security.keys", said)
        self.assertFalse(os.path.exists(self.at("r")))

    def test_each_flag_of_a_role(self):
        far, near = "tcp://192.0.2.1:9000", "tcp://127.0.0.1:9000"
        self.is_refused(["scheduler", *self.STAR, "--bind", "tcp://0.0.0.0:9000"], "--bind tcp://0.0.0.0:9000: ", *self.WORDS)
        for role in ("server", "worker"):
            self.is_refused([role, *self.STAR, "--scheduler", far], f"--scheduler {far}: ", *self.WORDS)
        self.is_refused(["server", *self.STAR, "--scheduler", near, "--advertise", "node1"], "--advertise node1: ", *self.WORDS)
        self.is_refused(["server", *self.STAR, "--scheduler", near, "--set", "parameter_server.bind=tcp://0.0.0.0:*"],
                     "parameter_server.bind tcp://0.0.0.0:*: ", *self.WORDS)

    def test_topologies_without_a_star(self):
        for topology in ("local", "zero:1"):
            self.is_refused(["train", "--topology", topology, *SIZE, "--insecure"], "--insecure: security.insecure is of the star's processes",
                         topology, "ps:sync")
            self.is_refused(["train", "--topology", topology, *SIZE, "--keys", "k"], "--keys: security.keys is of the star's", topology)

    def test_both(self):
        self.is_refused(self.train("--keys", "k", "--insecure"), "security.keys k", "security.insecure", "give one of them")

    def test_a_directory_that_is_not_there(self):
        self.is_refused(self.train("--keys", "nowhere"), "nowhere/public.keys: No such file", "starring keygen")

    def test_fewer_keys_than_ranks(self):
        self.keygen(workers=1)
        self.is_refused(self.train("--keys", "keys"), "--keys keys: it has the keys of 1 worker, and the job has 2", "starring keygen")

    def test_each_file_of_the_job(self):
        self.keygen(workers=2)
        self.keygen("other", workers=2)
        for name in ("scheduler.key", "server-0.key", "worker-1.key"):
            path, away = self.at("keys", name), self.at("away")
            os.chmod(path, 0o640)
            self.is_refused(self.train("--keys", "keys"), f"keys/{name}: others than its owner can read a secret key (mode 0640)", "chmod 600")
            os.chmod(path, 0o600)
            os.rename(path, away)
            self.is_refused(self.train("--keys", "keys"), f"keys/{name}: No such file")
            shutil.copy2(self.at("other", name), path)
            self.is_refused(self.train("--keys", "keys"), f"keys/{name}: keys/public.keys has another key for {name[:-4].replace('-', ' ')}",
                         "one `starring keygen`")
            os.unlink(path)
            os.rename(away, path)
        shutil.copy2(self.at("keys", "worker-0.key"), self.at("keys", "worker-1.key"))
        self.is_refused(self.train("--keys", "keys"), "keys/worker-1.key: this is the key of worker 0, not of worker 1")
        self.assertFalse(os.path.exists(self.at("r")))


    def test_a_directory_that_others_write_in(self):
        # A user who may put another job's public.keys in its place decides on members, though he writes no file of it.
        self.keygen()
        for mode in (0o777, 0o770):
            os.chmod(self.at("keys"), mode)
            self.is_refused(self.train("--keys", "keys"), f"keys: others than its owner can write in it (mode {mode:04o})", "chmod go-w 'keys'")
        os.chmod(self.at("keys"), 0o700)
        if os.geteuid() == 0:
            os.chown(self.at("keys"), 65534, -1)
            self.is_refused(self.train("--keys", "keys"), "keys: the directory of another user (65534)")
            os.mkdir(self.at("theirs"))
            os.chown(self.at("theirs"), 65534, -1)
            self.is_refused(["keygen", "theirs"], "theirs: the directory of another user (65534)", status=1)

    def test_lines_of_windows(self):
        self.keygen()
        for name in ("worker-0.key", "public.keys"):
            with open(self.at("keys", name), "rb+") as f:
                text = f.read().replace(b"\n", b"\r\n")
                f.seek(0)
                f.write(text)
            self.is_refused(self.train("--keys", "keys"), f"keys/{name}: its lines end as on Windows (CRLF): copy it again")


def own_address():
    """An address of this machine that other machines could reach; None where it has none."""
    try:
        found = subprocess.run(["hostname", "-I"], capture_output=True, text=True, timeout=10, check=False).stdout.split()
    except OSError:
        return None
    return next((a for a in found if re.fullmatch(r"[0-9.]+", a) and not a.startswith("127.")), None)


class Hand(Case):
    """Two workers and a server, started one by one."""

    JOB = ["--topology", "ps:sync", "--workers", "2", *SIZE, "--set", "parameter_server.deadline_ms=20000"]

    def roles(self, address, words, ranks=(0, 0, 1), server=(), **env):
        """scheduler, server, worker 0, worker 1, all told `words`; ranks: what the last three are told, None: nothing."""
        at = f"tcp://{address}:{free_port(address)}"
        p = [self.start("scheduler", *self.JOB, *words, "--bind", at, env=env)]
        bind = ["--set", f"parameter_server.bind=tcp://{address}:*"]
        for (role, more), rank in zip((("server", [*bind, *server]), ("worker", []), ("worker", [])), ranks):
            rank = [] if rank is None else ["--rank", str(rank)]
            p.append(self.start(role, *self.JOB, *words, *more, *rank, "--out", "run", "--scheduler", at, env=env))
        return p

    def end_well(self, roles):
        for p in roles:
            p.ends()
        return self.summary("run")

    def undisturbed(self):
        self.run_it("train", *self.JOB, "--out", "undisturbed")
        return self.hash("undisturbed")


class Job(Hand):
    """Whole jobs."""

    def test_by_hand_on_loopback(self):
        # No flag is needed, and nothing of the secret is left, or seen by others.
        roles = self.roles("127.0.0.1", [])
        summary = self.end_well(roles)
        self.assertEqual((summary["security"], summary["weights_hash"]), ("loopback", self.undisturbed()))
        self.assertIn("security loopback: ", roles[2].printed())
        self.assertEqual(os.listdir(self.at("runtime")), [])

    def test_by_hand_with_a_secret_from_the_environment(self):
        env = {"STARRING_JOB_SECRET": "a secret of thirty-two characters", "XDG_RUNTIME_DIR": ""}
        self.assertEqual(self.end_well(self.roles("127.0.0.1", [], **env))["security"], "loopback")
        p = self.run_it("worker", *self.JOB, "--scheduler", "tcp://127.0.0.1:9", status=1, env={"STARRING_JOB_SECRET": "short"})
        self.assertIn("STARRING_JOB_SECRET has 5 characters", p.stderr)

    def test_keys_over_an_address_of_this_machine(self):
        address = own_address()
        if not address:
            self.skipTest("this machine has no address but loopback")
        self.keygen()
        # Of a role that has one key here nobody has to say which.
        os.mkdir(self.at("node"), 0o700)
        for name in ("public.keys", "server-0.key"):
            shutil.copy2(self.at("keys", name), self.at("node", name))
        roles = self.roles(address, ["--keys", "keys"], (None, 0, 1), ["--keys", "node"])
        summary = self.end_well(roles)
        self.assertEqual((summary["security"], summary["weights_hash"]), ("curve", self.undisturbed()))
        self.assertIn("security curve: ", roles[2].printed())

    def test_insecure_over_an_address_of_this_machine(self):
        address = own_address()
        if not address:
            self.skipTest("this machine has no address but loopback")
        roles = self.roles(address, ["--insecure"])
        self.assertEqual(self.end_well(roles)["security"], "insecure")
        self.assertIn("security insecure: ANYBODY WHO REACHES THE PORTS", roles[2].printed())
        self.assertIn("ANYBODY", roles[0].said())  # the scheduler, which is started first

    def test_the_launcher_with_keys(self):
        self.keygen()
        self.assertIn("security curve: ", self.run_it("train", *self.JOB, "--keys", "keys", "--out", "run").stdout)
        summary = self.summary("run")
        self.assertEqual((summary["security"], summary["weights_hash"]), ("curve", self.undisturbed()))
        # No secret is in any file of the run.
        secrets = [re.search(r"secret (\S+)", text).group(1).encode() for name, text in contents(self.at("keys")).items() if name.endswith(".key")]
        for folder, _, names in os.walk(self.at("run")):
            for name in names:
                with open(os.path.join(folder, name), "rb") as f:
                    found = f.read()
                self.assertFalse([s for s in secrets if s in found], name)


class Impostors(Hand):
    """Roles that show what they should not have, beside a job that waits for the right one: they are told so, with the name of
    the file, and the job is as if they had not been there."""

    PATIENT = ["--set", "parameter_server.deadline_ms=60000"]

    def setUp(self):
        super().setUp()
        self.keygen()
        self.keygen("other")
        self.at_scheduler = f"tcp://127.0.0.1:{free_port()}"

    def swap(self, directory, owner, other_directory, other_owner):
        """`directory` becomes a copy of keys in which `owner` has the other's pair, in its own file and in public.keys."""
        shutil.copytree(self.at("keys"), self.at(directory))
        name = owner.replace(" ", "-") + ".key"
        theirs = contents(self.at(other_directory))[other_owner.replace(" ", "-") + ".key"]
        mine, yours = (re.search(rf"(?m)^{who} (\S+)$", contents(self.at(d))["public.keys"]).group(1)
                       for d, who in ((directory, owner), (other_directory, other_owner)))
        with open(self.at(directory, name), "w", encoding="ascii") as f:
            f.write(theirs.replace(f"role {other_owner}", f"role {owner}"))
        lines = [line for line in contents(self.at(directory))["public.keys"].splitlines() if owner == other_owner or not line.startswith(other_owner)]
        with open(self.at(directory, "public.keys"), "w", encoding="ascii") as f:
            f.write("\n".join(lines).replace(mine, yours) + "\n")

    def beside(self, words, impostors, **env):
        """A job with a worker 0 that comes last; before it the impostors, [(words, environment, texts)]: each fails with the texts."""
        job = [*self.JOB, *self.PATIENT]
        there = [self.start("scheduler", *job, *words, "--bind", self.at_scheduler, env=env)]
        joins = ["--scheduler", self.at_scheduler, "--out", "run"]
        there += [self.start(role, *job, *words, *joins, "--rank", str(rank), env=env) for role, rank in (("server", 0), ("worker", 1))]
        for more, their_env, texts in impostors:
            self.refused("worker", *self.JOB, *joins, "--rank", "0", *more, said=texts, status=1, env=their_env)
        there.append(self.start("worker", *job, *words, *joins, "--rank", "0", env=env))
        self.assertEqual(self.end_well(there)["weights_hash"], self.undisturbed())

    def test_keys_that_are_not_the_jobs(self):
        self.swap("stranger", "worker 0", "other", "worker 0")
        self.swap("colleague", "worker 0", "keys", "worker 1")
        self.beside(["--keys", "keys"], [
            (["--keys", "stranger"], {}, ["refuses the key stranger/worker-0.key of worker 0", "its public.keys does not have it"]),
            (["--keys", "colleague"], {}, ["who says that it is worker 0 shows the key of worker 1", "its own .key file"]),
            (["--keys", "other"], {}, ["is not the scheduler of other/public.keys"]),
            (["--insecure"], {}, ["does not speak as this role does", "all roles with --keys"]),
            ([], {"STARRING_JOB_SECRET": 32 * "x"}, ["is not the scheduler of this job's secret"]),
        ])

    def test_a_job_without_keys(self):
        self.beside([], [
            (["--keys", "keys"], {}, ["is not the scheduler of keys/public.keys"]),
            (["--insecure"], {}, ["does not speak as this role does"]),
            ([], {"STARRING_JOB_SECRET": 32 * "x"}, ["is not the scheduler of this job's secret"]),
        ])

    def test_a_member_without_the_secret(self):
        # Another user's place, where the scheduler has left nothing.
        self.start("scheduler", *self.JOB, "--bind", self.at_scheduler)
        os.mkdir(self.at("elsewhere"), 0o700)
        self.refused("worker", *self.JOB, "--set", "parameter_server.deadline_ms=2000", "--scheduler", self.at_scheduler, status=1,
                     env={"XDG_RUNTIME_DIR": self.at("elsewhere")},
                     said=("no secret of the scheduler at " + self.at_scheduler, "as one user", "STARRING_JOB_SECRET", "--keys DIR"))


if __name__ == "__main__":
    unittest.main()
