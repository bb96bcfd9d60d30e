#!/usr/bin/env python3
"""--elastic, --restart and Ctrl-C as a user meets them: what is said of a worker's death is what happens, who was away when is
in summary.json, and Ctrl-C in the moment of a death keeps the last checkpoint, or says what is lost."""
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.environ.get("STARRING", os.path.join(TOP, "build", "starring"))
LIMIT_S = 120
FOREVER = "100000"
SMALL = ["--model", "tiny", "--seq", "16", "--threads", "1", "--lr", "0.01", "--data", "text.txt", "--no-weights", "--batch", "2",
         "--set", "eval_batches=0", "--quiet", "--delay", "0:constant:10"]
STAR = ["--topology", "ps:sync", "--workers", "3", "--servers", "2", "--set", "parameter_server.deadline_ms=20000"]


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="starring-elastic-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.out = os.path.join(self.folder, "run")
        with open(os.path.join(self.folder, "text.txt"), "w", encoding="utf-8") as f:
            f.write("".join(f"{n} bottles of beer on the wall, {n * n % 97} of them green\n" for n in range(1200)))

    def start(self, steps, *more):
        p = subprocess.Popen([PROGRAM, "train", *SMALL, "--steps", str(steps), "--out", self.out, *more], cwd=self.folder,
                             text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.addCleanup(p.stderr.close)
        self.addCleanup(lambda: p.poll() is None and p.kill())
        return p

    def processes(self, *words):
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", encoding="utf-8") as f:
                    line = f.read().replace("\0", " ")
            except OSError:
                continue
            if self.out in line and all(word in line for word in words):
                found.append(int(pid))
        return sorted(found)

    def state_of(self, pid):
        with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
            return f.read().rpartition(")")[2].split()[0]

    def records(self, name="metrics.jsonl"):
        try:
            with open(os.path.join(self.out, name), encoding="utf-8") as f:
                return [json.loads(line) for line in f if line.endswith("\n")]
        except OSError:
            return []

    def summary(self):
        with open(os.path.join(self.out, "summary.json"), encoding="utf-8") as f:
            return json.load(f)

    def until(self, p, what, happened):
        end = time.monotonic() + LIMIT_S
        while not happened():
            self.assertIsNone(p.poll(), f"ended before {what}" + (p.stderr.read() if p.poll() is not None else ""))
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.002)

    def behind(self, p, step):
        self.until(p, f"step {step}", lambda: len(self.records()) >= step)

    def kill(self, *words):
        pids = self.processes(*words)
        self.assertTrue(pids, words)
        os.kill(pids[-1], signal.SIGKILL)

    def ends(self, p, status=0):
        _, said = p.communicate(timeout=LIMIT_S)
        self.assertEqual(p.returncode, status, said)
        self.assertEqual(self.processes(), [], said)
        return said


