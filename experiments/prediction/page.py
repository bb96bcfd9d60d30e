"""The page of predict.py --html: one offline file with every prediction of a grid. Each combination of choices is a point of the grid,
which was predicted separately, so the page shows exactly the figures of predict.py --json. page.html is its frame; page.js shows the chosen
point."""
import argparse
import concurrent.futures
import functools
import itertools
import json
import math
import multiprocessing
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field

import jinja2

from comparison import figures
from comparison.draw.style import CSS
from comparison.pages.figures import CLASS_WORDS, TIME_COLORS
from comparison.pages.report import OFFLINE
from comparison.runs import CLASSES

from . import CannotPredict, command, compute, machine, network, result
from .grid import grid as simgrid

FOLDER = os.path.dirname(os.path.abspath(__file__))
AXES = ("model", "machine", "network", "straggler", "topology", "workers", "servers")  # page.js numbers the grid's points in this order
PARTS = [(key, words, TIME_COLORS[key]) for key, words in figures.part("time.")]
DIGITS = 9   # significant digits of a time in the page, which shows three
EXPOSED = {"comm_exposed": "exposed"}  # {a time in a run's summary: its name in a prediction}, if they differ


@dataclass(frozen=True)
class Choice:
    """A value of an axis: its name, its text on the page, and the options of predict.py that it sets."""
    name: str
    words: str
    options: dict = field(default_factory=dict)


# Rates of a node, each way; latencies as those of Ethernet and InfiniBand in machines/*.json.
NETWORKS = [
    Choice("own", "the machine's own"),
    Choice("25gbe", "25 Gbit/s Ethernet", {"bandwidth": "25gbit", "latency": "50us"}),
    Choice("100gbe", "100 Gbit/s Ethernet", {"bandwidth": "100gbit", "latency": "50us"}),
    Choice("ib200", "InfiniBand 200 Gbit/s", {"bandwidth": "200gbit", "latency": "20us"}),
    Choice("ib400", "InfiniBand 400 Gbit/s", {"bandwidth": "400gbit", "latency": "20us"}),
    Choice("ib400-fat-tree-1:1", "InfiniBand 400, fat tree 1:1", {"bandwidth": "400gbit", "latency": "20us", "network": "fat_tree:1:1"}),
    Choice("ib400-fat-tree-4:1", "InfiniBand 400, fat tree 4:1", {"bandwidth": "400gbit", "latency": "20us", "network": "fat_tree:4:1"}),
]
STEPS, EFFORT = 12, 0.05   # defaults of --steps and --effort for each prediction of the page
WORKERS, SERVERS = [2, 4, 8, 16, 32, 64], [1, "N/4", "N"]
BATCH = "16"               # a GPU's micro-batch, for which a step's computing takes about as long as its transfers
TOPOLOGIES = ("ps:sync", "ps:async", "zero:0", "zero:1", "zero:2", "zero:3")
ONES = {"models": ["model"], "machines": ["machine"], "networks": ["bandwidth", "latency", "network"], "stragglers": ["straggle", "delay"]}
STRAGGLERS = [
    Choice("none", "none"),
    Choice("one-2x", "one twice as slow", {"straggle": "0:2"}),
    Choice("lognormal", "lognormal, +20%", {"straggle": "*:lognormal:0.2"}),
    Choice("one-lognormal", "one lognormal, +100%", {"straggle": "0:lognormal:1"}),
    Choice("exponential", "exponential, 20 ms", {"delay": "*:exponential:20"}),
]


def seconds(value):
    """The text of a time, as page.js writes it."""
    factor, unit = (1, "s") if value >= 0.9995 else (1e3, "ms") if value >= 0.0009995 else (1e6, "\u00b5s")
    return f"{digits(factor * value)} {unit}"


def digits(value, count=3):
    whole = len(str(int(value))) if value >= 1 else 1
    return f"{float(f'{value:.{count}g}'):,.{max(0, count - whole)}f}"


OPTIONAL = (("staleness", "staleness"), ("limits", "limit"), ("errors", "error"), ("notes", "notes"))   # (table of the page, key of a prediction)


class Table:
    """Documents, referred to by number. Equal ones are stored once: most points have the same memory and texts as others."""

    def __init__(self):
        self.numbers, self.rows = {}, []

    def number(self, row):
        key = json.dumps(row, sort_keys=True)
        if key not in self.numbers:
            self.numbers[key] = len(self.rows)
            self.rows.append(row)
        return self.numbers[key]


