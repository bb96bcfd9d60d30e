#!/usr/bin/env python3
"""Promises of every topology and consistency, tested of each that the program names, so a new row is tested too: the same held-out
losses with and without checkpoints on the same steps; and a schedule of the learning rate that is where the run is, to its last step."""
import itertools
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs
import test_job_pairs as pairs

STEPS, EVERY, OWN = 8, 4, 2
SMALL = ["--model", "tiny", "--data", "demo", "--seq", "24", "--batch", str(OWN), "--threads", "1", "--steps", str(STEPS), "--no-weights", "--quiet"]
DECAYS = [w for key, value in (("type", "WarmupDecayLR"), ("params.warmup_num_steps", 1), ("params.warmup_max_lr", 0.01),
                               ("params.total_num_steps", STEPS)) for w in ("--set", f"scheduler.{key}={value}")]


class Rows(Runs):
    def rows(self):
        """(name, options) of each topology, and of local steps around those that take them."""
        said = self.run_it("train", "--topology", "?", status=2).stderr
        names = [name for part in said.split("possible are ")[1].split(",") for name in part.split()]
        names = [name.replace(":S", ":1").replace(":B", ":1").replace(":Q", ":2") for name in names]
        self.assertGreater(len(names), 10, said)
        for name in names:
            yield name, ["--topology", name]
            options = ["--topology", name, "--local-steps", str(EVERY)]
            workers = ["--workers", "1" if name.startswith("local") else "3"]
            if self.run_it("train", *SMALL, *options, *workers, "--set", "eval_batches=none", "--dry-run", status=None).returncode == 0:
                yield name + " in local steps", options

    def train(self, out, *words, status=0):
        return self.run_it("train", *SMALL, "--force", "--out", out, *words, status=status)

    def losses(self, out):
        return [(e["step"], e["updates"], e["samples"], e["val_loss"]) for e in self.lines(out, "evals.jsonl")]

    def test_held_out_losses_do_not_hang_on_checkpoints(self):
        for name, options in self.rows():
            workers = ["--workers", "1" if name.startswith("local") else "3"]
            evaluated = [*options, *workers, "--eval-every", str(EVERY)]
            kept = [*evaluated, "--checkpoint-every", str(EVERY)]
            with self.subTest(name):
                # A run that depends on the order of arrivals is recorded, and repeated.
                varies = self.train("without", *evaluated, "--record-arrivals", status=None).returncode == 0
                if not varies and self.train("without", *evaluated, status=None).returncode:
                    said = self.train("without", *evaluated, status=2).stderr
                    self.assertIn("local_steps.steps: ", said)  # refused in words
                    continue
                self.train("with", *kept, *(["--replay-arrivals", "without"] if varies else []))
                self.assertEqual(self.losses("with"), self.losses("without"))
                self.assertEqual([e[0] for e in self.losses("with")], [EVERY, STEPS])
                self.assertEqual(self.hash("with"), self.hash("without"))

    def test_the_schedule_ends_with_the_run(self):
        self.train("local", "--topology", "local", "--workers", "1", *DECAYS)
        schedule = [line["lr"] for line in self.lines("local", "metrics.jsonl")]
        self.assertEqual(len(set(schedule)), STEPS - 2)  # twice none, twice all
        for name, options in self.rows():
            # If workers share a budget a line reports where the run is; a single worker does all of it.
            for workers in [1] if name.startswith("local") else [1, 2] if "ps:async" in name or "ps:ringleader" in name else [3]:
                slow = ["--straggle", f"{workers - 1}:3"] if workers > 1 else []
                with self.subTest(name, workers=workers):
                    self.train("run", *options, "--workers", str(workers), *slow, *DECAYS, "--set", "eval_batches=none")
                    lines = self.lines("run", "metrics.jsonl")
                    if workers != 2:
                        expected = schedule
                    elif "local steps" in name:  # its own steps, of which a fast one takes more
                        expected = [schedule[min(line["step"], STEPS) - 1] for line in lines]
                    else:
                        expected = [schedule[(line["samples"] - OWN) // (OWN * workers)] for line in lines]
                    self.assertEqual([line["lr"] for line in lines], expected)


def keys_of(name):
    """The keys and options of a setting that stands beside a consistency."""
    words = pairs.BESIDE[name][0]
    return {words[i + 1].split("=")[0] if word == "--set" else word for i, word in enumerate(words) if word.startswith("--")}


class Two(pairs.Beside):
    """The same of each two keys, beside updates on arrival and beside steps that do not wait for all: a dry run tells which two go
    together, and those that do meet in a run of up to five."""
    test_each_key_with_each_consistency = None
    LEAVE_OUT = {"fp16", "max_staleness"}  # samples: with one of these in a run the others' are not counted

    def met(self, names):
        """The pairs that a run with these settings is a test of."""
        lenient = self.LEAVE_OUT & set(names)
        return {frozenset(two) for two in itertools.combinations(names, 2) if not lenient or lenient & set(two)}

    def together(self, topology, go_together):
        """Yields settings of one run after the other, until all pairs have met. A later setting of a key takes an earlier one's place, so
        two of a key are alone in their run."""
        missing = sorted(go_together, key=sorted)
        while missing:
            names = sorted(missing[0])
            fresh = sorted(pairs.BESIDE, key=lambda other: sum(frozenset((name, other)) not in missing for name in names))
            for other in fresh if not keys_of(names[0]) & keys_of(names[1]) else ():
                if len(names) < 5 and all({name, other} in go_together and not keys_of(name) & keys_of(other) for name in names) and \
                        self.met([*names, other]) & set(missing) > self.met(names) & set(missing) and \
                        self.asked(topology, [*names, other], "--dry-run")[0]:
                    names.append(other)
            yield names
            missing = [two for two in missing if two not in self.met(names)]

    def test_each_two_keys(self):
        for topology in ("ps:async", "ps:backup:1"):
            go_together = {frozenset(two) for two in itertools.combinations(pairs.BESIDE, 2) if self.asked(topology, two, "--dry-run")[0]}
            self.assertGreater(len(go_together), len(pairs.BESIDE), topology)
            for names in self.together(topology, go_together):
                with self.subTest(topology, beside=names):
                    self.assertIsNotNone(self.beside(topology, *names))


if __name__ == "__main__":
    unittest.main()
