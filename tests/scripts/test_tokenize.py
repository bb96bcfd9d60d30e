#!/usr/bin/env python3
"""experiments/tokens: cutting, documents, llm.c's format, sidecars; against the package tokenizers where it is installed, else
with encoders made up here."""
import hashlib
import io
import os
import re
import subprocess
import sys
import unittest

from tokenize_helper import LLAMA3, O200K, SCRIPT, Case, FakeEncoder, read_bin, tricky_texts
from tokens import VERSION, RunError, UsageError
from tokens.binfile import BinWriter
from tokens.encoder import AFTER, Encoder, find_start, find_tokenizer, split_alternatives, why_whole
from tokens.text import Source, find_files, pieces

try:
    import tokenizers
except ImportError:
    tokenizers = None
    print("the comparison with the package tokenizers is skipped: it is not installed (python3 -m pip install tokenizers)")


class Format(Case):
    def test_uint16_and_uint32(self):
        path = self.put("a.txt", "some text")
        for vocab, magic, version in ((50257, 20240520, 1), (65536, 20240520, 1), (65537, 20240801, 7), (151665, 20240801, 7)):
            encoder = FakeEncoder(vocab)
            header, tokens, side = self.stream([path], encoder)
            self.assertEqual(header[:3], (magic, version, len(tokens)))
            self.assertEqual(set(header[3:]), {0})
            self.assertEqual(tokens, [vocab - 1] + encoder.encode_batch(["some text"])[0])
            self.assertEqual((side["tokens"], side["vocab_size"]), (len(tokens), vocab))

    def test_the_sidecar_names_everything(self):
        a, b = self.put("a.txt", "first äöü"), self.put("b.txt", "second")
        _, tokens, side = self.stream([a, b], FakeEncoder())
        self.assertEqual(side["tokenizer"], {"name": "fake", "kind": "BPE", "files": FakeEncoder.files})
        self.assertEqual(side["sources"], [
            {"name": n, "bytes": len(t.encode()), "sha256": hashlib.sha256(t.encode()).hexdigest()}
            for n, t in (("a.txt", "first äöü"), ("b.txt", "second"))])
        self.assertEqual((side["documents"], side["document_start"]), (2, {"token": "<|endoftext|>", "id": 50256}))
        self.assertEqual(side["program"], f"starring tokenize.py {VERSION}")
        self.assertEqual(tokens.count(50256), 2)

    def test_nothing_half_stays(self):
        path = self.put("a.txt", "word " * 1000)

        class Full(io.BytesIO):
            def write(self, data):
                raise OSError(28, "No space left on device")
        for moment in ("tokens", "header"):
            encoder, before = FakeEncoder(), self.files()
            writer = BinWriter(self.at("o.bin"), encoder.vocab_size)
            with self.assertRaises(RunError) as caught:
                try:
                    if moment == "tokens":
                        writer.file.close()
                        writer.file = Full()
                    writer.add([1, 2, 3])
                    writer.file.close()
                    writer.file = Full()
                    writer.finish({})
                finally:
                    writer.discard()
            self.assertIn("No space left", str(caught.exception))
            self.assertEqual(self.files(), before)
        with self.assertRaises(RunError):
            self.stream([path], FakeEncoder(), out="missing/o.bin")

    def test_more_tokens_than_the_header_counts(self):
        writer = BinWriter(self.at("o.bin"), 256)
        self.addCleanup(writer.discard)
        writer.tokens = 2**31 - 2
        writer.add([1])
        with self.assertRaisesRegex(RunError, "2,147,483,647 tokens"):
            writer.add([1])


