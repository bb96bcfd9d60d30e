#!/usr/bin/env python3
"""Checks the lab: runs every command of its pages and compares the output with the text. Or checks students' worksheets.

    experiments/lab_check.py [--program build/starring] [--keep DIR] [docs/lab.md docs/lab-answers.md ..]
    experiments/lab_check.py --answers SHEET [SHEET ..]

A page's commands are in its fenced blocks marked `console`. A line that begins with "$ " is a command; it continues after a
backslash at the end of a line, and on lines that begin with "> ". The lines below the command are the expected output. There
"..." matches any text, and a line with nothing else matches any lines; a run of blanks counts as one. A block marked `console
varies` is run and its exit status checked, but its output is not compared: its figures (mostly times) depend on the machine.
The last command of a block marked `console fails` must fail.

Every figure in the text around the blocks - a decimal fraction, a number of three digits or more, a percentage, a size -
must occur in a command or in the output of one whose figures do not vary. So each number on the page is measured.

The commands run in order, in a temporary directory that has the contents of the repository's root; nothing in the
repository's runs/ changes. Needs Python 3.9 and bash. Exit status: 0 all true; 1 something is not; 2 the command line is wrong.

A worksheet is a copy of docs/lab-worksheet.md with each answer after its "=>" or below it. Answers with a key in docs/lab-answers.md
are compared: numbers in their order, to 1%, with or without units; names of topologies in any order; yes or no.
Exit status: 0 all correct; 1 some are not; 2 the file is no worksheet.
"""
import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import cli

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGES = ["docs/lab.md", "docs/lab-answers.md"]
LINKED = ["experiments", "docs", "README.md"]
COMMAND_SECONDS = 300
KINDS = ("", "varies", "fails")
FIGURE = re.compile(r"(?<![\w.,/:-])-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?(?![\w/:]|\.\d)")
UNIT = re.compile(r"\s*(?:%|MiB|GiB|KiB|MB|bytes\b|per cent)")


class Command:
    """One command of a page: its text, its expected output, its page and line."""

    def __init__(self, page, line, kind, text):
        self.page, self.line, self.kind, self.text = page, line, kind, text
        self.expected, self.last = [], False

    def place(self):
        return f"{self.page}:{self.line}"


def read_block(page, start, kind, lines):
    """The commands of one block; `start` is the line number of its first line."""
    commands, at = [], 0
    while at < len(lines):
        line = lines[at]
        if line.startswith("$ "):
            text, first = line[2:], at
            while at + 1 < len(lines) and (text.endswith("\\") or lines[at + 1].startswith("> ")):
                at += 1
                text += "\n" + (lines[at][2:] if lines[at].startswith("> ") else lines[at])
            commands.append(Command(page, start + first, kind, text))
        elif commands:
            commands[-1].expected.append(line)
        elif line.strip():
            raise ValueError(f"{page}:{start + at}: output without a command above it: {line}")
        at += 1
    if not commands:
        raise ValueError(f"{page}:{start}: a console block without a command (they begin with \"$ \")")
    commands[-1].last = True
    return commands


def read_page(page, text):
    """(commands, prose): prose is a list of (line number, text) of the lines outside all blocks."""
    commands, prose, lines, at = [], [], text.splitlines(), 0
    while at < len(lines):
        fence = re.match(r"\s*```(.*)$", lines[at])
        if not fence:
            prose.append((at + 1, lines[at]))
            at += 1
            continue
        words, first = fence.group(1).split(), at + 1
        at = first
        while at < len(lines) and lines[at].strip() != "```":
            at += 1
        if at == len(lines):
            raise ValueError(f"{page}:{first}: this block is never closed")
        if words[:1] == ["console"]:
            kind = " ".join(words[1:])
            if kind not in KINDS:
                raise ValueError(f"{page}:{first}: console {kind}: expected console, console varies or console fails")
            commands += read_block(page, first + 1, kind, lines[first:at])
        at += 1
    return commands, prose


def squeeze(line):
    return re.sub(r"\s+", " ", line).strip()


def difference(expected, actual):
    """None if the lines `actual` match `expected`, else a sentence on the first that does not."""
    expected, actual = [e for e in expected if e.strip()], [a for a in actual if a.strip()]
    at, skipping = 0, False
    for want in expected:
        if want.strip() == "...":
            skipping = True
            continue
        found = next((i for i in range(at, len(actual)) if re.fullmatch(".*".join(map(re.escape, squeeze(want).split("..."))), squeeze(actual[i]))), None)
        if found is None or (found > at and not skipping):
            got = actual[at] if at < len(actual) and not skipping else None
            return f"the page says\n      {want}\n    and the command printed " + (
                f"\n      {got}" if got is not None else "no such line")
        at, skipping = found + 1, False
    if at < len(actual) and not skipping:
        return f"the command printed more than the page says:\n      {actual[at]}"
    return None