class Grid:
    """The predictions of all combinations of axes: {axis: [Choice]}."""

    def __init__(self, axes):
        self.axes = {**axes, "topology": sorted(axes["topology"], key=lambda c: not is_star(c.name))}   # stars and rings separately, as on the page
        self.points, self.tables = [], {name: Table() for name in ("words", "jobs", "memories", "wires", *dict(OPTIONAL))}

    def choices(self):
        """[(numbers of the choice, options that it sets)]. A ring has no servers: it is there once."""
        out = []
        for numbers in itertools.product(*(range(len(self.axes[name])) for name in AXES)):
            choice = {name: self.axes[name][i] for name, i in zip(AXES, numbers)}
            options = {"topology": choice["topology"].name, "workers": int(choice["workers"].name), "servers": None}
            for name in ("model", "machine", "network", "straggler"):
                options |= choice[name].options
            if is_star(options["topology"]):
                options["servers"] = command.servers_of(choice["servers"].name, options["workers"])
            elif numbers[-1]:
                continue
            out.append((numbers, options))
        return out

    def first(self):
        """{axis: the choice that is shown first}. A star and a ring, with the last choice of stragglers; if possible, choices for which the
        star is faster with few workers and the ring with many, or the reverse."""
        names, middle = [c.name for c in self.axes["topology"]], len(self.axes["workers"]) // 2
        rings = [i for i, name in enumerate(names) if not is_star(name)]
        ring = names.index("zero:2") if "zero:2" in names else rings[0] if rings else 0
        opened = {**dict.fromkeys(AXES, 0), "workers": middle, "servers": len(self.axes["servers"]) - 1, "straggler": len(self.axes["straggler"]) - 1, "beside": ring}
        rates = {point[0]: point[4][4] for point in self.points if len(point) > 2 and point[4]}
        stars = [i for i, name in enumerate(names) if is_star(name)]
        for numbers in itertools.product(*(range(len(self.axes[axis])) for axis in ("machine", "model", "network", "servers")), stars):
            choice = {**opened, **dict(zip(("machine", "model", "network", "servers", "topology"), numbers))}
            faster = set()
            for workers in range(len(self.axes["workers"])):
                star, other = (rates.get(self.key([at[axis] for axis in AXES])) for at in (
                    {**choice, "workers": workers}, {**choice, "workers": workers, "topology": ring, "servers": 0}))
                if star and other and abs(star / other - 1) > 0.02:
                    faster.add(star > other)
            if len(faster) > 1:
                return choice
        return opened

    def key(self, numbers):
        key = 0
        for name, i in zip(AXES, numbers):
            key = key * len(self.axes[name]) + i
        return key

    def add(self, numbers, said):
        """Adds a point. said: its prediction (prediction/result.py), or the text of an error."""
        number = {name: table.number for name, table in self.tables.items()}
        if isinstance(said, str):
            self.points.append([self.key(numbers), number["words"](said)])
            return
        times = None
        if said.get("step_seconds"):
            times = [*(said["step_seconds"][q] for q in ("median", "p5", "p95", "p99")), said["tokens_per_second"],
                     *(said["parts"][EXPOSED.get(key, key)] for key, _, _ in PARTS)]
            times = [float(f"{value:.{DIGITS}g}") for value in times]
        job = {key: said["configuration"][key] for key in ("dtype", "micro_batch_size", "seq_len")}
        optional = [number[table](said[key]) if said.get(key) else -1 for table, key in OPTIONAL]
        self.points.append([self.key(numbers), number["jobs"](job), number["memories"](said["memory"]), number["wires"](said["wire"]), times,
                            *optional])

    def document(self, memory_bytes):
        """The JSON document that page.js reads. memory_bytes: {machine: its device's memory, or None}."""
        axes = {name: [{"name": c.name, "words": c.words} for c in self.axes[name]] for name in AXES}
        for device in axes["machine"]:
            device["memory_bytes"] = memory_bytes.get(device["name"])
        for topology in axes["topology"]:
            topology["star"] = is_star(topology["name"])
        return {"axes": axes, "first": self.first(), "classes": [(c, CLASS_WORDS[c], f"m{i}") for i, c in enumerate(CLASSES)],
                "parts": [(EXPOSED.get(key, key), words, css) for key, words, css in PARTS], "points": self.points,
                **{name: table.rows for name, table in self.tables.items()}}


def is_star(topology):
    return topology.startswith("ps:")


