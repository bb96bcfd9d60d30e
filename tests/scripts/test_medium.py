#!/usr/bin/env python3
"""A star's media between real processes: where shared memory cannot be had --medium shm says who cannot share with whom,
and auto takes tcp; a killed role leaves no memory behind."""
import os
import shutil
import subprocess
import unittest

from test_interrupt import LIMIT_S, Case

BUILD = os.path.dirname(os.environ.get("STARRING", "build/starring"))
APART = ["unshare", "--pid", "--fork"]  # a pid namespace of its own: its process ids name other processes outside


def can_unshare():
    try:
        return subprocess.run([*APART, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


class Medium(Case):
    def star(self, medium, *more, workers=(False,)):
        """A star whose one server is in another pid namespace, and those workers that are said to be: its directory, worker 0's status and
        words."""
        args = ["--topology", "ps:sync", "--workers", str(len(workers)), "--servers", "1", "--medium", medium, "--set", "eval_batches=0", *more]
        self.write(self.run_it(*self.argv("unused", *args, "--print-config", steps="3")).stdout, "run.json")
        words = ["-c", "run.json", "--set", "parameter_server.deadline_ms=20000"]
        out = "-".join(["out", medium, *more[1:]]) + ("-apart" if any(workers) else "")
        scheduler = self.start("scheduler", *words)
        join = [*words, "--scheduler", scheduler.address(), "--out", out]
        server = self.start("server", *join, "--rank", "0", under=APART)
        roles = [self.start("worker", *join, "--rank", str(rank), under=APART if apart else ()) for rank, apart in enumerate(workers)]
        for p in *roles, server, scheduler:
            p.ends(status=None)
        return out, roles[0].returncode, roles[0].printed() + roles[0].said()

    @unittest.skipUnless(can_unshare(), "no pid namespace can be made here")
    def test_apart(self):
        _, status, said = self.star("shm")
        self.assertEqual(status, 1, said)
        self.assertRegex(said, r"--medium shm: worker 0 and server 0 cannot share memory: .*--medium auto")
        out, status, said = self.star("auto")
        self.assertEqual(status, 0, said)
        self.assertEqual(self.summary(out)["medium"], "tcp")

    @unittest.skipUnless(can_unshare(), "no pid namespace can be made here")
    def test_a_pair_apart(self):
        for medium, apart in ("auto", False), ("tcp", True):  # the worker does not reach the server's memory; nor the server the worker's
            _, status, said = self.star(medium, "--servers-on", "workers", workers=(apart,))
            self.assertEqual(status, 1, said)
            self.assertRegex(said, r"--servers-on workers: worker 0 and server 0 are one pair and cannot share memory: .*with --rank 0 on the host")

    def test_a_job_s_memory_is_that_of_all_its_processes(self):
        """Every process that starts and coordinates the ranks counts in both topologies; shared pages count once."""
        ring = ["--topology", "zero:1", "--workers", "2", "--medium", "shm"]
        star = ["--topology", "ps:sync", "--workers", "2", "--servers", "1", "--medium", "shm"]
        for name, args, least in (("local", ["--topology", "local"], 1), ("star", star, 4), ("ring", ring, 3)):
            self.run_it(*self.argv(name, *args, "--set", "eval_batches=0", steps="3"))
            totals, seen = self.summary(name)["totals"], self.json(name, "ranks", "worker-0.json")["job_resident"]
            self.assertEqual(totals["pss_bytes"], seen["pss_bytes"], name)
            self.assertEqual(least, seen["processes"], (name, seen))
            self.assertLess(totals["pss_bytes"], totals["rss_bytes"] + (8 << 20), name)  # with all that is shared

    def test_tcp_on_one_machine(self):
        """The bits of shared memory, in groups too, over tcp; a rank that is killed is named, and nobody hangs."""
        for more in ["--topology", "zero:2"], ["--topology", "zero:3", "--dtype", "bf16", "--set", "reduce_group=2"], ["--topology", "gossip"]:
            runs = []
            for engine in "shm", "tcp":
                out = "-".join([engine, more[1]])
                p = self.run_it(*self.argv(out, *more, "--workers", "4", "--collective", engine, "--set", "eval_batches=0", steps="3"))
                self.assertEqual(p.returncode, 0, p.stderr)
                runs.append(self.summary(out))
            self.assertEqual(runs[0]["weights_hash"], runs[1]["weights_hash"], more)
            self.assertEqual([r["medium"] for r in runs], ["shm", "tcp"])
            wire = [[(w["sent_per_step"], w["received_per_step"]) for w in r["wire"]] for r in runs]
            self.assertEqual(*wire)
            self.assertEqual(wire[1], [(w["predicted_sent"], w["predicted_received"]) for w in runs[1]["wire"]])
        p = self.begun("killed", "--topology", "zero:2", "--workers", "3", "--medium", "tcp")
        p.kill_now("rank 1")
        self.assertRegex(p.ends(status=1, settle_s=10), "rank 1 ")

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

    @staticmethod
    def files_of_ours():
        """Those that the program may have left where all write; folders there are those of other tests."""
        return {entry.path for folder in ("/dev/shm", "/tmp") for entry in os.scandir(folder) if "starring" in entry.name and not entry.is_dir()}

    @unittest.skipUnless(can_unshare() and shutil.which("mpirun"), "no mounts can be made here, or there is no mpirun")
    def test_mpi_in_a_container_of_little_shared_memory(self):
        """Open MPI's files lie elsewhere, or a sentence says where there is no room: no rank dies of SIGBUS, or without a word of ours."""
        os.makedirs(self.at("small"))
        words = ["train", "--model", "tiny", "--data", "demo", "--seq", "16", "--steps", "2", "--topology", "zero:1", "--workers", "2",
                 "--launch", "mpi", "--no-weights", "--out", "little", "--force"]
        def mounted(*folders):
            return ["unshare", "-m", "sh", "-c", "".join(f"mount -t tmpfs -o size=1m tmpfs {f}; " for f in folders) + 'exec "$@"', "sh"]
        said = self.start(*words, under=mounted("/dev/shm")).ends(0)
        self.assertRegex(said, r"/dev/shm has 1.00 MiB, and Open MPI maps .* for its 2 ranks here: its files lie in /tmp")
        small = self.at("small")
        said = self.start(*words, under=mounted("/dev/shm", small), env={"TMPDIR": small}).ends(1)
        self.assertRegex(said, r"Open MPI maps .* /dev/shm has 1.00 MiB, .*small .*--shm-size 1g.*--medium tcp")

    def test_killed(self):
        before = self.files_of_ours()
        for role in "worker 0", "server 0":
            p = self.begun(role, "--topology", "ps:sync", "--workers", "2", "--servers", "1", "--set", "parameter_server.deadline_ms=5000")
            self.assertTrue(self.memory_files(*p.find("worker 0")))  # it does share memory
            everyone = list(p.left())
            p.kill_now(role)
            p.ends(status=None, settle_s=LIMIT_S)
            self.assertFalse([pid for pid in everyone if os.path.exists(f"/proc/{pid}")])
        self.assertFalse(self.files_of_ours() - before)


if __name__ == "__main__":
    unittest.main()
