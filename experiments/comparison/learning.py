"""How fast runs learn: the time to a loss on held-out text."""
import math

from .spread import estimate


def judged(run):
    """The run's evaluations that gave a number, in order."""
    return [e for e in run.evals if math.isfinite(e.loss)]


def default_target(runs):
    """The worst final loss on held-out text among the runs: the lowest that each of them came to. None without."""
    finals = [judged(run)[-1].loss for run in runs if judged(run)]
    return max(finals) if finals else None


def reached(run, target, what="seconds"):
    """The cost of the run (seconds, samples, updates) when its held-out loss first was at most `target`, on the straight
    line between the two evaluations around it; None when it never was. Where the first evaluation is already below, that
    evaluation's."""
    before = None
    for e in judged(run):
        if e.loss <= target:
            if before is None or before.loss <= e.loss:
                return getattr(e, what)
            share = (before.loss - target) / (before.loss - e.loss)
            return getattr(before, what) + share * (getattr(e, what) - getattr(before, what))
        before = e
    return None


def time_to(group, target):
    """The Estimate of seconds to `target` over a group's runs; None when one of them never came to it."""
    if target is None:
        return None
    found = [reached(run, target) for run in group]
    return None if None in found else estimate(found)