def plain(number):
    """The figure without thousands separators, so that 1,048,576 equals 1048576. Zeros at the end stay: 1.50 claims more than 1.5."""
    return number.replace(",", "").lstrip("-")


def is_figure(number, rest):
    """Whether a number of the text is a result; those in "exercise 2" and "4 workers" are not."""
    digits = plain(number)
    return "." in digits or "e" in digits or len(digits) >= 3 or UNIT.match(rest) is not None


def unfounded(prose, sources):
    """(line number, figure) of each figure of the text that occurs in none of the sources."""
    known = {plain(number) for text in sources for number in re.findall(r"\d[\d,]*(?:\.\d+)?(?:e-?\d+)?", text)}
    wrong = []
    for line, text in prose:
        text = re.sub(r"`[^`]*`|\]\([^)]*\)|<[^>]*>", " ", text)  # code and the targets of links claim nothing
        for match in FIGURE.finditer(text):
            if is_figure(match.group(), text[match.end():]) and plain(match.group().rstrip(",")) not in known:
                wrong.append((line, match.group()))
    return wrong


def prepare(directory, program):
    """Fills the directory in which the commands run with links to the repository's files and to the program. The commands make their own runs/."""
    for name in LINKED:
        if os.path.exists(os.path.join(ROOT, name)):
            os.symlink(os.path.join(ROOT, name), os.path.join(directory, name))
    os.mkdir(os.path.join(directory, "build"))
    os.symlink(os.path.abspath(program), os.path.join(directory, "build", "starring"))


