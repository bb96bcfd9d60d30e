#!/usr/bin/env python3
"""docs/tour.md is as the files say. Links of all pages lead to files and headings, commands of all pages can be typed as
they stand, and all pages are in the site."""
import glob
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "docs"))
import make_site  # noqa: E402
import make_tour  # noqa: E402

PROGRAM = os.environ.get("STARRING", os.path.join(TOP, "build", "starring"))
# A path of the sources in running text: no pattern, no name to be filled in, nothing that a build or the downloads of pages make.
PATH = re.compile(r"(?<![\w/.-])((?:ps|shared|decentral|kernels|tests|proto|docs)/(?!_pages)(?![\w/.-]*(?:[A-Z*<]|-c\.h))[\w/.-]+)")


def known_paths(tracked):
    """Files, files without what follows their last dot, and folders."""
    folders = {"/".join(name.split("/")[:i]) for name in tracked for i in range(1, name.count("/") + 1)}
    return {*tracked, *(os.path.splitext(name)[0] for name in tracked), *folders}


def path_is(known, path):
    return path.rstrip("./") in known


def read(page):
    with open(os.path.join(TOP, page), encoding="utf-8") as f:
        return f.read()


def badly_set(text):
    """Line numbers at which GitHub, or mkdocs, takes code or a list for a continuation of the paragraph above."""
    found, lines, in_list, fenced = [], text.split("\n"), False, False
    for at, line in enumerate(lines):
        item, above = re.match(r" *([-*]|\d+\.) ", line), lines[at - 1] if at else ""
        fenced ^= line.startswith("```")
        if line and not line.startswith(" ") and not above:
            in_list = False
        if not fenced and above and not in_list and (item or re.match(r" {4}\S", line) and not re.match(r" {4}|```", above)):
            found.append(at + 1)
        in_list |= bool(item)
    return found


def commands(text):
    """The lines of a page's blocks that begin with the program, each with what it goes on with."""
    text = re.sub(r" *\\\n *", " ", text)
    return [m.group(1) for m in re.finditer(r"^(?: {4}|\$ |)((?:build/)?starring (?:[a-z]+) [^|;#\n]*)", text, re.M)]


# Names of the reader's own, runs of a command above, or a variable of the shell.
READERS = ("ds_config.json", "job.json", "star.json", "./gpt2", "--model runs/", "$", "...")


# Pages about the code, whose words in backquotes are names in it.
INSIDE = ["docs/ARCHITECTURE.md", "docs/where.md", "docs/star-inside.md", "docs/numerics.md", "docs/measuring.md", "docs/decisions.md", "docs/gpu-inside.md",
          "CONTRIBUTING.md"]


def names_of(text):
    """Files without a folder, and functions or other names with an underscore."""
    return re.findall(r"`([a-z0-9_]+\.(?:c|h|cu|py)|[a-z][a-z0-9]*_[a-z0-9_]+)`", text)


class Commands(unittest.TestCase):
    def test_each_can_be_typed(self):
        tried = 0
        for page in make_site.pages():
            if page.startswith("docs/results/"):
                continue
            text = read(page)
            # For several machines the page installs it first, and other programs start it.
            found = commands(text) if os.path.basename(page) != "cluster.md" else [
                "build/" + c for c in re.findall(r"^(?: {4}|)(?:srun|mpirun|torchrun|docker|RANK|starring|experiments/over_ssh).*?(starring train [^|;#&\n]*)", text, re.M)]
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
    def test_it_is_as_the_files_say(self):
        p = subprocess.run([os.path.join(TOP, "docs", "make_tour.py"), "--check"], capture_output=True, text=True, check=False)
        self.assertEqual((p.returncode, p.stderr), (0, ""))

    def test_what_opens_without_a_sentence_is_named(self):
        with tempfile.TemporaryDirectory() as top:
            os.makedirs(os.path.join(top, "ps"))
            for name, text in (("a.h", "// Ships, e.g. of Vasa et al. (1628). More.\n// x\n#include <a.h>\n"), ("a.c", "int a;\n"),
                               ("b.c", "#include <b.h>\n// late\n"), ("c.py", '#!/bin/x\n"""Does it.\n\nMore."""\n')):
                with open(os.path.join(top, "ps", name), "w", encoding="utf-8") as f:
                    f.write(text)
            page, silent = make_tour.tour(top)
            self.assertEqual(silent, ["ps/b.c"])
            self.assertIn("| `a.c` | Ships, e.g. of Vasa et al. (1628) |\n", page)
            self.assertIn("| `c.py` | Does it |\n", page)

    def test_paths_lead_to_files(self):
        """What pages and comments call ps/x/y.c or ps/x is there."""
        tracked = subprocess.run(["git", "ls-files"], cwd=TOP, capture_output=True, text=True, check=False).stdout.split()
        if not tracked:
            self.skipTest("no checkout of git's")
        known, wrong = known_paths(tracked), []
        for name in tracked:
            if name.endswith((".md", ".c", ".h", ".cu", ".cuh", ".proto")) and not name.startswith(("docs/results/", "tests/")):
                with open(os.path.join(TOP, name), encoding="utf-8") as f:
                    wrong += [f"{name}: {path}" for path in PATH.findall(f.read()) if not path_is(known, path)]
        self.assertEqual(wrong, [])

    def test_names_lead_to_code(self):
        """What the pages about the code call `thing_do` or `thing.c` is in it."""
        tracked = subprocess.run(["git", "ls-files"], cwd=TOP, capture_output=True, text=True, check=False).stdout.split()
        if not tracked:
            self.skipTest("no checkout of git's")
        code = [name for name in tracked if name.endswith((".c", ".h", ".cu", ".cuh", ".py", ".proto")) and not name.startswith("docs/")]
        words = {part for name in code for part in (os.path.basename(name), os.path.splitext(os.path.basename(name))[0])}.union(*(re.findall(r"\w+", read(name)) for name in code))
        self.assertEqual([f"{page}: {name}" for page in INSIDE for name in names_of(read(page)) if name not in words], [])

    def test_where_it_says_a_function_is(self):
        said = [(name, path) for names, path in re.findall(r"((?:`\w+`(?:, | and )?)+) (?:in|of) \[[^]]+\]\(\.\./([^)#]+)\)", read("docs/where.md"))
                for name in re.findall(r"\w+", names.replace(" and ", " "))]
        self.assertGreater(len(said), 80)
        self.assertEqual([(name, path) for name, path in said if not re.search(rf"\b{name}\b", read(path))], [])

    def test_the_rule_itself(self):
        self.assertEqual(names_of("`a_b` `c.h` `d` `e/f.c` `G_H` `i_j()` `k --l_m`"), ["a_b", "c.h"])
        known = known_paths(["ps/a/b.c", "ps/star.c", "build.c"])
        for path, there in (("ps/a/b.c", True), ("ps/a/b", True), ("ps/a", True), ("ps/a.", True), ("ps/b.c", False), ("ps/c", False)):
            self.assertEqual(path_is(known, path), there, path)
        self.assertEqual(PATH.findall("(ps/a.c), `shared/x/y` and/or docs/_pages x/ps/b.c ps/NAME.c ps/*/b.c"), ["ps/a.c", "shared/x/y"])


