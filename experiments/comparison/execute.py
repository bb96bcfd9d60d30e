"""Runs the planned runs, one after the other, and reads back what each left."""
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import cli
from netlab import train as netlab
from netlab.lab import LabError

from . import likeness, noise
from .plan import order_in_words, plan, refuse_unaccepted, schedule
from .runs import Failure, RunError, UsageError, as_float, cause, load



def train(argv, log, limit, bandwidth=None):
    """Runs one training command with its output in the open file `log`: the one place where that happens. Returns its exit
    status, or a sentence when it was ended after `limit` seconds. bandwidth: of each rank's link, None for none. The run
    dies with this process, and what the program has started with it."""
    if bandwidth:
        return across_links(argv, log, limit, bandwidth)
    try:
        p = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                             preexec_fn=cli.dies_with_us())
    except OSError as e:
        raise RunError(f"cannot start {argv[0]}: {e.strerror}; build it with make, or name it with --program") from None
    try:
        return p.wait(timeout=limit)
    except subprocess.TimeoutExpired:
        stop(p)
        return f"still running after {limit:g} s; it was ended"
    except BaseException:
        stop(p)
        raise


def across_links(argv, log, limit, bandwidth):
    """The same with each rank behind a link of that bandwidth."""
    try:
        return netlab.train(argv, log, limit, bandwidth)
    except (LabError, ValueError) as e:
        raise UsageError(f"--bandwidth {bandwidth}: {e}") from None


def stop(process):
    """The program ends its ranks on SIGTERM; after a grace period it is killed."""
    process.terminate()
    try:
        process.wait(timeout=10)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):  # a second Ctrl-C: at once
        process.kill()
        process.wait()


def is_ours(directory):
    """Whether an earlier comparison wrote what is there."""
    return os.path.exists(os.path.join(directory, "output.txt"))


def check_places(directories):
    """RunError where a run would have to replace what no comparison wrote: known before the first run, not after hours."""
    for directory in directories:
        if not is_ours(directory) and os.path.isdir(directory) and os.listdir(directory):
            raise RunError(f"{directory}: holds files that no comparison wrote; choose another --out")


def clear(directory):
    """Removes what an earlier comparison left there: it must not pass for this run's result."""
    if is_ours(directory):
        shutil.rmtree(directory)
    os.makedirs(directory, exist_ok=True)


def in_words(status):
    """How a run ended that did not end well: its exit status, the signal that ended it, or what train() says."""
    if not isinstance(status, int):
        return status
    return f"exit status {status}" if status >= 0 else f"ended by signal {-status} ({signal.strsignal(-status)})"


def execute(planned, name, directory, limit, goes_on=False):
    """Runs the program once; the run read back, or RunError with its error. goes_on: from the last checkpoint that is in
    the directory."""
    if not goes_on:
        clear(directory)
    log, argv = os.path.join(directory, "output.txt"), planned.argv + ["--out", directory] + ["--resume", "latest"] * goes_on
    began, watch = time.monotonic(), noise.Watch()
    with open(log, "wb") as f:
        status = train(argv, f, limit, planned.bandwidth)
    seconds = time.monotonic() - began
    noise.write(directory, watch.result())
    if status != 0:
        with open(log, encoding="utf-8", errors="replace") as f:
            why = f"{in_words(status)}: {cause(f.read())} ({log})"
        raise RunError(f"{planned.label}: {why}", why)
    run = load(name, directory)
    run.label, run.command, run.wall_seconds, run.point = planned.label, argv, seconds, planned.point
    run.medium_asked, run.seed_swept = planned.medium, planned.seed is not None
    return run


def said_of(run):
    """The line that ends a run on the terminal."""
    noisy = noise.why_noisy(run)
    speed = f"noisy: {noisy[0]}" if noisy else f"{run.tokens_per_second:,.0f} tokens/s" if run.tokens_per_second else ""
    return (f"{run.wall_seconds:.1f} s, loss {as_float(run.losses[0]):.4f} -> {as_float(run.losses[-1]):.4f}" + (speed and f", {speed}"))


def time_left(seconds, count):
    """"; about 3:20 left" of so many runs to come, as long as those that are done took; "" where none is left or done."""
    minutes, rest = divmod(round(sum(seconds) / max(len(seconds), 1) * count), 60)
    return f"; about {minutes}:{rest:02d} left" if seconds and count else ""


def place_of(args, planned, repeat):
    """(name, directory) of one run."""
    name = planned.name + (f".r{repeat + 1}" if args.repeat > 1 else "")
    return name, os.path.join(args.out, name)


def run_all(args):
    """([[runs of one label] ..] in the order given on the command line, within a label by seed and repeat; [Failure], empty
    without --keep-going)."""
    planned = plan(args)
    seed = random.SystemRandom().randrange(10000) if args.order_seed is None else args.order_seed
    scheduled = schedule(planned, args.repeat, seed)
    check_places([place_of(args, one, repeat)[1] for repeat, one in scheduled])
    refuse_unaccepted(planned, lambda one: place_of(args, one, 0)[1], args.force)
    if len(scheduled) > 1:
        print(order_in_words(scheduled, seed), flush=True)
    done, failed = {}, []
    for number, (repeat, one) in enumerate(scheduled, 1):
        name, directory = place_of(args, one, repeat)
        print(f"[{number}/{len(scheduled)}] {name} ...", end=" ", flush=True)
        try:
            run = execute(one, name, directory, args.limit)
        except RunError as e:
            print("failed", flush=True)
            if not args.keep_going or isinstance(e, UsageError):
                raise
            print(f"compare.py: {e}", file=sys.stderr, flush=True)
            failed.append(Failure(one.label, name, e.brief))
            continue
        run.repeat = repeat
        done[(one.name, repeat)] = run
        print(said_of(run) + time_left([r.wall_seconds for r in done.values()], len(scheduled) - number), flush=True)
        if not args.force:
            likeness.refuse_unlike(grouped(planned, args.repeat, done), False)
    labels = [one.label for one in planned]
    return grouped(planned, args.repeat, done), sorted(failed, key=lambda failure: labels.index(failure.label))


def grouped(planned, repeats, done):
    """The runs that are done, those of one label together."""
    groups = {}
    for one in planned:
        groups.setdefault(one.label, []).extend(done[(one.name, r)] for r in range(repeats) if (one.name, r) in done)
    return [group for group in groups.values() if group]