def run(command, directory):
    """(output, exit status) of one command; the output has both streams, as on a terminal. Status None: it reached the time limit and was killed."""
    env = dict(os.environ, LC_ALL="C.UTF-8", COLUMNS="100")
    child = subprocess.Popen(["bash", "-c", command.text], cwd=directory, env=env, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        output, _ = child.communicate(timeout=COMMAND_SECONDS)
        status = child.returncode
    except BaseException as stop:  # the timeout or a Ctrl-C: the command and its children must end too
        os.killpg(child.pid, signal.SIGKILL)
        output, _ = child.communicate()
        status = None
        if not isinstance(stop, subprocess.TimeoutExpired):
            raise
    return output.decode("utf-8", "replace"), status


def judge(command, output, status):
    """None if the command did what the page says, else a sentence on the difference."""
    must_fail = command.kind == "fails" and command.last
    if status is None:
        return f"still running after {COMMAND_SECONDS} s"
    if (status != 0) != must_fail:
        tail = "\n      ".join(output.splitlines()[-12:])
        return f"exit status {status}, expected {'another than 0' if must_fail else '0'}:\n      {tail}"
    if command.kind == "varies":
        return None
    return difference(command.expected, output.splitlines())


def check(pages, program, directory):
    """Runs the pages' commands and prints each command and each false statement. Returns the number of false statements."""
    wrong, sources, proses = 0, [], []
    for page in pages:
        with open(page, encoding="utf-8") as f:
            commands, prose = read_page(os.path.relpath(page, ROOT), f.read())
        proses.append((os.path.relpath(page, ROOT), prose))
        for command in commands:
            began = time.monotonic()
            output, status = run(command, directory)
            trouble = judge(command, output, status)
            print(f"{'FALSE' if trouble else 'ok   '} {command.place()}  ({time.monotonic() - began:.1f} s)  "
                  f"{command.text.splitlines()[0][:90]}", flush=True)
            if trouble:
                print("    " + trouble, flush=True)
                wrong += 1
            sources.append(command.text)
            if command.kind != "varies":
                sources.append(output)
    for page, prose in proses:
        for line, figure in unfounded(prose, sources):
            print(f"FALSE {page}:{line}  {figure} is in no command's output")
            wrong += 1
    return wrong


# An answer follows "=>" on its line or, if nothing does, is on the lines below, up to the next question.
QUESTION = r"^[^\w\n]*(\d+\.\d+)\b[^\n]*?=>"
ANSWER = re.compile(QUESTION + rf"(.*?)(?={QUESTION.replace('(', '(?:', 1)}|^#|\Z)", re.M | re.S)
KEY = re.compile(r"^\| `(\d+\.\d+)` \| ([^|]+) \|$", re.M)
NUMBER = re.compile(r"(?<![\w:.])-?\d+(?:\.\d+)?")
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
OFF = 0.01  # the largest relative difference of a correct number


def answers_of(sheet):
    """{number of a question: the answer's text, "" if there is none}"""
    found = {}
    for question, text in ANSWER.findall(sheet):
        behind, *below = text.split("\n")
        found[question] = behind.strip() or ", ".join(line.strip() for line in below if line.strip())
    return found


def numbers(text):
    """All numbers in an answer, without their units; "none" and the like are 0, "two" is 2."""
    text = re.sub(r"\bnot at all\b|\bnone\b|\bnothing\b", "0", text)
    text = re.sub(rf"\b(?:{'|'.join(NAMES)})\b", lambda name: str(NAMES.index(name.group())), text)
    return [float(n) for n in NUMBER.findall(text)]


def topologies(text):
    """The set of topologies in an answer: "ZeRO 2 and 3" is {"zero:2", "zero:3"}."""
    named = re.findall(r"\b(zero|ps)[\s:_-]*([0-3]\b(?:[\s,/&+-]*(?:and\b)?[\s,/&+-]*[0-3]\b)*|a?sync\b)", text)
    return {f"{kind}:{one}" for kind, which in named for one in re.findall(r"[0-3]|a?sync", which)}


def readings(key, answer):
    """The values that the answer may mean, in the form of the key; [] if it has another form."""
    answer = answer.lower()
    if key in ("yes", "no"):
        return [{word[0]} for word in re.findall(r"\b(?:yes|no|y|n)\b", answer)[:1]]
    if ":" in key:
        return [topologies(answer)] if topologies(answer) else []
    # The answer is read in several ways: whole; after the last "="; without remarks in brackets; without labels, as N=2 in
    # "N=2: 5.44". A comma between digits may be a decimal comma (43,54) or separate two numbers (8,6).
    texts = (answer, answer.split("=")[-1], re.sub(r"\([^)]*\)", " ", answer), re.sub(r"\b[a-z] *= *\d+\b *:?", " ", answer))
    found = [numbers(text) for one in texts for text in (one, re.sub(r"(?<=\d),(?=\d)", ".", one))]
    return [one for one in found if len(one) == len(numbers(key))]


def is_right(key, answer):
    want = readings(key, key)[0]
    return any(want == got if isinstance(want, set) else all(abs(a - b) <= OFF * abs(a) for a, b in zip(want, got))
               for got in readings(key, answer))


def form(key):
    """The form of an answer, in words."""
    count = len(numbers(key))
    return ("yes or no" if key in ("yes", "no") else "names of topologies, as zero:0" if ":" in key else
            "one number" if count == 1 else f"{count} numbers, in the order of the question")


def in_words(e):
    return f"{e.filename}: {e.strerror}" if isinstance(e, OSError) and e.filename else str(e)


def look_through(path, key):
    """Checks a worksheet and prints each wrong answer. Returns the exit status: 0 all answers with a key are correct, 1 some are not, 2 no worksheet."""
    try:
        return judge_sheet(path, key)
    except (OSError, ValueError) as e:
        print(f"lab_check.py: {'' if path in str(e) else path + ': '}{in_words(e)}", file=sys.stderr)
        return 2


def judge_sheet(path, key):
    with open(path, encoding="utf-8") as f:
        answers = answers_of(f.read())
    if not set(key) <= set(answers):
        raise ValueError(f"{path}: no line {sorted(set(key) - set(answers))[0]}: is it a copy of docs/lab-worksheet.md?")
    free = [line for line in answers if line not in key]
    right = [line for line in key if is_right(key[line], answers[line])]
    print(f"{path}: {len(right)} of {len(key)} correct; {sum(answers[line] != '' for line in free)} of {len(free)} others answered")
    for line in key:
        if line not in right:
            print(f"  {line}  " + (f"wrong: {answers[line]}" if answers[line] else "empty")
                  + ("" if readings(key[line], answers[line]) else f" (expected: {form(key[line])})"))
    return int(len(right) < len(key))


def main(argv=None):
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--program", default=os.environ.get("STARRING", os.path.join(ROOT, "build", "starring")))
    ap.add_argument("--keep", metavar="DIR", help="run in this new directory and keep it")
    ap.add_argument("--answers", metavar="SHEET", nargs="+", help="check these worksheets; run nothing")
    ap.add_argument("pages", nargs="*", default=[os.path.join(ROOT, page) for page in PAGES])
    args = ap.parse_args(argv)
    if args.answers:
        try:
            with open(os.path.join(ROOT, "docs", "lab-answers.md"), encoding="utf-8") as f:
                key = dict(KEY.findall(f.read()))
        except OSError as e:
            print(f"lab_check.py: {in_words(e)}", file=sys.stderr)
            return 2
        return max([look_through(path, key) for path in args.answers])
    if not os.access(args.program, os.X_OK):
        ap.error(f"{args.program} does not exist: run make first, or name the program with --program")
    directory = args.keep or tempfile.mkdtemp(prefix="starring-lab-")
    try:
        if args.keep:
            os.makedirs(args.keep)
        prepare(directory, args.program)
        wrong = check(args.pages, args.program, directory)
    except (OSError, ValueError) as e:
        print(f"lab_check.py: {in_words(e)}", file=sys.stderr)
        return 2
    finally:
        if not args.keep:
            shutil.rmtree(directory, ignore_errors=True)
    print(f"{wrong} false" if wrong else "all true")
    return 1 if wrong else 0


if __name__ == "__main__":
    cli.run(main)
