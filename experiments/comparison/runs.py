"""Reads a run of the program from its directory."""
import itertools
import json
import os
from dataclasses import dataclass

import regular
from netlab import rate

from . import figures, noise, turns

CLASSES = [name for name, _ in figures.part("memory[].peak.")]
PINNED, OFFLOAD = "pinned", "offload"  # host memory: not in the sum of the classes of device memory
# Other spellings of a memory class in summary.json.
CLASS_ALIASES = {"comm": "communication", "comm_buffer": "communication", "communication_buffer": "communication",
                 "server_state": "server"}


class RunError(Exception):
    """A run failed, or left files that cannot be compared. brief: why, in one line."""
    status = 1

    def __init__(self, text, brief=None):
        super().__init__(text)
        self.brief = brief or text.splitlines()[0]


class UsageError(RunError):
    """The command line is wrong."""
    status = 2


def cause(said):
    """The important line of a failed program's output: its first error, else its last line."""
    lines = [line.strip() for line in said.replace("\r", "\n").splitlines() if line.strip()]
    return next((line for line in lines if "error:" in line), lines[-1] if lines else "it printed nothing")


@dataclass(frozen=True)
class Failure:
    """A failed run that the comparison continues without: its label, its directory's name, and why, in one line."""
    label: str
    name: str
    why: str


def failures_in_words(failed, groups):
    """["zero:2 (2 of 3 runs): the first failure's reason"]. groups: the runs that did not fail."""
    out = []
    for label in dict.fromkeys(f.label for f in failed):
        mine = [f for f in failed if f.label == label]
        every = len(mine) + sum(len(g) for g in groups if g[0].label == label)
        out.append(f"{label}{f' ({len(mine)} of {every} runs)' if every > 1 else ''}: {mine[0].why}")
    return out


@dataclass(frozen=True)
class Evaluation:
    """One snapshot evaluated on held-out text, with the job's progress and time at that step."""
    step: int
    loss: float
    samples: float
    updates: float
    seconds: float   # since the training began
    tokens: float = None   # predicted tokens; None: not stated


class Run:
    """One run directory. losses holds the loss of each step as the exact text of metrics.jsonl."""

    def __init__(self, name, directory):
        self.name = name
        self.label = name      # as shown: "zero:2", "zero:2 servers=3 (2nd)"
        self.directory = directory
        self.command = []
        self.summary = {}
        self.losses = []
        self.metrics = []
        self.evals = []        # [Evaluation]
        self.wall_seconds = None
        self.load = {}         # the contents of load.json (noise.py)
        self.turns = None      # the contents of turns.json (turns.py); None: the run took no turns
        self.whole_because = ""  # why it took no turns, although its comparison preferred them
        self.point = []        # the values of --sweep as given, [(key, value)], without the seed
        self.repeat = 0        # number of the repeat, from 0
        self.medium_asked = None
        self.seed_swept = False

    def __getattr__(self, key):
        # summary.json's keys as attributes: run.topology, run.weights_hash; None when absent.
        if key.startswith("_"):
            raise AttributeError(key)
        return self.summary.get(key)

    def get(self, *path, default=None):
        at = self.summary
        for key in path:
            at = at.get(key) if isinstance(at, dict) else None
        return default if at is None else at

    @property
    def kind(self):
        return (self.topology or "").split(":")[0]

    @property
    def own_steps(self):
        """The steps that the ranks' figures cover: those since the checkpoint that was resumed; for asynchronous workers the job's steps
        of N batches. At least 1."""
        steps = self.steps if isinstance(self.steps, (int, float)) else len(self.losses)
        return max(steps - (self.resumed_from or 0), 1)

    def elapsed(self):
        """Seconds of training since the first step began, at the end of each step."""
        if all(isinstance(m.get("elapsed"), (int, float)) for m in self.metrics):
            return [m["elapsed"] for m in self.metrics]
        return list(itertools.accumulate(float(m.get("seconds") or 0) for m in self.metrics))

    def config(self):
        """The resolved configuration; {} if the run left none."""
        try:
            with regular.open_file(os.path.join(self.directory, "config.json"), limit=regular.WHOLE, encoding="utf-8") as f:
                found = json.load(f)
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def roles(self):
        """{role: the memory entry of the rank with the largest predicted or measured total}"""
        best = {}
        for entry in self.memory or []:
            role = entry.get("role", "worker")
            if role not in best or total(entry) > total(best[role]):
                best[role] = entry
        return best

    def wire_of(self, role):
        entries = [w for w in self.wire or [] if w.get("role", "worker") == role]
        return max(entries, key=lambda w: w.get("sent_per_step") or 0) if entries else None