class Cutting(Case):
    def whole(self, encoder, text):
        return [encoder.start["id"]] + encoder.encode_batch([text])[0]

    def test_pieces_give_the_tokens_of_the_whole(self):
        for name, text in tricky_texts():
            path = self.put("t.txt", text)
            for size in (1, 7, 16, 100, 5000):
                encoder = FakeEncoder()
                _, tokens, _ = self.stream([path], encoder, size=size, workers=2)
                self.assertEqual(tokens, self.whole(FakeEncoder(), text), f"{name}, pieces of {size}")

    def test_text_is_cut_and_only_at_the_places(self):
        for name, text in tricky_texts():
            source = Source(self.put("t.txt", text)).open()
            parts = [t for _, t in pieces(source, FakeEncoder().cutter, None, 16)]
            source.close()
            self.assertEqual("".join(parts), text, name)
            for left, right in zip(parts, parts[1:]):
                self.assertTrue(left[-1].isalpha() and right[0] in AFTER, f"{name}: {left[-9:]!r} | {right[:9]!r}")
            many = {"words": 100, "contractions": 40, "code": 20, "chinese": 20, "no places": 1, "one letter": 1, "marks": 1}
            self.assertGreaterEqual(len(parts), many.get(name, 2), name)
            if many.get(name) == 1:
                self.assertEqual(len(parts), 1)

    def test_memory_does_not_grow_with_the_text(self):
        path = self.put("t.txt", "All work and no play makes a dull text.\n" * 5000)
        encoder = FakeEncoder()
        self.stream([path], encoder, size=1000)
        self.assertLess(encoder.longest, 1200)

    def test_without_a_cutter_documents_are_whole(self):
        text = "a b c " * 2000
        encoder = FakeEncoder(cuts=False)
        _, tokens, _ = self.stream([self.put("t.txt", text)], encoder, size=16)
        self.assertEqual((tokens, encoder.longest), (self.whole(FakeEncoder(), text), len(text)))

    def test_a_place_that_the_tokenizer_denies_is_left(self):
        """An encoder for which "b c" is one word, whatever the list of alternatives says."""
        class Odd(FakeEncoder):
            PATTERN = re.compile(r"b c|.", re.S)
        text = "a b c " * 200
        encoder = Odd()
        source = Source(self.put("t.txt", text)).open()
        parts = [t for _, t in pieces(source, encoder.cutter, None, 16)]
        source.close()
        self.assertGreater(len(parts), 20)
        self.assertFalse([p for p in parts if p.endswith("b")])

    def test_which_tokenizers_allow_it(self):
        level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}

        def spec(**changes):
            full = {"model": {"type": "BPE"}, "normalizer": None, "added_tokens": [{"content": "<|x|>", "special": True}],
                    "pre_tokenizer": dict(level, use_regex=True)}
            return dict(full, **changes)

        def split(pattern, **changes):
            part = dict({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}, **changes)
            return {"type": "Sequence", "pretokenizers": [part, level]}
        qwen = LLAMA3.replace("{1,3}", "")
        for good in (spec(), spec(pre_tokenizer=split(LLAMA3)), spec(pre_tokenizer=split(qwen), normalizer={"type": "NFC"}),
                     spec(pre_tokenizer=split(O200K)), spec(pre_tokenizer=split(LLAMA3, behavior="Removed", invert=True)),
                     spec(pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "Digits"}, dict(level, use_regex=True)]}),
                     spec(added_tokens=[{"content": "    ", "special": False}])):
            self.assertIsNone(why_whole(good, False), good)
        prepend = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}]}
        for bad in (spec(model={"type": "Unigram"}), spec(model={"type": "BPE", "dropout": 0.1}), spec(normalizer=prepend),
                    spec(pre_tokenizer=None), spec(pre_tokenizer=level), spec(pre_tokenizer={"type": "Metaspace"}),
                    spec(pre_tokenizer={"type": "ByteLevel", "add_prefix_space": True}), spec(pre_tokenizer=split(r"\w+ \w+|.")),
                    spec(pre_tokenizer=split(LLAMA3, behavior="MergedWithNext")),
                    spec(added_tokens=[{"content": "end of text", "special": False}]),
                    spec(added_tokens=[{"content": "x", "special": False, "rstrip": True}])):
            self.assertTrue(why_whole(bad, False), bad)
        marked = spec(added_tokens=[{"content": "<|the end|>", "special": True}])
        self.assertIsNone(why_whole(marked, False))
        self.assertIn("the end", why_whole(marked, True))
        self.assertEqual(split_alternatives(r"a|(b|c)|[d|(]|\||e"), ["a", "(b|c)", "[d|(]", r"\|", "e"])


