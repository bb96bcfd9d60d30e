#!/usr/bin/env python3
"""Adapters of peft in whole runs: written beside their base model, trained further by any topology, generated from, refused."""
import json
import os
import shutil
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import TOP, Runs

LORA = ["--set", "lora.r=4"]


class Adapters(Runs):
    corpus = 60

    def train(self, out, *more, model="tiny", topology="local", status=0):
        return self.run_it("train", "--model", model, "--topology", topology, "--workers", "1" if topology == "local" else "2",
                           "--data", "text.txt", "--threads", "1", "--batch", "1", "--seq", "16", "--steps", "3", "--out", out,
                           *more, status=status)

    def bytes_of(self, *names):
        with open(self.at(*names), "rb") as f:
            return f.read()

    def adapter(self, run):
        return self.json(run, "weights", "adapter_config.json")

    def test_a_base_from_the_seed_is_written_beside_its_adapter(self):
        self.train("a", *LORA)
        self.train("full", "--steps", "1", "--lr", "0")
        self.assertEqual(sorted(os.listdir(self.at("a", "weights"))), ["adapter_config.json", "adapter_model.safetensors", "base"])
        self.assertEqual(self.adapter("a")["base_model_name_or_path"], self.at("a", "weights", "base"))
        # The model of the seed, as a run on all weights begins with it.
        self.assertEqual(self.bytes_of("a", "weights", "base", "model.safetensors"), self.bytes_of("full", "weights", "model.safetensors"))

    def test_trained_further_by_another_topology(self):
        self.train("base", "--lr", "1e-2")
        self.train("a", *LORA, "--lr", "1e-2", model="base/weights", topology="ps:sync")
        self.assertEqual(sorted(os.listdir(self.at("a", "weights"))), ["adapter_config.json", "adapter_model.safetensors"])
        self.assertEqual(os.path.realpath(self.at("base", "weights")), self.adapter("a")["base_model_name_or_path"])
        first = self.bytes_of("a", "weights", "adapter_model.safetensors")
        # Nothing is lost on the way: with a learning rate of 0 the same adapter is written again.
        self.train("same", "--lr", "0", model="a/weights", topology="zero:2")
        self.assertEqual(self.bytes_of("same", "weights", "adapter_model.safetensors"), first)
        self.assertEqual(self.adapter("same"), self.adapter("a"))
        self.train("star", "--lr", "1e-2", model="a/weights", topology="ps:sync")
        self.train("ring", "--lr", "1e-2", model="a/weights", topology="zero:3")
        self.assertEqual(self.hash("star"), self.hash("ring"))
        self.assertNotEqual(self.bytes_of("ring", "weights", "adapter_model.safetensors"), first)
        # The section lora may say the same, and nothing else.
        self.train("b", *LORA, model="a/weights")
        said = self.train("b", "--set", "lora.r=8", "--force", model="a/weights", status=2).stderr
        self.assertIn("lora.r: --model a/weights is an adapter that has another (its r is 4", said)
        said = self.train("b", *LORA, "--set", "lora.targets=q_proj", "--force", model="a/weights", status=2).stderr
        self.assertIn("lora.targets: --model a/weights is an adapter", said)

    def test_generated_from(self):
        self.train("base", "--lr", "1e-2")
        self.train("a", *LORA, "--lr", "3e-2", model="base/weights")
        words = ["--prompt", "12 bottles", "--temperature", "0", "--tokens", "12"]
        said = self.run_it("generate", "--model", "a", *words).stdout
        self.assertEqual(said, self.run_it("generate", "--model", "a/weights", *words).stdout)
        self.assertNotEqual(said, self.run_it("generate", "--model", "base", *words).stdout)
        # The end of the text is the base model's.
        c = self.json("base", "weights", "config.json")
        token = json.loads(self.run_it("generate", "--model", "a", *words, "--json").stdout)["ids"][0]
        self.write(json.dumps({**c, "eos_token_id": token}), "base", "weights", "config.json")
        self.assertEqual(len(json.loads(self.run_it("generate", "--model", "a", *words, "--json").stdout)["ids"]), 1)

    def test_a_resumed_run_goes_on_with_the_same_adapter(self):
        self.train("a", *LORA)
        self.train("half", "--checkpoint-every", "3", model="a/weights")
        resume = ["--steps", "5", "--resume", "half/checkpoints/step-3"]
        self.train("whole", "--steps", "5", model="a/weights")
        self.train("rest", *resume, model="a/weights", topology="local")
        self.assertEqual(self.hash("rest"), self.hash("whole"))
        self.write(json.dumps({**self.adapter("a"), "lora_alpha": 4}), "a", "weights", "adapter_config.json")
        said = self.train("again", *resume, model="a/weights", status=2).stderr
        self.assertIn("model.adapters = rank 4, alpha 8", said)

    def test_an_earlier_runs_weights_are_removed(self):
        self.train("a")
        self.train("a", *LORA, "--force")
        self.assertEqual(sorted(os.listdir(self.at("a", "weights"))), ["adapter_config.json", "adapter_model.safetensors", "base"])
        self.train("a", "--force")
        self.assertEqual(sorted(os.listdir(self.at("a", "weights"))), ["base", "config.json", "model.safetensors"])
        self.assertEqual(os.listdir(self.at("a", "weights", "base")), [])

    def test_no_run_replaces_what_it_reads(self):
        self.train("base")
        self.train("a", *LORA, model="base/weights")
        self.train("drawn", *LORA)
        os.symlink("a", self.at("link"))
        before = {run: self.bytes_of(run, "weights", file) for run, file in
                  (("base", "model.safetensors"), ("a", "adapter_model.safetensors"), ("drawn", "base/model.safetensors"))}
        for out, model in (("base", "base/weights"), ("base", "base/weights/"), ("base", "base/weights/config.json"), ("base", "a/weights"), ("a", "a/weights"),
                           ("link", "a/weights"), ("a", "link/weights"), ("drawn", "drawn/weights"), ("drawn", "drawn/weights/base")):
            for more in (["--force"], ["--force", "--dry-run"], ["--force", *LORA]):
                with self.subTest(out=out, model=model, more=more):
                    self.assertIn("its own weights would replace", self.train(out, *more, model=model, status=2).stderr)
        for run, file in (("base", "model.safetensors"), ("a", "adapter_model.safetensors"), ("drawn", "base/model.safetensors")):
            self.assertEqual(self.bytes_of(run, "weights", file), before[run])
        # Another run's directory is replaced.
        self.train("a", "--force", *LORA, model="base/weights")

    def test_refused(self):
        """Before anything starts, also by the dry run, with the file and the tensor or key."""
        shutil.copytree(os.path.join(TOP, "tests", "data", "vectors", "llama"), self.at("llama"))
        weights, config = "llama/lora/adapter_model.safetensors", self.json("llama", "lora", "adapter_config.json")
        whole = self.bytes_of(weights)
        words = ["--model", "llama/lora", "--topology", "zero:2", "--workers", "2", "--seq", "8"]
        self.run_it("train", *words, "--dry-run")
        with open(self.at(weights), "wb") as f:
            f.write(whole[:-7])
        self.refused("train", *words, "--dry-run", said="adapter_model.safetensors")
        self.refused("generate", "--model", "llama/lora", "--prompt-ids", "1", said="adapter_model.safetensors")
        with open(self.at(weights), "wb") as f:
            f.write(whole)
        self.write(json.dumps({**config, "use_dora": True}), "llama", "lora", "adapter_config.json")
        self.refused("train", *words, "--dry-run", said=['adapter_config.json: "use_dora" is true', "merge_and_unload"])
        self.write(json.dumps({**config, "base_model_name_or_path": "meta-llama/Llama-2-7b-hf"}), "llama", "lora", "adapter_config.json")
        self.refused("train", *words, "--dry-run", said="hf download meta-llama/Llama-2-7b-hf --local-dir BASE")


if __name__ == "__main__":
    unittest.main()
