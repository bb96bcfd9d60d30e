"""Parses predict.py's command line, and predicts one row of its table.

`parser()` parses the options; `predict(options, topology)` returns the document of one prediction (result.py). Both report errors as
CannotPredict, and errors of the command line as argparse does.
"""
import argparse
import itertools
import json
import re
import sys

import cli
from program import built

from . import CannotPredict, dryrun, machine   # modules that need packages are imported where they are used, so that --help works without the packages

STEPS = 720720   # steps of the dry run. No prediction depends on the number; every number of local steps up to 16 divides it
# Options of `starring train`, such as --batch, which are passed to it. The program checks their values.
PASSED = (("--model", "M", "as of `starring train`: a preset, a config.json, a directory"), ("--batch", "B", "sequences per micro-batch and worker"),
          ("--seq", "T", "tokens per sequence"), ("--dtype", "D", "fp32, bf16 or fp16"), ("--device", "D", "default: the machine's kind"),
          ("--straggle", "RANK:FACTOR[:P]", "slow ranks, as `starring help trouble` describes them (* is each rank)"),
          ("--delay", "RANK:DISTRIBUTION:MS", "a rank computes longer in each step"))

# Lists for the choices on the page of --html: (option, its default, its meaning). The options that give several rows without --html,
# repeated or with commas, are choices too.
LISTS = (("--models", "gpt2-124m,gpt2-1558m", "as --model"), ("--machines", "dgx-h100:1", "as --machine, or with :D for D devices a node"),
         ("--networks", "25gbe,ib400", "also own (the machine's), 100gbe, ib200, ib400-fat-tree-1:1, ib400-fat-tree-4:1"),
         ("--stragglers", "none,one-2x,lognormal", "also one-lognormal, exponential"))
OF_WORKERS = re.compile("N(?:/([1-9][0-9]*))?")   # --servers N: as many as workers; N/4: one per four workers


def counts(words, also=None):
    """A type of argparse: a number, or a list with commas, which gives a row per number. Values that `also` matches are kept as text."""
    found = [word if also and also.fullmatch(word) else cli.count(word) for word in words.split(",")]
    return found[0] if len(found) == 1 else found


def servers(words):
    return counts(words, OF_WORKERS)


def servers_of(asked, workers):
    """The number of servers for a value of --servers: a number, N, or N/4, which is at least one."""
    share = OF_WORKERS.fullmatch(str(asked))
    return max(1, workers // int(share[1] or 1)) if share else int(asked)


def each(value):
    return value if isinstance(value, list) else [value]


def parser(about):
    ap = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    ap.add_argument("--topology", metavar="T", action="append", help="zero:0-3, gossip, local, ps:sync ..; repeat it for a row each")
    ap.add_argument("--workers", metavar="N[,N..]", type=counts, default=2, help="ranks that compute (default %(default)s); several: rows for each")
    ap.add_argument("--servers", metavar="S[,S..]", type=servers, help="a star's servers; several: rows for each; N: as many as workers; N/4: one for four")
    for flag, metavar, words in PASSED:
        ap.add_argument(flag, metavar=metavar, help=words)
    ap.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="any configuration key of the program; repeatable")
    ap.add_argument("-c", "--config", metavar="FILE", help="configuration, as of `starring train`")
    ap.add_argument("--machine", metavar="NAME|FILE", help=f"a machine file, or one of {', '.join(machine.names()) or '(none is described)'}")
    ap.add_argument("--bandwidth", metavar="RATE[,RATE..]",
                    help="of a node's network, each way, in place of the machine's: 10Gbit, 1.6Tbit, 50GB/s; several: rows for each")
    ap.add_argument("--latency", metavar="TIME", help="one way below one switch: 5us")
    ap.add_argument("--network", metavar="KIND", help="switch, fat_tree[:DOWN:UP], dragonfly, torus; fat_tree:4:1 has a quarter of the links up")
    ap.add_argument("--per-node", metavar="N", type=cli.count, help="devices of a node that are used")
    ap.add_argument("--steps", metavar="N", type=cli.count, default=200, help="steps that are simulated where they differ (default %(default)s)")
    ap.add_argument("--seed", metavar="N", type=int, default=1, help="of what is drawn (default %(default)s)")
    ap.add_argument("--effort", metavar="X", type=cli.above_zero, default=1.0, help="how many flows and messages are simulated one by one, in proportion to the usual; "
                    "of more, equal ones together: 0.05 is quick and coarse")
    ap.add_argument("--json", action="store_true", help="print the documents of all rows as one JSON array")
    ap.add_argument("--program", metavar="FILE", default=built())
    ap.add_argument("--calibrate", metavar="FILE", help="measure this machine, as root, for some minutes, and write its machine file: of the judged models, or of "
                    "--model with --batch, --seq and --dtype")
    ap.add_argument("--judge", metavar="FILE", help="train what FILE lacks of the judged runs, as root, predict them with --machine, print and keep the errors")
    ap.add_argument("--published", action="store_true", help="predict what others have published of their machines, and print it beside")
    ap.add_argument("--again", action="store_true", help="with --judge: measure nothing, predict FILE's runs again")
    page = ap.add_argument_group("the page", "One offline file that chooses among the predictions of all combinations of these, and of the rows' options above; "
                                 "with one of those left out, of a few common values. --steps is 12 and --effort 0.05 unless given.")
    page.add_argument("--html", metavar="FILE", help="write the page")
    for flag, default, words in LISTS:
        page.add_argument(flag, metavar="A,B", help=f"{words} (default {default})")
    ap.add_argument("more", nargs="*", metavar="-- OPTIONS", help="of `starring train`, for all rows")
    return ap


