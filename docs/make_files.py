#!/usr/bin/env python3
"""Writes docs/files.md and the words of comparisons: docs/files.in.md, with a row for each figure that the program tells in the place of {{FILE}}.
experiments/comparison/figures.json has
those that comparisons show. `make docs` runs it; the program is the first argument. A row that stands in files.in.md itself goes behind the figure that it is a
part of."""
import json
import os
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = os.path.join("docs", "files.md")
WORDS = os.path.join("experiments", "comparison", "figures.json")


def figures(program):
    """{file: [row]} of the program's figures."""
    told = subprocess.run([program, "summary", "--figures"], capture_output=True, text=True, check=True, timeout=60).stdout
    out = {}
    for row in json.loads(told):
        out.setdefault(row["file"], []).append(row)
    return out


def line_of(row):
    return "|".join(["", *(f" {cell} " if cell else " " for cell in (f"`{row['key']}`", row["type"], row["unit"], row["when"], row["meaning"])), ""])


def key_of(line):
    return line.split("`")[1]


def place(table, line):
    """Puts a hand-written row behind the last row of what its key is a part of, else at the end."""
    key, at = key_of(line), len(table)
    for cut in range(len(key) - 1, 0, -1):
        if key[cut] in ".[":
            above = key[:cut]
            behind = [i for i, other in enumerate(table) if key_of(other) == above or key_of(other).startswith((above + ".", above + "["))]
            if behind:
                at = behind[-1] + 1
                break
    table.insert(at, line)


def page(program):
    """The text of docs/files.md."""
    told, out, table = figures(program), [], None
    with open(os.path.join(TOP, "docs", "files.in.md"), encoding="utf-8") as f:
        for line in f.read().split("\n"):
            if line.startswith("{{"):
                table = [line_of(row) for row in told[line.strip("{}")]]
            elif table is not None and line.startswith("| `"):
                place(table, line)
            else:
                out += (table or []) + [line]
                table = None
    return "\n".join(out)


def words(program):
    """The text of experiments/comparison/figures.json: {key of summary.json: [words, unit]} of the figures that comparisons show."""
    told = [f"{json.dumps(row['key'])}: {json.dumps([row['words'], row['unit']])}" for row in figures(program)["summary.json"] if row["words"]]
    return "{\n " + ",\n ".join(told) + "\n}\n"


def main():
    program = sys.argv[1] if len(sys.argv) > 1 else os.path.join(TOP, "build", "starring")
    for path, text in ((PAGE, page(program)), (WORDS, words(program))):
        with open(os.path.join(TOP, path), "w", encoding="utf-8") as f:
            f.write(text)


if __name__ == "__main__":
    main()
