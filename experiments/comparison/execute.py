"""Executes the planned runs, in turns or one after the other, and reads back their results."""
import contextlib
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

from . import comparability, noise, speed, turns
from .plan import order_in_words, plan, refuse_unaccepted, schedule
from .runs import Failure, RunError, UsageError, as_float, cause, load

TELL_S = 15  # the interval between two lines of progress
WHOLE_REPEAT = 3  # the default of --repeat if whole runs take turns


def train(argv, log, limit, bandwidth=None):
    """Runs one training command, its output in the open file `log`. Returns the exit status, or a sentence if it was ended after `limit`
    seconds. bandwidth: of each rank's link, or None. The run and its processes die with this process."""
    if not bandwidth:
        return end_of(start(argv, log), limit)
    try:
        return netlab.train(argv, log, limit, bandwidth)
    except (LabError, ValueError) as e:
        raise UsageError(f"--bandwidth {bandwidth}: {e}") from None


def start(argv, log, gate=None):
    """Starts the process. gate: the file of turns.py that tells the run when to continue."""
    env = {**os.environ, turns.VARIABLE: gate} if gate else {k: v for k, v in os.environ.items() if k != turns.VARIABLE}
    try:
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=env,
                                preexec_fn=cli.dies_with_us())
    except OSError as e:
        raise RunError(f"cannot start {argv[0]}: {e.strerror}; build it with make, or name it with --program") from None


def end_of(process, limit):
    """The exit status of the process, or a sentence if it was ended after `limit` seconds."""
    try:
        return process.wait(timeout=limit)
    except subprocess.TimeoutExpired:
        stop(process)
        return f"still running after {limit:g} s; it was ended"
    except BaseException:
        stop(process)
        raise


def stop(process):
    """Ends the program with SIGTERM, on which it ends its ranks; kills it after a grace period."""
    process.terminate()
    try:
        process.wait(timeout=10)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):  # a second Ctrl-C: at once
        process.kill()
        process.wait()


def is_ours(directory):
    """Whether an earlier comparison wrote the directory."""
    return os.path.exists(os.path.join(directory, "output.txt"))


def check_places(directories):
    """Raises RunError if a run would replace files that no comparison wrote. Called before the first run."""
    for directory in directories:
        if not is_ours(directory) and os.path.isdir(directory) and os.listdir(directory):
            raise RunError(f"{directory}: holds files that no comparison wrote; choose another --out")


def clear(directory):
    """Removes the result of an earlier comparison, so that a failed run cannot show it as its own."""
    if is_ours(directory):
        shutil.rmtree(directory)
    os.makedirs(directory, exist_ok=True)


def in_words(status):
    """How a failed run ended: its exit status, its signal, or the sentence of train()."""
    if not isinstance(status, int):
        return status
    return f"exit status {status}" if status >= 0 else f"ended by signal {-status} ({signal.strsignal(-status)})"


def execute(planned, name, directory, limit, resumes=False):
    """Runs the program once. Returns the run, or raises RunError with the program's error. resumes: continues from the last checkpoint in
    the directory."""
    if not resumes:
        clear(directory)
    argv = planned.argv + ["--out", directory] + ["--resume", "latest"] * resumes
    began, watch = time.monotonic(), noise.Watch()
    with open(log_of(directory), "wb") as f:
        status = train(argv, f, limit, planned.bandwidth)
    seconds = time.monotonic() - began
    noise.write(directory, watch.result())
    return read_back(planned, name, directory, argv, status, seconds)


def log_of(directory):
    return os.path.join(directory, "output.txt")


def read_back(planned, name, directory, argv, status, seconds):
    """The run that ended with this status after so many seconds; raises RunError if it failed."""
    log = log_of(directory)
    if status != 0:
        with open(log, encoding="utf-8", errors="replace") as f:
            said = f.read()
        # If the run was killed at its time limit, its last line explains nothing, unless it is an error.
        own = isinstance(status, int) or "error:" in said
        why = f"{in_words(status)}{f': {cause(said)}' if own else ''} ({log})"
        raise RunError(f"{planned.label}: {why}", why)
    run = load(name, directory)
    run.label, run.command, run.wall_seconds, run.point = planned.label, argv, seconds, planned.point
    run.medium_asked, run.seed_swept = planned.medium, planned.seed is not None
    return run


