"""The drilled jobs: one small model through every topology that recovers, with the expected final hash."""
import json
import os
import subprocess
from dataclasses import dataclass, field

# Short enough for hundreds of runs, and long enough that a random time falls into the training. A frozen process costs the whole
# deadline, so it is short.
STEPS, EVERY, DEADLINE_S = 120, 8, 10
CONFIG = {
    "model": "tiny", "data": "demo", "steps": STEPS, "train_micro_batch_size_per_gpu": 2, "seed": 5, "eval_batches": "none", "quiet": True,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.003}}, "bf16": {"enabled": True},
}
FLAGS = ["--seq", "64", "--threads", "1"]
LIMIT_S = 120  # a run that takes longer counts as hanging


@dataclass
class Job:
    """One way to train the job: its flags, its possible victims, and whether its bits are promised."""
    name: str
    flags: list
    victims: list  # "worker 0", "server 1", "rank 0", "run"
    more: list = field(default_factory=list)  # flags that the undisturbed run does not get
    equal: bool = True  # the final hash must be that of the undisturbed run
    reference: dict = field(default_factory=dict)


STAR = ["--topology", "ps:sync", "--workers", "2"]


def star(servers):
    return ["worker 0", "worker 1"] + [f"server {s}" for s in range(servers)]


JOBS = [
    Job("ps:sync", [*STAR, "--servers", "2"], star(2)),
    Job("ps:sync, one server", [*STAR, "--servers", "1"], star(1)),
    Job("ps:sync, tcp, losses", [*STAR, "--servers", "2", "--medium", "tcp"], star(2), ["--fault", "drop=0.01,dup=0.02,reorder=0.05"]),
    Job("ps:sync, codes", [*STAR, "--servers", "2", "--set", "parameter_server.compression=onebit"], star(2)),
    Job("ps:sync, elastic", ["--topology", "ps:sync", "--workers", "3"], [*star(1), "worker 2"], ["--elastic", "2:3"], equal=False),
    Job("ps:async", ["--topology", "ps:async", "--workers", "2", "--servers", "2"], star(2), equal=False),
    Job("zero:1, threads", ["--topology", "zero:1", "--workers", "2", "--launch", "threads"], ["run"]),
    Job("zero:3, threads", ["--topology", "zero:3", "--workers", "2", "--launch", "threads"], ["run"], ["--checkpoint-background"]),
    Job("zero:2, processes", ["--topology", "zero:2", "--workers", "2"], ["rank 0", "rank 1"]),
    Job("zero:3, processes", ["--topology", "zero:3", "--workers", "2"], ["rank 0", "rank 1"], ["--checkpoint-background"]),
    Job("local", ["--topology", "local"], ["run"]),
]


class DrillError(Exception):
    """The drill cannot continue."""


def find(names):
    """The jobs with these names; all jobs if there are no names."""
    known = {job.name: job for job in JOBS}
    for name in names:
        if name not in known:
            raise DrillError(f"--job {name}: there is no such job; the jobs are: " + "; ".join(known))
    return [known[name] for name in names] or list(JOBS)


def write_config(directory, deadline_s=DEADLINE_S):
    path = os.path.join(directory, "drill.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump({**CONFIG, "parameter_server": {"deadline_ms": round(1000 * deadline_s)}}, f, indent=1)
    return path


def command(program, config, job, out, restarts):
    """The command line of a run that survives so many restarts; 0: the undisturbed run."""
    recovery = [*job.more, "--checkpoint-every", str(EVERY), "--restart", str(restarts)] if restarts else []
    return [program, "train", "-c", config, "--out", out, "--no-weights", *FLAGS, *job.flags, *recovery]


def accepted(program, config, job):
    """Why the program refuses the job here, or None: without MPI no ring of processes trains, for example."""
    words = command(program, config, job, "none", 3) + ["--dry-run"]
    p = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    return None if p.returncode == 0 else p.stderr.strip().splitlines()[-1:][0] if p.stderr.strip() else "refused"


def hash_of(directory):
    """(hash of the last weights, steps done); (None, 0) if the run left no summary."""
    try:
        with open(os.path.join(directory, "summary.json"), encoding="utf-8") as f:
            summary = json.load(f)
    except (OSError, ValueError):
        return None, 0
    return summary.get("weights_hash"), summary.get("steps", 0)
