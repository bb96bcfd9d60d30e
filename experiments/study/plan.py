"""Reads a study's JSON file, makes the runs from its rows, conditions and seeds, and finds the runs that an earlier start has finished."""
import hashlib
import json
import math
import os
import re
from dataclasses import dataclass, field, replace

import regular
from comparison.execute import execute
from comparison.plan import Planned
from comparison.runs import RunError, UsageError, load

MADE = "command.json"    # in a run's directory: the command, the configuration and the build of the program that made it
BASE = "base.json"       # in the study's directory: the configuration that all runs share
BEGIN = {"topology": str, "steps": int}  # the keys of a row's first stage
KEYS = {"title": str, "question": str, "config": dict, "rows": list, "conditions": list, "seeds": list, "reference": str,
        "target_loss": (int, float), "picture": list, "figures": list}


@dataclass(frozen=True)
class Part:
    """A row or a condition: its name, and the settings that it adds, {key: value}. A row also has its topology and, if its first steps are
    trained by another topology, `begin` {"topology", "steps"}: the row resumes from the checkpoint after these steps."""
    name: str
    settings: dict
    topology: str = None
    begin: dict = None


@dataclass
class Staged(Planned):
    """A run that may have two stages. first: the command line of the first stage, which trains in the same folder; []: it has none."""
    first: list = field(default_factory=list)

    def said(self):
        """The arguments that identify the run."""
        return self.argv[1:] + self.first[1:]


@dataclass
class Study:
    """A study's file. reference: the name of the row that gives the target loss. picture: the x axes of the curves. figures: those of
    the printed tables; []: all."""
    title: str
    config: dict
    rows: list
    conditions: list
    seeds: list
    reference: str
    target_loss: float = None
    picture: list = field(default_factory=lambda: ["samples", "seconds"])
    question: str = ""
    figures: list = field(default_factory=list)


def fits_begin(found):
    """Whether this JSON value is valid as a row's "begin"; None is valid too."""
    return found is None or (isinstance(found, dict) and set(found) == set(BEGIN)
                             and all(isinstance(value, BEGIN[key]) for key, value in found.items()))


def parts_of(found, what, keys):
    """Reads a list of rows or conditions: [Part]. UsageError names the entry that is wrong."""
    out = []
    for entry in found:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or set(entry) - set(keys) or not isinstance(
                entry.get("settings", {}), dict) or ("topology" in keys and not isinstance(entry.get("topology"), str)) or not fits_begin(
                    entry.get("begin")):
            raise UsageError(f"{what}: {json.dumps(entry)}: expected an object with {', '.join(keys)}")
        out.append(Part(entry["name"], entry.get("settings", {}), entry.get("topology"), entry.get("begin")))
    for part in out:
        if not file_name(part.name).strip("."):
            raise UsageError(f"{what}: {json.dumps(part.name)}: a folder gets this name: expected letters or digits in it")
    names = [part.name for part in out]
    if not out or len(set(names)) < len(names):
        raise UsageError(f"{what}: each needs a name of its own, and there must be one at least: {', '.join(names) or 'none'}")
    return out


def seeds_of(found, what):
    """Checks and returns the list of seeds; raises UsageError."""
    if not found or not all(isinstance(s, int) and not isinstance(s, bool) and s >= 0 for s in found) or len(set(found)) < len(found):
        raise UsageError(f"{what}: expected different whole numbers from 0 on")
    return found


def target_of(found, what):
    """Checks and returns the target loss, or None if there is none; raises UsageError."""
    if found is not None and (isinstance(found, bool) or not math.isfinite(found)):
        raise UsageError(f"{what}: expected a number")
    return found


