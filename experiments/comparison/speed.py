"""The speeds of a comparison: each label's tokens/s, and the ratio of its time to that of its reference.

Runs that took turns (turns.py) are compared round by round, so a slow minute of the machine falls on all of them; whole runs are
compared within a repeat and seed. Uncertain figures are shown too: with a mark and their interval, and remarks() states the reason."""
import math
from dataclasses import dataclass, replace

from . import claims, noise
from .spread import Estimate, centre_of_rounds, estimate, finite, median

DECIDE = 0.05  # default of --decide: an interval that reaches at most so far to either side is narrow enough
MARK = " ~"
FEW = 3        # up to so many ratios get a sentence each


@dataclass(frozen=True)
class Speed:
    """The speed of the runs of one label. rate: tokens/s, an Estimate; one whole run has no interval; None: no run reports a speed.
    reference: the group that it is compared with, None for that group itself. time: the Ratio of its time per token to the
    reference's, None without one. unit: "rounds" or "repeats"; time.count of them have a pair. more: further units after which the
    ratio would be decided; None: it is decided, or the number cannot be estimated."""
    group: list
    rate: Estimate
    reference: list
    time: claims.Ratio
    unit: str
    decide: float
    decided: bool
    uncertain: bool
    more: int
    cpu_per_step: float

    @property
    def label(self):
        return self.group[0].label

    @property
    def mark(self):
        return MARK if self.uncertain else ""

    @property
    def text(self):
        return "-" if self.rate is None else f"{self.rate.value:,.0f}{self.mark}"


def reference_of(group, groups):
    """The reference of a group: the first group that is a star or ring, or rather the group of its topology on the same medium and at the same
    point of the sweep. A group of that topology is compared with the first one. None for the first one itself."""
    first = next((g for g in groups if g[0].kind != "local"), groups[0])
    same = [g for g in groups if g[0].point == group[0].point and g[0].topology == first[0].topology
            and (g[0].medium_asked == group[0].medium_asked or None in (g[0].medium_asked, group[0].medium_asked))]
    other = same[0] if same and same[0] is not group else first
    return None if other is group else other


def in_turns(*groups):
    """Whether all these runs took turns in one comparison."""
    runs = [run for group in groups for run in group]
    return all(run.turns for run in runs) and len({run.turns["comparison"] for run in runs}) == 1


def rates(group, turns):
    """{key: tokens/s}, in the order of measurement. Measurements of two groups with the same key form a pair."""
    if turns:
        return {(run.repeat, run.seed, s["round"]): s.get("tokens_per_second") for run in group for s in run.turns["slices"]}
    return {(run.repeat, run.seed): run.tokens_per_second for run in group}


def pairs(mine, theirs):
    """[(a value of mine, the value of theirs with the same key)] of the keys that both have."""
    return [(mine[key], theirs[key]) for key in mine if key in theirs]


def rate_of(group):
    """Tokens/s from the group's own measurements, without its reference; None if there are none."""
    turns = in_turns(group)
    values = [v for v in finite(rates(group, turns).values()) if v > 0]
    if not turns or len(values) < 2:
        return estimate(values)
    found = centre_of_rounds([math.log(v) for v in values])
    reach = found.reach(claims.CHANCE)
    return Estimate(*(math.exp(found.value + way * reach) for way in (0, -1, 1)), len(values))


def scaled_to(rate, reference, time):
    """The rate, changed so that its ratio to the reference's rate is the paired one, which is more exact than each rate by itself."""
    value = reference.value / time.value
    return replace(rate, value=value, low=rate.low and min(rate.low, value), high=rate.high and max(rate.high, value))


def cpu_per_step(group):
    """CPU seconds of all roles per step, the median over the runs."""
    return median([cpu / run.own_steps for run in group if isinstance(cpu := run.get("totals", "cpu_seconds"), (int, float))])


def width(found):
    """The distance from an Estimate to the farther end of its interval, as a fraction; None without an interval."""
    return None if found is None or found.low is None or found.low <= 0 else max(found.high / found.value, found.value / found.low) - 1


def more_of(time, decide):
    """The number of further pairs after which the interval would be narrow enough; None: it is, or there is no interval."""
    if time is None or not time.width() or time.width() <= decide:
        return None
    return max(math.ceil(time.count * ((math.log1p(time.width()) / math.log1p(decide)) ** 2 - 1)), 1)


def speeds_of(groups):
    """[Speed], one per group."""
    references = [reference_of(g, groups) for g in groups]
    own = {id(g): rate_of(g) for g in groups}
    times = []
    for group, other in zip(groups, references):
        turns = other is not None and in_turns(group, other)
        found = other and claims.ratio([(1 / a, 1 / b) for a, b in pairs(rates(group, turns), rates(other, turns)) if a and b], turns)
        times.append((found or None, turns))
    claimed = iter(claims.claim([time for time, _ in times if time]))
    times = [(next(claimed) if time else None, turns) for time, turns in times]
    out = []
    for group, other, (time, turns) in zip(groups, references, times):
        decide = next((run.turns["decide"] for run in group if run.turns and run.turns.get("decide")), DECIDE)
        rate = own[id(group)]
        if rate and turns and time and own[id(other)]:
            rate = scaled_to(rate, own[id(other)], time)
        measured = time if other is not None else rate
        reach = measured and (time.width() if other is not None else width(rate))
        decided = reach is not None and reach <= decide
        uncertain = not decided if reach is not None else any(noise.why_noisy(run) for run in group)
        out.append(Speed(group, rate, other, time, "rounds" if turns or (other is None and in_turns(group)) else "repeats", decide, decided,
                         uncertain, more_of(time, decide), cpu_per_step(group)))
    return out


