#!/usr/bin/env python3
"""Checks and measures everything that needs a real GPU, in parts (`make gpu-check PARTS=".."`; bin/gpu-check of a bundle).

    experiments/gpu_check.py --list             the parts, what each takes, which have run
    experiments/gpu_check.py facts ops parity   runs these; "step" means step-124m, step-1.5b, ..
    experiments/gpu_check.py                    runs those that have not run, in order
    experiments/gpu_check.py --budget 540       begins only parts that are expected to end within 540 seconds

The most informative parts come first: facts and libraries; ops, every operation against the scalar reference; parity with
PyTorch's vectors; bits, star = ring; collectives; step-*, accumulation, choices-*, training steps of four models, with each
choice measured separately; kernels-*; peers-*, PyTorch alternating with the program; memcheck and racecheck. Each part has a
time limit under four minutes. Checks for which no time is left are reported as skipped.

The results of all calls are collected in one document. A part that runs again replaces its earlier result. The file on disk
is complete after each check, so that an interrupted call loses nothing. A document holds results of one program, device and
driver; a call with others is refused before it runs anything.

Speeds below their target, and figures more than a fifth from the expected ones (findings), are shown and do not fail a check.
Exit status: 0 no check failed; 1 a check failed, nothing was checked, or there is no GPU (reported at once, with the reason);
2 the command line is wrong, or the document is of another program, device or driver. --quick takes the smallest sizes of
everything.

DIR (runs/gpu-check) gets gpu-check.json, gpu-check.md (a page for docs/results/), logs/ and runs/. The JSON document:
    schema             2
    identity           {build, device, compute_capability, driver, quick}, the same for all its results
    when, host, versions {starring, python}, device   of the last call; seconds: of all parts
    passed             true when no check failed, and some were made; complete: when no part is left
    findings           ["part: sentence"]: what a person should check
    parts              [{name, title, status, why, finished, when, command, seed, libraries, seconds, limit_seconds,
                       findings, checks, figures, notes, before}], in order; finished: false if the call was interrupted;
                       before: the earlier result that an unfinished part will replace
      checks           [{name, status: passed|failed|skipped, why, ..}]
      figures          [{what, .., wanted, met, expected_ms}]: the row of a bench; wanted and met where there is a target
"""
import argparse
import difflib
import os
import platform
import secrets
import signal
import subprocess
import sys
import time

import cli
from gpucheck import document, facts, page
from gpucheck.parts import BY_NAME, ORDER, ROWS, named
from gpucheck.place import NotBuilt, Place
from gpucheck.work import FAILED, PASSED, SKIPPED, Checker, Part


def revision(place):
    """The revision of the sources by git, or the bundle's own; "" if neither is known."""
    path = os.path.join(place.top, "REVISION")
    if os.path.exists(path):
        with open(path, encoding="utf-8") as f:
            return f.read().strip()
    try:
        p = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False, cwd=place.top)
        return p.stdout.strip() if p.returncode == 0 else ""
    except OSError:
        return ""


def run_part(checker, record, row):
    """Runs a part to its end; writes it to the document and prints it. Returns the Part."""
    part = Part(row.name, row.title, row.limit)
    part.about = {"when": document.now(), "command": document.command(checker.place), "seed": checker.options.seed,
                  "libraries": {k: checker.facts.get(k) for k in ("runtime", "cublaslt", "cudnn")}}
    checker.begin(part)
    began = time.monotonic()

    def changed():
        part.seconds = time.monotonic() - began
        record.take(part)

    part.changed = changed
    changed()
    try:
        row.run(checker, part)
    except Exception as e:  # one part's trouble must not stop the others
        part.check(f"{row.name}: the part itself", FAILED, f"{type(e).__name__}: {e}")
    part.finished = True
    changed()
    print(page.part_text(record.parts[row.name]), flush=True)
    return part


def run_parts(checker, record, names):
    """Runs the parts and returns the exit status. A part that is not expected to end within the budget is left for another call."""
    began, ran, left = time.monotonic(), [], []
    for name in names:
        if checker.options.budget and time.monotonic() - began + BY_NAME[name].estimate > checker.options.budget:
            left.append(name)
            continue
        ran.append(run_part(checker, record, BY_NAME[name]))
    failed = [p.name for p in ran if p.status == FAILED]
    print(f"\n{sum(p.count(PASSED) for p in ran)} passed, {sum(p.count(FAILED) for p in ran)} failed, "
          f"{sum(p.count(SKIPPED) for p in ran)} skipped, {sum(len(p.findings) for p in ran)} findings in "
          f"{time.monotonic() - began:.0f} s: {record.out}/{document.NAME}, .md")
    if failed:
        print(f"failed: {' '.join(failed)}")
    if left:
        print(f"not begun, for --budget {checker.options.budget:g}: {' '.join(left)}")
    return 0 if not failed and any(p.count(PASSED) for p in ran) else 1


