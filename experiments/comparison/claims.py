"""A ratio with its interval (`ratio`); which ratios of repeated runs differ significantly from 1 (`claim`); which differences so few repeats
could not have shown (`unseen`).

A ratio is taken within each repeat, so that a slow repeat cancels out; the mean of its logarithms over the repeats is tested
against 0 with Student's t. A comparison tests m ratios, so the smallest p-value must be below 5% / m, the next below
5% / (m - 1) and so on (Holm 1979). Then at most one in twenty comparisons of identical runs claims any difference. A ratio
within 2% of 1 is never claimed.

The smallest difference that the repeats can show follows from the same rule: they would claim it with a probability of one half. This is a
mean over the spreads that so few runs may show if the true spread is the measured one (the noncentral t distribution)."""
import math
from dataclasses import dataclass, replace

import numpy
from scipy import optimize, special

from .spread import centre, centre_of_rounds, finite, t_quantile

CHANCE = 0.05
LEAST = math.log(1.02)
CELLS = 400          # quantiles of the spread that the power is a mean over
METHOD = (f"A difference is claimed if it is at least {math.expm1(LEAST):.0%}, and if runs without differences would lead to any claim in at "
          f"most {CHANCE:.0%} of such comparisons (Student's t on logarithms, Holm 1979). In brackets: the 95% interval of each ratio alone")


@dataclass(frozen=True)
class Ratio:
    """The geometric mean of a/b over `count` repeats (or rounds). low and high: its own 95% interval. spread: the standard deviation of
    one repeat's logarithm. chance: the p-value. freedom: degrees of freedom. All are None for one repeat. differs: the difference is
    claimed. least and most: the interval by which it was decided, corrected for the number of ratios compared."""
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
        """The distance from the value to the farther end of its 95% interval, as a share: 0.05 for "1.00 (0.96 to 1.05)". None for one
        repeat."""
        return None if self.low is None else max(self.high / self.value, self.value / self.low) - 1

    def within(self, chance):
        """The confidence interval that misses the true ratio with that probability."""
        reach = t_quantile(chance, self.freedom) * self.spread / math.sqrt(self.count)
        return self.value * math.exp(-reach), self.value * math.exp(reach)


def ratio(pairs, rounds=False):
    """The Ratio of the pairs (a, b), each from one repeat, or from one round of runs that took turns; None without pairs. It claims
    nothing by itself."""
    logs = [math.log(a / b) for a, b in pairs if finite([a, b]) == [a, b] and a > 0 and b > 0]
    if len(logs) < 2:
        return Ratio(math.exp(logs[0]), 1) if logs else None
    found, n = (centre_of_rounds if rounds else centre)(logs), len(logs)
    chance = 2 * float(special.stdtr(found.freedom, -abs(found.value) / found.error)) if found.error > 0 else float(found.value == 0)
    reach = found.reach(CHANCE)
    low, high = math.exp(found.value - reach), math.exp(found.value + reach)
    return Ratio(math.exp(found.value), n, low, high, found.error * math.sqrt(n), chance, False, low, high, found.freedom)


def claim(ratios):
    """Returns the same ratios in the same order, with `differs`, `least` and `most` set by Holm's procedure. Ratios of one repeat are
    returned unchanged."""
    looked_at = sorted((i for i, r in enumerate(ratios) if r.chance is not None), key=lambda i: ratios[i].chance)
    hurdles = CHANCE / numpy.arange(len(looked_at), 0, -1)
    beyond = numpy.logical_and.accumulate([ratios[i].chance for i in looked_at] <= hurdles)
    hurdles = hurdles[:beyond.sum() + 1]  # Holm stops at the first ratio that fails: all later ones are tested at its level
    out = list(ratios)
    for place, (i, differs) in enumerate(zip(looked_at, beyond)):
        r, hurdle = ratios[i], hurdles[min(place, len(hurdles) - 1)]
        least, most = r.within(hurdle) if r.spread else (r.value, r.value)
        out[i] = replace(r, differs=bool(differs) and abs(math.log(r.value)) >= LEAST, least=least, most=most)
    return out


def smallest(spread, count, looked_at):
    """The logarithm of the smallest ratio that `count` repeats would claim with a probability of one half. spread: of one repeat's logarithm.
    looked_at: the number of ratios tested; the level is that of Holm's first and strictest step."""
    if spread <= 0:
        return LEAST
    freedom, error = count - 1, spread / math.sqrt(count)
    # The measured spread divided by the true one, at the middles of CELLS equally likely ranges.
    found = numpy.sqrt(2 * special.gammaincinv(freedom / 2, (numpy.arange(CELLS) + 0.5) / CELLS) / freedom)
    hurdles = numpy.maximum(LEAST, t_quantile(CHANCE / looked_at, freedom) * error * found)
    return optimize.brentq(lambda effect: numpy.mean(special.ndtr((effect - hurdles) / error)) - 0.5, 0, hurdles[-1])


def in_percent(effect):
    """The text of a difference given as a logarithm: "12%", or "3.4 times" from a factor of 2 on."""
    times = math.exp(min(effect, math.log(1000)))
    return f"{100 * (times - 1):.0f}%" if times < 2 else f"{times:.1f} times" if times < 100 else "over 100 times"


def unseen(ratios):
    """[(measure, the smallest difference that the repeats can show, the same with twice the repeats)]. ratios: [(measure, Ratio)]; a measure with
    several ratios gets one entry."""
    repeated = [(words, r) for words, r in ratios if r.count > 1]
    out = []
    for words in dict.fromkeys(words for words, _ in repeated):
        mine = [r for w, r in repeated if w == words]
        spread, count = math.sqrt(numpy.mean([r.spread**2 for r in mine])), min(r.count for r in mine)
        out.append((words, smallest(spread, count, len(repeated)), smallest(spread, 2 * count, len(repeated))))
    return out
