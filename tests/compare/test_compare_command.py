#!/usr/bin/env python3
"""experiments/compare.py and its neighbours as commands: any directory, spaces in paths, `| head`, Ctrl-C."""
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import PROGRAM, TOP
from test_compare_page import keyed
from made_run import make_run
from test_compare import COMPARE, Case, FakeProgram

PATIENCE_S = 300  # it hangs
SLEEPER = """#!{python}
import os, sys, time
if "--dry-run" in sys.argv:
    sys.exit()
with open({mark!r} + ".part", "w") as f:
    f.write(str(os.getpid()))
os.rename({mark!r} + ".part", {mark!r})
time.sleep(600)
"""


def scripts():
    """The commands in experiments/: what a shell can start."""
    return sorted(p for p in glob.glob(os.path.join(TOP, "experiments", "*.py")) if os.access(p, os.X_OK))


def without_reader(argv, **options):
    """(exit status, stderr) of a command whose reader left before its first word."""
    r, w = os.pipe()
    os.close(r)
    p = subprocess.run(argv, stdout=w, stderr=subprocess.PIPE, text=True, check=False, timeout=PATIENCE_S, **options)
    os.close(w)
    return p.returncode, p.stderr


class ReaderLeft(Case):
    def test_help_of_every_script(self):
        self.assertGreaterEqual(len(scripts()), 4)
        for script in scripts():
            status, words = without_reader([sys.executable, script, "--help"])
            self.assertIn(status, (0, 141), script)  # newer versions of argparse hide the broken pipe
            self.assertEqual(words, "", script)

    def test_a_comparison(self):
        runs = [make_run(self.at(n), t) for n, t in (("a", "ps:sync"), ("b", "zero:2"))]
        status, words = without_reader([sys.executable, COMPARE, "--runs", *runs, "--out", self.out], cwd=self.folder)
        self.assertEqual((status, words), (141, ""))
        self.assertTrue(os.path.exists(os.path.join(self.out, "report.html")))  # written before it is told of

    @unittest.skipUnless(os.path.exists(PROGRAM), "build/starring is not built")
    def test_the_program(self):
        for words in (["--help"], ["train", "--help"], ["train", "--model", "tiny", "--dry-run"]):
            status, told = without_reader([PROGRAM, *words])
            self.assertEqual((status, told), (0, ""), words)


class Places(FakeProgram):
    """A repository whose path has spaces, called from elsewhere."""

    def setUp(self):
        super().setUp()
        self.top, self.work = self.at("my clone"), self.at("a b", "c d")
        shutil.copytree(os.path.join(TOP, "experiments"), os.path.join(self.top, "experiments"))
        os.makedirs(os.path.join(self.top, "build"))
        os.makedirs(self.work)
        os.symlink(self.program, os.path.join(self.top, "build", "starring"))

    def compare(self, *argv):
        """Started in another directory; $STARRING is not set."""
        env = {k: v for k, v in os.environ.items() if k != "STARRING"}
        return subprocess.run([sys.executable, os.path.join("..", "..", "my clone", "experiments", "compare.py"), *argv],
                              capture_output=True, text=True, cwd=self.work, env=env, check=False, timeout=PATIENCE_S)

    def test_the_program_is_found_and_paths_are_the_callers(self):
        p = self.compare("--a", "ps:sync", "--b", "zero:1", "--repeat", "1", "--out", "my runs/one")
        self.assertEqual(p.returncode, 0, p.stderr + p.stdout)
        self.assertTrue(os.path.exists(os.path.join(self.work, "my runs", "one", "report.html")))
        with open(os.path.join(self.work, "my runs", "one", "ps-sync", "load.json"), encoding="utf-8") as f:
            self.assertGreater(json.load(f)["wall_seconds"], 0)
        p = self.compare("--runs", "my runs/one/ps-sync", "my runs/one/zero-1", "--out", "my runs/two")
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertIn("ps:sync = zero:1", p.stdout)

    def test_a_bundle_has_its_program_elsewhere(self):
        os.rename(os.path.join(self.top, "build"), os.path.join(self.top, "bin"))
        p = self.compare("--a", "zero:1", "--repeat", "1", "--out", "r")
        self.assertEqual(p.returncode, 0, p.stderr)

    @unittest.skipUnless(os.path.exists(PROGRAM), "build/starring is not built")
    def test_the_real_program_with_spaces_everywhere(self):
        os.remove(os.path.join(self.top, "build", "starring"))
        shutil.copy(PROGRAM, os.path.join(self.top, "build", "starring"))
        with open(os.path.join(self.work, "my text.txt"), "w", encoding="utf-8") as f:
            f.write("to be or not to be, that is the question. " * 200)
        with open(os.path.join(self.work, "my config.json"), "w", encoding="utf-8") as f:
            f.write('{"steps": 2, "train_batch_size": 4}')
        p = self.compare("-c", "my config.json", "--topologies", "ps:sync,zero:1", "--workers", "2", "--model", "tiny",
                         "--data", "my text.txt", "--seq", "16", "--repeat", "1", "--out", "my runs", "--medium", "shm,tcp", "--assert-equal", "--full")
        self.assertEqual(p.returncode, 0, p.stderr + p.stdout)
        self.assertIn("ps:sync shm = ps:sync tcp = zero:1 shm = zero:1 tcp: equal to the last bit", p.stdout)
        self.assertRegex(p.stdout, r"\nmedium +shm +tcp +shm +tcp\nlaunch +processes +processes +processes +processes\n")
        with open(os.path.join(self.work, "my runs", "report.html"), encoding="utf-8") as f:
            self.assertEqual(len(re.findall(r'class="plot lanes"', f.read())), 4)  # a step of each, from the program's own spans


