#!/usr/bin/env python3
"""Measures what checkpoints cost whole runs, and how long a run stands still after a rank is killed.

The first table has each job without checkpoints, with --checkpoint-every, and with --checkpoint-background, one after the other
for several rounds. A checkpoint can slow the step whose state it keeps and the step after it; the other steps show the cost of
writing in the background. The second table has the seconds from a kill -9 to the next step in metrics.jsonl, by the role that was killed.
--out decides which disk is measured; `starring bench checkpoint` measures that disk's own rate."""
import argparse
import glob
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import cli
from drill import costs, exercise, jobs, moments, processes
from program import built

# Per job: the flags, the roles that are killed, and the ways of writing checkpoints. A star's servers always write in the background.
JOBS = {
    "ps:sync": (["--topology", "ps:sync", "--workers", "2", "--servers", "1"], ["worker 0", "worker 1", "server 0"], ["none", "background"]),
    "zero:1": (["--topology", "zero:1", "--workers", "2"], ["run"], list(costs.WAYS)),
    "local": (["--topology", "local"], ["run"], list(costs.WAYS)),
}
RESTARTS, END_S, LIMIT_S = 3, 60, 600
MANY_STEPS = 100000  # more than a run reaches before its role is killed and it is ended


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--program", default=built(), help="the program to measure (%(default)s)")
    p.add_argument("--model", default="demo", help="(%(default)s)")
    p.add_argument("--batch", type=int, default=1, help="sequences a step and worker (%(default)s)")
    p.add_argument("--seq", type=int, default=128, help="tokens a sequence (%(default)s)")
    p.add_argument("--threads", type=int, default=1, help="CPU threads of a worker (%(default)s)")
    p.add_argument("--job", action="append", choices=list(JOBS), metavar="NAME", help="only this job; repeatable: " + ", ".join(JOBS))
    p.add_argument("--steps", type=int, default=60, help="of each run of the first table (%(default)s)")
    p.add_argument("--every", type=int, default=10, metavar="K", help="steps from checkpoint to checkpoint (%(default)s)")
    p.add_argument("--rounds", type=int, default=3, help="of the ways in turn; 0: no first table (%(default)s)")
    p.add_argument("--kills", type=int, default=3, help="of each role; 0: no second table (%(default)s)")
    p.add_argument("--dtype", default="bf16", choices=["fp32", "bf16", "fp16"], help="(%(default)s)")
    p.add_argument("--seed", type=int, default=1, help="decides when somebody is killed (%(default)s)")
    p.add_argument("--out", help="where the runs lie, on the disk that is meant (default: a temporary directory)")
    p.add_argument("--json", metavar="FILE", help="leave all tables there as one JSON document")
    args = p.parse_args()
    if min(args.batch, args.seq, args.threads) < 1 or min(args.rounds, args.kills) < 0:
        p.error("--batch, --seq and --threads are at least 1, --rounds and --kills at least 0")
    if args.every < 4 or args.steps < 2 * args.every:
        p.error("--every is at least 4, --steps at least twice that: there must be steps without a checkpoint beside them")
    return args


def command(args, flags, out, steps, more):
    return [args.program, "train", "--model", args.model, "--data", "demo", "--tokenizer", "byte", "--batch", str(args.batch), "--seq", str(args.seq),
            "--threads", str(args.threads), "--steps", str(steps), "--dtype", args.dtype, "--set", "eval_batches=none", "--quiet",
            "--no-weights", "--out", out, *flags, *more]


def measure_run(argv, out, what, read):
    """Runs argv, and returns what read(out) computes from the run's directory, which is then removed."""
    p = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, preexec_fn=cli.dies_with_us())
    if p.returncode:
        raise costs.CostsError(f"{what}: exit status {p.returncode}: {' '.join(argv)}\n{p.stderr.strip()}")
    run = read(out)
    shutil.rmtree(out)
    os.sync()  # else the next run would wait for this run's pages to be written
    return run


def measure_way(args, job, way, directory):
    out, every = os.path.join(directory, "run"), 0 if way == "none" else args.every
    argv = command(args, JOBS[job][0], out, args.steps, ["--checkpoint-every", str(every), *costs.WAYS[way]] if every else [])
    return measure_run(argv, out, f"{job}, checkpoints {way}", lambda at: costs.read_run(at, every))


