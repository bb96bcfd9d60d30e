#!/usr/bin/env python3
"""A star's checkpoints: resumed in the middle, by other servers, through another medium, as a ring or from one, equals
undisturbed, bit for bit; an asynchronous star gets every push once; what servers cannot write ends the checkpoint, what they
cannot read the run."""
import glob
import json
import os
import resource
import signal
import struct
import time
import unittest

import test_resume
from test_resume import KEEP_ALL, LOCAL, NO_EVALS, SLOW, SMALL, STEPS, ring

OF_ROLES = [*(word for word in SMALL if word != "--no-weights"), *NO_EVALS]
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
                ("bf16", 2, 2, [], ["--medium", "tcp"]),
                ("fp16", 2, 3, ["--medium", "tcp", *clip], clip),
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
        self.remove(out)
        p = self.start(*self.words(out, "--quiet", *argv, steps=steps))
        p.behind(1)
        p.kill_now(f"worker {rank}")
        p.ends()

    def test_after_an_elastic_run(self):
        """Samples go on behind those that were handed out, and the learning rate behind those applied, elastic or not."""
        elastic, slope = ["--elastic", "1:2"], ["--set", "scheduler.type=WarmupLR", "--set", "scheduler.params.warmup_num_steps=40",
                                               "--set", "scheduler.params.warmup_max_lr=0.01"]
        self.kill_worker("short", 1, *star(), *elastic, *slope, *KEEP_ALL, "--delay", "0:constant:400", steps=12)
        behind = self.json("short", "checkpoints", "step-12", "manifest.json")["train"]
        self.assertLess(behind["samples"], 48)
        self.assertEqual(self.summary("short")["samples_applied"], behind["samples"])
        again = ["--resume", "short/checkpoints/step-12", "--checkpoint-every", "2", *slope]
        self.train("come", *star(), *elastic, *again, steps=16)
        for name, argv in (("star", star(1)), ("ring", ring(2))):
            self.train(name, *argv, *again, steps=16)
            self.assertEqual(self.hash(name), self.hash("come"))
            for key in ("samples", "lr", "loss"):
                self.assertEqual([line[key] for line in self.curve(name)], [line[key] for line in self.curve("come")])
            after = self.json(name, "checkpoints", "step-16", "manifest.json")["train"]
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
        # All steps are done: it keeps nothing, which is no failure of a disk.
        self.train("four", *star(2, 4), *dt, "--resume", "local", *KEEP_ALL, steps=6)
        self.assertEqual([self.summary("four")["state"], os.path.exists(self.at("four", "checkpoints"))], ["complete", False])
        self.train("six", *ring(1), *dt, steps=6)
        for name in ("local", "four"):
            self.assertEqual(self.hash(name), self.hash("six"))

    def test_interrupted(self):
        argv = [*star(), "--dtype", "bf16", "--straggle", "1:4"]
        self.train("undisturbed", *argv, steps=40)
        p = self.behind_checkpoint(7, "cut", *argv, "--checkpoint-every", "7", steps=40)
        p.send_signal(signal.SIGTERM)
        p.ends(143)
        done = len(self.curve("cut"))
        self.assertLess(done, 40)
        self.assertEqual(self.checkpoints("cut")[-1], f"step-{done}")
        self.train("cut", *argv, "--checkpoint-every", "7", "--resume", "latest", steps=40, fresh=False)
        self.assert_same_run("cut", "undisturbed")
        self.assertEqual(self.checkpoints("cut"), ["step-35", "step-40"])


