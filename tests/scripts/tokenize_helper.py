"""What the tests of experiments/tokenize.py share: texts that are hard to cut, an encoder made up here, a place to work in."""
import os
import random
import re
import struct
import sys
import tempfile
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import EXPERIMENTS, Runs
from tokens.binfile import BinWriter, sidecar
from tokens.encoder import Cutter
from tokens.stream import run
from tokens.text import Source

SCRIPT = os.path.join(EXPERIMENTS, "tokenize.py")
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def tricky_texts():
    """Texts whose tokens change when they are cut in the wrong places."""
    dice = random.Random(7)
    atoms = ["the", "It's", "we'll", " ", "  ", "\n", "\n\n", " \n ", "\t", "12345", "1", "...", "!?", "end.\n", "naïve", "café",
             "日本語", "。", "，", "тест", "🙂", "👩‍👩‍👧", "e\u0301", "don't", "O'Neill's", "_x_", "\r\n", "        ", "½", "Ⅷ", "ا", "क्षि", "\u2028"]
    yield "random atoms", "".join(dice.choice(atoms) for _ in range(1500))
    yield "words", " ".join(dice.choice(["alpha", "beta", "it's", "gamma,", "x", "delta."]) for _ in range(800))
    yield "contractions", "he'll she'd they've I'm we're can't o'clock's " * 40
    yield "spaces", "a" + " " * 700 + "b\n" + "\n" * 300 + "c   d\t\t e " * 40
    yield "no places", "0123456789" * 150
    yield "code", "def f(x):\n    return [i for i in x if i]\n\n\n    # a  b\n" * 30
    yield "chinese", "天地玄黄，宇宙洪荒。日月盈昃，辰宿列张。\n" * 40
    yield "marks", "e\u0301 a\u0308\nq\u0323\u0307 o\u0302 " * 60
    yield "one letter", "x"


class FakeEncoder:
    """GPT-2's way of splitting with Python's re; each piece of text between the borders has ids of its own."""
    PATTERN = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")
    name, kind, files = "fake", "BPE", {"tokenizer.json": {"bytes": 1, "sha256": "ab"}}

    def __init__(self, vocab_size=50257, cuts=True):
        self.vocab_size, self.start = vocab_size, {"token": "<|endoftext|>", "id": vocab_size - 1}
        self.cutter = Cutter(self.encode_batch) if cuts else None
        self.longest = 0

    def encode_batch(self, texts):
        self.longest = max([self.longest, *map(len, texts)])
        return [[zlib.crc32(word[i:i + 3].encode()) % (self.vocab_size - 1) for word in self.PATTERN.findall(text)
                 for i in range(0, len(word), 3)] for text in texts]


def read_bin(path):
    """(header, tokens) of an llm.c file, by the text of its format."""
    with open(path, "rb") as f:
        data = f.read()
    header = struct.unpack("<256i", data[:1024])
    width = {20240520: "H", 20240801: "I"}[header[0]]
    return header, list(struct.unpack(f"<{header[2]}{width}", data[1024:]))


class Case(Runs):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="starring tokens ")  # with a space, as people have them
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def put(self, name, content):
        data = content if isinstance(content, bytes) else content.encode("utf-8")
        os.makedirs(os.path.dirname(self.at(name)), exist_ok=True)
        with open(self.at(name), "wb") as f:
            f.write(data)
        return self.at(name)

    def stream(self, paths, encoder, out="o.bin", errors="strict", **options):
        """(header, tokens, sidecar) of what was written."""
        sources = [Source(p, errors) for p in paths]
        writer = BinWriter(self.at(out), encoder.vocab_size)
        try:
            documents = run(sources, encoder, writer, **options)
            writer.finish(sidecar(encoder, writer, sources, documents))
        finally:
            writer.discard()
        return (*read_bin(self.at(out)), self.json(out + ".json"))

    def files(self):
        return sorted(os.listdir(self.folder))
