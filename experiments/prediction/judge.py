"""Compares predictions with measurements: trains over shaped links on this machine, and predicts the same runs from a calibration.

    predict.py --calibrate CAL.json; predict.py --judge FILE --machine CAL.json

measures what FILE does not have yet, and predicts all of it. A run that FILE has is not measured again, so that a changed model of the
network is compared with the same measurements. The compared figure is the median step if all ranks wait for each other, the mean step with
local steps, else the tokens per second while all workers have work; for asynchronous runs also the mean staleness.
"""
import concurrent.futures
import datetime
import functools
import json
import os
import statistics
import sys
import tempfile
import time

import regular
import tables
from netlab import formula, lab, train
from program import TOP

from . import CannotPredict, command, servers
from .cases import CASES, MODELS

PAGE = os.path.join(TOP, "docs", "experiments", "prediction.md")   # the page whose tables this file writes
HERE = os.path.dirname(os.path.abspath(__file__))
RESULTS = os.path.join(HERE, "judged.json")             # the runs with which the model was developed; a prediction is printed with their error
HELD_OUT = os.path.join(HERE, "judged-held-out.json")   # measured on another machine, after the model was finished
WARM_UP = 2           # first steps, which are not measured
LIMIT_SECONDS = 90    # a run that takes longer is killed
PREDICTED_STEPS = 60
TAIL_LINES = 15


class JudgeError(Exception):
    """A run failed; the text names it and has the end of its log."""


def every(case):
    """The number of local steps per round; 0: none. With local steps only whole rounds are measured, without the first."""
    words = case.more.split()
    return int(words[words.index("--local-steps") + 1]) if "--local-steps" in words else 0


def words_of_run(program, case, directory):
    return [program, "train", *case.words(), "--steps", str(case.steps), "--threads", "1", "--set", "eval_batches=0", "--quiet", "--no-weights",
            "--force", "--out", directory]


def measured(program, case):
    """Trains a case in a lab, and returns its measurement as a JSON object."""
    with tempfile.TemporaryDirectory() as folder:
        directory, log = os.path.join(folder, "run"), os.path.join(folder, "log")
        with open(log, "wb") as f:
            status = train.train(words_of_run(program, case, directory), f, LIMIT_SECONDS, case.bandwidth)
        if status != 0:
            with open(log, encoding="utf-8", errors="replace") as f:
                tail = f.read().replace("\r", "\n").splitlines()[-TAIL_LINES:]
            raise JudgeError(f"{case.name}: {status}\n" + "\n".join("    | " + line for line in tail))
        run = formula.Measured(directory)
        with regular.open_file(os.path.join(directory, "metrics.jsonl"), limit=regular.WHOLE, encoding="utf-8") as f:
            seconds = [json.loads(line)["seconds"] for line in f]
    found, steps = run.summary, run.summary["steps"]
    staleness = found["staleness"] if found.get("staleness") and not waits(case) else None
    return {"steps": steps, "seconds": [round(s, 6) for s in seconds], "median": statistics.median(seconds[WARM_UP:]),
            "mean": statistics.fmean(seconds[every(case) or WARM_UP:]),
            "tokens_per_second": found["tokens_per_second"], "tokens_per_step": found["tokens_per_step"],
            "parts": {key: found["time"][key] / steps for key in ("forward", "backward", "optimizer", "comm_exposed", "wait", "host")},
            "staleness": staleness and {"mean": staleness["mean"], "max": staleness["max"], "histogram": staleness["histogram"]},
            "cpu_seconds": found["totals"]["cpu_seconds"]}



# ---------------------------------------------------------------- what is compared
def waits(case):
    """Whether every step of the run waits for all workers."""
    return not case.topology.startswith("ps:") or case.topology == "ps:sync"


def compared(case):
    """The figures to compare: (its name in a measurement, its name in the prediction's step_seconds). "rate": seconds of a global batch."""
    return ("mean" if every(case) else "median") if waits(case) else "rate"


def seconds_of(case, found):
    """The measured seconds of a step that are compared."""
    return found["tokens_per_step"] / found["tokens_per_second"] if compared(case) == "rate" else found[compared(case)]


def predicted(program, case, machine):
    """Predicts a case, and returns the figures that are stored: seconds of a step, quantiles, parts, limit, staleness."""
    known, more, words = [], [], case.words()
    own = ("--topology", "--workers", "--servers", "--set", *(flag for flag, _, _ in command.PASSED))
    for flag, value in zip(words[::2], words[1::2]):
        (known if flag in own else more).extend((flag, value))
    steps = PREDICTED_STEPS if waits(case) else case.steps - WARM_UP   # a gradient is the staler, the longer a run is: its first ones are fresh
    options = command.parser("").parse_args([*known, "--machine", machine, "--bandwidth", case.bandwidth, "--steps", str(steps), "--program", program,
                                             "--", *more])
    found = command.predict(options, case.topology)
    step = found["step_seconds"]
    seconds = step[compared(case)] if compared(case) != "rate" else MODELS[case.model][1] * MODELS[case.model][2] * case.workers / found["tokens_per_second"]
    return {"seconds": seconds, "p5": step["p5"], "p95": step["p95"], "parts": found["parts"], "limit": found["limit"],
            "staleness": found["staleness"] and found["staleness"]["mean"]}


# ---------------------------------------------------------------- all of them
def measure_all(program, cases, done, keep):
    """Measures the cases that are not in `done` ({name: measurement}); keep() is called after each."""
    lab.check_possible()
    for i, case in enumerate(cases):
        if case.name in done:
            continue
        began = time.monotonic()
        done[case.name] = measured(program, case)
        print(f"{i + 1}/{len(cases)} {case.name}: {seconds_of(case, done[case.name]):.3f} s a step ({time.monotonic() - began:.0f} s)", flush=True)
        keep()


