#!/usr/bin/env python3
"""LoRA in whole runs: what is frozen has no gradient, no state and, where workers hold it whole, nothing to send; resumed runs; refusals.

Bits, memory and bytes beside every other setting: test_job_pairs.py. The arithmetic: test_shared_parity.c. Files: files/test_adapters.py.
"""
import json
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs

TINY = {"channels": 64, "layers": 2, "ffn": 176}
LORA = ["--set", "lora.r=4", "--set", "lora.alpha=8", "--set", "lora.targets=q_proj,down_proj"]
SMALL = ["--model", "tiny", "--data", "text.txt", "--seq", "16", "--threads", "1", "--lr", "0.01"]
GPT2 = {"model_type": "gpt2", "n_embd": 48, "n_layer": 3, "n_head": 3, "n_positions": 64, "vocab_size": 256}
NO_EVALS = ["--set", "eval_batches=none"]
WAYS = {
    "zero:0": ["--topology", "zero:0"], "zero:1": ["--topology", "zero:1"], "zero:2": ["--topology", "zero:2"], "zero:3": ["--topology", "zero:3"],
    "star": ["--topology", "ps:sync", "--servers", "2"], "units": ["--topology", "ps:sync", "--resident", "units", "--servers-on", "workers"],
    "units of few": ["--topology", "ps:sync", "--resident", "units", "--servers", "5"],
}


