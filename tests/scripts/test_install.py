#!/usr/bin/env python3
"""packaging/: what `make install` puts below a prefix runs away from the sources, and goes again without a trace; manual pages and
the completion of shells say what --help says; what the package of Debian holds."""
import os
import re
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import ENVIRONMENT, PROGRAM, TOP, Runs, folder_for
sys.path += [os.path.join(TOP, "packaging"), os.path.join(TOP, "bundle")]
import install
import make_bundle
import make_deb
import pages

BUILD = os.path.dirname(PROGRAM)
SANITIZED = os.path.exists(PROGRAM) and any(n.startswith(("libasan", "libtsan", "libubsan")) for n in make_bundle.needed(PROGRAM))
# The caller's variables: what make passes on, and the program of the sources.
AWAY = {k: v for k, v in ENVIRONMENT.items() if k not in ("STARRING", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PYTHONPATH")}


def run(*argv, cwd="/", env=None):
    return subprocess.run(argv, cwd=cwd, env=AWAY | (env or {}), capture_output=True, text=True, timeout=120, check=False)


def make(*words):
    return run("make", "-C", TOP, "--no-print-directory", f"BUILD={os.path.relpath(BUILD, TOP)}", *words)


def files_below(folder):
    return sorted(os.path.relpath(os.path.join(at, n), folder) for at, _, names in os.walk(folder) for n in names)


@unittest.skipIf(SANITIZED, "a sanitized build is not installed")
class Installed(Runs):
    """One installation of this class, below DESTDIR/usr/local."""
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.dest = os.path.join(folder_for(cls), "a place with spaces")
        cls.prefix = os.path.join(cls.dest, "usr/local")
        cls.program = os.path.join(cls.prefix, "bin/starring")
        cls.made = make("install", f"DESTDIR={cls.dest}")

    def setUp(self):
        super().setUp()
        self.assertEqual(self.made.returncode, 0, self.made.stderr)

    def test_the_program_trains_away_from_the_sources(self):
        for words in (["--topology", "ps:sync"], ["--topology", "zero:2", "--launch", "threads"]):
            p = run(self.program, "train", "--model", "tiny", "--data", "demo", "--steps", "2", "--workers", "2", "--threads", "1",
                    "--out", self.at(words[1]), *words, cwd=self.folder)
            self.assertEqual(p.returncode, 0, p.stderr)

    @unittest.skipUnless(os.path.exists(os.path.join(BUILD, "libstarring_mpi.so")) and shutil.which("mpirun"), "Open MPI is not installed")
    def test_it_finds_its_plugins(self):
        p = run("mpirun", "-n", "2", self.program, "bench", "collective", "--op", "all_reduce", "--max-bytes", "1K", "--iterations", "1")
        self.assertEqual(p.returncode, 0, p.stderr)

    def test_experiments_find_the_program(self):
        p = run(sys.executable, os.path.join(self.prefix, "share/starring/experiments/compare.py"), "--a", "local", "--b", "zero:0", "--workers", "1",
                "--model", "tiny", "--data", "demo", "--steps", "2", "--repeat", "1", "--out", self.at("both"), cwd=self.folder)
        self.assertEqual(p.returncode, 0, p.stdout + p.stderr)
        told = run(sys.executable, "-c", "import program; print(program.built())", env={"PYTHONPATH": os.path.join(self.prefix, "share/starring/experiments")})
        self.assertEqual(told.stdout.strip(), self.program)

    def test_what_is_there(self):
        there = files_below(self.prefix)
        for name in ("bin/starring", "share/man/man1/starring.1", "share/man/man1/starring-train.1", "share/man/man1/starring-bench-ps.1",
                     "share/bash-completion/completions/starring", "share/zsh/site-functions/_starring", "share/doc/starring/LICENSE",
                     "share/doc/starring/docs/config.md", "share/starring/experiments/compare.py", "share/starring/experiments/recipes/incast.json"):
            self.assertIn(name, there)
        for so in (n for n in os.listdir(BUILD) if n.startswith("libstarring_")):
            self.assertIn("lib/starring/" + so, there)
        self.assertFalse([n for n in there if "__pycache__" in n and "experiments" not in n or n.endswith((".new", ".c", ".o"))])
        self.assertTrue(os.access(os.path.join(self.prefix, "share/starring/experiments/compare.py"), os.X_OK))

    def test_a_second_time_takes_what_is_no_longer_installed(self):
        dest = self.at("twice")
        root = os.path.join(dest, "opt")
        install.put(b"old", os.path.join(root, "share/starring/experiments/gone/old.py"), 0o644)
        install.put(b"share/starring/experiments/gone/old.py\n" + install.LIST.encode() + b"\n", os.path.join(root, install.LIST), 0o644)
        p = make("install", f"DESTDIR={dest}", "PREFIX=/opt")
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertFalse(os.path.exists(os.path.join(root, "share/starring/experiments/gone")))

    def test_uninstall_leaves_nothing_of_its_own(self):
        dest = self.at("again")
        others = os.path.join(dest, "opt/share/man/man1/others.1")
        install.put(b"another's", others, 0o644)
        self.assertEqual(make("install", f"DESTDIR={dest}", "PREFIX=/opt").returncode, 0)
        caches = os.path.join(dest, "opt/share/starring/experiments/study/__pycache__")
        install.put(b"", os.path.join(caches, "plan.cpython-311.pyc"), 0o644)
        p = make("uninstall", f"DESTDIR={dest}", "PREFIX=/opt")
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertEqual(files_below(dest), ["opt/share/man/man1/others.1"])
        self.assertEqual(os.listdir(os.path.join(dest, "opt/share")), ["man"])
        p = make("uninstall", f"DESTDIR={dest}", "PREFIX=/opt")
        self.assertNotEqual(p.returncode, 0)
        self.assertIn("nothing is installed below " + dest, p.stderr)

    def test_refusals(self):
        for words, said in ((("--build", self.folder), "is not there: run make first"), (("--prefix", "opt"), "a path that begins with /")):
            p = run(sys.executable, os.path.join(TOP, "packaging/install.py"), "--destdir", self.at("none"), "--build", BUILD, *words)
            self.assertEqual(p.returncode, 1)
            self.assertIn(said, p.stderr)
        self.assertFalse(os.path.exists(self.at("none")))


class Pages(Runs):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.made = folder_for(cls)
        cls.names = pages.write(PROGRAM, cls.made)
        _, cls.commands = pages.ask_all(PROGRAM)

    def text(self, name):
        with open(os.path.join(self.made, name), encoding="utf-8") as f:
            return f.read()

    def test_each_command_and_option_is_there(self):
        with open(os.path.join(TOP, "starring.c"), encoding="utf-8") as f:
            listed = re.findall(r'\{"(\w+)", \w+(?:, (?:\.\w+ = )?(?:true|false))+\}', f.read())
        self.assertGreater(len(listed), 10)
        self.assertEqual({c.words[0] for c in self.commands}, set(listed))
        for command in self.commands:
            text = pages.help_of(PROGRAM, *command.words).split("\n\nExamples:")[0]
            told = re.findall(r"^  (?:-\w, |    )--(\S+)", text, re.M)
            self.assertEqual([o.name for o in command.options()], told, command.words)
            page = self.text(command.name() + ".1")
            for o in command.options():
                self.assertIn(f"\\fB\\-\\-{o.name.replace('-', chr(92) + '-')}\\fR", page)

    @unittest.skipUnless(shutil.which("man"), "man is not installed")
    def test_pages_are_right_for_man(self):
        for name in (n for n in self.names if n.endswith(".1")):
            p = run("man", "--warnings", "-l", "-Tutf8", os.path.join(self.made, name), env={"MANWIDTH": "80"})
            self.assertEqual((p.returncode, p.stderr), (0, ""), name)
            self.assertIn("NAME", re.sub(".\b", "", p.stdout))

    def completed(self, line):
        script = f'. "{self.made}/starring.bash"; COMP_LINE=$1 COMP_POINT=${{#1}}; _starring; printf "%s\\n" "${{COMPREPLY[@]}}"'
        p = run("bash", "-c", script, "bash", line)
        self.assertEqual((p.returncode, p.stderr), (0, ""), line)
        return p.stdout.split()

    def test_bash(self):
        for line, expected in (("starring tr", ["train"]), ("starring bench co", ["collective"]), ("starring train --dev", ["--device", "--device-memory"]),
                               ("starring train --model tiny --device ", ["auto", "cpu", "cuda", "ref"]), ("starring train --device=cu", ["cuda"]),
                               ("starring train --topology ps:s", ["sync", "ssp:S"]), ("starring train --topology z", [f"zero:{k}" for k in range(4)]),
                               ("starring bench collective --it", ["--iterations"]), ("starring train --config ", []), ("starring train da", []),
                               ("starring data info --j", ["--json"]), ("starring nonsense --", [])):
            self.assertEqual(self.completed(line), expected, line)

    @unittest.skipUnless(shutil.which("zsh"), "zsh is not installed")
    def test_zsh(self):
        path = os.path.join(self.made, "_starring")
        self.assertEqual(run("zsh", "-n", path).stderr, "")
        # The words that _arguments takes are kept, in place of asking the user.
        script = ('_arguments() { print -rl -- "$@" }; _describe() { print -rl -- "${(P)2[@]}" }; words=(${=1}); CURRENT=$2; . "$0"')
        told = run("zsh", "-fc", script, path, "starring train x", "3").stdout
        self.assertIn("*--device[cpu, cuda, ref (slow and simple), or auto\\: a GPU if there is one (auto)]:D:(auto cpu cuda ref)", told)
        self.assertIn("*--out[run directory (train's default\\: runs/MODEL-TOPOLOGY-TIME)]:DIR:_files", told)
        self.assertIn("adam", run("zsh", "-fc", script, path, "starring bench", "3").stdout.split())
        self.assertIn("*--iterations[", run("zsh", "-fc", script, path, "starring bench collective x", "4").stdout)


@unittest.skipIf(SANITIZED, "a sanitized build is not packed")
@unittest.skipUnless(shutil.which("dpkg-deb") and shutil.which("dpkg-shlibdeps"), "dpkg-dev is not installed")
class Deb(Runs):
    def test_what_it_holds(self):
        # As make builds it, without the object of CUDA, whose packing takes the time of all others.
        build = self.at("build")
        os.mkdir(build)
        for name in ("starring", "libstarring_mpi.so"):
            if os.path.exists(os.path.join(BUILD, name)):
                os.symlink(os.path.join(BUILD, name), os.path.join(build, name))
        path = make_deb.make_deb(build, self.folder)
        listed = [line.split(None, 5) for line in run("dpkg-deb", "--contents", path).stdout.splitlines()]
        names = [row[5] for row in listed]
        for name in ("./usr/bin/starring", "./usr/share/man/man1/starring.1.gz", "./usr/share/man/man1/starring-worker.1.gz",
                     "./usr/share/bash-completion/completions/starring", "./usr/share/zsh/vendor-completions/_starring",
                     "./usr/share/doc/starring/copyright", "./usr/share/doc/starring/changelog.gz", "./usr/share/starring/experiments/compare.py"):
            self.assertIn(name, names)
        self.assertEqual({row[1] for row in listed}, {"root/root"})
        self.assertFalse([n for n in names if n.endswith((".1", "installed", ".pyc", "LICENSE")) or "/local/" in n])
        field = {k: run("dpkg-deb", "--field", path, k).stdout.strip() for k in ("Package", "Version", "Depends", "Recommends")}
        self.assertEqual(field["Package"], "starring")
        self.assertRegex(field["Version"], r"^\d+\.\d+")
        for library in ("libzmq5", "libc6", "libcjson1", "libsodium23", "libprotobuf-c1", "liburing2", "libxxhash0"):
            self.assertRegex(field["Depends"], rf"(^|, ){library}\b")
        self.assertNotIn("libopenmpi", field["Depends"])
        self.assertIn("python3", field["Recommends"])
        if "./usr/lib/starring/libstarring_mpi.so" in names:
            self.assertIn("libopenmpi3", field["Recommends"])
        # Unpacked, it runs, and md5sums are those of its files.
        self.assertEqual(run("dpkg-deb", "--raw-extract", path, self.at("root")).returncode, 0)
        self.assertEqual(run("md5sum", "--check", "--quiet", "DEBIAN/md5sums", cwd=self.at("root")).stdout, "")
        self.assertEqual(run(self.at("root/usr/bin/starring"), "--version").stdout, run(PROGRAM, "--version").stdout)


if __name__ == "__main__":
    unittest.main()
