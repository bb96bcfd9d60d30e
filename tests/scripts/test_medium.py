#!/usr/bin/env python3
"""A star's media between real processes: where shared memory cannot be had --medium shm says who cannot share with whom,
and auto takes tcp; a killed role leaves no memory behind."""
import json
import os
import re
import signal
import subprocess
import time
import unittest

from test_interrupt import FOREVER, PROGRAM, Case

LIMIT_S = 60
APART = ["unshare", "--pid", "--fork"]  # a pid namespace of its own: its process ids name other processes outside


def can_unshare():
    try:
        return subprocess.run([*APART, "true"], capture_output=True, timeout=LIMIT_S, check=False).returncode == 0
    except OSError:
        return False


class Medium(Case):
    def role(self, name, *more, apart=False):
        argv = [PROGRAM, name, "-c", "run.json", "--set", "parameter_server.deadline_ms=20000", *more]
        return self.start(*([*APART] if apart else []), *argv)

    def star(self, medium, *more, workers=(False,)):
        """A star whose one server is in another pid namespace, and those workers that are said to be: worker 0's status and words."""
        args = ["--topology", "ps:sync", "--workers", str(len(workers)), "--servers", "1", "--medium", medium, "--set", "eval_batches=0", *more]
        config = self.run_it(*self.argv("unused", *args, "--print-config", steps="3"))
        self.assertEqual(config.returncode, 0, config.stderr)
        with open(self.at("run.json"), "w", encoding="utf-8") as f:
            f.write(config.stdout)
        scheduler = self.role("scheduler")
        line = scheduler.stderr.readline() or scheduler.stdout.readline()
        address = re.search(r"tcp://\S+", line)
        self.assertTrue(address, line)
        where = "-".join(["out", medium, *more[1:]]) + ("-apart" if any(workers) else "")
        out = ["--scheduler", address.group(), "--out", where]
        server = self.role("server", *out, apart=True)
        roles = [self.role("worker", *out, "--rank", str(rank), apart=apart) for rank, apart in enumerate(workers)]
        words, err = roles[0].communicate(timeout=LIMIT_S)
        for p in *roles[1:], server, scheduler:
            p.communicate(timeout=LIMIT_S)
        return roles[0].returncode, words + err

    @unittest.skipUnless(can_unshare(), "no pid namespace can be made here")
    def test_apart(self):
        status, said = self.star("shm")
        self.assertEqual(status, 1, said)
        self.assertRegex(said, r"--medium shm: worker 0 and server 0 cannot share memory: .*--medium auto")
        status, said = self.star("auto")
        self.assertEqual(status, 0, said)
        with open(self.at("out-auto", "summary.json"), encoding="utf-8") as f:
            self.assertEqual(json.load(f)["medium"], "tcp")

    @unittest.skipUnless(can_unshare(), "no pid namespace can be made here")
    def test_group_of_a_machine(self):
        """Workers of one machine and a server of another: one gradient goes there for all of them, over tcp. A group on two machines
        is told so before its first step."""
        sent, hashes = {}, set()
        for group in "1", "2":
            status, said = self.star("auto", "--reduce-group", group, workers=(False, False))
            self.assertEqual(status, 0, said)
            with open(self.at("out-auto-" + group, "summary.json"), encoding="utf-8") as f:
                summary = json.load(f)
            self.assertEqual(summary["medium"], "tcp")
            self.assertIsNone(summary["totals"]["pss_bytes"])  # nobody has started them all
            hashes.add(summary["weights_hash"])
            own = summary["wire"][0]
            self.assertEqual((own["sent_per_step"], own["received_per_step"]), (own["predicted_sent"], own["predicted_received"]))
            sent[group] = own["across"] if group == "2" else own
            self.assertEqual(sent[group]["sent_per_step"], sent[group]["predicted_sent"])
        self.assertEqual(len(hashes), 1)
        self.assertLess(sent["2"]["sent_per_step"], 0.6 * sent["1"]["sent_per_step"])
        status, said = self.star("auto", "--reduce-group", "2", workers=(False, True))
        self.assertEqual(status, 1, said)
        self.assertRegex(said, "reduce_group 2: workers [01] and [01] are of one group and share no memory: .*--medium tcp")

    def test_a_job_s_memory_is_that_of_all_its_processes(self):
        """Whatever starts and coordinates the ranks counts in both topologies; what they share counts once."""
        ring = ["--topology", "zero:1", "--workers", "2", "--medium", "shm"]
        star = ["--topology", "ps:sync", "--workers", "2", "--servers", "1", "--medium", "shm"]
        for name, args, least in (("local", ["--topology", "local"], 1), ("star", star, 5), ("ring", ring, 3)):
            p = self.run_it(*self.argv(name, *args, "--set", "eval_batches=0", steps="3"))
            self.assertEqual(p.returncode, 0, p.stderr)
            with open(self.at(name, "summary.json"), encoding="utf-8") as f:
                totals = json.load(f)["totals"]
            with open(self.at(name, "ranks", "worker-0.json"), encoding="utf-8") as f:
                seen = json.load(f)["job_resident"]
            self.assertEqual(totals["pss_bytes"], seen["pss_bytes"], name)
            self.assertEqual(least, seen["processes"], (name, seen))
            self.assertLess(totals["pss_bytes"], totals["rss_bytes"] + (8 << 20), name)  # with all that is shared

    def memory_files(self, pid):
        """The segments that a process has open."""
        found = []
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(f"/proc/{pid}/fd/{fd}")
            except OSError:
                continue
            if target.startswith("/memfd:starring"):
                found.append(target)
        return found

    def test_killed(self):
        before = {name for folder in ("/dev/shm", "/tmp") for name in os.listdir(folder) if "starring" in name}
        for role in "worker", "server", "scheduler":
            out = "run-" + role
            p = self.start(*self.argv(out, "--topology", "ps:sync", "--workers", "2", "--servers", "1",
                                      "--set", "parameter_server.deadline_ms=5000", steps=FOREVER))
            self.wait_for_steps(p, out)
            roles = {}
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:
                    with open(f"/proc/{pid}/cmdline", "rb") as f:
                        words = f.read().split(b"\0")
                    here = os.readlink(f"/proc/{pid}/cwd") == os.path.realpath(self.folder)
                except OSError:
                    continue
                if here and len(words) > 1:
                    roles.setdefault(words[1].decode(), []).append(int(pid))
            self.assertTrue(self.memory_files(roles["worker"][0]))  # it does share memory
            os.kill(roles[role][0], signal.SIGKILL)
            p.communicate(timeout=LIMIT_S)
            until = time.monotonic() + 5
            everyone = [pid for pids in roles.values() for pid in pids]
            while any(os.path.exists(f"/proc/{pid}") for pid in everyone) and time.monotonic() < until:
                time.sleep(0.02)
            self.assertFalse([pid for pid in everyone if os.path.exists(f"/proc/{pid}")])
        after = {name for folder in ("/dev/shm", "/tmp") for name in os.listdir(folder) if "starring" in name}
        self.assertFalse(after - before)


if __name__ == "__main__":
    unittest.main()
