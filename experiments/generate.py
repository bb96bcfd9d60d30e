#!/usr/bin/env python3
"""Continues a text with a model that has a tokenizer: encodes the prompt with the model's tokenizer.json, lets
`starring generate --prompt-ids` write token ids, and decodes them as they come.

    experiments/generate.py --model gpt2/ --prompt "Hello," --tokens 40
    experiments/generate.py --model runs/mine --prompt "Once" --temperature 0 --json

All other options are passed to `starring generate` unchanged (see its --help). Models whose tokens are bytes
need no tokenizer: `starring generate --prompt`. Needs Python 3.9 and the package `tokenizers` (pip install
tokenizers). Exit status: that of starring; 2 for a wrong command line, 1 for a tokenizer that cannot be read.
"""
import argparse
import json
import os
import subprocess
import sys

import cli
from program import built

PROMPT_MOST = 16 << 20  # bytes: the limit of `starring generate` too
UNFINISHED = "\ufffd"  # a decoder writes this for a character of which only the first bytes have arrived


class Problem(Exception):
    """An error. The text says what is wrong and what to do."""
    status = 1


class UsageProblem(Problem):
    """The command line, or what it names, is wrong."""
    status = 2


def parse(argv):
    """Returns (this script's options, the arguments that `starring generate` gets)."""
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                 allow_abbrev=False)
    ap.add_argument("--model", required=True, metavar="DIR", help="run directory, or Hugging Face directory")
    ap.add_argument("--prompt", required=True, metavar="TEXT", help="the text to continue; -: standard input")
    ap.add_argument("--tokenizer", metavar="DIR|FILE", help="default: tokenizer.json in the folder of the weights")
    ap.add_argument("--program", default=built(),
                    help="default %(default)s")
    ap.add_argument("--json", action="store_true", help="print one JSON document, with the texts decoded")
    args, rest = ap.parse_known_args(argv)
    if any(word.split("=")[0] == "--prompt-ids" for word in rest):
        ap.error("--prompt-ids needs no tokenizer: use `starring generate`")
    return args, rest


def read_prompt(word):
    """The prompt's text, from the option or standard input. It is UTF-8 in every locale."""
    if word != "-":
        data, source = os.fsencode(word), "--prompt"
    elif sys.stdin is None:
        raise UsageProblem("--prompt -: standard input is closed")
    else:
        data, source = sys.stdin.buffer.read(PROMPT_MOST + 1), "--prompt -"
        if len(data) > PROMPT_MOST:
            raise Problem(f"--prompt -: standard input has more than {PROMPT_MOST} bytes: give only its end, for example with tail -c 4096")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as e:
        raise UsageProblem(f"{source}: byte 0x{data[e.start]:02x} at offset {e.start} is not UTF-8") from None


def tokenizer_places(args):
    """Paths of the tokenizer, in the order in which they are tried."""
    if args.tokenizer:
        return [os.path.join(args.tokenizer, "tokenizer.json") if os.path.isdir(args.tokenizer) else args.tokenizer]
    return [os.path.join(args.model, "tokenizer.json"), os.path.join(args.model, "weights", "tokenizer.json")]


def encode(tokenizer, prompt):
    try:
        ids = list(tokenizer.encode(prompt).ids)
    except Exception as e:  # for example, an unknown character, and a model without a token for it
        raise Problem(f"--prompt: the package tokenizers cannot encode it: {e}") from None
    if not ids:
        raise UsageProblem("--prompt: is empty; at least one token is needed to continue from")
    return ids