class Documents(Case):
    def split(self, text, separator, size, cuts=True):
        source = Source(self.put("t.txt", text)).open()
        found = []
        for starts, part in pieces(source, FakeEncoder().cutter if cuts else None, separator, size):
            if starts:
                found.append("")
            found[-1] += part
        source.close()
        return found

    def test_separators_anywhere(self):
        end = "<|endoftext|>"
        stories = ["One upon a time.", " \n", "x" * 90 + " y", "", "日本語、です。" * 20, "<|endoftext", "|> last\n"]
        text = end.join(stories)
        wanted = [s for s in stories if s.strip()]
        for size in (1, 2, 3, 5, 13, 14, 64, 1000):
            for cuts in (True, False):
                self.assertEqual(self.split(text, end, size, cuts), wanted, size)
        far = "x y " * 40  # longer than the margin of a cut, and with places of its own
        self.assertEqual(self.split("a b" + far + "c d" * 60 + far + "e", far, 30), ["a b", "c d" * 60, "e"])
        self.assertEqual(self.split("a\n\n\nb\n\n", "\n\n", 1), ["a", "\nb"])
        self.assertEqual(self.split(" \n\t ", None, 2), [])

    def test_each_begins_with_the_token(self):
        encoder = FakeEncoder()
        _, tokens, side = self.stream([self.put("a.txt", "one|two words||three"), self.put("b.txt", "\n"), self.put("c.txt", "four")],
                                      encoder, separator="|", size=4)
        wanted = []
        for document in ("one", "two words", "three", "four"):
            wanted += [50256] + encoder.encode_batch([document])[0]
        self.assertEqual((tokens, side["documents"]), (wanted, 4))

    def test_which_token(self):
        def start(named=None, vocab=(), empty=(), configs=()):
            return find_start(named, {t: i for i, t in enumerate(vocab)}.get, list(empty), list(configs))["token"]
        self.assertEqual(start("b", "abc"), "b")
        self.assertEqual(start(None, ["</s>", "<s>"], [("<s>", 1)]), "<s>")  # LLaMA: what goes before a text
        self.assertEqual(start(None, ["</s>", "<|endoftext|>"], [], [{"eos_token": "</s>"}]), "<|endoftext|>")
        self.assertEqual(start(None, ["a", "b"], [], [{}, {"eos_token": {"content": "b"}}]), "b")
        self.assertEqual(start(None, ["a", "</s>"], [("x", 1), ("y", 2)], [{"eos_token": None}]), "</s>")
        with self.assertRaisesRegex(UsageError, "--eot TOKEN"):
            start(None, "abc")
        with self.assertRaisesRegex(UsageError, "--eot z"):
            start("z", "abc")


class Bytes(Case):
    def read(self, data, size, errors="strict"):
        source = Source(self.put("t.txt", data), errors).open()
        try:
            return "".join(iter(lambda: source.more(size), ""))
        finally:
            source.close()

    def test_characters_across_reads(self):
        text = "aé日🙂\r\nb" * 9
        for size in range(1, 12):
            self.assertEqual(self.read(text.encode(), size), text)
        self.assertEqual(self.read(b"\xef\xbb\xbfmarked", 1), "marked")

    def test_what_is_no_text_is_named(self):
        good = "aé日".encode() * 5
        for bad, offset in ((b"\xff", 30), (b"\xc3(", 30), (b"\xe6\x97", 30), (b"\x00", 30)):
            for size in (1, 2, 3, 7, 1000):
                with self.assertRaises(RunError) as caught:
                    self.read(good + bad, size)
                self.assertIn(f"at offset {offset}", str(caught.exception))
                self.assertIn("t.txt", str(caught.exception))
        self.assertEqual(self.read(good + b"\xff\x00z", 3, "replace"), good.decode() + "\ufffd\0z")
        self.assertEqual(self.read(good + b"\xe6\x97", 3, "replace"), good.decode() + "\ufffd")
        with self.assertRaisesRegex(RunError, "gzip -d"):
            self.read(b"\x1f\x8b\x08\x00", 100)
        with self.assertRaisesRegex(RunError, "iconv"):
            self.read("text".encode("utf-16"), 100)
        pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
        for data, says in ((b"\x28\xb5\x2f\xfd", "zstd -d"), (b"PAR1 text", "read_parquet"), (b"PK\x03\x04", "unzip"),
                           (b"%PDF-1.7", "pdftotext"), (pointer, "git lfs pull")):
            with self.assertRaisesRegex(RunError, says):
                self.read(data, 100)
        with self.assertRaisesRegex(RunError, "git lfs pull"):
            self.read(pointer, 100, "replace")
        self.put("m/tokenizer.json", pointer.decode())
        with self.assertRaisesRegex(UsageError, "tokenizer.json is a pointer of Git LFS"):
            Encoder(self.at("m"))

    def test_files_of_directories(self):
        for name in ("d/b.txt", "d/B.txt", "d/a.txt", "d/c.md"):
            self.put(name, "x")
        lone = self.put("z.md", "x")
        self.assertEqual([os.path.basename(f) for f in find_files([lone, self.at("d")])], ["z.md", "B.txt", "a.txt", "b.txt"])
        os.mkdir(self.at("empty"))
        for path, says in ((self.at("no"), "no such file"), (self.at("empty"), "no .txt"), ("/dev/null", "not a regular")):
            with self.assertRaisesRegex(UsageError, says):
                find_files([path])


