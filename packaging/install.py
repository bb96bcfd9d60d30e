#!/usr/bin/env python3
"""Installs what was built below a prefix, and takes it away again (`make install`, `make uninstall`).

    packaging/install.py --build BUILD [--prefix /usr/local] [--destdir DIR]
    packaging/install.py --uninstall [--prefix /usr/local] [--destdir DIR]

    PREFIX/bin/starring
    PREFIX/lib/starring/            what the program opens where it is wanted: libstarring_*.so
    PREFIX/share/starring/          experiments/, which find the program by themselves, and the list of all that was installed
    PREFIX/share/man/man1/          starring.1, starring-train.1, ..
    PREFIX/share/bash-completion/completions/starring, PREFIX/share/zsh/site-functions/_starring
    PREFIX/share/doc/starring/      LICENSE, README.md and the other pages at the top, and docs/

An earlier installation goes first, by its own list. Each file is written under another name and renamed, so that a job
under way keeps the program that it was started with.
"""
import argparse
import glob
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(HERE)
sys.path.insert(0, HERE)
import pages  # noqa: E402

LIST = "share/starring/installed"  # a line each: a path below the prefix
# They check the sources, and are of no use without them.
OF_THE_SOURCES = ("lab_check.py", "gpu_check.py", "gpucheck")


class Failed(Exception):
    pass


def tree(folder, leave=()):
    """Paths below a folder of the sources, relative to it; without what Python leaves, and what is named."""
    for at, folders, names in os.walk(os.path.join(TOP, folder)):
        folders[:] = sorted(d for d in folders if d != "__pycache__" and d not in leave)
        yield from (os.path.relpath(os.path.join(at, n), os.path.join(TOP, folder)) for n in sorted(names)
                    if n not in leave and not n.startswith("."))


def plan(build, made):
    """[(file, path below the prefix, mode)] of all that is installed; `made` has the pages."""
    program = os.path.join(build, "starring")
    found = [(program, "bin/starring", 0o755)]
    found += [(so, "lib/starring/" + os.path.basename(so), 0o644) for so in sorted(glob.glob(os.path.join(build, "libstarring_*.so")))]
    for name in tree("experiments", OF_THE_SOURCES):
        path = os.path.join(TOP, "experiments", name)
        with open(path, "rb") as f:
            script = f.read(2) == b"#!"
        found.append((path, "share/starring/experiments/" + name, 0o755 if script else 0o644))
    for name in pages.write(program, made):
        to = ("share/man/man1/" + name if name.endswith(".1") else "share/zsh/site-functions/" + name if name.startswith("_")
              else "share/bash-completion/completions/starring")
        found.append((os.path.join(made, name), to, 0o644))
    found += [(os.path.join(TOP, name), "share/doc/starring/" + name, 0o644)
              for name in ("LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "SECURITY.md")]
    found += [(os.path.join(TOP, "docs", name), "share/doc/starring/docs/" + name, 0o644) for name in tree("docs")
              if not name.endswith((".py", ".css", ".in.md"))]
    return found


def put(data, target, mode):
    os.makedirs(os.path.dirname(target), exist_ok=True)
    partial = target + ".new"
    with open(partial, "wb") as f:
        f.write(data)
    os.chmod(partial, mode)
    os.replace(partial, target)


def install(build, root, keep_list=True):
    """Installs below root; the paths below it. keep_list False: a package has a list of its own."""
    if not os.path.exists(os.path.join(build, "starring")):
        raise Failed(f"{build}/starring is not there: run make first")
    before = installed(root)
    with tempfile.TemporaryDirectory() as made:
        files = plan(build, made)
        for source, name, mode in files:
            with open(source, "rb") as f:
                put(f.read(), os.path.join(root, name), mode)
    names = [name for _, name, _ in files] + [LIST] * keep_list
    if keep_list:
        put("".join(n + "\n" for n in names).encode(), os.path.join(root, LIST), 0o644)
    remove(root, set(before) - set(names))
    return names


def installed(root):
    """The list of an earlier installation; [] where there is none."""
    try:
        with open(os.path.join(root, LIST), encoding="utf-8") as f:
            return f.read().split("\n")[:-1]
    except FileNotFoundError:
        return []


def remove(root, names):
    """Takes files away, and the folders that are empty then; not the root."""
    folders = set()
    for name in names:
        path = os.path.join(root, name)
        if os.path.lexists(path):
            os.unlink(path)
        while name := os.path.dirname(name):
            folders.add(name)
    for name in sorted(folders, key=len, reverse=True):
        caches = os.path.join(root, name, "__pycache__")  # a script that was run leaves one
        if "starring" in name.split("/") and os.path.isdir(caches):
            remove(caches, os.listdir(caches))
            os.rmdir(caches)
        try:
            os.rmdir(os.path.join(root, name))
        except OSError:
            pass  # others' files are in it


def uninstall(root):
    names = installed(root)
    if not names:
        raise Failed(f"nothing is installed below {root}: there is no {LIST}; name the PREFIX (and DESTDIR) that it was installed with")
    remove(root, names)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--build", default=os.path.join(TOP, "build"), help="where make has built (%(default)s)")
    ap.add_argument("--prefix", default="/usr/local", help="below which all lies (%(default)s)")
    ap.add_argument("--destdir", default="", metavar="DIR", help="put before the prefix, for those who make packages")
    ap.add_argument("--uninstall", action="store_true", help="take away what is installed there")
    args = ap.parse_args()
    try:
        if not os.path.isabs(args.prefix):
            raise Failed(f"PREFIX={args.prefix}: expected a path that begins with /")
        root = os.path.join(args.destdir, args.prefix.lstrip("/")) if args.destdir else args.prefix
        if args.uninstall:
            uninstall(root)
        else:
            print(f"installed below {root}: {len(install(args.build, root))} files; make uninstall PREFIX={args.prefix} takes them away")
    except (Failed, pages.Failed, OSError, subprocess.TimeoutExpired) as e:
        print(f"install: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