class Lora(Runs):
    shared, corpus = True, 400

    def train(self, out, *more, steps=6, workers=2, lora=LORA, **how):
        return self.run_it("train", *SMALL, "--steps", str(steps), "--workers", str(workers), "--batch", "2", "--quiet", "--no-weights",
                           "--out", out, "--force", *lora, *more, **how)

    def test_only_adapters_cost_and_move(self):
        for name, words in WAYS.items():
            with self.subTest(name):
                self.train("all", *words, *NO_EVALS, "--dtype", "bf16", lora=[])
                self.train("lora", *words, *NO_EVALS, "--dtype", "bf16")
                whole, lora = self.summary("all"), self.summary("lora")
                self.assert_as_predicted(lora)
                # All that is frozen is what a run on all weights trains, and the adapters are more.
                self.assertEqual(lora["frozen_params"], whole["params"])
                self.assertEqual(whole["frozen_params"], 0)
                trained = lora["params"] / whole["params"]
                self.assertLess(trained, 0.1)
                for a, b in zip(whole["memory"], lora["memory"]):
                    for part in ("gradient", "master", "optimizer", "server"):
                        self.assertLessEqual(b["peak"][part], 0.2 * a["peak"][part], (b["role"], part))
                for a, b in zip(whole["wire"], lora["wire"]):
                    self.assertEqual((b["sent_per_step"], b["received_per_step"]), (b["predicted_sent"], b["predicted_received"]))
                    # In stage 3 what is frozen is gathered, and only its gradients need not be reduced. With resident units it is pulled.
                    pulls = name.startswith("units")
                    most = 0.8 if name == "zero:3" else 1.01 if pulls and b["role"] == "server" else 0.1
                    self.assertLessEqual(b["sent_per_step"], most * a["sent_per_step"], b)
                    if not pulls or b["role"] == "server":
                        self.assertLessEqual(b["received_per_step"], (0.8 if name == "zero:3" else 0.1) * a["received_per_step"], b)
                holders = [m for m in lora["memory"] if "F" in m["formula"]]
                self.assertEqual({m["role"] for m in holders}, {"server" if name.startswith("units") else "worker"})
                for m in holders:
                    self.assertTrue(m["formula"].endswith({"zero:3": "2F/N", "units": "2F/S", "units of few": "2F/S"}.get(name, "2F")), m["formula"])

    def test_resident_units_keep_two_slots_of_what_is_frozen(self):
        peaks = {}
        for layers in (6, 12):
            self.write(json.dumps({**GPT2, "n_layer": layers}), "config.json")
            for where in ("all", "units"):
                self.train("run", "--model", "config.json", "--topology", "ps:sync", "--servers", "3", "--resident", where, *NO_EVALS, "--dtype", "bf16",
                           lora=["--set", "lora.r=4"])
                s = self.summary("run")
                self.assert_as_predicted(s)
                worker = next(m for m in s["memory"] if m["role"] == "worker")["peak"]
                peaks[layers, where] = worker.get("parameter", 0) + worker.get("comm", 0)
                if where == "units":
                    self.assertEqual(self.hash("run"), expected)
                    held = sum(m["peak"]["parameter"] for m in s["memory"] if m["role"] == "server")
                    self.assertGreaterEqual(held, 2 * (s["frozen_params"] + s["params"]))
                expected = self.hash("run")
        self.assertEqual(peaks[6, "units"], peaks[12, "units"])
        self.assertLess(peaks[6, "units"], peaks[6, "all"])
        self.assertLess(1.5 * peaks[6, "all"], peaks[12, "all"])

    def test_what_is_frozen_stays_as_it_was(self):
        # B is 0 at first, so the first loss is that of the frozen model; without an update it is the last one, too.
        self.train("all", *NO_EVALS, "--topology", "zero:2", lora=[], steps=1)
        self.train("lora", *NO_EVALS, "--topology", "zero:2", steps=1)
        self.assertEqual(self.summary("lora")["loss"], self.summary("all")["loss"])
        self.train("still", *NO_EVALS, "--topology", "zero:2", "--lr", "0")
        self.train("other", *NO_EVALS, "--topology", "zero:2", "--lr", "0", "--set", "lora.alpha=80")
        self.assertEqual([line["loss"] for line in self.lines("still", "metrics.jsonl")], [line["loss"] for line in self.lines("other", "metrics.jsonl")])

    def test_resumed_by_any_topology(self):
        self.train("whole", "--topology", "zero:2", "--eval-every", "3")
        expected, losses = self.hash("whole"), [e["val_loss"] for e in self.lines("whole", "evals.jsonl")]
        for name, words in WAYS.items():
            self.train("half", *words, *NO_EVALS, "--checkpoint-every", "3", steps=3)
            for again in ("zero:3", "star", "units"):
                with self.subTest(name, again=again):
                    self.train("rest", *WAYS[again], "--eval-every", "3", "--resume", "half/checkpoints/step-3")
                    self.assertEqual(self.hash("rest"), expected)
                    self.assertEqual(self.lines("rest", "evals.jsonl")[-1]["val_loss"], losses[-1])
        # Masters and two moments of the adapters, in fp32, and what the files say of themselves.
        size = sum(os.path.getsize(self.at("half", "checkpoints", "step-3", f)) for f in os.listdir(self.at("half", "checkpoints", "step-3"))
                   if f.endswith(".safetensors"))
        self.assertLess(size, 12 * self.summary("half")["params"] + 16384)

    def test_what_a_checkpoint_belongs_to(self):
        self.train("half", *NO_EVALS, "--checkpoint-every", "3", "--topology", "zero:1", steps=3)
        resume = [*NO_EVALS, "--topology", "zero:1", "--resume", "half/checkpoints/step-3"]
        for words, said in ((["--set", "lora.r=8"], "this run has rank 8"), (["--set", "lora.alpha=4"], "this run has rank 4, alpha 4"),
                            (["--seed", "2"], "seed"), (["--set", "lora.targets=q_proj"], "this run has rank 4, alpha 8, of self_attn.q_proj;")):
            with self.subTest(words):
                self.assertIn(said, self.train("rest", *resume, *words, status=2).stderr)
        # The same adapters in other words.
        self.train("rest", *resume)
        expected = self.hash("rest")
        for targets in ("down_proj,q_proj", '["mlp.down_proj", "q_proj", "q_proj"]'):
            self.train("rest", *resume, "--set", f"lora.targets={targets}")
            self.assertEqual(self.hash("rest"), expected)
        self.assertIn("is of another run", self.train("rest", *resume, lora=[], status=2).stderr)
        # A base in files: another one with the same shapes.
        self.run_it("train", *SMALL, *NO_EVALS, "--topology", "local", "--steps", "1", "--quiet", "--out", "a", "--force")
        self.run_it("train", *SMALL, *NO_EVALS, "--topology", "local", "--steps", "2", "--quiet", "--out", "b", "--force")
        self.train("half", *NO_EVALS, "--model", "a/weights", "--checkpoint-every", "3", "--topology", "zero:1", steps=3)
        self.train("rest", *resume, "--model", "a/weights")
        self.assertIn("model.frozen", self.train("rest", *resume, "--model", "b/weights", status=2).stderr)

    def test_around_the_topologies(self):
        for words in (["--topology", "gossip"], ["--topology", "zero:1", "--local-steps", "3"], ["--topology", "ps:async", "--local-steps", "3"],
                      ["--topology", "zero:0", "--set", "optimizer.type=OneBitAdam", "--set", "optimizer.params.freeze_step=3"],
                      ["--topology", "ps:sync", "--elastic", "1:2"], ["--topology", "ps:ssp:1", "--set", "parameter_server.read=oldest"]):
            with self.subTest(words):
                self.train("run", *words, *NO_EVALS)
                self.assert_as_predicted(self.summary("run"))
        self.train("run", "--topology", "local", "--set", "local.delay=2", *NO_EVALS, workers=1)
        self.assert_as_predicted(self.summary("run"))

    def test_recomputed(self):
        self.write(json.dumps(GPT2), "config.json")
        for model, targets in (("tiny", "all-linear"), ("tiny", "o_proj"), ("config.json", "all-linear"), ("config.json", "attn.c_proj"), ("config.json", "c_fc")):
            words = ["--topology", "zero:2", "--model", model, "--dtype", "bf16", *NO_EVALS, "--set", f"lora.targets={targets}"]
            self.train("kept", *words)
            for kind in ("cheap", "block"):
                with self.subTest(model, targets=targets, kind=kind):
                    self.train("again", *words, "--set", f"activation_checkpointing.recompute={kind}")
                    self.assertEqual(self.hash("again"), self.hash("kept"))
                    self.assert_as_predicted(self.summary("again"))

    def test_frozen_shards_in_groups_and_offloaded(self):
        offload = ["--set", "zero_optimization.offload_optimizer.device=cpu", "--set", "zero_optimization.offload_param.device="]
        nvme = [w for key in ("optimizer", "param") for what in ("device=nvme", "nvme_path=" + self.folder)
                for w in ("--set", f"zero_optimization.offload_{key}.{what}")]
        ways = {"plain": [], "groups": ["--set", "zero_optimization.zero_hpz_partition_size=2"], "host": [offload[0], offload[1], offload[2], offload[3] + "cpu"]}
        ways["file"] = nvme
        ways["host, groups"] = ways["host"] + ways["groups"]
        for dtype in ("bf16", "fp32"):
            found = {}
            for name, words in ways.items():
                with self.subTest(name, dtype=dtype):
                    self.train("run", "--topology", "zero:3", "--dtype", dtype, *words, workers=4, steps=4)
                    s = found[name] = self.summary("run")
                    self.assert_as_predicted(s)
                    self.assertEqual((self.hash("run"), self.lines("run", "evals.jsonl")[-1]["val_loss"]), expected if name != "plain" else
                                     (expected := (self.hash("run"), self.lines("run", "evals.jsonl")[-1]["val_loss"])))
                    wire = s["wire"][0]
                    self.assertEqual((wire["sent_per_step"], wire["received_per_step"]), (wire["predicted_sent"], wire["predicted_received"]))
                    for way in ("down", "up", "read", "written") if "offload" in wire else ():
                        self.assertEqual(wire["offload"][way + "_per_step"], wire["offload"]["predicted_" + way])
            width = 2 if dtype == "bf16" else 4
            frozen = found["plain"]["frozen_params"] * width
            peaks = {name: s["memory"][0]["peak"] for name, s in found.items()}
            # A group's half instead of a quarter, on the host or in a file; and only adapters are gathered across the groups.
            self.assertGreater(peaks["groups"]["parameter"], frozen / 2)
            self.assertLess(peaks["host"]["parameter"] + peaks["file"]["parameter"], frozen / 100)
            self.assertGreater(peaks["host"]["offload"], frozen / 4)
            self.assertGreater(found["file"]["wire"][0]["offload"]["read_per_step"], frozen / 4)
            self.assertLess(found["groups"]["wire"][0]["across"]["sent_per_step"], frozen / 10)
            self.assertEqual([m["formula"].rpartition("+")[2] for m in (s["memory"][0] for s in found.values())][:2],
                             [f"{width}F/N", f"{2 * width}F/N"])

    def test_no_input_of_a_frozen_layer_is_kept(self):
        kept, rows = {}, 2 * 16
        for targets in ("all-linear", "q_proj,down_proj", "q_proj", "o_proj"):
            self.train("run", "--topology", "zero:2", *NO_EVALS, "--dtype", "bf16", "--set", f"lora.targets={targets}", steps=1)
            s = self.summary("run")
            self.assert_as_predicted(s)
            adapters = {"all-linear": 7, "q_proj,down_proj": 2}.get(targets, 1)
            kept[targets] = s["memory"][0]["peak"]["activation"] - adapters * TINY["layers"] * rows * 4 * 2
        norm, act = (2 * rows * (TINY["layers"] - 1) * TINY[width] for width in ("channels", "ffn"))
        self.assertEqual(kept["all-linear"] - kept["q_proj,down_proj"], norm)
        self.assertEqual(kept["q_proj,down_proj"] - kept["q_proj"], act)
        self.assertEqual(kept["q_proj"] - kept["o_proj"], norm)

    def test_a_section_without_r_is_pefts_default(self):
        for words in (["--set", "lora.targets=all-linear"], ["--set", "lora.alpha=8"], ["--set", "lora.r=8", "--set", "lora.targets=q_proj,v_proj"]):
            p = self.train("run", *words, "--dry-run", "--json", lora=[])
            self.assertEqual(json.loads(self.train("run", *words, "--print-config", lora=[]).stdout)["lora"]["r"], 8)
            self.assertGreater(json.loads(p.stdout)["frozen_params"], 0)

    def test_plans_and_dry_runs(self):
        said = json.loads(self.train("run", "--topology", "zero:3", "--dry-run", "--json").stdout)
        units = [u["name"] for u in said["step"]["units"]]
        blocks = [u for u in units if u.startswith("block")][:len(units) // 2 - 1]
        self.assertEqual(units, [*blocks, "embedding", *blocks, "head"])
        self.assertEqual([u["elements"] > 0 for u in said["step"]["units"]], [i < len(blocks) for i in range(len(units))])
        tasks = said["step"]["workers"]["tasks"]
        self.assertEqual(sum(t["sent"] for t in tasks if "sent" in t and not t.get("control")), said["wire"][0]["predicted_sent"])
        reduced = {t["unit"] for t in tasks if t["task"] == "reduce_scatter"}
        gathered = {t["unit"] for t in tasks if t["task"] == "all_gather" and "unit" in t}
        self.assertEqual((reduced, gathered), (set(range(len(blocks))), set(range(len(units)))))
        self.run_it("plan", "--model", "tiny", "--set", "lora.r=4", "--device-memory", "64M", "--host-memory", "8G", "--disk", "8G", "--json")

    def test_refusals(self):
        lora = ["train", *SMALL, "--workers", "4", "--topology", "zero:3", "--set", "lora.r=4", "--out", "refused"]
        for words, said in (
                (["--set", "lora.targets=q_proj,wte"], 'no linear layer "wte" in its blocks; possible are self_attn.q_proj'),
                (["--set", "lora.targets=lm_head"], 'no linear layer "lm_head"'),
                (["--set", "lora.targets=proj"], 'no linear layer "proj"'),
                (["--set", "lora.alpha=0"], "lora.alpha: expected a number from 1e-30 to 1e+30, got number 0"),
                (["--set", "lora.alpha=1e31"], "lora.alpha: expected a number from 1e-30 to 1e+30"),
                (["--set", "lora.r=1.5"], "lora.r: expected an integer"),
                (["--set", "lora.rank=4"], "lora.rank: write lora.r"),
                (["--set", "lora.target_modules=q_proj"], "lora.target_modules: write lora.targets"),
                (["--set", "lora.lora_dropout=0.1"], "is known to peft and not supported"),
                (["--set", "lora.use_dora=true"], "is known to peft"),
                (["--set", "lora.modules_to_save=[\"lm_head\"]"], "only adapters are trained")):
            with self.subTest(words):
                self.refused(*lora, *words, said=said)
        # A file with peft's names does not train all weights.
        for key, value, said in (("lora_alpha", 16, "write lora.alpha"), ("target_modules", ["q_proj"], "write lora.targets"), ("lora_r", 8, "write lora.r")):
            self.write(json.dumps({"lora": {key: value}}), "peft.json")
            self.refused("train", *SMALL, "-c", "peft.json", "--topology", "local", "--out", "refused", said=["peft.json", said])
        # Off as peft's defaults are.
        self.run_it(*lora, "--dry-run", "--set", "lora.lora_dropout=0", "--set", "lora.bias=none", "--set", "lora.use_rslora=false",
                    "--set", "lora.init_lora_weights=true", "--set", "lora.fan_in_fan_out=true")


if __name__ == "__main__":
    unittest.main()
