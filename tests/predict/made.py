"""Documents of dry runs and machines, made by hand: what tests of predictions share."""
import copy
import importlib.util
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import fixture  # noqa: E402, F401: finds experiments/
import cli  # noqa: E402

cli.in_debians("simgrid", sys.argv)
from prediction import CannotPredict, dryrun, grid, machine  # noqa: E402

WHY_NOT = next((f"no python3-{name}" for name in ("numpy", "simgrid") if importlib.util.find_spec(name) is None), None)
if not WHY_NOT:
    try:
        grid.grid()
    except CannotPredict as e:
        WHY_NOT = str(e)
needs_simgrid = unittest.skipIf(WHY_NOT, WHY_NOT or "")
GB = 1e9
SECONDS = {"embedding": {"forward": 0.01, "backward": 0.02}, "block": {"forward": 0.1, "backward": 0.2}, "head": {"forward": 0.02, "backward": 0.04}}
MACHINE = {
    "name": "made", "date": "2026-01-01", "sources": {},
    "device": {"kind": "gpu", "memory_bytes": 80 * GB, "memory_bytes_per_second": 1000 * GB, "flops_per_second": {"fp32": 1e12},
               "efficiency": {"product": 0.5, "memory": 0.8}, "host_link_bytes_per_second": 10 * GB},
    "units": {"model": "made", "dtype": "fp32", "micro_batch_size": 1, "seq_len": 8, "threads": 1, "seconds": SECONDS, "update_seconds_per_element": 0},
    "cores": None, "node": {"devices": 1, "bytes_per_second": 100 * GB, "latency_seconds": 0},
    "network": {"kind": "switch", "bytes_per_second": 1 * GB, "links_per_node": 1, "latency_seconds": 0}, "server": None}
COMPUTING = sum(sum(SECONDS[kind].values()) for kind in ("embedding", "block", "block", "head"))   # of a step of document()


def made_machine(**sections):
    """MACHINE with members of its sections changed: made_machine(network={"kind": "torus"}); a section may be None."""
    told = copy.deepcopy(MACHINE)
    for section, value in sections.items():
        if isinstance(value, dict) and isinstance(told.get(section), dict):
            told[section].update(value)
        else:
            told[section] = value
    return machine.checked(told, "made.json")


class Step:
    """A step of four units (embedding, two blocks, head), task by task."""
    units = ("embedding", "block.0", "block.1", "head")

    def __init__(self, workers):
        self.workers, self.tasks = workers, []

    def add(self, task, stream, needs=(), previous=(), **more):
        self.tasks.append({"task": task, "stream": stream, "needs": list(needs), "needs_previous": list(previous), **more})
        return len(self.tasks) - 1

    def move(self, task, stream, size, needs=(), previous=(), pattern="all_to_all", **more):
        """An all-to-all of a buffer of `size` bytes."""
        n = more.get("team_size", self.workers)
        sent = size * (n - 1) // n
        return self.add(task, stream, needs, previous, bytes=size, sent=sent, received=sent, pattern=pattern, **more)

    def forward(self, needs=None):
        return [self.add("forward", "compute", (needs or {}).get(u, ()), unit=u, micro=0) for u in range(4)]

    def told(self, topology="zero:2", **step):
        busiest = sum(task.get("sent", 0) for task in self.tasks)
        return {"topology": topology, "workers": self.workers, "servers": 0, "dtype": "fp32", "device": "cpu", "model": "made",
                "micro_batch_size": 1, "seq_len": 8, "tokens_per_step": 8 * self.workers, "params": 4000,
                "memory": [{"rank": 0, "role": "worker", "predicted": {"parameter": 4000}, "predicted_bytes": 4000, "formula": "4P", "formula_bytes": 4000}],
                "wire": [{"rank": 0, "role": "worker", "predicted_sent": busiest, "predicted_received": busiest, "formula": "2U"}],
                "step": {"micro_batches": 1, "every": 1,
                         "units": [{"name": name, "elements": 1000, "padded": 1000, "forward_flops": 1e9, "backward_flops": 2e9} for name in self.units],
                         "workers": {"tasks": self.tasks}, **step}}

    def document(self, topology="zero:2", **step):
        return dryrun.read(self.told(topology, **step))


def reduced(workers, size, **more):
    """zero:0 in the small: backward from the head, a reduce-scatter and an all-gather of each unit's gradient, an update after all."""
    step = Step(workers)
    step.forward()
    moved = None
    for u in (3, 2, 1, 0):
        backward = step.add("backward", "compute", unit=u, micro=0)
        step.move("reduce_scatter", "reduce", size, (backward,), unit=u, **more)
        moved = step.move("all_gather", "reduce", size, unit=u, **more)
    step.add("decide", "compute", (moved,))
    step.add("update", "compute", unit=0, elements=1000)
    return step


def updated(workers, size):
    """zero:1 in the small: gradients are reduced, updates gathered while the next forward runs; nothing needs the last units' gathers at once."""
    step = Step(workers)
    gathers = [19, 20, 21, 22]   # the positions of the gathers below
    for u in range(4):
        step.add("forward", "compute", previous=(gathers[u],), unit=u, micro=0)
    last = None
    for u in (3, 2, 1, 0):
        backward = step.add("backward", "compute", unit=u, micro=0)
        last = step.move("reduce_scatter", "reduce", size, (backward,), unit=u)
    updates = [last] + [None] * 4
    for u in range(4):
        updates[u + 1] = step.add("update", "compute", (last,) if not u else (), unit=u, elements=250)
    step.move("all_reduce", "reduce", 4, (updates[4],))   # the losses, which nobody waits for
    step.add("decide", "compute")
    step.add("norm", "compute")
    for u in range(4):
        assert step.move("all_gather", "gather", size, (updates[u + 1],), unit=u) == gathers[u]
    return step


def gathered(workers, size):
    """zero:3 in the small: each unit's weights are gathered one unit ahead, on a stream of their own, and its gradient reduced."""
    step = Step(workers)
    update = 20   # the position of the update below
    gathers = [step.move("all_gather", "gather", size, previous=(update,), unit=u) for u in range(4)]
    step.forward({u: (gathers[u],) for u in range(4)})
    last = None
    for u in (3, 2, 1, 0):
        again = step.move("all_gather", "gather", size, unit=u)
        backward = step.add("backward", "compute", (again,), unit=u, micro=0)
        last = step.move("reduce_scatter", "reduce", size, (backward,), unit=u)
    step.add("update", "compute", (last,), unit=0, elements=1000)
    assert step.tasks[update]["task"] == "update"
    return step