def undecided(groups):
    """[Speed] of the groups whose ratio to the reference is not decided."""
    return [s for s in speeds_of(groups) if s.reference is not None and not s.decided]


def looked_at(speeds):
    """The number of ratios that claims are corrected for."""
    return sum(bool(s.time) and s.time.low is not None for s in speeds)


def verdict(s, ratios):
    """How certain the ratio of its time is, in words; "" if its interval shows it. ratios: looked_at()."""
    time = s.time
    if not time or time.low is None:
        return ""
    if not s.decided:
        more = f"; {s.more:,} more {s.unit if s.more > 1 else s.unit[:-1]} would decide {100 * s.decide:.3g}%" if s.more else ""
        return "not decided" + more
    if time.differs:
        return ""
    if not time.least <= 1 <= time.most:
        return f"less than {math.expm1(claims.LEAST):.0%} is not claimed"
    return "not beyond noise" + (f" (corrected for {ratios} ratios: {time.least:.2f} to {time.most:.2f})" if ratios > 1 else "")


def clause(s, ratios):
    """"zero:3 needs 1.04 times ps:sync's time (0.99 to 1.10): not decided; 12 more rounds would decide 5%"."""
    ends, said = "" if s.time.low is None else f" ({s.time.low:.2f} to {s.time.high:.2f})", verdict(s, ratios)
    return f"{s.label} needs {s.time.value:.2f} times {s.reference[0].label}'s time{ends}" + (said and f": {said}")


def remarks(groups):
    """Sentences on why speeds are uncertain, how to measure better, and why whole runs took turns."""
    every = speeds_of(groups)
    uncertain = [run for s in every if s.uncertain for run in s.group]
    out = [f"\"~\" is uncertain: {noise.cause(uncertain)}."] if uncertain else []
    if any(s.time and s.time.low is None for s in every):
        out.append("A ratio without an interval is of one run each, which do not show how much repeats differ: it claims nothing (--repeat 3).")
    for s in every:
        lives = [n for run in s.group if isinstance(n := run.get("lives", "count"), (int, float)) and n > 1]
        if s.group[0].get("consistency") == "ssp" and in_turns(s.group):
            out.append(f"{s.label}: its workers begin each slice side by side, so its gradients are less stale than in a run alone.")
        if lives:
            out.append(f"{s.label}: ranks died and were started again {sum(lives) - len(lives):.0f} times; slices in which that happened "
                       "are left out." if in_turns(s.group) else
                       f"{s.label}: ranks died and were started again {sum(lives) - len(lives):.0f} times, which its time includes.")
    return out + [f"{why}." for why in dict.fromkeys(filter(None, (run.whole_because for g in groups for run in g)))]


def in_short(groups):
    """Short sentences for a table that has the figures: one per ratio if there are few, else one per kind of verdict."""
    every = speeds_of(groups)
    told, ratios = [s for s in every if s.time], looked_at(every)
    if len(told) <= FEW:
        return [clause(s, ratios) + "." for s in told] + remarks(groups)
    told = [s for s in told if s.time.low is not None]
    open_ones = [f"{s.label} ({s.more:,} more {s.unit if s.more > 1 else s.unit[:-1]})" if s.more else s.label for s in told if not s.decided]
    same = [f"{s.label} ({s.time.least:.2f} to {s.time.most:.2f})" for s in told if s.decided and verdict(s, ratios)]
    out = [f"\u00b1: 95% interval, from {min(s.time.count for s in told)} {told[0].unit}."] if told else []
    if open_ones:
        out.append(f"Not decided to {100 * told[0].decide:.3g}%: {', '.join(open_ones)}.")
    if same:
        out.append(f"Not beyond noise (intervals corrected for {ratios} ratios): {', '.join(same)}.")
    return out + remarks(groups)


def sentences(groups):
    """Sentences on the speeds: how they compare, how certain that is, and what to do if it is not."""
    every = speeds_of(groups)
    return [clause(s, looked_at(every)) + "." for s in every if s.time] + remarks(groups)


def clock(groups):
    """{label: factor by which a run's seconds are multiplied}, so that curves against seconds agree with the ratios of the rounds. 1 if
    there are none."""
    out = {}
    for s in speeds_of(groups):
        mine, theirs = (median([run.tokens_per_second for run in group or []]) for group in (s.group, s.reference))
        out[s.label] = s.time.value * mine / theirs if s.time and s.unit == "rounds" and mine and theirs else 1.0
    return out
