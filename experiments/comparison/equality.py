"""Finds which runs are equal to the last bit, which are not, and why. Only exact values count: the loss's text in metrics.jsonl, step by
step, and the hash of the final weights."""
import json
import math

from .runs import as_float

# The configuration keys that may differ between runs whose results are promised to be bit-identical (README).
FREE_KEYS = {"topology", "launch", "out", "threads", "parameter_server", "ring", "zero_optimization", "servers", "trace",
             "json", "quiet", "full", "steps_per_print", "deadline_ms", "eval_every", "eval_batches", "workers",
             "train_micro_batch_size_per_gpu", "medium", "straggle", "delay", "snapshots", "evaluation",
             "security", "aio", "cpu"}


def first_difference(a, b):
    """None when a and b are equal bit for bit, else (step or None, sentence)."""
    mine, theirs = two_names(a, b)
    for i, (x, y) in enumerate(zip(a.losses, b.losses)):
        if x != y:
            step = a.metrics[i].get("step", i + 1)
            return step, f"at step {step}: loss {x} in {mine}, {y} in {theirs}"
    if len(a.losses) != len(b.losses):
        step = min(len(a.losses), len(b.losses)) + 1
        return step, (f"at step {step}: {mine} has {len(a.losses)} steps, "
                      f"{theirs} has {len(b.losses)}")
    if a.weights_hash != b.weights_hash:
        return None, (f"after step {len(a.losses)}, the last: equal losses, but weights {a.weights_hash} in {mine}, "
                      f"{b.weights_hash} in {theirs}")
    return None


def equal_groups(runs):
    """Groups the runs whose losses and weights are exactly equal, in order of first appearance."""
    groups = {}
    for run in runs:
        groups.setdefault((tuple(run.losses), run.weights_hash), []).append(run)
    return list(groups.values())


