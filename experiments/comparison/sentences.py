"""Writes sentences on the speeds (speed.py), and on other figures whose differences are larger than the noise between repeats."""
from . import claims, learning, speed
from .speed import reference_of
from .table import time_per_step


def totals(*path):
    return lambda run: run.get("totals", *path)


def part(key):
    return lambda run: time_per_step(run)[key]


# The measures that are compared besides the speed: (name, function that returns a run's value, whether it is also stated for more than two runs).
MEASURES = [
    ("CPU seconds", totals("cpu_seconds"), True),
    ("resident memory of the job", totals("pss_bytes"), False),
    ("forward time", part("forward"), False),
    ("backward time", part("backward"), False),
    ("time waiting for peers", part("wait"), False),
    ("exposed communication", part("comm_exposed"), False),
    ("host time", part("host"), False),
]


def measures(target, groups):
    """The measures to compare for these groups: [(name, function that returns a run's value)]."""
    out = list(MEASURES)
    if target is not None:
        out.insert(0, (f"time to loss {target:.3f}", lambda run: learning.reached(run, target), True))
    return [(words, read) for words, read, always in out if always or len(groups) == 2]


def compared(groups, target):
    """[(group, other, name, Ratio)] of all measures except the speed that both groups have repeats of."""
    out = []
    for words, read in measures(target, groups):
        for group in groups:
            other = reference_of(group, groups)
            found = other and claims.ratio(speed.pairs(*({(run.repeat, run.seed): read(run) for run in runs} for runs in (group, other))))
            if found and found.count > 1:
                out.append((group, other, words, found))
    return [(*about, ratio) for (*about, _), ratio in zip(out, claims.claim([found for *_, found in out]))]


def clauses(found):
    """A clause per measure and reference: "zero:2 takes 1.08 (1.05 to 1.11), zero:3 1.02 (..) times the CPU seconds of ps:sync"."""
    out = {}
    for group, other, words, ratio in found:
        ends = "" if ratio.low is None else f" ({ratio.low:.2f} to {ratio.high:.2f})"
        out.setdefault((words, other[0].label), []).append((group[0].label, f"{ratio.value:.2f}{ends}"))
    said = []
    for (words, other), ratios in out.items():
        listed = [f"{label} {'takes ' if i == 0 else ''}{text}" for i, (label, text) in enumerate(ratios)]
        said.append(f"{', '.join(listed)} times the {words} of {other}")
    return said


def not_seen(found):
    """The differences that are too small for so few repeats to show."""
    listed = [f"{words} {claims.in_percent(now)} ({claims.in_percent(twice)})" for words, now, twice in
              claims.unseen([(words, ratio) for _, _, words, ratio in found])]
    return ("Smaller differences may exist. With this many repeats and this spread, a difference of this size is found in half of all "
            f"comparisons (in brackets: with twice as many repeats): {', '.join(listed)}.")


def in_words(groups, target):
    """Sentences on the speeds and other figures of repeats; [] for one group."""
    found = compared(groups, target)
    if not found:
        return speed.sentences(groups)
    differ = [f for f in found if f[3].differs]
    told = list(dict.fromkeys(f[2] for f in found))
    same = "nothing else differs" if differ else "The runs do not differ in them"
    said = clauses(differ) + [f"{same}, as far as these repeats show"]
    least = min(f[3].count for f in found)
    return [*speed.sentences(groups), "; ".join(said) + ".",
            f"Compared besides the speed: {', '.join(told)}; {len(found)} ratio{'s, each' * (len(found) > 1)} with {least} {'or more ' if any(f[3].count > least for f in found) else ''}"
            f"repeats. {claims.METHOD}.", not_seen(found)]
