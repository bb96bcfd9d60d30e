#!/usr/bin/env python3
"""Checkpoints of local runs and rings, and what goes on from them: resumed in the middle equals undisturbed, bit for
bit; other ranks, another stage, local from a ring and back hold the same tensors; what is another run is refused;
a full disk ends the checkpoint, a signal or kill -9 the run."""
import hashlib
import json
import os
import resource
import shutil
import signal
import struct
import sys
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import PROGRAM, Runs

STEPS = 8
SMALL = ["--model", "tiny", "--seq", "16", "--threads", "1", "--lr", "0.01", "--data", "text.txt", "--no-weights",
         "--set", "fp16.initial_scale_power=20", "--set", "fp16.loss_scale_window=2", "--set", "fp16.hysteresis=1"]
LOCAL = ["--topology", "local", "--batch", "4"]
NO_EVALS = ["--set", "eval_batches=0"]
SLOW = ["--delay", "0:constant:100"]  # there is time for a signal
KEEP_ALL = ["--checkpoint-every", "3", "--checkpoint-keep", "0"]


def ring(stage, workers=2):
    return ["--topology", f"zero:{stage}", "--workers", str(workers), "--batch", str(4 // workers)]


class Resume(Runs):
    shared, corpus = True, 1200

    def damage(self, out, step, name):
        """The last tensor's bytes, which only the hash of the file knows."""
        with open(self.at(out, "checkpoints", f"step-{step}", name), "r+b") as f:
            f.seek(-3, os.SEEK_END)
            byte = f.read(1)
            f.seek(-3, os.SEEK_END)
            f.write(bytes([byte[0] ^ 1]))

    def keeps_all(self, argv, name):
        """Back to a damaged one in the same directory: it is refused before anything of later steps goes."""
        evals = ["--set", "eval_every=2", "--set", "eval_batches=1"]
        self.train("later", *argv, *evals, *KEEP_ALL, evals=True)
        before = [self.checkpoints("later"), self.curve("later"), self.summary("later")]
        self.damage("later", 6, name)
        p = self.train("later", *argv, *evals, *KEEP_ALL, "--resume", "later/checkpoints/step-6", evals=True, fresh=False,
                       status=2)
        self.assertIn(f"step-6/{name}: is damaged", p.stderr)
        self.assertIn("the one before it: --resume", p.stderr)
        self.assertIn("checkpoints/step-3", p.stderr)
        self.assertEqual([self.checkpoints("later"), self.curve("later"), self.summary("later")], before)
        self.assertEqual(len(self.lines("later", "evals.jsonl")), 4)

    def words(self, out, *more, steps=STEPS, evals=False):
        return ["train", *SMALL, *([] if evals else NO_EVALS), "--steps", str(steps), "--out", out, *more]

    def train(self, out, *more, steps=STEPS, evals=False, fresh=True, **how):
        if fresh:
            self.remove(out)
        return self.run_it(*self.words(out, *more, steps=steps, evals=evals), **how)

    def behind_checkpoint(self, step, out, *more, **how):
        """A run under way that has just kept this step."""
        self.remove(out)
        p = self.start(*self.words(out, *more, *SLOW, **how))
        p.until(lambda: os.path.exists(self.at(out, "checkpoints", f"step-{step}", "manifest.json")), f"checkpoint {step}")
        return p

    def tensors(self, out, step):
        """{name: digest} of the logical tensors of masters and states, put together from all files; how many files."""
        folder = self.at(out, "checkpoints", f"step-{step}")
        pieces, files = {}, [name for name in os.listdir(folder) if name.endswith(".safetensors")]
        for name in files:
            with open(os.path.join(folder, name), "rb") as f:
                data = f.read()
            n = struct.unpack("<Q", data[:8])[0]
            for key, about in json.loads(data[8:8 + n]).items():
                if key != "__metadata__":
                    tensor, offset = key.split("@")
                    begin, end = about["data_offsets"]
                    pieces.setdefault(tensor, {})[int(offset)] = data[8 + n + begin:8 + n + end]
        whole = {}
        for tensor, parts in pieces.items():
            at, whole[tensor] = 0, b""
            for offset in sorted(parts):
                self.assertEqual(offset * 4, at, tensor)
                whole[tensor] += parts[offset]
                at += len(parts[offset])
        return {tensor: hashlib.sha256(data).hexdigest() for tensor, data in whole.items()}, len(files)


class Equal(Resume):
    def in_the_middle(self, name, argv, begin=3):
        self.train(name, *argv, *KEEP_ALL)
        again = [word for word in argv if word != "--checkpoint-background"]  # without --checkpoint-every it is refused
        self.train("again", *again, "--resume", f"{name}/checkpoints/step-{begin}")
        self.assert_same_run("again", name, begin)
        self.assertEqual(self.summary("again")["resumed_from"], begin)
        self.assertIsNone(self.summary(name)["resumed_from"])

    def test_local(self):
        for dtype in ("fp32", "bf16", "fp16"):
            with self.subTest(dtype=dtype):
                self.in_the_middle("local", [*LOCAL, "--dtype", dtype])
        # Keeping changes no bit, and of the scale's moves some lie before the checkpoint and some behind it.
        self.train("plain", *LOCAL, "--dtype", "fp16")
        self.assert_same_run("local", "plain")
        skipped = [line["step"] for line in self.curve("plain") if line["skipped"]]
        self.assertTrue(min(skipped) <= 3 < max(skipped), skipped)
        self.assertEqual(self.checkpoints("local"), ["step-3", "step-6", "step-8"])

    def test_scale_moves(self):
        """After every step of a window of the scale."""
        argv = [*LOCAL, "--dtype", "fp16", "--set", "fp16.loss_scale_window=3", "--set", "fp16.hysteresis=2"]
        self.train("scale", *argv, "--checkpoint-every", "1", "--checkpoint-keep", "0", steps=9)
        for begin in (2, 4, 5, 7):
            self.train("again", *argv, "--resume", f"scale/checkpoints/step-{begin}", steps=9)
            self.assert_same_run("again", "scale", begin)

    def test_stages(self):
        for stage, dtype in ((0, "fp16"), (1, "bf16"), (2, "fp16"), (3, "fp32")):
            with self.subTest(stage=stage):
                self.in_the_middle(f"zero{stage}", [*ring(stage), "--dtype", dtype])

    def test_accumulation_in_the_background(self):
        more = ["--checkpoint-background", "--set", "gradient_accumulation_steps=2", "--batch", "1", "--dtype", "bf16"]
        for stage in (2, 3):
            self.in_the_middle("aside", [*ring(stage), *more], begin=6)
        self.train("direct", *ring(3), *more[1:])
        self.assert_same_run("aside", "direct")

    def test_other_stage(self):
        self.train("bits0", *ring(0), "--dtype", "bf16", *KEEP_ALL)
        self.train("bits3", *ring(3), "--dtype", "bf16", "--resume", "bits0/checkpoints/step-3", *KEEP_ALL)
        self.assert_same_run("bits3", "bits0", 3)
        self.train("bits1", *ring(1), "--dtype", "bf16", "--resume", "bits3/checkpoints/step-6")
        self.assert_same_run("bits1", "bits0", 6)

    def test_processes(self):
        self.train("threads", *ring(2), "--dtype", "bf16", *KEEP_ALL, "--launch", "threads")
        for launch in ("processes", *(["mpi"] if shutil.which("mpirun") else [])):
            self.train(launch, *ring(2), "--dtype", "bf16", *KEEP_ALL, "--launch", launch)
            self.assertEqual(self.tensors(launch, 3), self.tensors("threads", 3))
            again = f"{launch}-again"
            self.train(again, *ring(2), "--dtype", "bf16", "--launch", launch, "--resume", f"{launch}/checkpoints/step-3")
            self.assert_same_run(again, "threads", 3)


class Elsewhere(Resume):
    """Other ranks hold the same numbers: a run with no step left to do keeps what it has taken."""

    def test_tensors(self):
        for dtype in ("fp32", "bf16"):
            dt = ["--dtype", dtype]
            self.train("from", *ring(1), *dt, *KEEP_ALL, steps=3)
            first, files = self.tensors("from", 3)
            self.assertEqual(files, 2)
            self.assertTrue({"master", "state0", "state1"} == {name.split("/")[0] for name in first})
            before = "from"
            for name, argv, count in (("four", ring(2, 4), 4), ("local", LOCAL, 1), ("two", ring(3), 2),
                                      ("zero", ring(0, 4), 4)):
                with self.subTest(dtype=dtype, to=name):
                    self.train(name, *argv, *dt, "--resume", before, *KEEP_ALL, steps=3)
                    there, files = self.tensors(name, 3)
                    self.assertEqual(files, count)
                    self.assertEqual(there, first)
                    self.assertEqual(self.hash(name), self.hash("from"))
                    before = name
            # Back where it came from it goes on as if it had never been away.
            self.train("back", *ring(2), *dt, "--resume", before, steps=6)
            self.train("stayed", *ring(1), *dt, steps=6)
            self.assert_same_run("back", "stayed", 3)

    def test_weights_only(self):
        self.train("from", *LOCAL, "--dtype", "fp32", *KEEP_ALL)
        p = self.train("to", *ring(1), "--dtype", "bf16", "--lr", "0.1", "--resume", "from", "--resume-weights-only")
        self.assertNotIn("disturbed", p.stderr)
        self.assertEqual([line["step"] for line in self.curve("to")], list(range(1, STEPS + 1)))
        self.assertLess(self.curve("to")[0]["loss"], self.curve("from")[0]["loss"] - 0.2)
        p = self.train("from", *LOCAL, "--resume", "from", "--resume-weights-only", fresh=False, status=2)
        self.assertIn("another --out", p.stderr)


class Continued(Resume):
    def test_a_curve_with_a_gap_is_told(self):
        """The run says which lines of metrics.jsonl are lost, damaged or missing at the end; it says nothing of a whole file."""
        ring = ["--topology", "zero:1", "--workers", "2"]
        self.train("gap", *ring, *KEEP_ALL)
        whole = self.read("gap", "metrics.jsonl").splitlines(True)
        for lines, lost in ((whole, None), (whole[:2] + ['{"st\n'] + whole[3:], f"steps 3 to {STEPS}"), (whole[:-1], f"steps {STEPS} to {STEPS}")):
            self.write("".join(lines), "gap", "metrics.jsonl")
            p = self.train("gap", *ring, *KEEP_ALL, "--resume", f"gap/checkpoints/step-{STEPS}", steps=STEPS + 1, fresh=False)
            self.assertEqual("metrics.jsonl is damaged after step" in p.stderr, lost is not None, p.stderr)
            self.assertIn(lost or "", p.stderr)

    def test_finished_and_grown(self):
        self.train("grown", *LOCAL, *KEEP_ALL, steps=4)
        before = os.stat(self.at("grown", "metrics.jsonl")).st_mtime_ns
        p = self.train("grown", *LOCAL, *KEEP_ALL, "--resume", "latest", steps=4, fresh=False)
        self.assertIn("nothing left to train", p.stderr)
        self.assertIn(self.hash("grown"), p.stdout)
        self.assertEqual(os.stat(self.at("grown", "metrics.jsonl")).st_mtime_ns, before)
        self.train("grown", *LOCAL, *KEEP_ALL, "--resume", "latest", fresh=False)
        self.train("whole", *LOCAL)
        self.assert_same_run("grown", "whole")
        elapsed = [line["elapsed"] for line in self.lines("grown", "metrics.jsonl")]
        self.assertEqual(elapsed, sorted(elapsed))
        # Back to an older one in the same directory: what came after it goes.
        self.train("grown", *LOCAL, *KEEP_ALL, "--resume", "grown/checkpoints/step-3", steps=6, fresh=False)
        self.assertEqual(self.checkpoints("grown"), ["step-3", "step-6"])
        self.assertEqual(len(self.curve("grown")), 6)

    def test_latest_of_nothing(self):
        p = self.train("new", *LOCAL, *KEEP_ALL, "--resume", "latest")
        self.assertIn("no checkpoint yet", p.stderr)
        self.train("whole", *LOCAL)
        self.assert_same_run("new", "whole")
        p = self.train("whole", *LOCAL, *KEEP_ALL, "--resume", "latest", fresh=False, status=2)
        self.assertIn("complete run without checkpoints", p.stderr)

    def test_signals(self):
        evals = ["--set", "eval_every=5", "--set", "eval_batches=1"]
        argv = [*ring(2), "--dtype", "bf16", "--straggle", "1:4"]
        self.train("undisturbed", *argv, *evals, steps=60, evals=True)
        for by, status in ((signal.SIGTERM, 143), (signal.SIGKILL, -9)):
            with self.subTest(signal=by):
                p = self.behind_checkpoint(8, "cut", *argv, *evals, "--checkpoint-every", "4", steps=60, evals=True)
                p.send_signal(by)
                p.ends(status)
                done = len(self.curve("cut"))
                self.assertLess(done, 60)
                if by == signal.SIGTERM:  # nothing was lost
                    self.assertEqual(self.checkpoints("cut")[-1], f"step-{done}")
                self.train("cut", *argv, *evals, "--checkpoint-every", "4", "--resume", "latest", steps=60, evals=True,
                           fresh=False)
                self.assert_same_run("cut", "undisturbed")
                self.assertEqual(self.losses("cut"), self.losses("undisturbed"))
                seconds = [line["seconds"] for line in self.lines("cut", "evals.jsonl")]
                self.assertEqual(seconds, sorted(seconds))
                self.assertEqual(self.summary("cut")["state"], "complete")
                self.assertEqual(self.checkpoints("cut"), ["step-56", "step-60"])

    def test_snapshots_under_way(self):
        """Killed between a checkpoint and the end of its step's snapshot, and of an earlier one."""
        evals = ["--set", "eval_every=2", "--set", "eval_batches=1"]
        self.train("whole", *ring(2), *evals, steps=8, evals=True)
        self.train("cut", *ring(2), *evals, *KEEP_ALL, steps=6, evals=True)
        self.write("".join(line + "\n" for line in self.read("cut", "evals.jsonl").splitlines() if '"step":4' in line), "cut", "evals.jsonl")
        for name in (".step-2.00000000000000aa.partial", ".step-6.00000000000000aa.partial"):
            os.makedirs(self.at("cut", "snapshots", name))
            self.write("\0" * 5000, "cut", "snapshots", name, "worker-0.safetensors.part")
        p = self.train("cut", *ring(2), *evals, *KEEP_ALL, "--resume", "latest", steps=8, evals=True, fresh=False)
        self.assertIn("snapshots/.step-2.00000000000000aa.partial: it was being written when the run ended", p.stderr)
        self.assertEqual(self.losses("cut"), self.losses("whole")[1:])

    def losses(self, out):
        return [(e["step"], e["samples"], e["val_loss"]) for e in self.lines(out, "evals.jsonl")]

    def test_in_use(self):
        self.train("used", *LOCAL, *KEEP_ALL, steps=4)
        p = self.start(*self.words("used", *LOCAL, "--resume", "latest", steps=100000))
        p.behind(6)
        other = self.train("used", *LOCAL, "--resume", "latest", fresh=False, status=2)
        self.assertIn(f"process {p.pid}", other.stderr)
        # One that is on its way out is waited for: whoever goes on right behind a kill need not be lucky.
        after = threading.Timer(0.5, lambda: (p.kill(), p.wait()))
        after.start()
        self.train("used", *LOCAL, "--resume", "latest", fresh=False)
        after.join()
        self.assertEqual(self.steps("used"), STEPS)


class Refused(Resume):
    def refuse(self, *argv, words, **more):
        self.remove("refused")
        self.refused(*self.words("refused", *argv, **more), said=words)
        self.assertFalse(os.path.exists(self.at("refused", "metrics.jsonl")))

    def test_other_runs(self):
        self.train("kept", *LOCAL, "--dtype", "bf16", *KEEP_ALL)
        go = [*LOCAL, "--resume", "kept"]
        self.refuse(*go, words=["dtype", "bf16", "fp32", "--resume-weights-only"])
        same = [*go, "--dtype", "bf16"]
        self.refuse(*same, "--lr", "0.5", words=["optimizer.params.lr", "0.01", "0.5"])
        self.refuse(*same, "--seed", "2", words=["seed"])
        self.refuse(*same, "--seq", "8", words=["data.seq_len", "16", "8"])
        self.refuse(*same, "--batch", "2", words=["train_batch_size", "4", "2"])
        self.refuse(*same, "--model", "demo", words=["model.channels"])
        self.refuse(*same, "--set", "data.path=demo", words=["data"])
        self.refuse(*same, "--set", "gradient_clipping=0", words=["gradient_clipping"])
        self.refuse(*same, words=["step 8", "--steps is 6"], steps=6)
        self.refuse(*same, "--model", "demo", "--resume-weights-only", words=["checkpoints/step-8"])
        self.refuse(*LOCAL, "--resume", "nowhere", words=["nowhere"])
        self.refuse(*LOCAL, "--resume", "latest", "--force", words=["--force"])
        self.refuse(*LOCAL, "--resume-weights-only", words=["--resume too"])

    def test_tampered(self):
        self.train("torn", *ring(1), *KEEP_ALL, steps=3)
        path = self.at("torn", "checkpoints", "step-3", "worker-1.safetensors")
        self.damage("torn", 3, "worker-1.safetensors")
        p = self.train("refused", *ring(1), "--resume", "torn", status=1)
        self.assertIn("worker-1.safetensors", p.stderr)
        self.assertEqual(self.curve("refused"), [])
        os.truncate(path, os.path.getsize(path) - 4)
        self.refuse(*ring(1), "--resume", "torn", words=["worker-1.safetensors"])

    def test_damaged_in_place(self):
        for argv in (LOCAL, ring(1)):
            self.keeps_all(argv, "worker-0.safetensors")

    def test_names_and_pipes(self):
        """A directory with the name of another step; a manifest that is a pipe."""
        self.train("renamed", *LOCAL, *KEEP_ALL)
        folder = self.at("renamed", "checkpoints")
        os.rename(os.path.join(folder, "step-3"), os.path.join(folder, "step-9"))
        p = self.train("renamed", *LOCAL, *KEEP_ALL, "--resume", "latest", steps=12, fresh=False, status=2)
        self.assertIn("step-9: holds the state after step 3", p.stderr)
        self.assertIn("checkpoints/step-8", p.stderr)
        self.assertEqual(self.checkpoints("renamed"), ["step-6", "step-8", "step-9"])
        os.rename(os.path.join(folder, "step-9"), self.at("a name of its own"))
        self.train("moved", *LOCAL, "--resume", "a name of its own")
        self.assert_same_run("moved", "renamed", 3)
        manifest = os.path.join(folder, "step-8", "manifest.json")
        os.remove(manifest)
        os.mkfifo(manifest)
        self.refuse(*LOCAL, "--resume", "renamed", words=["step-8/manifest.json: is a pipe, not a regular file"])

    def test_nothing_to_keep(self):
        self.refuse(*LOCAL, "--checkpoint-background", words=["checkpoint_background", "--checkpoint-every K"])
        self.refuse(*LOCAL, "--checkpoint-keep-every", "2", words=["checkpoint_keep_every", "--checkpoint-every K"])
        self.refuse(*LOCAL, "--checkpoint-keep", "5", words=["checkpoint_keep", "--checkpoint-every K"])

    def test_earlier_run(self):
        self.train("kept", *LOCAL, *KEEP_ALL, steps=3)
        os.remove(self.at("kept", "metrics.jsonl"))
        p = self.train("kept", *LOCAL, fresh=False, status=2)
        self.assertIn("holds a checkpoint of step 3", p.stderr)
        self.train("kept", *LOCAL, "--force", fresh=False)
        self.assertFalse(os.path.exists(self.at("kept", "checkpoints")))


class Costs(Resume):
    def test_full_disk(self):
        """No file may be longer than a checkpoint's needs to be: it ends the checkpoints, not the run."""
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (300000, 300000))
        star = ["--topology", "ps:sync", "--workers", "1", "--servers", "1", "--batch", "4",
                "--medium", "tcp"]
        for argv in (LOCAL, [*ring(1), "--launch", "threads"], star):  # of processes the limit is one of their memory too
            p = self.train("full", *argv, *KEEP_ALL, restore_signals=False, preexec_fn=limit, status=1)
            self.train("whole", *argv)
            self.assert_same_run("full", "whole")
            self.assertEqual(self.checkpoints("full"), [])
            self.assertIn("checkpoint of step 3 was given up", p.stderr)
            self.assertIn("server-0.safetensors" if argv is star else "worker-0.safetensors", p.stderr)
            self.assertIn("there is no earlier one", p.stderr)
            self.assertIn("full/checkpoints: no checkpoint could be kept (", p.stderr)
            self.assertEqual(self.summary("full")["state"], "unkept")
            self.assertIn(self.summary("full")["checkpoints"]["why"], p.stderr)
            self.assertIn("unkept: all 8 steps are done, and no checkpoint could be kept: ",
                          self.run_it("summary", "full", status=1).stdout)
            self.assertEqual(self.summary("full")["checkpoints"]["failed"], 3)
            self.assertEqual(self.summary("full")["checkpoints"]["written"], 0)

    def test_steps_of_a_run_without_a_summary(self):
        """Those behind which it went on are done, though its records begin after them."""
        self.train("whole", *LOCAL, *KEEP_ALL)
        self.train("end", *LOCAL, "--resume", "whole/checkpoints/step-6")
        for name in ("summary.json", "config.json"):
            os.remove(self.at("end", name))
        self.assertEqual(json.loads(self.run_it("summary", "end", "--json", status=None).stdout)["steps"], 8)
        self.train("none", *LOCAL, "--resume", "whole/checkpoints/step-8")
        self.assertEqual(self.run_it("summary", "none").stderr, "")

    def test_late_for_what_was_given_up(self):
        """A rank that comes late to a checkpoint that was given up makes its directory anew: a run that ends in order leaves none."""
        star = ["--topology", "ps:sync", "--workers", "2", "--batch", "2"]
        for argv in (LOCAL, ring(2), star):
            p = self.behind_checkpoint(3, "late", *argv, *KEEP_ALL)
            os.mkdir(self.at("late", "checkpoints", ".step-8.0123456789abcdef.partial"))
            p.ends()
            self.assertEqual(self.checkpoints("late"), ["step-3", "step-6", "step-8"])

    def test_rotation_and_report(self):
        self.train("turn", *LOCAL, "--checkpoint-every", "1", "--checkpoint-keep", "2", "--checkpoint-keep-every", "3")
        self.assertEqual(self.checkpoints("turn"), ["step-3", "step-6", "step-7", "step-8"])
        report = self.summary("turn")["checkpoints"]
        folder = self.at("turn", "checkpoints", "step-3")
        each = os.path.getsize(os.path.join(folder, "worker-0.safetensors"))
        self.assertAlmostEqual(report["bytes"], 8 * each, delta=64 * 8)
        self.assertEqual((report["written"], report["failed"]), (8, 0))
        self.assertGreater(report["bytes_per_second"], 0)
        self.assertGreaterEqual(report["step_slowed_seconds"]["max"], report["step_slowed_seconds"]["mean"] / 2)

    def test_ledger(self):
        for argv in (LOCAL, ring(0), ring(3)):
            for more in ([], ["--checkpoint-background"]):
                self.train("ledger", *argv, *KEEP_ALL, *more)
                self.assert_as_predicted(self.summary("ledger"))
                for rank in self.summary("ledger")["memory"]:
                    self.assertEqual(rank["predicted"]["checkpoint"] > 0, bool(more))


class OnGpu(Resume):
    """State of a device's own memory, through page-locked memory of the host; in emulation."""

    def test_emulated(self):
        emulated = os.path.join(os.path.dirname(PROGRAM), "tests", "emulated")
        if not os.path.exists(os.path.join(emulated, "libstarring_cuda.so")):
            self.skipTest("the emulated CUDA device has not been built")
        env = {"STARRING_CUDA_SO": os.path.join(emulated, "libstarring_cuda.so"), "LD_LIBRARY_PATH": emulated, "EMULATED_CUDA_DEVICES": "2"}
        gpu = ["--device", "cuda", "--dtype", "bf16"]
        for argv in (LOCAL, [*ring(2), "--collective", "nccl"]):
            self.train("gpu", *argv, *gpu, *KEEP_ALL, steps=5, env=env)
            self.train("again", *argv, *gpu, *KEEP_ALL, "--checkpoint-background", "--resume", "gpu/checkpoints/step-3",
                       steps=5, env=env)
            self.assert_same_run("again", "gpu", 3)
            self.assertEqual(self.tensors("again", 5), self.tensors("gpu", 5))
            pinned = []
            for name in ("gpu", "again"):
                self.assert_as_predicted(self.summary(name))
                for rank in self.summary(name)["memory"]:
                    self.assertEqual(rank["peak"]["checkpoint"], 0)
                pinned.append(self.summary(name)["memory"][0]["peak"]["pinned"])
            self.assertNotEqual(*pinned)


if __name__ == "__main__":
    unittest.main()
