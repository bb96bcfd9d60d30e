"""Plans the runs: every topology on every medium with every value of a sweep, and their random order."""
import itertools
import json
import random
import re
import subprocess
from dataclasses import dataclass

import cli
from netlab import lab, rate

from . import comparability
from .runs import UsageError, cause

FLAGS = ["workers", "servers", "model", "data", "steps", "dtype", "seed", "batch", "seq", "device", "launch"]
ASK_SECONDS = 30
MEDIUM = "shm"   # unless --medium says otherwise


@dataclass
class Planned:
    """One planned run: its directory's name, its label, its command line without --out. Runs of one label differ only in their seed.
    point: the values of the sweep as given, without the seed."""
    name: str
    label: str
    argv: list
    point: list
    medium: str = None
    bandwidth: str = None
    seed: str = None


def split_values(text):
    """Splits v1,v2 at commas outside of brackets and quotes, so that JSON values stay whole."""
    parts, depth, quoted, at = [], 0, False, ""
    for ch in text:
        quoted ^= ch == '"'
        depth += (ch in "[{") - (ch in "]}") if not quoted else 0
        if ch == "," and depth == 0 and not quoted:
            parts.append(at)
            at = ""
        else:
            at += ch
    return parts + [at]


def sweeps_of(args):
    """The values of each --sweep: [[(key, value), ..], ..]."""
    sweeps = []
    for text in args.sweep:
        key, eq, values = text.partition("=")
        if not eq or not key or not values:
            raise UsageError(f"--sweep {text}: write it as key=v1,v2")
        sweeps.append([(key, v) for v in split_values(values)])
    return sweeps


def command(args, topology, medium, point):
    """The command line of one run, without --out."""
    swept = {key for key, _ in point}
    argv = [args.program, "train"]
    if args.config:
        argv += ["-c", args.config]
    argv += ["--topology", topology]
    for flag in FLAGS:
        value = getattr(args, flag)
        if topology == "local" and flag in ("workers", "servers", "launch"):
            continue  # local is always one process
        if flag == "servers" and not topology.startswith("ps:"):
            continue  # other topologies have no servers
        if flag == "launch" and topology.startswith("ps:"):
            continue  # a star always uses processes
        if value is not None and flag not in swept:
            argv += ["--" + flag, str(value)]
    if medium:
        argv += ["--medium", medium]
    if topology.startswith("ps:"):
        argv += ["--insecure"] if args.insecure else []
    for text in args.set:
        argv += ["--set", text]
    for key, value in point:
        argv += ["--" + key, value] if key in FLAGS else ["--set", f"{key}={value}"]
    return argv


