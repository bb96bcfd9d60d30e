#!/usr/bin/env python3
"""Runs that push or exchange codes go on from a checkpoint, say what it does not hold of them, and go on as one that begins
there with errors of zero: twice the same bits. Another code than the checkpoint's is said."""
import unittest

import test_resume
from test_resume import KEEP_ALL, ring
from test_star_resume import star

LOST = "what codes had not said of the {} before it is lost: checkpoints hold no errors of {}, which begin at zero"


def code(name):
    return ["--set", f"parameter_server.compression={name}"]


class Codes(test_resume.Resume):
    def again(self, kept, argv, out):
        p = self.train(out, *argv, "--resume", f"{kept}/checkpoints/step-3")
        self.assertEqual(self.summary(out)["resumed_from"], 3)
        return p.stderr

    def test_stars(self):
        for name, how in (("int8", "sync"), ("topk", "sync"), ("onebit", "async")):
            with self.subTest(code=name, how=how):
                argv = [*star(how=how, workers=1 if how == "async" else 2), *code(name)]
                said = self.train("kept", *argv, *KEEP_ALL).stderr
                self.assertNotIn("begin at zero", said)
                words = LOST.format("gradients", f"parameter_server.compression {name}")
                self.assertEqual(self.again("kept", argv, "one").count(words), 1)
                self.assertEqual(self.again("kept", argv, "two").count(words), 1)
                self.assertEqual(self.hash("one"), self.hash("two"))
                self.assertNotEqual(self.hash("one"), self.hash("kept"))  # which had errors then

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
        words = LOST.format("momenta", "OneBitAdam")
        self.train("kept", *argv, "optimizer.params.freeze_step=2", *KEEP_ALL)
        self.assertEqual(self.again("kept", [*argv, "optimizer.params.freeze_step=2"], "again").count(words), 1)
        # Up to the end of the warm-up there are no errors.
        self.train("kept", *argv, "optimizer.params.freeze_step=3", *KEEP_ALL)
        self.assertNotIn("begin at zero", self.again("kept", [*argv, "optimizer.params.freeze_step=3"], "again"))
        self.assert_same_run("again", "kept", 3)


if __name__ == "__main__":
    unittest.main()
