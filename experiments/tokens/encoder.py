"""A Hugging Face tokenizer, by the package `tokenizers`.

The rest of the program asks an encoder for no more than this, which a test can stand in for:
    encode_batch(texts) -> a list of token ids for each text, without special tokens around them
    cutter              a Cutter, or None: documents are encoded whole
    vocab_size, name, kind, files, start
"""
import hashlib
import json
import os
import re
import unicodedata

import regular

from . import RunError, UsageError
from .text import POINTER, kind_of, printable

# ------------------------------------------------------------------- where text may be cut
#
# A pre-tokenizer splits text into words before the merges of BPE, and no merge crosses a border between words. A text may be cut
# between a letter and a following character of AFTER, since the alternatives of the list below always make a border there:
# none of them matches a letter together with a character of AFTER, none looks behind, and the only one that looks ahead
# matches white space. So both sides, encoded separately, give the same tokens as the whole.
AFTER = " \n\u3002\uff0c\u3001\uff01\uff1f\uff1b\uff1a"  # space, line feed, and the East Asian full stop, commas, !, ?, ; and :
CANDIDATE = re.compile(f"[^\\W\\d_](?=[{AFTER}])")
TRIES = 64  # positions that one search tries; after that the caller reads more text

ALTERNATIVES = {
    # GPT-2
    r"'s", r"'t", r"'re", r"'ve", r"'m", r"'ll", r"'d", r" ?\p{L}+", r" ?\p{N}+", r" ?[^\s\p{L}\p{N}]+", r"\s+(?!\S)", r"\s+",
    # GPT-4's cl100k, LLaMA 3, Qwen 2
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"'(?i:[sdmt]|ll|ve|re)", r"[^\r\n\p{L}\p{N}]?\p{L}+", r"[^\r\n\p{L}\p{N}]?+\p{L}+",
    r"\p{N}", r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}]++[\r\n]*", r"\s*[\r\n]", r"\s*[\r\n]+",
    # GPT-4o's o200k, Mistral's Tekken
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
}
# These normalizers change single characters, or join marks to letters. No mark is in AFTER, so a cut before AFTER changes nothing.
NORMALIZERS = {"NFC", "NFD", "NFKC", "NFKD"}


def split_alternatives(pattern):
    """Splits a regular expression at each | that is outside of parentheses and brackets."""
    parts, depth, in_class, at = [""], 0, False, 0
    while at < len(pattern):
        c = pattern[at]
        step = 2 if c == "\\" else 1
        if step == 1:
            depth += 0 if in_class else {"(": 1, ")": -1}.get(c, 0)
            in_class = c == "[" or (in_class and c != "]")
        if c == "|" and not depth and not in_class:
            parts.append("")
        else:
            parts[-1] += pattern[at:at + step]
        at += step
    return parts


def stages(part, key):
    """A normalizer or pre-tokenizer as a list: the elements of a Sequence, a single one, or []."""
    if not part:
        return []
    return part.get(key, []) if part.get("type") == "Sequence" else [part]


def why_whole(spec, special):
    """None if documents may be cut at the positions that Cutter finds, else why not. spec: a tokenizer.json as a dictionary."""
    model = spec.get("model") or {}
    if model.get("type") != "BPE" or model.get("dropout"):
        return f"its model is {model.get('type')}" + (" with dropout" if model.get("dropout") else "")
    for n in stages(spec.get("normalizer"), "normalizers"):
        if n.get("type") not in NORMALIZERS:
            return f"its normalizer {n.get('type')} may see where a text begins"
    border = False
    for p in stages(spec.get("pre_tokenizer"), "pretokenizers"):
        kind = p.get("type")
        if kind == "ByteLevel" and not p.get("add_prefix_space", True):
            border |= p.get("use_regex", True)
        elif kind == "Split":
            pattern = (p.get("pattern") or {}).get("Regex", "")
            isolates = (p.get("behavior"), bool(p.get("invert"))) in (("Isolated", False), ("Removed", True))
            if not isolates or not set(split_alternatives(pattern)) <= ALTERNATIVES:
                return "it splits text by an expression that is not known here"
            border = True
        elif kind != "Digits":
            return f"its pre-tokenizer {kind} may split the same text differently in different places"
    if not border:
        return "it does not split text at words"
    for t in spec.get("added_tokens") or []:
        if t.get("special") and not special:
            continue  # in the text it is treated as ordinary characters
        if t.get("rstrip") or t.get("single_word") or CANDIDATE.search(t.get("content", "")):
            return f"its added token {t.get('content')!r} depends on the text around it"
    return None