def device_bytes(classes):
    """Sum of the classes that are device memory."""
    return sum(v for name, v in (classes or {}).items() if name not in (PINNED, OFFLOAD))


def total(entry):
    return max(device_bytes(entry.get("predicted")), device_bytes(entry.get("peak")))


def as_float(text):
    """A loss's text as a number; NaN if it is none."""
    try:
        return float(text)
    except (TypeError, ValueError):
        return float("nan")


def opened(path, limit=None):
    try:
        return regular.open_file(path, limit=limit, encoding="utf-8")
    except OSError as e:
        raise RunError(f"{path}: {e.strerror}") from None


def load_evals(path, run):
    """[Evaluation] of an evals.jsonl; [] if nothing was evaluated. Old files state only the step, from which a synchronous run's samples
    and time follow."""
    evals, elapsed, batch = [], run.elapsed(), run.train_batch_size or 0
    if not os.path.exists(path):
        return evals
    with opened(path) as f:
        for number, line in enumerate(f, 1):
            try:
                record = json.loads(line)
                step, loss = record["step"], as_float(record["val_loss"])
                if "samples" in record:
                    evals.append(Evaluation(step, loss, record["samples"], record["updates"], record["seconds"],
                                            record.get("tokens")))
                else:
                    evals.append(Evaluation(step, loss, step * batch, step, elapsed[min(step, len(elapsed)) - 1] if step else 0.0))
            except (ValueError, KeyError, TypeError) as e:
                raise RunError(f"{path}:{number}: no evaluation: {e}") from None
    return evals


def link_rate(directory):
    """The limit of each rank's link, in words (netlab.json of experiments/netlab); None if there was none."""
    try:
        with regular.open_file(os.path.join(directory, "netlab.json"), limit=regular.WHOLE, encoding="utf-8") as f:
            return rate.text(json.load(f)["bits_per_second"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def load(name, directory):
    """Reads a finished run directory; RunError names the file and what is wrong with it."""
    run = Run(name, directory)
    summary = os.path.join(directory, "summary.json")
    metrics = os.path.join(directory, "metrics.jsonl")
    for path in (summary, metrics):
        if not os.path.exists(path):
            raise RunError(f"{path}: not there: the run did not finish, or this is no run directory")
    try:
        with opened(summary, limit=regular.WHOLE) as f:
            run.summary = json.load(f)
    except ValueError as e:
        raise RunError(f"{summary}: no JSON: {e}") from None
    if not isinstance(run.summary, dict):
        raise RunError(f"{summary}: holds no JSON object: is it a run's summary?")
    with opened(metrics) as f:
        for number, line in enumerate(f, 1):
            if not line.strip():
                continue
            try:
                exact, record = json.loads(line, parse_float=str, parse_int=str, parse_constant=str), json.loads(line)
                loss = exact["loss"]
                run.losses.append("null" if loss is None else loss)  # null: not a number
                run.metrics.append(record)
            except (ValueError, KeyError, TypeError) as e:
                raise RunError(f"{metrics}:{number}: no step record with a loss: {e}") from None
    if not run.losses:
        raise RunError(f"{metrics}: no step was recorded")
    run.evals = load_evals(os.path.join(directory, "evals.jsonl"), run)
    if run.state == "interrupted" and not run.weights_hash:
        raise RunError(f"{directory}: the run was interrupted after step {run.steps} of {run.steps_planned}, and its "
                       "weights were not kept (--save-on-interrupt)")
    for key in ("topology", "weights_hash"):
        if not run.summary.get(key):
            raise RunError(f"{summary}: no \"{key}\"")
    for entry in run.summary.get("memory") or []:
        for kind in ("predicted", "peak"):
            entry[kind] = {CLASS_ALIASES.get(k, k): v for k, v in (entry.get(kind) or {}).items()}
    run.label = run.topology
    run.summary["links"] = link_rate(directory)
    run.load, run.turns = noise.read(directory), turns.read(directory)
    return run
