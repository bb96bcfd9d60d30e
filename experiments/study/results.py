"""The figures of a study's runs: medians with intervals for each row under each condition, and which rows are better than others.

Rows are compared within a seed: they have the same initial weights, batches, delays and stragglers. All measures are positive, so
rows are compared by ratios (comparison/claims.py: Student's t on logarithms over seeds, corrected by Holm for all pairs of rows of
one measure under one condition). Losses are logarithms already, so they are compared by differences in nats; the least claimed ratio,
1.02, means 0.02 nats. Runs are made in a random order, so that other load on the machine affects all rows alike and widens the
intervals. The page states how busy the machine was."""
import glob
import itertools
import json
import math
import os
import statistics
from dataclasses import dataclass, replace

import regular
from comparison import claims, learning, comparability
from comparison.runs import UsageError
from comparison.speed import pairs
from comparison.spread import estimate, finite

MIB = 1 << 20
SHARES = ("waiting",)  # figures between 0 and 1; all others are at least 0
# {fact: prefixes of configuration keys}. Comparisons refuse runs that differ in such a fact, unless a row or a condition sets one of
# the keys.
VARIED_BY = {"lr": ("optimizer.params.lr",), "optimizer": ("optimizer.",), "schedule": ("scheduler.",), "clip": ("gradient_clipping",),
             "trouble": ("trouble.",), "dtype": ("dtype",), "medium": ("medium", "launch"), "steps": ("steps",),
             "tokens_per_step": ("train_batch_size", "steps"), "data": ("data.",), "seed": ("",)}


@dataclass(frozen=True)
class Cell:
    """A row under a condition, with its runs in the order of the seeds."""
    condition: object
    row: object
    runs: list


def final_loss(run):
    found = learning.judged(run)
    return found[-1].loss if found else None


def sent_bytes(run):
    """Payload that all roles of the job have sent, from its first step to its last; None for a run that has resumed from another one."""
    sent = run.get("totals", "sent_per_step")
    return sent * run.own_steps if isinstance(sent, (int, float)) and not run.resumed_from else None


def sent_per_token(run):
    """Bytes that the job has sent per training token."""
    sent, tokens = sent_bytes(run), run.get("tokens_applied")
    return sent / tokens if sent is not None and tokens else None


def share_waiting(run):
    time = run.time or {}
    return time["wait"] / time["total"] if time.get("total") else None


def tail(run):
    """How slow slow steps are: the 95th percentile of the step times over their median."""
    median, p95 = run.get("step_seconds", "median"), run.get("step_seconds", "p95")
    return p95 / median if median and p95 else None


def consensus(run):
    """Gossip's consensus distance: the squared distance of a rank's last masters from the mean of all ranks', averaged over the ranks."""
    found = []
    for path in glob.glob(os.path.join(glob.escape(run.directory), "ranks", "worker-*.json")):
        with regular.open_file(path, limit=regular.WHOLE, encoding="utf-8") as f:
            found.append(json.load(f).get("consensus_distance"))
    return statistics.fmean(found) if found and None not in found else None


def figures_of(target):
    """The figures of a study with this target loss: [(key, words, function that returns a run's value, digits)]."""
    to = "the target" if target is None else f"{target:.4f}"

    def reached(what):
        return lambda run: None if target is None else learning.reached(run, target, what)
    return [("loss", "held-out loss", final_loss, 4), ("samples_to_target", f"samples to {to}", reached("samples"), 0),
            ("updates_to_target", f"updates to {to}", reached("updates"), 0), ("seconds_to_target", f"seconds to {to}", reached("seconds"), 2),
            ("seconds", "seconds in all", lambda run: learning.judged(run)[-1].seconds if learning.judged(run) else None, 2),
            ("step_ms", "ms a step, median", lambda run: 1e3 * run.get("step_seconds", "median", default=math.nan), 1),
            ("tail", "95th percentile / median step", tail, 2), ("waiting", "share of time waiting for peers", share_waiting, 2),
            ("updates", "updates", lambda run: run.updates_applied, 0), ("samples", "samples applied", lambda run: run.samples_applied, 0),
            ("staleness", "staleness, mean", lambda run: run.get("staleness", "mean"), 2),
            ("staleness_max", "at most", lambda run: run.get("staleness", "max"), 0),
            ("sent_mib", "MiB sent in the job", lambda run: sent_bytes(run) / MIB if sent_bytes(run) is not None else None, 1),
            ("sent_per_token", "bytes sent a token", sent_per_token, 0), ("consensus", "consensus distance", consensus, 4)]


