#!/usr/bin/env python3
"""Draws the way from star to ring: memory and bytes of a machine at each stop, as the program predicts them.

    docs/way_plot.py

writes docs/star-way.svg, and the table of docs/star.md between its two marks. Each figure is of `starring train --dry-run --json`, of the machine
that has most; machines of workers stand apart from those of servers, and where a server lives beside each worker the two
are one machine. --check writes nothing: it compares, as the tests do. Exit status: 0 done; 1 --check found a difference, or the program
would not say; 2 the command line is wrong.
"""
import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.append(os.path.join(TOP, "experiments"))  # after the standard library, which has a module tokenize too
import cli  # noqa: E402
cli.needs("scipy", "jinja2")
from comparison.draw import svg
from comparison.draw.bars import Style, draw
from comparison.draw.style import PALETTE, PLOTS
from comparison.runs import CLASSES
from comparison.pages.figures import CLASS_WORDS
from program import built

PAGE, PICTURE = os.path.join("docs", "star.md"), os.path.join("docs", "star-way.svg")
MARKS = ("<!-- way: docs/way_plot.py writes what follows -->\n", "<!-- way: end -->\n")
N = 8
MODEL = ["--model", "llama-2-7b", "--data", "demo", "--dtype", "bf16", "--batch", "1", "--seq", "512", "--workers", str(N)]
GB, STATE = 1e9, [c for c in CLASSES if c not in ("activation", "workspace")]
WIDTH, HALF, ROW = 880, 430, 18


@dataclass(frozen=True)
class Stop:
    """A place on the way: its name, the words of its command, and what a worker keeps there."""
    name: str
    words: tuple
    keeps: str


STOPS = [
    Stop("S = 1", ("--topology", "ps:sync", "--servers", "1", "--medium", "tcp"), "weights and gradients"),
    Stop("S = N", ("--topology", "ps:sync", "--servers", str(N), "--medium", "tcp"), "weights and gradients"),
    Stop("on the workers", ("--topology", "ps:sync", "--servers-on", "workers", "--medium", "tcp"), "weights and gradients; beside it 1/N of the server's"),
    Stop("resident units", ("--topology", "ps:sync", "--servers-on", "workers", "--resident", "units", "--medium", "tcp"),
         "two slots; beside it 1/N of the server's"),
    Stop("zero:3", ("--topology", "zero:3", "--medium", "tcp"), "1/N of everything, and slots"),
]


@dataclass(frozen=True)
class Machine:
    """The memory of one machine {class: bytes}, and the bytes that it sends per step."""
    name: str
    memory: dict
    sent: int


def predicted(program, stop):
    """The document of --dry-run of a stop."""
    p = subprocess.run([program, "train", *MODEL, *stop.words, "--dry-run", "--json"], capture_output=True, text=True, timeout=120, check=False,
                       cwd=TOP)
    if p.returncode:
        raise RuntimeError(f"{stop.name}: {p.stderr.strip()}")
    return json.loads(p.stdout)


def machines(stop, said):
    """[Machine] of a stop, one for each kind: workers', servers', or both in one."""
    together = "--servers-on" in stop.words
    out = []
    for kind in (("worker", "server"),) if together else (("worker",), ("server",)):
        ranks = sorted({e["rank"] for e in said["memory"] if e["role"] in kind})
        found = []
        for rank in ranks:
            memory = {c: sum(e["predicted"].get(c, 0) for e in said["memory"] if e["role"] in kind and e["rank"] == rank) for c in STATE}
            found.append(Machine(" and ".join(kind), memory, sum(e["predicted_sent"] for e in said["wire"] if e["role"] in kind and e["rank"] == rank)))
        if found:
            most = max(found, key=lambda m: sum(m.memory.values()))
            out.append(Machine(most.name, most.memory, max(m.sent for m in found)))
    return out


def table(way):
    """The table of the page, as Markdown."""
    lines = ["| stop | `starring train` .. | on one machine | memory (GB) | sent a step (GB) |", "|---|---|---|---:|---:|"]
    for stop, found in way:
        for i, machine in enumerate(found):
            lines.append(f"| {stop.name if i == 0 else ''} | {'`' + ' '.join(stop.words) + '`' if i == 0 else ''} | {machine.name}: "
                         f"{stop.keeps if i == 0 else 'masters and moments, published weights, the sum under way'} | {sum(machine.memory.values()) / GB:.2f} | {machine.sent / GB:.2f} |")
    return "\n".join(lines) + "\n"


def picture(way):
    """(height, SVG): memory of each machine by what it is for, and what it sends."""
    used = [c for c in STATE if any(m.memory.get(c) for _, found in way for m in found)]
    bars = [{"group": stop.name if i == 0 else None, "label": m.name, "segments": [(f"m{CLASSES.index(c)}", CLASS_WORDS[c], m.memory[c]) for c in used]}
            for stop, found in way for i, m in enumerate(found)]
    sent = [{"group": stop.name if i == 0 else None, "label": m.name, "segments": [("m6", "sent a step", m.sent)]}
            for stop, found in way for i, m in enumerate(found)]
    parts, y = [], 4
    for i, c in enumerate(used):
        x, at = i % 4 * (WIDTH // 4), y + i // 4 * ROW
        parts.append(f'<rect class="fill m{CLASSES.index(c)}" x="{x}" y="{at}" width="12" height="12" rx="2"/>'
                     + svg.text_at("tick", x + 18, at + 10, svg.elide(CLASS_WORDS[c], WIDTH // 4 - 24)))
    y += (len(used) + 3) // 4 * ROW + 10
    tallest = 0
    for x, what, title in ((0, bars, "GB of memory on one machine"), (WIDTH - HALF, sent, "GB that it sends a step")):
        height, placed = svg.place(draw(what, Style(what, title, title, GB, 1), HALF), x, y)
        parts.append(placed)
        tallest = max(tallest, height)
    return y + tallest, "".join(parts)


def with_table(page, text):
    """The page's text with the table between its marks."""
    before, first, rest = page.partition(MARKS[0])
    _, last, after = rest.partition(MARKS[1])
    if not first or not last:
        raise RuntimeError(f"{PAGE}: the marks of the table are not there")
    return before + first + text + last + after


def read(path):
    with open(os.path.join(TOP, path), encoding="utf-8") as f:
        return f.read()


def main(argv=None):
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--program", default=built())
    ap.add_argument("--check", action="store_true", help="compare, write nothing")
    args = ap.parse_args(argv)
    try:
        way = [(stop, machines(stop, predicted(args.program, stop))) for stop in STOPS]
        page = with_table(read(PAGE), table(way))
    except (OSError, RuntimeError, ValueError) as e:
        print(f"way_plot.py: {e}", file=sys.stderr)
        return 1
    height, drawing = picture(way)
    written = svg.file_text(WIDTH, height, "From star to ring: memory and bytes of a machine", f"{PALETTE}{PLOTS}", drawing)
    different = [path for path, wanted in ((PAGE, page), (PICTURE, written)) if not os.path.exists(os.path.join(TOP, path)) or read(path) != wanted]
    if args.check:
        for path in different:
            print(f"way_plot.py: {path} is not what the program says: run docs/way_plot.py", file=sys.stderr)
        return 1 if different else 0
    for path, wanted in ((PAGE, page), (PICTURE, written)):
        with open(os.path.join(TOP, path), "w", encoding="utf-8") as f:
            f.write(wanted)
        print(path)
    return 0


if __name__ == "__main__":
    cli.run(main)