def run_line(run):
    """The line that is printed when a run ends."""
    mark = speed.MARK if not run.turns and noise.why_noisy(run) else ""
    told = f", {run.tokens_per_second:,.0f}{mark} tokens/s" if run.tokens_per_second else ""
    return f"{run.wall_seconds:.1f} s, loss {as_float(run.losses[0]):.4f} -> {as_float(run.losses[-1]):.4f}{told}"


def time_left(seconds, count):
    """"; about 3:20 left" for `count` further runs, from the time that the finished runs took; "" if there are none."""
    minutes, rest = divmod(round(sum(seconds) / max(len(seconds), 1) * count), 60)
    return f"; about {minutes}:{rest:02d} left" if seconds and count else ""


def progress():
    """Prints the progress of a pass every TELL_S seconds."""
    began = said = time.monotonic()

    def tell(share):
        nonlocal said
        now = time.monotonic()
        if now - said >= TELL_S and share < 1:
            said = now
            minutes, seconds = divmod(round((now - began) / share * (1 - share)), 60)
            print(f"  {share:.0%} of the steps, about {minutes}:{seconds:02d} left", flush=True)
    return tell


def place_of(args, planned, repeat):
    """(name, directory) of one run."""
    name = planned.name + (f".r{repeat + 1}" if args.repeat > 1 or repeat else "")
    return name, os.path.join(args.out, name)


class Comparison:
    """The runs of a comparison so far. done: {(name, repeat): run}; failed: [Failure]."""

    def __init__(self, args, planned, seed):
        self.args, self.planned, self.seed, self.done, self.failed = args, planned, seed, {}, []
        self.began, self.number, self.of = time.monotonic(), 0, 0

    def fail(self, one, name, error):
        """Continues without the run, or raises the error."""
        if not self.args.keep_going or isinstance(error, UsageError):
            raise error
        print(f"compare.py: {error}", file=sys.stderr, flush=True)
        self.failed.append(Failure(one.label, name, error.brief))

    def add(self, one, repeat, run):
        run.repeat = repeat
        self.done[(one.name, repeat)] = run
        if not self.args.force:
            comparability.refuse_unlike(self.groups(), False)

    def groups(self):
        return grouped(self.planned, 1 + max((repeat for _, repeat in self.done), default=0), self.done)

    def announce(self, name):
        self.number += 1
        print(f"[{self.number}/{self.of}] {name} ...", end=" ", flush=True)

    # ---------------------------------------------------------------- whole runs, one after the other
    def run_whole(self, scheduled, because):
        self.of = len(scheduled)
        for repeat, one in scheduled:
            name, directory = place_of(self.args, one, repeat)
            self.announce(name)
            try:
                run = execute(one, name, directory, self.args.limit)
            except RunError as e:
                print("failed", flush=True)
                self.fail(one, name, e)
                continue
            run.whole_because = because
            print(run_line(run) + time_left([r.wall_seconds for r in self.done.values()] + [run.wall_seconds], self.of - self.number), flush=True)
            self.add(one, repeat, run)

    # ---------------------------------------------------------------- turns
    def take_turns(self, repeat):
        """One pass: all runs from their first step to their last, slice by slice."""
        args, rng, players, logs = self.args, turns.drawn(self.seed, repeat), {}, []
        places = {one.name: (one, *place_of(args, one, repeat)) for one in self.planned}

        def argv_of(key):
            one, _, directory = places[key]
            return one.argv + ["--out", directory]

        def ended(key, player):
            """Reads back a run that does not pause again, or records why it failed."""
            one, name, directory = places[key]
            if not player.over():
                stop(player.process)
                status = f"still running after {args.limit or turns.START_S:g} s; it was ended"
            else:
                status = player.process.returncode
            player.gate.close()
            noise.write(directory, player.watch.result())
            player.write(directory, self.id, args.decide)
            try:
                self.add(one, repeat, read_back(one, name, directory, argv_of(key), status, time.monotonic() - player.began))
            except RunError as e:
                self.fail(one, name, e)

        try:
            for key in self.order(rng):
                directory = places[key][2]
                clear(directory)
                logs.append(open(log_of(directory), "wb"))
                players[key] = turns.PausableRun(lambda gate, key=key, log=logs[-1]: start(argv_of(key), log, gate))
                if not players[key].wait(limit=min(args.limit or turns.START_S, turns.START_S)):
                    ended(key, players.pop(key))  # the run failed, or this program does not support the gate
            turns.play(players, rng, lambda key, player: ended(key, players.pop(key)), args.limit, progress())
            self.of = len(players)
            self.number = 0
            for key in list(players):
                self.announce(places[key][1])
                player = players.pop(key)
                player.finish()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    player.process.wait(timeout=args.limit)
                ended(key, player)
                if (key, repeat) in self.done:
                    print(run_line(self.done[(key, repeat)]), flush=True)
                else:
                    print("failed", flush=True)
        finally:
            for player in players.values():
                stop(player.process)
                player.gate.close()
            for log in logs:
                log.close()

    def order(self, rng):
        names = [one.name for one in self.planned]
        rng.shuffle(names)
        return names

    def run_in_turns(self):
        """Runs --repeat passes. With --decide, further ones follow until every ratio is decided, a run has failed, or the next pass would
        exceed --within."""
        args, repeat, took = self.args, 0, []
        self.id = f"{time.time_ns():x}"
        while True:
            began = time.monotonic()
            print(f"pass {repeat + 1}: {len(self.planned)} runs take turns, a slice of steps each, in a new random order each round "
                  f"(--order-seed {self.seed})", flush=True)
            self.take_turns(repeat)
            took.append(time.monotonic() - began)
            repeat += 1
            if repeat < args.repeat:
                continue
            groups = self.groups()
            open_ones = speed.undecided(groups) if args.decide and not self.failed else []
            for s in open_ones:
                print("  " + speed.clause(s, 1), flush=True)
            left = args.within - (time.monotonic() - self.began)
            if not open_ones:
                return
            if left < took[-1]:
                print(f"no further pass: it would take {took[-1]:.0f} s, and of --within {args.within:g} s {max(left, 0):.0f} are left", flush=True)
                return


