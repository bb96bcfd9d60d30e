"""Runs of the program: starting them, reading what they left, and refusing to compare unlike ones."""
import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

from . import noise

TAIL_LINES = 25  # of a failed run's output
CLASSES = ["parameter", "gradient", "master", "optimizer", "activation", "communication", "workspace", "server"]
PINNED = "pinned"  # page-locked host memory: counted beside the classes of device memory, in no sum of them
# Other spellings of a memory class in summary.json.
CLASS_ALIASES = {"comm": "communication", "comm_buffer": "communication", "communication_buffer": "communication",
                 "server_state": "server"}


class RunError(Exception):
    """A run that failed or left files that cannot be compared; the text is for people."""
    status = 1


class UsageError(RunError):
    """The command line is wrong."""
    status = 2


class Run:
    """One run directory. losses holds the loss of each step as the exact text of metrics.jsonl."""

    def __init__(self, name, directory):
        self.name = name
        self.label = name      # for people: "zero:2", "zero:2 servers=3 (2nd)"
        self.directory = directory
        self.command = []
        self.summary = {}
        self.losses = []
        self.metrics = []
        self.evals = []        # [(step, held-out loss)]
        self.wall_seconds = None
        self.load = {}         # what load.json says (noise.py)
        self.point = []        # [(key, value)] of --sweep, as given

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

    def elapsed(self):
        """Seconds since the first step began, at the end of each step."""
        return list(itertools.accumulate(float(m.get("seconds") or 0) for m in self.metrics))

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
    return sum(v for name, v in (classes or {}).items() if name != PINNED)


def total(entry):
    return max(device_bytes(entry.get("predicted")), device_bytes(entry.get("peak")))


def same_class(name):
    return CLASS_ALIASES.get(name, name)


def as_float(text):
    """A loss's text as a number; NaN when it was none."""
    try:
        return float(text)
    except (TypeError, ValueError):
        return float("nan")


def exact_json(text):
    """JSON with every number kept as the text it was written as."""
    return json.loads(text, parse_float=str, parse_int=str, parse_constant=str)


def load_evals(path):
    """[(step, held-out loss)] of an evals.jsonl, which is not there when nothing was evaluated."""
    evals = []
    if not os.path.exists(path):
        return evals
    with open(path, encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            try:
                record = json.loads(line)
                evals.append((record["step"], as_float(record["val_loss"])))
            except (ValueError, KeyError, TypeError) as e:
                raise RunError(f"{path}:{number}: no evaluation: {e}") from None
    return evals


def load(name, directory):
    """Reads a finished run directory; RunError names the file and what is wrong with it."""
    run = Run(name, directory)
    summary = os.path.join(directory, "summary.json")
    metrics = os.path.join(directory, "metrics.jsonl")
    for path in (summary, metrics):
        if not os.path.exists(path):
            raise RunError(f"{path}: not there: the run did not finish, or this is no run directory")
    try:
        with open(summary, encoding="utf-8") as f:
            run.summary = json.load(f)
    except ValueError as e:
        raise RunError(f"{summary}: no JSON: {e}") from None
    if not isinstance(run.summary, dict):
        raise RunError(f"{summary}: holds no JSON object: is it a run's summary?")
    with open(metrics, encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            if not line.strip():
                continue
            try:
                exact, record = exact_json(line), json.loads(line)
                loss = exact["loss"]
                run.losses.append("null" if loss is None else loss)  # null: not a number
                run.metrics.append(record)
            except (ValueError, KeyError, TypeError) as e:
                raise RunError(f"{metrics}:{number}: no step record with a loss: {e}") from None
    run.evals = load_evals(os.path.join(directory, "evals.jsonl"))
    if not run.losses:
        raise RunError(f"{metrics}: no step was recorded")
    if run.state == "interrupted" and not run.weights_hash:
        raise RunError(f"{directory}: the run was interrupted after step {run.steps} of {run.steps_planned}, and its "
                       "weights were not kept (--save-on-interrupt)")
    for key in ("topology", "weights_hash"):
        if not run.summary.get(key):
            raise RunError(f"{summary}: no \"{key}\"")
    for entry in run.summary.get("memory") or []:
        for kind in ("predicted", "peak"):
            entry[kind] = {same_class(k): v for k, v in (entry.get(kind) or {}).items()}
    run.label = run.topology
    run.load = noise.read(directory)
    return run


# ---------------------------------------------------------------- what to run
def split_values(text):
    """v1,v2 at commas that are outside of brackets and quotes, so that JSON values pass."""
    parts, depth, quoted, at = [], 0, False, ""
    for ch in text:
        quoted ^= ch == '"'
        depth += (ch in "[{") - (ch in "]}") if not quoted else 0
        if ch == "," and depth == 0 and not quoted:
            parts.append(at)
            at = ""
        else:
            at += ch
    return parts + [at]


FLAGS = ["workers", "servers", "model", "data", "steps", "dtype", "seed", "batch", "seq", "device", "launch"]


@dataclass
class Planned:
    """One run to come: its directory's name, its label, its command line without --out, its point of the sweep."""
    name: str
    label: str
    argv: list
    point: list


def plan(args):
    """[Planned], one per topology and sweep point, in the order given."""
    sweeps = []
    for text in args.sweep:
        key, eq, values = text.partition("=")
        if not eq or not key or not values:
            raise UsageError(f"--sweep {text}: write it as key=v1,v2")
        sweeps.append([(key, v) for v in split_values(values)])
    out, names = [], set()
    for topology in args.topologies:
        for point in itertools.product(*sweeps):
            swept = {key for key, _ in point}
            argv = [args.program, "train"]
            if args.config:
                argv += ["-c", args.config]
            argv += ["--topology", topology]
            for flag in FLAGS:
                value = getattr(args, flag)
                if topology == "local" and flag in ("workers", "servers", "launch"):
                    continue  # local is one process whatever the others are
                if flag == "servers" and topology.startswith("zero"):
                    continue  # a ring has none
                if value is not None and flag not in swept:
                    argv += ["--" + flag, str(value)]
            for text in args.set:
                argv += ["--set", text]
            for key, value in point:
                argv += ["--" + key, value] if key in FLAGS else ["--set", f"{key}={value}"]
            suffix = "".join(f" {key.split('.')[-1]}={value}" for key, value in point)
            name = re.sub(r"[^A-Za-z0-9_.=]+", "-", topology + suffix).strip("-")
            if name in names:
                raise UsageError(f"{topology}{suffix} is asked for twice; --repeat N runs everything N times")
            names.add(name)
            out.append(Planned(name, topology + suffix, argv, list(point)))
    return out


def execute(planned, name, directory, limit):
    """Runs the program once; the run read back, or RunError with the end of its output."""
    label = planned.label
    log = os.path.join(directory, "output.txt")
    if os.path.exists(log):
        shutil.rmtree(directory)  # ours, from an earlier comparison: it must not pass for this run's result
    elif os.path.isdir(directory) and os.listdir(directory):
        raise RunError(f"{directory}: holds files that no comparison wrote; choose another --out")
    os.makedirs(directory, exist_ok=True)
    argv = planned.argv + ["--out", directory]
    began, watch = time.monotonic(), noise.Watch()
    with open(log, "wb") as f:
        try:
            p = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=f, stderr=subprocess.STDOUT)
        except OSError as e:
            raise RunError(f"cannot start {argv[0]}: {e.strerror}; build it with make, or name it with --program") from None
        try:
            status = p.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            status = f"still running after {limit:g} s; it was ended"
            stop(p)
        except BaseException:
            stop(p)
            raise
    seconds = time.monotonic() - began
    noise.write(directory, watch.result())
    if status != 0:
        with open(log, encoding="utf-8", errors="replace") as f:
            tail = f.read().replace("\r", "\n").splitlines()[-TAIL_LINES:]
        what = f"exit status {status}" if isinstance(status, int) else status
        raise RunError(f"{label}: {what}\n  command: {' '.join(argv)}\n  the end of its output ({log}):\n"
                       + "\n".join("    | " + line for line in tail))
    run = load(name, directory)
    run.label, run.command, run.wall_seconds, run.point = label, argv, seconds, planned.point
    return run


def stop(process):
    """The program ends its ranks on SIGTERM; after a grace period it is killed."""
    process.terminate()
    try:
        process.wait(timeout=10)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):  # a second Ctrl-C: at once
        process.kill()
        process.wait()


