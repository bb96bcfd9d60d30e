"""When somebody is killed. A moment waits for what it is named after and returns; what it waits for is seen in the run's
directory alone, about every millisecond."""
import glob
import json
import os
import time

LOOK_S = 0.001
GIVE_UP_S = 30


def last_step(directory):
    """The last step that metrics.jsonl tells of whole, or 0."""
    try:
        with open(os.path.join(directory, "metrics.jsonl"), "rb") as f:
            f.seek(max(0, os.fstat(f.fileno()).st_size - 4096))
            lines = f.read().split(b"\n")[:-1]
        return int(json.loads(lines[-1])["step"]) if lines else 0
    except (OSError, ValueError, KeyError):
        return 0


def partials(directory):
    return glob.glob(os.path.join(glob.escape(directory), "checkpoints", ".*.partial"))


def lives(directory):
    """The lives that history.jsonl tells of."""
    try:
        with open(os.path.join(directory, "history.jsonl"), encoding="utf-8") as f:
            rows = [json.loads(line) for line in f if line.endswith("\n")]
            return [row for row in rows if row["kind"] == "life"]
    except (OSError, ValueError):
        return []


def wait(ask, alive):
    """Until ask() says so. False: the run has ended before, or it takes too long."""
    until = time.monotonic() + GIVE_UP_S
    while time.monotonic() < until:
        if ask():
            return True
        if not alive():
            return False
        time.sleep(LOOK_S)
    return False


def at_start(directory, alive, draw):
    """Somewhere in the first quarter of a second: who comes, segments, the first weights."""
    del directory
    time.sleep(draw.uniform(0, 0.25))
    return alive()


def in_step(directory, alive, draw):
    """Waits for a step, drawn evenly, and a little longer."""
    from .jobs import STEPS
    step = draw.randrange(STEPS - 1)
    there = wait(lambda: last_step(directory) >= step, alive)
    time.sleep(draw.uniform(0, 0.005))
    return there


def some_partial(directory, alive, draw):
    """A checkpoint drawn evenly has begun: the partial directory is there."""
    from .jobs import EVERY, STEPS
    step = draw.randrange(1, STEPS // EVERY) * EVERY
    return wait(lambda: last_step(directory) >= step - 1, alive) and wait(lambda: partials(directory), alive)


def in_checkpoint(directory, alive, draw):
    there = some_partial(directory, alive, draw)
    time.sleep(draw.uniform(0, 0.004))
    return there


def in_rename(directory, alive, draw):
    """Its manifest is being written, or it has just got its name."""
    def due():
        return any(os.path.exists(os.path.join(p, name)) for p in partials(directory)
                   for name in ("manifest.json", "manifest.json.tmp"))
    return some_partial(directory, alive, draw) and (wait(lambda: due() or not partials(directory), alive))


def in_restore(directory, alive, draw):
    """For a second death: the life after the first one has begun to load."""
    del directory
    time.sleep(draw.uniform(0, 0.4))
    return alive()


MOMENTS = {"start": at_start, "step": in_step, "checkpoint": in_checkpoint, "rename": in_rename}
