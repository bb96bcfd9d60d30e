"""Which file uses which, the circles among them, and how many files a room (a folder) holds.

A file is what shares a folder and a stem: mill.c with mill.h. A uses B where A includes B's header, where Python's
A imports B, and where an object of A takes a symbol that B's objects alone define. Objects older than their
sources say nothing.
"""
import os
import re
import subprocess

C_ENDINGS = (".c", ".h", ".cc", ".cu", ".cuh")
ENDINGS = C_ENDINGS + (".py",)
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)
IMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+import\s+\(?([\w, ]+)|import\s+([\w.]+))", re.M)


def file_of(path):
    return os.path.splitext(path)[0]


def is_test(path):
    return path.startswith("tests/")


def is_inside(user, used):
    """Whether the user is the inside of a file of its own folder: zero_impl and zero_step are zero's."""
    return user.startswith(used + "_")


class Uses:
    """names[user][used]: the headers and symbols that tie the first file to the second."""

    def __init__(self):
        self.names = {}

    def add(self, user, used, name):
        if user != used:
            self.names.setdefault(user, {}).setdefault(used, set()).add(name)

    def circles(self):
        """The sets of files that reach each other, each sorted (Tarjan's algorithm)."""
        found, number, low, stack = [], {}, {}, []

        def visit(file):
            number[file] = low[file] = len(number)
            stack.append(file)
            for used in sorted(self.names.get(file, {})):
                if used not in number:
                    visit(used)
                    low[file] = min(low[file], low[used])
                elif used in stack:
                    low[file] = min(low[file], number[used])
            if low[file] == number[file]:
                start = stack.index(file)
                if len(stack) - start > 1:
                    found.append(sorted(stack[start:]))
                del stack[start:]

        for file in sorted(self.names):
            if file not in number:
                visit(file)
        return sorted(found)

    def describe(self, circle):
        """A line for each use inside the circle, with the names that tie the two."""
        return [f"    {user} -> {used}: {', '.join(sorted(names))}" for user in circle
                for used, names in sorted(self.names.get(user, {}).items()) if used in circle]


def add_includes(uses, texts):
    """texts: {path: its text}. A header is looked for from the top and beside the file that includes it."""
    for path, text in texts.items():
        if path.endswith(C_ENDINGS):
            for header in INCLUDE.findall(text):
                beside = os.path.normpath(os.path.join(os.path.dirname(path), header))
                for target in (header, beside):
                    if target in texts:
                        if not is_inside(file_of(path), file_of(target)):
                            uses.add(file_of(path), file_of(target), os.path.basename(header))
                        break


def add_imports(uses, texts):
    """A module is looked for from the importer's folder upwards: scripts put their own folders on the path."""
    for path, text in texts.items():
        if not path.endswith(".py"):
            continue
        for package, names, module in IMPORT.findall(text):
            for name in [package + "." + n.strip() for n in names.split(",")] + [package] if package else [module]:
                folder = os.path.dirname(path)
                while True:
                    target = os.path.normpath(os.path.join(folder, name.replace(".", "/") + ".py"))
                    if target in texts:
                        uses.add(file_of(path), file_of(target), "import " + name)
                    if target in texts or not folder:
                        break
                    folder = os.path.dirname(folder)


def source_of(object_path, paths):
    """The source of BUILD/obj/ps/ps.o, BUILD/cuda/... or BUILD/emu/...: ps/ps.c; None where there is none."""
    parts = os.path.splitext(object_path)[0].split(os.sep)
    for start in range(len(parts)):
        for ending in ("", ".c", ".cu", ".cc"):
            path = "/".join(parts[start:]) + ending
            if path in paths:
                return path
    return None


def add_calls(uses, symbols):
    """symbols: {file: (defined, undefined)}. A symbol that several files define ties no file: each program links one of them.
    The program's own files never take what only a test defines in their place, nor does a test what a program of its own, with a
    main, defines in a library's place."""
    owners = {}
    for file, (defined, _) in symbols.items():
        for name in defined if not (is_test(file) and "main" in defined) else ():
            owners.setdefault(name, set()).add(file)
    for file, (_, undefined) in symbols.items():
        for name in undefined:
            found = [o for o in owners.get(name, ()) if is_test(file) or not is_test(o)]
            if len(found) == 1:
                uses.add(file, found[0], name)


def symbols_of(top, build, paths):
    """({file: (defined, undefined)} of the objects under build, how many objects are older than their sources)."""
    objects, old = {}, 0
    for folder, _, files in os.walk(build):
        for name in files:
            path = os.path.join(folder, name)
            source = source_of(os.path.relpath(path, build), paths) if name.endswith(".o") else None
            if source and os.path.getmtime(path) < os.path.getmtime(os.path.join(top, source)):
                old += 1
            elif source:
                objects[path] = file_of(source)
    found = {}
    if objects:
        output = subprocess.run(["nm", "-g", "-A", "--"] + sorted(objects), capture_output=True, text=True, check=True).stdout
        for path, kind, name in re.findall(r"^(.*\.o):[0-9a-f ]* ([A-Za-z]) (\S+)$", output, re.M):
            found.setdefault(objects[path], (set(), set()))[kind in "Uw"].add(name)
    return found, old
