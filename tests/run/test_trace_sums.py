#!/usr/bin/env python3
"""--trace says what summary.json says: the categories of a worker's compute stream, and of the gaps in it, add up to its row of the
table, in a star and in a ring. Gaps name whom they wait for."""
import os
import sys
import unittest
from collections import defaultdict

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs, thread_names

ARGS = ["--model", "tiny", "--data", "demo", "--steps", "6", "--seq", "64", "--batch", "4", "--threads", "1", "--quiet", "--no-weights",
        "--workers", "2", "--trace", "--set", "eval_batches=0"]
PHASES = ("forward", "backward", "optimizer")
LATE = ["--delay", "0:constant:40"]  # the last worker waits for the first one
SHORT = 2e-3  # seconds: what spans too short to be kept, or cut at a step's end, may add up to


class TraceSums(Runs):
    def sums(self, *args):
        """[({category: seconds of the compute stream and of its gaps}, the rank's times, whom it waits for)]"""
        self.remove("run")
        self.run_it("train", *ARGS, *args, "--out", "run")
        events, times = self.events("run"), self.summary("run")["time_per_rank"]
        threads = thread_names(events)
        stops = [[(e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X" and e["pid"] == rank
                  and e["name"] == "the process did not run"] for rank in range(2)]
        found = [defaultdict(float) for _ in times]
        peers = [set() for _ in times]
        for e in events:
            if e["ph"] == "X" and threads[e["pid"], e["tid"]] in ("compute", "standing still"):
                # A span in which the process stood still (a loaded machine keeps anybody from running) was not busy then.
                stopped = sum(max(0, min(e["ts"] + e["dur"], to) - max(e["ts"], at)) for at, to in stops[e["pid"]])
                found[e["pid"]][e["cat"]] += (e["dur"] - (stopped if e["cat"] in (*PHASES, "comm") else 0)) * 1e-6
                if e["cat"] == "wait" and "server" not in e["args"]:
                    peers[e["pid"]].add(e["args"].get("worker"))
        return list(zip(found, times, peers))

    def check(self, *args):
        for rank, (found, time, peers) in enumerate(self.sums(*args)):
            for phase in (*PHASES, "wait"):
                self.assertAlmostEqual(found[phase], time[phase], delta=0.02 * time[phase] + SHORT, msg=f"{phase}: {found} {time}")
            # Handing a gradient over is no backward pass: it is exposed communication, as the table has it.
            exposed = found["comm_exposed"] + found["comm"]
            self.assertAlmostEqual(exposed, time["comm_exposed"], delta=0.02 * exposed + SHORT, msg=f"{found} {time}")
            self.assertLessEqual(peers, {1 - rank})
        return found

    def test_rings(self):
        for stage in (1, 3):
            with self.subTest(stage=stage):
                self.assertGreater(self.check("--topology", f"zero:{stage}", *LATE)["wait"], 0.1)

    def test_star(self):
        for medium in ("shm", "tcp"):
            with self.subTest(medium=medium):
                found = self.check("--topology", "ps:sync", "--medium", medium, *LATE)
                self.assertGreater(found["comm"], 0)
                self.assertGreater(found["wait"], 0.1)


if __name__ == "__main__":
    unittest.main()
