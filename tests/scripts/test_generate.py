#!/usr/bin/env python3
"""experiments/generate.py with a stand-in for the package tokenizers, and experiments/comparison/sample.py, over the
built program and over a made-up one."""
import json
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import PROGRAM, TOP, Runs
from comparison import sample
from comparison.runs import Run, RunError
import generate

GPT2 = os.path.join(TOP, "tests", "data", "vectors", "gpt2")

# Letters for the ids of the test models: 0 is "a"; 36 is the last one.
ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789-"
STAND_IN = """
import json
class Tokenizer:
    @staticmethod
    def from_file(path):
        t = Tokenizer()
        with open(path) as f:
            t.letters = json.load(f)["letters"]
        return t
    def encode(self, text):
        self.ids = [self.letters.index(c) for c in text]
        return self
    def decode(self, ids):
        return "".join(self.letters[i] for i in ids)
"""


class Wrapper(Runs):
    """generate.py over the tiny GPT-2, whose continuations transformers wrote down."""

    def setUp(self):
        super().setUp()
        self.write(STAND_IN, "packages", "tokenizers.py")
        self.tokenizer = self.write(json.dumps({"letters": ALPHABET}), "tokenizer.json")
        with open(os.path.join(GPT2, "greedy.json"), encoding="utf-8") as f:
            case = json.load(f)["cases"][1]
        self.prompt, self.text = ("".join(ALPHABET[i] for i in case[k]) for k in ("prompt", "ids"))

    def generate(self, *argv, packages=True, status=None, **how):
        if not packages:
            self.write("raise ImportError('none here')\n", "none", "tokenizers.py")
        env = {"PYTHONPATH": self.at("packages" if packages else "none"), "STARRING": PROGRAM}
        return self.run_script("generate.py", *argv, env=env, status=status, **how)

    def greedy(self, *more, prompt=None, **kw):
        return self.generate("--model", GPT2, "--tokenizer", self.tokenizer, "--prompt", prompt or self.prompt,
                           "--tokens", str(len(self.text)), "--temperature", "0", *more, **kw)

    def test_text_in_and_out(self):
        self.assertEqual(self.greedy(status=0).stdout, self.prompt + self.text + "\n")

    def test_json_is_decoded(self):
        document = json.loads(self.greedy("--json", status=0).stdout)
        self.assertEqual((document["prompt"], document["text"]), (self.prompt, self.text))
        self.assertEqual([ALPHABET[i] for i in document["ids"]], list(self.text))

    def test_prompt_from_standard_input(self):
        self.assertEqual(self.greedy(prompt="-", input=self.prompt, status=0).stdout, self.prompt + self.text + "\n")

    def test_the_prompt_is_utf8_whatever_the_locale(self):
        with open(self.at("prompt"), "wb") as f:
            f.write(b"ab\xff")
        with open(self.at("prompt"), "rb") as f:
            p = self.greedy(prompt="-", stdin=f)
        self.assertEqual((p.returncode, p.stdout), (2, ""), p.stderr)
        self.assertEqual(p.stderr, "generate.py: --prompt -: byte 0xff at offset 2 is not UTF-8\n")
        p = self.greedy(prompt=b"a\xff")
        self.assertEqual((p.returncode, p.stderr), (2, "generate.py: --prompt: byte 0xff at offset 1 is not UTF-8\n"))
        p = self.greedy(prompt="-", preexec_fn=lambda: os.close(0))
        self.assertEqual((p.returncode, p.stderr), (2, "generate.py: --prompt -: standard input is closed\n"))
        p = self.greedy(prompt="é")  # reaches the stand-in, which knows no such letter
        self.assertEqual(p.returncode, 1)
        self.assertIn("--prompt: the package tokenizers cannot encode it", p.stderr)
        self.assertNotIn("Traceback", p.stderr)

    def test_a_full_disk_is_said(self):
        with open("/dev/full", "w") as full:
            for more in ([], ["--json"]):
                p = self.generate("--model", GPT2, "--tokenizer", self.tokenizer, "--prompt", "a", *more, stdout=full, status=1)
                self.assertIn("the output could not be written: No space left on device", p.stderr)
                self.assertNotIn("Traceback", p.stderr)

    def test_a_tokenizer_is_a_file_or_its_directory(self):
        self.generate("--model", GPT2, "--tokenizer", self.folder, "--prompt", "ab", "--tokens", "1", status=0)

    def test_the_programs_errors_are_its_own(self):
        p = self.greedy("--top-k", "x")
        self.assertEqual((p.returncode, p.stdout), (2, ""))
        self.assertIn("--top-k x: expected a whole number", p.stderr)

    def test_what_is_missing_is_said(self):
        for argv, status, words in (
                (["--model", GPT2, "--prompt", "a"], 1, "no tokenizer: "),
                (["--model", "gone", "--prompt", "a"], 2, "--model gone: no such directory"),
                (["--model", GPT2, "--prompt", "a", "--tokenizer", self.write("{", "bad.json")], 1, "bad.json: no tokenizer"),
                (["--model", GPT2, "--prompt", "", "--tokenizer", self.tokenizer], 2, "--prompt: is empty"),
                (["--model", GPT2, "--prompt", "a", "--prompt-ids", "1"], 2, "needs no tokenizer"),
                (["--model", GPT2, "--prompt", "a", "--tokenizer", self.tokenizer, "--program", "nothing"], 1,
                 "cannot start nothing")):
            p = self.generate(*argv, status=status)
            self.assertIn(words, p.stderr)
            self.assertNotIn("Traceback", p.stderr)
        p = self.generate("--model", GPT2, "--prompt", "a", packages=False, status=1)
        self.assertIn("pip install tokenizers", p.stderr)

    def test_characters_of_several_tokens_come_whole(self):
        class Bytes:
            """A tokenizer of bytes, which decodes halves of characters to U+FFFD."""
            @staticmethod
            def decode(ids):
                return bytes(ids).decode("utf-8", errors="replace")

        decoder = generate.Decoder(Bytes, b"ab")
        parts = [decoder.add(byte) for byte in "xé€y".encode()] + [decoder.add(None, last=True)]
        self.assertEqual(parts, ["x", "", "é", "", "", "€", "y", ""])
        decoder = generate.Decoder(Bytes, b"ab")
        self.assertEqual([decoder.add(0xc3), decoder.add(None, last=True)], ["", "\ufffd"])