class Cutter:
    """Finds positions at which a text may be cut. Each is also tested: the tokenizer encodes the text around it whole and cut. This detects
    a letter that the tokenizer's version of Unicode does not know."""

    AROUND = 64  # characters on each side

    def __init__(self, encode_batch):
        self.encode_batch = encode_batch

    def find(self, text, first, last):
        """A position in [first, last) at which the text may be cut, or -1."""
        tries = 0
        for m in CANDIDATE.finditer(text, first - 1, last):
            at = m.end()
            if not first <= at < last or not m.group().isalpha() or not unicodedata.is_normalized("NFKC", m.group()):
                continue
            left, right = text[max(0, at - self.AROUND):at], text[at:at + self.AROUND]
            whole, one, two = self.encode_batch([left + right, left, right])
            if list(whole) == list(one) + list(two):
                return at
            tries += 1
            if tries == TRIES:
                break
        return -1


# ------------------------------------------------------------------- the token that starts a document
def token_text(entry):
    """The text of a token in tokenizer_config.json: "x" or {"content": "x"}; None for anything else."""
    if isinstance(entry, dict):
        entry = entry.get("content")
    return entry if isinstance(entry, str) else None


def find_start(named, token_to_id, empty, configs):
    """{"token": .., "id": ..} of the token before each document, as llm.c's scripts choose it.

    named: --eot, or None. empty: [(token, id), ..] that the tokenizer puts around an empty text. In order: --eot; the one token of
    `empty`, if it has exactly one, such as LLaMA's <|begin_of_text|> (llm.c's eot for llama-3); <|endoftext|>; the eos_token
    of the directory's configs (dictionaries, in order); the end-of-text tokens of other tokenizers.
    """
    if named is not None:
        if token_to_id(named) is None:
            raise UsageError(f"--eot {named}: the tokenizer has no such token")
        return {"token": named, "id": token_to_id(named)}
    if len(empty) == 1:
        return {"token": empty[0][0], "id": empty[0][1]}
    for token in ["<|endoftext|>", *(token_text(c.get("eos_token")) for c in configs), "<|end_of_text|>", "</s>", "<eos>"]:
        if token is not None and token_to_id(token) is not None:
            return {"token": token, "id": token_to_id(token)}
    raise UsageError("the tokenizer has no end-of-text token that is known here: name the token that starts each document "
                     "with --eot TOKEN")


# ------------------------------------------------------------------- files
def fingerprint(path):
    try:
        with regular.open_file(path, "rb", limit=regular.WHOLE) as f:
            data = f.read()
    except OSError as e:
        raise UsageError(f"{path}: {e.strerror}") from None
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def read_json(path):
    try:
        with regular.open_file(path, limit=regular.WHOLE, encoding="utf-8") as f:
            found = json.load(f)
    except OSError as e:
        raise UsageError(f"{path}: {e.strerror}") from None
    except ValueError as e:
        raise UsageError(f"{path}: {e}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{path}: holds no JSON object")
    return found


def find_tokenizer(path):
    """The tokenizer's files, {name: path}. path: a tokenizer.json, or a directory that has one, or has vocab.json and merges.txt."""
    if not os.path.exists(path):
        raise UsageError(f"--tokenizer {path}: no such file or directory")
    if not os.path.isdir(path):
        return {"tokenizer.json": path}
    there = {name: os.path.join(path, name) for name in ("tokenizer.json", "vocab.json", "merges.txt", "tokenizer.model")
             if os.path.exists(os.path.join(path, name))}
    if "tokenizer.json" in there:
        return {"tokenizer.json": there["tokenizer.json"]}
    save = (f"with the package transformers, AutoTokenizer.from_pretrained({path!r}).save_pretrained({path!r}) writes "
            "tokenizer.json")
    if "vocab.json" in there and "merges.txt" in there:
        kind = tokenizer_class(path)
        if kind not in (None, "GPT2Tokenizer", "GPT2TokenizerFast"):
            raise UsageError(f"--tokenizer {path}: vocab.json and merges.txt of a {kind} do not define how it splits text; {save}")
        return {"vocab.json": there["vocab.json"], "merges.txt": there["merges.txt"]}
    if "tokenizer.model" in there:
        raise UsageError(f"--tokenizer {path}: has only tokenizer.model; {save}")
    raise UsageError(f"--tokenizer {path}: the directory has no tokenizer.json, and not vocab.json with merges.txt")


