#!/usr/bin/env python3
"""The key of a job on this host: its roles have it, and nobody finds it on a command line, in a file of the run or,
as another user, anywhere. And what a star says where it cannot be started as it is asked to."""
import glob
import os
import re
import resource
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import JOB_KEY, PROGRAM, Runs, processes

MODEL = ["--model", "tiny", "--seq", "16", "--batch", "2", "--topology", "ps:sync", "--workers", "2", "--servers", "2"]
STRANGER = 54321


def as_nobody():
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)


def as_stranger(threads):
    """Other users' processes do not count against the limit of this user's."""
    os.setgroups([])
    os.setgid(STRANGER)
    resource.setrlimit(resource.RLIMIT_NPROC, (threads, threads))
    os.setuid(STRANGER)


class Secret(Runs):
    def star(self, *more, status=0, limits=None, threads=None, **how):
        def begin():
            if limits:
                resource.setrlimit(resource.RLIMIT_NOFILE, (limits, limits))
            if threads:
                as_stranger(threads)
        return self.run_it("train", *MODEL, *more, preexec_fn=begin, status=status, **how)

    def test_where_the_secret_is(self):
        job = self.start("train", *MODEL, "--steps", "100000", "--out", "run")
        job.behind(1)
        roles = [pid for role, pid in job.roles().items() if role]
        self.assertEqual(len(roles), 4)  # the scheduler is the launcher
        secrets = {processes.environment_of(pid).get("STARRING_JOB_KEY", "") for pid in roles}
        self.assertEqual(len(secrets), 1)
        secret = secrets.pop()
        self.assertRegex(secret, "^[0-9a-f]{64}$")
        for pid in [job.pid, *roles]:
            self.assertNotIn(secret.encode(), processes.read(f"/proc/{pid}/cmdline"))
        for name in glob.glob(self.at("run", "**"), recursive=True):
            if os.path.isfile(name):
                with open(name, "rb") as f:
                    self.assertNotIn(secret.encode(), f.read(), name)
        if os.geteuid() == 0:
            seen = subprocess.run(["/bin/cat", *(f"/proc/{pid}/environ" for pid in roles)], preexec_fn=as_nobody,
                                  cwd="/", capture_output=True, text=True, check=False)
            self.assertEqual(seen.stdout, "")
            self.assertEqual(seen.stderr.count("Permission denied"), len(roles), seen.stderr)

    def test_every_job_has_its_own(self):
        given = {"STARRING_JOB_KEY": JOB_KEY}
        said = [self.star("--steps", "2", "--out", str(i), env=env).stdout for i, env in enumerate((None, None, given))]
        self.assertEqual(len({re.search(r"hash ([0-9a-f]{16})", words).group(1) for words in said}), 1)

    def test_other_addresses(self):
        self.star("--steps", "2", "--set", "parameter_server.bind=tcp://127.0.0.2:*", "--out", "two")

    # libzmq ends a process that finds no descriptor, and a scheduler that had 12 blamed a server.
    def test_few_descriptors(self):
        for limit in (8, 12, 20):
            r = self.star("--steps", "2", "--out", "few", limits=limit, status=None)
            self.assertNotIn(r.returncode, (0, 134, -6), r.stderr)
            self.assertIn(f"may have {limit} files and connections open", r.stderr)
            self.assertIn("ulimit -n", r.stderr)
            self.assertNotIn("ssertion", r.stderr)
        self.star("--steps", "2", "--out", "enough", limits=64)

    # libzmq ends a process whose threads cannot be started.
    @unittest.skipUnless(os.geteuid() == 0, "the limit of processes is tried as another user")
    def test_few_threads(self):
        reach = subprocess.run(["test", "-x", PROGRAM], preexec_fn=lambda: as_stranger(64), check=False)
        if reach.returncode != 0:
            self.skipTest("another user cannot reach the program")
        os.chmod(self.folder, 0o777)
        for limit in (1, 2, 3, 4, 6, 9, 12, 16, 20):
            r = self.star("--steps", "2", "--out", f"few{limit}", threads=limit, status=1)
            self.assertIn("ulimit -u", r.stderr)
            self.assertNotIn("signal", r.stderr)


if __name__ == "__main__":
    unittest.main()
