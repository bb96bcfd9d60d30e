#!/usr/bin/env python3
"""Runs that push codes go on from a checkpoint, or after a death, with what the codes had not said, to the bits of an
undisturbed run. Where it holds none of that (another number of workers, ps:async, a ring) they say so, and go on as one that
begins there with errors of zero: twice the same bits. Another code than the checkpoint's is said."""
import unittest

import test_resume
from test_resume import KEEP_ALL, SLOW, ring
from test_star_resume import OF_ROLES, star

LOST = ("the errors of codes before it are lost: it holds none of parameter_server.compression {} of {}, and they "
        "begin at zero")
LOST_ONEBIT = ("the errors of OneBitAdam's codes before it are lost: checkpoints do not hold them, and they "
               "begin at zero")
FP16 = ["--dtype", "fp16", "--set", "gradient_clipping=0.05"]


def code(name):
    return ["--set", f"parameter_server.compression={name}"]


class Codes(test_resume.Resume):
    def again(self, kept, argv, out):
        p = self.train(out, *argv, "--resume", f"{kept}/checkpoints/step-3")
        self.assertEqual(self.summary(out)["resumed_from"], 3)
        return p.stderr

    def lost(self, name, workers):
        return LOST.format(name, workers)

    def test_synchronous(self):
        for name, how, kept, other in (("int8", FP16, [], []), ("topk", [], [], ["--medium", "tcp"]),
                                       ("onebit", FP16, ["--checkpoint-background"], ["--servers", "3"])):
            with self.subTest(code=name, how=how):
                argv = [*star(), *code(name), *how]
                said = self.train("kept", *argv, *KEEP_ALL, *kept).stderr
                self.assertNotIn("begin at zero", said)
                self.assert_as_predicted(self.summary("kept"))
                self.assertNotIn("begin at zero", self.again("kept", [*argv, *other], "one"))
                self.assert_same_run("one", "kept", 3)

    def test_other_partitions(self):
        """topk chooses within one: two servers and three cut alike here, one server cuts otherwise, and that is said."""
        self.train("kept", *star(2), *code("topk"), *KEEP_ALL)
        self.assertNotIn("with other partitions", self.again("kept", [*star(3), *code("topk")], "alike"))
        self.assert_same_run("alike", "kept", 3)
        self.assertIn("it was written with other partitions", self.again("kept", [*star(1), *code("topk")], "other"))
        self.train("kept", *star(1), *code("int8"), *KEEP_ALL)
        self.assertNotIn("with other partitions", self.again("kept", [*star(3), *code("int8")], "any"))
        self.assert_same_run("any", "kept", 3)

    def test_a_worker_by_hand(self):
        """Each worker leaves its errors in the directory that all share; worker 1 without one would end every checkpoint."""
        p = self.run_it("worker", *OF_ROLES, *star(), *code("int8"), *KEEP_ALL, "--rank", "1", "--scheduler",
                        "tcp://127.0.0.1:9", "--set", "parameter_server.deadline_ms=2000", status=None)
        self.assertNotEqual(p.returncode, 0)
        self.assertIn("--checkpoint-every: the errors of this worker's codes have no directory to be written to: give --out DIR", p.stderr)

    def train_and_kill(self, out, role, *argv):
        """Kills one of the job's processes behind a checkpoint, between two."""
        self.remove(out)
        p = self.start(*self.words(out, *argv, *SLOW, "--restart", "2"))
        p.behind(7)
        p.kill_now(role)
        said = p.ends()
        self.assertEqual(said.count("starting it again"), 1, said)
        self.assertNotIn("begin at zero", said)

    def test_scale(self):
        """The loss scale has moved since the errors were kept: they are in units of the one before."""
        argv = [*star(), *code("int8"), *FP16]
        self.train("kept", *argv, "--checkpoint-every", "1", "--checkpoint-keep", "0", steps=16)
        curve = self.curve("kept")
        moved = [line["step"] for line, later in zip(curve, curve[1:]) if line["loss_scale"] != later["loss_scale"]]
        skipped = [line["step"] for line in curve if line["skipped"]]
        steps = [step for step in moved if step not in skipped and step > 2][:2] + [step for step in skipped if step > 2][:1]
        self.assertGreater(len(steps), 1)
        for step in steps:
            self.train("one", *argv, "--resume", f"kept/checkpoints/step-{step}", steps=16)
            self.assert_same_run("one", "kept", step)

    def test_deaths(self):
        """kill -9 changes no bit."""
        for name, role, how in (("onebit", "worker 1", []), ("int8", "worker 0", FP16), ("topk", "server 1", ["--checkpoint-background"])):
            with self.subTest(code=name, role=role):
                argv = [*star(), *code(name), *how, "--checkpoint-every", "3", "--steps", "20"]
                self.train("plain", *argv, steps=20)
                self.train_and_kill("killed", role, *argv)
                self.assert_same_run("killed", "plain")

    def test_others(self):
        """Another number of workers, or each at its own pace: what was not said is lost, and that is said."""
        self.train("kept", *star(), *code("int8"), *KEEP_ALL)
        argv = [*star(workers=4), *code("int8")]
        self.assertEqual(self.again("kept", argv, "one").count(self.lost("int8", "4 workers")), 1)
        argv = [*star(how="async", workers=1), *code("onebit")]
        self.train("kept", *argv, *KEEP_ALL)
        self.assertEqual(self.again("kept", argv, "one").count(self.lost("onebit", "1 worker")), 1)
        self.assertEqual(self.again("kept", argv, "two").count(self.lost("onebit", "1 worker")), 1)
        self.assertEqual(self.hash("one"), self.hash("two"))
        self.assertNotEqual(self.hash("one"), self.hash("kept"))  # which had errors then

    def test_damage(self):
        self.train("kept", *star(), *code("topk"), *KEEP_ALL)
        with open(self.at("kept", "checkpoints", "step-3", "worker-1.safetensors"), "r+b") as f:
            f.seek(9000)
            byte = f.read(1)
            f.seek(9000)
            f.write(bytes([byte[0] ^ 1]))
        p = self.train("one", *star(), *code("topk"), "--resume", "kept/checkpoints/step-3", status=1)
        self.assertIn("worker-1.safetensors: is damaged", p.stderr)

    def test_another_code(self):
        self.train("kept", *star(), *code("int8"), *KEEP_ALL)
        said = self.again("kept", [*star(), *code("topk")], "again")
        self.assertIn("parameter_server.compression", said)
        self.assertIn("int8", said)
        said = self.again("kept", star(), "again")
        self.assertIn("parameter_server.compression", said)
        self.assertNotIn("begin at zero", said)

    def test_onebit_adam(self):
        argv = [*ring(0), "--set", "optimizer.type=OneBitAdam", "--set"]
        words = LOST_ONEBIT
        self.train("kept", *argv, "optimizer.params.freeze_step=2", *KEEP_ALL)
        self.assertEqual(self.again("kept", [*argv, "optimizer.params.freeze_step=2"], "again").count(words), 1)
        # Up to the end of the warm-up there are no errors.
        self.train("kept", *argv, "optimizer.params.freeze_step=3", *KEEP_ALL)
        self.assertNotIn("begin at zero", self.again("kept", [*argv, "optimizer.params.freeze_step=3"], "again"))
        self.assert_same_run("again", "kept", 3)


if __name__ == "__main__":
    unittest.main()
