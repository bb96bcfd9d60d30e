#!/usr/bin/env python3
"""Hosts that share no folder: what their ranks leave comes to rank 0, a checkpoint's parts stay where they were written and rank 0 knows
where, and a run goes on from them, also with roles on other hosts than before. A file system that stands still is waited for, in
words."""
import json
import os
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "recovery"))
from fixture import PROGRAM, Runs, free_port
from fixture_hosts import Hosts
from fixture_starters import STARTERS, all_end, torch_environment, why_not_joined
from test_standing_files import SHIM

WORDS = ["--model", "tiny", "--data", "text.txt", "--seq", "16", "--batch", "1", "--threads", "1", "--dtype", "bf16", "--seed", "3"]
STAR, RING = ["--topology", "ps:sync", "--servers", "2"], ["--topology", "zero:2"]
KEEP = ["--checkpoint-every", "2", "--out", "run"]
EACH = 2
STANDS_S, DEADLINE_MS = 14, 4000


class Cluster:
    def __init__(self, case):
        self.hosts = Hosts(case, 2)


class Files(Runs):
    corpus = 1200

    def setUp(self):
        super().setUp()
        self.cluster = Cluster(self)

    def need(self, *topology):
        if reason := why_not_joined(*topology):
            self.skipTest(reason)

    def start_ranks(self, *words):
        return STARTERS["torchrun's variables"].start(self, self.cluster, EACH, "train", *WORDS, *words)

    def ranks(self, *words, status=0):
        return all_end(self.start_ranks(*words), status)

    def on(self, host, *names):
        return self.cluster.hosts[host].path("run", *names)

    def there(self, host, *names):
        return sorted(n for n in os.listdir(self.on(host, *names)) if not n.startswith("."))

    def summary_of(self, host=0):
        with open(self.on(host, "summary.json"), encoding="utf-8") as f:
            return json.load(f)

    def alone(self, *words):
        """The hash of the weights of the same run on this machine alone."""
        self.remove("alone")
        self.run_it("train", *WORDS, *words, "--workers", str(2 * EACH), "--out", "alone")
        return self.summary("alone")["weights_hash"]

    def keeps_and_goes_on(self, *topology):
        self.need(*topology)
        said = self.ranks(*topology, *KEEP, "--steps", "6", "--trace", "--set", "eval_every=3", "--set", "keep_snapshots=true")
        self.assertRegex(said, "--checkpoint-every 2: run of rank 2, on h2, is not the folder of rank 0.* give --out a folder that all ranks see")
        # 1. What is small is on rank 0's host.
        summary = self.summary_of()
        self.assertEqual(summary["weights_hash"], self.alone(*topology, "--steps", "6"))
        self.assertEqual(len(summary["memory"]), 2 * EACH + (2 if "--servers" in topology else 0))
        self.assertEqual(summary["checkpoints"]["written"], 3)
        with open(self.on(0, "trace.json"), encoding="utf-8") as f:
            names = {e["args"]["name"] for e in json.load(f)["traceEvents"] if e.get("name") == "process_name"}
        self.assertEqual(len(names - {"scheduler"}), len(summary["memory"]), names)
        self.assertEqual([e["step"] for e in self.evals()], [3, 6])
        # 2. What is big is where it was written, and known.
        with open(self.on(0, "checkpoints", "step-6", "manifest.json"), encoding="utf-8") as f:
            files = {f["name"]: f.get("host") for f in json.load(f)["files"]}
        for host in (0, 1):
            self.assertEqual(self.there(host, "checkpoints"), ["step-4", "step-6"])
            here = {n for n in self.there(host, "checkpoints", "step-6") if n != "manifest.json"}
            self.assertEqual(here, {n for n, where in files.items() if where == ("h2" if host else None)})
        self.assertEqual(set(files.values()), {None, "h2"})
        self.assertFalse(os.path.exists(self.on(1, "snapshots")) and self.there(1, "snapshots"))
        return files

    def evals(self):
        with open(self.on(0, "evals.jsonl"), encoding="utf-8") as f:
            return [json.loads(line) for line in f]

    def test_a_star(self):
        self.keeps_and_goes_on(*STAR)
        # The servers change places: each host needs what the other has.
        said = self.ranks(*STAR, "--servers-on", "1,0", *KEEP, "--steps", "10", "--resume", "latest")
        self.assertIn("bringing each to those that lack it", said)
        self.assertEqual(self.summary_of()["weights_hash"], self.alone(*STAR, "--steps", "10"))
        self.assertEqual(self.summary_of()["resumed_from"], 6)
        self.assertIn("all 10 steps are done", self.ranks(*STAR, *KEEP, "--steps", "10", "--resume", "latest"))

    def test_a_ring(self):
        self.keeps_and_goes_on(*RING)
        self.ranks(*RING, *KEEP, "--steps", "10", "--resume", "latest")
        self.assertEqual(self.summary_of()["weights_hash"], self.alone(*RING, "--steps", "10"))

    def test_a_star_goes_on_as_a_ring(self):
        self.need(*RING)
        self.ranks(*STAR, *KEEP, "--steps", "4")
        self.ranks(*RING, *KEEP, "--steps", "8", "--resume", "latest")
        self.assertEqual(self.summary_of()["weights_hash"], self.alone(*RING, "--steps", "8"))

    def test_a_part_that_no_host_has_is_named(self):
        self.need(*STAR)
        self.ranks(*STAR, *KEEP, "--steps", "4")
        os.unlink(self.on(1, "checkpoints", "step-4", "server-1.safetensors"))
        said = self.ranks(*STAR, *KEEP, "--steps", "8", "--resume", "latest", status=None)
        self.assertIn("server-1.safetensors: none of the ranks' folders has it; it was written on h2", said)

    def test_an_epoch_goes_on_from_the_parts_of_each_host(self):
        self.need(*STAR)
        ranks = self.start_ranks(*STAR, *KEEP, "--steps", "60", "--restart", "1", "--delay", "0:constant:30")
        ranks[0].until(lambda: os.path.exists(self.on(0, "checkpoints", "step-10")), "step 10")
        ranks[2].kill_now("worker 2")
        self.assertIn("epoch 2 goes on behind step", all_end(ranks))
        self.assertEqual(self.summary_of()["weights_hash"], self.alone(*STAR, "--steps", "60"))

    def test_a_run_goes_on_from_another_runs_parts(self):
        self.need(*STAR)
        self.ranks(*STAR, *KEEP, "--steps", "4")
        for host in (0, 1):
            self.cluster.hosts[host].run("cp", "-r", "run", "old")
        # One host alone names what it lacks before a step is made.
        alone = self.cluster.hosts[1].run(PROGRAM, "train", *WORDS, "--steps", "8", "--workers", "4", "--out", "one", "--resume", "old", status=2)
        self.assertRegex(alone.stderr, r"old/checkpoints/step-4/\S+: is not on this host: .* wrote it into its own folder of that name")
        self.ranks(*STAR, "--out", "new", "--steps", "8", "--resume", "old")
        with open(self.cluster.hosts[0].path("new", "summary.json"), encoding="utf-8") as f:
            self.assertEqual(json.load(f)["weights_hash"], self.alone(*STAR, "--steps", "8"))
        self.cluster.hosts[1].run("sed", "-i", "s/AdamW/AdamX/", "old/checkpoints/step-4/manifest.json")
        self.assertIn("is another checkpoint here than on h1, rank 0's host",
                      self.ranks(*STAR, "--out", "newer", "--steps", "8", "--resume", "old", status=None))

    def test_an_earlier_run_on_another_host_is_not_replaced(self):
        self.need(*STAR)
        self.ranks(*STAR, "--out", "run", "--steps", "2")
        self.cluster.hosts[0].run("rm", "-r", "run")
        with open(os.path.join(self.on(1), "metrics.jsonl"), "w", encoding="utf-8") as f:
            f.write('{"step":1}\n')
        self.assertIn("holds 1 steps of an earlier run", self.ranks(*STAR, "--out", "run", "--steps", "2", status=None))


