#!/usr/bin/env python3
"""Everything that wants a real GPU, in one command of under nine minutes (`make gpu-check`; bin/gpu-check of a bundle).

    experiments/gpu_check.py [--build DIR] [--out DIR] [--parts P1,P2] [--budget SECONDS] [--quick]

Parts, the most important first; each has its own limit, and what no time is left for is reported as skipped:
    device      what it is, its driver and libraries
    kernels     every operation against the scalar reference: random inputs, poisoned outputs, guard zones
    parity      losses, logits and gradients against PyTorch's stored vectors
    topologies  star and ring, 1, 2 and 4 ranks on one GPU: the same bits; a second run; predicted memory
    steps       `bench step` of four models, MFU beside what is wanted
    bench       `bench kernels`: share of the measured copy or matrix product
    collectives `bench collective` over NCCL and between threads on one GPU, every result checked
    peers       the same steps in PyTorch (gpu_peers.py)
    memcheck, racecheck   compute-sanitizer over the kernel tests, where it is installed

Speeds that miss what is wanted are shown and change nothing else: only a failed check makes the exit status 1. So
does a machine without a GPU, at once, with the reason. --quick takes the smallest sizes of everything: a first look.

DIR (runs/gpu-check) gets gpu-check.json, gpu-check.md (a page for docs/results/), logs/ and runs/. The JSON document:
    schema             1
    when, command, host, seconds, budget_seconds, seed
    passed             true when no check failed, and some were made
    device             what `starring bench` says of the device: name, compute_capability, memory_bytes, driver, ..
    versions           {starring, python}; libraries: [{file, folder, found_in}]
    parts              [{name, title, status, why, seconds, limit_seconds, checks, figures, notes}]
      checks           [{name, status: passed|failed|skipped, why, ..}]
      figures          [{what, .., wanted, met}]: the row of a bench; wanted and met where there is a target
"""
import argparse
import datetime
import json
import os
import platform
import secrets
import subprocess
import sys
import time

import cli
from gpucheck import correct, page, speed
from gpucheck.place import NotBuilt, Place
from gpucheck.work import FAILED, NO_TIME, PASSED, SKIPPED, Checker, Part

# name: (function, title, seconds at most)
PARTS = {
    "device": (correct.device, "the device", 30),
    "kernels": (correct.kernels, "operations against the reference", 80),
    "parity": (correct.parity, "PyTorch's vectors", 30),
    "topologies": (correct.topologies, "star and ring, equality of bits", 130),
    "steps": (speed.steps, "training steps", 110),
    "bench": (speed.bench, "single operations", 40),
    "collectives": (speed.collectives, "collectives", 30),
    "peers": (speed.peers, "PyTorch in the same run", 120),
    "memcheck": (correct.memcheck, "compute-sanitizer memcheck", 60),
    "racecheck": (correct.racecheck, "compute-sanitizer racecheck", 60),
}


def revision(place):
    """What git calls the sources, or what the bundle was made from; "" where neither is known."""
    path = os.path.join(place.top, "REVISION")
    if os.path.exists(path):
        with open(path, encoding="utf-8") as f:
            return f.read().strip()
    try:
        p = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False, cwd=place.top)
        return p.stdout.strip() if p.returncode == 0 else ""
    except OSError:
        return ""


def run_part(checker, name):
    function, title, limit = PARTS[name]
    part = Part(name, title, limit)
    checker.begin(part)
    began = time.monotonic()
    if checker.left() < 2:
        part.check(name, SKIPPED, NO_TIME)
        return part
    try:
        function(checker, part)
    except Exception as e:  # one part's trouble must not stop the others
        part.check(f"{name}: the part itself", FAILED, f"{type(e).__name__}: {e}")
    part.seconds = time.monotonic() - began
    return part


def document_of(args, checker, parts, began):
    place = checker.place
    return {
        "schema": 1,
        "when": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "command": " ".join(["gpu-check" if place.bundled else "experiments/gpu_check.py", *sys.argv[1:]]),
        "host": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "seconds": round(time.monotonic() - began, 1), "budget_seconds": args.budget, "seed": args.seed,
        "passed": passed(parts),
        "device": checker.facts,
        "versions": {"starring": revision(place), "python": platform.python_version()},
        "libraries": [{"file": n, "folder": f, "found_in": w} for n, f, w in place.libraries],
        "parts": [p.document() for p in parts],
    }


def passed(parts):
    """No check failed, and there was one that passed."""
    return all(p.status != FAILED for p in parts) and any(p.count(PASSED) for p in parts)


def write(out, document, parts):
    with open(os.path.join(out, "gpu-check.json"), "w", encoding="utf-8") as f:
        json.dump(document, f, indent=1)
    with open(os.path.join(out, "gpu-check.md"), "w", encoding="utf-8") as f:
        f.write(page.page(document, parts))


def names_of(text):
    names = text.split(",") if text else list(PARTS)
    for name in names:
        if name not in PARTS:
            raise argparse.ArgumentTypeError(f"no part {name}; known: {' '.join(PARTS)}")
    return names


def options():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--build", metavar="DIR", help="where make built (default: build, or the bundle this lies in)")
    ap.add_argument("--out", metavar="DIR", help="where the results go (default: runs/gpu-check)")
    ap.add_argument("--parts", type=names_of, default=list(PARTS), metavar="P1,P2", help="only these")
    ap.add_argument("--budget", type=float, default=525, metavar="SECONDS", help="for everything (default %(default)s)")
    ap.add_argument("--seed", type=int, default=secrets.randbelow(10**9), help="of the kernels' random inputs (default: any)")
    ap.add_argument("--quick", action="store_true", help="the smallest sizes of everything")
    ap.add_argument("--python", metavar="PROGRAM", help="the interpreter that has PyTorch (default: this one)")
    return ap


def main():
    args = options().parse_args()
    began = time.monotonic()
    try:
        place = Place(args.build)
    except NotBuilt as e:
        print(f"gpu-check: {e}", file=sys.stderr)
        return 1
    checker = Checker(place, os.path.abspath(args.out or os.path.join(place.top, "runs", "gpu-check")), args.budget, args)
    facts, missing = correct.facts(checker)
    if missing:
        print(f"gpu-check: no GPU to check: {missing}", file=sys.stderr)
        return 1
    checker.facts = facts
    parts = []
    for name in args.parts:
        parts.append(run_part(checker, name))
        print(page.tell(parts[-1]), flush=True)
        write(checker.out, document_of(args, checker, parts, began), parts)
    failed = [p.name for p in parts if p.status == FAILED]
    print(f"\n{sum(p.count(PASSED) for p in parts)} passed, {sum(p.count(FAILED) for p in parts)} failed, "
          f"{sum(p.count(SKIPPED) for p in parts)} skipped in {time.monotonic() - began:.0f} s: {checker.out}/gpu-check.json, .md"
          + (f"\nfailed: {' '.join(failed)}" if failed else ""))
    return 0 if passed(parts) else 1


if __name__ == "__main__":
    cli.run(main)