def tables(document):
    """[(heading, columns, [(name, cells)])] of the whole grid, for a reader without scripts: a table for each model, machine, network and
    straggler, a row for each topology and number of servers."""
    axes, out = document["axes"], []
    points = {p[0]: p for p in document["points"]}
    sizes = [len(axes[name]) for name in AXES]
    stride = {name: math.prod(sizes[i + 1:]) for i, name in enumerate(AXES)}

    def cell(point):
        if len(point) == 2:
            return "refused"
        worker, *others = sorted(document["memories"][point[2]], key=lambda row: row["role"] != "worker")
        held = " + ".join(f"{row['predicted_bytes'] / 2**30:,.2f}" for row in (worker, *others)) + " GiB"
        return f"{seconds(point[4][0]) if point[4] else 'does not fit'}, {held}"
    for numbers in itertools.product(*(range(size) for size in sizes[:4])):
        base = sum(i * stride[name] for name, i in zip(AXES, numbers))
        rows = []
        for t, s in itertools.product(range(sizes[4]), range(sizes[6])):
            found = [points.get(base + t * stride["topology"] + n * stride["workers"] + s) for n in range(sizes[5])]
            if any(found):
                name = axes["topology"][t]["name"]
                rows.append((name + (f", S = {axes['servers'][s]['name']}" if is_star(name) else ""), [cell(p) if p else "-" for p in found]))
        *where, late = (axes[name][i]["words"] for name, i in zip(AXES, numbers))
        out.append((f"{', '.join(where)}; stragglers: {late}", [n["name"] for n in axes["workers"]], rows))
    return out


def html(document, words, notes):
    """The page as HTML. words: the command; notes: [(name, text)] on the sources of its figures."""
    template = jinja2.Environment(loader=jinja2.FileSystemLoader(FOLDER), autoescape=True, undefined=jinja2.StrictUndefined).get_template("page.html")
    texts = {}
    for name in ("page.css", "page.js"):
        with open(os.path.join(FOLDER, name), encoding="utf-8") as f:
            texts[name] = f.read()
    axes = {name: [(c["name"], c["words"]) for c in document["axes"][name]] for name in AXES}
    inside = json.dumps(document, separators=(",", ":"), ensure_ascii=True).replace("<", "\\u003c")
    stars, rings = ([c for c in axes["topology"] if is_star(c[0]) == star] for star in (True, False))
    return template.render(axes=axes, stars=stars, rings=rings, tables=tables(document), notes=notes, command=words, grid=inside,
                           css=CSS + texts["page.css"], script=texts["page.js"], offline=OFFLINE)


# ---------------------------------------------------------------- the command
def predicted(base, changes):
    """Predicts one point. Returns its document, without times if it does not fit the machine's memory, or the text of an error. base:
    predict.py's options; changes: those of the point's choices."""
    options = argparse.Namespace(**{**vars(base), **changes})
    try:
        for key, value in work_of(command.described_machine(options), options).items():
            setattr(options, key, value)
        described, asked = command.ask(options, options.topology)
        memory = result.memory_of(asked.told)
        if result.fits(described, memory) is False:
            return {"configuration": asked.told, "memory": memory, "wire": result.wire_of(asked.told)}
        return command.predict(options, options.topology)
    except CannotPredict as e:
        return str(e)


def predict_all(grid, base, jobs):
    """Predicts every point, in `jobs` processes. Points with the same options (N/4 servers may be one) are predicted once."""
    choices, began = grid.choices(), time.monotonic()
    keys = [json.dumps(changes, sort_keys=True) for _, changes in choices]
    different = dict(zip(keys, (changes for _, changes in choices)))
    with concurrent.futures.ProcessPoolExecutor(jobs, multiprocessing.get_context("fork"), signal.signal, (signal.SIGINT, signal.SIG_DFL)) as pool:
        found = {}
        for key, said in zip(different, pool.map(functools.partial(predicted, base), different.values(), chunksize=4)):
            found[key] = said
            if len(found) % 200 == 0 or len(found) == len(different):
                print(f"{len(found)} of {len(different)} predictions, {time.monotonic() - began:.0f} s", file=sys.stderr)
    for (numbers, _), key in zip(choices, keys):
        grid.add(numbers, found[key])
    return len(different)


def work_of(described, options):
    """{option: value} for the options of a worker's computing that the command line does not give: those with which the machine's units of
    this model were measured; on a GPU, BATCH sequences of 1,024 tokens in 16 bits."""
    measured = [one for one in described.units or [] if compute.model_of(one["model"]) == compute.model_of(options.model)]
    if measured:
        work = {"dtype": measured[0]["dtype"], "seq": str(int(measured[0]["seq_len"])), "batch": str(int(measured[0]["micro_batch_size"]))}
    else:
        gpu = (described.device or {}).get("kind") == "gpu"
        work = {"dtype": "bf16" if gpu else "fp32", "seq": "1024", **({"batch": BATCH} if gpu else {})}
    return {key: value for key, value in work.items() if getattr(options, key) is None}


def machines_of(names, given):
    """[(Choice, Machine)] for a list of NAME or FILE, each perhaps with :D for D devices per node."""
    out = []
    for name in names:
        match = re.fullmatch(r"(.+):(\d+)", name)
        per_node = int(match[2]) if match else given.per_node
        described = machine.changed(machine.load(match[1] if match else name), per_node=per_node)
        shown = described.name + (f":{per_node}" if match else "")
        words = f"{described.name}, {described.per_node} device{'s' * (described.per_node > 1)} a node"
        out.append((Choice(shown, words, {"machine": described.path, "per_node": per_node}), described))
    return out


