#!/usr/bin/env python3
"""tests/run.py: what it counts, and that neither a crash nor a hang passes for success."""
import fnmatch
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, HERE)
import run as runner

CMOCKA = """[==========] Running 3 test(s).
[ RUN      ] a
[       OK ] a
[==========] 3 test(s) run.
[  PASSED  ] 2 test(s).
[  FAILED  ] 1 test(s), listed below:
[  FAILED  ] b

 1 FAILED TEST(S)
"""


# The same program - a group of one test that passes, one that is skipped, one that fails, then a group of which the
# only test is skipped - with cmocka 1.1.5 (Debian 12) and 1.1.7 (Ubuntu 24.04), which puts the group's name first.
CMOCKA_1_1_5 = """[==========] Running 3 test(s).
[ RUN      ] a
[       OK ] a
[ RUN      ] b
[  SKIPPED ] b
[ RUN      ] c
[  ERROR   ] --- 0x1 != 0x2
[   LINE   ] --- t.c:8: error: Failure!
[  FAILED  ] c
[==========] 3 test(s) run.
[  PASSED  ] 1 test(s).
[  SKIPPED ] 1 test(s), listed below:
[  SKIPPED ] b

 1 SKIPPED TEST(S)
[  FAILED  ] 1 test(s), listed below:
[  FAILED  ] c

 1 FAILED TEST(S)
[==========] Running 1 test(s).
[ RUN      ] b
[  SKIPPED ] b
[==========] 1 test(s) run.
[  PASSED  ] 0 test(s).
[  SKIPPED ] 1 test(s), listed below:
[  SKIPPED ] b

 1 SKIPPED TEST(S)
"""
CMOCKA_1_1_7 = """[==========] all: Running 3 test(s).
[ RUN      ] a
[       OK ] a
[ RUN      ] b
[  SKIPPED ] b
[ RUN      ] c
[  ERROR   ] --- 0x1 != 0x2
[   LINE   ] --- t.c:8: error: Failure!
[  FAILED  ] c
[==========] all: 3 test(s) run.
[  PASSED  ] 1 test(s).
[  SKIPPED ] all: 1 test(s), listed below:
[  SKIPPED ] b

 1 SKIPPED TEST(S)
[  FAILED  ] all: 1 test(s), listed below:
[  FAILED  ] c

 1 FAILED TEST(S)
[==========] skips: Running 1 test(s).
[ RUN      ] b
[  SKIPPED ] b
[==========] skips: 1 test(s) run.
[  PASSED  ] 0 test(s).
[  SKIPPED ] skips: 1 test(s), listed below:
[  SKIPPED ] b

 1 SKIPPED TEST(S)
"""


class Counting(unittest.TestCase):
    def test_cmocka(self):
        self.assertEqual(runner.count(CMOCKA), (2, 1))
        self.assertEqual(runner.count(CMOCKA + "[  PASSED  ] 4 test(s).\n"), (6, 1))

    def test_cmocka_with_groups_named(self):
        named = CMOCKA.replace("[  FAILED  ] 1 test(s)", "[  FAILED  ] group: 1 test(s)")
        self.assertEqual(runner.count(named), (2, 1))

    def test_skipped_tests_are_neither(self):
        for text in (CMOCKA_1_1_5, CMOCKA_1_1_7):
            self.assertEqual((runner.count(text), runner.skipped(text)), ((1, 1), 2))
            self.assertEqual(len([line for line in runner.closing_lines(text) if "SKIPPED ]" in line and "(s)" in line]), 2)
        text = "Ran 5 tests in 0.1s\n\nOK (skipped=2)\n"
        self.assertEqual((runner.count(text), runner.skipped(text)), ((3, 0), 2))

    def test_unittest(self):
        self.assertEqual(runner.count("Ran 5 tests in 0.1s\n\nOK\n"), (5, 0))
        self.assertEqual(runner.count("Ran 5 tests in 0.1s\n\nFAILED (failures=1, errors=2)\n"), (2, 3))


