"""Small runs with replicas of servers, of which processes are killed; and what must hold behind that."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs  # noqa: E402

STEPS = 120
SMALL = ["--model", "tiny", "--seq", "16", "--batch", "2", "--threads", "1", "--steps", str(STEPS), "--data", "text.txt",
         "--set", "eval_batches=0", "--no-weights", "--quiet"]
REPLICATE = ["--replicate", "--restart", "2", "--delay", "0:constant:25"]  # there is time to kill somebody


class KilledRuns(Runs):
    shared, corpus = True, 1200

    def star(self, servers, dtype):
        return ["--topology", "ps:sync", "--workers", "2", "--servers", str(servers), "--dtype", dtype]

    def undisturbed(self, servers, dtype):
        out = f"undisturbed-{dtype}"
        if not os.path.exists(self.at(out)):
            self.run_it("train", *SMALL, *self.star(servers, dtype), "--out", out)
        return out

    def begun(self, out, *more, servers=2, dtype="bf16", at=STEPS // 3, **how):
        """A run that has made `at` steps."""
        self.remove(out)
        p = self.start("train", *SMALL, *self.star(servers, dtype), *REPLICATE, "--out", out, *more, **how)
        p.behind(at)
        return p

    def goes_on(self, p, out):
        """It ends well, in a second life, and leaves nothing behind: that life's line, and what was said."""
        said = p.ends()
        lives = self.lives(out)
        self.assertEqual([life["epoch"] for life in lives], [1, 2], said)
        if os.path.exists(self.at(out, "checkpoints")):
            self.assertEqual([x for x in os.listdir(self.at(out, "checkpoints")) if not x.startswith("step-")], [])
        return lives[1], said

    def run_and_kill(self, out, roles, *more, **how):
        p = self.begun(out, *more, **how)
        p.kill_now(*roles)
        return self.goes_on(p, out)

    def check_same(self, out, servers=2, dtype="bf16"):
        self.assert_same_run(out, self.undisturbed(servers, dtype))
        self.assertEqual(self.summary(out)["state"], "complete")

    def check_no_step_lost(self, out, life, at=STEPS // 3):
        self.assertEqual(life["steps_lost"], 0)
        step = int(life["resumed_from"].split("-")[1])
        self.assertGreaterEqual(step, at)
        self.assertLess(step, STEPS)
        self.assertEqual(os.listdir(self.at(out, "checkpoints")), [f"step-{step}"])
