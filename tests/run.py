#!/usr/bin/env python3
"""Runs every test program, prints each one's closing lines, then "N passed, N failed".

    tests/run.py [--limit SECONDS] [--san address|undefined|thread] PROGRAM...

A PROGRAM is a cmocka binary or a Python file of unittest cases. What is counted are single tests.
A program that crashes, hangs beyond the limit (it is killed with its children), or runs no test at all
counts as one failed test more. Exit status 1 when anything failed.
"""
import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TAIL_LINES = 60  # of a failed program's output


def environment(san):
    """The sanitizers stop at the first finding; what lies inside system libraries is suppressed by file."""
    env = dict(os.environ)
    # Open MPI refuses root and more ranks than cores unless told; tests start it with both.
    for key in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        env.setdefault(key, "1")
    env.setdefault("OMPI_MCA_rmaps_base_oversubscribe", "1")
    # What these tests check is the same on a machine with a GPU; gpu_check.py is for that. The emulated one names
    # itself where it is wanted.
    env["STARRING_CUDA_SO"] = os.path.join(HERE, "no-gpu-here", "libstarring_cuda.so")
    if san == "thread":
        env["TSAN_OPTIONS"] = options("halt_on_error=1:second_deadlock_stack=1", "tsan.supp", env.get("TSAN_OPTIONS"))
    if san == "address":
        env["ASAN_OPTIONS"] = options("abort_on_error=0", None, env.get("ASAN_OPTIONS"))
        env["LSAN_OPTIONS"] = options("print_suppressions=0", "lsan.supp", env.get("LSAN_OPTIONS"))
    if san == "undefined":
        env["UBSAN_OPTIONS"] = options("print_stacktrace=1", None, env.get("UBSAN_OPTIONS"))
    return env


def options(text, suppressions, given):
    path = os.path.join(HERE, suppressions) if suppressions else None
    if path and os.path.exists(path):
        text += ":suppressions=" + path
    return text + (":" + given if given else "")


def command(program, san):
    if program.endswith(".py"):
        return [sys.executable, program]
    # GCC's thread sanitizer cannot place its shadow under the address randomization of newer kernels.
    if san == "thread" and shutil.which("setarch"):
        return ["setarch", os.uname().machine, "-R", program]
    return [program]


def run(argv, env, limit):
    """(output, exit status, or None when it was killed at the limit)."""
    p = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         env=env, start_new_session=True)
    try:
        out, _ = p.communicate(timeout=limit)
        status = p.returncode
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, signal.SIGKILL)
        out, _ = p.communicate()
        status = None
    return out.decode("utf-8", "replace"), status


def count(output):
    """(passed, failed) of the closing lines of cmocka groups or of unittest."""
    passed = sum(int(n) for n in re.findall(r"^\[  PASSED  \] (\d+) test", output, re.M))
    failed = sum(int(n) for n in re.findall(r"^\[  FAILED  \] [^\n]*?(\d+) test\(s\), listed", output, re.M))
    ran = re.findall(r"^Ran (\d+) tests? in", output, re.M)
    if ran:
        bad = re.findall(r"^FAILED \((.*)\)$", output, re.M)
        failed += sum(int(n) for line in bad for n in re.findall(r"(?:failures|errors)=(\d+)", line))
        passed += sum(int(n) for n in ran) - failed - skipped(output)
    return passed, failed


def skipped(output):
    return sum(int(n) for n in re.findall(r"^\[  SKIPPED \] [^\n]*?(\d+) test\(s\), listed", output, re.M)
               + re.findall(r"^(?:OK|FAILED) \(.*skipped=(\d+)", output, re.M))


def closing_lines(output):
    pattern = re.compile(r"^(\[==========\] .*run\.?|\[  (PASSED |FAILED |SKIPPED) \] .*test.*|Ran \d+ tests?.*|OK.*|FAILED \(.*)$")
    return [line for line in output.splitlines() if pattern.match(line)]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--limit", type=float, default=300, help="seconds a program may take (default %(default)s)")
    ap.add_argument("--san", default="", choices=["", "address", "undefined", "thread"])
    ap.add_argument("programs", nargs="*")
    args = ap.parse_args()
    env = environment(args.san)
    # A shell's background job starts with Ctrl-C ignored, and what is ignored stays so in the tests of it.
    for number in (signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    passed = failed = left_out = 0
    bad = []
    for program in args.programs:
        name = os.path.basename(program)
        began = time.monotonic()
        output, status = "", 0
        if os.path.exists(program):
            output, status = run(command(program, args.san), env, args.limit)
        ok, wrong = count(output)
        trouble = ""
        if not os.path.exists(program):
            trouble, wrong = "was not built", 1
        elif status is None:
            trouble, wrong = f"killed: still running after {args.limit:g} s", wrong + 1
        elif status < 0:
            trouble, wrong = f"died of signal {signal.Signals(-status).name}", wrong + 1
        elif status != 0 and wrong == 0:
            trouble, wrong = f"exit status {status}", 1
        elif ok + wrong + skipped(output) == 0:
            trouble, wrong = "ran no test", 1
        print(f"{'ok  ' if wrong == 0 else 'FAIL'} {name}  ({time.monotonic() - began:.1f} s){'  ' + trouble if trouble else ''}")
        if wrong:
            bad.append(name)
            for line in output.splitlines()[-TAIL_LINES:]:
                print("     | " + line)
        else:
            for line in closing_lines(output):
                print("     " + line)
        sys.stdout.flush()
        passed, failed, left_out = passed + ok, failed + wrong, left_out + skipped(output)
    if bad:
        print("failed: " + " ".join(bad))
    if left_out:
        print(f"{left_out} skipped, for the reasons printed above")
    if not args.programs:
        print("no test program was given")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not args.programs else 0


if __name__ == "__main__":
    sys.exit(main())
