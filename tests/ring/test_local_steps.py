#!/usr/bin/env python3
"""Local steps as a program: the star and the ring end in the same bits; a checkpoint of either goes on in the other; what is
predicted is measured; a run ends at the end of a round; what is not supported is refused."""
import os
import signal
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs

SMALL = ["train", "--model", "tiny", "--seq", "16", "--threads", "1", "--lr", "0.01", "--data", "text.txt", "--no-weights",
         "--set", "train_batch_size=6", "--workers", "3", "--set", "eval_batches=1", "--steps", "8", "--local-steps", "2"]
EVALS = ["--set", "eval_every=2"]
KEEP = ["--checkpoint-every", "2", "--checkpoint-keep", "0"]
KINDS = ("mean", "nesterov", "elastic")


class LocalSteps(Runs):
    shared, corpus = True, 1200

    def go(self, out, topology, *more, **how):
        self.remove(out)
        return self.run_it(*SMALL, "--topology", topology, "--out", out, *more, **how)

    def test_the_same_bits_and_bytes(self):
        for kind, dtype in zip(KINDS, ("bf16", "fp32", "bf16")):
            more = [*EVALS, "--dtype", dtype, "--set", f"local_steps.outer.type={kind}"]
            self.go("ring", "zero:0", *more)
            self.assertIn(f"hash {self.hash('ring')} of the anchor of all ranks", self.run_it("summary", "ring").stdout)
            self.go("plain", "zero:0", *more, "--local-steps", "1")
            self.assertNotEqual(self.hash("ring"), self.hash("plain"))
            for topology, also in (("zero:2", ["--launch", "threads"]), ("ps:sync", ["--servers", "2"]),
                                   ("ps:sync", ["--medium", "tcp"]), ("zero:1", ["--set", "gradient_accumulation_steps=2"])):
                self.go("other", topology, *more, *also)
                if also[-1] != "gradient_accumulation_steps=2":
                    self.assert_same_run("other", "ring")
                s = self.summary("other")
                self.assertEqual(s["local_steps"], 2)
                self.assert_as_predicted(s, topology)
                for rank in s["wire"]:
                    self.assertAlmostEqual(rank["sent_per_step"], rank["predicted_sent"], delta=1, msg=topology)
                    self.assertAlmostEqual(rank["received_per_step"], rank["predicted_received"], delta=1, msg=topology)
                self.assertEqual([line["step"] for line in self.lines("other", "evals.jsonl")], [2, 4, 6, 8])
        two, four = ([rank["sent_per_step"] for rank in self.summary(run)["wire"]] for run in ("ring", "plain"))
        self.assertEqual([2 * sent for sent in two], four)

    def test_resume(self):
        for kind in KINDS:
            more = ["--dtype", "bf16", "--set", f"local_steps.outer.type={kind}"]
            self.go("ring", "zero:1", *more, *KEEP)
            self.go("star", "ps:sync", *more, *KEEP)
            self.assert_same_run("star", "ring")
            self.assert_as_predicted(self.summary("star"))
            self.assertEqual(self.checkpoints("star"), ["step-2", "step-4", "step-6", "step-8"])
            for first, topology, begin in (("ring", "ps:sync", 4), ("star", "zero:0", 2), ("star", "ps:sync", 6)):
                self.go("again", topology, *more, "--resume", f"{first}/checkpoints/step-{begin}")
                self.assert_same_run("again", "ring", begin)
        self.go("thirds", "zero:0", *more, *KEEP, "--set", "local_steps.outer.lr=0.3", "--steps", "2")
        self.refused(*SMALL, "--workers", "2", "--topology", "zero:0", "--dtype", "bf16", "--out", "two",
                     "--set", "local_steps.outer.type=elastic", "--set", "local_steps.outer.lr=0.3",
                     "--resume", "thirds/checkpoints/step-2", status=1,
                     said=["holds no masters and moments of each of 2 ranks' own", "--resume-weights-only"])
        self.refused(*SMALL, "--local-steps", "4", "--topology", "zero:0", "--dtype", "bf16", "--out", "two",
                     "--resume", "ring/checkpoints/step-2", said="local_steps.steps = 2")

    def test_asynchronous(self):
        self.go("sync", "zero:0", "--workers", "1")
        self.go("async", "ps:async", "--workers", "1")
        self.assertEqual(self.hash("async"), self.hash("sync"))
        self.go("three", "ps:async")
        s = self.summary("three")
        self.assert_as_predicted(s)
        self.assertEqual(s["tokens_applied"], s["samples_applied"] * s["seq_len"])
        batches = [self.json("three", "ranks", f"worker-{r}.json")["batches"] for r in range(3)]
        self.assertEqual(sum(batches), 24, batches)
        self.assertTrue(all(n % 2 == 0 for n in batches), batches)

    def test_options_of_arrival(self):
        """A round's push is one as any other: what it may wait for, is added to and is weighted by is the servers'."""
        for number, (key, value) in enumerate((("max_lead", 1), ("pushes_per_update", 2), ("age_damping", "true"),
                                               ("delay_compensation", 0.1))):
            with self.subTest(key=key):
                option = ["--set", f"parameter_server.{key}={value}"]
                self.go(f"option-{number}", "ps:async", *option)
                self.assert_as_predicted(self.summary(f"option-{number}"))
                if key != "pushes_per_update":  # one worker alone is never behind
                    self.go(f"alone-{number}", "ps:async", "--workers", "1", *option)
                    self.go(f"plain-{number}", "ps:async", "--workers", "1")
                    self.assertEqual(self.hash(f"alone-{number}"), self.hash(f"plain-{number}"))

    def test_cgad(self):
        """Alone a worker is never behind: then it is Adam, whatever the ages would do."""
        kind = ["--set", "local_steps.outer.type=cgad", "--set", "local_steps.outer.lr=0.01"]
        age = ["--set", "local_steps.outer.age_decay=0.5", "--set", "local_steps.outer.age_cutoff=2"]
        self.go("adam", "ps:async", *kind, "--workers", "1")
        self.go("alone", "ps:async", *kind, *age, "--workers", "1")
        self.assertEqual(self.hash("alone"), self.hash("adam"))
        self.go("three", "ps:async", *kind, *age)
        self.assert_as_predicted(self.summary("three"))

    def test_ends_behind_a_round(self):
        for topology in ("zero:0", "ps:sync"):
            words = [*SMALL, "--steps", "40", "--local-steps", "4", "--checkpoint-every", "4", "--topology", topology]
            self.remove("asked")
            p = self.start(*words, "--out", "asked", "--delay", "0:constant:20")
            p.behind(1)
            p.send_signal(signal.SIGINT)
            p.ends(status=None)
            step = self.steps("asked")
            self.assertTrue(step % 4 == 0 and step < 40, step)
            self.assertIn(f"step-{step}", self.checkpoints("asked"))
            self.run_it(*words, "--out", "asked", "--resume", "latest")
            self.remove("whole")
            self.run_it(*words, "--out", "whole")
            self.assertEqual(self.hash("asked"), self.hash("whole"), topology)

    def test_a_dead_rank(self):
        words = [*SMALL, "--steps", "16", "--delay", "0:constant:40"]
        self.remove("dead")
        p = self.start(*words, *KEEP, "--topology", "zero:0", "--restart", "1", "--out", "dead")
        p.until(lambda: os.path.exists(self.at("dead", "checkpoints", "step-2", "manifest.json")), "a checkpoint")
        p.kill_now("rank 1")
        p.ends()
        self.remove("whole")
        self.run_it(*words, "--topology", "zero:0", "--out", "whole")
        self.assertEqual(self.hash("dead"), self.hash("whole"))
        for role in ("worker 1", "server 0"):
            self.remove("dead")
            p = self.start(*words, "--topology", "ps:sync", "--out", "dead")
            p.behind(2)
            p.kill_now(role)
            self.assertIn(role, p.ends(status=1))

    def test_refusals(self):
        for words, said in (
                (["--topology", "local"], "choose one of them"), (["--topology", "gossip"], "choose one of them"),
                (["--topology", "zero:3"], "use zero:0, zero:1 or zero:2"),
                (["--topology", "zero:0", "--dtype", "fp16"], "use --dtype bf16 or fp32"),
                (["--topology", "zero:0", "--steps", "7"], "give a multiple"),
                (["--topology", "zero:0", "--set", "eval_every=3"], "give a multiple"),
                (["--topology", "ps:sync", "--checkpoint-every", "3"], "give a multiple"),
                (["--topology", "zero:0", "--set", "eval_every_seconds=1"], "use eval_every"),
                (["--topology", "zero:0", "--set", "optimizer.type=OneBitAdam"], "use Adam"),
                (["--topology", "zero:0", "--documents", "whole"], "use --documents packed"),
                (["--topology", "zero:0", "--set", "zero_optimization.overlap_comm=false"], "overlap_comm"),
                (["--topology", "zero:1", "--set", "zero_optimization.offload_optimizer.device=cpu"], "offload_optimizer"),
                (["--topology", "zero:0", "--set", "local_steps.outer.momentum=0.9"], "type mean has no momentum"),
                (["--topology", "ps:sync", "--set", "local_steps.outer.type=cgad"], "all changes have the same age"),
                (["--topology", "ps:async", "--set", "local_steps.outer.type=cgad"], "no learning rate that suits every run"),
                (["--topology", "zero:0", "--set", "local_steps.outer.type=nesterov", "--set", "local_steps.outer.momentum=0"],
                 "a momentum above 0")):
            with self.subTest(words=words):
                self.refused(*SMALL, "--out", "refused", *words, said=said)
        self.assertIn("1 key has no effect here (local_steps.outer.lr)", self.run_it(
            "train", "--dry-run", "--model", "tiny", "--topology", "zero:0", "--set", "local_steps.outer.lr=0.5").stderr)


if __name__ == "__main__":
    unittest.main()