def run_all(args):
    """[[run of repeat 1, repeat 2, ..] per planned run]; repeats are interleaved (A B A B)."""
    planned = plan(args)
    groups = [[] for _ in planned]
    done = 0
    for repeat in range(args.repeat):
        for i, one in enumerate(planned):
            done += 1
            suffix = f".r{repeat + 1}" if args.repeat > 1 else ""
            print(f"[{done}/{len(planned) * args.repeat}] {one.label}{suffix.replace('.r', ' run ')} ...",
                  end=" ", flush=True)
            try:
                run = execute(one, one.name + suffix, os.path.join(args.out, one.name + suffix), args.limit)
            except RunError:
                print("failed", flush=True)
                raise
            speed = run.tokens_per_second
            print(f"{run.wall_seconds:.1f} s, loss {as_float(run.losses[0]):.4f} -> {as_float(run.losses[-1]):.4f}"
                  + (f", {speed:,.0f} tokens/s" if speed else "")
                  + "".join(f"; noisy: {why}" for why in noise.why_noisy(run)[:1]), flush=True)
            groups[i].append(run)
            refuse_unlike([g[0] for g in groups if g], args.force)
    return groups


def refuse_unlike(runs, force):
    """RunError unless all runs saw the same tokens per step, model, data and seed, multiplied alike."""
    remedies = {"cpu_kernel": "; give all of them --set cpu.kernel=fma",
                "products": "; give all of them the same --set cuda.products=FILE, or none"}
    for key in ("tokens_per_step", "model", "params", "data", "seed", "cpu_kernel", "products"):
        values = {}
        for run in runs:
            value = run.summary.get(key)
            if key == "cpu_kernel":
                value = run.get("cpu_kernel", "product")
            elif key == "products" and value is not None:
                value = run.get("products", "hash") or "no table"
            if key not in remedies or value is not None:  # none: another device's, or from before it was recorded
                values.setdefault(json.dumps(value), run.label)
        if len(values) > 1:
            listed = ", ".join(f"{label}: {value}" for value, label in values.items())
            text = f"the runs are not comparable: unequal {key} ({listed})"
            remedy = remedies.get(key, "; make them equal")
            if not force:
                raise RunError(text + remedy + ", or compare anyway with --force")
            print("warning: " + text, file=sys.stderr)


def median_and_spread(values):
    """(median, max - min) of what is there; (None, None) of nothing."""
    values = [v for v in values if isinstance(v, (int, float))]
    if not values:
        return None, None
    return statistics.median(values), max(values) - min(values)
