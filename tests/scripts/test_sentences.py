#!/usr/bin/env python3
"""No sentence of a page or of a comment begins with a word that leaves its subject for later (CONTRIBUTING.md, Sentences)."""
import os
import re
import subprocess
import sys
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "docs"))
import make_site  # noqa: E402

FIRST = ("Of", "What", "Who", "Whose", "Whom", "Were", "That it", "Until it", "Whatever", "Since when", "Nobody", "Behind")
WRONG = re.compile(rf"(?:^|(?<=[.!?] )|(?<=[.!?]\) ))\W*(?:{'|'.join(FIRST)})\b(?!: )[^.!?]*(?:[.!?](?=\W*\s|$)|$)")
LINE_COMMENT = {".c": "//", ".h": "//", ".cc": "//", ".cu": "//", ".cuh": "//", ".proto": "//", ".py": "#", ".mk": "#", "Makefile": "#"}


def paragraphs_of_page(text):
    """Paragraphs, items of lists and cells of tables; without headings and blocks of code."""
    lines = [re.sub(r"^#.*", "", line) for line in make_site.prose(text).split("\n")]
    for block in re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", "\n".join(lines)):
        yield from (cell for line in block.split("\n") for cell in line.split("|")) if "|" in block else [block]


def paragraphs_of_source(text, mark):
    """Its comments, a run of whole lines as one; of Python the docstrings too. A line that is further in begins a paragraph of
    its own, and so does the line after a heading (----)."""
    strings = r'"""(.*?)"""|' if mark == "#" else ""
    for m in re.finditer(rf'{strings}"(?:\\.|[^"\\\n])*"|((?:^[ \t]*{mark}[^\n]*\n?)+|{mark}[^\n]*)', text, re.S | re.M):
        comment = next((group for group in m.groups() if group), "")
        lines = [re.sub(rf"^[ \t]*{mark}", "", line) for line in comment.split("\n")]
        yield from re.split(r"\n\s*\n|\n(?= {3})| ?-{10,}[^\n]*\n", "\n".join(lines))


def wrong_in(paragraphs):
    return [found.group(0).strip(" -*") for paragraph in paragraphs for found in WRONG.finditer(re.sub(r"\s+", " ", paragraph).strip())
            if not found.group(0).rstrip(" \"')*_").endswith("?")]


def read(path):
    with open(os.path.join(TOP, path), encoding="utf-8") as f:
        return f.read()


class Sentences(unittest.TestCase):
    maxDiff = None

    def test_pages(self):
        self.assertEqual([f"{page}: {s}" for page in make_site.pages() for s in wrong_in(paragraphs_of_page(read(page)))], [])

    def test_comments(self):
        tracked = subprocess.run(["git", "ls-files"], cwd=TOP, capture_output=True, text=True, check=False).stdout.split()
        if not tracked:
            self.skipTest("no checkout of git's")
        wrong = []
        for path in tracked:
            mark = LINE_COMMENT.get(os.path.splitext(path)[1] or os.path.basename(path))
            if mark and path != "tests/scripts/test_sentences.py":  # its own examples
                wrong += [f"{path}: {s}" for s in wrong_in(paragraphs_of_source(read(path), mark))]
        self.assertEqual(wrong, [])

    def test_the_rule_itself(self):
        for text, count in (("What comes is read. It stays.", 1), ("It stays. Of these, two go.", 1), ("A row. Who is it? Yes.", 0), ("Often, office.", 0),
                            ("**Whose is it.** No.", 1), ("x (a. b) What. y", 0), ("End.\nBehind it the end", 1), ("the heading: What", 0)):
            self.assertEqual(len(wrong_in([text])), count, text)
        page = "# What it is\n\nIt is.\n\n- Of a list\n\n| a | What it is |\n|---|---|\n\n    What code is\n\nA\nWhat b.\n"
        self.assertEqual(wrong_in(paragraphs_of_page(page)), ["Of a list", "What it is"])
        source = '// A. What b.\n// Of c\n\nint x = "// Who";  // Nobody\n// It\n// Who. Were\n'
        self.assertEqual(wrong_in(paragraphs_of_source(source, "//")), ["What b.", "Of c", "Nobody", "Were"])
        self.assertEqual(wrong_in(paragraphs_of_source("// ---------- a table\n// Of what a rank has.\nint a;\n", "//")), ["Of what a rank has."])
        self.assertEqual(wrong_in(paragraphs_of_source('"""Of\nit."""\nx = 1  # What\n', "#")), ["Of it.", "What"])


if __name__ == "__main__":
    unittest.main()
