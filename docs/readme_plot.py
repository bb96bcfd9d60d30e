#!/usr/bin/env python3
"""Draws README's opening picture from the demo's runs: loss curves, and memory per rank.

    make demo && docs/readme_plot.py runs/demo --out docs/demo-loss.svg

The left half shows the training loss of the star and the ring at each step; runs that are equal to the last bit share
one curve. The right half shows the device memory that one rank took at its peak, as counted. One SVG file with its
own colours for light and dark pages. Exit status: 0 done; 1 a run is missing; 2 the command line is wrong.
"""
import argparse
import os
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.append(os.path.join(TOP, "experiments"))  # after the standard library, which has a module tokenize too
import cli  # noqa: E402
cli.needs("scipy", "jinja2")
from comparison import equality
from comparison.draw import svg
from comparison.draw.bars import Style, draw as draw_bars
from comparison.draw.lines import Lines, draw as draw_lines
from comparison.runs import CLASSES, RunError, as_float, load
from comparison.draw.style import PALETTE, PLOTS
from comparison.pages.figures import CLASS_WORDS

MIB = 1 << 20
LOSSES = ["ps-sync", "ps-async", "zero-0", "zero-1", "zero-2", "zero-3"]   # directories of the demo
MEMORY = [("ps-sync", "worker", "star: worker"), ("ps-sync", "server", "star: server"), ("zero-0", "worker", "ring: zero:0"),
          ("zero-1", "worker", "ring: zero:1"), ("zero-2", "worker", "ring: zero:2"), ("zero-3", "worker", "ring: zero:3")]
WIDTH, HALF, TOP, ROW = 880, 420, 34, 18


def key(entries, x, y):
    """Coloured marks with words, one per row; entries: [(css, words, line or box)]."""
    out = []
    for i, (css, words, line) in enumerate(entries):
        at = y + i * ROW
        out.append(f'<path class="curve {css}" d="M{x} {at}H{x + 24}"/>' if line else
                   f'<rect class="fill {css}" x="{x + 6}" y="{at - 6}" width="12" height="12" rx="2"/>')
        out.append(svg.text_at("value", x + 32, at + 4, svg.elide(words, HALF - 40, "value")))
    return "".join(out)


def shown(names):
    """"zero:0 = zero:1 = .. zero:3" as people write it."""
    rings = [n for n in names if n.startswith("zero:")]
    if len(rings) > 2:
        names = [n for n in names if n not in rings] + [f"zero:{rings[0][5:]}-{rings[-1][5:]}"]
    return " = ".join(names)


def picture(runs):
    """(height, SVG) of {directory's name: run}."""
    groups = sorted(equality.equal_groups([runs[n] for n in LOSSES]), key=len, reverse=True)
    curves = [{"label": shown([r.label for r in group]) + (" (the same bits)" if len(group) > 1 else ""), "color": i % 8,
               "points": [(m["step"], as_float(m["loss"])) for m in group[0].metrics]} for i, group in enumerate(groups)]
    entropy = groups[0][0].unigram_entropy
    levels = [(entropy, "if only byte frequencies were known")] if isinstance(entropy, (int, float)) else []
    keys = [(f"c{c['color']}", c["label"], True) for c in curves] + [("level", label, True) for _, label in levels]
    entries = [(name, role, words, runs[name].roles()[role]["peak"]) for name, role, words in MEMORY]
    used = [c for c in CLASSES if any(peak.get(c) for *_, peak in entries)]
    bars = [{"label": words, "segments": [(f"m{CLASSES.index(c)}", CLASS_WORDS[c], peak.get(c, 0)) for c in used]}
            for _, _, words, peak in entries]
    rows = max(len(keys), (len(used) + 1) // 2)
    y = TOP + rows * ROW + 6
    left, right = WIDTH - HALF, 0
    height_1, losses = svg.place(draw_lines(Lines(curves, "step", "loss (nats per token)", levels, "Loss", 270), HALF), right, y)
    height_2, memory = svg.place(draw_bars(bars, Style(bars, "MiB per rank, measured", "Memory", MIB, 1), HALF), left, y)
    memory_key = [(f"m{CLASSES.index(c)}", CLASS_WORDS[c], False) for c in used]
    half = (len(used) + 1) // 2
    return y + max(height_1, height_2), (
        f'<text class="title" x="0" y="15">Loss</text><text class="title" x="{left}" y="15">Memory per rank</text>'
        + key(keys, 0, TOP + 4)
        + key(memory_key[:half], left, TOP + 4) + key(memory_key[half:], left + 2 * HALF // 5, TOP + 4)
        + losses + memory)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("demo", metavar="DIR", help="what `make demo` left: runs/demo")
    ap.add_argument("--out", metavar="FILE", required=True, help="the SVG to write")
    args = ap.parse_args()
    try:
        runs = {name: load(name, os.path.join(args.demo, name)) for name in LOSSES}
    except RunError as e:
        print(f"readme_plot.py: {e}; run `make demo` first", file=sys.stderr)
        return 1
    height, drawing = picture(runs)
    svg.write_file(args.out, WIDTH, height, "Training loss of star and ring, and memory per rank",
                   f"{PALETTE}{PLOTS}.title{{font-size:15px;font-weight:600;fill:var(--ink)}}", drawing)
    return 0


if __name__ == "__main__":
    cli.run(main)
