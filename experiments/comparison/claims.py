"""Which ratios differ from 1: what is claimed of repeated runs, and what so few of them could not have seen.

A ratio is taken within each repeat, so that what slowed a whole repeat cancels out; its logarithms over the repeats are
tested for a mean of 0 with Student's t. A comparison looks at many ratios, so the smallest of their chances must be below
5% / m, the next below 5% / (m - 1) and so on (Holm 1979): of comparisons of a thing with itself at most one in twenty then
claims anything at all. A ratio within 2% of 1 is not claimed, however sure it is.

The differences that repeats could have seen follow from the same rule: the difference which they claim half of the time, over all spreads
that so few runs may happen to show around the one found (the noncentral t distribution, integrated)."""
import math
import statistics
from dataclasses import dataclass, replace

from .spread import centre, centre_of_rounds, finite, normal_tail, t_quantile, t_tails

CHANCE = 0.05
LEAST = math.log(1.02)
CELLS = 400          # of the integral over spreads
METHOD = (f"A difference is claimed if it is at least {math.expm1(LEAST):.0%}, and if runs without differences would lead to any claim in at "
          f"most {CHANCE:.0%} of such comparisons (Student's t on logarithms, Holm 1979). In brackets: the 95% interval of each ratio alone")


@dataclass(frozen=True)
class Ratio:
    """The geometric mean of a/b over `count` repeats (or rounds). low and high: its own 95% interval; spread: the standard deviation of
    one repeat's logarithm; chance: of such a mean where nothing differs; freedom: degrees of it. All None for one repeat. differs:
    it is claimed. least and most: the interval by which that was decided, corrected for all ratios that were looked at."""
    value: float
    count: int
    low: float = None
    high: float = None
    spread: float = None
    chance: float = None
    differs: bool = False
    least: float = None
    most: float = None
    freedom: int = None

    def width(self):
        """How far the 95% interval reaches to its farther side: 0.05 of "1.00 (0.96 to 1.05)". None for one repeat."""
        return None if self.low is None else max(self.high / self.value, self.value / self.low) - 1

    def within(self, chance):
        """The interval that misses the truth with that chance."""
        reach = t_quantile(chance, self.freedom) * self.spread / math.sqrt(self.count)
        return self.value * math.exp(-reach), self.value * math.exp(reach)


def ratio(pairs, rounds=False):
    """The Ratio of the pairs (a, b), each of one repeat, or of one round of runs that took turns; None without any. It claims nothing
    by itself."""
    logs = [math.log(a / b) for a, b in pairs if finite([a, b]) == [a, b] and a > 0 and b > 0]
    if len(logs) < 2:
        return Ratio(math.exp(logs[0]), 1) if logs else None
    found, n = (centre_of_rounds if rounds else centre)(logs), len(logs)
    chance = t_tails(abs(found.value) / found.error, found.freedom) if found.error > 0 else float(found.value == 0)
    reach = found.reach(CHANCE)
    low, high = math.exp(found.value - reach), math.exp(found.value + reach)
    return Ratio(math.exp(found.value), n, low, high, found.error * math.sqrt(n), chance, False, low, high, found.freedom)


def claim(ratios):
    """The same ratios in the same order, those that are claimed saying so, all with the interval that decided it. Ratios of one
    repeat are not looked at."""
    looked_at = sorted((i for i, r in enumerate(ratios) if r.chance is not None), key=lambda i: ratios[i].chance)
    out, beyond, hurdle = list(ratios), True, CHANCE
    for place, i in enumerate(looked_at):
        if beyond:  # behind the first that is not, Holm's hurdle stays where it is
            hurdle = CHANCE / (len(looked_at) - place)
            beyond = ratios[i].chance <= hurdle
        least, most = ratios[i].within(hurdle) if ratios[i].spread else (ratios[i].value, ratios[i].value)
        out[i] = replace(ratios[i], differs=beyond and abs(math.log(ratios[i].value)) >= LEAST, least=least, most=most)
    return out


def power(effect, spread, count, looked_at):
    """How often `count` repeats claim a ratio of exp(effect) among so many looked at, when one repeat's logarithm has that
    spread: at Holm's first and hardest step."""
    freedom, error = count - 1, spread / math.sqrt(count)
    hurdle = t_quantile(CHANCE / looked_at, freedom) * error
    top = 1 + 8 / math.sqrt(freedom)  # of the spread found over the true one
    scale = math.log(2) + freedom / 2 * math.log(freedom / 2) - math.lgamma(freedom / 2)
    found = 0.0
    for i in range(CELLS):
        u = (i + 0.5) * top / CELLS
        density = math.exp(scale + (freedom - 1) * math.log(u) - freedom * u * u / 2)
        found += density * normal_tail((max(LEAST, hurdle * u) - effect) / error)
    return found * top / CELLS


def smallest(spread, count, looked_at):
    """The difference, as the logarithm of a ratio, that `count` repeats claim half of the time."""
    if spread <= 0:
        return LEAST
    low, high = 0.0, LEAST
    while power(high, spread, count, looked_at) < 0.5:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if power(middle, spread, count, looked_at) < 0.5 else (low, middle)
    return high


def in_percent(effect):
    """A logarithm for people: "12%", and "3.4 times" beyond a doubling."""
    times = math.exp(min(effect, math.log(1000)))
    return f"{100 * (times - 1):.0f}%" if times < 2 else f"{times:.1f} times" if times < 100 else "over 100 times"


def unseen(ratios):
    """[(words, smallest difference, the same with twice the repeats)] of [(words, Ratio)] with repeats, each words once."""
    repeated = [(words, r) for words, r in ratios if r.count > 1]
    out = []
    for words in dict.fromkeys(words for words, _ in repeated):
        mine = [r for w, r in repeated if w == words]
        spread, count = math.sqrt(statistics.fmean(r.spread**2 for r in mine)), min(r.count for r in mine)
        out.append((words, smallest(spread, count, len(repeated)), smallest(spread, 2 * count, len(repeated))))
    return out
