#!/usr/bin/env python3
"""Draws one step of several runs as it happened, below each other on one scale of time.

    docs/step_plot.py runs/demo/zero-0 runs/demo/zero-3 --out steps.svg

Each run is drawn from the spans that its ranks recorded (trace.json): the upper row of a rank is its computing, with the
gaps in it coloured by what it stood still for; its thin rows are transfers. Each run shows the recorded step whose
length is nearest to the run's median. One SVG file with its own colours for light and dark pages. Exit status: 0 done; 1 a
run is missing or recorded nothing; 2 the command line is wrong.
"""
import argparse
import os
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.append(os.path.join(TOP, "experiments"))  # after the standard library, which has a module tokenize too
import cli  # noqa: E402
cli.needs("scipy", "jinja2")
from comparison.draw import svg
from comparison.draw.lanes import draw, margin
from comparison.draw.style import PALETTE, PLOTS
from comparison.pages import timeline
from comparison.runs import RunError, load

WIDTH, HEAD, ROW, GAP = 880, 22, 18, 14
COLUMNS = 4   # of the key


def key(entries, y):
    """Coloured marks with words."""
    out = []
    for i, (css, words) in enumerate(entries):
        x, at = i % COLUMNS * (WIDTH // COLUMNS), y + i // COLUMNS * ROW
        out.append(f'<rect class="fill {css}" x="{x}" y="{at}" width="12" height="12" rx="2"/>'
                   + svg.text_at("tick", x + 18, at + 10, svg.elide(words, WIDTH // COLUMNS - 24)))
    return "".join(out)


def picture(runs):
    """(height, title, SVG); RunError where a run recorded no step."""
    found = timeline.pictures([[run] for run in runs])
    if len(found) < len(runs):
        seen = {label for label, *_ in found}
        missing = next(run for run in runs if run.label not in seen)
        raise RunError(f"{missing.directory}: no step was recorded: {timeline.FILE} is not there, or empty")
    scale = max(margin(lanes) for *_, lanes, _ in found), max(window[1] - window[0] for _, _, window, _, _ in found)
    kinds = {css.split()[0] for *_, lanes, _ in found for lane in lanes for css, *_ in lane.spans + lane.transfers}
    servers = any(lane.name.startswith("server") for *_, lanes, _ in found for lane in lanes)
    used = [(css, words if servers else words.split(";")[0]) for css, words in timeline.KEY if css in kinds or css == "idle"]
    parts, y = [key(used, 4)], 4 + (len(used) + COLUMNS - 1) // COLUMNS * ROW + GAP
    for label, step, window, lanes, _ in found:
        words = f"{label}, step {step}: {(window[1] - window[0]) / 1e6:,.1f} ms"
        drawing = draw(lanes, window, scale, WIDTH, words)
        height, placed = svg.place(drawing, 0, y + HEAD)
        parts += [svg.text_at("group", 0, y + 12, words), placed]
        y += HEAD + height + GAP
    return y, f"One step of {', '.join(label for label, *_ in found)}", "".join(parts)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("runs", metavar="RUN", nargs="+", help="run directories")
    ap.add_argument("--out", metavar="FILE", required=True, help="the SVG to write")
    args = ap.parse_args()
    try:
        height, title, drawing = picture([load(os.path.basename(os.path.normpath(d)), d) for d in args.runs])
    except RunError as e:
        print(f"step_plot.py: {e}", file=sys.stderr)
        return 1
    svg.write_file(args.out, WIDTH, height, title, f"{PALETTE}{PLOTS}", drawing)
    return 0


if __name__ == "__main__":
    cli.run(main)