def judged(program, cases, done, machine):
    """Predicts the measured cases, and returns the comparisons, a list of JSON objects."""
    out, cases = [], [case for case in cases if case.name in done]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:   # each simulation is a process of its own
        documents = list(pool.map(lambda case: predicted(program, case, machine), cases))
    for case, expected in zip(cases, documents):
        found = done[case.name]
        seconds = seconds_of(case, found)
        run = {"name": case.name, "family": case.family, "waits": waits(case), "compared": compared(case), "seconds": seconds,
               "predicted": expected, "error": expected["seconds"] / seconds - 1, "parts": found["parts"]}
        if found["staleness"] and found["staleness"]["mean"] and expected["staleness"] is not None:
            run["staleness"] = found["staleness"]["mean"]
            run["staleness_error"] = expected["staleness"] / found["staleness"]["mean"] - 1
        out.append(run)
    return out


def size(errors):
    return statistics.fmean(map(abs, errors))


def percent(share, sign=False):
    return f"{100 * share:{'+' if sign else ''}.1f}%"


def rows_of_runs(runs):
    lines = [["run", "measured", "predicted", "error", "limit", "staleness", "predicted", "error"]]
    for run in runs:
        stale = [f"{run['staleness']:.2f}", f"{run['predicted']['staleness']:.2f}", percent(run["staleness_error"], True)] if "staleness" in run else ["", "", ""]
        lines.append([run["name"], f"{run['seconds'] * 1e3:.0f} ms", f"{run['predicted']['seconds'] * 1e3:.0f} ms", percent(run["error"], True),
                      run["predicted"]["limit"], *stale])
    return lines


def rows_of_families(runs):
    """The table's rows: one per family, and three for all runs together. Each names its worst run."""
    lines = [["family", "runs", "mean error", "mean, with sign", "worst", "of"]]

    def row(words, some, key="error"):
        if some:
            worst = max(some, key=lambda run: abs(run[key]))
            lines.append([words, len(some), percent(size([run[key] for run in some])), percent(statistics.fmean(run[key] for run in some), True),
                          percent(worst[key], True), worst["name"]])
    for family in dict.fromkeys(run["family"] for run in runs):
        row(family, [run for run in runs if run["family"] == family])
    row("**all ranks wait**", [run for run in runs if run["waits"]])
    row("**not all wait**", [run for run in runs if not run["waits"]])
    row("**staleness**", [run for run in runs if "staleness" in run], "staleness_error")
    return lines


def read(path):
    """A results file: date, machine (of --machine), measured {name: measurement}, runs."""
    if not os.path.exists(path):
        return {"date": None, "machine": None, "measured": {}, "runs": []}
    with regular.open_file(path, limit=regular.WHOLE, encoding="utf-8") as f:
        return json.load(f)


def run(program, path, machine, again=False):
    """Runs predict.py --judge: measures the cases that the file does not have (not with `again`), predicts all, prints and stores the
    results. machine None: the file's. Returns the exit status."""
    kept = read(path)

    def keep():
        with open(path, "w", encoding="utf-8") as f:
            json.dump(kept, f, indent=1)
            f.write("\n")
    try:
        kept["machine"] = machine or kept["machine"]
        if not kept["machine"]:
            raise CannotPredict("--judge: give --machine FILE, which --calibrate has written here")
        if not again:
            kept["date"] = kept["date"] or datetime.date.today().isoformat()
            measure_all(program, CASES, kept["measured"], keep)
        if not kept["measured"]:
            raise CannotPredict(f"{path} has no measurement: leave --again out, to measure")
        kept["runs"] = judged(program, CASES, kept["measured"], kept["machine"])
    except (JudgeError, CannotPredict, lab.LabError, OSError) as e:
        print(f"predict.py: error: {e}", file=sys.stderr)
        return 1 if isinstance(e, JudgeError) else 2
    keep()
    if os.path.realpath(path) in (RESULTS, HELD_OUT):
        rewrite(lambda text: page(text, kept["runs"], "" if os.path.realpath(path) == RESULTS else "held-out "))
    print("\n" + tables.text(rows_of_runs(kept["runs"])) + "\n\n" + tables.text(rows_of_families(kept["runs"])).replace("**", ""))
    return 0


def page(text, runs, which=""):
    """The page's text with new tables of these runs. which: "" for the runs of RESULTS, "held-out " for those of HELD_OUT."""
    return tables.placed(tables.placed(text, which + "families", rows_of_families(runs)), which + "runs", rows_of_runs(runs))


def rewrite(change):
    """Rewrites PAGE with change(its text), if it exists (a bundle has no pages)."""
    if os.path.exists(PAGE):
        with open(PAGE, encoding="utf-8") as f:
            text = f.read()
        with open(PAGE, "w", encoding="utf-8") as f:
            f.write(change(text))


# ---------------------------------------------------------------- beside a prediction
@functools.cache
def results():
    """The runs of RESULTS."""
    return read(RESULTS)["runs"]


def error_of(asked):
    """For command.predict: the judged error of predictions like that of the dry run `asked`; None: nothing like it was judged. Alike are those that
    wait for all, with and without servers, and those that do not."""
    star = asked.topology.startswith("ps:")
    everyone = not star or servers.Rule.of(asked, asked.workers).everyone
    alike = [r for r in results() if r["waits"] == everyone and r["name"].startswith("ps-") == star]
    if not alike:
        return None
    words = "rings and gossip" if not star else "stars that wait for all" if everyone else "stars that do not wait for all"
    return {"mean": size([r["error"] for r in alike]), "worst": max(abs(r["error"]) for r in alike),
            "of": f"{len(alike)} runs of {words} on two cores over shaped links (docs/experiments/prediction.md)"}
