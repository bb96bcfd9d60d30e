"""Tabulates a drill's results by the killed role and the moment."""
from statistics import median

import tables


def groups_of(results):
    """{(job, victims, moment and how): results}, in the order of their names."""
    groups = {}
    for r in results:
        kinds = sorted({v.split()[0] for v in r.victims})
        who = r.how if not kinds or r.how == "launcher" else " + ".join(kinds) if len(kinds) == len(r.victims) else f"two {kinds[0]}s"
        when = r.moment + ("" if r.how in ("killed", "launcher", who) else f", {r.how}")
        groups.setdefault((r.job, who, when), []).append(r)
    return dict(sorted(groups.items()))


def number(value, form):
    return "-" if value is None else format(value, form)


def row(key, results):
    seconds = [r.to_next_s for r in results if r.to_next_s is not None]
    again = [r.steps_again for r in results if r.steps_again is not None]
    return [*key, str(len(results)), str(sum(r.hit for r in results)), str(sum(bool(r.wrong) for r in results)),
            number(median(seconds) if seconds else None, ".2f"), number(max(seconds, default=None), ".2f"),
            number(median(again) if again else None, ".0f"), number(max(again, default=None), ".0f")]


HEAD = ["job", "who died", "when", "runs", "hit", "wrong", "s to next step", "at most", "steps again", "at most"]


def rows(results):
    return [row(key, group) for key, group in groups_of(results).items()] + [row(("all", "", ""), results)]


def markdown(results):
    return tables.markdown([HEAD, *rows(results)], 3)


def document(results, facts):
    return dict(facts, runs=len(results), wrong=sum(bool(r.wrong) for r in results), exercises=[vars(r) for r in results])