def why_whole(args, planned, predicted):
    """Why the runs cannot share the memory and take turns; "" if they can."""
    if len(planned) < 2:
        return "one"
    if args.bandwidth:
        return "whole runs took turns, since --bandwidth builds the network of one run at a time: slow minutes of the machine affect them unequally"
    if any("cuda" in (found.get("device") or "") for found in predicted):
        return "whole runs took turns, since they would share the memory of a GPU: slow minutes of the machine affect them unequally"
    limits = [limit for found in predicted for limit in (found.get("here") or {}).get("limits", [])]
    needs = {}
    for limit in limits:
        bytes_needed, left = needs.get(limit["limit"], (0, limit["available_bytes"]))
        needs[limit["limit"]] = bytes_needed + limit["predicted_bytes"] + limit["allowed_bytes"], min(left, limit["available_bytes"])
    for name, (needed, left) in needs.items():
        if needed > left:
            return (f"whole runs took turns, since together they need {needed / 1e9:.1f} GB, and {left / 1e9:.1f} GB are left ({name}): minutes "
                    "of the machine affect them unequally")
    return ""


def run_all(args):
    """([[runs of one label] ..] in the order given on the command line, within a label by seed and repeat; [Failure], empty
    without --keep-going)."""
    planned = plan(args)
    seed = random.SystemRandom().randrange(10000) if args.order_seed is None else args.order_seed
    scheduled = schedule(planned, args.repeat, seed)
    check_places([place_of(args, one, repeat)[1] for repeat, one in scheduled])
    predicted = refuse_unaccepted(planned, lambda one: place_of(args, one, 0)[1], args.force)
    because = why_whole(args, planned, predicted)
    every = Comparison(args, planned, seed)
    if because:
        if len(planned) > 1:
            print(because, flush=True)
        scheduled = schedule(planned, args.repeat if args.repeat_given else WHOLE_REPEAT, seed)
        args.repeat = max(args.repeat, 1 + max(repeat for repeat, _ in scheduled))
        if len(scheduled) > 1:
            print(order_in_words(scheduled, seed), flush=True)
        every.run_whole(scheduled, because if len(planned) > 1 else "")
    else:
        every.run_in_turns()
    labels = [one.label for one in planned]
    return every.groups(), sorted(every.failed, key=lambda failure: labels.index(failure.label))


def grouped(planned, repeats, done):
    """The finished runs, grouped by label."""
    groups = {}
    for one in planned:
        groups.setdefault(one.label, []).extend(done[(one.name, r)] for r in range(repeats) if (one.name, r) in done)
    return [group for group in groups.values() if group]