class Standing(Runs):
    """Two ranks of this machine, of which one finds a run directory that stands still for longer than the deadline."""

    def ranks(self, stands, *words):
        port, hold = free_port(), self.at("stands")
        shim = {"LD_PRELOAD": self.preload(SHIM), "STANDS": hold, "WHERE": self.at("run") + "/", "ONLY": "train"}
        return hold, [self.start("train", "--model", "tiny", *STAR, "--steps", "4", "--threads", "1", "--out", self.at("run"), *words, "--set",
                                 f"parameter_server.deadline_ms={DEADLINE_MS}",
                                 env=torch_environment(r, 2, r, 2, "127.0.0.1", port) | (shim if r == stands else {})) for r in range(2)]

    def test_a_folder_that_stands_still_is_waited_for_in_words(self):
        for stands in (0, 1):
            with self.subTest(rank=stands):
                self.remove("run")
                self.write("", "stands")
                hold, ranks = self.ranks(stands)
                time.sleep(STANDS_S)
                self.assertEqual([r.poll() for r in ranks], [None, None])
                os.unlink(hold)
                said = all_end(ranks)
                self.assertRegex(said, r"waiting for rank [01] on \S+ to (hear that all could )?(make|write to|take) the run directory: 10 s, it is alive")
                self.assertEqual(self.summary("run")["state"], "complete")


if __name__ == "__main__":
    unittest.main()