# (key of a figure, unit of the comparison, its description)
MEASURES = [("loss", "nats", "held-out loss at the end"), ("seconds_to_target", "times", "seconds to the target"),
            ("samples_to_target", "times", "samples to the target"), ("seconds", "times", "seconds for the whole budget"),
            ("sent_mib", "times", "bytes sent")]


def target_of(study, cells):
    """{condition's name: target loss}: the study's, else the worst final loss of the reference row's runs, which all of them have
    reached. None if that row has no runs."""
    out = {}
    for condition in study.conditions:
        ends = [final_loss(run) for cell in cells if (cell.condition, cell.row.name) == (condition, study.reference) for run in cell.runs]
        out[condition.name] = study.target_loss if study.target_loss is not None else max(finite(ends), default=None)
    return out


def estimates(cell, target):
    """{key: Estimate}. None for a figure that some run of the cell does not have, such as the time to a target that it never reached."""
    out = {}
    for key, _, read, _ in figures_of(target):
        values = finite([read(run) for run in cell.runs])
        out[key] = estimate(values, lowest=0.0, highest=1.0 if key in SHARES else math.inf) if len(values) == len(cell.runs) else None
    return out


def comparable(key, run, target):
    """The run's value of a figure, as a positive number for a ratio: exp(loss) for a loss. None if it has none."""
    read = next(read for name, _, read, _ in figures_of(target) if name == key)
    value = read(run)
    return math.exp(value) if key == "loss" and value is not None and value < 700 else None if key == "loss" else value


@dataclass(frozen=True)
class Verdict:
    """The result of one measure under one condition. best: the row with the lowest value; ratios: [(row, Ratio of its value to the best row's)]. For a
    loss, the Ratio's logarithm is in nats. never: rows with a run that never reached the target."""
    condition: str
    key: str
    unit: str
    words: str
    best: str
    ratios: tuple
    never: tuple = ()
    looked_at: int = 0   # the number of ratios that the claims are corrected for


def verdicts(study, cells, targets):
    """[Verdict], for each condition and each measure that some row has, if it can be compared with another row."""
    out = []
    for condition in study.conditions:
        mine, target = [c for c in cells if c.condition == condition and c.runs], targets[condition.name]
        for key, unit, words in MEASURES:
            middles = {c.row.name: estimates(c, target)[key] for c in mine}
            never = tuple(name for name, e in middles.items() if e is None) if key.endswith("_to_target") and target is not None else ()
            there = [c for c in mine if middles[c.row.name] is not None]
            if not there or len(there) + len(never) < 2:
                continue
            couples = list(itertools.combinations(there, 2))
            found = claims.claim([claims.ratio(pairs(*({run.seed: comparable(key, run, target) for run in cell.runs} for cell in (a, b)))) or claims.Ratio(1.0, 0) for a, b in couples])
            # The best row has the lowest mean of logarithms. So, if all rows have all seeds, no ratio to it is below 1.
            best = min(there, key=lambda c: statistics.fmean(math.log(max(comparable(key, run, target), 1e-300)) for run in c.runs))
            ratios = []
            for (a, b), ratio in zip(couples, found):
                if best in (a, b) and ratio.count:
                    ratios.append((b.row.name, inverted(ratio)) if a is best else (a.row.name, ratio))
            out.append(Verdict(condition.name, key, unit, words, best.row.name, tuple(sorted(ratios, key=lambda r: r[1].value)), never,
                               sum(r.chance is not None for r in found)))
    return out


