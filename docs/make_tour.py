#!/usr/bin/env python3
"""Writes docs/tour.md: each source file with the first sentence of the comment that opens it. `make docs` runs it;
`make_tour.py --check` only compares, and names each file that opens without a sentence."""
import os
import re
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = os.path.join("docs", "tour.md")
BOXES = ("kernels", "shared", "ps", "decentral", "proto", "experiments", "bundle", "packaging")
ENDINGS = (".c", ".h", ".cu", ".proto", ".py")
HEAD = """# File tour

This page lists each source file with the first sentence of the comment that opens it. `x.c` stands for `x.c` and `x.h` where
both exist.
[ARCHITECTURE.md](ARCHITECTURE.md) explains how they work together, [tests/README.md](../tests/README.md) what tests them.
`make docs` writes this page.
"""


def sources(top=TOP):
    """Source files below the boxes, relative to `top`, sorted by room; starring.c first."""
    found = ["starring.c"] if os.path.exists(os.path.join(top, "starring.c")) else []
    for box in BOXES:
        for folder, folders, files in os.walk(os.path.join(top, box)):
            folders[:] = sorted(d for d in folders if d != "__pycache__")
            found += sorted(os.path.relpath(os.path.join(folder, f), top) for f in files
                            if f.endswith(ENDINGS) and f != "__init__.py")
    return found


def opening(text, name):
    """The comment that opens a file, in one line; "" where there is none."""
    if name.endswith(".py"):
        m = re.match(r'(?:#[^\n]*\n|\s)*"""(.*?)"""', text, re.S)
        return re.sub(r"\s+", " ", re.split(r"\n\s*\n|\n {4}|\nexamples:", m.group(1))[0]).strip() if m else ""
    m = re.match(r"(?:\s|#ifndef \w+\n#define \w+\n|#pragma once\n)*((?://[^\n]*\n)+|/\*.*?\*/)", text, re.S)
    lines = []
    for line in m.group(1).splitlines() if m else []:
        line = re.sub(r"^\s*(?://|/\*|\*/|\*)? ?", "", line).replace("*/", "").rstrip()
        if lines and (not line or line.startswith(("- ", "  "))):
            break  # only the first paragraph
        lines.append(line)
    return re.sub(r"\s+", " ", " ".join(lines)).strip()


def first_sentence(text):
    m = re.search(r"(?<!\bal)(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)(?<!\.)\.(?= |$)", text)
    return (text[:m.start()] if m else text.rstrip(".:")).replace("|", "\\|").replace("<", "&lt;")


def tour(top=TOP):
    """(the page, the files that open without a sentence)"""
    files = sources(top)
    known, rooms, silent = set(files), {}, []
    for path in files:
        stem, ending = os.path.splitext(path)
        if ending in (".c", ".cu") and stem + ".h" in known:
            continue  # its header's sentence stands for both
        with open(os.path.join(top, path), encoding="utf-8") as f:
            says = first_sentence(opening(f.read(), path))
        if not says:
            silent.append(path)
        shown = next((stem + e for e in (".c", ".cu") if ending == ".h" and stem + e in known), path)
        rooms.setdefault(os.path.dirname(path) or ".", []).append((os.path.basename(shown), says))
    page = [HEAD]
    for room, rows in rooms.items():
        page.append(f"\n## {'The program' if room == '.' else room + '/'}\n\n| file | what it is |\n|---|---|\n")
        page += [f"| `{name}` | {says} |\n" for name, says in sorted(rows)]
    return "".join(page), silent


def main():
    page, silent = tour()
    for path in silent:
        print(f"{path}: the comment that opens it is missing; its first sentence belongs into {PAGE}", file=sys.stderr)
    path = os.path.join(TOP, PAGE)
    if "--check" not in sys.argv[1:]:
        with open(path, "w", encoding="utf-8") as f:
            f.write(page)
        return 1 if silent else 0
    with open(path, encoding="utf-8") as f:
        same = f.read() == page
    if not same:
        print(f"{PAGE} is older than the files: make docs", file=sys.stderr)
    return 0 if same and not silent else 1


if __name__ == "__main__":
    sys.exit(main())
