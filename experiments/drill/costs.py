"""Computes what checkpoints cost the steps of a run, from its files, and prints both tables of checkpoint_costs.py."""
import json
import os
from dataclasses import dataclass, field
from statistics import median

import tables

WARM = 2    # first steps, which are not measured
WINDOW = 2  # steps that a checkpoint can slow: the one whose state is kept, and the next one
WAYS = {"none": [], "direct": [], "background": ["--checkpoint-background"]}


class CostsError(Exception):
    """A measured run has failed."""


@dataclass
class Run:
    """One run's steps, from metrics.jsonl, and its summary's "checkpoints"."""
    seconds: list  # per step, including the time since the step before
    every: int     # 0: no checkpoints
    said: dict = field(default_factory=dict)  # summary.json's "checkpoints"

    def windows(self):
        """The first step of each complete window, counted from 0."""
        ends = range(self.every - 1, len(self.seconds) - WINDOW + 1, self.every) if self.every else []
        return [n for n in ends if n >= WARM]

    def others(self):
        """Seconds of the steps outside all windows."""
        inside = {n + i for n in self.windows() for i in range(WINDOW)}
        last = len(self.seconds) - 1 if self.every and len(self.seconds) % self.every == 0 else None
        return [s for n, s in enumerate(self.seconds) if n >= WARM and n not in inside and n != last]

    def mean(self):
        return sum(self.seconds[WARM:]) / len(self.seconds[WARM:])

    def slowed(self):
        """Seconds that each checkpoint adds to its window, compared with as many steps of the run's median duration."""
        usual = median(self.others())
        return [sum(self.seconds[n:n + WINDOW]) - WINDOW * usual for n in self.windows()]


def read_run(directory, every):
    try:
        with open(os.path.join(directory, "metrics.jsonl"), encoding="utf-8") as f:
            elapsed = [json.loads(line)["elapsed"] for line in f]
        with open(os.path.join(directory, "summary.json"), encoding="utf-8") as f:
            said = json.load(f).get("checkpoints", {})
    except (OSError, ValueError, KeyError) as e:
        raise CostsError(f"{directory}: cannot be read: {e}") from e
    return Run([b - a for a, b in zip([0] + elapsed, elapsed)], every, said)


def step_row(job, way, rounds):
    """A row of the first table. rounds: [{way: Run}]."""
    ratios = [median(r[way].others()) / median(r["none"].others()) for r in rounds]
    whole = [r[way].mean() / r["none"].mean() for r in rounds]
    row = {"job": job, "way": way, "rounds": len(rounds), "step_seconds": median([median(r[way].others()) for r in rounds]),
           "others_over_none": median(ratios), "mean_over_none": median(whole)}
    if way == "none":
        return row
    slowed = [s for r in rounds for s in r[way].slowed()]
    said = [r[way].said for r in rounds]
    row.update(checkpoints=sum(s["written"] for s in said), failed=sum(s["failed"] for s in said),
               bytes=said[0]["bytes"] / max(1, said[0]["written"]), slowed_seconds=median(slowed), slowed_most=max(slowed),
               waited_seconds=median([s["step_slowed_seconds"]["mean"] for s in said]),
               bytes_per_second=median([s["bytes_per_second"] for s in said]))
    row["slowed_steps"] = row["slowed_seconds"] / row["step_seconds"]
    return row


def death_row(job, role, deaths):
    """A row of the second table. deaths: [(seconds to the next step, steps repeated)]."""
    seconds, again = [d[0] for d in deaths], [d[1] for d in deaths]
    return {"job": job, "role": role, "deaths": len(deaths), "seconds": median(seconds), "seconds_most": max(seconds),
            "steps_again": median(again), "steps_again_most": max(again)}


# ---------------------------------------------------------------- tables
STEP_HEAD = ["job", "checkpoints", "other steps, ms", "beside none", "a checkpoint adds, ms", "at most", "in steps", "waits said, ms",
             "mean step beside none", "MB each", "MB/s", "written"]


def step_words(r):
    first = [r["job"], r["way"], f"{r['step_seconds'] * 1e3:.1f}", f"{r['others_over_none']:.3f}"]
    if r["way"] == "none":
        return first + ["-"] * 4 + ["1.000", "-", "-", "-"]
    return first + [f"{r['slowed_seconds'] * 1e3:.1f}", f"{r['slowed_most'] * 1e3:.1f}", f"{r['slowed_steps']:.2f}",
                    f"{r['waited_seconds'] * 1e3:.1f}", f"{r['mean_over_none']:.3f}", f"{r['bytes'] * 1e-6:.1f}",
                    f"{r['bytes_per_second'] * 1e-6:.1f}", f"{r['checkpoints']:.0f}"]


def step_table(rows):
    return tables.markdown([STEP_HEAD, *map(step_words, rows)], 2)


DEATH_HEAD = ["job", "killed", "times", "s to the next step", "at most", "steps again", "at most"]


def death_table(rows):
    return tables.markdown([DEATH_HEAD, *([r["job"], r["role"], r["deaths"], f"{r['seconds']:.2f}", f"{r['seconds_most']:.2f}",
                                           f"{r['steps_again']:.0f}", f"{r['steps_again_most']:.0f}"] for r in rows)], 2)
