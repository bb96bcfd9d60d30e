#!/usr/bin/env python3
"""The secret of a job on this host: its roles have it, and nobody finds it on a command line, in a file of the run or,
as another user, anywhere. And what a star says where it cannot be started as it is asked to."""
import glob
import os
import re
import resource
import subprocess
import tempfile
import time
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
STARRING = os.environ.get("STARRING", os.path.join(TOP, "build", "starring"))
MODEL = ["--model", "tiny", "--seq", "16", "--batch", "2", "--topology", "ps:sync", "--workers", "2", "--servers", "2"]
LIMIT_S = 120
STRANGER = 54321


def environment_of(pid):
    with open(f"/proc/{pid}/environ", "rb") as f:
        return dict(x.split(b"=", 1) for x in f.read().split(b"\0") if b"=" in x)


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
        return [int(x) for x in f.read().split()]


def as_nobody():
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)


def as_stranger(threads):
    """Nobody else's processes count against the limit of this user's."""
    os.setgroups([])
    os.setgid(STRANGER)
    resource.setrlimit(resource.RLIMIT_NPROC, (threads, threads))
    os.setuid(STRANGER)


def star(*more, env=None, limits=None, threads=None):
    def begin():
        if limits:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limits, limits))
        if threads:
            as_stranger(threads)
    e = {k: v for k, v in os.environ.items() if k != "STARRING_JOB_SECRET"} | (env or {})
    return subprocess.run([STARRING, "train", *MODEL, *more], env=e, preexec_fn=begin, capture_output=True, text=True,
                          timeout=LIMIT_S, check=False)


class Secret(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_where_the_secret_is(self):
        out = os.path.join(self.folder, "run")
        env = {k: v for k, v in os.environ.items() if k != "STARRING_JOB_SECRET"}
        job = subprocess.Popen([STARRING, "train", *MODEL, "--steps", "100000", "--out", out], env=env,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            end = time.monotonic() + LIMIT_S
            metrics = os.path.join(out, "metrics.jsonl")
            while not (os.path.exists(metrics) and os.path.getsize(metrics)) and time.monotonic() < end:
                time.sleep(0.05)
            roles = children_of(job.pid)
            self.assertEqual(len(roles), 5)
            secrets = {environment_of(pid).get(b"STARRING_JOB_SECRET", b"") for pid in roles}
            self.assertEqual(len(secrets), 1)
            secret = secrets.pop()
            self.assertRegex(secret, rb"^[0-9a-f]{64}$")
            for pid in [job.pid, *roles]:
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    self.assertNotIn(secret, f.read())
            for name in glob.glob(out + "/**", recursive=True):
                if os.path.isfile(name):
                    with open(name, "rb") as f:
                        self.assertNotIn(secret, f.read(), name)
            if os.geteuid() == 0:
                seen = subprocess.run(["/bin/cat", *(f"/proc/{pid}/environ" for pid in roles)], preexec_fn=as_nobody,
                                      cwd="/", capture_output=True, text=True, check=False)
                self.assertEqual(seen.stdout, "")
                self.assertEqual(seen.stderr.count("Permission denied"), len(roles), seen.stderr)
        finally:
            job.terminate()
            job.wait(LIMIT_S)

    def test_every_job_has_its_own(self):
        bits = set()
        for i in range(2):
            r = star("--steps", "2", "--out", os.path.join(self.folder, str(i)))
            self.assertEqual(r.returncode, 0, r.stderr)
            bits.add(re.search(r"hash ([0-9a-f]{16})", r.stdout).group(1))
        r = star("--steps", "2", "--out", os.path.join(self.folder, "given"),
                 env={"STARRING_JOB_SECRET": "of somebody who starts all roles by hand"})
        self.assertEqual(r.returncode, 0, r.stderr)
        bits.add(re.search(r"hash ([0-9a-f]{16})", r.stdout).group(1))
        self.assertEqual(len(bits), 1)
        r = star("--steps", "2", env={"STARRING_JOB_SECRET": "too short"})
        self.assertNotEqual(r.returncode, 0)
        self.assertIn("STARRING_JOB_SECRET has 9 characters", r.stderr)

    def test_other_addresses(self):
        for address in ("tcp://0.0.0.0:*", "tcp://*:*", "tcp://192.0.2.1:*"):
            r = star("--steps", "2", "--set", f"parameter_server.bind={address}")
            self.assertEqual(r.returncode, 2, r.stderr)
            self.assertIn(f"parameter_server.bind {address}", r.stderr)
            self.assertIn("starring keygen", r.stderr)
            self.assertIn("--insecure", r.stderr)
        r = star("--steps", "2", "--set", "parameter_server.bind=tcp://127.0.0.2:*", "--out", self.folder + "/two")
        self.assertEqual(r.returncode, 0, r.stderr)

    # libzmq ends a process that finds no descriptor, and a scheduler that had 12 blamed a server.
    def test_few_descriptors(self):
        for limit in (8, 12, 20):
            r = star("--steps", "2", "--out", self.folder + "/few", limits=limit)
            self.assertNotIn(r.returncode, (0, 134, -6), r.stderr)
            self.assertIn(f"may have {limit} files and connections open", r.stderr)
            self.assertIn("ulimit -n", r.stderr)
            self.assertNotIn("ssertion", r.stderr)
        r = star("--steps", "2", "--out", self.folder + "/enough", limits=64)
        self.assertEqual(r.returncode, 0, r.stderr)

    # libzmq ends a process whose threads cannot be started.
    @unittest.skipUnless(os.geteuid() == 0, "the limit of processes is tried as another user")
    def test_few_threads(self):
        reach = subprocess.run(["test", "-x", STARRING], preexec_fn=lambda: as_stranger(64), check=False)
        if reach.returncode != 0:
            self.skipTest("another user cannot reach the program")
        os.chmod(self.folder, 0o777)
        for limit in (1, 2, 3, 4, 6, 9, 12, 16, 20):
            r = star("--steps", "2", "--out", f"{self.folder}/few{limit}", threads=limit)
            self.assertEqual(r.returncode, 1, (limit, r.stderr))
            self.assertIn("ulimit -u", r.stderr)
            self.assertNotIn("signal", r.stderr)


if __name__ == "__main__":
    unittest.main()
