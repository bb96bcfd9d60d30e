#!/usr/bin/env python3
"""Runs the targets of `make fuzz`, two at once, and prints a line for each: executions, what they reach, what was found.

    tests/fuzz/run.py --programs DIR --found DIR [--seconds N] [--jobs N] [--seed N] [TARGET...]

Each begins with tests/fuzz/corpus/TARGET and what earlier runs left in FOUND/TARGET. A finding is an input in
FOUND/findings/TARGET-..; `DIR/TARGET FILE` shows it again. --merge instead makes of both the fewest inputs that reach as
much, in FOUND/merged/TARGET. With a seed the inputs follow each other in one order, so that one program gets one verdict
(but for how far it comes in the time); without, each run tries others. Exit status 1: something was found, or a target did not run.
"""
import argparse
import concurrent.futures
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

CORPUS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus")
# Longest inputs, in bytes, where a longer history says no more than a shorter one. The others: LENGTH.
LENGTHS = {"star": 400, "elastic": 400, "server": 600, "worker": 600, "scheduler": 600, "kernels": 64, "numbers": 200, "wire": 1024, "registry": 1200, "link": 1200}
LENGTH = 4096
SLOWEST = 20  # seconds for one input: on a machine that does something else as well
MEMORY = 2048  # MiB


def arguments(args, name, scratch):
    own = os.path.join(args.found, name)
    os.makedirs(own, exist_ok=True)
    os.makedirs(os.path.join(args.found, "findings"), exist_ok=True)
    argv = [os.path.join(args.programs, name)]
    common = [f"-max_len={LENGTHS.get(name, LENGTH)}", f"-timeout={SLOWEST}", f"-rss_limit_mb={MEMORY}",
              f"-artifact_prefix={args.found}/findings/{name}-"]
    env = dict(os.environ, STARRING_FUZZ_DIR=scratch)
    env.setdefault("UBSAN_OPTIONS", "print_stacktrace=1")
    given = os.path.join(CORPUS, name)
    if args.merge:
        merged = os.path.join(args.found, "merged", name)
        shutil.rmtree(merged, ignore_errors=True)
        os.makedirs(merged)
        return argv + common + ["-merge=1", merged, given, own], env
    seed = [f"-seed={args.seed}"] if args.seed else []
    return argv + common + seed + [f"-max_total_time={args.seconds}", "-print_final_stats=1", own, given], env


class Result:
    def __init__(self, name, status, output):
        self.name, self.output = name, output
        last = re.findall(r"^#(\d+)\s+\w+\s+cov: (\d+) ft: (\d+) corp: (\d+)", output, re.M)
        self.reached = tuple(int(x) for x in last[-1]) if last else (0, 0, 0, 0)
        units = re.search(r"stat::number_of_executed_units:\s*(\d+)", output)
        self.executions = int(units.group(1)) if units else self.reached[0]
        self.finding = ", ".join(re.findall(r"Test unit written to (\S+)", output))
        self.what = re.findall(r"(?:FOUND: |ERROR: |runtime error: |SUMMARY: )(.*)", output)[:1]
        self.input = re.findall(r"^Base64: (\S*)", output, re.M)
        self.failed = status != 0 or not self.executions

    def line(self):
        end = self.finding or ("died without an input" if self.failed else "nothing found")
        return f"{self.name:14} {self.executions:>12,} executions  {self.reached[1]:>6} edges  {self.reached[3]:>6} inputs  {end}"


def run(args, name, running):
    with tempfile.TemporaryDirectory(prefix="starring-fuzz-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as scratch:
        argv, env = arguments(args, name, scratch)
        try:
            p = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env)
        except OSError as e:
            return Result(name, 1, str(e))
        running.add(p)
        output = p.communicate()[1].decode("utf-8", "replace")
        running.discard(p)
        return Result(name, p.returncode, output)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", required=True)
    parser.add_argument("--found", required=True)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--merge", action="store_true")
    parser.add_argument("targets", nargs="*")
    args = parser.parse_args()
    there = sorted(os.listdir(args.programs))
    unknown = sorted(set(args.targets) - set(there))
    if unknown:
        parser.error(f"no target {', '.join(unknown)}; there are {', '.join(there)}")
    running = set()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results = []
    try:
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            for result in pool.map(lambda name: run(args, name, running), args.targets or there):
                results.append(result)
                print(result.line(), flush=True)
                if result.failed:
                    print("\n".join("    | " + line for line in result.output.splitlines()[-60:]), flush=True)
    finally:
        for p in list(running):
            p.kill()
    failed = [r.name for r in results if r.failed]
    for r in results:
        if r.failed:
            print(f"{r.name}: {' '.join(r.what) or 'no reason said'}; its input, as base64: {' '.join(r.input) or '-'}")
    print(f"fuzz: {sum(r.executions for r in results):,} executions of {len(results)} targets, "
          + (f"findings: {', '.join(failed)}" if failed else "nothing found"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