class SlidingWindow(Runs):
    """A Mistral whose tokens see fewer tokens than it has positions."""

    def test_the_window_is_the_models_at_most(self):
        config = {"model_type": "mistral", "vocab_size": 256, "hidden_size": 16, "intermediate_size": 32, "hidden_act": "silu",
                  "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64,
                  "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "sliding_window": 16, "tie_word_embeddings": False}

        self.run_it("train", "--model", self.write(json.dumps(config), "tiny.json"), "--steps", "1", "--seq", "8", "--batch", "1", "--threads",
                    "1", "--data", "demo", "--quiet", "--out", "run")
        generate_it = ["generate", "--model", "run/weights", "--prompt-ids", "1", "--tokens", "20", "--threads", "1", "--json"]
        self.refused(*generate_it, "--window", "17", said="--window 17: expected a whole number from 1 to 16")
        self.assertEqual(json.loads(self.run_it(*generate_it).stdout)["window"], 16)


class Way(Runs):
    """The way of the CPU's products can be chosen, and is named beside the speed."""

    def generate(self, *argv):
        return self.run_it("generate", "--model", "run", "--prompt", "x", "--tokens", "4", "--threads", "1", "--device", "cpu", *argv,
                           errors="replace", status=None)

    def test_it_is_named_and_can_be_chosen(self):
        self.run_it("train", "--model", "tiny", "--steps", "1", "--seq", "8", "--batch", "1", "--dtype", "bf16", "--threads", "1", "--data",
                    "demo", "--quiet", "--out", "run")
        p = self.generate("--set", "cpu.kernel=fma")
        self.assertIn("bf16 on cpu by fma, seed 1", p.stderr)
        said, found = (json.loads(self.generate("--json", *more).stdout) for more in ((), ("--set", "cpu.kernel=fma")))
        self.assertIn(said["cpu_kernel"], ("fma", "avx512_bf16", "amx"))
        self.assertEqual((found["cpu_kernel"], found["ids"]), ("fma", said["ids"]))
        p = self.generate("--set", "cpu.kernel=fma", "--dtype", "fp32")
        self.assertEqual((p.returncode, p.stdout), (2, ""))
        self.assertIn("cpu.kernel fma: it is about products of bf16, and this run's dtype is fp32: leave it out", p.stderr)


class Memory(Runs):
    """A model that no machine holds: a file of holes, as long as its header says."""

    def test_what_does_not_fit_is_refused_before_it_is_taken(self):
        C, wide = 1 << 14, 1 << 22
        shapes = {"model.embed_tokens.weight": [256, C], "model.norm.weight": [C]}
        layer = "model.layers.0."
        shapes.update({layer + f"self_attn.{n}_proj.weight": [C, C] for n in "qkvo"})
        shapes.update({layer + f"mlp.{n}_proj.weight": [wide, C] for n in ("gate", "up")})
        shapes.update({layer + "mlp.down_proj.weight": [C, wide], layer + "input_layernorm.weight": [C],
                       layer + "post_attention_layernorm.weight": [C]})
        header, at = {}, 0
        for name, shape in shapes.items():
            size = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
            at += size
        text = json.dumps(header).encode()
        self.write(json.dumps({"model_type": "llama", "vocab_size": 256, "hidden_size": C, "num_hidden_layers": 1,
                               "num_attention_heads": 128, "intermediate_size": wide, "max_position_embeddings": 64,
                               "tie_word_embeddings": True, "rms_norm_eps": 1e-5}), "vast", "config.json")
        with open(self.at("vast", "model.safetensors"), "wb") as f:
            f.write(len(text).to_bytes(8, "little") + text)
            f.truncate(8 + len(text) + at)
        p = self.run_it("generate", "--model", "vast", "--prompt", "x", "--device", "cpu", status=1)
        self.assertEqual(p.stdout, "")
        self.assertRegex(p.stderr, r"generating.* GiB")
        self.assertIn("memory.check=off", p.stderr)


FAKE = """#!{python}
import json, os, sys
model = sys.argv[sys.argv.index("--model") + 1]
with open(os.path.join(model, "weights", "says")) as f:
    text = f.read()
if text == "fail":
    print("starring: error: something broke", file=sys.stderr)
    sys.exit(1)
json.dump({{"ids": list(text.encode()), "text": text}}, sys.stdout)
"""


class Sample(Runs):
    """Which runs speak, and what is said of it."""

    def setUp(self):
        super().setUp()
        self.program = self.script(FAKE.format(python=sys.executable), "program")

    def run_of(self, topology, says=None, vocabulary=256, tokenizer=False):
        name = topology.replace(":", "-")
        run = Run(name, self.at(name))
        run.summary, run.label = {"topology": topology}, topology
        if says is not None:
            self.write(json.dumps({"vocab_size": vocabulary}), name, "weights", "config.json")
            self.write(says, name, "weights", "says")
        if tokenizer:
            self.write("{}", name, "weights", "tokenizer.json")
        return run

    def test_star_and_ring_are_chosen_and_called_equal(self):
        runs = [self.run_of(t, "star light\nstar <bright>") for t in ("local", "zero:0", "ps:async", "ps:sync", "zero:2")]
        spoken = sample.continuations(runs, self.program)
        self.assertEqual([s.label for s in spoken], ["ps:sync", "zero:2"])
        text = sample.as_text(spoken)
        self.assertIn("ps:sync  The star light | star <bright>", text)
        self.assertIn("ps:sync and zero:2 write the same sentence, byte for byte.", text)
        self.assertIn("star &lt;bright&gt;", sample.as_html(spoken))
        self.assertEqual([r.topology for r in sample.chosen(runs[:3])], ["ps:async", "zero:0"])
        self.assertEqual([r.topology for r in sample.chosen(runs[:2])], ["local", "zero:0"])

    def test_repeats_of_one_run_are_not_told_apart(self):
        first, again, ring = self.run_of("ps:async", "here"), self.run_of("ps:async", "there"), self.run_of("zero:2", "here")
        self.assertEqual(sample.chosen([first, again]), [first])
        self.assertNotIn("sentence", sample.as_text(sample.continuations([first, again], self.program)))
        self.assertEqual(sample.chosen([first, again, ring]), [first, ring])

    def test_a_difference_is_told(self):
        spoken = sample.continuations([self.run_of("ps:sync", "same"), self.run_of("zero:2", "some")], self.program)
        self.assertIn("write different sentences, from byte 2 on", sample.as_text(spoken))
        spoken = sample.continuations([self.run_of("ps:sync", "same"), self.run_of("zero:2", "sam")], self.program)
        self.assertIn("from byte 4 on", sample.as_text(spoken))

    def test_who_cannot_speak_is_not_asked(self):
        runs = [self.run_of("ps:sync"), self.run_of("zero:1", "x", vocabulary=50257),
                self.run_of("zero:2", "x", tokenizer=True)]
        self.assertEqual(sample.continuations(runs, self.program), [])
        self.assertEqual((sample.as_text([]), sample.as_html([])), ("", ""))

    def test_a_failure_is_an_error(self):
        with self.assertRaisesRegex(RunError, "(?s)zero:3: no sentence .*something broke"):
            sample.continuations([self.run_of("zero:3", "fail")], self.program)
        with self.assertRaisesRegex(RunError, "could not be asked"):
            sample.continuations([self.run_of("zero:3", "x")], self.at("nothing"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