def tokenizer_class(folder):
    path = os.path.join(folder, "tokenizer_config.json")
    return read_json(path).get("tokenizer_class") if os.path.exists(path) else None


def neighbours(folder):
    """The folder's tokenizer_config.json and special_tokens_map.json as dictionaries, if they exist."""
    paths = [os.path.join(folder, name) for name in ("tokenizer_config.json", "special_tokens_map.json")]
    return [read_json(p) for p in paths if os.path.exists(p)]


# ------------------------------------------------------------------- the package
def package(workers):
    """Imports the package `tokenizers`, with its number of threads set."""
    os.environ["RAYON_NUM_THREADS"] = str(workers)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    try:
        import tokenizers
    except ImportError as e:
        if e.name != "tokenizers":
            raise
        raise UsageError("the Python package tokenizers is missing: python3 -m pip install tokenizers (where the system manages "
                         "Python: python3 -m venv venv; venv/bin/pip install tokenizers; and run this with venv/bin/python)"
                         ) from None
    if not hasattr(tokenizers.Tokenizer, "encode_special_tokens"):
        raise UsageError(f"the Python package tokenizers {tokenizers.__version__} is too old: python3 -m pip install -U tokenizers")
    return tokenizers


def build(tokenizers, files):
    try:
        if "tokenizer.json" in files:
            return tokenizers.Tokenizer.from_file(files["tokenizer.json"])
        model = tokenizers.models.BPE.from_file(files["vocab.json"], files["merges.txt"])
    except Exception as e:  # the package raises no narrower type
        raise UsageError(f"{' and '.join(files.values())}: the package tokenizers cannot read it: {e}") from None
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    if tokenizer.token_to_id("<|endoftext|>") is not None:
        tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


def refuse_pointers(files):
    """Raises UsageError for a file that is a pointer of Git LFS (from a clone without git-lfs): the package would report wrong JSON."""
    for path in files.values():
        try:
            with regular.open_file(path, "rb") as f:
                head = f.read(len(POINTER))
        except OSError as e:
            raise UsageError(f"{path}: {e.strerror}") from None
        if head == POINTER:
            raise UsageError(f"{path} {kind_of(head)}")


class Encoder:
    """path: --tokenizer; eot: --eot or None; special: tokens like <|im_start|> in the text count as tokens."""

    def __init__(self, path, eot=None, special=False, workers=1):
        found = find_tokenizer(path)
        refuse_pointers(found)
        tokenizers = package(workers)
        self.tokenizer = build(tokenizers, found)
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.tokenizer.encode_special_tokens = not special
        spec = json.loads(self.tokenizer.to_str())
        if spec["model"].get("dropout"):
            self.tokenizer.model.dropout = None  # dropout is for training a tokenizer: with it each run would give other tokens
            spec["model"]["dropout"] = None
        self.name = printable(os.path.basename(os.path.abspath(path)))
        self.kind = spec["model"].get("type") or "BPE"
        self.files = {name: fingerprint(file) for name, file in found.items()}
        vocabulary = self.tokenizer.get_vocab(with_added_tokens=True)
        if not vocabulary:
            raise UsageError(f"{' and '.join(found.values())}: the tokenizer's vocabulary is empty")
        self.vocab_size = 1 + max(vocabulary.values())
        around = self.tokenizer.encode("")
        folder = path if os.path.isdir(path) else os.path.dirname(path) or "."
        self.start = find_start(eot, self.tokenizer.token_to_id, list(zip(around.tokens, around.ids)), neighbours(folder))
        self.why_whole = why_whole(spec, special)
        self.cutter = None if self.why_whole else Cutter(self.encode_batch)
        self.fast = getattr(self.tokenizer, "encode_batch_fast", self.tokenizer.encode_batch)

    def encode_batch(self, texts):
        try:
            return [e.ids for e in self.fast(texts, add_special_tokens=False)]
        except Exception as e:  # for example, an unknown character, and a model without a token for it
            raise RunError(f"{self.name}: the package tokenizers failed: {e}") from None
