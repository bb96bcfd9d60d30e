#!/usr/bin/env python3
"""--trace of a star: arrows follow each partition of each worker from its push through the servers to its pull, across
processes, on one clock; what is needed first leaves first."""
import json
import os
import sys
import unittest
from collections import defaultdict

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs, thread_names

WORKERS, SERVERS, STEPS = 2, 2, 3
ARGS = ["--model", "tiny", "--data", "demo", "--steps", str(STEPS), "--seq", "8", "--batch", "1", "--threads", "1",
        "--quiet", "--no-weights", "--trace", "--workers", str(WORKERS), "--servers", str(SERVERS), "--set", "eval_batches=0"]


def arrows_of(events):
    """{id: its events in the order of time}"""
    arrows = defaultdict(list)
    for e in events:
        if e["ph"] in "stf":
            arrows[e["id"]].append(e)
    return {i: sorted(a, key=lambda e: e["ts"]) for i, a in arrows.items()}


class Trace(Runs):
    def check(self, *args):
        self.run_it("train", *ARGS, *args, "--out", "run")
        events = self.events("run")
        self.assertEqual([n for n in os.listdir(self.at("run", "ranks")) if n.startswith("trace-")], [])
        names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
        # Every process has a pid of its own, and all are there.
        self.assertEqual(len(names), WORKERS + SERVERS + 1)
        self.assertEqual(sorted(names.values()), ["scheduler"] + [f"server {i}" for i in range(SERVERS)]
                         + [f"worker {i}" for i in range(WORKERS)])
        self.assertEqual({e["pid"] for e in events}, set(names))
        self.check_arrows(events, names)
        return events

    def check_arrows(self, events, names):
        slices = defaultdict(list)
        for e in events:
            if e["ph"] == "X":
                slices[e["pid"], e["tid"]].append(e)
        keys = {e["args"]["key"] for e in events if e.get("cat") == "server" and "key" in e["args"]}
        self.assertTrue(all(value >= 0 for e in events if e["ph"] == "X" for value in e.get("args", {}).values() if isinstance(value, int)))
        arrows = arrows_of(events)
        self.assertEqual(len(arrows), len(keys) * WORKERS * STEPS)
        for arrow in arrows.values():
            # One begins it, one ends it, in this order and in the same worker; servers lie between.
            self.assertEqual("".join(e["ph"] for e in arrow).replace("t", ""), "sf")
            self.assertEqual((arrow[0]["ph"], arrow[-1]["ph"]), ("s", "f"))
            self.assertEqual(arrow[0]["pid"], arrow[-1]["pid"])
            self.assertTrue(names[arrow[0]["pid"]].startswith("worker"))
            self.assertEqual(len({e["pid"] for e in arrow[1:-1]}), 1)
            self.assertTrue(names[arrow[1]["pid"]].startswith("server"))
            touched = [self.touched(slices, e) for e in arrow]
            self.assertEqual(touched, ["push", *self.on_the_way, "pull"])

    def touched(self, slices, e):
        """The name of the span that an arrow's event binds to: it starts there, of the same thread."""
        found = [s["name"] for s in slices[e["pid"], e["tid"]] if s["ts"] == e["ts"]]
        self.assertEqual(len(found), 1, e)
        return found[0]

    def test_arrows(self):
        """With a commit round of the scheduler's and without, and where each push is an update of its own."""
        for words, on_the_way in ((["ps:sync"], ["sum", "update", "reply"]),
                                  (["ps:sync", "--set", "gradient_clipping=0.5", "--medium", "tcp"], ["sum", "update", "reply"]),
                                  (["ps:sync", "--set", "gradient_clipping=0", "--medium", "tcp"], ["sum", "update", "reply"]),
                                  (["ps:async"], ["update", "reply"])):
            with self.subTest(words):
                self.on_the_way = on_the_way
                self.remove("run")
                events = self.check("--topology", *words)
                if words == ["ps:sync"]:
                    # The scheduler has heard a report of every worker in every step.
                    heard = [e for e in events if e.get("cat") == "scheduler" and e["name"] == "report"]
                    self.assertEqual(len(heard), WORKERS * STEPS)


class Urgent(Runs):
    """Where credits let little go at once, what the next forward pass needs first leaves first: gradients of the units that are complete by
    then, though others were complete before, and behind a commit round updates and weights."""
    MODEL = {"model_type": "gpt2", "vocab_size": 257, "n_embd": 24, "n_layer": 8, "n_head": 4, "n_positions": 33, "layer_norm_epsilon": 1e-5,
             "activation_function": "gelu_new"}
    corpus, STEPS = 600, 6

    def test_order_of_need(self):
        self.write(json.dumps(self.MODEL), "model.json")
        self.run_it("train", "--model", "model.json", "--data", "text.txt", "--steps", str(self.STEPS), "--seq", "16", "--batch", "1", "--threads", "1",
                    "--quiet", "--no-weights", "--trace", "--topology", "ps:sync", "--workers", "2", "--medium", "tcp", "--set", "eval_batches=0",
                    "--set", "gradient_clipping=0.5", "--set", "parameter_server.partition_bytes=2048", "--set", "parameter_server.credit_bytes=2048",
                    "--log-updates", "--out", "run")
        events, threads = self.events("run"), thread_names(self.events("run"))
        spans = sorted((e for e in events if e["ph"] == "X"), key=lambda e: e["ts"])
        names = [u["unit"] for u in self.summary("run")["staleness"]["units"]]
        unit = {line["key"]: names.index(line["unit"]) for line in self.lines("run", "updates.jsonl")}
        self.assertEqual([unit[k] for k in sorted(unit)], sorted(unit.values()))  # keys are ordered by unit
        overtaken = 0
        for worker in (0, 1):
            own = [e for e in spans if e["pid"] == worker]
            handed = [e["ts"] + e["dur"] for e in own if threads[e["pid"], e["tid"]] == "compute" and e["name"] == "push"]
            self.assertEqual(len(handed), len(names) * self.STEPS)
            for step in range(self.STEPS):
                # Gradients are complete from the last unit downwards.
                ready = dict(zip(reversed(range(len(names))), handed[step * len(names):]))
                sent = [(e["ts"], e["args"]["key"]) for e in own if e.get("cat") == "worker" and e["name"] == "push" and e["args"]["step"] == step + 1]
                self.assertEqual(sorted(key for _, key in sent), sorted(unit))
                for i in range(2, len(sent)):
                    # A push that was complete two pushes ago is known to the thread that pushes: nothing of it that is more urgent is left.
                    known = [key for _, key in sent[i + 1:] if ready[unit[key]] < sent[i - 2][0]]
                    self.assertLessEqual(sent[i][1], min(known, default=sent[i][1]), f"worker {worker}, step {step + 1}, push {i}")
                    overtaken += any(ready[unit[key]] < ready[unit[sent[i][1]]] for key in known)
                landed = [e["args"]["key"] for e in own if e.get("cat") == "worker" and e["name"] == "pull" and e["args"]["step"] == step + 1]
                self.assertEqual(landed, sorted(unit), f"worker {worker}, step {step + 1}")
        self.assertGreater(overtaken, 50)
        for step in range(self.STEPS):
            updated = [e["args"]["key"] for e in spans if e.get("cat") == "server" and e["name"] == "update" and e["args"].get("step") == step + 1]
            self.assertEqual(updated, sorted(unit), f"step {step + 1}")


if __name__ == "__main__":
    unittest.main()
