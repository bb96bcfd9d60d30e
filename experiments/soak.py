#!/usr/bin/env python3
"""Trains one very small model for many steps through every topology and checks that nothing grows.

Each process of a run is sampled periodically: its own memory (anonymous and shared, without the page cache), its open
descriptors, its threads. In the last fifth of the run, memory and descriptors may not exceed those of the second and third
tenth by more than --slack, which allows for growth that does not depend on the steps. Metrics on disk may grow.
"""
import argparse
import json
import os
import sys
import tempfile
import time

import cli
from drill import processes, soaking
from program import built


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--program", default=built(), help="the program to soak (%(default)s)")
    p.add_argument("--steps", type=int, default=80000, help="steps of each run (%(default)s)")
    p.add_argument("--job", action="append", default=[], metavar="NAME", help="only this job; repeatable: " + "; ".join(j.name for j in soaking.JOBS))
    p.add_argument("--slack", type=int, default=1 << 20, metavar="BYTES", help="growth of a process's memory that is allowed (%(default)s)")
    p.add_argument("--every", type=float, default=0.5, metavar="SECONDS", help="time between two samples (%(default)s)")
    p.add_argument("--limit", type=float, default=3600, metavar="SECONDS", help="a run that takes longer counts as hanging (%(default)s)")
    p.add_argument("--json", metavar="FILE", help="leave all figures there as one JSON document")
    args = p.parse_args()
    if args.steps < soaking.STEPS_LEAST or args.every <= 0 or args.slack < 0 or args.limit <= 0:
        p.error(f"--steps is at least {soaking.STEPS_LEAST}, --every and --limit are above 0, --slack is not below 0")
    return args


def soak(args, directory):
    config = soaking.write_config(directory)
    results = []
    for job in soaking.find(args.job):
        why = soaking.accepted(args.program, config, job)
        if why:
            print(f"left out: {job.name}: {why}", flush=True)
            continue
        result = soaking.soak(args, config, job, directory)
        results.append(result)
        print(soaking.line(result), flush=True)
    if not results:
        raise soaking.SoakError("none of the jobs can be trained here")
    print("\n" + soaking.markdown(results))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(soaking.document(results, args), f, indent=1)
    return results


def main():
    args = parse()
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="starring-soak-") as directory:
            try:
                results = soak(args, directory)
            finally:
                processes.end_all(str(os.getpid()))
    except soaking.SoakError as e:
        print(f"soak.py: error: {e}", file=sys.stderr)
        return 1
    wrong = [r for r in results if r.wrong]
    print(f"{len(results)} runs of {args.steps} steps in {time.monotonic() - began:.0f} s: "
          + (f"{len(wrong)} grew or failed" if wrong else "nothing grew"))
    return 1 if wrong else 0


if __name__ == "__main__":
    cli.run(main)