def read(path):
    """The Study of a file; UsageError says what is wrong with it."""
    try:
        with regular.open_file(path, limit=regular.WHOLE, encoding="utf-8") as f:
            found = json.load(f)
    except OSError as e:
        raise UsageError(f"{path}: {e.strerror}") from None
    except ValueError as e:
        raise UsageError(f"{path}: no JSON: {e}") from None
    if not isinstance(found, dict) or "rows" not in found:
        raise UsageError(f"{path}: a study is an object with \"rows\": see experiments/studies")
    for key, value in found.items():
        if key not in KEYS or not isinstance(value, KEYS[key]):
            raise UsageError(f"{path}: {key}: {'unknown' if key not in KEYS else 'of a wrong type'}; a study has {', '.join(KEYS)}")
    rows = parts_of(found["rows"], f"{path}: rows", ("name", "topology", "settings", "begin"))
    conditions = parts_of(found.get("conditions") or [{"name": "undisturbed"}], f"{path}: conditions", ("name", "settings"))
    seeds = seeds_of(found.get("seeds", [1, 2, 3]), f"{path}: seeds")
    reference = found.get("reference", rows[0].name)
    if reference not in [row.name for row in rows]:
        raise UsageError(f"{path}: reference: there is no row {reference}")
    study = Study(found.get("title", os.path.basename(path)), found.get("config", {}), rows, conditions, seeds, reference,
                  target_of(found.get("target_loss"), f"{path}: target_loss"), question=found.get("question", ""))
    study.picture, study.figures = found.get("picture", study.picture), found.get("figures", [])
    return study


def chosen(parts, names, what):
    """The rows or conditions that a list such as "a,b" names; all if there is no list."""
    wanted = [name for name in (names or "").split(",") if name]
    unknown = [name for name in wanted if name not in [part.name for part in parts]]
    if unknown:
        raise UsageError(f"--{what} {unknown[0]}: the study has {', '.join(part.name for part in parts)}")
    return [part for part in parts if not wanted or part.name in wanted]


def file_name(text):
    return re.sub(r"[^A-Za-z0-9_.=]+", "-", text).strip("-")


def command_of(program, base, topology, seed, settings):
    argv = [program, "train", "-c", base, "--topology", topology, "--seed", str(seed), "--no-weights"]
    for key, value in settings.items():
        argv += ["--set", f"{key}={value if isinstance(value, str) else json.dumps(value)}"]
    return argv


def planned_of(study, program, base):
    """[(condition, row, Staged)]: one run per seed, condition and row."""
    out, names = [], set()
    for seed in study.seeds:
        for condition in study.conditions:
            for row in study.rows:
                settings, begin, first = {**condition.settings, **row.settings}, row.begin, []
                argv = command_of(program, base, row.topology, seed, settings)
                if begin:
                    first = command_of(program, base, begin["topology"], seed, settings)
                    first += ["--steps", str(begin["steps"]), "--checkpoint-every", str(begin["steps"])]
                name = f"{file_name(condition.name)}/{file_name(row.name)}.seed{seed}"
                if name in names:
                    raise UsageError(f"{name}: two runs would have this folder; give rows and conditions names of other letters")
                names.add(name)
                label = row.name if len(study.conditions) == 1 else f"{row.name}, {condition.name}"
                out.append((condition, row, Staged(name, label, argv, [], seed=str(seed), first=first)))
    return out


def version_of(program):
    """The program's hash: runs of another build are repeated."""
    try:
        with regular.open_file(program, "rb") as f:
            return hashlib.sha256(f.read()).hexdigest()
    except OSError as e:
        raise UsageError(f"{program}: {e.strerror}; build it with make, or name it with --program") from None


def made_by(directory):
    """{argv, config, version, seconds} of a finished run; {} if the directory has none."""
    try:
        with regular.open_file(os.path.join(directory, MADE), limit=regular.WHOLE, encoding="utf-8") as f:
            found = json.load(f)
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}


def read_back(planned, directory, config, version):
    """The finished run in the directory; None if there is none, or if its command, configuration or version differ (version None: any)."""
    made = made_by(directory)
    if (made.get("argv"), made.get("config")) != (planned.said(), config) or version not in (None, made.get("version")):
        return None
    try:
        run = load(planned.name, directory)
    except RunError:
        return None
    run.label, run.command, run.wall_seconds = planned.label, planned.argv + ["--out", directory], made.get("seconds")
    return run


def train(planned, directory, config, limit, version):
    """Trains a run, and then writes MADE into its folder, which marks it as finished."""
    first = execute(replace(planned, argv=planned.first), planned.name, directory, limit).wall_seconds if planned.first else 0
    run = execute(planned, planned.name, directory, limit, resumes=bool(planned.first))
    run.wall_seconds += first
    with open(os.path.join(directory, MADE), "w", encoding="utf-8") as f:
        json.dump({"argv": planned.said(), "config": config, "version": version, "seconds": round(run.wall_seconds, 3)}, f)
    return run
