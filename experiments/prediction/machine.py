"""Reads the JSON file that describes a machine: devices, nodes, network, and times that were measured on it.

    name, date, sources   what it is; where each figure is from (a URL, or the command that measured it)
    device                kind gpu|cpu, memory_bytes, memory_bytes_per_second, flops_per_second {bf16, fp16, fp32}: peaks;
                          efficiency {product, memory}: the share of the peaks that is reached; host_link_bytes_per_second,
                          disk_bytes_per_second: of offloaded state
    units                 measured times, which are used instead of the device's peaks, of one model or a list of them: model, dtype, micro_batch_size,
                          seq_len, threads, seconds {unit or its kind: {forward, backward}}, update_seconds_per_element, begin_seconds (of the
                          host, at a step's begin), spread (of a step's computing: standard deviation / mean, 0 if left out)
    cores                 count; ranks_share: "node" (or true): the ranks of a node share its cores; "job": all ranks and servers share them, as in
                          a lab; transport_seconds_per_byte and _per_message: of a core, for both ends of a message; waiting_share: of a
                          core that a rank of a ring uses while it polls for a transfer, as over MPI; crowding: by how much computing takes longer
                          than its share of the cores while more threads compute than there are cores
    node                  devices, bytes_per_second (each way, of a device to others of its node), latency_seconds
    network               kind switch|fat_tree|dragonfly|torus, bytes_per_second (of a node, each way), links_per_node, latency_seconds (one
                          way below one switch), oversubscription, efficiency (payload / rate), per_message_seconds, burst_seconds (a shaped link's
                          token bucket: so many seconds of its rate pass at once after it was idle);
                          exchange {bytes: {ranks: {bytes_per_second: share}}}: of the rate, that so many ranks reach which all send to each other
    server                what a star's server does with bytes: sum_bytes_per_second, update_elements_per_second, reply_seconds
                          (of the thread, per answer), answer_latency_seconds (of each answer, while the thread goes on)

Seconds, bytes and flops are plain numbers. `load` finds a file or a name of machines/; `changed` applies --bandwidth, --latency, --network
and --per-node; each refuses with a CannotPredict that names the file and the key.
"""
import copy
import json
import math
import os
import re
from dataclasses import dataclass

import regular
from netlab import rate

