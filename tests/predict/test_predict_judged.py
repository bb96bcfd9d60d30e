#!/usr/bin/env python3
"""The judged predictions: the stored measurements predicted again, the page's tables, the calibration's arithmetic. Measures no time."""
import json
import os
import stat
import unittest

import made
from made import needs_simgrid
from fixture import PROGRAM, folder_for

from prediction import calibrate, dryrun, judge, machine, published, shares  # noqa: E402
from prediction.cases import CASES, JUDGED  # noqa: E402

AGAIN = ("zero-0-n2-demo-200Mbit", "zero-3-n4-demo-200Mbit", "zero-1-n3-tiny-50Mbit", "ps-sync-n2-s1-demo-200Mbit", "ps-sync-n3-s1-tiny-50Mbit",
         "ps-async-n2-s1-demo-200Mbit")   # of each kind of prediction, and quick


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


class Stored(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.kept, cls.held_out = judge.read(judge.RESULTS), judge.read(judge.HELD_OUT)
        cls.runs = cls.kept["runs"]

    def test_enough_and_varied(self):
        measured = [case for case in JUDGED if case.name in self.kept["measured"]]
        self.assertGreaterEqual(len(measured), 60)
        self.assertEqual({2, 3, 4, 5, 6, 8}, {case.workers for case in measured})
        self.assertLessEqual({1, 2, 3, 4}, {case.servers for case in measured})
        self.assertEqual(len(CASES), len({case.name for case in CASES}))
        self.assertEqual([case.name for case in CASES if case.name in self.kept["measured"]], [run["name"] for run in self.runs])

    def test_page(self):
        text = read(judge.PAGE)
        self.assertEqual(judge.page(text, self.runs), text, "the page's tables are not those of the stored runs: predict.py --judge "
                                                            "experiments/prediction/judged.json --again writes both")
        self.assertEqual(judge.page(text, self.held_out["runs"], "held-out "), text, "the same of judged-held-out.json")
        self.assertEqual(published.page(text), text, "predict.py --published writes the page's table")

    def test_errors_follow_from_the_measurements(self):
        for kept in (self.kept, self.held_out):
            for run, case in zip(kept["runs"], (case for case in CASES if case.name in kept["measured"]), strict=True):
                seconds = judge.seconds_of(case, kept["measured"][case.name])
                self.assertAlmostEqual(run["predicted"]["seconds"] / seconds - 1, run["error"], 9)

    @needs_simgrid
    def test_predicted_again(self):
        """Today's program and model say what is stored of these runs: who improves them predicts all again."""
        cases = [case for case in CASES if case.name in AGAIN]
        self.assertEqual(len(AGAIN), len(cases))
        again = judge.judged(PROGRAM, cases, self.kept["measured"], self.kept["machine"])
        stored = {run["name"]: run for run in self.runs}
        for run in again:
            self.assertAlmostEqual(stored[run["name"]]["predicted"]["seconds"], run["predicted"]["seconds"], delta=0.02 * run["seconds"], msg=run["name"])
        self.assertLessEqual(judge.size([run["error"] for run in again]), 0.005 + judge.size([stored[name]["error"] for name in AGAIN]))

    def test_error_beside_a_prediction(self):
        def of(topology):
            return judge.error_of(dryrun.ask(PROGRAM, ("--topology", topology, "--workers", "2", "--model", "tiny")))
        rings, sync, others = of("zero:2"), of("ps:sync"), of("ps:async")
        self.assertEqual(sync, of("ps:quorum:2"), "a step that needs all workers waits for all, whatever the name")
        self.assertIn("rings", rings["of"])
        self.assertIn("wait for all", sync["of"])
        self.assertIn("do not wait", others["of"])
        for found in (rings, sync, others):
            self.assertLessEqual(found["mean"], found["worst"])
        self.assertEqual(judge.size([r["error"] for r in self.runs if r["name"].startswith("ps-sync")]), sync["mean"])


class Machines(unittest.TestCase):
    def test_every_figure_has_a_source(self):
        self.assertLessEqual({"dgx-a100", "dgx-h100", "hgx-h200", "laptop", self.kept_machine()}, set(machine.names()))
        for name in machine.names():
            told = machine.load(name).told
            self.assertTrue(told["date"] and told["notes"], name)
            for section in ("device", "units", "node", "network", "server", "cores"):
                if told[section]:
                    self.assertTrue(told["sources"].get(section), f"{name}: sources.{section}")

    @staticmethod
    def kept_machine():
        return judge.read(judge.RESULTS)["machine"]


class Calibration(unittest.TestCase):
    def setUp(self):
        self.folder = folder_for(self)

    def program(self, step, kernels):
        for name, document in (("step", step), ("kernels", kernels)):
            with open(os.path.join(self.folder, name), "w", encoding="utf-8") as f:
                json.dump(document, f)
        path = os.path.join(self.folder, "program")
        with open(path, "w", encoding="utf-8") as f:
            f.write(f"#!/bin/sh\ntest -f {self.folder}/$2 || {{ echo no >&2; exit 1; }}\ncat {self.folder}/$2\n")
        os.chmod(path, stat.S_IRWXU)
        return path

    def test_units_add_up_to_the_step(self):
        step = {"model": "made", "params": 1000, "step_seconds": 1.0, "forward_share": 0.3, "backward_share": 0.6, "optimizer_share": 0.05, "idle_seconds": 0.05}
        names = {"busy": 0.001, "embed_fwd": 0.002, "embed_bwd": 0.003, "norm_fwd": 0.002, "norm_bwd": 0.003, "xent": 0.004, "loss_sum": 0.001}
        products = {"logits": 0.02, "logits' grad": 0.03, "head's grad": 0.04}
        rows = [{"operation": name, "shape": "n=8", "seconds": seconds} for name, seconds in names.items()]
        rows += [{"operation": "matmul", "shape": f"1x2x3 {name}", "seconds": seconds} for name, seconds in products.items()]
        units, _ = calibrate.units_of(self.program(step, {"operations": rows}), "made", 4, 8, "fp32", 2, layers=5)
        seconds = units["seconds"]
        for way, share in (("forward", 0.3), ("backward", 0.6)):
            self.assertAlmostEqual(share, seconds["embedding"][way] + 5 * seconds["block"][way] + seconds["head"][way])
        self.assertAlmostEqual(0.002 - 0.001, seconds["embedding"]["forward"])
        self.assertAlmostEqual(0.029 + 0.039 + 0.002, seconds["head"]["backward"])
        self.assertAlmostEqual(0.05 / 1000, units["update_seconds_per_element"])
        self.assertEqual(0.05, units["begin_seconds"])

    def test_a_bench_that_fails_is_named(self):
        with self.assertRaisesRegex(calibrate.CalibrationError, "bench ps: no"):
            calibrate.bench([self.program({}, {}), "bench", "ps"])

    def test_an_answer_is_work_and_latency(self):
        star = {"push_to_acknowledgement": {"median_us": 100.0}, "cpu_seconds_per_gb": {"server": 2.0}}
        with open(os.path.join(self.folder, "ps"), "w", encoding="utf-8") as f:
            json.dump({"rows": [{"star": {"tcp": star}}]}, f)
        rows = [{"operation": name, "shape": "n=1000", "seconds": seconds} for name, seconds in (("busy", 1e-6), ("reduce", 3e-6), ("adamw", 5e-6))]
        sources = {}
        found = calibrate.server(self.program({}, {}), rows, 20e-6, sources)
        self.assertAlmostEqual(2.0 * 8192e-9, found["reply_seconds"])
        self.assertAlmostEqual(100e-6 - 2.0 * 8192e-9 - 2 * 20e-6, found["answer_latency_seconds"])
        self.assertIn("reply", sources["server"])

    def test_shares(self):
        self.assertEqual(0, shares.spread([[5, 5, 5]] * 4))
        self.assertAlmostEqual(1 / 3, shares.spread([[2, 4]] * shares.FIRST + [[0, 100]]), msg="only the first windows count")

    def test_file_is_checked(self):
        with self.assertRaisesRegex(ValueError, "bytes_per_second"):
            calibrate.write(os.path.join(self.folder, "m.json"), {**made.MACHINE, "network": {"kind": "switch"}})
        self.assertFalse(os.path.exists(os.path.join(self.folder, "m.json")))


class Published(unittest.TestCase):
    def test_rows_are_predicted_from_other_models(self):
        for row in published.read()["rows"]:
            self.assertNotIn(row["name"].rsplit(" ", 1)[1], row["efficiency_of"].replace("GPT-2", ""), row["name"])
            self.assertTrue(row["source"] and row["why"], row["name"])
        self.assertTrue(all("parallelism" in r["why"] or "share each layer" in r["why"] for r in published.read()["refused"]))


if __name__ == "__main__":
    unittest.main()
