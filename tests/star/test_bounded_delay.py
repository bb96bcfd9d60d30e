#!/usr/bin/env python3
"""ps:ssp:S, bounded delay by clock: with the oldest versions read it is one process with the same delay, bit for bit, whatever is
clipped, skipped, resumed or killed; without a delay it is ps:sync; fresh versions are no more than S updates old; and what does
not go together is refused."""
import glob
import json
import os
import re
import signal
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import PARTS, Runs, send

# gpt2's embedding is tied: its gradient leaves last, and lies in two units' hands.
MODEL = {"model_type": "gpt2", "vocab_size": 257, "n_embd": 20, "n_layer": 3, "n_head": 5, "n_positions": 33,
         "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}
# The loss scale begins where steps are skipped, then some are not.
SIZE = ["--model", "model.json", "--data", "text.txt", "--seq", "16", "--batch", "1", "--threads", "1", "--lr", "0.01", "--quiet", "--force",
        "--no-weights", "--set", "eval_batches=none", "--set", "parameter_server.partition_bytes=4096", "--set",
        "fp16.initial_scale_power=20", "--set", "fp16.loss_scale_window=2", "--set", "fp16.hysteresis=1"]
OLDEST = ["--set", "parameter_server.read=oldest"]
NO_CLIP = ["--set", "gradient_clipping=0"]
CLIP = ["--set", "gradient_clipping=0.5"]
SLOPE = ["--set", "scheduler.type=WarmupLR", "--set", "scheduler.params.warmup_num_steps=9", "--set", "scheduler.params.warmup_max_lr=0.01"]


def star(delay, workers, *more):
    return ["--topology", f"ps:ssp:{delay}", "--workers", str(workers), "--servers", "2", *more]


def local(delay, workers=1):
    """One process that adds up what the workers push, as the servers do."""
    words = ["--topology", "local", "--set", f"local.delay={delay}"]
    return words + ["--set", f"gradient_accumulation_steps={workers}", "--set", "data_types.grad_accum_dtype=fp32"] * (workers > 1)


class Case(Runs):
    shared, corpus = True, 1200

    def setUp(self):
        self.write(json.dumps(MODEL), "model.json")

    def words(self, out, *more, steps=10):
        return ["train", *SIZE, "--steps", str(steps), "--out", out, *more]

    def train(self, out, *more, steps=10):
        self.run_it(*self.words(out, *more, steps=steps))
        self.assert_as_predicted(self.summary(out), more)
        return self.hash(out)


class Equal(Case):
    def test_one_worker_is_local(self):
        """Curve and weights, of every type, with and without a decision that a step waits for."""
        for delay, dtype, more in ((1, "fp32", CLIP), (2, "bf16", NO_CLIP), (3, "fp16", CLIP)):
            with self.subTest(delay=delay, dtype=dtype):
                self.train("local", *local(delay), "--dtype", dtype, *more, *SLOPE)
                for medium in ("shm", "tcp"):
                    self.train("star", *star(delay, 1, *OLDEST, "--medium", medium), "--dtype", dtype, *more, *SLOPE)
                    self.assert_same_run("star", "local")
        skipped = [line["skipped"] for line in self.curve("local")]
        self.assertIn(True, skipped)
        self.assertIn(False, skipped)
        # The rate follows the updates as far as they are known, the last ones counted as applied.
        self.train("plain", *local(0), "--dtype", "fp16", *CLIP, *SLOPE)
        rates = {}
        for run, delay in (("plain", 0), ("local", 3)):
            curve = self.curve(run)
            for t, line in enumerate(curve):
                updates = t - sum(line["skipped"] for line in curve[:max(t - delay, 0)])
                self.assertEqual(rates.setdefault(updates, line["lr"]), line["lr"], f"{run}, step {t + 1}")
        self.assertGreater(len(set(rates.values())), 3)

    def test_some_workers_are_local(self):
        """Each worker's slice is a micro-batch there."""
        for workers, delay, dtype, more in ((2, 2, "bf16", NO_CLIP), (3, 1, "bf16", CLIP), (2, 2, "fp16", CLIP)):
            with self.subTest(workers=workers, dtype=dtype):
                plain = self.train("local", *local(delay, workers), "--dtype", dtype, *more)
                self.assertNotEqual(plain, self.train("other", *local(0, workers), "--dtype", dtype, *more))
                for medium in (["shm"], ["tcp", "--fault", "drop=0.02,dup=0.05,reorder=0.1"], ["tcp", "--straggle", "0:3"]):
                    options = star(delay, workers, *OLDEST, "--medium", *medium)
                    self.assertEqual(self.train("star", *options, "--dtype", dtype, *more), plain, medium)

    def test_groups_of_workers(self):
        """Servers add in groups, for members may be at different steps."""
        found = {self.train("star", *star(1, 4, *OLDEST, "--reduce-group", "2", "--medium", medium), "--dtype", "bf16")
                 for medium in ("shm", "tcp")}
        self.assertEqual(len(found), 1)

    def test_codes(self):
        codes = ["--set", "parameter_server.compression=int8", *NO_CLIP]
        found = {self.train("star", *star(2, 2, *OLDEST, *codes, "--medium", medium), "--dtype", "bf16") for medium in ("shm", "tcp")}
        self.assertEqual(len(found), 1)

    def test_without_delay(self):
        for more in (["--dtype", "bf16", *NO_CLIP], ["--dtype", "fp16", *CLIP]):
            self.train("sync", "--topology", "ps:sync", "--workers", "2", *more)
            self.train("star", *star(0, 2), *more)
            self.assert_same_run("star", "sync")

    def test_snapshots(self):
        """Evaluations are of the weights behind their step, and change nothing."""
        seen = ["--set", "eval_batches=2", "--eval-every", "3"]
        for more in (["--dtype", "fp16", *CLIP], ["--dtype", "bf16", *NO_CLIP]):
            plain = self.train("plain", *star(2, 1, *OLDEST), *more)
            self.assertEqual(self.train("local", *local(2), *more, *seen), plain)
            self.assertEqual(self.train("star", *star(2, 1, *OLDEST), *more, *seen), plain)
            evals = [[{k: line[k] for k in ("step", "updates", "val_loss")} for line in self.lines(run, "evals.jsonl")] for run in ("star", "local")]
            self.assertEqual(evals[0], evals[1])
            self.assertEqual(len(evals[0]), 4)


class Fresh(Case):
    def test_how_old(self):
        """Reads are counted: no worker is more than S updates behind, and one is ahead of a straggler."""
        for medium in ("shm", "tcp"):
            self.train("star", *star(2, 3, "--medium", medium, "--straggle", "1:4"), "--dtype", "bf16", *NO_CLIP, steps=12)
            stale = self.summary("star")["staleness"]
            self.assertIn(stale["max"], (1, 2))
            self.assertGreater(stale["mean"], 0)
        self.train("star", *star(2, 2, *OLDEST), "--dtype", "bf16", steps=12)
        stale = self.summary("star")["staleness"]
        self.assertEqual(stale["max"], 2)
        self.assertAlmostEqual(stale["mean"], (0 + 1 + 10 * 2) / 12, places=6)


    def test_where_the_time_went(self):
        """However many steps a worker is ahead: what it waits for is another's gradients of long ago, and no time of it is lost or the host's."""
        self.train("star", *star(8, 2, "--medium", "tcp", "--delay", "1:constant:100"), "--dtype", "bf16", *NO_CLIP, steps=40)
        ahead, late = self.summary("star")["time_per_rank"]
        self.assertEqual(max(PARTS, key=ahead.get), "wait")
        self.assertEqual(max((p["seconds"], p["role"], p["rank"]) for p in ahead["waited_for"])[1:], ("worker", 1))
        self.assertLess(late["wait"], 0.5 * ahead["wait"])
        self.assertAlmostEqual(self.summary("star")["time"]["check"], 1, delta=0.01)


class Replay(Case):
    """The versions that a run's steps were computed on, recorded under random stragglers and read again under others, bit for bit."""

    def recorded(self, run):
        """{shard and key: what each worker's steps were computed on}: workers come in any order."""
        return {(shard, line.split(":")[0]): sorted(line.split()[2:]) for shard in (0, 1) for line in self.read(run, f"arrivals.{shard}").splitlines()[1:]}

    def test_replay(self):
        for delay, medium, more in ((1, "shm", ["--dtype", "bf16", *NO_CLIP]), (3, "tcp", ["--dtype", "fp16", *CLIP, *SLOPE])):
            slow = [word for w in range(3) for word in ("--straggle", f"{w}:6:0.5")]
            keep = ["--checkpoint-every", "5"] if medium == "shm" else []
            self.train("first", *star(delay, 3, *slow, "--record-arrivals", "--medium", medium, *keep), *more, steps=14)
            read = {place.split("@")[1] for places in self.recorded("first").values() for place in places if place.startswith("0#39@")}
            self.assertTrue(read, "worker 0's last step is there")
            for others in (["--delay", "0:constant:8"], ["--delay", "2:exponential:5"]):
                self.train("again", *star(delay, 3, "--medium", medium, *others, "--replay-arrivals", "first", "--record-arrivals", *keep), *more,
                           steps=14)
                self.assert_same_run("again", "first")
                self.assertEqual(self.recorded("again"), self.recorded("first"))

    def test_spoilt(self):
        self.train("first", *star(2, 2, "--record-arrivals"), "--dtype", "bf16", steps=6)
        whole = self.read("first", "arrivals.0")
        for old, new, said in ((r"(key \d+:.*) \S+\n", r"\1\n", "has fewer pushes than the run has batches"),
                               (r"(key \d+:.*) (0#10@)\d+", r"\1 \g<2>9", "on weights that are not there yet"),
                               (r"(key \d+:.*) (0#10@)\d+", r"\1 \g<2>0", "on weights older than its worker's last"),
                               (r" ps:ssp,", " ps:backup,", "is of another run")):
            with self.subTest(new=new):
                spoilt = re.sub(old, new, whole, count=1)
                self.assertNotEqual(spoilt, whole)
                self.write(spoilt, "first", "arrivals.0")
                self.refused(*self.words("again", *star(2, 2, "--replay-arrivals", "first"), "--dtype", "bf16", steps=6), said=said, status=1)


class GoingOn(Case):
    KEEP = ["--dtype", "fp16", *CLIP, *SLOPE, "--checkpoint-every", "4"]

    def undisturbed(self, steps=20):
        if not os.path.exists(self.at("undisturbed")):
            self.train("undisturbed", *star(2, 2, *OLDEST), *self.KEEP, "--set", "recovery.checkpoint_keep=0", steps=steps)

    def test_resumed(self):
        """After a kept step the next one computes on its weights: a resumed run begins there, in local too."""
        self.undisturbed()
        self.assertEqual(self.train("local", *local(2, 2), *self.KEEP, steps=20), self.hash("undisturbed"))
        self.assertNotEqual(self.train("plain", *local(2, 2), "--dtype", "fp16", *CLIP, *SLOPE, steps=20), self.hash("undisturbed"))
        for at in (4, 8):
            self.train("again", *star(2, 2, *OLDEST), *self.KEEP, "--resume", f"undisturbed/checkpoints/step-{at}", steps=20)
            self.assert_same_run("again", "undisturbed", at)
        self.train("again", *local(2, 2), *self.KEEP, "--resume", "undisturbed/checkpoints/step-8", steps=20)
        self.assertEqual(self.hash("again"), self.hash("undisturbed"))

    def test_killed(self):
        self.undisturbed()
        for dies in ("worker 0", "worker 1", "server 1"):
            with self.subTest(dies=dies):
                self.remove("run")
                p = self.start(*self.words("run", *star(2, 2, *OLDEST), *self.KEEP, "--restart", "2", "--delay", "0:constant:60", steps=20))
                p.behind(1)
                pids = p.find(dies)
                p.until(lambda: glob.glob(self.at("run", "checkpoints", "step-*")), "a checkpoint")
                send(signal.SIGKILL, pids)
                p.ends(settle_s=60)
                self.assertEqual(len(self.lives("run")), 2)
                self.assertEqual(self.hash("run"), self.hash("undisturbed"))

    def test_killed_for_good(self):
        """Without a restart the job ends with an error, whoever dies."""
        for dies in ("worker 1", "server 0"):
            self.remove("run")
            p = self.start(*self.words("run", *star(2, 2), "--dtype", "bf16", "--delay", "0:constant:60", steps=1000))
            p.behind(2)
            p.kill_now(dies)
            self.assertIn("was killed by signal 9", p.ends(1, settle_s=60))

    def test_asked_to_leave(self):
        """All end at one step, keep it, and it goes on."""
        for kept in ([], ["--checkpoint-every", "1000"]):
            self.remove("run")
            p = self.start(*self.words("run", *star(2, 2), "--dtype", "fp16", *kept, "--delay", "0:constant:30", steps=100000), start_new_session=True)
            p.behind(3)
            os.killpg(p.pid, signal.SIGINT)
            p.ends(130)
            done = self.summary("run")["steps"]
            self.assertEqual(done, self.steps("run"))
            if kept:
                self.assertEqual(self.checkpoints("run"), [f"step-{done}"])
                self.train("again", *star(2, 2), "--dtype", "fp16", "--resume", f"run/checkpoints/step-{done}", steps=done + 3)
                self.assertEqual([line["step"] for line in self.curve("again")], [done + 1, done + 2, done + 3])


class Refused(Case):
    def test_what_cannot_be(self):
        for words, said in (
                (star(17, 2), "a worker keeps 1 + S gradients: S is at most 16"),
                (star(0, 2, "--record-arrivals"), "do not depend on the order of arrival"),
                (["--topology", "zero:0", "--workers", "2", "--set", "local.delay=1"], "local.delay 1 is of --topology local")):
            with self.subTest(said=said):
                self.refused(*self.words("run", *words), said=said)


if __name__ == "__main__":
    unittest.main()
