#!/usr/bin/env python3
"""Measures whether a rank gets faster as ranks are added at a fixed memory per rank: each holds less state, so larger batches fit.

    experiments/superlinear.py -c experiments/recipes/superlinear.json
    experiments/superlinear.py -c experiments/recipes/superlinear.json --dry-run --machine dgx-a100

The topology is zero:3 (one worker: local). For each number of workers the script finds the largest micro-batch whose dry run fits
memory.device_bytes of the configuration, takes its tokens per second from `starring plan`, and trains with it. Ranks on one machine share
its cores. So tokens per second and rank are shown only if each rank has a core of its own; tokens per second of CPU time are always shown.
The CPU time of the steps is the difference of two runs with different numbers of steps. --machine predicts the same ranks on a machine
that is described in a file (predict.py)."""
import argparse
import json
import os
import shutil
import statistics
import sys
import time

import cli
import program
import tables
from prediction import CannotPredict

MOST_BATCH = 1 << 16


class Failed(Exception):
    pass


def numbers(text):
    found = [int(n) if n.isdigit() else 0 for n in text.split(",")]
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of whole numbers such as 1,2,4,8")
    return found


def parse(argv):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-c", "--config", required=True, help="a configuration with memory.device_bytes and threads")
    p.add_argument("--workers", type=numbers, default="1,2,4,8", metavar="N,..", help="(%(default)s)")
    p.add_argument("--rounds", type=cli.count, default=3, help="runs of each number of workers, alternating; the median is shown (%(default)s)")
    p.add_argument("--machine", metavar="NAME|FILE", help="predict the step's time on this machine too")
    p.add_argument("--dry-run", action="store_true", help="find the batches, train nothing")
    p.add_argument("--program", default=program.built(), help="(%(default)s)")
    p.add_argument("--json", action="store_true", help="print one JSON document")
    return p.parse_args(argv)


def start(args, *words):
    """Runs `starring train`. Returns (stdout, seconds of CPU time of all its processes)."""
    before = os.times()
    p = program.run([args.program, "train", "-c", args.config, *words], Failed, preexec_fn=cli.dies_with_us())
    after = os.times()
    if p.returncode:
        raise Failed(f"{' '.join(p.args)}: exit status {p.returncode}\n{p.stderr.strip()}")
    return p.stdout, after.children_user + after.children_system - before.children_user - before.children_system


def topology(workers):
    return ["--topology", "local"] if workers == 1 else ["--topology", "zero:3", "--workers", str(workers)]


def predicted(args, workers, batch):
    return json.loads(start(args, *topology(workers), "--batch", str(batch), "--dry-run", "--json")[0])


def largest_batch(args, workers, limit):
    """The largest micro-batch whose predicted memory is within the limit, and its dry run's document."""
    low, high = 0, MOST_BATCH
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if predicted(args, workers, middle)["memory"][0]["predicted_bytes"] <= limit else (low, middle)
    if not low:
        raise Failed(f"{workers} workers: not even a micro-batch of 1 fits {limit} bytes")
    return low, predicted(args, workers, low)


def planned(args, workers, batch, limit):
    """Tokens per second of one rank, as `starring plan` estimates them with its default rates."""
    argv = [args.program, "plan", "-c", args.config, *topology(workers), "--batch", str(batch), "--device-memory", str(limit), "--json"]
    p = program.run(argv, Failed)
    if p.returncode:
        raise Failed(f"{' '.join(argv)}: exit status {p.returncode}\n{p.stderr.strip()}")
    plain = [plan for plan in json.loads(p.stdout)["plans"] if {plan["recompute"], plan["offload_optimizer"], plan["offload_param"]} == {"none"}]
    return plain[0]["tokens_per_second"] / workers


def on_machine(args, workers, batch):
    """Seconds of a step on --machine, as predict.py predicts them; None without --machine."""
    if not args.machine:
        return None
    from prediction import command
    options = command.parser("").parse_args([*topology(workers), "--machine", args.machine, "--program", args.program, "--", "-c", args.config,
                                             "--batch", str(batch)])
    return command.predict(options, options.topology[0])["step_seconds"]["median"]


def one_run(args, workers, batch, steps, folder):
    """(median seconds of a step, CPU seconds of a step summed over all ranks). Trains twice, with 2 steps and with `steps`."""
    spent = {}
    for n in (2, steps):
        out = os.path.join(folder, "run")
        _, spent[n] = start(args, *topology(workers), "--batch", str(batch), "--steps", str(n), "--quiet", "--no-weights", "--force", "--out", out)
        with open(os.path.join(out, "summary.json"), encoding="utf-8") as f:
            summary = json.load(f)
        shutil.rmtree(out)
    return summary["step_seconds"]["median"], (spent[steps] - spent[2]) / (steps - 2)


def measure(args, folder):
    config = json.loads(start(args, "--topology", "local", "--print-config")[0])
    limit, steps, threads = config["memory"]["device_bytes"], config["steps"], config["threads"]
    if not isinstance(limit, int):
        raise Failed(f"{args.config} sets no memory.device_bytes: without a limit every batch fits")
    if steps < 3 and not args.dry_run:
        raise Failed(f"{args.config}: steps is {steps}: CPU time is measured as the difference to a run of 2 steps, so write at least 3")
    rows = []
    for workers in args.workers:
        batch, said = largest_batch(args, workers, limit)
        rows.append({"workers": workers, "batch": batch, "tokens": batch * said["seq_len"], "predicted_bytes": said["memory"][0]["predicted_bytes"],
                     "state_bytes": said["memory"][0]["formula_bytes"], "planned_per_second": planned(args, workers, batch, limit),
                     "on_machine": on_machine(args, workers, batch), "runs": [],
                     "own_cores": workers * max(threads, 1) <= len(os.sched_getaffinity(0))})
    for _ in range(0 if args.dry_run else args.rounds):
        for row in rows:
            row["runs"].append(one_run(args, row["workers"], row["batch"], steps, folder))
    for row in rows:
        row["per_second"] = row["tokens"] / statistics.median(s for s, _ in row["runs"]) if row["runs"] and row["own_cores"] else None
        row["per_cpu_second"] = row["tokens"] * row["workers"] / statistics.median(c for _, c in row["runs"]) if row["runs"] else None
        row["predicted_per_second"] = row["tokens"] / row["on_machine"] if row["on_machine"] else None
    return {"date": time.strftime("%Y-%m-%d"), "device_bytes": limit, "machine": args.machine, "rows": rows}


def show(said):
    cell = lambda row, key: (f"{row[key]:,.0f} ({row[key] / said['rows'][0][key]:.2f})" if row[key] and said["rows"][0][key] else "-")
    head = ["workers", "micro-batch", "tokens", "MiB predicted", "tokens/s and rank: plan", "run", "tokens/s of CPU", *([f"on {said['machine']}"] if said["machine"] else [])]
    print(tables.text([head] + [[r["workers"], r["batch"], r["tokens"], f"{r['predicted_bytes'] / (1 << 20):.1f}", cell(r, "planned_per_second"),
                                 cell(r, "per_second"), cell(r, "per_cpu_second"), *([cell(r, "predicted_per_second")] if said["machine"] else [])] for r in said["rows"]], left=0))
    print("\nin parentheses: times the first row's. tokens: of a micro-batch of one rank")


def main(argv=None):
    args = parse(argv)
    if args.machine:
        cli.in_debians("simgrid", sys.argv)
    return cli.answer(lambda folder: measure(args, folder), show, args.json, Failed, CannotPredict)


if __name__ == "__main__":
    cli.run(main)