class Running(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.program = os.path.join(folder.name, "test_program")

    def result(self, body, *options):
        with open(self.program, "w", encoding="utf-8") as f:
            f.write("#!/bin/sh\n" + body)
        os.chmod(self.program, os.stat(self.program).st_mode | stat.S_IXUSR)
        p = subprocess.run([sys.executable, os.path.join(HERE, "run.py"), *options, self.program],
                           capture_output=True, text=True, check=False)
        return p.returncode, p.stdout.splitlines()[-1], p.stdout

    def test_success(self):
        status, last, _ = self.result("echo '[  PASSED  ] 3 test(s).' >&2\n")
        self.assertEqual((status, last), (0, "3 passed, 0 failed"))

    def test_a_program_whose_tests_are_all_skipped(self):
        for group in ("", "tests: "):
            status, last, out = self.result(f"echo '[  PASSED  ] 0 test(s).'\n"
                                            f"echo '[  SKIPPED ] {group}1 test(s), listed below:'\n")
            self.assertEqual((status, last), (0, "0 passed, 0 failed"))
            self.assertIn("1 skipped, for the reasons printed above", out)

    def test_a_hang_is_killed_with_its_children(self):
        status, last, out = self.result("echo '[  PASSED  ] 3 test(s).'\nsleep 600 & sleep 600\n", "--limit", "0.5")
        self.assertEqual((status, last), (1, "3 passed, 1 failed"))
        self.assertIn("killed: still running after 0.5 s", out)

    def test_a_crash_after_the_closing_lines(self):
        status, last, out = self.result("echo '[  PASSED  ] 3 test(s).'\nkill -SEGV $$\n")
        self.assertEqual((status, last), (1, "3 passed, 1 failed"))
        self.assertIn("SIGSEGV", out)

    def test_a_status_that_no_test_explains(self):
        self.assertEqual(self.result("echo '[  PASSED  ] 3 test(s).'\nexit 3\n")[:2], (1, "3 passed, 1 failed"))

    def test_ctrl_c_reaches_tests_of_a_background_job(self):
        with open(self.program, "w", encoding="utf-8") as f:
            f.write("#!/bin/sh\necho '[  PASSED  ] 1 test(s).'\nkill -INT $$\n")
        os.chmod(self.program, 0o755)
        p = subprocess.run(["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, os.path.join(HERE, "run.py"), self.program],
                           capture_output=True, text=True, check=False)
        self.assertIn("SIGINT", p.stdout)
        self.assertEqual(p.stdout.splitlines()[-1], "1 passed, 1 failed")

    def test_silence_is_no_success(self):
        self.assertEqual(self.result("exit 0\n")[:2], (1, "0 passed, 1 failed"))

    def test_nothing_is_asked_twice(self):
        """The first time one test fails, from then on both would pass."""
        status, last, out = self.result(
            f"cd '{os.path.dirname(self.program)}'\nif [ -e once ]; then echo '[  PASSED  ] 2 test(s).'; exit 0; fi\n"
            "touch once\necho '[  PASSED  ] 1 test(s).'\necho '[  FAILED  ] 1 test(s), listed below:'\nexit 1\n")
        self.assertEqual((status, last), (1, "1 passed, 1 failed"))
        self.assertEqual(out.count("test_program"), 3, out)  # its line, the slowest, the failed

    def test_a_program_that_was_not_built(self):
        p = subprocess.run([sys.executable, os.path.join(HERE, "run.py"), self.program], capture_output=True, text=True,
                           check=False)
        self.assertEqual(p.returncode, 1)
        self.assertIn("was not built", p.stdout)

    def several(self, body, names, *options):
        """Runs a program of each name at once; what was printed."""
        folder = os.path.dirname(self.program)
        paths = [os.path.join(folder, name) for name in names]
        for path in paths:
            with open(path, "w", encoding="utf-8") as f:
                f.write("#!/bin/sh\ncd '" + folder + "'\n" + body)
            os.chmod(path, 0o755)
        return [sys.executable, os.path.join(HERE, "run.py"), *options, *paths]

    def begin(self, body, names, *options):
        argv = self.several(body, names, *options)
        p = subprocess.run(argv, capture_output=True, text=True, check=False)
        return p.returncode, p.stdout.splitlines()[-1], p.stdout

    # Each waits until so many have begun: they can only pass at the same time.
    MEET = ("touch began-$(basename $0)\nfor i in $(seq 2400); do\n"
            "  [ $(ls began-* | wc -l) -eq %d ] && { echo '[  PASSED  ] 1 test(s).'; exit 0; }; sleep 0.05\ndone\nexit 1\n")

    def test_what_only_computes_runs_together(self):
        status, last, out = self.begin(self.MEET % 2, ("test_kernels_a", "test_shared_b"), "--jobs", "2")
        self.assertEqual((status, last), (0, "2 passed, 0 failed"), out)

    def test_what_waits_runs_beside_what_computes(self):
        names = "test_kernels_a", "test_shared_b", "test_ps_c", "test_d.py.sh"
        status, last, out = self.begin(self.MEET % 4, names, "--jobs", "2")
        self.assertEqual((status, last), (0, "4 passed, 0 failed"), out)

    def test_what_waits_takes_the_place_of_what_computes(self):
        names = "test_kernels_a", "test_ps_b", "test_ps_c", "test_ps_d", "test_ps_e", "test_ps_f"
        status, last, out = self.begin(f"case $0 in *_a) echo '[  PASSED  ] 1 test(s).'; exit;; esac\n{self.MEET % 5}", names, "--jobs", "2")
        self.assertEqual((status, last), (0, "6 passed, 0 failed"), out)

    COUNT = "n=$(ls -d busy-* 2>/dev/null | wc -l)\nmkdir busy-$(basename $0)\nsleep 0.3\nrmdir busy-$(basename $0)\n"

    def test_what_judges_times_runs_alone(self):
        alone = self.COUNT + "case $0 in *time | *stream | *net) [ $n -eq 0 ];; esac && echo '[  PASSED  ] 1 test(s).'\n"
        names = "test_job_time", "test_kernels_stream", "test_ps_net", "test_kernels_a", "test_kernels_b", "test_ps_c", "test_ps_d"
        status, last, out = self.begin(alone, names, "--jobs", "4")
        self.assertEqual((status, last), (0, "7 passed, 0 failed"), out)

    def test_one_job_is_one_program_at_a_time(self):
        names = "test_kernels_a", "test_ps_c", "test_shared_b"
        status, last, out = self.begin(self.COUNT + "[ $n -eq 0 ] && echo '[  PASSED  ] 1 test(s).'\n", names, "--jobs", "1")
        self.assertEqual((status, last), (0, "3 passed, 0 failed"), out)

    def test_names_of_the_lists_are_tests(self):
        tests = {os.path.splitext(file)[0] if file.endswith(".c") else file for _, _, files in os.walk(HERE) for file in files
                 if file.startswith("test_")}
        tests |= {name.replace("test_kernels_", "test_emulation_") for name in tests}  # the same sources on the emulated GPU (emulation.mk)
        for pattern in runner.COMPUTE + runner.WAIT + runner.ALONE + runner.LONG:
            self.assertTrue(fnmatch.filter(tests, pattern), pattern)

    def test_those_that_take_long_are_left_out(self):
        names, passed = ("test_kernels_a", "test_job_trouble"), "echo '[  PASSED  ] 1 test(s).'\n"
        for tests, ran, left in (("short", ["test_kernels_a"], True), ("long", ["test_job_trouble"], False),
                                 ("all", ["test_job_trouble", "test_kernels_a"], False)):
            status, last, out = self.begin(passed, names, "--tests", tests)
            self.assertEqual((status, last), (0, f"{len(ran)} passed, 0 failed"), out)
            self.assertEqual(sorted(line.split()[1] for line in out.splitlines() if line.startswith("ok ")), ran)
            self.assertEqual("left out: 1 programs that take long" in out, left)
            listed = subprocess.run([*self.several(passed, names, "--tests", tests), "--list"], capture_output=True, text=True, check=True)
            self.assertEqual(sorted(map(os.path.basename, listed.stdout.split())), ran)

    def test_what_computes_steps_back_for_what_waits(self):
        nice = "case $0 in *kernels*) [ $(nice) -gt %s ];; *) [ $(nice) -eq %s ];; esac && echo '[  PASSED  ] 1 test(s).'\n"
        own = os.nice(0)
        status, last, out = self.begin(nice % (own, own), ("test_kernels_a", "test_ps_c", "test_job_time"), "--jobs", "2")
        self.assertEqual((status, last), (0, "3 passed, 0 failed"), out)

    def interrupted(self, names, running):
        argv = self.several("echo $$ >> pids\nsleep 600\n", names, "--jobs", "2")
        p = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2400):
            if len(self.pids()) == running:
                break
            time.sleep(0.05)
        p.send_signal(signal.SIGINT)
        p.communicate(timeout=60)
        self.assertEqual(len(self.pids()), running)
        until = time.monotonic() + 30
        while any(map(self.runs, self.pids())) and time.monotonic() < until:
            time.sleep(0.02)
        self.assertEqual([pid for pid in self.pids() if self.runs(pid)], [])

    @staticmethod
    def runs(pid):
        """One that was killed is gone, or waits to be collected by whoever inherits it."""
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
                return f.read().rpartition(")")[2].split()[0] not in "ZX"
        except (FileNotFoundError, ProcessLookupError):
            return False

    def test_ctrl_c_ends_what_runs_together(self):
        self.interrupted(("test_kernels_a", "test_kernels_b", "test_kernels_c", "test_ps_d"), 3)

    def test_ctrl_c_ends_what_runs_alone(self):
        self.interrupted(("test_a_time", "test_b_time"), 1)

    def pids(self):
        path = os.path.join(os.path.dirname(self.program), "pids")
        if not os.path.exists(path):
            return []
        with open(path, encoding="utf-8") as f:
            return [int(pid) for pid in f.read().split()]


if __name__ == "__main__":
    unittest.main()