from . import CannotPredict

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "machines")
KINDS = ("switch", "fat_tree", "dragonfly", "torus")
BYTES_PER_SECOND = {"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}
OF_A_SECOND = {"s": 1, "ms": 1e3, "us": 1e6, "µs": 1e6, "ns": 1e9}

# The keys of each section. A number is at least `least`: ("number", least, default), or a "count", which is whole, or a "share", at most 1;
# ("words", possible or None);
# ("map", keys of each level: their names, or "number" for numbers above 0; the least value).
POSITIVE = 1e-300
NUMBERS = ("number", "count", "share")
DTYPES = ("bf16", "fp16", "fp32")
SECTIONS = {
    "device": {"kind": ("words", ("gpu", "cpu")), "memory_bytes": ("number", 0, None), "memory_bytes_per_second": ("number", POSITIVE, None),
               "flops_per_second": ("map", (DTYPES,), POSITIVE), "efficiency": ("map", (("product", "memory"),), POSITIVE, "share"), "host_link_bytes_per_second": ("number", POSITIVE, None),
               "disk_bytes_per_second": ("number", POSITIVE, None)},
    "units": {"model": ("words", None), "dtype": ("words", None), "micro_batch_size": ("count", 1, None), "seq_len": ("count", 1, None),
              "threads": ("count", 1, 1), "seconds": ("map", (None, ("forward", "backward")), 0), "update_seconds_per_element": ("number", 0, None), "begin_seconds": ("number", 0, 0),
              "spread": ("number", 0, 0)},
    "cores": {"count": ("number", 1, None), "ranks_share": ("any",), "transport_seconds_per_byte": ("number", 0, 0),
              "transport_seconds_per_message": ("number", 0, 0), "waiting_share": ("share", 0, 0),
              "crowding": ("number", 1, 1)},
    "node": {"devices": ("count", 1, 1), "bytes_per_second": ("number", POSITIVE, None), "latency_seconds": ("number", 0, 0)},
    "network": {"kind": ("words", KINDS), "bytes_per_second": ("number", POSITIVE, None), "links_per_node": ("count", 1, 1),
                "latency_seconds": ("number", 0, 0), "oversubscription": ("number", 1, 1), "efficiency": ("share", POSITIVE, 1),
                "per_message_seconds": ("number", 0, 0), "burst_seconds": ("number", 0, 0),
                "share_spread": ("number", 0, 0), "exchange": ("map", ("number",) * 3, POSITIVE, "share")},
    "server": {"sum_bytes_per_second": ("number", POSITIVE, None), "update_elements_per_second": ("number", POSITIVE, None),
               "reply_seconds": ("number", 0, 0), "answer_latency_seconds": ("number", 0, 0)},
}
REQUIRED = {"node": ("bytes_per_second",), "network": ("kind", "bytes_per_second"), "cores": ("count",),
            "units": ("model", "dtype", "micro_batch_size", "seq_len", "seconds")}
OTHERS = ("name", "date", "sources", "notes")


@dataclass(frozen=True)
class Machine:
    """A machine. told: the checked JSON of its file, with defaults filled in; an optional section without a value is None; units is a
    list."""
    told: dict
    path: str

    def __getattr__(self, name):
        if name in SECTIONS:
            return self.told.get(name)
        raise AttributeError(name)

    @property
    def name(self):
        return self.told["name"]

    @property
    def per_node(self):
        return int(self.node["devices"])

    @property
    def rate(self):
        """Payload bytes per second of a node's network, each way."""
        return self.network["bytes_per_second"] * self.network["efficiency"]

    def stretch(self, ranks, size):
        """The factor by which an exchange of `size` bytes between `ranks` ranks is slower than between two, from network.exchange. Sizes,
        ranks and rates are interpolated on a logarithmic scale; outside the table its nearest end counts."""
        if not self.network.get("exchange") or ranks <= 2 or size <= 0:
            return 1.0
        two = self.network["efficiency"]

        def of_size(by_ranks):
            return interpolated({2: two, **{count: interpolated(by_rate, self.network["bytes_per_second"]) for count, by_rate in by_ranks.items()}}, ranks)
        return max(1.0, two / interpolated({one: of_size(by_ranks) for one, by_ranks in self.network["exchange"].items()}, size))

    @property
    def threads(self):
        """The number of threads with which a rank's computing was measured."""
        return self.units[0]["threads"] if self.units else 1

    def cores_of(self, node):
        """The number of the set of cores that this node's ranks share; None: ranks do not compete for cores."""
        share = self.cores and self.cores.get("ranks_share")
        return None if not share else 0 if share == "job" else node


def interpolated(table, at):
    """Interpolates {number: value} at `at` on a logarithmic scale; outside the table its nearest end counts."""
    points, x = sorted((math.log(float(number)), value) for number, value in table.items()), math.log(at)
    for (x0, y0), (x1, y1) in zip(points, points[1:]):
        if x <= x1:
            return y0 + (y1 - y0) * max(0.0, x - x0) / (x1 - x0)
    return points[-1][1]


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value and abs(value) != float("inf")


def check_value(where, rule, value):
    if rule[0] in NUMBERS and not (is_number(value) and value >= rule[1] and (rule[0] != "count" or value == int(value)) and (rule[0] != "share" or value <= 1)):
        raise CannotPredict(f"{where}: {json.dumps(value)}: expected a {'whole ' * (rule[0] == 'count')}number"
                            f"{' above 0' if rule[1] == POSITIVE else f', at least {rule[1]:g}'}{', at most 1' * (rule[0] == 'share')}")
    if rule[0] == "words" and not isinstance(value, str):
        raise CannotPredict(f"{where}: {json.dumps(value)}: expected a text")
    if rule[0] == "words" and rule[1] and value not in rule[1]:
        raise CannotPredict(f"{where}: \"{value}\": possible are {', '.join(rule[1])}")
    if rule[0] == "map":
        check_map(where, value, *rule[1:])


def check_map(where, value, levels, least, kind="number"):
    """Checks an object of numbers of this kind, or of objects of the further levels."""
    if not isinstance(value, dict) or not value:
        raise CannotPredict(f"{where}: {json.dumps(value)}: expected an object of {'objects' if levels[1:] else 'numbers'}")
    for key, inside in value.items():
        if levels[0] == "number" and not (re.fullmatch(r"\d+(\.\d+)?(e\d{1,2})?", key) and float(key) > 0):
            raise CannotPredict(f"{where}: {json.dumps(key)}: expected a number above 0 in quotes")
        if isinstance(levels[0], tuple) and key not in levels[0]:
            raise CannotPredict(f"{where}.{key}: unknown; possible are {', '.join(levels[0])}")
        if levels[1:]:
            check_map(f"{where}.{key}", inside, levels[1:], least, kind)
        else:
            check_value(f"{where}.{key}", (kind, least), inside)


def check_section(where, section, value):
    """Checks a section, and fills in defaults."""
    rules = SECTIONS[section]
    if not isinstance(value, dict):
        raise CannotPredict(f"{where}: expected an object")
    for key, given in value.items():
        if key not in rules:
            raise CannotPredict(f"{where}.{key}: unknown; possible are {', '.join(rules)}")
        if given is not None:
            check_value(f"{where}.{key}", rules[key], given)
    for key in REQUIRED.get(section, ()):
        if value.get(key) is None:
            raise CannotPredict(f"{where}.{key} is missing")
    for key, rule in rules.items():
        if rule[0] in NUMBERS and value.get(key) is None:
            value[key] = rule[2]


def checked(told, path):
    """The Machine of a file's JSON."""
    if not isinstance(told, dict):
        raise CannotPredict(f"{path}: expected an object: docs/predicting.md describes a machine file")
    told = copy.deepcopy(told)
    told.setdefault("name", os.path.splitext(os.path.basename(path))[0])
    for key in told:
        if key not in SECTIONS and key not in OTHERS:
            raise CannotPredict(f"{path}: {key}: unknown; a machine has {', '.join((*OTHERS, *SECTIONS))}")
    for key in OTHERS:
        texts = told.get(key) or ""
        texts = texts.values() if key == "sources" and isinstance(texts, dict) else [texts]
        if not all(isinstance(text, str) for text in texts):
            raise CannotPredict(f"{path}: {key}: expected {'an object of texts' if key == 'sources' else 'a text'}")
    for section in SECTIONS:
        value = told.get(section)
        if value is None:
            if section in ("node", "network"):
                raise CannotPredict(f"{path}: {section} is missing")
            told[section] = None
            continue
        if section == "units":
            told[section] = value = value if isinstance(value, list) else [value]
            if not value:
                raise CannotPredict(f"{path}: units: the list is empty")
            for i, one in enumerate(value):
                check_section(f"{path}: units[{i}]" if len(value) > 1 else f"{path}: units", section, one)
        else:
            check_section(f"{path}: {section}", section, value)
    if told["units"] is None and told["device"] is None:
        raise CannotPredict(f"{path}: neither units (measured times) nor device (peaks): computing takes an unknown time")
    share = told["cores"] and told["cores"].get("ranks_share")
    if share not in (None, True, False, "node", "job"):
        raise CannotPredict(f"{path}: cores.ranks_share: {json.dumps(share)}: possible are true, false, \"node\", \"job\"")
    return Machine(told, path)


def names():
    return sorted(name[:-5] for name in os.listdir(FOLDER) if name.endswith(".json")) if os.path.isdir(FOLDER) else []


def load(name):
    """The Machine of a file's path, or of a name in machines/."""
    path = name
    if not os.path.exists(path):
        path = os.path.join(FOLDER, name + ".json")
        if os.sep in name or name not in names():
            raise CannotPredict(f"machine \"{name}\" is neither a file nor one of {', '.join(names()) or 'the described ones (there are none)'}; "
                                "--calibrate FILE writes this machine's")
    try:
        with regular.open_file(path, limit=1 << 20, encoding="utf-8") as f:
            told = json.load(f)
    except OSError as e:
        raise CannotPredict(f"{path}: {e.strerror}") from None
    except (ValueError, RecursionError) as e:
        raise CannotPredict(f"{path}: no JSON: {e}") from None
    return checked(told, path)


def bytes_per_second(words):
    """Parses a rate: "10gbit" or "1.6Tbit/s" (bits), "900GB/s" (bytes; /s is required)."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]b)/s\s*", words, re.I)
    if match and match.group(2)[1] == "B":
        number = float(match.group(1)) * BYTES_PER_SECOND[match.group(2).lower()]
        if number <= 0:
            raise CannotPredict(f"--bandwidth {words!r}: expected more than 0")
        return number
    try:
        return rate.parse(words, most=1e15) / 8
    except ValueError:
        raise CannotPredict(f"--bandwidth {words!r}: expected a bandwidth from 1Mbit to 1000Tbit, as 10Gbit, 1.6Tbit or, in bytes, 50GB/s") from None


def seconds(words):
    """Parses a time: "5us", "0.5ms"."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|ms|us|µs|ns)\s*", words)
    if not match:
        raise CannotPredict(f"--latency {words!r}: expected a time with its unit, as 5us, 0.5ms or 800ns")
    return float(match.group(1)) / OF_A_SECOND[match.group(2)]


