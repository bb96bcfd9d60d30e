"""What runs must share to be compared, and what those that do not are unlike in."""
import json
import sys

from .runs import RunError

# Facts that make another task of it: whatever is swept, they stay equal.
TASK = ["tokens_per_step", "model", "params", "data", "cpu_kernel", "products"]
# Facts that a sweep or a list of media may vary, where all runs of one of its points share them.
SETTING = ["seed", "dtype", "steps", "lr", "clip", "device", "medium", "host", "revision"]
REMEDIES = {"cpu_kernel": "give all of them --set cpu.kernel=fma",
            "products": "give all of them the same --set cuda.products=FILE, or none",
            "medium": "give all of them the same --medium, which puts a ring in processes as well",
            "host": "run them on one machine", "revision": "run them with one build",
            "lr": "give all of them the same --set optimizer.params.lr=X", "clip": "give all of them the same --set gradient_clipping=X"}
MUST_BE_SAID = {"tokens_per_step", "model", "params", "data", "seed"}  # of the others, nothing said is nothing unlike


def fact(run, key):
    """A run's value, None where it does not say."""
    if key == "cpu_kernel":
        return run.get("cpu_kernel", "product")
    if key == "products":
        return None if run.products is None else run.get("products", "hash") or "no table"
    if key == "lr":
        return ((run.config().get("optimizer") or {}).get("params") or {}).get("lr")
    if key == "clip":
        return run.config().get("gradient_clipping")
    if key == "steps":
        return run.steps_planned or run.steps
    if key == "medium":
        # local has nobody to talk to
        return None if run.medium == "none" else run.medium + f" at {run.links}" if run.links and run.medium else run.medium
    if key == "host":
        return run.get("machine", "host")
    return run.summary.get(key)


def values_of(key, runs):
    """{value as JSON: the labels of the runs that have it}"""
    values = {}
    for run in runs:
        value = fact(run, key)
        if key in MUST_BE_SAID or value is not None:
            values.setdefault(json.dumps(value), []).append(run.label)
    return values


def is_unlike(key, groups):
    runs = [run for group in groups for run in group]
    if len(values_of(key, runs)) < 2:
        return False
    if key in TASK:
        return True
    if key == "seed":  # several seeds stand together where every label has runs of all of them
        return not runs[0].seed_swept and len({frozenset(values_of(key, group)) for group in groups}) > 1
    if key == "medium" and all(run.device == "cuda" for run in runs):
        return False  # what a GPU's ranks talk through is the topology's own choice; the table says it
    points = {}
    for run in runs:
        points.setdefault(json.dumps(run.point) + (run.medium_asked or "" if key == "medium" else ""), []).append(run)
    return len(points) == 1 or any(len(values_of(key, point)) > 1 for point in points.values())


def unlike(groups):
    """{key: {value: labels}} of what may not differ and does."""
    runs = [run for group in groups for run in group]
    return {key: values_of(key, runs) for key in TASK + SETTING if is_unlike(key, groups)}


def shown(value):
    """A JSON value as people write it."""
    return str(json.loads(value)) if json.loads(value) is not None else "not said"


def in_words(groups):
    """"dtype bf16 / fp32, lr 0.001 / 0.0003": the line of the table; "" when nothing is unlike."""
    return ", ".join(f"{key} {' / '.join(map(shown, values))}" for key, values in unlike(groups).items())


def refuse_unlike(groups, force):
    """RunError unless the runs are alike in all that is not compared; with force a warning for each key."""
    for key, values in unlike(groups).items():
        listed = ", ".join(f"{labels[0]}: {value}" for value, labels in values.items())
        text = f"the runs are not comparable: unequal {key} ({listed})"
        if not force:
            raise RunError(f"{text}; {REMEDIES.get(key, 'make them equal')}, or compare anyway with --force")
        print("warning: " + text, file=sys.stderr)
