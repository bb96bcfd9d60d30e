#!/usr/bin/env python3
"""Turns text into the tokens of a model: llm.c's .bin file, which `starring train --data` reads.

examples:
  tokenize.py --tokenizer ./gpt2 shakespeare.txt --out shakespeare.bin
  tokenize.py --tokenizer ./Qwen2.5-0.5B texts/ more.txt --out corpus.bin
  tokenize.py --tokenizer gpt2/tokenizer.json stories.txt --split '<|endoftext|>' --out stories.bin

The tokenizer is a tokenizer.json, or a Hugging Face directory that has one (or GPT-2's vocab.json and merges.txt).
A file is a document; --split parts files into more. As in llm.c's scripts each document begins with the token that
separates documents (<|endoftext|>, or what the tokenizer itself puts before a text, such as LLaMA's
<|begin_of_text|>), and special tokens that are written in the text count as the characters they are.

The tokens are those of each document encoded as a whole. Files are read in pieces, and the memory that is taken does not
grow with them where the tokenizer splits text as GPT-2, LLaMA 3, Qwen 2, GPT-4o or Mistral's Tekken do; others
(SentencePiece's, for one) take each document whole, and then it grows with the longest document.

Beside FILE.bin goes FILE.bin.json, which names the tokenizer, its SHA-256 and the sources; training compares it
with the model. Both appear when they are complete. Tokens are uint16 where the vocabulary allows it, else uint32.

Needs Python 3.9 and the package tokenizers (python3 -m pip install tokenizers). Exit status: 0 done; 1 a text is not UTF-8, the
disk is full and the like; 2 the command line is wrong or the package is missing; 130 Ctrl-C.
"""
import sys

if __name__ == "tokenize":
    # Every script in this folder has the folder first on its path, and so finds this file where the standard
    # library asks for its own module of the same name (linecache does, for tracebacks): give it that one.
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


MOST_WORKERS = 256  # a hundred thousand threads keep the machine busy with waking each other, and no signal ends them


def parse(argv):
    ap = argparse.ArgumentParser(prog="tokenize.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                 allow_abbrev=False)
    ap.add_argument("texts", nargs="+", metavar="TEXT", help="UTF-8 text files, and directories of .txt files")
    ap.add_argument("--tokenizer", required=True, metavar="DIR|FILE", help="Hugging Face directory, or a tokenizer.json")
    ap.add_argument("--out", required=True, metavar="FILE.bin", help="the token file; FILE.bin.json goes beside it")
    ap.add_argument("--split", metavar="TEXT", help="ends a document wherever it stands in a file, and belongs to none; "
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
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # as Ctrl-C: nothing half stays
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
