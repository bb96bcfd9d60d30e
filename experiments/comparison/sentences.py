"""What the times say, in sentences: which runs differ beyond what differs from repeat to repeat."""
from . import learning, spread
from .table import time_per_step

CHANCE = 0.05


def totals(*path):
    return lambda run: run.get("totals", *path)


def part(key):
    return lambda run: time_per_step(run)[key]


# (what is compared, value of a run, whether it is said of more than two runs as well)
MEASURES = [
    ("tokens/s", lambda run: run.tokens_per_second, True),
    ("CPU seconds", totals("cpu_seconds"), True),
    ("resident memory of the job", totals("rss_bytes"), False),
    ("forward time", part("forward"), False),
    ("backward time", part("backward"), False),
    ("time waiting for peers", part("wait"), False),
    ("exposed communication", part("comm_exposed"), False),
    ("host time", part("host"), False),
]


def measures(target, groups):
    """The measures that are told of so many groups."""
    out = list(MEASURES)
    if target is not None:
        out.insert(1, (f"time to loss {target:.3f}", lambda run: learning.reached(run, target), True))
    return [(words, read) for words, read, always in out if always or len(groups) == 2]


def reference_of(group, groups):
    """What a group is compared with: the first topology's (the first star or ring, where there is one) on the same medium at
    the same point of the sweep; for that topology itself, its first group. None for this one."""
    first = next((g for g in groups if g[0].kind != "local"), groups[0])
    same = [g for g in groups if g[0].point == group[0].point and g[0].topology == first[0].topology
            and (g[0].medium_asked == group[0].medium_asked or None in (g[0].medium_asked, group[0].medium_asked))]
    other = same[0] if same and same[0] is not group else first
    return None if other is group else other


def pairs(group, other, read):
    """[(value, value of the other)] of the runs of the same repeat and seed."""
    theirs = {(run.repeat, run.seed): run for run in other}
    return [(read(run), read(theirs[(run.repeat, run.seed)])) for run in group if (run.repeat, run.seed) in theirs]


def compared(groups, target):
    """[(group, other, words, Estimate of the ratio)] of everything that was measured in both."""
    out = []
    for words, read in measures(target, groups):
        for group in groups:
            other = reference_of(group, groups)
            found = other and spread.ratio(pairs(group, other, read))
            if found:
                out.append((group, other, words, found))
    return out


def ratio_text(found):
    ends = "" if found.low is None else f" ({found.low:.2f} to {found.high:.2f})"
    return f"{found.value:.2f}{ends}"


def clauses(found):
    """One for each measure and reference: "zero:2 reaches 1.08 (1.05 to 1.11), zero:3 1.02 (..) times the tokens/s of ps:sync"."""
    out = {}
    for group, other, words, ratio in found:
        out.setdefault((words, other[0].label), []).append((group[0].label, ratio_text(ratio)))
    said = []
    for (words, other), ratios in out.items():
        verb = "reaches" if words == "tokens/s" else "takes"
        listed = [f"{label} {verb if i == 0 else ''}{' ' if i == 0 else ''}{text}" for i, (label, text) in enumerate(ratios)]
        said.append(f"{', '.join(listed)} times the {words} of {other}")
    return said


def one_run_each(found):
    """Without repeats: the ratios as they came, and that they prove nothing."""
    speeds = [f for f in found if f[2] == "tokens/s"]
    if not speeds:
        return []
    return ["; ".join(clauses(speeds)) + ". One run each: how much runs differ among themselves is not known, so no interval is "
            "given (--repeat 3)."]


def in_words(groups, target):
    """Sentences on times and throughput; [] with one group."""
    found = compared(groups, target)
    if not found:
        return []
    if all(f[3].count == 1 for f in found):
        return one_run_each(found)
    found = [f for f in found if f[3].count > 1]
    differ = [f for f in found if f[3].differs_from(1.0)]
    told = list(dict.fromkeys(f[2] for f in found))
    said = clauses(differ) + ["nothing else differs beyond noise" if differ else "nothing differs beyond noise"]
    least = min(f[3].count for f in found)
    return ["; ".join(said) + ".",
            f"Compared: {', '.join(told)}; {len(found)} ratios, each with {least} {'or more ' if any(f[3].count > least for f in found) else ''}"
            f"repeats. {spread.METHOD}; of {len(found)} such intervals about {CHANCE * len(found):.1f} miss by chance."]