def letters(runs):
    """{id of a run: a letter}. Runs with equal bits have the same letter; A is the largest group."""
    groups = sorted(equal_groups(runs), key=len, reverse=True)
    return {id(run): chr(65 + i % 26) + str(i // 26 or "") for i, group in enumerate(groups) for run in group}


def settings(run):
    """The resolved configuration without the keys that may differ; {} if the run left none."""
    return {k: v for k, v in run.config().items() if k not in FREE_KEYS}


def two_names(a, b):
    """The labels of two runs; with repeat numbers if the labels are equal."""
    return (a.label, b.label) if a.label != b.label else tuple(f"{r.label} (run {r.repeat + 1})" for r in (a, b))


def names(some, runs):
    """The labels of `some` of the `runs`, each once; with repeat numbers if some repeats are missing."""
    out = []
    for label in dict.fromkeys(r.label for r in some):
        mine, every = ([r for r in rs if r.label == label] for rs in (some, runs))
        out.append(label if len(mine) == len(every) else f"{label} (run {'/'.join(str(r.repeat + 1) for r in mine)})")
    return out


def promise(run):
    """A key: runs with the same key are promised to be bit-identical. None if nothing is promised for this run."""
    shared = settings(run)
    if (shared.get("gradient_accumulation_steps") or 1) != 1:
        return None
    if run.explained is None or run.get("explained", "differs"):
        return None
    facts = {k: run.summary.get(k) for k in ("tokens_per_step", "model", "params", "seed", "dtype", "steps", "data")}
    return json.dumps([run.workers, facts, shared], sort_keys=True)


def broken_promises(runs):
    """A sentence for each pair that should be equal and is not."""
    first, out = {}, []
    for run in runs:
        key = promise(run)
        if key is None:
            continue
        other = first.setdefault(key, run)
        difference = first_difference(other, run)
        if difference:
            out.append(f"{' and '.join(two_names(other, run))} differ {difference[1]}")
    return out


def unexpected(runs, expected):
    """A sentence for each star and ring on CPUs that is promised equal and does not end in this hash."""
    return [f"{run.label} ends with the weights {run.weights_hash}, not with {expected}: this is another text, another configuration, "
            "another version of the program, or a bug"
            for run in runs if expected not in (None, run.weights_hash) and run.kind != "local" and run.device == "cpu" and promise(run)]


def unequal_pairs(runs):
    """A sentence for each run that differs from the first one."""
    out = []
    for some in by_seed(runs).values():
        for run in some[1:]:
            difference = first_difference(some[0], run)
            if difference:
                out.append(f"{' and '.join(two_names(some[0], run))} differ {difference[1]}")
    return out


def by_seed(runs):
    """{seed: its runs}. Runs of different seeds are not compared."""
    found = {}
    for run in runs:
        found.setdefault(run.seed, []).append(run)
    return found


def repeats(group):
    """" (3 runs of each)" if there are repeats, else ""."""
    count = len(group) // len({r.label for r in group})
    return f" ({count} runs{' of each' if len({r.label for r in group}) > 1 else ''})" if count > 1 else ""


def why(run, reference):
    """Why `run` may differ from `reference`, as the second half of a sentence; the reason that its topology states comes first. None: no known reason."""
    if run.tokens_per_step != reference.tokens_per_step:
        return f"its steps have {run.tokens_per_step} tokens against {reference.tokens_per_step}: other batches, other updates"
    differs = run.get("explained", "differs")
    if differs:
        mean, most = run.get("staleness", "mean"), run.get("staleness", "max")
        return differs + (f". Staleness: mean {mean:.2f}, at most {most}" if isinstance(mean, (int, float)) and most else "")
    if run.workers == 1 and (reference.workers or 1) > 1:
        return (f"it is one worker. It takes the gradient of the whole batch in one backward pass and rounds it to "
                f"{run.dtype} once; {reference.workers} workers each round the gradient of their slice and these are "
                f"then summed. The same mathematics, summed and rounded in another order")
    for key, words in (("dtype", "another number format"), ("workers", "another number of workers, so other slices "
                       "are summed and rounded in another order")):
        if run.summary.get(key) != reference.summary.get(key):
            return f"it has {words}: {run.summary.get(key)} against {reference.summary.get(key)}"
    mine, theirs = settings(run), settings(reference)
    changed = sorted(k for k in set(mine) | set(theirs) if mine.get(k) != theirs.get(k))
    if changed:
        return "it was configured differently: " + ", ".join(changed)
    if len(run.losses) != len(reference.losses):
        return f"it ran {len(run.losses)} steps against {len(reference.losses)}"
    return "its files do not say: another version of the program wrote them" if run.explained is None else None


def explanation(run, reference):
    """(the run that differs from the others, why): the one of the two with a known reason to differ, `run` if both have one. None: neither has."""
    pairs = [(run, reference), (reference, run)]
    pairs.sort(key=lambda pair: not pair[0].get("explained", "differs"))
    return next(((one, found) for one, other in pairs if (found := why(one, other))), None)


def largest_gap(a, b):
    """(step, |difference|) of the step at which two loss curves differ most; None if they cannot be compared."""
    best = None
    for i, (x, y) in enumerate(zip(a.losses, b.losses)):
        gap = abs(as_float(x) - as_float(y))
        if math.isfinite(gap) and (best is None or gap > best[1]):
            best = (a.metrics[i].get("step", i + 1), gap)
    return best


def in_words(runs):
    """[(kind, sentence)]: kind is "equal", "differs" or "broken"; seeds are judged separately."""
    seeds = by_seed(runs)
    return [(kind, (f"Seed {seed}: " if len(seeds) > 1 else "") + text) for seed, some in seeds.items()
            for kind, text in of_one_seed(some)]


def of_one_seed(runs):
    out = []
    groups = sorted(equal_groups(runs), key=len, reverse=True)
    reference = groups[0][0]
    for group in groups:
        if len(group) > 1:
            out.append(("equal", f"{' = '.join(names(group, runs))}{repeats(group)}: equal to the last bit, the loss of each of the "
                        f"{len(group[0].losses)} steps and the final weights ({group[0].weights_hash})."))
    broken, told = broken_promises(runs), set()
    for group in groups[1:] if len(groups[0]) > 1 else groups:
        run = group[0]
        if run is reference or all(r.label in told for r in group):  # another repeat of a run whose difference has been reported
            continue
        told |= {r.label for r in group}
        difference = first_difference(reference, run)
        gap = largest_gap(reference, run)
        text = f"{' = '.join(names(group, runs))} is not equal to {names([reference], [reference])[0]}: first {difference[1]}"
        if gap and gap[1] > 0:
            text += f"; farthest apart at step {gap[0]}, by {gap[1]:.2g}"
        found = explanation(run, reference)
        text += (". Nothing in their configuration explains it." if not found else f". Why: {found[1]}." if found[0] is run else
                 f". Why, of {reference.label}: {found[1]}.")
        out.append(("differs", text))
    out += [("broken", f"BROKEN PROMISE: {text}. These topologies must agree to the last bit; this is a bug.")
            for text in broken]
    if len(runs) == 1:
        out.append(("equal", f"One run only ({runs[0].label}, weights {runs[0].weights_hash}): nothing to compare it with."))
    return out