def changed(machine, bandwidth=None, latency=None, network=None, per_node=None):
    """The machine with values of the command line instead of its own: --bandwidth (of a node, each way; its efficiency stays), --latency,
    --network KIND[:DOWN:UP] (fat_tree:4:1: four times as many links down as up), --per-node (the number of devices in use)."""
    told = copy.deepcopy(machine.told)
    if per_node is not None:
        if per_node < 1:
            raise CannotPredict("--per-node: at least 1 device")
        links, devices = told["network"]["links_per_node"], told["node"]["devices"]
        if per_node < devices:   # the links of an unused device are unused too
            used = math.ceil(links * per_node / devices)
            told["network"]["bytes_per_second"] *= used / links
            told["network"]["links_per_node"] = used
        told["node"]["devices"] = per_node
    if bandwidth is not None:
        told["network"]["bytes_per_second"] = bytes_per_second(bandwidth)
    if latency is not None:
        told["network"]["latency_seconds"] = seconds(latency)
    if network is not None:
        kind, *ratio = network.split(":")
        if kind not in KINDS:
            raise CannotPredict(f"--network {network}: possible are {', '.join(KINDS)}; fat_tree:4:1 is a fat tree with four times as many links "
                                "down as up")
        if ratio and (kind != "fat_tree" or len(ratio) > 2 or not all(re.fullmatch(r"\d+", part) and int(part) > 0 for part in ratio)):
            raise CannotPredict(f"--network {network}: only fat_tree has a ratio, of whole numbers above 0, as fat_tree:4:1")
        told["network"]["kind"] = kind
        parts = [int(part) for part in ratio] or [1]
        told["network"]["oversubscription"] = max(parts) / (min(parts) if len(parts) > 1 else 1)
    return checked(told, machine.path)