class Async(test_resume.Resume):
    def last(self, out):
        """The step of its latest checkpoint."""
        return max(int(name[5:]) for name in self.checkpoints(out))

    def rows(self, out, step):
        """[(version, [pushes of each worker], {batches that it holds})] of all keys, in the order of their numbers."""
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
            pushed, places, batches = numbers("star/pushed"), numbers("star/keys"), numbers("star/batches")
            words = numbers("star/budget")[1]
            for i, version in enumerate(numbers("star/version")):
                behind, *holes = batches[i * words:(i + 1) * words]
                rows.append((places[3 * i:3 * i + 2], version, list(pushed[i * workers:(i + 1) * workers]),
                             set(range(behind)) - set(holes)))
            self.assertEqual(len(numbers("star/version")), keys)
        return [row[1:] for row in sorted(rows, key=lambda row: row[0])]

    def pushes(self, out):
        """{key: [batches in the order in which they were applied]}"""
        found = {}
        for line in self.lines(out, "updates.jsonl"):
            found.setdefault(line["key"], []).append(line["batch"])
        return found

    def test_every_batch_once(self):
        """One budget, one worker slower than the others; whoever goes on does what is left, key by key."""
        argv = [*star(2, 4, "async"), *SMALL_KEYS, "--dtype", "bf16", "--log-updates"]
        # Worker 0 does the most, so that it comes to its tenth step however slow the disk is.
        self.train("kept", *argv, "--checkpoint-every", "5", "--checkpoint-keep", "0", "--straggle", "2:6",
                   "--delay", "1:constant:50", "--delay", "0:constant:5", "--delay", "3:constant:50", "--delay", "2:constant:200",
                   steps=15)
        summary = self.summary("kept")
        self.assertEqual((summary["updates_applied"], summary["steps"], sum(summary["batches"])), (60, 15, 60))
        self.assertTrue(all(sorted(batches) == list(range(60)) for batches in self.pushes("kept").values()))
        for name in self.checkpoints("kept"):
            for version, pushed, held in self.rows("kept", name[5:]):
                self.assertEqual((version, len(held)), (sum(pushed), sum(pushed)))
                self.assertEqual(pushed[0], int(name[5:]))
        self.assertTrue(all(len(held) == 60 for _, _, held in self.rows("kept", self.last("kept"))))
        rows = self.rows("kept", 10)
        for servers, more in ((2, []), (1, ["--medium", "tcp"]), (3, [])):
            with self.subTest(servers=servers):
                self.train("again", *star(servers, 4, "async"), *SMALL_KEYS, "--dtype", "bf16", *more, "--log-updates",
                           "--resume", "kept/checkpoints/step-10", "--checkpoint-every", "100", steps=15)
                applied = self.pushes("again")
                for key, (_, _, held) in enumerate(rows):
                    self.assertEqual(sorted(applied.get(key, [])), sorted(set(range(60)) - held))
                # The updates that every key has had applied in this life: the keys with most of them had the fewest left.
                self.assertEqual(self.summary("again")["updates_applied"], 60 - max(version for version, _, _ in rows))
                self.assertTrue(all(len(held) == 60 for _, _, held in self.rows("again", self.last("again"))))
                curve = self.curve("again")
                self.assertEqual([line["step"] for line in curve], list(range(11, 11 + len(curve))))
                if curve:  # else the others were there first, and took all that was left
                    self.assertGreaterEqual(curve[0]["samples"], min(version for version, _, _ in rows))  # a batch of one each

    def test_after_a_death(self):
        """Everybody goes back to a checkpoint, and what that lacks is done again: the whole budget, once."""
        # Both are slow, so that most of the budget is left when it dies.
        Equal.kill_worker(self, "kept", 1, *star(2, 2, "async"), *SMALL_KEYS, *SLOW, "--delay", "1:constant:150", "--restart", "2",
                          "--checkpoint-every", "2", "--checkpoint-keep", "0", steps=8)
        self.assertEqual(len(self.lives("kept")), 2)
        self.assertTrue(all(held == set(range(16)) for _, _, held in self.rows("kept", self.last("kept"))))
        self.assertEqual(self.summary("kept")["samples_applied"] + min(
            version for version, _, _ in self.rows("kept", self.began("kept"))) * 2 if self.began("kept") else 32, 32)

    def test_skipped(self):
        """A batch whose gradient was not finite is done, too: it counts for the run's steps."""
        argv = [*star(2, 2, "async"), "--dtype", "fp16", "--set", "fp16.initial_scale_power=26", "--checkpoint-every", "100"]
        self.train("kept", *argv, steps=6)
        kept = self.summary("kept")
        self.assertLess(kept["samples_applied"], 24)  # some were skipped
        self.assertEqual((kept["state"], kept["steps"], sum(kept["batches"])), ("complete", 6, 12))
        self.assertEqual(kept["skipped"], 12 - kept["updates_applied"])  # of both workers
        self.train("kept", *argv, "--resume", "latest", steps=9, fresh=False)
        again = self.summary("kept")
        self.assertEqual((again["resumed_from"], again["steps"], sum(again["batches"])), (6, 9, 6))

    def test_worker_0_is_behind(self):
        """It does less than its share: what the job's steps number stays where the run goes on, and its few lines are all there."""
        argv = [*star(1, 2, "async"), "--dtype", "bf16", "--set", "eval_every=2", "--set", "eval_batches=1", "--checkpoint-every", "100",
                "--delay", "0:constant:700", "--delay", "1:constant:10"]
        self.train("kept", *argv, steps=6, evals=True)
        before, own = self.lines("kept", "evals.jsonl"), self.summary("kept")["batches"][0]
        self.assertLess(own, 4)
        self.assertEqual(self.run_it("summary", "kept").stderr, "")
        self.train("kept", *argv, "--resume", "latest", steps=8, evals=True, fresh=False)
        after = self.lines("kept", "evals.jsonl")
        self.assertEqual(after[:len(before)], before)
        steps, seconds = ([e[key] for e in after] for key in ("step", "seconds"))
        self.assertEqual([steps, seconds], [sorted(steps), sorted(seconds)])
        # That of step 4 is left out where a disk is slower than the worker that goes on.
        self.assertEqual(([e["step"] for e in before if e["step"] != 4], steps[-1]), ([2, 6], 8))

    def test_asked_to_leave(self):
        """The remaining batches are those that no worker has done; a worker that is asked in the last batch has nothing left."""
        def ask(lines, steps, *argv):
            p = self.start(*self.words("cut", *argv, steps=steps))
            p.behind(lines)
            time.sleep(0.7)  # they look for it once a step, at its beginning
            p.send_signal(signal.SIGTERM)
            p.ends(status=None)
            return p.returncode
        slow = ["--checkpoint-every", "1000", "--delay", "0:constant:30", "--delay", "1:constant:20"]
        for _ in range(4):  # worker 0 may hear of it by asking for more
            self.assertEqual(ask(2, 1000, *star(1, 2, "async"), *slow), 143)
            cut = self.summary("cut")
            self.assertEqual((cut["state"], cut["steps"]), ("interrupted", sum(cut["batches"]) // 2))
            for w in cut["wire"]:  # of a server also where one worker has done one batch more
                self.assertAlmostEqual(w["sent_per_step"], w["predicted_sent"], delta=0.5)
            train = self.json("cut", "checkpoints", f"step-{self.last('cut')}", "manifest.json")["train"]
            self.assertEqual(train.get("place", train["step"]), cut["steps"])
            self.remove("cut")
        self.assertEqual(ask(1, 3, *star(1, 1, "async"), "--delay", "0:constant:2500"), 0)
        self.assertEqual((self.summary("cut")["state"], self.summary("cut")["steps"]), ("complete", 3))

    def began(self, out):
        """The checkpoint that the last life began with; 0: none."""
        name = self.lives(out)[-1]["resumed_from"]
        return int(name[5:]) if name else 0

    def test_one_that_had_not_begun(self):
        """Its own first step lies behind the others' checkpoint; what it had taken is done once all the same."""
        argv = [*star(1, 2, "async"), "--dtype", "bf16"]
        self.train("kept", *argv, "--checkpoint-every", "1", "--checkpoint-keep", "0", "--delay", "1:constant:3000", steps=3)
        self.assertEqual([pushed[1] for _, pushed, _ in self.rows("kept", 2)][0], 0)
        self.train("again", *argv, "--resume", "kept/checkpoints/step-2", steps=3)
        self.assertEqual((sum(self.summary("again")["batches"]), self.summary("again")["updates_applied"]), (4, 4))

    def test_to_and_from(self):
        lr = ["--set", "scheduler.type=WarmupLR", "--set", "scheduler.params.warmup_num_steps=50",
              "--set", "scheduler.params.warmup_max_lr=0.01", "--dtype", "bf16"]
        self.train("ring", *ring(1), *lr, *KEEP_ALL, steps=6)
        self.train("async", *star(2, 2, "async"), *lr, "--resume", "ring", "--checkpoint-every", "100",
                   "--straggle", "0:4", steps=9)
        curve = self.curve("async")
        self.assertEqual([line["step"] for line in curve], list(range(7, 7 + len(curve))))
        if curve:  # else the other worker was there first
            self.assertGreaterEqual(curve[0]["samples"], 26)  # 6 global batches, and its own half of one
            # The schedule goes on where it was: it counts samples.
            self.assertGreater(curve[0]["lr"], self.curve("ring")[-1]["lr"])
        self.assertEqual((self.summary("async")["updates_applied"], self.summary("async")["steps"]), (6, 9))
        self.assertTrue(all((version, held) == (18, set(range(18))) for version, _, held in self.rows("async", self.last("async"))))
        # Batches of another size: as many samples are left.
        self.train("more", *star(1, 4, "async"), *lr, "--resume", "async", steps=12)
        self.assertEqual(self.summary("more")["updates_applied"], 4 * 12 - 36)
        # With any count of worker 0's own, the run has done nine steps.
        for name, argv in (("back", ring(2)), ("star", star(2, 2))):
            self.train(name, *argv, *lr, "--resume", "async", steps=10)
            self.assertEqual([line["step"] for line in self.curve(name)], [10])
        p = self.train("over", *ring(2), *lr, "--resume", "async", steps=8, status=2)
        self.assertIn("is the state after step 9, and --steps is 8", p.stderr)


class Failures(test_resume.Resume):
    def test_full_disk(self):
        """No file may be longer than servers need: it ends the checkpoints, not the run."""
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (300000, 300000))
        p = self.train("full", *star(), "--medium", "tcp", *KEEP_ALL, restore_signals=False, preexec_fn=limit, status=1)
        self.train("whole", *star())
        self.assert_same_run("full", "whole")
        self.assertEqual(glob.glob(self.at("full", "checkpoints", "step-*")), [])
        self.assertIn("server-0.safetensors", p.stderr)
        self.assertEqual(self.summary("full")["checkpoints"]["failed"], 3)
        self.assertEqual(self.summary("full")["checkpoints"]["written"], 0)

    def test_full_disk_of_roles_by_hand(self):
        """Worker 0 stands for the job: it says that nothing was kept, whichever role is the last to leave."""
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (300000, 300000))
        words = [*OF_ROLES, "--steps", str(STEPS), *star(1), "--medium", "tcp", *KEEP_ALL, "--out", "hand"]
        self.remove("hand")
        workers = (["worker", *words, "--no-weights"] for _ in "01")
        roles = self.by_hand(words, ["server", *words], *workers, restore_signals=False, preexec_fn=limit)
        for p in roles:
            p.ends(status=None)
        self.assertEqual(roles[2].returncode, 1, roles[2].said())
        self.assertIn("hand/checkpoints: no checkpoint could be kept", roles[2].said())
        self.assertEqual(self.curve("hand")[-1]["step"], STEPS)

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
        self.assertIn("the whole run", p.stderr)
        p = self.train("refused", *star(), "--resume", "kept", "--seed", "5", status=2)
        self.assertIn("seed", p.stderr)

    def test_ledger(self):
        """A checkpoint is copied first: the servers' masters and states once more, and nothing of the workers'."""
        for more in ([], ["--checkpoint-background"], ["--medium", "tcp", "--dtype", "bf16"]):
            self.train("ledger", *star(), *KEEP_ALL, *more)
            self.assert_as_predicted(self.summary("ledger"))
            for rank in self.summary("ledger")["memory"]:
                copy = rank["predicted"]["master"] + rank["predicted"]["optimizer"] if rank["role"] == "server" else 0
                self.assertTrue(0.99 * copy <= rank["predicted"]["checkpoint"] <= copy, rank["predicted"])  # fp32 masters are whole pages
            self.assertEqual(self.summary("ledger")["checkpoints"]["written"], 3)