def load_tokenizer(args):
    """The tokenizer of the model's directory, or of the run's weights."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise Problem("the Python package tokenizers is missing: pip install tokenizers, or give token ids to "
                      "`starring generate --prompt-ids`") from None
    places = tokenizer_places(args)
    found = next((path for path in places if os.path.isfile(path)), None)
    if not found:
        raise Problem(f"no tokenizer: there is no {' and no '.join(places)}; name one with --tokenizer FILE, or, where the "
                      "model's tokens are bytes, use `starring generate --prompt`")
    try:
        return Tokenizer.from_file(found)
    except Exception as e:  # the package raises no narrower type
        raise Problem(f"{found}: no tokenizer that the package tokenizers reads: {e}") from None


class Decoder:
    """Turns ids into text as they arrive. A token may be only some bytes of a character, and a decoder may put blanks between tokens.
    So each call decodes all ids and returns the text that is new."""

    def __init__(self, tokenizer, prompt_ids):
        self.tokenizer = tokenizer
        self.ids = list(prompt_ids)
        self.done = len(tokenizer.decode(self.ids))

    def add(self, token, last=False):
        """The text that this token adds; "" while its last character is incomplete."""
        self.ids += [] if token is None else [token]
        text = self.tokenizer.decode(self.ids)
        if text.endswith(UNFINISHED) and not last:
            return ""
        new, self.done = text[self.done:], max(self.done, len(text))
        return new


def words_of(stream):
    """Yields each word of a stream as soon as its last byte has arrived."""
    word = b""
    for byte in iter(lambda: stream.read(1), b""):
        if byte.isspace():
            if word:
                yield word
            word = b""
        else:
            word += byte
    if word:
        yield word


def command_of(args, rest):
    """The program's command line. It reads the ids from standard input: a long prompt exceeds the limit of an argument."""
    return [args.program, "generate", "--model", args.model, "--prompt-ids", "-"] + rest + (["--json"] if args.json else [])


def start(args, rest, ids):
    """Starts the program and writes the prompt's ids to it."""
    try:
        p = subprocess.Popen(command_of(args, rest), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    except OSError as e:
        raise Problem(f"cannot start {args.program}: {e.strerror}; build it with make, or name it with --program") from None
    try:
        p.stdin.write(",".join(map(str, ids)).encode())
        p.stdin.close()
    except BrokenPipeError:
        pass  # the program has ended, and has printed why
    return p


def stream(p, prompt, decoder, count, out):
    """Writes prompt and continuation. The program's first `count` words are the prompt's ids, which are skipped."""
    shown = False
    for i, word in enumerate(words_of(p.stdout)):
        if i < count:
            continue
        out.write(decoder.add(int(word)) if shown else prompt + decoder.add(int(word)))
        out.flush()
        shown = True
    if shown:
        out.write(decoder.add(None, last=True) + "\n")
        out.flush()


def document(p, prompt, decoder, out):
    """Writes the program's JSON document with `prompt` and `text` decoded."""
    text = p.stdout.read()
    if not text:
        return
    result = json.loads(text)
    result["prompt"] = prompt
    result["text"] = "".join(decoder.add(token) for token in result["ids"]) + decoder.add(None, last=True)
    result["vocabulary"] = "tokenizer"
    out.write(json.dumps(result, ensure_ascii=False, indent=2) + "\n")
    out.flush()


def translate(args, rest):
    """Encodes the prompt, runs the program, and decodes its ids. Returns the program's exit status."""
    if not os.path.isdir(args.model):
        raise UsageProblem(f"--model {args.model}: no such directory")
    tokenizer = load_tokenizer(args)
    prompt = read_prompt(args.prompt)
    ids = encode(tokenizer, prompt)
    decoder = Decoder(tokenizer, ids)
    p = start(args, rest, ids)
    try:
        if args.json:
            document(p, prompt, decoder, sys.stdout)
        else:
            stream(p, prompt, decoder, len(ids), sys.stdout)
    except BaseException:  # a closed pipe, or Ctrl-C: the program must end as well
        p.terminate()
        raise
    finally:
        status = p.wait()
    return status if status >= 0 else 128 - status


def main(argv=None):
    args, rest = parse(sys.argv[1:] if argv is None else argv)
    sys.stdout.reconfigure(encoding="utf-8")
    try:
        return translate(args, rest)
    except Problem as problem:
        print(f"generate.py: {problem}", file=sys.stderr)
        return problem.status


if __name__ == "__main__":
    cli.run(main)