def inverted(ratio):
    """The Ratio of b to a, from the Ratio of a to b."""
    if ratio.low is None:
        return replace(ratio, value=1 / ratio.value)
    return replace(ratio, value=1 / ratio.value, low=1 / ratio.high, high=1 / ratio.low, least=1 / ratio.most, most=1 / ratio.least)


def in_words(verdict):
    """Sentences on a Verdict: the best row, the rows that differ from it significantly, and the rows that do not."""
    def said(name, ratio):
        # A ratio that is not significant is printed with the corrected interval, by which that was decided.
        ends = [] if ratio.low is None else [ratio.low, ratio.high] if ratio.differs else [ratio.least, ratio.most]
        if verdict.unit == "nats":
            return f"{name} {math.log(ratio.value):+.3f}" + (f" ({math.log(ends[0]):+.3f} to {math.log(ends[1]):+.3f})" if ends else "")
        return f"{name} {ratio.value:.2f}" + (f" ({ends[0]:.2f} to {ends[1]:.2f})" if ends else "") + " times"
    beyond = [said(*r) for r in verdict.ratios if r[1].differs]
    equal = [name for name, r in verdict.ratios if not r.differs and r.low == r.high == 1.0]
    within, small = [], []
    for name, r in verdict.ratios:
        if not r.differs and name not in equal:
            (small if r.low is not None and not r.least <= 1 <= r.most else within).append(said(name, r))
    unit = " nats" if verdict.unit == "nats" else " as much"
    text = f"{verdict.condition}: least {verdict.words}: {verdict.best}."
    if equal:
        text += f" Equal to it with every seed: {', '.join(equal)}."
    if beyond:
        text += f" Beyond noise: {', '.join(beyond)}{unit}."
    if small:
        text += f" Beyond noise, but too little to be claimed: {', '.join(small)}{unit}."
    if within:
        one = all(r.count == 1 for _, r in verdict.ratios)
        corrected = f" (corrected for {verdict.looked_at} ratios)" if verdict.looked_at > 1 else ""
        text += (f" One seed shows no noise, so nothing is claimed: {', '.join(within)}{unit}." if one else
                 f" Not beyond noise{corrected}: {', '.join(within)}{unit}.")
    if verdict.never:
        text += f" Not in every run, or never: {', '.join(verdict.never)}."
    return text


def busy(cells):
    """A sentence on the load by other programs; "" if it was not measured."""
    shares = finite([run.load.get("others_share") for cell in cells for run in cell.runs])
    if not shares:
        return ""
    return (f"Other programs took {statistics.median(shares):.0%} of the cores in the median run, and {max(shares):.0%} in the one that had most "
            "of it. The runs took turns in a random order, so this widens the intervals of times and favours no row.")


def facts_that_may_differ(parts):
    """The facts in which runs may differ, since a row or a condition sets them."""
    keys = [key for part in parts for key in part.settings]
    return {fact for fact, prefixes in VARIED_BY.items() if any(not p or key == p or key.startswith(p) for p in prefixes for key in keys + [""])}


def refuse_unlike(study, cells):
    """Raises RunError if the rows of one condition differ in a fact that no row sets, or any runs in one that no row or condition sets."""
    for condition in study.conditions:
        comparability.refuse_unlike([c.runs for c in cells if c.runs and c.condition == condition], None, facts_that_may_differ(study.rows))
    comparability.refuse_unlike([c.runs for c in cells if c.runs], None, facts_that_may_differ(study.rows + study.conditions))


def refuse_unequal_budgets(cells):
    """Raises UsageError unless all runs have the same number of samples."""
    budgets = {}
    for cell in cells:
        for run in cell.runs:
            budgets.setdefault((run.steps_planned or run.steps or 0) * (run.train_batch_size or 0), []).append(run.label)
    if len(budgets) > 1:
        told = ", ".join(f"{labels[0]}: {samples:,}" for samples, labels in budgets.items())
        raise UsageError(f"the rows have unequal budgets of samples ({told}); make steps times train_batch_size equal")
