"""Continues one prompt with the weights of two runs (`starring generate`), of a star and a ring if possible. Equal weights generate the same
text."""
import json
import os
import subprocess

import cli
import regular

from .pages import SECTIONS
from .runs import RunError, cause

PROMPT, TOKENS, TEMPERATURE, SEED = "The ", 120, 0.5, 1
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
LIMIT_S = 600


class Continuation:
    """The text that one run's weights generated: its bytes, and how they are shown."""

    def __init__(self, run, document):
        self.label = run.label
        self.ids = document["ids"]
        self.text = visible(PROMPT + document["text"])


def visible(text):
    """The text with line ends as " | " and other unprintable characters as U+FFFD."""
    text = text.replace("\r\n", "\n").replace("\n", " | ")
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def writes_bytes(run):
    """Whether the run has weights whose tokens are bytes of text."""
    weights = os.path.join(run.directory, "weights")
    try:
        with regular.open_file(os.path.join(weights, "config.json"), limit=regular.WHOLE, encoding="utf-8") as f:
            vocabulary = json.load(f).get("vocab_size")
    except (OSError, ValueError, AttributeError):
        return False
    return isinstance(vocabulary, int) and 256 <= vocabulary <= 512 and not any(os.path.exists(os.path.join(weights, n)) for n in TOKENIZER_FILES)


def chosen(runs):
    """At most two of the runs that can generate text: ps:sync and zero:2, else a star and a ring, else the first two. Only first repeats count."""
    able = list({run.label: run for run in reversed(runs) if writes_bytes(run)}.values())[::-1]

    def first(*wanted):
        return next((run for want in wanted for run in able if want in (run.topology, run.kind)), None)

    pair = [first("ps:sync", "ps"), first("zero:2", "zero")]
    return pair if all(pair) else able[:2]


def generate(run, program):
    """One run's continuation; RunError with the program's error if there is none."""
    argv = [program, "generate", "--model", run.directory, "--prompt", PROMPT, "--tokens", str(TOKENS), "--temperature",
            str(TEMPERATURE), "--seed", str(SEED), "--threads", "1", "--json"]
    try:
        p = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, check=False,
                           preexec_fn=cli.dies_with_us())
    except (OSError, subprocess.TimeoutExpired) as e:
        raise RunError(f"{run.label}: its weights could not be asked for a sentence: {e}; build "
                       "the program with make, or name it with --program") from None
    if p.returncode != 0:
        raise RunError(f"{run.label}: no sentence from its weights: {cause(p.stderr.decode(errors='replace'))}")
    return Continuation(run, json.loads(p.stdout))


def continuations(runs, program):
    """[Continuation] of the chosen runs; empty when no run left weights whose tokens are bytes."""
    return [generate(run, program) for run in chosen(runs)]


def verdict(continued):
    """A sentence about two continuations; "" for one."""
    if len(continued) < 2:
        return ""
    a, b = continued
    if a.ids == b.ids:
        return f"{a.label} and {b.label} write the same sentence, byte for byte."
    at = next((i for i, (x, y) in enumerate(zip(a.ids, b.ids)) if x != y), min(len(a.ids), len(b.ids)))
    return f"{a.label} and {b.label} write different sentences, from byte {at + 1} on: their weights are not equal."


HOW = f"prompt \"{PROMPT}\", {TOKENS} bytes, temperature {TEMPERATURE}, seed {SEED}; \" | \" is a line end"


def as_text(continued):
    """The lines for the terminal; "" without continuations."""
    if not continued:
        return ""
    width = max(len(s.label) for s in continued)
    lines = [f"The weights speak ({HOW}):"] + [f"  {s.label:{width}}  {s.text}" for s in continued]
    return "\n".join(lines + ([verdict(continued)] if verdict(continued) else []))


def as_html(continued):
    """The section of the report; "" without continuations."""
    if not continued:
        return ""
    return SECTIONS.sample(HOW, verdict(continued), [(s.label, s.text) for s in continued])
