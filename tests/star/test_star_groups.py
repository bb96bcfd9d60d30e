#!/usr/bin/env python3
"""Gradients summed in groups of workers: one rule, the same bits in the star and in every stage of the ring, for every size of a
group; one group, or groups of one, are no groups."""
import itertools
import json
import os
import signal
import subprocess
import tempfile
import time
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
STARRING = os.environ.get("STARRING", os.path.join(TOP, "build", "starring"))


def children_of(parent):
    """[(pid, words of its command line)] of a process; of what ends meanwhile nothing."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", "rb") as f:
                of = int(f.read().rpartition(b")")[2].split()[1])
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                words = f.read().decode(errors="replace").split("\0")
        except OSError:
            continue
        if of == parent:
            found.append((int(pid), words))
    return found


class Groups(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.out = os.path.join(temporary.name, "run")

    def train(self, *options):
        return subprocess.run([STARRING, "train", "--model", "tiny", "--data", "demo", "--steps", "4", "--seq", "24", "--batch", "1",
                               "--threads", "1", "--quiet", "--json", "--no-weights", "--force", "--out", self.out,
                               "--set", "eval_batches=none", "--set", "parameter_server.partition_bytes=4096", *options],
                              capture_output=True, text=True, timeout=300, check=False)

    def bits(self, *options):
        done = self.train(*options)
        self.assertEqual(done.returncode, 0, f"{options}\n{done.stderr}")
        summary = json.loads(done.stdout)
        for rank in summary["memory"]:
            self.assertEqual(rank["predicted"], rank["peak"], f"{options}")
        for rank in summary["wire"]:
            for where, way in itertools.product((rank, rank.get("across", {})), ("sent", "received")):
                self.assertEqual(where.get(f"{way}_per_step"), where.get(f"predicted_{way}"), f"{options}: {rank}")
        self.wire = summary["wire"]
        return summary["weights_hash"], json.dumps(summary["loss"])

    def all_of(self, workers, group, dtype, *topologies):
        options = ["--workers", str(workers), "--dtype", dtype] + (["--reduce-group", str(group)] if group else [])
        found = {self.bits(*options, "--topology", *words) for words in topologies}
        self.assertEqual(len(found), 1, f"{workers} workers in groups of {group}, {dtype}")
        return found.pop()

    # Frames are added as they come, what lies in shared memory all at once.
    STARS = (("ps:sync", "--servers", "2"), ("ps:sync", "--medium", "tcp"), ("ps:sync", "--medium", "tcp", "--set", "gradient_clipping=0.5"))

    def test_star_and_ring(self):
        for dtype in ("bf16", "fp32"):
            plain = self.all_of(4, None, dtype, ("zero:2",))
            self.assertEqual(self.all_of(4, 1, dtype, ("zero:0",), *self.STARS[:2]), plain)
            self.assertEqual(self.all_of(4, 4, dtype, ("zero:3",), *self.STARS[:2]), plain)
            self.assertNotEqual(self.all_of(4, 2, dtype, ("zero:0",), ("zero:1",), ("zero:2",), ("zero:3",), *self.STARS[:2]), plain)
            self.assertNotEqual(self.all_of(6, 3, dtype, ("zero:1",), *self.STARS[:2]), self.all_of(6, None, dtype, ("zero:1",)))

    def test_with_clipping_and_skips(self):
        clip = ("--set", "gradient_clipping=0.5")
        self.all_of(4, 2, "bf16", ("zero:3", *clip), ("ps:sync", *clip, "--medium", "tcp"), ("ps:sync", *clip))
        scale = ("--set", "fp16.initial_scale_power=20", "--set", "fp16.loss_scale_window=2", "--set", "fp16.hysteresis=1")
        self.all_of(4, 2, "fp16", ("zero:2", *scale), ("ps:sync", *scale, "--medium", "tcp"), ("ps:sync", *scale))

    def test_what_cannot_be_is_refused(self):
        for words, expected in ((("zero:2", "--reduce-group", "3"), "are not groups of 3; give a number that divides them"),
                                (("ps:sync", "--reduce-group", "3"), "are not groups of 3; give a number that divides them"),
                                (("ps:sync", "--reduce-group", "host", "--medium", "tcp"), "which --medium tcp forbids"),
                                (("ps:async", "--reduce-group", "2"), "each push is an update of its own"),
                                (("ps:sync", "--reduce-group", "2", "--elastic", "2:4"), "leave out one of the two"),
                                (("zero:2", "--reduce-group", "2", "--set", "reduce=native", "--launch", "mpi", "--dtype", "fp32"),
                                 "in its own order; leave one of them out")):
            done = self.train("--workers", "4", "--topology", *words)
            self.assertEqual(done.returncode, 2, words)
            self.assertIn(expected, done.stderr)
        done = self.train("--topology", "local", "--reduce-group", "1")
        self.assertIn("one process has no groups of workers", done.stderr)

    def test_workers_add_before_one_pushes(self):
        """What leaves a group is one gradient, whatever its size; the leaders share the work, and what they read is counted."""
        plain = self.all_of(4, None, "bf16", ("ps:sync", "--servers", "2"))
        whole = {rank["sent_per_step"] for rank in self.wire if rank["role"] == "worker"}.pop()
        for group in (2, 4, "host"):
            found = self.all_of(4, group, "bf16", ("ps:sync", "--servers", "2"), ("zero:1",) if group == 2 else ("ps:sync",))
            self.assertEqual(found == plain, group != 2)
            self.bits("--workers", "4", "--topology", "ps:sync", "--servers", "2", "--reduce-group", str(group), "--dtype", "bf16")
            size = 4 if group == "host" else group
            workers = [rank for rank in self.wire if rank["role"] == "worker"]
            servers = [rank for rank in self.wire if rank["role"] == "server"]
            for first in range(0, 4, size):
                own = workers[first:first + size]
                self.assertEqual(sum(w["across"]["sent_per_step"] for w in own), whole)
                self.assertEqual({w["sent_per_step"] for w in own}, {whole})  # to a server or to a leader
                for w in own:
                    self.assertLess(w["across"]["sent_per_step"], 1.2 * whole / size)
                    self.assertEqual(w["received_per_step"], whole + (size - 1) * w["across"]["sent_per_step"])
                    self.assertEqual(w["across"]["predicted_sent_ungrouped"], whole)
            self.assertEqual(sum(s["received_per_step"] for s in servers), 4 // size * whole)
            self.assertEqual(sum(s["sent_per_step"] for s in servers), 4 * whole)

    def test_servers_add_where_workers_cannot(self):
        """Without shared memory, and where each push is looked at, the servers add in groups: the same bits, no bytes saved."""
        base = ("--workers", "4", "--reduce-group", "2", "--topology", "ps:sync", "--dtype", "bf16")
        expected = self.bits(*base)
        for words in (("--medium", "tcp"), ("--log-updates",)):
            self.assertEqual(self.bits(*base, *words), expected)
            self.assertFalse(any("across" in rank for rank in self.wire), words)

    def test_messages_lost_and_twice(self):
        base = ("--workers", "4", "--reduce-group", "2", "--topology", "ps:sync", "--dtype", "bf16", "--set", "gradient_clipping=0.5")
        self.assertEqual(self.bits(*base), self.bits(*base, "--fault", "drop=0.1,dup=0.1,reorder=0.2"))

    def test_overlap_and_micro_batches(self):
        for words in (("--set", "gradient_accumulation_steps=3"), ("--set", "gradient_accumulation_steps=3", "--set", "data_types.grad_accum_dtype=fp32"),
                      ("--set", "activation_checkpointing.recompute=block")):
            self.all_of(4, 2, "bf16", ("zero:1", *words), ("ps:sync", *words),
                        ("ps:sync", *words, "--set", "zero_optimization.overlap_comm=false"))

    def start(self, *options):
        base = ("--topology", "ps:sync", "--workers", "4", "--servers", "2", "--reduce-group", "2", "--delay", "0:constant:100")
        p = subprocess.Popen([STARRING, "train", "--model", "tiny", "--data", "demo", "--seq", "24", "--batch", "1", "--threads", "1", "--quiet",
                              "--json", "--no-weights", "--force", "--out", self.out, "--set", "eval_batches=none", *base, *options],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: p.poll() is None and p.kill())
        return p

    def worker(self, p, rank):
        """Its process, once the run has made some steps."""
        end = time.monotonic() + 120
        while time.monotonic() < end:
            try:
                with open(os.path.join(self.out, "metrics.jsonl"), encoding="utf-8") as f:
                    begun = len(f.readlines()) >= 3
            except FileNotFoundError:
                begun = False
            found = [pid for pid, words in children_of(p.pid) if "worker" in words and f"--rank {rank} " in " ".join(words) + " "]
            if begun and found:
                return found[0]
            self.assertIsNone(p.poll(), "the run is over")
            time.sleep(0.02)
        self.fail("no step within two minutes")

    def test_a_member_dies(self):
        """Whom it leads keys for hear of it; with restarts the group meets anew, and the run ends with the same bits."""
        p = self.start("--steps", "200")
        os.kill(self.worker(p, 1), signal.SIGKILL)
        _, said = p.communicate(timeout=120)
        self.assertEqual(p.returncode, 1)
        self.assertIn("worker 1 ", said)
        steps = ("--steps", "20", "--checkpoint-every", "4")
        expected, _ = self.start(*steps).communicate(timeout=300)
        p = self.start(*steps, "--restart", "2")
        os.kill(self.worker(p, 3), signal.SIGKILL)
        found, said = p.communicate(timeout=300)
        self.assertEqual(p.returncode, 0, said)
        self.assertIn("starting it again", said)
        self.assertIn("step-20", os.listdir(os.path.join(self.out, "checkpoints")))
        self.assertEqual(json.loads(found)["weights_hash"], json.loads(expected)["weights_hash"])

    def test_a_member_stands_still(self):
        p = self.start("--steps", "200", "--set", "parameter_server.deadline_ms=6000")
        pid = self.worker(p, 2)
        os.kill(pid, signal.SIGSTOP)
        _, said = p.communicate(timeout=180)
        self.assertEqual(p.returncode, 1)
        self.assertIn("worker 2 was lost", said)

    def test_dry_run(self):
        done = self.train("--workers", "4", "--reduce-group", "2", "--topology", "ps:sync", "--dry-run")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.bits("--workers", "4", "--reduce-group", "2", "--topology", "ps:sync")
        told = {(w["role"], w["rank"]): w for w in json.loads(done.stdout)["wire"]}
        for rank in self.wire:
            w = told[rank["role"], rank["rank"]]
            self.assertEqual((w["predicted_sent"], w["predicted_received"]), (rank["predicted_sent"], rank["predicted_received"]))
            self.assertEqual("across" in w, rank["role"] == "worker")
            for key in () if rank["role"] == "server" else ("group", "predicted_sent", "predicted_received", "predicted_sent_ungrouped"):
                self.assertEqual(w["across"][key], rank["across"][key])

    def test_roles_started_one_by_one(self):
        done = subprocess.run([STARRING, "scheduler", "--topology", "ps:sync", "--workers", "4", "--set", "reduce_group=host", "--model", "tiny",
                               "--data", "demo"], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("give the number of workers of each machine", done.stderr)

    def test_hundreds_of_ranks(self):
        """More ranks than a kernel of a GPU can add: the same sums in groups, whatever the stage."""
        many = ("--workers", "264", "--launch", "threads", "--reduce-group", "22", "--dtype", "bf16", "--steps", "2", "--seq", "8")
        self.assertEqual(self.bits(*many, "--topology", "zero:1"), self.bits(*many, "--topology", "zero:3"))
        refused = self.train("--workers", "5000", "--topology", "zero:1", "--launch", "threads")
        self.assertIn("a ring has at most 4096 ranks", refused.stderr)

    def test_each_machine_is_a_group(self):
        """Four ranks on two machines, as Open MPI would tell them: the ranks agree on groups of two."""
        plain = self.bits("--workers", "4", "--topology", "zero:2", "--reduce-group", "2")
        own = self.bits("--workers", "4", "--topology", "zero:2", "--reduce-group", "host")
        self.assertEqual(own, self.bits("--workers", "4", "--topology", "zero:2"))
        self.assertNotEqual(own, plain)
        two = ('export OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=$((OMPI_COMM_WORLD_RANK % 2)); exec "$@"')
        odd = two.replace("% 2", "/ 2")
        for script, status in ((two, 0), (odd, 2)):
            done = subprocess.run(["mpirun", "-n", "4", "--oversubscribe", "--bind-to", "none", "sh", "-c", script, "sh", STARRING, "train",
                                   "--model", "tiny", "--data", "demo", "--steps", "4", "--seq", "24", "--batch", "1", "--threads", "1",
                                   "--workers", "4", "--topology", "zero:2", "--reduce-group", "host", "--no-weights", "--force",
                                   "--out", self.out, "--json", "--quiet", "--set", "eval_batches=none"],
                                  capture_output=True, text=True, timeout=300, check=False,
                                  env={**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
            self.assertEqual(done.returncode, status, done.stderr)
            if status:
                self.assertIn("the ranks of a machine must be known and follow each other", done.stderr)
            else:
                self.assertEqual(json.loads(done.stdout)["weights_hash"], plain[0])


if __name__ == "__main__":
    unittest.main()