def axes_of(given, machines):
    """{axis: [Choice]}. machines: from machines_of(). An option of predict.py with a single value (--model, --straggle ..) gives an axis
    with that value only."""
    defaults = {flag[2:]: default for flag, default, _ in command.LISTS}

    def names(listed, one=None):
        return [one] if one else (getattr(given, listed) or defaults[listed]).split(",")

    def of(known, listed):
        by_name = {choice.name: choice for choice in known}
        for name in names(listed):
            if name not in by_name:
                raise CannotPredict(f"--{listed} {name}: possible are {', '.join(by_name)}")
        return [by_name[name] for name in names(listed)]

    def given_for(*options):
        return {key: getattr(given, key) for key in options if getattr(given, key)}
    wire, late = given_for("latency", "network"), given_for("straggle", "delay")
    if given.bandwidth or wire:
        networks = [Choice(" ".join([rate or "own", *wire.values()]), ", ".join([rate or "the machine's own", *wire.values()]),
                           {**wire, "bandwidth": rate or None}) for rate in (given.bandwidth or "").split(",")]
    else:
        networks = of(NETWORKS, "networks")
    return {
        "model": [Choice(os.path.basename(m.rstrip("/")), os.path.basename(m.rstrip("/")), {"model": m}) for m in names("models", given.model)],
        "machine": [choice for choice, _ in machines],
        "network": networks,
        "straggler": [Choice("given", ", ".join(late.values()), late)] if late else of(STRAGGLERS, "stragglers"),
        "topology": [Choice(t, t) for t in given.topology or TOPOLOGIES],
        "workers": [Choice(str(n), str(n)) for n in command.each(given.workers or WORKERS)],
        "servers": [Choice(str(s), of_workers(str(s))) for s in command.each(given.servers or SERVERS)]}


def of_workers(servers):
    """The text of a number of servers."""
    share = command.OF_WORKERS.fullmatch(servers)
    return servers if not share else f"{servers}, one for {share[1]}" if share[1] else f"{servers}, one each"


def notes_of(grid, machines, base):
    """[(name, words)]"""
    simulated = f"up to {base.steps} steps of each, drawn from seed {base.seed}, --effort {base.effort:g}, with SimGrid {simgrid().version}"
    out = [("Made", time.strftime("%Y-%m-%d")), ("Program", version_of(base.program)), ("Simulated", simulated), ("Predictions", f"{len(grid.points):,}")]
    out += [("Straggler", f"{choice.words}: " + " ".join(f"--{key} {value}" for key, value in choice.options.items())) for choice in grid.axes["straggler"] if choice.options]
    for described in {m.name: m for _, m in machines}.values():
        said = [described.told.get("date"), described.told.get("notes"), *(f"{key}: {words}" for key, words in (described.told.get("sources") or {}).items())]
        out.append((described.name, "; ".join(filter(None, said)) or described.path))
    return out


def version_of(program):
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout.strip().splitlines()[0]


def run(parser, argv):
    """predict.py --html FILE: predicts the grid and writes the page. Returns the exit status."""
    base, given = parser.parse_args(argv), parser.parse_args(argv, argparse.Namespace(workers=None, steps=None, effort=None))
    base.steps, base.effort = given.steps or STEPS, given.effort or EFFORT
    try:
        command.check_more(given)
        alone = [flag for flag in ("json", "calibrate", "judge") if getattr(given, flag)]
        if alone:
            raise CannotPredict(f"--html and --{alone[0]}: give one of them")
        for listed, ones in ONES.items():
            for one in ones:
                if getattr(given, listed) and getattr(given, one):
                    raise CannotPredict(f"--{listed} and --{one}: give one of them")
        machines = machines_of([given.machine] if given.machine else (given.machines or command.LISTS[1][1]).split(","), given)
        grid = Grid(axes_of(given, machines))
        open(base.html, "a", encoding="utf-8").close()   # an error of the output file is reported before minutes of work
        count = predict_all(grid, base, len(os.sched_getaffinity(0)))
        if all(len(point) == 2 for point in grid.points):
            raise CannotPredict(f"none of {len(grid.points)} choices can be predicted: {grid.tables['words'].rows[0]}")
    except (CannotPredict, OSError) as e:
        print(f"predict.py: error: {e}", file=sys.stderr)
        return 2
    rooms = {choice.name: described.device and described.device.get("memory_bytes") for choice, described in machines}
    words = shlex.join([os.path.join("experiments", "predict.py"), *argv])
    page = html(grid.document(rooms), words, notes_of(grid, machines, base))
    with open(base.html, "w", encoding="utf-8") as f:
        f.write(page)
    print(f"{base.html}: {count:,} predictions of {len(grid.points):,} choices, {len(page.encode()) / 1e6:.1f} MB; open it in a browser")
    return 0