class Sweeps(FakeProgram):
    def test_a_sweep_is_plotted_and_in_the_csv(self):
        p = self.run_it("--program", self.program, "--topologies", "ps:async,zero:1", "--sweep", "workers=1,2,4", "--repeat", "2", "--medium", "tcp")
        page = self.read("out", "report.html")
        section = page[page.index("<h2>What changes with workers"):page.index("<h2>More")]
        self.assertIn("workers, log2", section)
        self.assertIn("<h1>ps:async and zero:1 compared with workers = 1, 2 and 4</h1>", page)
        self.assertIn("ps:async workers=1/2/4", page[:page.index("</ol>")])
        self.assertGreater(keyed(self, section), 2)
        for metric in ("tokens/s", "step, median (ms)", "loss of the last step", "memory per worker (MiB)",
                       "a worker sends, per step (MiB)"):
            self.assertIn(f"{metric}", section)
        plot = re.search(r"<svg [^>]*><title>tokens/s against workers.*?</svg>", section, re.S).group(0)
        self.assertEqual(plot.count('class="curve'), 2)   # one line per topology
        self.assertEqual(plot.count("<circle"), 6)        # one point per value
        self.assertEqual(plot.count('class="range'), 6)   # of two repeats
        self.assertEqual([r["sweep_workers"] for r in self.table()], ["1", "1", "2", "2", "4", "4"] * 2)

    def test_without_a_sweep_there_is_no_such_plot(self):
        p = self.run_it("--program", self.program, "--a", "zero:1", "--repeat", "1")
        self.assertNotIn("What changes with", self.read("out", "report.html"))


class RefusedByTheProgram(FakeProgram):
    def asked(self):
        """The command lines that were asked about, and trained nothing."""
        with open(self.program + ".asked", encoding="utf-8") as f:
            return f.read().splitlines()

    def test_what_one_run_would_be_refused_for_is_known_before_the_first(self):
        argv = ["--program", self.program, "--a", "ps:sync", "--b", "zero:3", "--sweep", "workers=2,3"]
        p = self.run_it(*argv, env={"REFUSE": "1"}, status=2)
        self.assertEqual((p.returncode, p.stdout), (2, ""))
        self.assertEqual(p.stderr, "compare.py: zero:3 workers=2, zero:3 workers=3: starring: error: zero:3 takes no such thing\n"
                         "nothing was trained: 2 of 4 runs would have failed\n")
        self.assertFalse(os.path.exists(self.out))
        p = self.run_it(*argv, "--repeat", "2")
        self.assertEqual((len(self.asked()), len(self.order())), (4 + 4, 8))  # once for each command, not for each run

    def test_so_is_a_lack_of_memory(self):
        argv = ["--program", self.program, "--a", "zero:1", "--repeat", "1"]
        p = self.run_it(*argv, env={"REFUSE": "memory"}, status=2)
        self.assertEqual((p.returncode, p.stdout), (2, ""))
        self.assertIn("the machine's memory: 8.00 GB predicted + 1.00 GB beside that, 2.00 GB left: it does not fit", p.stderr)
        p = self.run_it(*argv, "--set", "memory.check=off", env={"REFUSE": "memory"})


