#!/usr/bin/env python3
"""Runs every test program, prints each one's closing lines, then "N passed, N failed".

    tests/run.py [--tests all|short|long] [--list] [--limit SECONDS] [--jobs N] [--san address|undefined|thread] PROGRAM...

A PROGRAM is a cmocka binary or a Python file of unittest cases. Single tests are counted.
A program that crashes, hangs beyond the limit (it is killed with its children), or runs no test at all
counts as one failed test more. Exit status 1 when anything failed.

Programs that only compute (COMPUTE) run as many at once as the machine has cores, and beside them half as many again of those
that start processes and mostly wait for them, for whose deadlines the computing ones step back. When none is left that computes,
waiting ones take its place. At the end, one after the other, those that want the machine for themselves (ALONE): they judge times, or
look at all that is there.
"""
import argparse
import concurrent.futures
import contextlib
import fnmatch
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TAIL_LINES = 60  # of a failed program's output
# The longest first, so that none is left over at the end.
COMPUTE = ("test_job_cuda_ring", "test_job_cuda_star", "test_device.py", "test_job_cuda", "test_job_bench", "test_bits.py",
           "test_job_cuda_waits", "test_emulation_norm", "test_decentral_cuda", "test_job_equal",
           "test_job_cuda_choices", "test_bundle.py", "test_compare_statistics.py", "test_emulation_*", "test_emulated_*",
           "test_kernels_*", "test_shared_*", "test_fuzz_replay")
# All tests that are not ALONE: a deadline that only a hang may miss is many seconds there, and a kill waits for a step.
WAIT = ("test_job_rows.py", "test_compare_command.py", "test_standing_files.py", "test_stopped.py", "test_cluster_failures.py",
        "test_job_pairs.py", "test_restart.py", "test_ring_processes.py", "test_slow_files.py", "test_turns.py", "test_star_ranks.py",
        "test_drill.py", "test_star_resume.py", "test_cluster_ssh.py", "test_star_units.py", "test_shared_rendezvous", "test_job_launch",
        "test_resume.py", "test_predict_*.py", "test_ps_loss", "test_offload.py", "test_evaluation.py", "test_recipes.py", "*")
ALONE = ("test_decentral_mpi", "test_decentral_tcp", "test_kernels_*stream", "test_kernels_peak", "test_kernels_team", "test_*_time", "test_*_time.py",
         "test_*_log",
         "test_job_bench_*", "test_decentral_bench", "test_netlab.py", "test_medium.py", "test_soak.py",
         "test_job_arrivals", "test_ps_net", "test_ps_bench")
# These wait for deadlines, second lives, loads, and for the commands around the program, or train each consistency in many ways: they
# take three quarters of the time of all. Their subjects have short tests too: the state machines, and a run of each topology.
LONG = ("test_standing_files.py", "test_slow_files.py", "test_restart.py", "test_stopped.py", "test_frozen.py",
        "test_frozen_time.py", "test_everybody.py", "test_hostile.py", "test_drill.py", "test_soak.py",
        "test_costs.py", "test_job_trouble", "test_decentral_mpi", "test_decentral_tcp", "test_job_bench", "test_job_bench_ps", "test_compare_statistics.py", "test_device.py",
        "test_job_cuda", "test_job_cuda_ring", "test_job_cuda_star", "test_job_cuda_waits", "test_job_cuda_choices", "test_bundle.py", "test_interrupt.py",
        "test_compare_command.py", "test_gpu_check.py", "test_netlab.py", "test_launchers.py", "test_cluster_failures.py",
        "test_cluster_ssh.py", "test_cluster_files.py", "test_star_ranks.py", "test_job_rows.py", "test_recipe_hashes.py",
        "test_late_deaths.py", "test_star_groups.py", "test_job_pairs.py", "test_star_units.py", "test_ring_processes.py", "test_bounded_delay.py",
        "test_star_resume.py", "test_codec_resume.py", "test_late.py", "test_elastic.py", "test_local_steps.py", "test_shared_rank_files", "test_over_ssh.py",
        "test_cluster_hosts.py", "test_ring_ranks.py", "test_turns.py")
SLOWEST = 20  # named at the end
STEP_BACK = "5"  # `nice` of what computes


class Running:
    """The process groups of the programs under way. After end() none begins."""

    def __init__(self):
        self._lock, self._groups, self._over = threading.Lock(), set(), False

    def begin(self, argv, env):
        with self._lock:  # whoever ends all meets it in the set, or it does not begin
            if self._over:
                raise InterruptedError
            p = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env,
                                 start_new_session=True)
            self._groups.add(p.pid)
        return p

    def forget(self, p):
        with self._lock:
            self._groups.discard(p.pid)

    def end(self):
        with self._lock:
            self._over = True
            for group in self._groups:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)


running = Running()


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


def command(program, san, steps_back):
    argv = [sys.executable, program] if program.endswith(".py") else [program]
    # GCC's thread sanitizer cannot place its shadow under the address randomization of newer kernels.
    if san == "thread" and shutil.which("setarch") and not program.endswith(".py"):
        argv = ["setarch", os.uname().machine, "-R", *argv]
    return ["nice", "-n", STEP_BACK, *argv] if steps_back else argv


def seconds_given(elapsed):
    """The value of `elapsed` seconds for a program: if more want to run than there are cores, each has its share."""
    return elapsed * min(1, len(os.sched_getaffinity(0)) / max(1, os.getloadavg()[0]))


