"""The times in sentences: which runs differ by more than repeats of one run do. The times of noisy runs are not compared."""
from . import claims, learning, noise
from .table import time_per_step


def totals(*path):
    return lambda run: run.get("totals", *path)


def part(key):
    return lambda run: time_per_step(run)[key]


# (what is compared, value of a run, whether it is said of more than two runs as well, whether a noisy machine spoils it)
MEASURES = [
    ("tokens/s", lambda run: run.tokens_per_second, True, True),
    ("CPU seconds", totals("cpu_seconds"), True, True),
    ("resident memory of the job", totals("pss_bytes"), False, False),
    ("forward time", part("forward"), False, True),
    ("backward time", part("backward"), False, True),
    ("time waiting for peers", part("wait"), False, True),
    ("exposed communication", part("comm_exposed"), False, True),
    ("host time", part("host"), False, True),
]


def measures(target, groups):
    """[(words, value of a run, whether noise spoils it)] of what is told of so many groups."""
    out = list(MEASURES)
    if target is not None:
        out.insert(1, (f"time to loss {target:.3f}", lambda run: learning.reached(run, target), True, True))
    return [(words, read, timed) for words, read, always, timed in out if always or len(groups) == 2]


def reference_of(group, groups):
    """The group that another is compared with: the first topology's (the first star or ring, where there is one) on the same medium at
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
    """[(group, other, words, Ratio)] of everything that was measured in both, without the times of noisy runs."""
    quiet = {id(run) for group in groups for run in group if not noise.why_noisy(run)}
    out = []
    for words, read, timed in measures(target, groups):
        for group in groups:
            other = reference_of(group, groups)
            found = other and claims.ratio(pairs(*([r for r in g if id(r) in quiet or not timed] for g in (group, other)), read))
            if found:
                out.append((group, other, words, found))
    return [(*about, ratio) for (*about, _), ratio in zip(out, claims.claim([found for *_, found in out]))]


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


def one_run_each(found, which):
    """Without repeats: the ratios as they came, and that they prove nothing."""
    speeds = [f for f in found if f[2] == "tokens/s"]
    if not speeds:
        return []
    return ["; ".join(clauses(speeds)) + f". {which} each does not show how much repeats differ, so no difference is claimed "
            "(--repeat 3)."]


def left_out(groups):
    """Noisy runs, whose times are not compared: [] or one sentence."""
    count = {g[0].label: (sum(bool(noise.why_noisy(r)) for r in g), len(g)) for g in groups}
    noisy = [label if of == 1 else f"{label} ({some} of {of} runs)" for label, (some, of) in count.items() if some]
    return [f"The times of noisy runs are not compared: {', '.join(noisy)}."] if noisy and len(groups) > 1 else []


def not_seen(found):
    """The differences that so few repeats could not have seen."""
    listed = [f"{words} {claims.in_percent(now)} ({claims.in_percent(twice)})" for words, now, twice in
              claims.unseen([(words, ratio) for _, _, words, ratio in found])]
    return ("Smaller differences may exist. With this many repeats and this spread, a difference of this size is found in half of all "
            f"comparisons (in brackets: with twice as many repeats): {', '.join(listed)}.")


def in_words(groups, target):
    """Sentences on times and throughput; [] with one group."""
    every, noisy = compared(groups, target), left_out(groups)
    found = [f for f in every if f[3].count > 1]
    if not found:
        return noisy + one_run_each(every, "One quiet run" if noisy else "One run")
    differ = [f for f in found if f[3].differs]
    told = list(dict.fromkeys(f[2] for f in found))
    # Where noise has left no time to look at, nobody may read this as said of times.
    timed = any(words in told for words, _, timed in measures(target, groups) if timed)
    same = "The runs use the same resident memory" if not timed else "nothing else differs" if differ else "The runs do not differ"
    said = clauses(differ) + [f"{same}, as far as these repeats can tell"] * (timed or not differ)
    least = min(f[3].count for f in found)
    return ["; ".join(said) + ".", *noisy,
            f"Compared: {', '.join(told)}; {len(found)} ratio{'s, each' * (len(found) > 1)} with {least} {'or more ' if any(f[3].count > least for f in found) else ''}"
            f"repeats. {claims.METHOD}.", not_seen(found)]
