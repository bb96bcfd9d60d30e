"""Trains one very small model for many steps, and samples the memory, descriptors and threads of its processes (experiments/soak.py)."""
import json
import os
import subprocess
import time
from dataclasses import dataclass, field
from statistics import median_low

from drill import processes

STEPS_LEAST = 200
# The smallest possible transformer: the test is about everything around it.
MODEL = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 256, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 1}
CONFIG = {
    "data": "demo", "train_micro_batch_size_per_gpu": 1, "seed": 5, "eval_batches": "none", "quiet": True,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.0001}}, "bf16": {"enabled": True},
}
FLAGS = ["--seq", "16", "--threads", "1", "--tokenizer", "byte", "--no-weights"]
EARLY, LATE = (0.1, 0.3), (0.8, 1.0)
PASSING = {"descriptors": 4, "threads": 0}  # files of a checkpoint that is just being written; a leak per checkpoint exceeds this
SETTLE_S = 5  # the time in which Open MPI removes its files after a run
FIGURES = ("memory", "descriptors", "threads")


class SoakError(Exception):
    """The soak cannot continue."""


@dataclass
class Job:
    name: str
    flags: list


STAR = ["--workers", "2", "--servers", "2"]
RING = ["--workers", "2"]
JOBS = [
    Job("local", ["--topology", "local"]),
    *(Job(f"zero:{stage}", ["--topology", f"zero:{stage}", *RING]) for stage in range(4)),
    Job("zero:1, threads", ["--topology", "zero:1", *RING, "--launch", "threads"]),
    Job("zero:3, threads", ["--topology", "zero:3", *RING, "--launch", "threads"]),
    Job("zero:2, MPI, tcp", ["--topology", "zero:2", *RING, "--launch", "mpi", "--medium", "tcp"]),
    Job("ps:sync", ["--topology", "ps:sync", *STAR]),
    Job("ps:sync, tcp", ["--topology", "ps:sync", *STAR, "--medium", "tcp"]),
    Job("ps:async", ["--topology", "ps:async", *STAR]),
    Job("ps:async, tcp", ["--topology", "ps:async", *STAR, "--medium", "tcp"]),
    Job("ps:sync, elastic", ["--topology", "ps:sync", *STAR, "--elastic", "1:2"]),
    Job("ps:sync, losses", ["--topology", "ps:sync", *STAR, "--fault", "dup=0.02,reorder=0.02,drop=0.0005"]),
]


@dataclass
class Result:
    job: str
    steps: int = 0
    seconds: float = 0
    wrong: list = field(default_factory=list)
    roles: dict = field(default_factory=dict)  # {role: {figure: (early, late)}}


def find(names):
    known = {job.name: job for job in JOBS}
    for name in names:
        if name not in known:
            raise SoakError(f"--job {name}: there is no such job; the jobs are: " + "; ".join(known))
    return [known[name] for name in names] or JOBS


