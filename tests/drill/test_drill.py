#!/usr/bin/env python3
"""The drill: a short one with every job, and that it sees what it is there to see - other weights, what is left behind, a
run that fails or hangs. A drill that finds nothing because it looks at nothing would be worse than none."""
import os
import random
import sys
import unittest
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import PROGRAM, Runs
from drill import exercise, jobs, moments, processes, table

SHORT = 10  # exercises


class Short(Runs):
    def test_nothing_is_lost(self):
        p = self.run_script("drill.py", "--program", PROGRAM, "--runs", str(SHORT), "--seed", "7", "--out", "runs", "--json", "drill.json",
                            timeout=600)
        document = self.json("drill.json")
        self.assertEqual((document["runs"], document["wrong"]), (SHORT, 0))
        hit = [e for e in document["exercises"] if e["hit"]]
        self.assertGreater(len(hit), SHORT // 2, p.stdout)
        self.assertTrue(any(e["to_next_s"] is not None for e in hit), p.stdout)

    def test_beside_a_load(self):
        """No process is killed, and the table says so."""
        p = self.run_script("drill.py", "--program", PROGRAM, "--runs", "2", "--load", "3", "--deadline", "20", "--job", "ps:sync", "--out", "runs",
                            timeout=600)
        self.assertIn("[1] ps:sync: nobody, no moment, nobody: well", p.stdout)
        self.assertRegex(p.stdout, r"\| ps:sync \| nobody +\| no moment +\| +2 \| +0 \| +0 \|")


# A program that does to its run directory what a test wants of it.
PROLOGUE = f"""#!{sys.executable}
import json, os, subprocess, sys, time
out = sys.argv[sys.argv.index('--out') + 1]
os.makedirs(out, exist_ok=True)
def end(steps, weights):
    json.dump({{'steps': steps, 'weights_hash': weights}}, open(out + '/summary.json', 'w'))
"""


class Sees(Runs):
    """Each with a program that breaks one promise."""

    def verdict(self, body, how="killed"):
        job = jobs.Job("local", ["--topology", "local"], ["run"], reference={"weights_hash": "right"})
        result = exercise.Result(0, job.name, ["run"], "start", how)
        program = self.script(PROLOGUE + body, "program")
        self.remove("0000")
        with mock.patch.object(exercise, "SETTLE_S", 0.3), mock.patch.object(jobs, "LIMIT_S", 3):
            done = exercise.Exercise(program, "none", job, result, self.at("0000")).run(random.Random(1))
        return "; ".join(done.wrong)

    def test_all_well(self):
        self.assertEqual(self.verdict(f"end({jobs.STEPS}, 'right')\n"), "")

    def test_other_weights(self):
        self.assertIn("instead of right", self.verdict(f"end({jobs.STEPS}, 'other')\n"))

    def test_steps_missing(self):
        self.assertIn("3 steps instead of", self.verdict("end(3, 'right')\n"))

    def test_no_summary(self):
        self.assertIn("0 steps instead of", self.verdict("pass\n"))

    def test_restart_without_a_death(self):
        body = "open(out + '/history.jsonl', 'w').write('{\"kind\": \"life\"}\\n' * %d)\n" + f"end({jobs.STEPS}, 'right')\n"
        self.assertEqual(self.verdict(body % 1, exercise.NOBODY), "")
        self.assertIn("the run restarted 1 times, although no process had been killed", self.verdict(body % 2, exercise.NOBODY))

    def test_failed_run(self):
        self.assertIn("exit status 1", self.verdict("sys.exit(1)\n"))

    def test_hang(self):
        self.assertIn("it hung", self.verdict("time.sleep(60)\n"))

    def test_process_left(self):
        body = f"subprocess.Popen(['sleep', '60'], start_new_session=True)\nend({jobs.STEPS}, 'right')\n"
        self.assertIn("left behind: process", self.verdict(body))

    def test_unfinished_checkpoint_left(self):
        body = f"os.makedirs(out + '/checkpoints/.step-8.1f.partial')\nend({jobs.STEPS}, 'right')\n"
        self.assertIn(".partial", self.verdict(body))


class Draws(unittest.TestCase):
    def test_a_seed_repeats_itself(self):
        for job in jobs.JOBS:
            first, second = (vars(exercise.draw_result(11, job, 3)[0]) for _ in range(2))
            self.assertEqual(first, second)

    def test_everybody_dies_and_every_moment_comes(self):
        for job in jobs.JOBS:
            drawn = [exercise.draw_result(n, job, 1)[0] for n in range(400)]
            self.assertEqual({v for r in drawn for v in r.victims}, set(job.victims))
            self.assertEqual({r.moment for r in drawn}, set(moments.MOMENTS))

    def test_roles(self):
        for argv, environment, role in (
                (["starring", "worker", "--rank", "1"], {}, "worker 1"), (["starring", "scheduler"], {}, "scheduler"),
                (["starring", "train"], {"OMPI_COMM_WORLD_RANK": "1"}, "rank 1"), (["/usr/bin/mpirun", "-n", "2"], {}, "mpirun"),
                (["starring", "train", "--life", "1"], {}, "run"), (["starring", "train"], {}, None)):
            self.assertEqual(processes.role_of(argv, environment), role)


class Tables(unittest.TestCase):
    def test_rows(self):
        def result(**more):
            return exercise.Result(1, "ps:sync", ["worker 1"], "step", "killed", hit=True, **more)
        text = table.markdown([result(to_next_s=0.5, steps_again=3), result(to_next_s=1.5, steps_again=5, wrong=["x"])])
        line = [word.strip() for word in text.splitlines()[2].strip("|").split("|")]
        self.assertEqual(line, ["ps:sync", "worker", "step", "2", "2", "1", "1.00", "1.50", "4", "5"])


if __name__ == "__main__":
    unittest.main()
