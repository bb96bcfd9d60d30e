#!/usr/bin/env python3
"""experiments/tokenize.py as a command, with a stand-in for the package tokenizers: from a text to training, mistakes, signals."""
import json
import os
import signal
import subprocess
import sys
import unittest

from tokenize_helper import SCRIPT, Case, read_bin
from tokens import VERSION

# A stand-in for the package: words of a vocabulary, by whose size it is told apart, and a wait that a test can end.
STUB = '''
import json, os, time
class Encoding:
    def __init__(self, ids): self.ids, self.tokens = ids, [str(i) for i in ids]
class Tokenizer:
    encode_special_tokens = False
    model = None
    @staticmethod
    def from_file(path):
        t = Tokenizer()
        with open(path) as f: t.spec = json.load(f)
        t.vocab = t.spec["model"]["vocab"]
        return t
    def no_truncation(self): pass
    def no_padding(self): pass
    def to_str(self): return json.dumps(self.spec)
    def get_vocab(self, with_added_tokens): return self.vocab
    def token_to_id(self, token): return self.vocab.get(token)
    def encode(self, text): return Encoding([])
    def encode_batch(self, texts, add_special_tokens):
        assert self.encode_special_tokens and not add_special_tokens
        go = os.environ.get("STUB_GO")
        if go:
            open(go + ".started", "w").close()
            for _ in range(6000):
                if os.path.exists(go): break
                time.sleep(0.01)
        return [Encoding([len(w) for w in text.split()]) for text in texts]
'''
MODEL = {"model_type": "gpt2", "vocab_size": 300, "n_embd": 20, "n_layer": 1, "n_head": 5, "n_positions": 33}