class Refused(Case):
    """Refused comparisons: one sentence, a status that distinguishes the command line from the runs, no traceback."""

    def refused(self, status, words, *argv):
        p = subprocess.run([sys.executable, COMPARE, *argv], capture_output=True, text=True, check=False, timeout=PATIENCE_S,
                           cwd=self.folder)
        self.assertEqual((p.returncode, p.stdout), (status, ""), p.stderr)
        self.assertIn(words, p.stderr)
        self.assertNotIn("Traceback", p.stderr)

    def test_the_command_line(self):
        with open(self.at("a file"), "w", encoding="utf-8"):
            pass
        a, b = "--a=zero:1", "--b=zero:2"
        self.refused(2, "asked for twice", a, "--b=zero:1")
        self.refused(2, "--sweep workers=: write it as", a, "--sweep=workers=")
        for limit in ("0", "-1", "nan"):
            self.refused(2, "--limit must be more than 0", a, b, f"--limit={limit}")
        for out in ("a file", "a file/x/y"):
            self.refused(2, "a file is no directory", a, b, "--out", out)
        self.refused(2, "--out /proc/x: nothing can be written in /proc", a, b, "--out", "/proc/x")
        self.assertEqual(os.listdir(self.folder), ["a file"])

    def test_files_of_another_shape(self):
        good, torn = self.at("good"), self.at("torn")
        make_run(good, "ps:sync")
        for text in ("null", "[]", "5"):
            make_run(torn, "zero:2")
            with open(os.path.join(torn, "summary.json"), "w", encoding="utf-8") as f:
                f.write(text)
            self.refused(1, "torn/summary.json: holds no JSON object", "--runs", good, torn)
            make_run(torn, "zero:2")
            with open(os.path.join(torn, "config.json"), "w", encoding="utf-8") as f:
                f.write(text)
            p = subprocess.run([sys.executable, COMPARE, "--runs", good, torn, "--program", "none"], capture_output=True,
                               text=True, check=False, timeout=PATIENCE_S, cwd=self.folder)
            self.assertNotIn("Traceback", p.stderr)
            self.assertIn("ps:sync = zero:2", p.stdout)


class Interrupted(Case):
    def test_ctrl_c_ends_the_run_and_says_so(self):
        mark = self.at("started")
        program = self.script(SLEEPER.format(python=sys.executable, mark=mark), "program")
        p = self.start(COMPARE, "--program", program, "--a", "zero:1", "--out", self.out, program=sys.executable, start_new_session=True)
        p.until(lambda: os.path.exists(mark), "a run")
        p.send_signal(signal.SIGINT)
        # Where Ctrl-C came before the program's start had been noticed, the kernel kills it, behind compare.py's own end.
        self.assertEqual(p.ends(130, limit_s=PATIENCE_S, settle_s=PATIENCE_S), "\ncompare.py: interrupted; finished runs are kept\n")


