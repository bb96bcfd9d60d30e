#!/usr/bin/env python3
"""Trains one model through several topologies and compares them: a table, a CSV, one offline HTML report.

examples:
  compare.py --a ps:sync --b zero:2 --workers 2 --steps 50
  compare.py --topologies local,ps:sync,zero:0,zero:3 --config experiments/demo.json --out runs/mine
  compare.py --a ps:sync --b zero:3 --workers 3 --steps 20 --assert-equal
  compare.py --a ps:sync --sweep servers=1,2,3 --repeat 3
  compare.py --a zero:1 --b zero:3 --sweep gradient_clipping=0,1.0 --set optimizer.params.lr=1e-3
  compare.py --runs runs/demo/ps-sync runs/demo/zero-3        reads finished runs, trains nothing

Paths are relative to the directory it is started in. Needs Python 3.9 and nothing else. Exit status: 0 done; 1 a
run failed, the runs are unlike, or --assert-equal found a difference; 2 the command line is wrong; 130 Ctrl-C.
"""
import argparse
import os
import shlex
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cli
from comparison import equality, sample, table
from comparison.pages import report
from comparison.runs import RunError, UsageError, load, refuse_unlike, run_all


def built():
    """The program of this repository or bundle, wherever compare.py is started."""
    places = [os.path.join(TOP, folder, "starring") for folder in ("build", "bin")]
    return next((p for p in places if os.path.exists(p)), places[0])


def parse(argv):
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                 allow_abbrev=False)
    what = ap.add_argument_group("what to compare")
    for letter in "abcdefgh":
        what.add_argument(f"--{letter}", metavar="T", help="a topology: local, ps:sync, ps:async, zero:0 .. zero:3; "
                          "--b to --h name further ones" if letter == "a" else argparse.SUPPRESS)
    what.add_argument("--topologies", metavar="T1,T2,..", help="the same as a list")
    what.add_argument("--runs", nargs="+", metavar="DIR", help="finished run directories: compare them, train nothing")
    what.add_argument("--sweep", action="append", default=[], metavar="KEY=V1,V2",
                      help="every topology with every value of a configuration key; may be given again")
    what.add_argument("--repeat", type=int, default=1, metavar="N", help="run everything N times, interleaved; "
                      "speeds are medians with their spread")
    how = ap.add_argument_group("how to train (as in `starring train`, whose --help has the defaults)")
    how.add_argument("-c", "--config", metavar="FILE", help="configuration (DeepSpeed's JSON)")
    how.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a configuration key, for all runs")
    for flag, kind in (("workers", int), ("servers", int), ("steps", int), ("seed", int), ("batch", int),
                       ("seq", int)):
        how.add_argument("--" + flag, type=kind, metavar="N")
    for flag in ("model", "data", "dtype", "device", "launch"):
        how.add_argument("--" + flag, metavar=flag.upper())
    out = ap.add_argument_group("results")
    out.add_argument("--out", metavar="DIR", default="runs/compare", help="one directory per run, compare.csv, report.html "
                     "(default %(default)s)")
    out.add_argument("--title", default="starring: star and ring compared", help="of the report")
    out.add_argument("--markdown", action="store_true", help="print the table as Markdown as well")
    out.add_argument("--assert-equal", nargs="?", const="all", choices=["all", "promised"], metavar="promised",
                     help="exit with 1 unless all runs are equal to the last bit; with \"promised\": unless those are "
                     "that must be (ps:sync and zero:0-3 with the same number of workers)")
    out.add_argument("--force", action="store_true", help="compare runs of unequal tokens per step, model, data or seed")
    out.add_argument("--program", metavar="FILE", help="default: $STARRING, else build/starring (in a bundle: bin/starring) "
                     "beside experiments/", default=os.environ.get("STARRING") or built())
    out.add_argument("--limit", type=float, default=None, metavar="SECONDS", help="end a run that takes longer")
    args = ap.parse_args(argv)
    listed = [getattr(args, letter) for letter in "abcdefgh" if getattr(args, letter)]
    args.topologies = listed + [t for t in (args.topologies or "").split(",") if t]
    if bool(args.runs) == bool(args.topologies):
        ap.error("name topologies (--a T --b T, or --topologies T1,T2) or finished runs (--runs DIR DIR)")
    if args.repeat < 1:
        ap.error("--repeat must be at least 1")
    if args.limit is not None and not args.limit > 0:
        ap.error("--limit must be more than 0 seconds")
    return args


def check_out(out):
    """UsageError where no directory can be: known before hours of training, not after."""
    at = os.path.abspath(out)
    while not os.path.lexists(at):
        at = os.path.dirname(at)
    if not os.path.isdir(at):
        raise UsageError(f"--out {out}: {at} is no directory")
    if not os.access(at, os.W_OK | os.X_OK):
        raise UsageError(f"--out {out}: {at} may not be written")


def read_runs(args):
    names = [os.path.basename(os.path.abspath(d)) for d in args.runs]
    runs = []
    for name, directory in zip(names, args.runs):
        run = load(directory if names.count(name) > 1 else name, directory)
        runs.append(run)
    labels = [r.label for r in runs]
    for run in runs:
        if labels.count(run.label) > 1:
            run.label = f"{run.topology} ({run.name})"
    refuse_unlike(runs, args.force)
    return [[run] for run in runs]


def check(args, runs):
    """0, or 1 after naming step and pair of each difference that was asked to be none."""
    if args.assert_equal == "all":
        wrong, words = equality.unequal_pairs(runs), "NOT EQUAL"
    elif args.assert_equal == "promised":
        wrong, words = equality.broken_promises(runs), "BROKEN PROMISE"
    else:
        return 0
    for sentence in wrong:
        print(f"{words}: {sentence}", file=sys.stderr)
    return 1 if wrong else 0


def hear(args, runs):
    """(what the weights say, exit status)."""
    try:
        return sample.speak(runs, args.program), 0
    except RunError as e:
        print(f"compare.py: {e}", file=sys.stderr)
        return [], 1


def main(argv=None):
    args = parse(sys.argv[1:] if argv is None else argv)
    try:
        check_out(args.out)
        groups = read_runs(args) if args.runs else run_all(args)
    except RunError as e:
        print(f"compare.py: {e}", file=sys.stderr)
        return e.status
    for group in groups:
        for i, run in enumerate(group):
            run.label += f" (run {i + 1})" if len(group) > 1 and i else ""
    runs = [run for group in groups for run in group]
    command = "experiments/compare.py " + shlex.join(sys.argv[1:] if argv is None else argv)
    os.makedirs(args.out, exist_ok=True)
    csv_path, html_path = os.path.join(args.out, "compare.csv"), os.path.join(args.out, "report.html")
    table.write_csv(csv_path, runs)
    spoken, status = hear(args, runs)
    report.write(html_path, groups, args.title, command, args.out, sample.as_html(spoken))
    print("\n" + table.text_table(groups) + "\n")
    for _, sentence in equality.in_words(runs):
        print("* " + sentence)
    if args.markdown:
        print("\n" + table.markdown_table(groups))
    if spoken:
        print("\n" + sample.as_text(spoken))
    print(f"\n{csv_path}\n{html_path}")
    return check(args, runs) or status


if __name__ == "__main__":
    cli.run(main, "interrupted; finished runs are kept")
