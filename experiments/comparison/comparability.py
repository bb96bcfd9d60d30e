"""The facts that runs must share to be comparable, and the facts in which given runs differ."""
import json
import sys

from .runs import RunError, UsageError

# Runs that differ in one of these train on different tasks. A sweep may not vary them.
TASK = ["tokens_per_step", "model", "data"]
PREDICTED = ["tokens_per_step", "model", "params"]  # the facts that a dry run states
# A sweep or a list of media may vary these. All runs at one point of the sweep must agree in them.
SETTING = ["params", "seed", "dtype", "steps", "lr", "schedule", "optimizer", "clip", "trouble", "held_out", "device", "medium", "encryption", "host", "revision"]
REMEDIES = {"tokens_per_step": "give all of them one train_batch_size, where workers are swept one that each number divides",
            "trouble": "give all of them the same --straggle and --delay (--set trouble.straggle=R:F)",
            "medium": "give all of them the same --medium, which puts a ring in processes as well",
            "held_out": "give all of them the same --set eval_batches=N",
            "encryption": "give all stars the same --set parameter_server.bind=ADDRESS, or none",
            "host": "run them on one machine", "revision": "run them with one build",
            "lr": "give all of them the same --set optimizer.params.lr=X", "clip": "give all of them the same --set gradient_clipping=X"}
# A run that does not state one of these facts differs from a run that does. Any other fact that is not stated counts as equal.
MUST_BE_SAID = {"tokens_per_step", "model", "params", "data", "seed", "medium", "host", "revision"}


def in_one_line(found):
    """The text of {"type": "AdamW", "params": {"eps": 1e-8}}: "AdamW eps=1e-08". "constant" if there is none, as for a missing scheduler."""
    if not isinstance(found, dict) or not found:
        return "constant"
    return " ".join([str(found.get("type") or "unnamed")] + [f"{k}={v}" for k, v in sorted((found.get("params") or {}).items())])


def fact(run, key):
    """The run's value of this fact; None if the run does not state it."""
    if key == "lr":
        return ((run.config().get("optimizer") or {}).get("params") or {}).get("lr")
    if key == "schedule":
        return in_one_line(run.config().get("scheduler")) if run.config() else None
    if key == "optimizer":
        found = dict(run.config().get("optimizer") or {})
        found["params"] = {k: v for k, v in (found.get("params") or {}).items() if k != "lr"}
        return in_one_line(found) if run.config() else None
    if key == "trouble":
        return run.get("trouble", "text") or "none"
    if key == "clip":
        return run.config().get("gradient_clipping")
    if key == "encryption":  # a ring's summary has none: MPI and NCCL do not encrypt
        return None if run.security is None else "CURVE" if run.security == "job" else "none"
    if key == "steps":
        return run.steps_planned or run.steps
    if key == "medium":
        return None if run.medium == "none" else run.medium + f" at {run.links}" if run.links and run.medium else run.medium
    if key == "held_out":
        return run.evals[-1].tokens if run.evals else None
    if key == "host":
        return run.get("machine", "host")
    return run.summary.get(key)


def values_of(key, runs):
    """{value as JSON: the labels of the runs that have it}"""
    values = {}
    for run in runs:
        value = fact(run, key)
        must = key in MUST_BE_SAID and not (key == "medium" and run.kind == "local")  # it has nobody to talk to
        if must or value is not None:
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
    """{key: {value: labels}} of the facts that may not differ but do."""
    runs = [run for group in groups for run in group]
    return {key: values_of(key, runs) for key in TASK + SETTING if is_unlike(key, groups)}


def shown(value):
    """A JSON value as it is printed."""
    return str(json.loads(value)) if json.loads(value) is not None else "not said"


def in_words(groups):
    """"dtype bf16 / fp32, lr 0.001 / 0.0003": the line of the table; "" if nothing differs."""
    return ", ".join(f"{key} {' / '.join(map(shown, values))}" for key, values in unlike(groups).items())


def sentence(key, values):
    listed = ", ".join(f"{labels[0]}: {value}" for value, labels in values.items())
    return f"the runs are not comparable: unequal {key} ({listed})"


def remedy(key, may_force=True):
    return REMEDIES.get(key, "make them equal") + (", or compare anyway with --force" if may_force else "")


def refuse_unlike_predictions(predicted):
    """Raises UsageError unless planned runs, as (label, point of the sweep, what --dry-run prints), agree in the facts that define their
    task."""
    for key in PREDICTED:
        points = {}
        for label, point, found in predicted:
            if key in found:
                at = json.dumps(point) if key in SETTING else ""
                points.setdefault(at, {}).setdefault(json.dumps(found[key]), []).append(label)
        for values in points.values():
            if len(values) > 1:
                raise UsageError(f"{sentence(key, values)}; {remedy(key)}. Nothing was trained")


def refuse_unlike(groups, force, varied=()):
    """Raises RunError unless the runs agree in all facts that are not compared; with force, prints a warning for each key. force: None if the
    command has no such flag. varied: facts that differ on purpose."""
    for key, values in unlike(groups).items():
        if key in varied:
            continue
        text = sentence(key, values)
        if not force:
            raise RunError(f"{text}; {remedy(key, force is not None)}")
        print("warning: " + text, file=sys.stderr)