@unittest.skipUnless(os.path.exists(PROGRAM), "build/starring is not built")
class RealProgram(Case):
    SMALL = ["--model", "tiny", "--seq", "16", "--batch", "1", "--workers", "2", "--data", "text.txt"]

    def setUp(self):
        super().setUp()
        os.mkdir(self.at("tmp"))
        self.write("to be or not to be, that is the question. " * 200, "text.txt")

    def shared_files(self, pids):
        """Files in /dev/shm that these processes have mapped and that still have a name."""
        found = set()
        for pid in pids:
            try:
                with open(f"/proc/{pid}/maps", encoding="utf-8") as f:
                    found |= {line.split()[-1] for line in f if "/dev/shm/" in line and "(deleted)" not in line}
            except OSError:
                pass
        return found

    def test_what_one_topology_refuses(self):
        for sweep, topology, words in (("reduce=ordered,native", "ps:sync", '"reduce": "native" is the ring\'s'),
                                       ("parameter_server.record_arrivals=true", "ps:sync", "use ps:async"),
                                       ("servers=1,0", "ps:sync", "servers")):
            p = self.run_it("--program", PROGRAM, "--a", topology, "--b", "zero:1", *self.SMALL, "--sweep", sweep, status=2)
            self.assertEqual((p.returncode, p.stdout), (2, ""), p.stderr)
            self.assertRegex(p.stderr, f"(?m)^compare.py: {topology} [^\n]*: starring: error: [^\n]*{words}")
            self.assertLessEqual(len(p.stderr.splitlines()), 3)
            self.assertFalse(os.path.exists(self.out))

    def test_a_killed_comparison_takes_its_run_along(self):
        for topology, number, least in (("ps:sync", signal.SIGKILL, 5), ("zero:1", signal.SIGKILL, 4), ("zero:1", signal.SIGTERM, 4)):
            self.remove("out")
            p = self.start(COMPARE, "--program", PROGRAM, "--a", topology, *self.SMALL, "--steps", "10000000", "--repeat", "1", "--set",
                           "eval_batches=0", "--out", self.out, program=sys.executable, env={"TMPDIR": self.at("tmp")})
            p.until(lambda run=f"out/{topology.replace(':', '-')}": self.steps(run), "a step")
            everyone = p.left()
            files = self.shared_files(everyone)
            p.send_signal(number)
            self.assertGreaterEqual(len(everyone), least)   # compare.py, train, the roles or ranks
            p.ends(-number, limit_s=PATIENCE_S, settle_s=PATIENCE_S)
            until = time.monotonic() + PATIENCE_S
            while os.listdir(self.at("tmp")) and time.monotonic() < until:
                time.sleep(0.05)
            self.assertEqual(os.listdir(self.at("tmp")), [])
            self.assertFalse([path for path in files if os.path.exists(path)])


class Makefile(Case):
    """GNU make cuts lists at spaces: the repository's own path may have them, BUILD may not."""

    def make(self, *argv):
        top = self.at("my clone")
        found = glob.glob(os.path.join(TOP, "*", "*.mk")) + glob.glob(os.path.join(TOP, "*", "*", "*.mk"))
        included = [os.path.relpath(path, TOP) for path in found if not os.path.relpath(path, TOP).startswith("build")]
        for name in ["Makefile"] + included:
            os.makedirs(os.path.dirname(os.path.join(top, name)), exist_ok=True)
            shutil.copy(os.path.join(TOP, name), os.path.join(top, name))
        env = {k: v for k, v in os.environ.items() if not k.startswith("MAKE") and k not in ("MFLAGS", "BUILD", "SAN")}
        return subprocess.run(["make", "--dry-run", "CUDA=0", *argv], capture_output=True, text=True, cwd=top, env=env,
                              check=False, timeout=PATIENCE_S)

    def test_the_tests_are_told_of_a_program_in_a_path_with_spaces(self):
        p = self.make("check")
        line = next(x for x in p.stdout.splitlines() if x.startswith("STARRING="))
        os.makedirs(self.at("my clone", "build"), exist_ok=True)
        told = subprocess.run(["sh", "-c", line.split(" python3 ")[0] + " sh -c 'echo \"$STARRING\"'"], capture_output=True,
                              text=True, cwd=self.at("my clone"), check=True).stdout
        self.assertEqual(told, self.at("my clone", "build", "starring") + "\n")

    def test_a_build_directory_with_spaces_is_refused(self):
        p = self.make("BUILD=my build")
        self.assertEqual(p.returncode, 2)
        self.assertIn('BUILD="my build": GNU make cannot build in a path with spaces', p.stderr)


if __name__ == "__main__":
    unittest.main()
