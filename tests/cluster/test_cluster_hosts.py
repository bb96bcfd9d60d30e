#!/usr/bin/env python3
"""The hosts that tests of clusters run on: apart where hosts are apart, joined by a network that can be cut, and gone at the end with
all that ran on them; sshd, Slurm and mpirun work there. No training: what is tested is the ground under the other tests."""
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs
from drill import processes
from fixture_hosts import Hosts
from fixture_slurm import TOOLS, Slurm


class Apart(Runs):
    shared, corpus = True, 3

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.hosts = Hosts(cls, 3, shared=True)

    def each(self, *words):
        return [host.run(*words).stdout for host in self.hosts.all]

    def test_names_and_boots_differ(self):
        self.assertEqual(self.each("hostname"), ["h1\n", "h2\n", "h3\n"])
        self.assertEqual(len(set(self.each("cat", "/proc/sys/kernel/random/boot_id"))), 3)

    def test_files_are_apart_but_those_of_the_shared_folder(self):
        h1, h2, _ = self.hosts.all
        h1.run("sh", "-c", "echo a >own; echo b >shared/both; echo c >/dev/shm/starring-test; echo d >/run/own-too")
        for path in ("own", "/dev/shm/starring-test", "/run/own-too"):
            self.assertTrue(os.path.exists(h1.path(path)))
            self.assertFalse(os.path.exists(h2.path(path)), path)
        self.assertEqual(h2.run("cat", "shared/both").stdout, "b\n")
        self.assertFalse(os.path.exists(self.at("own")))
        self.assertFalse(os.path.exists("/run/own-too"))
        self.assertEqual(self.each("cat", "text.txt"), [self.read("text.txt")] * 3)

    def reaches(self, host, other):
        """Whether a connection from host gets an answer of other within a second."""
        words = f"import socket; socket.create_connection(('{other}', 9), 1)"
        said = host.run("python3", "-c", words, status=None).stderr
        return "refused" in said.lower()

    def test_a_host_that_is_cut_off(self):
        h1, h2, _ = self.hosts.all
        self.assertTrue(self.reaches(h2, "h1"))
        h1.cut()
        self.assertFalse(self.reaches(h2, "h1"))
        self.assertTrue(self.reaches(h2, "h3"))
        h1.join()
        self.assertTrue(self.reaches(h2, "h1"))
        with h1.dropping(0.5):
            words = ("import errno, socket, time\nfor i in range(60):\n    s = socket.socket()\n    s.settimeout(0.02)\n"
                     "    print(errno.errorcode.get(s.connect_ex(('h1', 9))))\n    time.sleep(0.01)")
            self.assertLessEqual({"ECONNREFUSED", "EAGAIN"}, set(h2.run("python3", "-c", words).stdout.split()))
        self.assertTrue(self.reaches(h2, "h1"))

    def test_a_name_that_nobody_has(self):
        """No resolver is asked for it, which would fail in another way."""
        words = "import socket; socket.getaddrinfo('nowhere.example', 9)"
        self.assertIn("Name or service not known", self.hosts[1].run("python3", "-c", words, status=None).stderr)


class Gone(Runs):
    def test_nothing_is_left(self):
        script = self.write(f"""
import sys, unittest
sys.path[:0] = [{os.path.dirname(os.path.abspath(__file__))!r}, {os.path.join(os.path.dirname(os.path.abspath(__file__)), '..')!r}]
from fixture import Runs
from fixture_hosts import Hosts
class Test(Runs):
    def test(self):
        hosts = Hosts(self, 2)
        hosts[1].daemon("sleep", "1000", ready=lambda: True)
        hosts[1].run("sh", "-c", "sleep 1001 >own 2>&1 & : it stays behind")
        print("FOLDER", self.folder, hosts.lab.prefix, hosts[0].pid, hosts[1].pid)
        hosts[0].vanish()
unittest.main()
""", "inner.py")
        p = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
        self.assertEqual(p.returncode, 0, p.stderr)
        if "skipped=1" in p.stderr:
            self.skipTest("no hosts here")
        folder, prefix, *pids = next(line for line in p.stdout.splitlines() if line.startswith("FOLDER")).split()[1:]
        self.assertFalse(os.path.exists(folder))
        self.assertEqual([name for name in os.listdir("/run/netns") if name.startswith(prefix)], [])
        for pid in pids:
            self.assertFalse(os.path.exists(f"/proc/{pid}"))
        self.assertNotIn(b"sleep\x001001\x00", [processes.read(f"/proc/{pid}/cmdline") for pid in os.listdir("/proc") if pid.isdigit()])


class Services(Runs):
    """Two hosts with each service."""
    corpus = 3

    def test_ssh(self):
        hosts = Hosts(self, 2, ssh=True)
        self.assertEqual(hosts[0].run("ssh", "-o", "BatchMode=yes", "h2", "hostname").stdout, "h2\n")
        p = hosts[0].start(self, "ssh", "h2", "sh", "-c", "'sleep 1000; :'")
        p.until(lambda: len(p.left()) > 2, "what ssh began has its mark too")

    def test_slurm(self):
        hosts = Hosts(self, 2, tools=TOOLS)
        slurm = Slurm(hosts)
        p = slurm.start(self, "srun", "-N", "2", "--ntasks-per-node", "2", "sh", "-c", "echo $SLURM_PROCID $(hostname)")
        p.ends()
        self.assertEqual(sorted(p.printed().split("\n")), ["", "0 h1", "1 h1", "2 h2", "3 h2"])
        with open(hosts[0].path("job.sh"), "w", encoding="utf-8") as f:
            f.write("#!/bin/sh\n#SBATCH -N 2\nsrun hostname\nexit 3\n")
        slurm.start(self, "sbatch", "--wait", "-o", "job.out", "job.sh").ends(3)
        with open(hosts[0].path("job.out"), encoding="utf-8") as f:
            self.assertEqual(sorted(f.read().split()), ["h1", "h2"])

    def test_mpirun(self):
        hosts = Hosts(self, 2, ssh=True, tools=("mpirun",))
        p = hosts[0].start(self, "mpirun", "-H", "h1:1,h2:1", "hostname")
        p.ends()
        self.assertEqual(sorted(p.printed().split()), ["h1", "h2"])


if __name__ == "__main__":
    unittest.main()
