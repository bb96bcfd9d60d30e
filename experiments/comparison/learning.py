"""How fast runs learn: the time to a loss on held-out text."""
import math

from .spread import estimate


def judged(run):
    """The run's evaluations with a finite loss, in order."""
    return [e for e in run.evals if math.isfinite(e.loss)]


def default_target(runs):
    """The worst final loss on held-out text among the runs, which all of them reached; None if none was evaluated."""
    finals = [judged(run)[-1].loss for run in runs if judged(run)]
    return max(finals) if finals else None


def reached(run, target, what="seconds"):
    """The cost (seconds, samples or updates) at which the run's held-out loss first was at most `target`, interpolated between two
    evaluations; None if it never was. If the first evaluation is already at most `target`, its cost."""
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
    """The Estimate of seconds to `target` over a group's runs; None if one of them never reached it."""
    if target is None:
        return None
    found = [reached(run, target) for run in group]
    return None if None in found else estimate(found)
