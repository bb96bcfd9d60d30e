"""The times of a drill's kills. Each function waits for the event in its name. It reads only the run's directory, about once per
millisecond."""
import glob
import json
import os
import time

LOOK_S = 0.001
GIVE_UP_S = 30


def last_step(directory):
    """The last complete step in metrics.jsonl, or 0."""
    try:
        with open(os.path.join(directory, "metrics.jsonl"), "rb") as f:
            f.seek(max(0, os.fstat(f.fileno()).st_size - 4096))
            lines = f.read().split(b"\n")[:-1]
        return int(json.loads(lines[-1])["step"]) if lines else 0
    except (OSError, ValueError, KeyError):
        return 0


def partials(directory):
    return glob.glob(os.path.join(glob.escape(directory), "checkpoints", ".*.partial"))


def starts(directory):
    """The lines of history.jsonl: one for the first start and one per restart."""
    try:
        with open(os.path.join(directory, "history.jsonl"), encoding="utf-8") as f:
            rows = [json.loads(line) for line in f if line.endswith("\n")]
            return [row for row in rows if row["kind"] == "life"]
    except (OSError, ValueError):
        return []


def wait(ask, alive):
    """Waits until ask() is true. Returns False if the run has ended before, or after GIVE_UP_S seconds."""
    until = time.monotonic() + GIVE_UP_S
    while time.monotonic() < until:
        if ask():
            return True
        if not alive():
            return False
        time.sleep(LOOK_S)
    return False


def at_start(directory, alive, draw):
    """Waits a random time up to a quarter of a second: ranks join, shared memory is created, the first weights are sent."""
    del directory
    time.sleep(draw.uniform(0, 0.25))
    return alive()


def in_step(directory, alive, draw):
    """Waits for a random step, and up to 5 ms longer."""
    from .jobs import STEPS
    step = draw.randrange(STEPS - 1)
    there = wait(lambda: last_step(directory) >= step, alive)
    time.sleep(draw.uniform(0, 0.005))
    return there


def some_partial(directory, alive, draw):
    """Waits until a random checkpoint has begun: its partial directory exists."""
    from .jobs import EVERY, STEPS
    step = draw.randrange(1, STEPS // EVERY) * EVERY
    return wait(lambda: last_step(directory) >= step - 1, alive) and wait(lambda: partials(directory), alive)


def in_checkpoint(directory, alive, draw):
    there = some_partial(directory, alive, draw)
    time.sleep(draw.uniform(0, 0.004))
    return there


def in_rename(directory, alive, draw):
    """Waits until a random checkpoint's manifest is being written, or the checkpoint has just been renamed."""
    def due():
        return any(os.path.exists(os.path.join(p, name)) for p in partials(directory)
                   for name in ("manifest.json", "manifest.json.tmp"))
    return some_partial(directory, alive, draw) and (wait(lambda: due() or not partials(directory), alive))


def in_restore(directory, alive, draw):
    """Waits a random time up to 0.4 s after a kill. In this time the restarted run loads its checkpoint."""
    del directory
    time.sleep(draw.uniform(0, 0.4))
    return alive()


MOMENTS = {"start": at_start, "step": in_step, "checkpoint": in_checkpoint, "rename": in_rename}