def write_config(directory):
    model = os.path.join(directory, "model.json")
    with open(model, "w", encoding="utf-8") as f:
        json.dump(MODEL, f)
    path = os.path.join(directory, "soak.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"model": model, **CONFIG}, f, indent=1)
    return path


def command(program, config, job, out, steps):
    return [program, "train", "-c", config, "--out", out, "--steps", str(steps), "--checkpoint-every", str(max(1, steps // 50)), *FLAGS,
            *job.flags]


def accepted(program, config, job):
    """Why the program refuses the job here, or None: without MPI no ring of processes trains, for example."""
    p = subprocess.run([*command(program, config, job, "none", STEPS_LEAST), "--dry-run"], stdin=subprocess.DEVNULL, capture_output=True,
                       text=True, timeout=60, check=False)
    return None if p.returncode == 0 else (p.stderr.strip().splitlines() or ["refused"])[-1]


# ---------------------------------------------------------------- looking
def figures_of(pid):
    """(bytes of private memory, descriptors, threads) of a process; None if it has ended."""
    status = dict(line.split(":", 1) for line in processes.read(f"/proc/{pid}/status").decode(errors="replace").splitlines() if ":" in line)
    try:
        kib = sum(int(status[name].split()[0]) for name in ("RssAnon", "RssShmem"))
        return 1024 * kib, len(os.listdir(f"/proc/{pid}/fd")), int(status["Threads"])
    except (KeyError, OSError, ValueError, IndexError):
        return None


def step_of(out):
    """The step of the last complete line of metrics.jsonl; 0 if there is none."""
    try:
        with open(os.path.join(out, "metrics.jsonl"), "rb") as f:
            f.seek(max(0, os.path.getsize(f.name) - 4096))
            return json.loads(f.read().rpartition(b"\n")[0].rpartition(b"\n")[2])["step"]
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def role_name(argv, pid):
    role = processes.role_of(argv, processes.environment_of(pid))
    return role or ("run" if "train" in argv else None)


class Watch:
    """The observed figures of a run's processes: [(step, role, pid, figures)]."""

    def __init__(self, mark, out):
        self.mark, self.out, self.seen = mark, out, []
        self.names = {}

    def look(self):
        step = step_of(self.out)
        for pid, argv in processes.marked(self.mark).items():
            figures = figures_of(pid)
            if self.names.get(pid) in (None, "run"):  # between fork and exec a process still has its parent's name
                self.names[pid] = role_name(argv, pid) or self.names.get(pid)
            if figures and self.names[pid]:
                self.seen.append((step, f"{self.names[pid]}", pid, figures))

    def windows(self, steps):
        """{role: {figure: (early, late)}} of the processes that lived early and late. Medians, since files are open for a moment, and an
        ending process has closed most of them."""
        found = {}
        for pid, role in self.names.items():
            of_pid = [(step / steps, figures) for step, _, who, figures in self.seen if who == pid]
            early, late = ([f for share, f in of_pid if low <= share <= high] for low, high in (EARLY, LATE))
            if not role or not early or not late:
                continue
            name = role if role not in found else f"{role} ({pid})"
            found[name] = {figure: tuple(median_low(f[i] for f in part) for part in (early, late))
                           for i, figure in enumerate(FIGURES)}
        return found


# ---------------------------------------------------------------- one run
def judge(result, slack):
    if not result.roles:
        result.wrong.append("no process was seen both early and late: more --steps, or a shorter --every")
    for role, figures in result.roles.items():
        for figure, (early, late) in figures.items():
            if late - early > (slack if figure == "memory" else PASSING[figure]):
                result.wrong.append(f"{role}: {figure} grew from {early:.0f} to {late:.0f}")


def soak(args, config, job, directory):
    mark, out, began = str(os.getpid()), os.path.join(directory, "run"), time.monotonic()
    result, before = Result(job.name), processes.segments()
    errors = os.path.join(directory, "errors")
    with open(errors, "wb") as f:
        run = subprocess.Popen([*command(args.program, config, job, out, args.steps), "--force"], stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=f, env={**os.environ, processes.MARK: mark})
        watch = Watch(mark, out)
        while run.poll() is None:
            if time.monotonic() - began > args.limit:
                result.wrong.append(f"it still ran after {args.limit:.0f} s, at step {step_of(out)}")
                processes.end_all(mark)
            watch.look()
            time.sleep(args.every)
    result.seconds, result.steps = time.monotonic() - began, step_of(out)
    if run.returncode != 0:
        last = processes.read(errors).decode(errors="replace").strip().splitlines()[-1:]
        result.wrong.append(f"it ended with status {run.returncode}: " + "".join(last))
    result.roles = watch.windows(args.steps)
    judge(result, args.slack)
    left, until = ["?"], time.monotonic() + SETTLE_S
    while left and time.monotonic() < until:
        left = sorted(name for name in processes.segments() - before if processes.is_of_a_run(name, "mpi" in job.flags))
        time.sleep(0.1)
    if left:
        result.wrong.append("left in shared memory: " + ", ".join(left))
    return result


# ---------------------------------------------------------------- what is shown
def line(result):
    return f"{result.job}: {result.steps} steps, {result.seconds:.0f} s: " + ("; ".join(result.wrong) or "flat")


def markdown(results):
    rows = ["| job | process | memory early (MiB) | late | bytes a step | descriptors | threads |", "|---|---|---:|---:|---:|---:|---:|"]
    for r in results:
        between = max(1, r.steps * (sum(LATE) - sum(EARLY)) / 2)
        for role, f in r.roles.items():
            early, late = f["memory"]
            pairs = ["{}".format(a) if a == b else f"{a}, {b}" for a, b in (f["descriptors"], f["threads"])]
            rows.append(f"| {r.job} | {role} | {early / 2**20:.2f} | {late / 2**20:.2f} | {(late - early) / between:+.2f} | {pairs[0]} | {pairs[1]} |")
    return "\n".join(rows) + "\n"


def document(results, args):
    return {"steps": args.steps, "slack_bytes": args.slack,
            "runs": [{"job": r.job, "steps": r.steps, "seconds": r.seconds, "wrong": r.wrong,
                      "processes": {role: {figure: {"early": pair[0], "late": pair[1]} for figure, pair in f.items()}
                                    for role, f in r.roles.items()}} for r in results]}