def words_of(options, topology, described):
    """The arguments of `starring train` for one row."""
    words = ["--topology", topology, "--workers", str(1 if topology == "local" else options.workers), "--steps", str(STEPS)]
    if options.config:
        words += ["-c", options.config]
    if topology.startswith("ps:") and options.servers:
        words += ["--servers", str(options.servers)]
    device = (described.device or {}).get("kind", "cpu")
    given = vars(options)
    for flag, _, _ in PASSED:
        value = given[flag[2:]]
        if value is None and flag == "--device":
            value = {"gpu": "cuda"}.get(device, device)
        if value is not None:
            words += [flag, value]
    # Between machines there is no shared memory. A ring of GPUs uses NCCL with any medium.
    apart = topology != "local" and options.workers > described.per_node
    if apart and (topology.startswith("ps:") or device == "cpu") and "--medium" not in options.more:
        words += ["--medium", "tcp"]
    for item in options.set:
        words += ["--set", item]
    return words + options.more


def straggler_of(options):
    found = [f"{flag} {value}" for flag, value in (("--straggle", options.straggle), ("--delay", options.delay)) if value]
    return " ".join(found) or None


def described_machine(options):
    if not options.machine:
        raise CannotPredict("--machine is missing: a machine file, or one of " + (", ".join(machine.names()) or "(none is described)"))
    return machine.changed(machine.load(options.machine), options.bandwidth, options.latency, options.network, options.per_node)


def executor_of(topology):
    if topology.startswith("ps:"):
        from . import star
        return star.execute
    from . import ring
    return ring.execute


def judged(asked):
    """The error of similar predictions, as measured by --judge; None if no similar run was judged."""
    try:
        from . import judge
    except ImportError:
        return None
    return judge.error_of(asked)


def ask(options, topology):
    """(the machine, the program's dry run) of one row. Needs no package."""
    described = described_machine(options)
    return described, dryrun.ask(options.program, words_of(options, topology, described))


def predict(options, topology):
    """The document of one row."""
    from . import result
    described, asked = ask(options, topology)
    outcome = executor_of(asked.topology)(asked, described, options.straggle, options.delay, options.steps, options.seed, options.effort)
    document = result.document(asked, described, straggler_of(options), outcome)
    document["error"] = judged(asked)
    return document


def check_more(options):
    """Refuses options after "--" that predict.py sets itself: the dry run would use the later value, and the simulation the earlier one."""
    own = [*(flag for flag, _, _ in PASSED), "--topology", "--workers", "--servers", "--set", "--config", "-c", "--steps", "--seed", "--json"]
    for word in options.more:
        flag = word.split("=")[0]
        if flag in own:
            raise CannotPredict(f"{flag} after --: give it before the --, as predict.py's own option")
        if flag in ("--help", "-h", "--dry-run"):
            raise CannotPredict(f"{flag} after --: predict.py asks for a dry run itself; leave it out")


def rows(options):
    """[(options, topology)] of all rows: each topology with each number of workers and, for a star, of servers, and with each bandwidth."""
    out = []
    bandwidths = options.bandwidth.split(",") if options.bandwidth else [None]
    for bandwidth, workers, topology in itertools.product(bandwidths, each(options.workers), options.topology or ["zero:1"]):
        for asked in each(options.servers) if topology.startswith("ps:") else [None]:
            changes = {"bandwidth": bandwidth, "workers": workers, "servers": asked and servers_of(asked, workers)}
            out.append((argparse.Namespace(**{**vars(options), **changes}), topology))
    return out


def calibrate(options):
    from . import calibrate as calibration
    if options.model and not (options.batch and options.seq and options.dtype):
        raise CannotPredict("--calibrate with --model: give --batch, --seq and --dtype as well, which the times are of")
    return calibration.run(options.program, options.calibrate, options.model and [(options.model, int(options.batch), int(options.seq), options.dtype)])


def published(options):
    from . import published as table
    return table.run(options.program)


def judge(options):
    from . import judge as judgement
    return judgement.run(options.program, options.judge, options.machine, options.again)


def run(options):
    try:
        alone = [flag for flag, _, _ in LISTS if getattr(options, flag[2:])]
        if alone:
            raise CannotPredict(f"{alone[0]} is of the page: it goes with --html FILE")
        if options.calibrate or options.judge or options.published:
            cli.needs("simgrid", "numpy")
            return calibrate(options) if options.calibrate else judge(options) if options.judge else published(options)
        check_more(options)
        asked = rows(options)
        for row in asked:
            ask(*row)   # errors of the command line are reported before the simulation, and before a missing package
        cli.needs("simgrid", "numpy")
        from . import result
        documents = [predict(*row) for row in asked]
    except CannotPredict as e:
        print(f"predict.py: error: {e}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(documents, indent=1))
    else:
        print(result.table(documents))
        print("".join(sentence + "\n" for sentence in result.crossings(documents)), end="")
    return 0