def part_names(words):
    """The names of the parts that the command line means, in the order in which they run."""
    meant = set()
    for word in words:
        names = named(word)
        if not names:
            near = difflib.get_close_matches(word, [*ORDER, *dict.fromkeys(row.group for row in ROWS)], 1)
            raise WrongCommand(f"no part {word}{f' (did you mean {near[0]}?)' if near else ''}; the parts: {' '.join(ORDER)}")
        meant.update(names)
    return [name for name in ORDER if name in meant]


class WrongCommand(Exception):
    """The command line is wrong: exit status 2."""


def print_parts(out):
    """Prints the list of --list. The document may be of another program or device."""
    try:
        parts = {p["name"]: p for p in (document.read(out) or {"parts": []})["parts"]}
    except document.Unusable as e:
        print(f"gpu-check: {e}", file=sys.stderr)
        parts = {}
    print(f"{'part':<14}{'expected':>9}{'limit':>8}  {'state':<12}")
    for row in ROWS:
        found = parts.get(row.name)
        state = "not run" if not found else page.MARK[found["status"]] if found["finished"] else "cut short"
        print(f"{row.name:<14}{row.estimate:>7} s{row.limit:>6} s  {state:<12}{row.title}")
    print(f"expected: on an H200, {sum(row.estimate for row in ROWS) / 60:.0f} minutes in all; state: in {out}")


def options():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("parts", nargs="*", metavar="PART", help="a part, or a group of them (default: those that have not run)")
    ap.add_argument("--list", action="store_true", help="print the parts and which have run, and end")
    ap.add_argument("--all", action="store_true", help="all parts, also those that have run")
    ap.add_argument("--build", metavar="DIR", help="where make built (default: build, or the bundle this lies in)")
    ap.add_argument("--out", metavar="DIR", help="where the results go, and the document to continue, if there is one "
                    "(default: --resume's, else runs/gpu-check)")
    ap.add_argument("--resume", metavar="DIR", help="continue the document of that folder, which must exist")
    ap.add_argument("--budget", type=cli.above_zero, metavar="SECONDS", help="of this call (default: no limit)")
    ap.add_argument("--seed", type=int, default=secrets.randbelow(10**9), help="of the operations' random inputs (default: any)")
    ap.add_argument("--quick", action="store_true", help="the smallest sizes of everything")
    ap.add_argument("--python", metavar="PROGRAM", help="the interpreter that has PyTorch (default: this one)")
    return ap


def stop(*_):
    """Treats SIGTERM as Ctrl-C, so that the programs that were started end too."""
    raise KeyboardInterrupt


def check(args, place, names, out):
    try:
        os.makedirs(out, exist_ok=True)
    except OSError as e:
        raise WrongCommand(f"no results can be written to {out} ({e.strerror}): name another folder with --out") from None
    checker = Checker(place, out, args)
    checker.facts, missing = facts.of_device(checker)
    if missing:
        print(f"gpu-check: no GPU to check: {missing}", file=sys.stderr)
        return 1
    # The driver as nvidia-smi names it; without nvidia-smi the newest CUDA that the driver knows.
    driver = next((gpu["driver_version"] for gpu in facts.nvidia_smi(checker) if gpu.get("driver_version")), checker.facts.get("driver"))
    identity = {"build": place.fingerprint(), "device": checker.facts.get("name"), "driver": driver,
                "compute_capability": checker.facts.get("compute_capability")}
    record = document.Record(out, args.resume and os.path.abspath(args.resume), {**identity, "quick": args.quick}, ORDER)
    names = names or [name for name in ORDER if args.all or not record.finished(name)]
    if not names:
        print(f"nothing is left to run: {out}/{document.NAME} is complete; name parts, or --all, to run them again")
        return 0 if record.document["passed"] else 1
    record.write(when=document.now(), host=f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}",
                 device=checker.facts, versions={"starring": revision(place), "python": platform.python_version()})
    return run_parts(checker, record, names)


def main():
    args = options().parse_args()
    signal.signal(signal.SIGTERM, stop)
    try:
        names = part_names(args.parts)
        if args.all and names:
            raise WrongCommand("--all and names of parts exclude each other")
        place = Place(args.build)
        out = os.path.abspath(args.out or args.resume or os.path.join(place.top, "runs", "gpu-check"))
        if args.list:
            print_parts(out)
            return 0
        return check(args, place, names, out)
    except NotBuilt as e:
        print(f"gpu-check: {e}", file=sys.stderr)
        return 1
    except (WrongCommand, document.Unusable) as e:
        print(f"gpu-check: {e}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    cli.run(main, "interrupted: the document has all results up to now")
