#!/usr/bin/env python3
"""Gradients summed in groups of workers: one rule, the same bits in the star and in every stage of the ring, for every size of a
group; one group, or groups of one, are no groups."""
import json
import os
import subprocess
import tempfile
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
STARRING = os.environ.get("STARRING", os.path.join(TOP, "build", "starring"))


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
                                (("ps:sync", "--reduce-group", "host"), "give the number of workers of a group"),
                                (("ps:async", "--reduce-group", "2"), "each push is an update of its own"),
                                (("ps:sync", "--reduce-group", "2", "--elastic", "2:4"), "leave out one of the two"),
                                (("zero:2", "--reduce-group", "2", "--set", "reduce=native", "--launch", "mpi", "--dtype", "fp32"),
                                 "in its own order; leave one of them out")):
            done = self.train("--workers", "4", "--topology", *words)
            self.assertEqual(done.returncode, 2, words)
            self.assertIn(expected, done.stderr)
        done = self.train("--topology", "local", "--reduce-group", "1")
        self.assertIn("one process has no groups of workers", done.stderr)

    def test_hundreds_of_ranks(self):
        """More ranks than a kernel of a GPU can add: the same sums in groups, whatever the stage."""
        many = ("--workers", "264", "--reduce-group", "22", "--dtype", "bf16", "--steps", "2", "--seq", "8")
        self.assertEqual(self.bits(*many, "--topology", "zero:1"), self.bits(*many, "--topology", "zero:3"))
        refused = self.train("--workers", "5000", "--topology", "zero:1")
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
