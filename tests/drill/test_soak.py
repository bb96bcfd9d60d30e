#!/usr/bin/env python3
"""The soak: a short one, and that it sees what it is there to see: memory, descriptors and threads that pile up."""
import argparse
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import PROGRAM, Runs
from drill import soaking

# A program that makes 40 steps in 2.4 s, and with each of them does what a test wants.
BODY = """
import json, os, sys, threading, time
out = sys.argv[sys.argv.index("--out") + 1]
os.makedirs(out, exist_ok=True)
kept = []
with open(out + "/metrics.jsonl", "w") as f:
    for step in range(1, 41):
        time.sleep(0.06)
        {}
        print(json.dumps({{"step": step}}), file=f, flush=True)
"""


class Short(Runs):
    def test_a_star_and_a_ring(self):
        # So short that what is touched for the first time still counts: growth is judged by the long ones alone.
        self.run_script("soak.py", "--program", PROGRAM, "--steps", "1000", "--every", "0.05", "--slack", str(8 << 20), "--job", "ps:sync", "--job",
                        "zero:2", "--json", "soak.json")
        star, ring = self.json("soak.json")["runs"]
        self.assertEqual(set(star["processes"]), {"run", "server 0", "server 1", "worker 0", "worker 1"})
        self.assertEqual(set(ring["processes"]), {"run", "rank 0", "rank 1"})
        self.assertEqual((star["steps"], ring["steps"]), (1000, 1000))

    def test_a_process_is_named_when_it_has_become_something(self):
        argv = {7: ["starring", "train"], 8: ["starring", "train"]}
        watch = soaking.Watch("mark", "nowhere")
        figures, processes = (1, 1, 1), soaking.processes
        marked, role_of, of = processes.marked, processes.role_of, soaking.figures_of
        processes.marked, processes.role_of = lambda mark: argv, lambda words, environment: "worker 0" if "worker" in words else None
        soaking.figures_of = lambda pid: figures
        try:
            watch.look()
            argv[8] = ["starring", "worker"]
            watch.look()
            argv = {7: [], 8: []}
            watch.look()
        finally:
            processes.marked, processes.role_of, soaking.figures_of = marked, role_of, of
        self.assertEqual(watch.names, {7: "run", 8: "worker 0"})

    def test_unknown_job(self):
        p = self.run_script("soak.py", "--program", PROGRAM, "--job", "zero:9", status=1)
        self.assertIn("there is no such job; the jobs are: local; ", p.stderr)


class Sees(Runs):
    def wrong(self, body):
        program = self.script(f"#!{sys.executable}\n" + BODY.format(body), "program")
        args = argparse.Namespace(steps=40, every=0.02, limit=20, slack=1 << 20, program=program)
        return "; ".join(soaking.soak(args, "none", soaking.Job("local", []), self.folder).wrong)

    def test_flat(self):
        self.assertEqual(self.wrong("pass"), "")

    def test_memory(self):
        self.assertRegex(self.wrong("kept.append(bytearray(1 << 17))"), r"^run: memory grew from \d+ to \d+$")

    def test_descriptors(self):
        self.assertRegex(self.wrong("kept.append(open(os.devnull))"), r"^run: descriptors grew from \d+ to \d+$")

    def test_threads(self):
        self.assertRegex(self.wrong("threading.Thread(target=time.sleep, args=(2,), daemon=True).start()"), r"run: threads grew from \d+ to \d+")

    def test_status(self):
        self.assertIn("it ended with status 3: no luck", self.wrong("step < 40 or sys.exit(sys.stderr.write('no luck\\n') and 3)"))


if __name__ == "__main__":
    unittest.main()
