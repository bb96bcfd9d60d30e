"""Seconds of a task's computing on a machine, and the stragglers that make it longer.

Measured units are used if the machine file has them; else the time is the larger of flops / (peak x efficiency) and bytes / (bandwidth x
efficiency). Stragglers are drawn from the distributions of shared/core/trouble.h, but not with the random numbers of a run.
"""
import os
import re

import numpy as np

from . import CannotPredict

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
UPDATE_BYTES = 28   # per element: AdamW reads gradient, master and two moments (4 bytes each), and writes master, moments and, in 16 bits, the weight


def kind_of(name):
    """The kind of a unit, from its name: "block" for "block.3" or "block 3"."""
    return re.sub(r"[ ._-]*\d+$", "", name)


def model_of(words):
    """A model's name as the benches print it; for a path, the name of the file or directory."""
    return os.path.basename(words.rstrip("/")).removesuffix(".json")


class Compute:
    """Computes seconds(task) on one rank that shares neither its device nor its cores. `notes`: sentences on the basis of the figures."""

    def __init__(self, document, machine):
        self.document, self.machine, self.notes = document, machine, []
        self.measured, self.scale = self._matching()
        if self.measured is None:
            self._check_device()

    def _matching(self):
        """(the machine's measured units of this model, dtype and length, 1). Else units of another batch or, if the machine has no device,
        of another model, with the factor by which their times are multiplied here. (None, 1): there are none."""
        document, units = self.document, self.machine.units or []
        words = (model_of(document.model), document.dtype, document.seq_len)
        alike = [one for one in units if (model_of(one["model"]), one["dtype"], one["seq_len"]) == words]
        for one in alike:
            if one["micro_batch_size"] == document.micro_batch_size:
                return self._complete(one), 1
        if alike:
            self.notes.append(f"Computing was measured with {alike[0]['micro_batch_size']:g} sequences a micro-batch, and is taken in proportion.")
            return self._complete(alike[0]), document.micro_batch_size / alike[0]["micro_batch_size"]
        if self.machine.device is None:
            raise CannotPredict(
                f"{self.machine.path} has times of {', '.join(sorted({one['model'] + ' ' + one['dtype'] for one in units}))}, and no device to compute others "
                f"from: run --calibrate with --model {document.model} --batch {document.micro_batch_size} --seq {document.seq_len} --dtype {document.dtype}")
        return None, 1

    def _complete(self, one):
        lacks = {kind_of(unit.name) for unit in self.document.units if unit.name not in one["seconds"]} - set(one["seconds"])
        if lacks:
            raise CannotPredict(f"{self.machine.path}: units.seconds of {one['model']} lacks {', '.join(sorted(lacks))}")
        return one

    def _check_device(self):
        device = self.machine.device
        peaks, document = device.get("flops_per_second") or {}, self.document
        if not peaks.get(document.dtype):
            raise CannotPredict(f"{self.machine.path}: device.flops_per_second has no {document.dtype}")
        if not device.get("memory_bytes_per_second"):
            raise CannotPredict(f"{self.machine.path}: device.memory_bytes_per_second is missing")
        if not any(unit.forward_flops for unit in document.units if kind_of(unit.name) == "block"):
            raise CannotPredict(f"the dry run does not say how many flops a unit of {document.model} takes")

    def _efficiency(self, kind):
        return (self.machine.device.get("efficiency") or {}).get(kind) or 1

    def _roofline(self, flops, moved):
        device = self.machine.device
        product = flops / (device["flops_per_second"][self.document.dtype] * self._efficiency("product"))
        return max(product, moved / (device["memory_bytes_per_second"] * self._efficiency("memory")))

    def unit_seconds(self, number, task):
        """Seconds of one unit's forward or backward, of one micro-batch."""
        unit = self.document.units[number]
        if self.measured:
            seconds = self.measured["seconds"]
            of_unit = seconds.get(unit.name) or seconds[kind_of(unit.name)]
            if task not in of_unit:
                raise CannotPredict(f"{self.machine.path}: units.seconds of {unit.name} lacks {task}")
            return of_unit[task] * self.scale
        weights = unit.elements * BYTES[self.document.dtype]
        return self._roofline(unit.forward_flops if task == "forward" else unit.backward_flops, weights if task == "forward" else 2 * weights)

    def update_seconds(self, elements, moved=UPDATE_BYTES):
        """Seconds of an update of so many elements. moved: bytes per element, for other passes over them."""
        known = self.measured or (self.machine.units or [{}])[0]
        per_element = known.get("update_seconds_per_element")
        if per_element is not None:
            return elements * per_element * moved / UPDATE_BYTES
        if self.machine.device is None or not self.machine.device.get("memory_bytes_per_second"):
            raise CannotPredict(f"{self.machine.path}: neither units.update_seconds_per_element nor device.memory_bytes_per_second")
        return elements * moved / (self.machine.device["memory_bytes_per_second"] * self._efficiency("memory"))

    def host_update_seconds(self, elements):
        """Seconds of an update of offloaded state, by the host's cores."""
        server = self.machine.server
        if not server or not server.get("update_elements_per_second"):
            raise CannotPredict(f"{self.machine.path}: server.update_elements_per_second is missing: how fast the host updates offloaded state")
        return elements / server["update_elements_per_second"]

    def seconds(self, task):
        """Seconds of a task that computes, in one micro-batch."""
        if task.task in ("forward", "backward"):
            return sum(self.unit_seconds(u, task.task) for u in task.units)
        if task.stream == "host":
            return self.host_update_seconds(task.elements)
        # Bytes per element: norm reads the gradient; delta and mix read two values and write one, in fp32.
        moved = {"update": UPDATE_BYTES, "norm": BYTES[self.document.dtype], "delta": 12, "mix": 12}.get(task.task, 0)
        return self.update_seconds(task.elements, moved) if task.elements and moved else 0.0

    def host_copy_seconds(self, task):
        """Seconds of a transfer between device, host and disk."""
        device = self.machine.device or {}
        key = "disk_bytes_per_second" if task.task in ("read", "write") else "host_link_bytes_per_second"
        rate = device.get(key) or (device.get("kind") == "cpu" and key[0] == "h" and device.get("memory_bytes_per_second"))
        if not rate:
            raise CannotPredict(f"{self.machine.path}: device.{key} is missing: how fast offloaded state moves")
        return task.bytes / rate

    @property
    def spread(self):
        return self.measured["spread"] if self.measured else 0

    @property
    def begin_seconds(self):
        """Host seconds at the beginning of each step."""
        return self.measured["begin_seconds"] if self.measured else 0