class Interrupted(Case):
    def interrupted(self, victim, *more, every=4, at_once=True):
        """Ctrl-C, which its launcher finds together with the death, or just behind it. -> what it says, the newest checkpoint
        (or -1) and how many steps were done."""
        shutil.rmtree(self.out, ignore_errors=True)
        p = self.start(FOREVER, "--checkpoint-every", str(every), *more)
        self.behind(p, 6)
        kept = os.path.join(self.out, "checkpoints", "step-*")
        self.until(p, "a checkpoint", lambda: every > 6 or glob.glob(kept))
        if at_once:
            p.send_signal(signal.SIGSTOP)
            self.until(p, "it stands", lambda: self.state_of(p.pid) == "T")
        self.kill(*victim)
        p.send_signal(signal.SIGINT)
        p.send_signal(signal.SIGCONT)
        said = self.ends(p, status=130)
        steps = self.records()[-1]["step"]
        self.assertIn(f"Ctrl-C: ended after step {steps}", said)
        newest = max([-1] + [int(path.rpartition("-")[2]) for path in glob.glob(kept)])
        lost = re.search(r"the newest checkpoint of .* is step-(\d+): the (\d+) steps after it are lost", said)
        if newest < 0:
            self.assertIn(f"has no checkpoint: the {steps} steps that were done are lost", said)
        else:
            self.assertEqual((int(lost[1]), int(lost[2])) if lost else (steps, 0), (newest, steps - newest), said)
        return said, newest, steps

    def test_the_others_end_in_order(self):
        for more in ((), ("--restart", "2")):
            said, newest, steps = self.interrupted(("starring worker", "--rank 1 "), *STAR, "--elastic", "2:3", *more)
            self.assertEqual(newest, steps, said)
            self.assertIn("worker 1 (pid ", said)
            self.assertIn("the others end without it", said)
            self.assertEqual(self.summary()["state"], "interrupted")

    def test_while_it_is_started_again(self):
        p = self.start(FOREVER, "--checkpoint-every", "4", *STAR, "--set", "parameter_server.deadline_ms=100000", "--elastic", "2:3",
                       "--restart", "2")
        self.behind(p, 6)
        dead = self.processes("starring worker", "--rank 1 ")
        self.kill("starring worker", "--rank 1 ")
        self.until(p, "another worker 1", lambda: set(self.processes("starring worker", "--rank 1 ")) - set(dead))
        begin = time.monotonic()
        p.send_signal(signal.SIGINT)
        said = self.ends(p, status=130)
        self.assertLess(time.monotonic() - begin, 45, said)  # nobody waits until it counts as lost, half a deadline later
        steps = self.records()[-1]["step"]
        self.assertTrue(os.path.isdir(os.path.join(self.out, "checkpoints", f"step-{steps}")), said)
        self.assertEqual(self.summary()["state"], "interrupted")

    def test_what_is_lost_is_said(self):
        # Whether the launcher hears of the death before it hears of Ctrl-C or behind it: there is no step any more.
        _, newest, _ = self.interrupted(("starring worker", "--rank 1 "), *STAR, "--restart", "2", every=1000)
        self.assertEqual(newest, -1)
        self.interrupted(("starring worker", "--rank 1 "), *STAR, "--restart", "2")
        self.interrupted(("starring server", "--rank 1 "), *STAR, "--restart", "2", at_once=False)

    def test_of_a_ring_too(self):
        ring = ["--topology", "zero:2", "--workers", "2", "--restart", "2"]
        for every in (4, 1000):
            said, newest, _ = self.interrupted(("train --life",), *ring, every=every)
            self.assertIn("was killed by signal 9", said)
            self.assertEqual(newest < 0, every == 1000)


class Said(Case):
    def death(self, status, *more):
        p = self.start(60, *STAR, *more)
        self.behind(p, 6)
        self.kill("starring worker", "--rank 1 ")
        said = self.ends(p, status)
        line = next(line for line in said.splitlines() if line.startswith(("starring: warning: worker 1", "starring: error: worker 1")))
        return said, line

    def test_others_go_on(self):
        self.assertTrue(self.death(0, "--elastic", "2:3")[1].endswith(": the others go on without it"))

    def test_started_again(self):
        line = self.death(0, "--elastic", "2:3", "--restart", "2")[1]
        self.assertTrue(line.endswith(": the others go on; starting it again; 1 of 2 restarts is left"), line)

    def test_all_begin_anew(self):
        said, line = self.death(0, "--elastic", "3:3", "--restart", "2", "--checkpoint-every", "4")
        self.assertNotIn("others go on", said)
        self.assertTrue(line.endswith("starting it again; 1 of 2 restarts is left"), line)
        self.assertEqual(len(self.records("lives.jsonl")), 2)

    def test_the_job_ends(self):
        said, line = self.death(1, "--elastic", "3:3")
        self.assertNotIn("others go on", said)
        self.assertIn("fewer than 3 workers are left, which --elastic 3:3 needs: ending the other processes", line)