def measure_steps(args, job, directory):
    """The rows of one job. Each round begins with a different way, so that none is always the first."""
    rounds, ways = [], JOBS[job][2]
    for r in range(args.rounds):
        first = r % len(ways)
        rounds.append({way: measure_way(args, job, way, directory) for way in ways[first:] + ways[:first]})
    return [costs.step_row(job, way, rounds) for way in ways]


class Death(exercise.Exercise):
    """A run in which one role is killed once. After the restarted run has completed a step, it is interrupted."""
    next_step_s = LIMIT_S

    def __init__(self, args, job, role, number, directory):
        result = exercise.Result(number, job, [role], "step", "killed")
        super().__init__(args.program, None, jobs.Job(job, JOBS[job][0], JOBS[job][1]), result, directory)
        self.every = args.every
        self.argv = command(args, JOBS[job][0], self.out, MANY_STEPS, ["--checkpoint-every", str(args.every), "--restart", str(RESTARTS)])

    def await_step(self, step):
        until = time.monotonic() + LIMIT_S
        while self.alive() and moments.last_step(self.out) < step:
            if time.monotonic() > until:
                raise costs.CostsError(f"{self.job.name}: no step {step} in {LIMIT_S} s: {' '.join(self.argv)}")
            time.sleep(moments.LOOK_S)

    def deaths(self, draw):
        """Waits until some time between the first complete checkpoint and the next one."""
        self.await_step(self.every + draw.randrange(1, self.every + 1))
        while self.alive() and not glob.glob(os.path.join(glob.escape(self.out), "checkpoints", "step-*")):
            time.sleep(moments.LOOK_S)
        self.await_victims()
        there = processes.roles(self.mark)
        before = {v: there[v] for v in self.result.victims if v in there}
        step, died = moments.last_step(self.out), time.monotonic()
        self.result.hit = self.signal_victims(signal.SIGKILL)
        if self.result.hit:
            self.measure(died, step, before)

    def end(self):
        """Interrupts the run, which has been measured."""
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(timeout=END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        processes.end_all(self.mark)

    def run(self, draw):
        os.makedirs(self.directory, exist_ok=True)
        try:
            self.start(self.argv)
            self.deaths(draw)
        finally:
            if self.process:
                self.end()
        if self.result.to_next_s is None:
            with open(os.path.join(self.directory, "output.txt"), encoding="utf-8", errors="replace") as f:
                happened = "was killed and no step followed" if self.result.hit else "could not be killed, the run had ended"
                raise costs.CostsError(f"{self.job.name}: {self.result.victims[0]} {happened}:\n{f.read()[-2000:]}")
        shutil.rmtree(self.directory)
        return self.result.to_next_s, self.result.steps_again


def measure_deaths(args, job, directory):
    rows = []
    for role in JOBS[job][1]:
        deaths = []
        for k in range(args.kills):
            draw = random.Random(f"{args.seed}/{job}/{role}/{k}")
            place = os.path.join(directory, "killed")
            deaths.append(Death(args, job, role, k, place).run(draw))
        rows.append(costs.death_row(job, role, deaths))
    return rows


def measure(args, directory):
    steps, deaths = [], []
    for job in args.job or JOBS:
        if args.rounds:
            steps += measure_steps(args, job, directory)
        if args.kills:
            deaths += measure_deaths(args, job, directory)
    return steps, deaths


def main():
    args = parse()
    args.program = os.path.abspath(args.program)
    if args.out:
        os.makedirs(args.out, exist_ok=True)
    directory = tempfile.mkdtemp(prefix="costs-", dir=args.out)
    try:
        steps, deaths = measure(args, directory)
    except (costs.CostsError, OSError) as e:
        print(f"checkpoint_costs.py: error: {e}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(f"{args.model}, --batch {args.batch} --seq {args.seq} --threads {args.threads}, {args.dtype}; --checkpoint-every {args.every}, "
          f"{args.steps} steps, medians of {args.rounds} rounds; {args.kills} deaths of each role\n")
    tables = ((costs.step_table, steps), (costs.death_table, deaths))
    print("\n\n".join(make(rows) for make, rows in tables if rows))
    if args.json:
        facts = {"model": args.model, "batch": args.batch, "seq": args.seq, "threads": args.threads, "dtype": args.dtype,
                 "every": args.every, "seed": args.seed}
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(dict(facts, steps=steps, deaths=deaths), f, indent=1)
    return 0


if __name__ == "__main__":
    cli.run(main)
