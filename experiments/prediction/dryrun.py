"""Reads a configuration's step from the program's `train --dry-run --json`: tasks, units, keys, memory, bytes.

No figure is computed here. `ask` runs the program, and caches its answer by the arguments; `Document` is the parsed answer.
"""
import functools
import json
import subprocess
from dataclasses import dataclass, field

from . import CannotPredict

ASK_SECONDS = 120


@dataclass(frozen=True)
class Unit:
    """A unit of the model. The flops are of one micro-batch on one rank, 0 where unknown."""
    name: str
    elements: int
    padded: int
    forward_flops: float
    backward_flops: float


@dataclass(frozen=True)
class Task:
    """One task of a worker's step. Tasks of one stream run one after the other, in the list's order. `needs` are positions of tasks
    of this step, `needs_previous` of the previous step; units: positions of units. A task with a pattern is a transfer, one without computes.

    micro: None after the micro-batches. elements: what this rank computes in update, norm, delta, mix. round: only in the last step of a
    round of local steps. control: its bytes are no payload, and sent and received are 0. neighbour: position among the step's distances of a
    gossip."""
    task: str
    stream: str
    units: tuple = ()
    micro: int = None
    elements: int = 0
    bytes: int = 0
    sent: int = 0
    received: int = 0
    across_sent: int = 0
    messages: int = 0
    control: bool = False
    team: str = "all"
    team_size: int = 0
    pattern: str = ""
    neighbour: int = 0
    round: bool = False
    needs: tuple = ()
    needs_previous: tuple = ()
    more: dict = field(default_factory=dict, compare=False)   # all other keys of the task in the dry run

    @property
    def computes(self):
        return not self.pattern


@dataclass(frozen=True)
class Key:
    """A partition of a star: bytes of one push as pushed, and of one pull."""
    unit: int
    bytes: int
    server: int
    shard: int
    pull_bytes: int


@dataclass(frozen=True)
class Document:
    """The dry run. memory and wire are its rows as they stand; step is its section `step` as it stands (consistency, every ..)."""
    told: dict
    units: tuple
    tasks: tuple
    keys: tuple

    def __getattr__(self, name):   # topology, workers, servers, dtype, device, model, micro_batch_size, seq_len, tokens_per_step, params
        try:
            return self.told[name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def micro_batches(self):
        return self.step.get("micro_batches", 1)

    @property
    def every(self):
        return self.step.get("every", 1) or 1


KNOWN = set(Task.__dataclass_fields__) - {"more"}


def task_of(told, workers):
    """The Task of a task's JSON."""
    known = {key: tuple(value) if isinstance(value, list) else value for key, value in told.items() if key in KNOWN}
    if "unit" in told:
        known["units"] = (told["unit"],)
    known.setdefault("team_size", workers)
    return Task(**known, more={key: value for key, value in told.items() if key not in KNOWN and key != "unit"})


def read(told):
    """The Document of a dry run's JSON. Raises CannotPredict if the program does not describe its steps."""
    step = told.get("step")
    if not step:
        raise CannotPredict(f"the program's dry run does not say what a step of {told.get('topology')} does, so its time cannot be predicted")
    for what, found in (("tasks", step["workers"]["tasks"]), ("keys", step.get("keys", ()))):
        if found is None:
            raise CannotPredict(f"a step of {told.get('topology')} with {step['micro_batches']} micro-batches has more {what} than a document holds: "
                                f"predict one with fewer {'micro-batches' if what == 'tasks' else 'keys: a larger parameter_server.partition_bytes'}")
    tasks = tuple(task_of(task, told["workers"]) for task in step["workers"]["tasks"])
    units = tuple(Unit(u["name"], u["elements"], u["padded"], u.get("forward_flops", 0), u.get("backward_flops", 0)) for u in step["units"])
    keys = tuple(Key(k["unit"], k["bytes"], k["server"], k.get("shard", 0), k.get("pull_bytes", k["bytes"])) for k in step.get("keys", ()))
    for i, task in enumerate(tasks):
        for other in (*task.needs, *task.needs_previous):
            if not 0 <= other < len(tasks):
                raise CannotPredict(f"task {i} ({task.task}) of the dry run needs task {other}, which is not there")
    return Document(told, units, tasks, keys)


@functools.lru_cache(maxsize=4096)
def answer(program, words):
    """Runs the dry run and returns its JSON as text. words: a tuple with the arguments of `train`, without --dry-run."""
    try:
        p = subprocess.run([program, "train", *words, "--dry-run", "--json"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                           timeout=ASK_SECONDS, check=False)
    except FileNotFoundError:
        raise CannotPredict(f"{program} is not there: build it with make, or name it with --program") from None
    except OSError as e:
        raise CannotPredict(f"cannot start {program}: {e.strerror}; build it with make, or name it with --program") from None
    except subprocess.TimeoutExpired:
        raise CannotPredict(f"{program} train {' '.join(words)} --dry-run did not answer within {ASK_SECONDS} s") from None
    if p.returncode:
        lines = p.stderr.strip().splitlines()
        raise CannotPredict((lines[-1] if lines else f"the dry run ended with status {p.returncode}").removeprefix("starring: error: "))
    return p.stdout


def ask(program, words):
    """The Document of `program train WORDS`. Raises CannotPredict with the program's error if it refuses them."""
    try:
        told = json.loads(answer(program, tuple(words)))
    except json.JSONDecodeError:
        raise CannotPredict(f"{program} train --dry-run --json answers with something other than JSON: is it starring? Name it with --program") from None
    return read(told)