@unittest.skipUnless(tokenizers, "the package tokenizers is not installed")
class Package(Case):
    """Tiny tokenizers, trained here, of each kind that there is."""

    def make(self, name, vocab_size=600, special=("<|endoftext|>",)):
        from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        t = Tokenizer(models.BPE())
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        if name == "gpt2":
            t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        elif name == "sentencepiece":
            t = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
            t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
            special = (*special, "<unk>", *(f"<0x{b:02X}>" for b in range(256)))
            alphabet = []
        else:
            pattern = {"llama3": LLAMA3, "qwen2": LLAMA3.replace("{1,3}", ""), "o200k": O200K}[name]
            t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), level])
            if name == "qwen2":
                t.normalizer = normalizers.NFC()
        trainer = trainers.BpeTrainer(vocab_size=vocab_size + len(special), special_tokens=list(special), initial_alphabet=alphabet,
                                      show_progress=False)
        t.train_from_iterator([text for _, text in tricky_texts()], trainer)
        path = self.at(f"{name}.json")
        t.save(path)
        return path

    def expected(self, path, text):
        t = tokenizers.Tokenizer.from_file(path)
        t.encode_special_tokens = True
        return [t.token_to_id("<|endoftext|>")] + t.encode(text, add_special_tokens=False).ids

    def test_pieces_give_the_tokens_of_the_whole(self):
        for name in ("gpt2", "llama3", "qwen2", "o200k", "sentencepiece"):
            path = self.make(name)
            encoder = Encoder(path, workers=2)
            self.assertEqual(encoder.cutter is None, name == "sentencepiece", encoder.why_whole)
            for about, text in tricky_texts():
                text = text + " <|endoftext|> written out"
                file = self.put("t.txt", text)
                for size in (1, 16, 200):
                    _, tokens, _ = self.stream([file], encoder, size=size, workers=2)
                    self.assertEqual(tokens, self.expected(path, text), f"{name}, {about}, pieces of {size}")

    def test_special_tokens_in_the_text(self):
        path = self.make("gpt2")
        file = self.put("t.txt", "a<|endoftext|>b")
        end = Encoder(path).start["id"]
        for special, count in ((False, 1), (True, 2)):
            _, tokens, _ = self.stream([file], Encoder(path, special=special))
            self.assertEqual(tokens.count(end), count)

    def test_both_forms_of_gpt2(self):
        path, folder = self.make("gpt2"), self.at("folder")
        os.mkdir(folder)
        tokenizers.Tokenizer.from_file(path).model.save(folder)
        self.assertEqual(sorted(find_tokenizer(folder)), ["merges.txt", "vocab.json"])
        one, two = Encoder(path), Encoder(folder)
        self.assertEqual((one.vocab_size, one.start, two.cutter is None), (two.vocab_size, two.start, False))
        for _, text in tricky_texts():
            self.assertEqual(one.encode_batch([text]), two.encode_batch([text]))
        with open(path, "rb") as f:
            self.assertEqual(one.files["tokenizer.json"]["sha256"], hashlib.sha256(f.read()).hexdigest())

    def test_the_command(self):
        path = self.make("llama3")
        self.put("t.txt", "a word\n" * 3000)
        p = subprocess.run([sys.executable, SCRIPT, "--tokenizer", path, self.at("t.txt"), "--out", self.at("t.bin")], capture_output=True,
                           text=True)
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertEqual(read_bin(self.at("t.bin"))[1], self.expected(path, "a word\n" * 3000))


if __name__ == "__main__":
    unittest.main()