class Pages(unittest.TestCase):
    def test_links_lead_to_files_and_headings(self):
        self.assertEqual([sentence for page in make_site.pages() for sentence in make_site.broken_links(page, read(page))], [])

    def test_each_opens_with_what_it_is_for(self):
        wrong = [page for page in make_site.pages() if page != "README.md"
                 and not re.match(r"# .*\n\n(After this (page|lab) you |This page |With this page )", read(page))]
        self.assertEqual(wrong, [])

    def test_code_and_lists_begin_after_an_empty_line(self):
        self.assertEqual([f"{page}:{line}" for page in make_site.pages() for line in badly_set(read(page))], [])

    def test_each_is_in_the_navigation_of_the_site(self):
        listed = re.findall(r"^ +- [^:]+: (\S+\.md)$", read("mkdocs.yml"), re.M)
        self.assertEqual(sorted(listed), sorted(make_site.pages()))

    def test_the_site_is_built(self):
        if not shutil.which("mkdocs"):
            self.skipTest("no mkdocs here: .ci/deps site installs it")
        with tempfile.TemporaryDirectory() as out:
            p = subprocess.run(["mkdocs", "build", "--quiet", "--site-dir", out], cwd=TOP, capture_output=True, text=True, check=False)
            self.assertEqual((p.returncode, p.stderr), (0, ""))
            built = {}
            for folder, _, names in os.walk(out):
                for name in (n for n in names if n.endswith(".html") and n not in ("404.html", "search.html")):
                    with open(os.path.join(folder, name), encoding="utf-8") as f:
                        built[os.path.join(folder, name)] = f.read()
            anchors = {path: set(re.findall(r'id="([^"]+)"', html)) for path, html in built.items()}
            dead = []
            for path, html in built.items():
                self.assertNotRegex(html, r'(src|rel="stylesheet" href)="https?:')  # it works offline
                for link, anchor in re.findall(r'(?:href|src)="(?!https?:)([^"#]*)(?:#([^"]*))?"', html):
                    target = os.path.normpath(os.path.join(os.path.dirname(path), link)) if link else path
                    target = os.path.join(target, "index.html") if os.path.isdir(target) else target
                    if not os.path.exists(target) or anchor and anchor not in anchors.get(target, [anchor]):
                        dead.append(f"{os.path.relpath(path, out)}: {link}#{anchor}")
            self.assertEqual(dead, [])
            self.assertIn('href="../shared/core/topology.h.txt"', built[os.path.join(out, "docs", "ARCHITECTURE.html")])

    def test_citation_names_the_version(self):
        version = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
        self.assertIn(f'\nversion: "{version}"\n', read("CITATION.cff"))

    def test_the_rules_themselves(self):
        page = "# A `b`: c--d\n\n[a](../README.md#two-commands) [b](#a-b-c--d) [c](https://d.e/f)\n\n    [code](code)\n"
        self.assertEqual(make_site.broken_links("docs/x.md", page), [])
        page += "[c](d.md) [e](../README.md#f) [g](#h) [i](../docs)\n"
        self.assertEqual(make_site.broken_links("docs/x.md", page), [
            "docs/x.md: d.md is no file", "docs/x.md: ../README.md#f: no heading of that name", "docs/x.md: #h: no heading of that name",
            "docs/x.md: ../docs is no file"])
        self.assertEqual(badly_set("a\n\n    b\n    c\n\n- d\n  e\n- f\n\n      g\n\n1. h\n   - i\n"), [])
        self.assertEqual(badly_set("a\n    b\n\nc\n- d\n"), [2, 5])


if __name__ == "__main__":
    unittest.main()
