#!/usr/bin/env python3
"""Runs every test program, prints each one's closing lines, then "N passed, N failed".

    tests/run.py [--limit SECONDS] [--jobs N] [--san address|undefined|thread] PROGRAM...

A PROGRAM is a cmocka binary or a Python file of unittest cases. What is counted are single tests.
A program that crashes, hangs beyond the limit (it is killed with its children), or runs no test at all
counts as one failed test more. Exit status 1 when anything failed.

Programs that only compute (TOGETHER) run first, as many at once as the machine has cores; all others run alone, one
after the other: they judge times, or fill the machine themselves.
"""
import argparse
import concurrent.futures
import fnmatch
import os
import re
import shutil
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TAIL_LINES = 60  # of a failed program's output
# The longest first, so that none is left over at the end. What has a clock or a deadline in its promises stays out.
TOGETHER = ("test_job_cuda_ring", "test_job_cuda_star", "test_job_cuda", "test_decentral_cuda", "test_bits.py",
            "test_job_cuda_choices", "test_emulation_*", "test_bundle.py", "test_emulated_*", "test_kernels_*", "test_shared_*")
ALONE = ("test_kernels_*stream", "test_kernels_peak", "test_kernels_team", "*_time", "*_log")
running = set()  # process groups


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
    running.add(p.pid)
    try:
        out, _ = p.communicate(timeout=limit)
        status = p.returncode
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, signal.SIGKILL)
        out, _ = p.communicate()
        status = None
    finally:
        running.discard(p.pid)
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


class Outcome:
    """What a program's run came to: the counts, and the lines to print."""

    def __init__(self, program, args, env):
        self.name = os.path.basename(program)
        began = time.monotonic()
        output, status = "", 0
        if os.path.exists(program):
            output, status = run(command(program, args.san), env, args.limit)
        self.passed, self.failed = count(output)
        self.skipped = skipped(output)
        trouble = self._judge(os.path.exists(program), status, args.limit)
        seconds = time.monotonic() - began
        self.lines = [f"{'FAIL' if self.failed else 'ok  '} {self.name}  ({seconds:.1f} s){'  ' + trouble if trouble else ''}"]
        if self.failed:
            self.lines += ["     | " + line for line in output.splitlines()[-TAIL_LINES:]]
        else:
            self.lines += ["     " + line for line in closing_lines(output)]

    def _judge(self, built, status, limit):
        """Adds the failures that the output does not count; returns their reason."""
        if not built:
            self.failed = 1
            return "was not built"
        if status is None:
            self.failed += 1
            return f"killed: still running after {limit:g} s"
        if status < 0:
            self.failed += 1
            return f"died of signal {signal.Signals(-status).name}"
        if status != 0 and self.failed == 0:
            self.failed = 1
            return f"exit status {status}"
        if self.passed + self.failed + self.skipped == 0:
            self.failed = 1
            return "ran no test"
        return ""


def place_together(program):
    """The program's place among those that run at the same time; -1: it runs alone."""
    name = os.path.basename(program)
    if any(fnmatch.fnmatch(name, p) for p in ALONE):
        return -1
    return next((i for i, p in enumerate(TOGETHER) if fnmatch.fnmatch(name, p)), -1)


def outcomes(args, env):
    """Of every program, as they end."""
    together = sorted((p for p in args.programs if place_together(p) >= 0), key=place_together)
    if args.jobs == 1:
        together = []
    if together:
        pool = concurrent.futures.ThreadPoolExecutor(args.jobs)
        try:
            for done in concurrent.futures.as_completed([pool.submit(Outcome, p, args, env) for p in together]):
                yield done.result()
        finally:  # Ctrl-C too
            pool.shutdown(wait=False, cancel_futures=True)
            for group in list(running):
                os.killpg(group, signal.SIGKILL)
    for program in args.programs:
        if program not in together:
            yield Outcome(program, args, env)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--limit", type=float, default=300, help="seconds a program may take (default %(default)s)")
    ap.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)),
                    help="programs that run at once, of those that only compute (default: cores)")
    ap.add_argument("--san", default="", choices=["", "address", "undefined", "thread"])
    ap.add_argument("programs", nargs="*")
    args = ap.parse_args()
    if args.jobs < 1:
        ap.error("--jobs must be at least 1")
    env = environment(args.san)
    # A shell's background job starts with Ctrl-C ignored, and what is ignored stays so in the tests of it.
    for number in (signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    passed = failed = left_out = 0
    bad = []
    for one in outcomes(args, env):
        print("\n".join(one.lines), flush=True)
        if one.failed:
            bad.append(one.name)
        passed, failed, left_out = passed + one.passed, failed + one.failed, left_out + one.skipped
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
