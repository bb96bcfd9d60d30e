"""The command line of experiments/compare.py."""
import argparse
import os
import re

MEDIA = ("shm", "tcp")
REPEAT = 1
# The options that have no meaning for finished runs (--runs).
TRAINS = ("medium", "bandwidth", "order_seed", "sweep", "repeat", "config", "set", "workers", "servers", "steps", "seed", "batch", "seq",
          "model", "data", "dtype", "device", "insecure", "launch", "limit", "decide", "within")
DECIDE, WITHIN = 0.05, 120.0


def media_of(text):
    """Parses --medium into a list. argparse prints the error."""
    found = [m for m in text.split(",") if m]
    wrong = [m for m in found if m not in MEDIA]
    if wrong or not found or len(set(found)) < len(found):
        raise argparse.ArgumentTypeError(f"{text!r}: expected shm, tcp or shm,tcp")
    return found


def hash_of(text):
    """Parses the hash of --expect. argparse prints the error."""
    if not re.fullmatch("[0-9a-f]{16}", text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a hash of 16 hexadecimal digits")
    return text


def share_of(text):
    """Parses the share of --decide: 0.05 for "5%" or "0.05"."""
    match = re.fullmatch(r"(\d*\.?\d+)(%?)", text)
    value = float(match[1]) / (100 if match[2] else 1) if match else 0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a share above 0% and below 100%, as 5%")
    return value


class Once(argparse.Action):
    """Refuses an option that is given twice: the first value would be lost."""

    def __call__(self, parser, namespace, value, option=None):
        if getattr(namespace, self.dest) is not None:
            parser.error(f"{option} names {getattr(namespace, self.dest)} and {value}: give the one as another of --a to --h")
        setattr(namespace, self.dest, value)


def add_what(ap):
    what = ap.add_argument_group("what to compare")
    for letter in "abcdefgh":
        what.add_argument(f"--{letter}", metavar="T", action=Once, help="a topology: local, ps:sync, ps:async, zero:0 .. zero:3; "
                          "--b to --h name further ones" if letter == "a" else argparse.SUPPRESS)
    what.add_argument("--topologies", metavar="T1,T2,..", help="the same as a list")
    what.add_argument("--runs", nargs="+", metavar="DIR", help="finished run directories: compare them, train nothing; "
                      "NAME.r1, NAME.r2, .. are repeats of one another")
    what.add_argument("--sweep", action="append", default=[], metavar="KEY=V1,V2",
                      help="every topology with every value of a configuration key; may be given again. Runs of several "
                      "seeds (--sweep seed=1,2,3) are grouped: medians, and losses with bands")
    what.add_argument("--medium", type=media_of, metavar="M[,M]", help="the medium of all runs: shm (shared memory), "
                      "tcp, or shm,tcp for everything on both. Default: shm, ranks in processes. "
                      "On a GPU: what the program takes by itself (NCCL)")
    what.add_argument("--bandwidth", metavar="RATE", help="each rank in its own network namespace, with a link of this rate, such as 1Gbit "
                      "or 200Mbit: implies --medium tcp; needs root")
    what.add_argument("--decide", type=share_of, metavar="SHARE", help="such as 5%: repeat everything until the interval of each topology's time, relative to the "
                      f"first one's, reaches at most so far to either side (default {DECIDE:.0%}; not used with --repeat)".replace("%", "%%"))
    what.add_argument("--within", type=float, metavar="SECONDS", help="the time limit of --decide, for all repeats together "
                      f"(default {WITHIN:g})")
    what.add_argument("--repeat", type=int, metavar="R", help="run everything R times (default: as often as --decide needs; 3 times if whole "
                      "runs take turns, which the output states)")
    what.add_argument("--order-seed", type=int, metavar="N", help="seed of the random order of each round or repeat (default: a new one, which is printed)")
    what.add_argument("--target-loss", type=float, metavar="X", help="take the time until the held-out loss reaches X "
                      "(default: the worst final one among the runs)")


def add_how(ap):
    how = ap.add_argument_group("how to train (as in `starring train`, whose --help has the defaults)")
    how.add_argument("-c", "--config", metavar="FILE", help="configuration (DeepSpeed's JSON)")
    how.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a configuration key, for all runs")
    for flag, kind in (("workers", int), ("servers", int), ("steps", int), ("seed", int), ("batch", int), ("seq", int)):
        how.add_argument("--" + flag, type=kind, metavar="N")
    for flag in ("model", "data", "dtype", "device"):
        how.add_argument("--" + flag, metavar=flag.upper())
    how.add_argument("--insecure", action="store_true", help="stars only: bind to any address, without a key: any process may join")
    how.add_argument("--launch", metavar="HOW", help="threads: a ring's ranks are threads of one process, which are not comparable "
                     "with a star's processes (default: processes over --medium)")


def add_out(ap, program):
    out = ap.add_argument_group("results")
    out.add_argument("--out", metavar="DIR", default="runs/compare", help="one directory per run, compare.csv, report.html "
                     "(default %(default)s)")
    out.add_argument("--title", help="the report's title (default: what was compared)")
    out.add_argument("--full", action="store_true", help="end with every figure and sentence, not with a line for each run")
    out.add_argument("--markdown", action="store_true", help="the same, and the table as Markdown as well")
    out.add_argument("--assert-equal", nargs="?", const="all", choices=["all", "promised"], metavar="promised",
                     help="exit with 1 unless all runs of one seed are equal to the last bit; with \"promised\": only those "
                     "that must be (ps:sync and zero:0-3 with the same number of workers)")
    out.add_argument("--expect", type=hash_of, metavar="HASH",
                     help="exit with 1 unless ps:sync and zero:0-3 end with this hash of the weights on a CPU")
    out.add_argument("--keep-going", action="store_true", help="a run that fails does not end the comparison: the table says what "
                     "failed and why, and the exit status is 1")
    out.add_argument("--force", action="store_true", help="compare runs that are unlike in tokens per step, model, data, seed, "
                     "number format, steps, learning rate, clipping, device, medium, host or revision; the table names what is")
    out.add_argument("--program", metavar="FILE", help="default: $STARRING, else build/starring (in a bundle: bin/starring) "
                     "next to experiments/", default=os.environ.get("STARRING") or program)
    out.add_argument("--limit", type=float, default=None, metavar="SECONDS", help="end a run that takes longer")


def parse(argv, description, program):
    """The parsed options. `program`: the default of --program. Exits if they are wrong."""
    ap = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter,
                                 allow_abbrev=False)
    add_what(ap)
    add_how(ap)
    add_out(ap, program)
    args = ap.parse_args(argv)
    listed = [getattr(args, letter) for letter in "abcdefgh" if getattr(args, letter)]
    args.topologies = listed + [t.strip() for t in (args.topologies or "").split(",") if t.strip()]
    if bool(args.runs) == bool(args.topologies):
        ap.error("name topologies (--a T --b T, or --topologies T1,T2) or finished runs (--runs DIR DIR)")
    for flag in TRAINS:
        given = getattr(args, flag)
        if args.runs and given is not None and given is not False and given != []:
            ap.error(f"--{flag.replace('_', '-')} is an option of training: it has no use with --runs, which trains nothing")
    args.full = args.full or args.markdown
    args.repeat_given = args.repeat is not None
    args.decide = args.decide or (None if args.repeat_given else DECIDE)
    args.within = WITHIN if args.within is None else args.within
    args.repeat = REPEAT if args.repeat is None else args.repeat
    if args.repeat < 1:
        ap.error("--repeat must be at least 1")
    if not args.within > 0:
        ap.error("--within must be more than 0 seconds")
    if args.limit is not None and not args.limit > 0:
        ap.error("--limit must be more than 0 seconds")
    if args.launch == "threads" and (args.medium or args.bandwidth):
        ap.error("--launch threads has no medium: threads read each other's memory; leave out --medium and --bandwidth")
    if args.bandwidth and args.medium not in (None, ["tcp"]):
        ap.error("--bandwidth limits a network: it needs --medium tcp")
    return args
