#!/usr/bin/env python3
"""A star's checkpoints: resumed in the middle, by other servers, through another medium, as a ring or from one, equals
undisturbed, bit for bit; an asynchronous star gets every push once; what servers cannot write ends the checkpoint, what they
cannot read the run."""
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import time
import unittest

import test_resume
from test_resume import KEEP_ALL, LIMIT_S, LOCAL, NO_EVALS, PROGRAM, SLOW, SMALL, STEPS, ring

SMALL_KEYS = ["--set", "parameter_server.partition_bytes=4096"]


def star(servers=2, workers=2, how="sync"):
    return ["--topology", f"ps:{how}", "--workers", str(workers), "--servers", str(servers), "--batch", str(4 // workers)]


class Equal(test_resume.Resume):
    def test_in_the_middle(self):
        """fp16 skips steps before and behind the checkpoint, and step 3 itself."""
        clip = ["--set", "gradient_clipping=0.05"]
        for dtype, before, behind, kept, resumed in (
                ("fp32", 1, 3, ["--medium", "shm"], ["--medium", "tcp"]),
                ("bf16", 3, 1, ["--medium", "tcp", *clip], clip),
                ("bf16", 2, 2, ["--checkpoint-background"], ["--medium", "tcp"]),
                ("fp16", 2, 3, ["--checkpoint-background", "--medium", "tcp", *clip], clip),
                ("fp16", 3, 2, SMALL_KEYS, SMALL_KEYS)):
            with self.subTest(dtype=dtype, kept=kept):
                dt = ["--dtype", dtype]
                self.train("kept", *star(before), *dt, *kept, *KEEP_ALL)
                self.assertEqual(self.checkpoints("kept"), ["step-3", "step-6", "step-8"])
                self.train("again", *star(behind), *dt, *resumed, "--resume", "kept/checkpoints/step-3")
                self.assert_same_run("again", "kept", 3)
                self.train("plain", *ring(1), *dt, *(clip if "gradient_clipping=0.05" in kept else []))
                self.assert_same_run("kept", "plain")
        skipped = [line["step"] for line in self.curve("plain") if line["skipped"]]
        self.assertIn(3, skipped)

    def kill_worker(self, out, rank, *argv, steps):
        """Trains, and kills a worker once a step is done."""
        with subprocess.Popen([PROGRAM, "train", *SMALL, *NO_EVALS, "--quiet", "--steps", str(steps), "--out", out, *argv],
                              cwd=self.folder, stderr=subprocess.PIPE, text=True) as p:
            lines, end = self.at(out, "metrics.jsonl"), time.monotonic() + LIMIT_S
            while not (os.path.exists(lines) and os.path.getsize(lines)):
                self.assertLess(time.monotonic(), end)
                time.sleep(0.005)
            with open(f"/proc/{p.pid}/task/{p.pid}/children", encoding="ascii") as f:
                children = f.read().split()
            for pid in children:
                with open(f"/proc/{pid}/cmdline", encoding="utf-8") as f:
                    words = f.read().split("\0")
                if words[1] == "worker" and words[words.index("--rank") + 1] == str(rank):
                    os.kill(int(pid), signal.SIGKILL)
            said = p.communicate(timeout=LIMIT_S)[1]
        self.assertEqual(p.returncode, 0, said)

    def test_after_an_elastic_run(self):
        """Samples go on behind those that were handed out, and the learning rate behind those applied, elastic or not."""
        elastic, slope = ["--elastic", "1:2"], ["--set", "scheduler.type=WarmupLR", "--set", "scheduler.params.warmup_num_steps=40",
                                               "--set", "scheduler.params.warmup_max_lr=0.01"]
        self.kill_worker("short", 1, *star(), *elastic, *slope, *KEEP_ALL, "--delay", "0:constant:400", steps=12)
        with open(self.at("short", "checkpoints", "step-12", "manifest.json"), encoding="utf-8") as f:
            behind = json.load(f)["train"]
        self.assertLess(behind["samples"], 48)
        self.assertEqual(self.summary("short")["samples_applied"], behind["samples"])
        again = ["--resume", "short/checkpoints/step-12", "--checkpoint-every", "2", *slope]
        self.train("come", *star(), *elastic, *again, steps=16)
        for name, argv in (("star", star(1)), ("ring", ring(2))):
            self.train(name, *argv, *again, steps=16)
            self.assertEqual(self.hash(name), self.hash("come"))
            for key in ("samples", "lr", "loss"):
                self.assertEqual([line[key] for line in self.curve(name)], [line[key] for line in self.curve("come")])
            with open(self.at(name, "checkpoints", "step-16", "manifest.json"), encoding="utf-8") as f:
                after = json.load(f)["train"]
            self.assertEqual([after["samples"] - behind["samples"], after["dealt"] - behind["dealt"]], [16, 16])

    def test_other_topologies(self):
        dt = ["--dtype", "bf16"]
        self.train("star", *star(3), *dt, *KEEP_ALL)
        self.train("ring", *ring(3), *dt, "--resume", "star/checkpoints/step-3", *KEEP_ALL)
        self.assert_same_run("ring", "star", 3)
        self.train("back", *star(1), *dt, "--resume", "ring/checkpoints/step-6")
        self.assert_same_run("back", "star", 6)
        # One worker: another order of sums, but the same numbers to begin with.
        self.train("local", *LOCAL, *dt, "--resume", "star/checkpoints/step-6", *KEEP_ALL, steps=6)
        self.assertEqual(self.tensors("local", 6)[0], self.tensors("star", 6)[0])
        self.train("four", *star(2, 4), *dt, "--resume", "local", steps=6)
        self.train("six", *ring(1), *dt, steps=6)
        for name in ("local", "four"):
            self.assertEqual(self.hash(name), self.hash("six"))

    def test_interrupted(self):
        argv = [*star(), "--dtype", "bf16", "--straggle", "1:4"]
        self.train("undisturbed", *argv, steps=40)
        p = subprocess.Popen([PROGRAM, "train", *SMALL, *NO_EVALS, "--steps", "40", "--out", "cut", *argv, *SLOW,
                              "--checkpoint-every", "7"], cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while not os.path.exists(self.at("cut", "checkpoints", "step-7", "manifest.json")):
            self.assertLess(time.monotonic(), deadline)
            self.assertIsNone(p.poll())
            time.sleep(0.002)
        p.send_signal(signal.SIGTERM)
        self.assertEqual(p.wait(timeout=LIMIT_S), 143)
        done = len(self.curve("cut"))
        self.assertLess(done, 40)
        self.assertEqual(self.checkpoints("cut")[-1], f"step-{done}")
        self.train("cut", *argv, "--checkpoint-every", "7", "--resume", "latest", steps=40, fresh=False)
        self.assert_same_run("cut", "undisturbed")
        self.assertEqual(self.checkpoints("cut"), ["step-35", "step-40"])


class Async(test_resume.Resume):
    def rank(self, out, worker):
        with open(self.at(out, "ranks", f"worker-{worker}.json"), encoding="utf-8") as f:
            return json.load(f)

    def rows(self, out, step):
        """[(version, [pushes of each worker])] of all keys."""
        folder, rows = self.at(out, "checkpoints", f"step-{step}"), []
        for name in sorted(os.listdir(folder)):
            if not name.startswith("server-"):
                continue
            with open(os.path.join(folder, name), "rb") as f:
                data = f.read()
            n = struct.unpack("<Q", data[:8])[0]
            about = json.loads(data[8:8 + n])

            def numbers(key):
                begin, end = about[key]["data_offsets"]
                return struct.unpack(f"<{(end - begin) // 8}q", data[8 + n + begin:8 + n + end])
            keys, workers = numbers("star/shape")
            pushed = numbers("star/pushed")
            rows += [(v, list(pushed[i * workers:(i + 1) * workers])) for i, v in enumerate(numbers("star/version"))]
            self.assertEqual(len(numbers("star/version")), keys)
        return rows

    def test_every_push_once(self):
        argv = [*star(2, 4, "async"), *SMALL_KEYS, "--dtype", "bf16", "--straggle", "2:6"]
        self.train("kept", *argv, "--checkpoint-every", "5", "--checkpoint-keep", "0", "--delay", "1:exponential:10", steps=15)
        for step in (5, 10, 15):
            rows = self.rows("kept", step)
            for version, pushed in rows:
                self.assertEqual(version, sum(pushed))
                self.assertEqual(pushed[0], step)
        self.assertEqual(self.summary("kept")["updates_applied"], 60)
        for servers, more in ((2, []), (1, ["--medium", "tcp"]), (3, ["--checkpoint-background"])):
            with self.subTest(servers=servers):
                self.train("again", *star(servers, 4, "async"), *SMALL_KEYS, "--dtype", "bf16", *more,
                           "--resume", "kept/checkpoints/step-10", "--checkpoint-every", "100", steps=15)
                self.assertEqual(self.rows("again", 15)[0][1][0], 15)
                versions = [version for version, _ in self.rows("kept", 10)]
                # What every key has had applied in this life: those that were furthest had the least to come.
                self.assertEqual(self.summary("again")["updates_applied"], 60 - max(versions))
                of_workers = sum(self.rank("again", w)["updates"] for w in range(4))
                hindmost = [min(pushed[w] for _, pushed in self.rows("kept", 10)) for w in range(4)]
                self.assertEqual(of_workers, 60 - sum(hindmost))
                curve = self.curve("again")
                self.assertEqual([line["step"] for line in curve], list(range(11, 16)))
                self.assertGreaterEqual(curve[0]["samples"], min(versions))  # a batch of one each

    def test_one_that_had_not_begun(self):
        """Its own first step lies behind the others' checkpoint; what it reports counts from there."""
        argv = [*star(1, 2, "async"), "--dtype", "bf16"]
        self.train("kept", *argv, "--checkpoint-every", "1", "--checkpoint-keep", "0", "--delay", "1:constant:3000", steps=3)
        self.assertEqual([pushed[1] for _, pushed in self.rows("kept", 2)][0], 0)
        self.train("again", *argv, "--resume", "kept/checkpoints/step-2", steps=3)
        self.assertEqual([self.rank("again", w)["updates"] for w in range(2)], [1, 3])

    def test_to_and_from(self):
        lr = ["--set", "scheduler.type=WarmupLR", "--set", "scheduler.params.warmup_num_steps=50",
              "--set", "scheduler.params.warmup_max_lr=0.01", "--dtype", "bf16"]
        self.train("ring", *ring(1), *lr, *KEEP_ALL, steps=6)
        self.train("async", *star(2, 2, "async"), *lr, "--resume", "ring", "--checkpoint-every", "100", steps=9)
        curve = self.curve("async")
        self.assertEqual([line["step"] for line in curve], [7, 8, 9])
        self.assertGreaterEqual(curve[0]["samples"], 26)  # 6 global batches, and its own half of one
        # The schedule goes on where it was: it counts samples.
        self.assertGreater(curve[0]["lr"], self.curve("ring")[-1]["lr"])
        self.assertEqual(self.summary("async")["updates_applied"], 6)
        self.assertTrue(all(version == sum(pushed) for version, pushed in self.rows("async", 9)))
        self.train("more", *star(1, 4, "async"), *lr, "--resume", "async", steps=12)
        rest = [4 * (12 - sum(pushed) // 2) for _, pushed in self.rows("async", 9)]  # from the mean of the two
        self.assertEqual(self.summary("more")["updates_applied"], min(rest))
        self.train("back", *ring(2), *lr, "--resume", "async", steps=10)
        self.assertEqual(len(self.curve("back")), 1)


class Failures(test_resume.Resume):
    def test_full_disk(self):
        """No file may be longer than servers need: it ends the checkpoints, not the run."""
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (300000, 300000))
        for more in ([], ["--checkpoint-background"]):
            p = self.train("full", *star(), "--medium", "tcp", *KEEP_ALL, *more, restore_signals=False, preexec_fn=limit)
            self.train("whole", *star())
            self.assert_same_run("full", "whole")
            complete = [name for name in os.listdir(self.at("full", "checkpoints")) if name.startswith("step-")]
            self.assertEqual(complete, [])
            self.assertIn("server-0.safetensors", p.stderr)
            self.assertEqual(self.summary("full")["checkpoints"]["failed"], 3)
            self.assertEqual(self.summary("full")["checkpoints"]["written"], 0)

    def test_tampered(self):
        self.train("torn", *star(), *KEEP_ALL, steps=3)
        self.damage("torn", 3, "server-1.safetensors")
        p = self.train("refused", *star(3), "--resume", "torn", status=1)
        self.assertIn("server-1.safetensors", p.stderr)
        self.assertIn("on many machines one that they share", p.stderr)
        # Whether worker 0 has begun its file by then is a matter of luck; that no step is done is not.
        if os.path.exists(self.at("refused", "metrics.jsonl")):
            self.assertEqual(self.curve("refused"), [])

    def test_damaged_in_place(self):
        self.keeps_all(star(), "server-1.safetensors")

    def test_refused(self):
        self.train("kept", *star(), *KEEP_ALL, steps=3)
        p = self.train("refused", *star(2, 2, "async"), "--resume", "kept", "--record-arrivals", status=2)
        self.assertIn("a whole run", p.stderr)
        p = self.train("refused", *star(), "--resume", "kept", "--seed", "5", status=2)
        self.assertIn("seed", p.stderr)

    def test_ledger(self):
        for more in ([], ["--checkpoint-background"], ["--checkpoint-background", "--medium", "tcp", "--dtype", "bf16"]):
            self.train("ledger", *star(), *KEEP_ALL, *more)
            for rank in self.summary("ledger")["memory"]:
                self.assertEqual(rank["predicted"], rank["peak"])
                self.assertEqual(rank["predicted"]["checkpoint"] > 0, bool(more) and rank["role"] == "server")
            self.assertEqual(self.summary("ledger")["checkpoints"]["written"], 3)


class ByHand(test_resume.Resume):
    def test_the_scheduler_says(self):
        """Roles started one by one: the scheduler's --resume is everybody's, and a worker's alone is refused."""
        argv = [*star(1, 1), "--out", "hand"]
        self.train("kept", *star(1, 1), *KEEP_ALL)
        for ours, theirs, status in (([], [], 0), (["--resume", "kept/checkpoints/step-6"], [], 0),
                                     ([], ["--resume", "kept/checkpoints/step-6"], 1)):
            shutil.rmtree(self.at("hand"), ignore_errors=True)
            base = [*SMALL[:-7], *NO_EVALS, "--steps", str(STEPS), *argv]
            scheduler = subprocess.Popen([PROGRAM, "scheduler", *base, *ours], cwd=self.folder, stderr=subprocess.PIPE, text=True)
            address = scheduler.stderr.readline().split()[-1]
            others = [subprocess.Popen([PROGRAM, role, *base, *theirs, "--scheduler", address], cwd=self.folder,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                      for role in ("server", "worker")]
            texts = [p.communicate(timeout=LIMIT_S)[1] for p in [*others, scheduler]]
            if status == 0:
                self.assertEqual([p.returncode for p in [*others, scheduler]], [0, 0, 0], texts)
                self.assertEqual(len(self.curve("hand")), 2 if ours else STEPS)
                self.assertEqual(self.hash("hand"), self.hash("kept"))
            else:
                self.assertNotEqual(others[1].returncode, 0)
                self.assertIn("give it --resume too", texts[1])


    def test_in_place(self):
        """The scheduler's --resume latest goes on in the directory of all; without it the directory is another run's."""
        self.train("kept", *star(1, 1))
        shutil.rmtree(self.at("hand"), ignore_errors=True)
        base = [*SMALL[:-7], *NO_EVALS, *star(1, 1), *KEEP_ALL, "--out", "hand"]
        for ours, theirs, steps, status in (([], [], 5, 0), ([], [], STEPS, 1), (["--resume", "latest"], [], 7, 0),
                                            (["--resume", "latest"], ["--resume", "latest"], STEPS, 0)):
            with self.subTest(scheduler=ours, others=theirs, steps=steps):
                every = [*base, "--steps", str(steps)]
                scheduler = subprocess.Popen([PROGRAM, "scheduler", *every, *ours], cwd=self.folder, stderr=subprocess.PIPE,
                                             text=True)
                address = scheduler.stderr.readline().split()[-1]
                others = [subprocess.Popen([PROGRAM, role, *every, *theirs, "--scheduler", address], cwd=self.folder,
                                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                          for role in ("server", "worker")]
                texts = [p.communicate(timeout=LIMIT_S)[1] for p in [*others, scheduler]]
                self.assertEqual([p.returncode for p in [*others, scheduler]], [status] * 3, texts)
                if status:
                    self.assertIn("hand holds 5 steps of an earlier run", texts[1])
                    self.assertEqual(self.checkpoints("hand"), ["step-3", "step-5"])
                else:
                    self.assertEqual([line["step"] for line in self.curve("hand")], list(range(1, steps + 1)))
        self.assertEqual(self.hash("hand"), self.hash("kept"))


if __name__ == "__main__":
    unittest.main()