class Command(Case):
    def setUp(self):
        super().setUp()
        self.put("stub/tokenizers.py", STUB)
        self.put("model/tokenizer.json", json.dumps({"model": {"type": "WordLevel", "vocab": {"<|endoftext|>": 299}}}))
        self.put("model/config.json", json.dumps(MODEL))
        self.put("a text.txt", "to be or not to be that is the question " * 40)
        self.env = {"PYTHONPATH": self.at("stub"), "PYTHONDONTWRITEBYTECODE": "1"}

    def tokenize(self, *words, status=0):
        p = self.run_script("tokenize.py", *words, status=status, env=self.env)
        self.assertNotIn("Traceback", p.stderr)
        return p.stdout if status == 0 else p.stderr

    def train(self, *words, status=0):
        return self.run_it("train", "--steps", "1", "--seq", "8", "--batch", "1", "--threads", "1", "--quiet", *words, status=status).stderr

    def test_text_to_training(self):
        refused = self.train("--model", "model/config.json", "--data", "a text.txt", "--out", "x", status=2)
        typed = next(line for line in refused.splitlines() if "experiments/tokenize.py" in line)
        self.assertEqual(typed.strip(), "experiments/tokenize.py --tokenizer model 'a text.txt' --out 'a text.bin'")
        out = self.tokenize("--tokenizer", "model", "a text.txt", "--out", "a text.bin")
        self.assertRegex(out, r"^a text\.bin: 401 tokens \(uint16, model\), 1 document after <\|endoftext\|>, 3\.99 bytes per "
                         r"token, \d+\.\d s\n$")
        self.assertEqual(read_bin(self.at("a text.bin"))[1][:5], [299, 2, 2, 2, 3])
        self.train("--model", "model/config.json", "--data", "a text.bin", "--out", "run")
        self.assertIn("WordLevel", self.read("run", "weights", "tokenizer.json"))
        self.assertIn("demo has 256", self.train("--model", "demo", "--data", "a text.bin", "--out", "x", status=2))
        with open(self.at("model", "tokenizer.json"), "a") as f:
            f.write("\n")
        self.assertIn("SHA-256", self.train("--model", "model/config.json", "--data", "a text.bin", "--out", "x", status=2))
        self.assertFalse(os.path.exists(self.at("x")))

    def test_signals_leave_nothing(self):
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            go = self.at(f"go{status}")
            p = self.start(SCRIPT, "--tokenizer", "model", "a text.txt", "--out", "o.bin", program=sys.executable, env=self.env | {"STUB_GO": go})
            p.until(lambda go=go: os.path.exists(go + ".started"), "it tokenizes")
            p.send_signal(number)
            self.put(os.path.basename(go), "")
            self.assertNotIn("Traceback", p.ends(status))
            self.assertEqual([f for f in self.files() if f.startswith("o.bin")], [])

    def test_the_package_is_missing(self):
        self.put("stub/tokenizers.py", "raise ModuleNotFoundError(\"No module named 'tokenizers'\", name='tokenizers')\n")
        err = self.tokenize("--tokenizer", "model", "a text.txt", "--out", "o.bin", status=2)
        self.assertIn("python3 -m pip install tokenizers", err)

    def test_mistakes(self):
        self.put("zero.txt", b"ab\0cd")
        self.put("blank.txt", " \n\n")
        self.put("there.bin", "x")
        self.put("slow/vocab.json", "{}"), self.put("slow/merges.txt", ""), self.put("old/tokenizer.model", "x")
        self.put("slow/tokenizer_config.json", '{"tokenizer_class": "Qwen2Tokenizer"}')
        os.mkdir(self.at("bare"))
        cases = ((2, "no such file", "model", "no.txt", "o.bin"), (2, "--force", "model", "a text.txt", "there.bin"),
                 (2, "--tokenizer gone", "gone", "a text.txt", "o.bin"), (2, "no tokenizer.json", "bare", "a text.txt", "o.bin"),
                 (2, "Qwen2Tokenizer", "slow", "a text.txt", "o.bin"), (2, "save_pretrained", "old", "a text.txt", "o.bin"),
                 (2, "directory that exists", "model", "a text.txt", "no/o.bin"), (2, "cannot read", "blank.txt", "a text.txt", "o.bin"),
                 (1, "zero.txt: a zero byte at offset 2", "model", "zero.txt", "o.bin"), (1, "white space", "model", "blank.txt", "o.bin"))
        before = self.files()
        for status, says, tokenizer, text, out in cases:
            self.assertIn(says, self.tokenize("--tokenizer", tokenizer, text, "--out", out, status=status), says)
        err = self.tokenize("--tokenizer", "model", "a text.txt", "--out", "a text.txt", "--force", status=2)
        self.assertIn("one of the texts", err)
        self.assertIn("--eot nine", self.tokenize("--tokenizer", "model", "a text.txt", "--out", "o.bin", "--eot", "nine", status=2))
        self.assertIn("--workers", self.tokenize("--tokenizer", "model", "a text.txt", "--out", "o.bin", "--workers", "0", status=2))
        self.assertIn("1 to 256", self.tokenize("--tokenizer", "model", "a text.txt", "--out", "o.bin", "--workers", "257", status=2))
        self.assertIn("--out bare: name a file", self.tokenize("--tokenizer", "model", "a text.txt", "--out", "bare", status=2))
        self.assertIn("--out : name a file", self.tokenize("--tokenizer", "model", "a text.txt", "--out", "", status=2))
        self.assertEqual(self.files(), before)
        self.put("model/tokenizer.json", json.dumps({"model": {"type": "WordLevel", "vocab": {}}}))
        self.assertIn("vocabulary is empty", self.tokenize("--tokenizer", "model", "a text.txt", "--out", "o.bin", status=2))

    def test_names_need_not_be_utf8(self):
        name = os.fsencode(self.at("t")) + b"\xff.txt"
        with open(name, "w") as f:
            f.write("one two")
        out = self.tokenize("--tokenizer", "model", os.fsdecode(os.path.basename(name)), "--out", os.fsdecode(b"o\xff.bin"))
        self.assertIn("o\\udcff.bin: 3 tokens", out)
        with open(os.fsencode(self.at("o")) + b"\xff.bin.json", encoding="utf-8") as f:
            self.assertEqual(json.load(f)["sources"][0]["name"], "t\ufffd.txt")

    def test_options(self):
        self.put("t.txt", "one two\\n\n\nthree\tfour")
        for split, tokens in ((r"\n\n", [299, 3, 5, 299, 5, 4]), (r"\\n", [299, 3, 3, 299, 5, 4]), (r"\t", [299, 3, 5, 5, 299, 4])):
            self.tokenize("--tokenizer", "model/tokenizer.json", "t.txt", "--out", "o.bin", "--force", "--split", split)
            self.assertEqual(read_bin(self.at("o.bin"))[1], tokens, split)
        self.put("t.txt", b"one \xff two")
        self.tokenize("--tokenizer", "model", "t.txt", "--out", "o.bin", "--force", "--errors", "replace", "--workers", "3")
        self.assertEqual(read_bin(self.at("o.bin"))[1], [299, 3, 1, 3])

    def test_one_version(self):
        self.assertEqual(self.run_it("--version").stdout.split()[1], VERSION)

    def test_the_standard_library_keeps_its_module(self):
        check = "import linecache, tokenize; assert 'def open(' in ''.join(linecache.getlines(tokenize.__file__)) and tokenize.open"
        subprocess.run([sys.executable, "-c", check], cwd=os.path.dirname(SCRIPT), check=True)


if __name__ == "__main__":
    unittest.main()