def resolved(args):
    """The configuration as the program resolves it for the first topology; {} if it fails."""
    try:
        p = subprocess.run(command(args, args.topologies[0], None, []) + ["--print-config"], stdin=subprocess.DEVNULL,
                           capture_output=True, timeout=ASK_SECONDS, check=True)
        found = json.loads(p.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return {}
    return found if isinstance(found, dict) else {}


def media(args):
    """The media to run on. [None] leaves the choice to the program: for threads, GPUs, and a configuration that names a medium."""
    if args.medium or args.bandwidth:
        return args.medium or ["tcp"]
    told = args.sweep + args.set
    if args.launch == "threads" or any(text.startswith("medium=") for text in told) or all(t == "local" for t in args.topologies):
        return [None]
    if args.device not in ("cpu", "ref"):
        config = resolved(args)
        if config.get("device") == "cuda" or config.get("medium", "auto") != "auto":
            return [None]
    return [MEDIUM]


def plan(args):
    """[Planned], one per topology, medium and sweep point, in the order given."""
    out, names, chosen = [], set(), media(args)
    for topology in args.topologies:
        alone = topology == "local"  # it uses no medium
        for medium in [None] if alone else chosen:
            for point in itertools.product(*sweeps_of(args)):
                which = f" {medium}" if medium and len(chosen) > 1 else ""
                rest = [(key, value) for key, value in point if key != "seed"]
                seed = dict(point).get("seed")
                label = topology + which + "".join(f" {key.split('.')[-1]}={value}" for key, value in rest)
                full = label + (f" seed={seed}" if seed is not None else "")
                name = re.sub(r"[^A-Za-z0-9_.=]+", "-", full).strip("-")
                if name in names:
                    raise UsageError(f"{full} is asked for twice; --repeat R runs everything R times")
                names.add(name)
                out.append(Planned(name, label, command(args, topology, medium, point), rest, medium,
                                   None if alone else args.bandwidth, seed))
    check(args, out)
    return out


def check(args, planned):
    """Raises UsageError for runs that could only fail, or would compare threads with processes."""
    kinds = {one.label.split(":")[0] for one in planned}
    if args.launch == "threads" and "ps" in kinds and "zero" in kinds and not args.force:
        raise UsageError("--launch threads: a star's roles are processes, so its times are not comparable with those of a "
                         "ring's threads; leave --launch out, or compare anyway with --force")
    if args.bandwidth:
        try:
            rate.parse(args.bandwidth)
            lab.check_possible()
        except (ValueError, lab.LabError) as e:
            raise UsageError(f"--bandwidth {args.bandwidth}: {e}") from None


def schedule(planned, repeats, seed):
    """[(repeat, Planned)]: each repeat runs everything once, in another random order."""
    rng, out = random.Random(seed), []
    for repeat in range(repeats):
        order = list(planned)
        rng.shuffle(order)
        out += [(repeat, one) for one in order]
    return out


def order_in_words(scheduled, seed):
    """The order of the runs, printed before the first one."""
    lines = {}
    for repeat, one in scheduled:
        lines.setdefault(repeat, []).append(one.label + (f" seed={one.seed}" if one.seed is not None else ""))
    return "\n".join([f"order (--order-seed {seed}):"] + [f"  {repeat + 1}: {', '.join(names)}" for repeat, names in lines.items()])


# ---------------------------------------------------------------- the program is asked before the first run trains
def run_quietly(argv):
    """Runs the program to its end. None if it does not end in time: the training run itself will then show why."""
    try:
        return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                              timeout=ASK_SECONDS, check=False, preexec_fn=cli.dies_with_us())
    except subprocess.TimeoutExpired:
        return None
    except OSError as e:
        raise UsageError(f"cannot start {argv[0]}: {e.strerror}; build it with make, or name it with --program") from None


def document(answer):
    """The JSON document that it printed; {} if it printed none."""
    try:
        found = json.loads(answer.stdout) if answer else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def too_large(argv, said):
    """Why the run does not fit the memory; None if it fits."""
    here = said.get("here") or {}
    if here.get("fits", True) or document(run_quietly(argv + ["--print-config"])).get("memory", {}).get("check") == "off":
        return None
    return "\n".join(f"{one['limit']}: {one['predicted_bytes'] / 1e9:.2f} GB predicted + {one['allowed_bytes'] / 1e9:.2f} GB beside "
                     f"that, {one['available_bytes'] / 1e9:.2f} GB left: it does not fit (--set memory.check=off lets it try)"
                     for one in here.get("limits", []) if not one.get("fits", True)) or None


def prediction(argv):
    """(the program's prediction for a command line, None), or ({}, why the program refuses it)."""
    answer = run_quietly(argv + ["--dry-run", "--json"])
    if answer is None:
        return {}, None
    if answer.returncode:
        return {}, cause(answer.stderr)
    found = document(answer)
    return found, (found.get("here") or {}).get("missing") or too_large(argv, found)


def refuse_unaccepted(planned, place, force):
    """Raises UsageError with every planned run that the program would refuse and, unless forced, if the runs are not comparable. Called before
    the first run trains. place: a function that returns a run's directory."""
    refused, predicted = {}, []
    for one in planned:
        found, why = prediction(one.argv + ["--out", place(one)])
        predicted.append((one.label, one.point, found))
        if why:
            refused.setdefault(why, []).append(one.label + (f" seed={one.seed}" if one.seed is not None else ""))
    if refused:
        some = sum(map(len, refused.values()))
        count = f"{some} of {len(planned)} runs" if len(planned) > 1 else "the run"
        raise UsageError("\n".join(f"{', '.join(labels)}: {why}" for why, labels in refused.items())
                         + f"\nnothing was trained: {count} would have failed")
    if not force:
        comparability.refuse_unlike_predictions(predicted)
    return [found for _, _, found in predicted]
