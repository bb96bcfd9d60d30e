#!/usr/bin/env python3
"""Kills processes of small runs at random moments and checks that nothing is lost.

Each exercise trains one small model with checkpoints and --restart, and kills (or freezes) one or two of its processes at a
time drawn from the seed: at the start, in a step, while a checkpoint is written or renamed, or again while the restarted
run loads one. Then it checks that the run ended with status 0, that the hash of the last weights is that of an undisturbed
run, and that no process, shared memory or unfinished checkpoint is left. docs/recovery.md says what is promised under which fault.
"""
import argparse
import concurrent.futures
import json
import os
import shutil
import sys
import tempfile
import time

import cli
from drill import exercise, jobs, processes, table
from program import built


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--program", default=built(), help="the program to drill (%(default)s)")
    p.add_argument("--runs", type=int, default=30, help="exercises (%(default)s)")
    p.add_argument("--seed", type=int, default=1, help="decides which process is killed, and when (%(default)s)")
    p.add_argument("--first", type=int, default=0, help="number of the first exercise: with --runs 1 one of them again")
    p.add_argument("--job", action="append", default=[], metavar="NAME", help="only this job; repeatable: " + "; ".join(j.name for j in jobs.JOBS))
    p.add_argument("--at-once", type=int, default=1, metavar="N", help="exercises at the same time (%(default)s)")
    p.add_argument("--load", type=int, default=0, metavar="N", help="kills nothing, but runs N processes that only compute at the same time: no run may "
                   "take a restart (under `nice`, where others use the machine)")
    p.add_argument("--deadline", type=float, default=jobs.DEADLINE_S, metavar="S", help="deadline_ms of the jobs, in seconds (%(default)s)")
    p.add_argument("--minutes", type=float, default=0, help="begin no exercise later than this (0: no limit)")
    p.add_argument("--out", help="where runs that went wrong stay (a directory that is made; default: a temporary one)")
    p.add_argument("--json", metavar="FILE", help="leave every exercise there as one JSON document")
    args = p.parse_args()
    if args.runs < 1 or args.at_once < 1 or args.first < 0 or args.minutes < 0 or args.load < 0:
        p.error("--runs and --at-once are at least 1, --first, --minutes and --load at least 0")
    if args.deadline <= 0:
        p.error("--deadline is above 0")
    return args


def chosen(args, config):
    """The jobs that this machine can train. The others are printed."""
    found = []
    for job in jobs.find(args.job):
        why = jobs.accepted(args.program, config, job)
        if why:
            print(f"left out: {job.name}: {why}", flush=True)
        else:
            found.append(job)
    if not found:
        raise jobs.DrillError("none of the jobs can be trained here")
    return found


def report(result):
    who = "the launcher" if result.how == "launcher" else " and ".join(result.victims) or "nobody"
    well = "well" if result.hit or result.how == exercise.NOBODY else "well (there was no process to kill)"
    verdict = "; ".join(result.wrong) if result.wrong else well
    print(f"[{result.number}] {result.job}: {who}, {result.moment}, {result.how}: {verdict}", flush=True)


def drill(args, directory):
    config = jobs.write_config(directory, args.deadline)
    todo = chosen(args, config)
    for job in todo:
        exercise.undisturbed(args.program, config, job, directory)
    began, results = time.monotonic(), []

    def one(number):
        if args.minutes and time.monotonic() - began > 60 * args.minutes:
            return None
        return exercise.exercise(args.program, config, todo[number % len(todo)], number, (args.seed, directory), bool(args.load))
    with processes.burning(args.load), concurrent.futures.ThreadPoolExecutor(args.at_once) as pool:
        for result in pool.map(one, range(args.first, args.first + args.runs)):
            if result:
                report(result)
                results.append(result)
    print("\n" + table.markdown(results))
    if args.json:
        facts = {"seed": args.seed, "steps": jobs.STEPS, "checkpoint_every": jobs.EVERY, "seconds": time.monotonic() - began,
                 "load": args.load, "deadline": args.deadline}
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(table.document(results, facts), f, indent=1)
    return results


def main():
    args = parse()
    args.program = os.path.abspath(args.program)
    if args.out:
        os.makedirs(args.out, exist_ok=True)
    directory = os.path.abspath(args.out) if args.out else tempfile.mkdtemp(prefix="starring-drill-")
    try:
        results = drill(args, directory)
    except (jobs.DrillError, OSError) as e:
        print(f"drill.py: error: {e}", file=sys.stderr)
        return 1
    wrong = [r for r in results if r.wrong]
    if wrong:
        print(f"\n{len(wrong)} of {len(results)} went wrong; their runs are in {directory}; one of them again: "
              f"--seed {args.seed} --first {wrong[0].number} --runs 1", file=sys.stderr)
    elif not args.out:
        shutil.rmtree(directory)
    return 1 if wrong else 0


if __name__ == "__main__":
    cli.run(main)
