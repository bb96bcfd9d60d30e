#!/usr/bin/env python3
"""docs/ARCHITECTURE.md's file tour and the files: every source is in the tour, every name in the tour is a file. Links
of all pages lead to files, and commands of all pages can be typed as they stand."""
import glob
import os
import re
import shlex
import subprocess
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.environ.get("STARRING", os.path.join(TOP, "build", "starring"))
SOURCES = ("kernels", "shared", "ps", "decentral", "proto", "experiments")
ENDINGS = (".c", ".h", ".cu", ".proto", ".py", ".json")
HEADING = re.compile(r"^\*\*([\w/]+)/\*\*", re.M)
LINK = re.compile(r"\]\(([\w./-]+)(?:#[\w-]*)?\)")
NAME = re.compile(r"`([\w./*-]+\.(?:c|h|cu|proto|py|json))`")


def tour():
    """The text of the tour up to the part about tests, which speaks of folders."""
    with open(os.path.join(TOP, "docs", "ARCHITECTURE.md"), encoding="utf-8") as f:
        text = f.read()
    return text[text.index("## File tour"):text.index("**tests/**")]


def named(text, top=TOP):
    """The files that a tour names, below `top`: {path}, and the names behind which there is none."""
    found, missing, room = set(), [], ""
    for line in text.splitlines():
        heading = HEADING.match(line)
        if heading:
            room = heading.group(1)
        for name in NAME.findall(line) if heading or line.startswith("|") else ():
            here = [path for path in (os.path.join(top, room, name), os.path.join(top, os.path.dirname(room), name),
                                      os.path.join(top, name)) if glob.glob(path)]
            if not here:
                missing.append(f"{room}: {name}")
                continue
            for path in glob.glob(here[0]):
                found.add(os.path.relpath(path, top))
                if path.endswith(".c") and os.path.exists(path[:-1] + "h"):
                    found.add(os.path.relpath(path[:-1] + "h", top))
    return found, missing


def sources(top=TOP):
    for room in SOURCES:
        for folder, folders, files in os.walk(os.path.join(top, room)):
            folders[:] = [d for d in folders if d != "__pycache__"]
            yield from (os.path.relpath(os.path.join(folder, f), top) for f in files
                        if f.endswith(ENDINGS) and f != "__init__.py")


def broken_links(page, text, top=TOP):
    return [f"{page}: {link}" for link in LINK.findall(text)
            if not os.path.exists(os.path.join(top, os.path.dirname(page), link))]


def pages():
    return [os.path.join(TOP, "README.md")] + sorted(
        p for p in glob.glob(os.path.join(TOP, "docs", "**", "*.md"), recursive=True) if f"{os.sep}results{os.sep}" not in p)


def commands(text):
    """The lines of a page's blocks that begin with the program, each with what it goes on with."""
    text = re.sub(r" *\\\n *", " ", text)
    return [m.group(1) for m in re.finditer(r"^(?: {4}|\$ |)((?:build/)?starring (?:[a-z]+) [^|;#\n]*)", text, re.M)]


# Of the reader's own, or a variable of the shell.
READERS = ("ds_config.json", "job.json", "star.json", "./gpt2", "$", "...")


class Commands(unittest.TestCase):
    def test_each_can_be_typed(self):
        tried = 0
        for page in pages():
            with open(page, encoding="utf-8") as f:
                found = commands(f.read())
            for command in found:
                self.assertTrue(command.startswith("build/"), (page, command))  # what make builds is in nobody's PATH
                if not command.startswith("build/starring train ") or any(name in command for name in READERS):
                    continue
                words = [PROGRAM, *shlex.split(command)[1:], "--dry-run"]
                p = subprocess.run(words, cwd=TOP, capture_output=True, text=True, timeout=120, check=False)
                self.assertEqual(p.returncode, 0, (page, command, p.stderr))
                tried += 1
        self.assertGreater(tried, 25)

    def test_every_script_can_be_started(self):
        scripts = []
        for path in glob.glob(os.path.join(TOP, "experiments", "*.py")):
            with open(path, encoding="utf-8") as f:
                scripts += [path] if f.readline().startswith("#!") else []
        self.assertGreater(len(scripts), 10)
        self.assertEqual([path for path in scripts if not os.access(path, os.X_OK)], [])

    def test_the_rule_itself(self):
        self.assertEqual(commands("x\n    starring train --a \\\n        --b # c\n$ build/starring plan x | y\n"),
                         ["starring train --a --b ", "build/starring plan x "])


class Tour(unittest.TestCase):
    def test_every_name_is_a_file(self):
        self.assertEqual(named(tour())[1], [])

    def test_every_file_is_named(self):
        self.assertEqual(sorted(set(sources()) - named(tour())[0]), [])

    def test_links_lead_to_files(self):
        for page in [os.path.join(TOP, "README.md")] + glob.glob(os.path.join(TOP, "docs", "**", "*.md"), recursive=True):
            with open(page, encoding="utf-8") as f:
                self.assertEqual(broken_links(os.path.relpath(page, TOP), f.read()), [])

    def test_the_rule_itself(self):
        self.assertEqual(broken_links("docs/x.md", "[a](../README.md#b) [c](d.md) [e](https://f.g/h)"), ["docs/x.md: d.md"])
        self.assertGreater(len(named(tour())[0]), 200)
        found, missing = named("**kernels/**: x\n| `backend.c`, `nothing.c` | y |")
        self.assertEqual(found, {"kernels/backend.c", "kernels/backend.h"})
        self.assertEqual(missing, ["kernels: nothing.c"])


if __name__ == "__main__":
    unittest.main()