class Away(Case):
    def away(self):
        """summary.json's list, which explains every step's number of workers."""
        away = self.summary()["away"]
        self.assertTrue(self.records())
        for line in self.records():
            missing = [a["worker"] for a in away if a["from_step"] <= line["step"] <= a["to_step"]]
            self.assertEqual(len(set(missing)), len(missing), away)
            self.assertEqual(line["workers"], 3 - len(missing), (line, away))
        return away

    def returned(self, p):
        """Behind so many steps everybody is there again."""
        count = len(self.records())
        self.until(p, "the worker is back", lambda: [line for line in self.records()[count:] if line["workers"] == 3])

    def test_died_and_back(self):
        p = self.start(10000, *STAR, "--elastic", "1:3", "--restart", "1")
        self.behind(p, 6)
        self.kill("starring worker", "--rank 1 ")
        self.until(p, "it is away", lambda: self.records()[-1]["workers"] == 2)
        self.returned(p)
        self.kill("starring worker", "--rank 2 ")  # nobody starts it again
        self.until(p, "it is away", lambda: self.records()[-1]["workers"] == 2)
        p.send_signal(signal.SIGINT)
        self.ends(p, status=130)
        first, second = self.away()
        self.assertEqual((first["worker"], first["cause"], first["returned"]), (1, "died", True))
        self.assertRegex(first["why"], r"^worker 1 \(pid \d+\) was killed by signal 9")
        self.assertEqual((second["worker"], second["cause"], second["returned"]), (2, "died", False))
        self.assertEqual(second["to_step"], self.summary()["steps"])
        table = subprocess.run([PROGRAM, "summary", self.out], capture_output=True, text=True, check=False).stdout
        self.assertIn("\naway        worker 1 in step", table)
        self.assertIn(f", worker 2 from step {second['from_step']} on (died)\n", table)

    def test_silent(self):
        p = self.start(10000, *STAR, "--elastic", "1:3", "--set", "parameter_server.deadline_ms=8000", "--set",
                       "parameter_server.heartbeat_ms=200")
        self.behind(p, 6)
        os.kill(self.processes("starring worker", "--rank 1 ")[-1], signal.SIGSTOP)
        self.until(p, "it is away", lambda: self.records()[-1]["workers"] == 2)
        p.send_signal(signal.SIGINT)
        self.ends(p, status=130)
        self.assertEqual([(a["worker"], a["cause"]) for a in self.away()], [(1, "silent")])

    def test_steps_that_are_done_again(self):
        """An epoch begins with all workers: what was after its checkpoint is forgotten, as in metrics.jsonl; and so it is when
        the run is resumed."""
        more = [*STAR, "--elastic", "2:3", "--restart", "3", "--checkpoint-every", "4"]
        p = self.start(10000, *more)
        self.behind(p, 6)
        self.kill("starring worker", "--rank 1 ")
        self.until(p, "it is away", lambda: self.records()[-1]["workers"] == 2)
        self.returned(p)
        count = len(self.records())
        self.behind(p, count + 10)  # there is a checkpoint behind that
        self.kill("starring worker", "--rank 2 ")
        self.until(p, "it is away", lambda: self.records()[-1]["workers"] == 2)
        self.kill("starring worker", "--rank 0 ")
        self.until(p, "a second life", lambda: len(self.records("lives.jsonl")) == 2)
        self.behind(p, 1)
        p.send_signal(signal.SIGINT)
        self.ends(p, status=130)
        steps = self.records()[-1]["step"]
        p = self.start(steps + 5, *more, "--resume", "latest")
        self.ends(p)
        away = self.away()
        self.assertEqual((away[0]["worker"], away[0]["returned"]), (1, True))
        self.assertEqual(self.records()[-1]["step"], steps + 5)

    def test_nobody(self):
        p = self.start(5, *STAR, "--elastic", "1:3")
        self.ends(p)
        self.assertEqual(self.away(), [])

    def test_asynchronous(self):
        p = self.start(10000, *STAR, "--elastic", "1:3", "--topology", "ps:async", "--restart", "1")
        self.behind(p, 6)
        self.kill("starring worker", "--rank 1 ")
        self.until(p, "it is back", lambda: len(self.records("away.jsonl")) == 2)
        self.behind(p, self.records("away.jsonl")[1]["step"] + 1)
        p.send_signal(signal.SIGINT)
        self.ends(p, status=130)
        away = self.summary()["away"]
        self.assertEqual([(a["worker"], a["cause"], a["returned"]) for a in away], [(1, "died", True)])
        self.assertTrue(6 <= away[0]["from_step"] <= away[0]["to_step"] <= self.summary()["steps"], away)


if __name__ == "__main__":
    unittest.main()
