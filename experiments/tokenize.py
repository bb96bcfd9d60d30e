#!/usr/bin/env python3
"""Turns text into the tokens of a model: llm.c's .bin file, which `starring train --data` reads.

examples:
  tokenize.py --tokenizer ./gpt2 shakespeare.txt --out shakespeare.bin
  tokenize.py --tokenizer ./Qwen2.5-0.5B texts/ more.txt --out corpus.bin
  tokenize.py --tokenizer gpt2/tokenizer.json stories.txt --split '<|endoftext|>' --out stories.bin

The tokenizer is a tokenizer.json, or a Hugging Face directory that has one (or GPT-2's vocab.json and merges.txt).
A file is a document; --split divides files into several. As in llm.c's scripts each document begins with the token that
separates documents (<|endoftext|>, or the one that the tokenizer itself puts before a text, such as LLaMA's
<|begin_of_text|>), and special tokens that are written in the text are treated as ordinary characters.

The tokens are those of each document encoded as a whole. If the tokenizer splits text as those of GPT-2, LLaMA 3, Qwen 2,
GPT-4o or Mistral's Tekken do, files are read in pieces, and the memory does not grow with them. Other tokenizers (such as
SentencePiece's) encode each document at once, and the memory grows with the longest document.

FILE.bin.json, in the same directory, names the tokenizer, its SHA-256 and the sources; training compares it with the
model. Both files appear only when they are complete. Tokens are uint16 if the vocabulary allows it, else uint32.

Needs Python 3.9 and the package tokenizers (python3 -m pip install tokenizers). Exit status: 0 done; 1 a text is not UTF-8, the
disk is full and the like; 2 the command line is wrong or the package is missing; 130 Ctrl-C.
"""
import sys

if __name__ == "tokenize":
    # This folder is the first on the path of every script in it. So the standard library finds this file when it imports its own
    # module `tokenize` (linecache does, for tracebacks). In that case, load the standard module instead.
    import importlib.util
    import os
    _spec = importlib.util.spec_from_file_location("tokenize", os.path.join(os.path.dirname(os.__file__), "tokenize.py"))
    sys.modules["tokenize"] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules["tokenize"])

import argparse
import os
import signal
import time

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))


MOST_WORKERS = 256  # with a hundred thousand threads the machine only switches between them, and no signal ends them


def parse(argv):
    ap = argparse.ArgumentParser(prog="tokenize.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                 allow_abbrev=False)
    ap.add_argument("texts", nargs="+", metavar="TEXT", help="UTF-8 text files, and directories of .txt files")
    ap.add_argument("--tokenizer", required=True, metavar="DIR|FILE", help="Hugging Face directory, or a tokenizer.json")
    ap.add_argument("--out", required=True, metavar="FILE.bin", help="the token file; FILE.bin.json is written next to it")
    ap.add_argument("--split", metavar="TEXT", help="this text ends a document wherever it occurs, and belongs to no document; "
                    r"\n, \t and \\ are a line feed, a tab and a backslash ('\n\n': paragraphs)")
    ap.add_argument("--eot", metavar="TOKEN", help="the token that starts each document")
    ap.add_argument("--special", action="store_true", help="special tokens that are written in the text, such as <|im_start|>, "
                    "become those tokens")
    ap.add_argument("--errors", choices=["strict", "replace"], default="strict", help="bytes that are not UTF-8 end the work with "
                    "file and offset (strict, the default) or become U+FFFD")
    ap.add_argument("--workers", type=int, default=None, metavar="N", help="threads (default: every core)")
    ap.add_argument("--force", action="store_true", help="replace FILE.bin")
    args = ap.parse_args(argv)
    if args.workers is not None and not 1 <= args.workers <= MOST_WORKERS:
        ap.error(f"--workers {args.workers}: expected 1 to {MOST_WORKERS} threads")
    if args.split == "":
        ap.error("--split: a text that is not empty")
    return args


def unescape(text):
    return text.replace("\\\\", "\0").replace("\\n", "\n").replace("\\t", "\t").replace("\0", "\\") if text else None


def check_out(args, files):
    from tokens import UsageError
    if os.path.isfile(args.out) and not args.force:
        raise UsageError(f"{args.out} is there already: --force replaces it")
    if not args.out or os.path.exists(args.out) and not os.path.isfile(args.out) or not os.path.isdir(os.path.dirname(args.out) or "."):
        raise UsageError(f"--out {args.out}: name a file in a directory that exists")
    if os.path.realpath(args.out) in {os.path.realpath(f) for f in files}:
        raise UsageError(f"--out {args.out} is one of the texts")


def tokenize(args):
    from tokens.binfile import BinWriter, sidecar
    from tokens.encoder import Encoder
    from tokens.stream import Progress, run
    from tokens.text import Source, find_files
    from tokens import RunError
    files = find_files(args.texts)
    check_out(args, files)
    workers = args.workers or len(os.sched_getaffinity(0))
    encoder = Encoder(args.tokenizer, args.eot, args.special, workers)
    sources = [Source(f, args.errors) for f in files]
    progress = Progress(sys.stderr if sys.stderr.isatty() else None, sum(os.path.getsize(f) for f in files))
    if encoder.why_whole and max(os.path.getsize(f) for f in files) > 1 << 26:
        say(f"{encoder.name}: documents are taken whole, and memory grows with the longest, because {encoder.why_whole}")
    began = time.monotonic()
    writer = BinWriter(args.out, encoder.vocab_size)
    try:
        documents = run(sources, encoder, writer, unescape(args.split), workers, progress)
        progress.clear()
        if not documents:
            raise RunError(f"{', '.join(args.texts)}: no text but white space")
        writer.finish(sidecar(encoder, writer, sources, documents))
    finally:
        writer.discard()
    seconds, size = time.monotonic() - began, sum(s.bytes for s in sources)
    print(f"{args.out}: {writer.tokens:,} tokens (uint{8 * writer.width}, {encoder.name}), {documents:,} "
          f"document{'s' * (documents != 1)} after {encoder.start['token']}, {size / writer.tokens:.2f} bytes per token, "
          f"{seconds:.1f} s")


def say(text):
    print(f"tokenize.py: {text}", file=sys.stderr)


def main(argv=None):
    from tokens import RunError, UsageError
    args = parse(argv)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # as after Ctrl-C: no incomplete file is left
    try:
        tokenize(args)
    except UsageError as e:
        say(f"error: {e}")
        return 2
    except RunError as e:
        say(f"error: {e}")
        return 1
    return 0


if __name__ == "__main__":
    import cli
    cli.run(main, "Ctrl-C: nothing was written")