# ---------------------------------------------------------------- trouble
def draw(random, distribution, mean, shape):
    """A random number with mean M: constant M; exponential; pareto (M/2)/sqrt(u), shape 2; lognormal M exp(z - 1/2)."""
    if distribution == "exponential":
        return random.exponential(mean, shape)
    if distribution == "pareto":
        return mean * 0.5 / np.sqrt(1 - random.random(shape))
    if distribution == "lognormal":
        return mean * np.exp(random.standard_normal(shape) - 0.5)
    return np.full(shape, float(mean))


def items(words):
    """The items of --straggle or --delay: [(rank, or None for each rank, [the other fields])]. The program has checked the list."""
    out = []
    for item in (words or "").split(","):
        if item:
            rank, *rest = item.split(":")
            out.append((None if rank == "*" else int(rank), rest))
    return out


class Trouble:
    """The slowdown of `ranks` ranks by --straggle and --delay, and the random variation of the machine's own compute times. The program
    checks the lists."""

    def __init__(self, straggle, delay, ranks, seed, spread=0.0):
        self.straggle, self.delay, self.ranks, self.spread = items(straggle), items(delay), ranks, spread
        self.random = np.random.default_rng(seed)

    @property
    def any(self):
        """Whether two steps may take different times."""
        return bool(self.straggle or self.delay or self.spread)

    @property
    def drawn(self):
        """Whether steps get random times, and so differ from each other."""
        return bool(self.spread or any(rest[0] not in ("constant",) for _, rest in self.delay)
                    or any(len(rest) == 2 and rest[0] != "constant" and not (rest[0][0].isdigit() and float(rest[1]) == 1) for _, rest in self.straggle))

    def step(self, micro_batches):
        """Draws the next step: (factors (micro_batches, ranks) of each unit's forward and backward, extra seconds (ranks) of a rank before
        its first unit)."""
        factors, seconds = np.ones((micro_batches, self.ranks)), np.zeros(self.ranks)
        for rank, rest in self.straggle:
            who = slice(None) if rank is None else slice(rank, rank + 1)
            shape = factors[:, who].shape
            if rest[0][0].isdigit() or rest[0][0] == ".":
                probability = float(rest[1]) if len(rest) > 1 else 1.0
                factors[:, who] = np.where(self.random.random(shape[1]) < probability, float(rest[0]), 1.0)
            else:
                factors[:, who] = 1 + draw(self.random, rest[0], float(rest[1]), shape)
        for rank, rest in self.delay:
            who = slice(None) if rank is None else slice(rank, rank + 1)
            seconds[who] = draw(self.random, rest[0], float(rest[1]) * 1e-3, seconds[who].shape)
        if self.spread:
            shape = 1 / self.spread ** 2
            factors *= self.random.gamma(shape, 1 / shape, self.ranks)
        return factors, seconds