class ByHand(test_resume.Resume):
    def test_the_scheduler_says(self):
        """Roles started one by one: the scheduler's --resume is everybody's, and a worker's alone is refused."""
        argv = [*star(1, 1), "--out", "hand"]
        self.train("kept", *star(1, 1), *KEEP_ALL)
        for ours, theirs, status in (([], [], 0), (["--resume", "kept/checkpoints/step-6"], [], 0),
                                     ([], ["--resume", "kept/checkpoints/step-6"], 1)):
            self.remove("hand")
            base = [*OF_ROLES, "--steps", str(STEPS), *argv]
            roles = self.by_hand([*base, *ours], ["server", *base, *theirs], ["worker", *base, *theirs])
            if status == 0:
                for p in roles:
                    p.ends()
                self.assertEqual(len(self.curve("hand")), 2 if ours else STEPS)
                self.assertEqual(self.hash("hand"), self.hash("kept"))
            else:
                self.assertIn("give it --resume too", roles[2].ends(status=None))
                self.assertNotEqual(roles[2].returncode, 0)

    def test_in_place(self):
        """The scheduler's --resume latest goes on in the directory of all; without it the directory is another run's."""
        self.train("kept", *star(1, 1))
        self.remove("hand")
        base = [*OF_ROLES, *star(1, 1), *KEEP_ALL, "--out", "hand"]
        for ours, theirs, steps, status in (([], [], 5, 0), ([], [], STEPS, 1), (["--resume", "latest"], [], 7, 0),
                                            (["--resume", "latest"], ["--resume", "latest"], STEPS, 0)):
            with self.subTest(scheduler=ours, others=theirs, steps=steps):
                every = [*base, "--steps", str(steps)]
                roles = self.by_hand([*every, *ours], ["server", *every, *theirs], ["worker", *every, *theirs])
                for p in roles:
                    p.ends(status)
                if status:
                    self.assertIn("hand holds 5 steps of an earlier run", roles[2].said())
                    self.assertEqual(self.checkpoints("hand"), ["step-3", "step-5"])
                else:
                    self.assertEqual([line["step"] for line in self.curve("hand")], list(range(1, steps + 1)))
        self.assertEqual(self.hash("hand"), self.hash("kept"))

    def test_worker_0_is_started_again(self):
        """The process that takes its place stands for the run, also where the first one had not come to take the directory."""
        self.train("kept", *star(1, 1))
        for early in (False, True):
            self.remove("hand")
            base = [*OF_ROLES, *star(1, 1), *KEEP_ALL, *SLOW, "--steps", str(STEPS), "--out", "hand", "--restart", "2"]
            roles = self.by_hand(base, ["server", *base], ["worker", *base])
            roles[2].behind(2)
            roles[2].kill()
            if early:
                os.remove(self.at("hand", "state.json"))
                os.remove(self.at("hand", "config.json"))
            roles[2] = self.start("worker", *base, "--rank", "0", "--scheduler", roles[0].address())
            for p in roles:
                p.ends()
            state = self.json("hand", "state.json")
            self.assertEqual([state["state"], state["pid"]], ["complete", roles[2].pid])
            self.assertEqual(self.hash("hand"), self.hash("kept"))


if __name__ == "__main__":
    unittest.main()
