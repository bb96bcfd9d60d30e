#!/usr/bin/env python3
"""starring plan: what it names fits by --dry-run's own figures, in the order that the rates make, and can be typed."""
import json
import math
import os
import shlex
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import PROGRAM, Runs

MIB = 1 << 20
GIB = 1024 * MIB


class Plan(Runs):
    common = ["--model", "gpt2-124m", "--workers", "2", "--dtype", "bf16", "--device", "cpu"]

    def plan(self, *args, status=0):
        """For a machine with room, whatever this one has; what is said later counts."""
        done = self.run_it("plan", "--json", "--host-memory", "64G", "--disk", "64G", *args, status=status)
        return json.loads(done.stdout), done

    def dry(self, common, options):
        """The memory that a run's worker takes of its device, that all roles take of their host and of the disk, and the bytes of the
        busiest rank."""
        doc = json.loads(self.run_it("train", "--dry-run", "--json", *common, *shlex.split(options)).stdout)
        worker = [m for m in doc["memory"] if m["role"] == "worker"][0]
        wire = max(max(w["predicted_sent"], w["predicted_received"]) for w in doc["wire"])
        host = [l for l in doc["here"]["limits"] if not l["limit"].startswith("memory.device_bytes")][0]
        disk = sum(w.get("offload", {}).get("predicted_written", 0) for w in doc["wire"])
        return worker["predicted_bytes"], math.ceil(host["predicted_bytes"] + host["allowed_bytes"]), disk, wire

    def test_each_plan_is_what_dry_run_predicts(self):
        doc, _ = self.plan("--device-memory", "2G", *self.common)
        self.assertGreater(len(doc["plans"]), 3)
        self.assertGreater(len({p["topology"] for p in doc["plans"]}), 3)
        self.assertEqual({"none", "cpu", "nvme"}, {p["offload_optimizer"] for p in doc["plans"]})
        for p in doc["plans"]:
            figures = self.dry(self.common, p["options"])
            self.assertEqual((p["device_bytes"], p["host_bytes"], p["disk_bytes"], p["wire_bytes_per_step"]), figures, p)
            self.assertLessEqual(p["device_bytes"], 2048 * MIB)
            self.assertLessEqual(p["host_bytes"], doc["host_memory_bytes"])
            self.assertLessEqual(p["disk_bytes"], doc["disk_limit_bytes"])

    def test_every_role_counts(self):
        """A star's servers hold what its workers do not: what does not hold them all is no place for it."""
        common = ["--device-memory", "2G", "--topology", "ps:sync", "--most-batch", "1", *self.common]
        doc, _ = self.plan(*common)
        whole = min(p["host_bytes"] for p in doc["plans"])
        self.assertGreater(whole, doc["plans"][0]["server_bytes"] + 2 * min(p["device_bytes"] for p in doc["plans"]))
        self.plan(*common, "--host-memory", str(whole))
        _, done = self.plan(*common, "--host-memory", str(whole - 1), status=1)
        self.assertIn("of host memory", done.stderr)

    def test_every_command_starts(self):
        """As it is printed, from the folder that it was printed in, of a model whose tokens the demo's text does not have."""
        self.write(json.dumps({"model_type": "gpt2", "vocab_size": 1031, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}), "it's.json")
        doc = json.loads(self.run_it("plan", "--json", "--model", "it's.json", "--seq", "32", "--workers", "2", "--device", "cpu", "--device-memory",
                                     "4M", "--most-batch", "1", "--steps", "1", "--set", "eval_batches=none").stdout)
        plans, memory = doc["plans"], os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self.assertTrue(0 < doc["host_memory_bytes"] <= min(0.95 * memory, memory - GIB), "of this machine, less a reserve")
        # Each topology once, and each way of keeping states elsewhere: not all of their products.
        some = {p["topology"]: p for p in plans} | {(p["offload_optimizer"], p["offload_param"]): p for p in plans}
        self.assertIn(("nvme", "nvme"), some)
        self.assertIn("ps:sync", some)
        for i, p in enumerate(some.values()):
            done = subprocess.run(p["command"] + f" --threads 1 --no-weights --out run-{i}", shell=True, cwd=self.folder, capture_output=True,
                                  text=True, timeout=300, check=False)
            self.assertEqual(done.returncode, 0, (p["command"], done.stderr))

    def test_a_disk_that_is_too_small_is_not_proposed(self):
        args = ["--device-memory", "2G", "--topology", "zero:2", "--most-batch", "1", *self.common]
        disks = lambda doc: {p["offload_optimizer"] for p in doc["plans"]}
        doc, _ = self.plan(*args, "--disk", "100M")
        self.assertNotIn("nvme", disks(doc))
        doc, _ = self.plan(*args, "--disk", "3G")
        self.assertIn("nvme", disks(doc))
        self.assertIn("--set zero_optimization.offload_optimizer.nvme_path=.", " ".join(p["options"] for p in doc["plans"]))
        doc, _ = self.plan(*args, "--set", f"zero_optimization.offload_optimizer.nvme_path={self.folder}")
        for p in doc["plans"]:
            self.assertNotIn("nvme_path", p["options"])
            self.assertIn(f"nvme_path={self.folder}", p["command"])

    def test_fastest_first(self):
        doc, _ = self.plan("--device-memory", "4G", *self.common)
        speeds = [p["tokens_per_second"] for p in doc["plans"]]
        self.assertEqual(speeds, sorted(speeds, reverse=True))
        for p in doc["plans"]:
            beside = max(p["compute_seconds"] + p["recompute_seconds"], p["wire_seconds"])
            self.assertAlmostEqual(p["step_seconds"], beside + p["update_seconds"], places=9)
            self.assertAlmostEqual(p["tokens_per_second"], p["tokens_per_step"] / p["step_seconds"], places=6)

    def test_a_slow_wire_puts_what_moves_least_first(self):
        doc, _ = self.plan("--device-memory", "4G", "--wire-rate", "0.0001", "--most-batch", "1", *self.common)
        moved = [p["wire_bytes_per_step"] for p in doc["plans"]]
        self.assertEqual(moved[0], min(moved))
        self.assertEqual(doc["plans"][0]["bound"], "wire")
        self.assertGreater(max(moved), min(moved))

    def test_a_slow_link_to_the_host_puts_offload_last(self):
        args = ["--device-memory", "4G", "--most-batch", "1", "--topology", "zero:3", *self.common]
        fast, _ = self.plan(*args)
        slow, _ = self.plan(*args, "--host-link-rate", "0.001")
        for p in slow["plans"]:
            moved = max(p["offload_per_step"]["down"], p["offload_per_step"]["up"])
            self.assertEqual(moved > 0, p["offload_optimizer"] != "none", p)
            if moved:
                self.assertEqual(p["bound"], "host link")
                self.assertGreater(p["update_seconds"], moved / 1e6)
        place = [p["offload_optimizer"] != "none" for p in slow["plans"]]
        self.assertIn(True, place)
        self.assertEqual(place, sorted(place))
        self.assertEqual(len(fast["plans"]), len(slow["plans"]))

    def test_offload_costs_time(self):
        """With the same batch and recomputation a state that stays on the device is faster, on a CPU too."""
        doc, _ = self.plan("--device-memory", "4G", "--batch", "1", *self.common)
        of = {}
        for p in doc["plans"]:
            of.setdefault((p["topology"], p["recompute"]), {})[p["offload_optimizer"], p["offload_param"]] = p["tokens_per_second"]
        compared = 0
        for speeds in of.values():
            for how, speed in speeds.items():
                if how != ("none", "none") and ("none", "none") in speeds:
                    self.assertLess(speed, speeds["none", "none"], how)
                    compared += 1
        self.assertGreater(compared, 5)

    def test_without_workers_every_plan_is_of_one(self):
        doc, _ = self.plan("--device-memory", "4G", "--model", "gpt2-124m", "--dtype", "bf16", "--device", "cpu")
        self.assertEqual(doc["workers"], 1)
        ring = [p for p in doc["plans"] if p["topology"].startswith("zero:")]
        self.assertTrue(ring)
        self.assertEqual({p["wire_bytes_per_step"] for p in ring}, {0})
        self.assertEqual([p for p in doc["plans"] if not isinstance(p["host_bytes"], int)], [], "bytes are whole")
        for p in ring[:2]:
            self.assertEqual(self.dry(["--model", "gpt2-124m", "--dtype", "bf16", "--device", "cpu"], p["options"])[0], p["device_bytes"])

    def test_one_topology_alone(self):
        doc, _ = self.plan("--device-memory", "4G", "--topology", "zero:3", *self.common)
        self.assertEqual({p["topology"] for p in doc["plans"]}, {"zero:3"})

    def test_less_memory_leaves_fewer_plans(self):
        wide, _ = self.plan("--device-memory", "4G", *self.common)
        tight, _ = self.plan("--device-memory", "1900M", *self.common)
        names = lambda doc: {p["topology"] for p in doc["plans"]}
        self.assertLess(names(tight), names(wide))

    def test_nothing_fits(self):
        doc, done = self.plan("--device-memory", "20M", *self.common, status=1)
        self.assertEqual(doc["plans"], [])
        self.assertGreater(doc["least"]["device_bytes"], 20 * MIB)
        self.assertIn("nothing fits 20.0 MiB of device memory for each worker", done.stderr)
        self.assertIn(doc["least"]["options"], done.stderr)

    def test_limits_of_host_and_batch(self):
        self.plan("--device-memory", "4G", "--host-memory", "1M", *self.common, status=1)
        doc, _ = self.plan("--device-memory", "4G", "--most-batch", "2", *self.common)
        self.assertEqual(max(p["micro_batch_size"] for p in doc["plans"]), 2)

    def test_wrong_options(self):
        for args, word in ((["--model", "demo"], "--device-memory SIZE is missing"),
                           (["--device-memory", "1G", "--model", "nosuch"], "nosuch"),
                           (["--device-memory", "x"], "device-memory"),
                           (["--device-memory", "1G", "--wire-rate", "0"], "wire-rate"),
                           (["--device-memory", "1G", "--topology", "zero:9"], "zero:9")):
            self.refused("plan", *args, said=word)

    def test_the_table_says_what_to_type(self):
        done = self.run_it("plan", "--device-memory", "4G", "--host-memory", "64G", *self.common)
        self.assertIn("--tflops 0.1 Tflop/s", done.stdout)
        line = [l for l in done.stdout.splitlines() if l.startswith("The first: ")][0]
        words = shlex.split(line.split(": ", 1)[1])
        self.assertEqual(words[0], PROGRAM)
        self.assertIn("--device-memory 4G --model gpt2-124m", line)
        self.run_it(*words[1:], "--dry-run")

    def tiny(self, *args):
        return self.plan("--model", "tiny", "--workers", "2", "--device", "cpu", "--device-memory", "64M", *args)

    def test_what_the_command_line_fixes_stays(self):
        for args, key, value in ((["--batch", "3"], "micro_batch_size", 3),
                                 (["--set", "train_batch_size=24", "--set", "gradient_accumulation_steps=4"], "micro_batch_size", 3),
                                 (["--set", "activation_checkpointing.recompute=cheap"], "recompute", "cheap"),
                                 (["--topology", "ps:async"], "topology", "ps:async")):
            doc, _ = self.tiny(*args)
            self.assertEqual({p[key] for p in doc["plans"]}, {value}, args)

    def test_the_examples_of_help_plan_something(self):
        lines = self.run_it("plan", "--help").stdout.partition("Examples:\n")[2].splitlines()
        self.assertEqual(len(lines), 2)
        for line in lines:
            self.run_it(*shlex.split(line)[1:], "--host-memory", "64G", "--disk", "200G")

    def test_what_some_plans_have_no_use_for_is_no_remark(self):
        star = ["--servers", "2", "--set", "parameter_server.threads=2"]
        doc, done = self.tiny(*star)
        self.assertEqual(done.stderr, "")
        self.assertIn("ps:sync", {p["topology"] for p in doc["plans"]})
        self.refused("plan", "--model", "tiny", "--device-memory", "1G", *star, "--topology", "zero:1", said="zero:1 has no servers: leave it out")
        said = self.refused("plan", "--device-memory", "1G", "--servers", "0", said="expected an integer from 1 to 4096, got number 0")
        self.assertEqual(said.count("\n"), 1)

    def test_what_a_file_offloads_is_one_plan_of_many(self):
        name = self.write(json.dumps({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}), "it's one.json")
        doc, _ = self.tiny("-c", name, "--most-batch", "1")
        bare, _ = self.tiny("--most-batch", "1")
        names = ("topology", "recompute", "offload_optimizer", "offload_param", "device_bytes", "step_seconds")
        figures = lambda d: sorted([p[n] for n in names] for p in d["plans"])
        self.assertEqual(figures(doc), figures(bare))
        for p in doc["plans"]:
            self.assertIn(name, shlex.split(p["command"]))
            none = "--set zero_optimization.offload_optimizer.device=none" in p["options"]
            if p["topology"].startswith("zero:"):
                self.assertEqual(none, p["offload_optimizer"] == "none", p)

    def test_what_is_computed_again_takes_time(self):
        doc, _ = self.tiny("--topology", "zero:1", "--most-batch", "1")
        again = {p["recompute"]: p["recompute_seconds"] for p in doc["plans"]}
        self.assertEqual(again["none"], 0)
        self.assertLess(0, again["cheap"])
        self.assertLess(again["cheap"], again["block"])


if __name__ == "__main__":
    unittest.main()