def run(argv, env, limit):
    """(output, exit status, or None when it was killed at the limit, which is in seconds that the machine gave it)."""
    p = running.begin(argv, env)
    used, last = 0, time.monotonic()
    while True:
        try:
            out, _ = p.communicate(timeout=1)
            status = p.returncode
            break
        except subprocess.TimeoutExpired:
            now = time.monotonic()
            used, last = used + seconds_given(now - last), now
            if used < limit:
                continue
            os.killpg(p.pid, signal.SIGKILL)
            out, _ = p.communicate()
            status = None
            break
    running.forget(p)
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
    """The result of a program's run: the counts, and the lines to print."""

    def __init__(self, program, args, env, steps_back=False):
        self.program, self.name = program, os.path.basename(program)
        began = time.monotonic()
        output, status = "", 0
        if os.path.exists(program):
            output, status = run(command(program, args.san, steps_back), env, args.limit)
        self.passed, self.failed = count(output)
        self.skipped = skipped(output)
        trouble = self._judge(os.path.exists(program), status, args.limit)
        self.seconds = time.monotonic() - began
        self.lines = [f"{'FAIL' if self.failed else 'ok  '} {self.name}  ({self.seconds:.1f} s){'  ' + trouble if trouble else ''}"]
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
            return f"killed: still running after {limit:g} s' worth of this machine"
        if status < 0:
            self.failed += 1
            known = -status in signal.Signals.__members__.values()
            return f"died of signal {signal.Signals(-status).name if known else -status}"
        if status != 0 and self.failed == 0:
            self.failed = 1
            return f"exit status {status}"
        if self.passed + self.failed + self.skipped == 0:
            self.failed = 1
            return "ran no test"
        return ""


def place(program, patterns):
    """The first pattern that the program's name matches; None: no pattern."""
    name = os.path.basename(program)
    return next((i for i, p in enumerate(patterns) if fnmatch.fnmatch(name, p)), None)


def sorted_by_kind(programs):
    """(those that compute, that wait, that run alone), each in the order in which they begin."""
    alone = [p for p in programs if place(p, ALONE) is not None]
    compute = [p for p in programs if p not in alone and place(p, COMPUTE) is not None]
    wait = [p for p in programs if p not in alone and p not in compute]
    return sorted(compute, key=lambda p: place(p, COMPUTE)), sorted(wait, key=lambda p: place(p, WAIT)), alone


def outcomes(args, env):
    """The results of every program, as they end. All run on other threads: Ctrl-C comes to this one, never between a program's start
    and its place among those that are ended."""
    compute, wait, alone = sorted_by_kind(args.programs) if args.jobs > 1 else ([], [], args.programs)
    pools = [concurrent.futures.ThreadPoolExecutor(n) for n in (args.jobs, args.jobs + args.jobs // 2, 1)]
    waiting = queue.SimpleQueue()
    for program in wait:
        waiting.put(program)

    def next_waiting():
        """Its Outcome; None: another pool has taken the last one."""
        with contextlib.suppress(queue.Empty):
            return Outcome(waiting.get_nowait(), args, env)

    try:
        every = [pools[0].submit(Outcome, p, args, env, bool(wait)) for p in compute]
        every += [pool.submit(next_waiting) for _ in wait for pool in pools[:2]]
        for done in concurrent.futures.as_completed(every):
            if done.result():
                yield done.result()
        for program in alone:
            yield pools[2].submit(Outcome, program, args, env).result()
    except KeyboardInterrupt:
        running.end()
        raise
    finally:
        for pool in pools:
            pool.shutdown(wait=False, cancel_futures=True)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--limit", type=float, default=600, help="seconds a program may take on an idle machine: those of a busy one count less (default %(default)s)")
    ap.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)),
                    help="programs of either kind that run at once; 1: every program runs alone (default: cores)")
    ap.add_argument("--tests", default="all", choices=["all", "short", "long"], help="which of the programs: LONG ones or the others (default %(default)s)")
    ap.add_argument("--list", action="store_true", help="print those of --tests, a line each, and run nothing: what is to be built")
    ap.add_argument("--san", default="", choices=["", "address", "undefined", "thread"])
    ap.add_argument("programs", nargs="*")
    args = ap.parse_args()
    if args.jobs < 1:
        ap.error("--jobs must be at least 1")
    if not args.programs:
        print("no test program was given")
        return 1
    every = args.programs
    args.programs = [p for p in every if args.tests == "all" or (place(p, LONG) is not None) == (args.tests == "long")]
    if args.list:
        print("\n".join(args.programs))
        return 0
    env = environment(args.san)
    # A shell's background job starts with Ctrl-C ignored, and what is ignored stays so in the tests of it.
    for number in (signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    # So does SIGHUP under nohup: it stays without effect here, and a test begins with its default.
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
    ended = []
    for one in outcomes(args, env):
        print("\n".join(one.lines), flush=True)
        ended.append(one)
    passed, failed, left_out = (sum(getattr(one, count) for one in ended) for count in ("passed", "failed", "skipped"))
    slowest = sorted(ended, key=lambda one: -one.seconds)[:SLOWEST]
    print("slowest, in seconds: " + ", ".join(f"{one.name} {one.seconds:.0f}" for one in slowest))
    if args.tests == "short" and len(every) > len(args.programs):
        print(f"left out: {len(every) - len(args.programs)} programs that take long, which `make check` runs too")
    if failed:
        print("failed: " + " ".join(one.name for one in ended if one.failed))
    if left_out:
        print(f"{left_out} skipped, for the reasons printed above")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
