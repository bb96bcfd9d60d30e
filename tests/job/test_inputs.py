#!/usr/bin/env python3
"""Files as people have them, given to every command alike: directories of Hugging Face with an oddity, and data in two parts."""
import json
import os
import shutil
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import PROGRAM, Runs

TRAIN = ["--tokenizer", "byte", "--data", "text.txt", "--seq", "16", "--batch", "1", "--threads", "1", "--steps", "1"]
ALIKE = (["train", *TRAIN, "--out", "r", "--force"], ["train", "--seq", "16", "--dry-run"], ["plan", "--device-memory", "1G", "--seq", "16"],
         ["generate", "--prompt", "a", "--tokens", "1"])


class Inputs(Runs):
    corpus = 300
    def setUp(self):
        super().setUp()
        self.run_it("train", "--model", "tiny", *TRAIN, "--quiet", "--out", "a")
        shutil.copytree(self.at("a", "weights"), self.at("m"))

    def edit(self, *names, **keys):
        config = json.loads(self.read(*names)) | keys
        self.write(json.dumps(config), *names)

    def first_loss(self, model, *more):
        self.run_it("train", "--model", model, *TRAIN, "--quiet", "--no-weights", "--force", "--out", "r", *more)
        return self.lines("r", "metrics.jsonl")[0]["loss"]

    def test_weights_that_are_not_read_are_never_random_ones(self):
        os.rename(self.at("m", "model.safetensors"), self.at("m", "pytorch_model.bin"))
        for words in ALIKE:
            self.refused(*words, "--model", "m", said="save_pretrained")
        os.rename(self.at("m", "pytorch_model.bin"), self.at("m", "model.safetensors.incomplete"))
        for words in ALIKE:
            self.refused(*words, "--model", "m", said="whose download did not end")
        os.unlink(self.at("m", "model.safetensors.incomplete"))
        for words in ALIKE:
            self.refused(*words, "--model", "m", said="give --model m/config.json")
        self.run_it("train", "--model", "m/config.json", *TRAIN, "--out", "r")

    def test_a_shard_that_did_not_arrive(self):
        os.rename(self.at("m", "model.safetensors"), self.at("m", "model-00001-of-00002.safetensors"))
        for words in ALIKE:
            self.refused(*words, "--model", "m", said="the names say 2 shards")

    def test_tied_by_its_flag_and_not_by_its_weights(self):
        shutil.copytree(self.at("m"), self.at("tied"))
        self.edit("tied", "config.json", tie_word_embeddings=True)
        self.assertEqual(self.first_loss("tied"), self.first_loss("m"))
        self.assertEqual(self.first_loss("tied", "--topology", "zero:3", "--workers", "1"), self.first_loss("m"))
        for words in ALIKE:
            said = self.run_it(*words, "--model", "tied", errors="replace").stderr
            self.assertEqual(said.count("the model is untied, as transformers takes it"), 1, (words, said))
        self.assertFalse(json.loads(self.read("r", "weights", "config.json"))["tie_word_embeddings"])

    def test_two_parts_of_the_data(self):
        os.mkdir(self.at("d"))
        for name, size in (("x_train_1.txt", 400), ("x_train_2.txt", 300), ("x_val_1.txt", 200)):
            self.write("abcdefghij" * (size // 10), "d", name)
        words = ["train", "--model", "tiny", "--seq", "16", "--batch", "1", "--threads", "1", "--steps", "1", "--no-weights", "--force",
                 "--out", "r"]
        for path in ("d", "d/*.txt"):
            said = self.run_it(*words, "--data", path).stderr
            self.assertIn(f"data {path}: trains on 2 files (x_train_1.txt to x_train_2.txt), and evaluates on x_val_1.txt", said)
        last = self.hash("r")
        self.run_it(*words, "--data", "d/*_train_*.txt", "--data-val", "d/x_val_1.txt")
        self.assertEqual(self.hash("r"), last)
        self.refused(*words, "--data", "d/*_trian_*", said="d/*_trian_*: no file matches this pattern")

    def test_held_out_text_that_is_none(self):
        self.write("0123456789abcde", "short.txt")
        words = ["train", "--model", "tiny", *TRAIN, "--no-weights", "--force", "--out", "r"]
        self.refused(*words, "--data-val", "short.txt", said="15 held-out tokens are fewer than --seq 16 + 1")
        said = self.run_it(*words, "--data-val", "text.txt").stderr
        self.assertIn("text.txt: is both trained on and held out", said)
        self.write("0123456789" * 10, "short.txt")
        self.assertIn("nothing is evaluated: short.txt holds out 5 tokens", self.run_it(*words, "--data", "short.txt").stderr)

    def test_a_model_that_is_unknown_costs_nothing(self):
        """Under a limit that a table of a large vocabulary would not fit, the error is the model's."""
        self.refused("-c", 'ulimit -v 3000000; exec "$@"', "sh", PROGRAM, "train", "--model", "tinny", *TRAIN, "--out", "r",
                     said="did you mean tiny?", program="sh")


if __name__ == "__main__":
    unittest.main()
