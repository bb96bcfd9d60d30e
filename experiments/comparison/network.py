"""What the wire alone would take for a step of a run across a cluster in a box (experiments/netlab)."""
import os
from dataclasses import dataclass

from netlab import formula, rate


@dataclass(frozen=True)
class Link:
    """A run's links: words for their bandwidth, seconds that the wire alone takes for a step by the formula, and measured ones
    (the median of all steps but the first)."""
    words: str
    bound: float
    seconds: float


def link_of(run):
    """The Link of a run that was across a lab and says so, None of others."""
    if not os.path.exists(os.path.join(run.directory, formula.LEFT)):
        return None
    try:
        found = formula.Measured(run.directory)
        return Link(rate.say(found.lab["bits_per_second"]), found.formula() * found.serial(), found.seconds)
    except (OSError, ValueError, KeyError, TypeError):  # as runs.link_rate
        return None
