#!/usr/bin/env python3
"""Studies the costs and benefits of consistencies: trains rows of topologies and settings, with chosen delays and stragglers, over several seeds.

    experiments/consistency.py experiments/studies/quick.json
    experiments/consistency.py experiments/studies/stragglers.json --seeds 1,2,3 --out runs/stragglers
    experiments/consistency.py experiments/studies/async.json --rows sync,async --markdown --picture async.svg

A study is a JSON file: {"title", "question", "config": the program's configuration that all share, "rows": [{"name", "topology",
"settings": {key: value}, "begin": {"topology", "steps"}}], "conditions": [{"name", "settings"}], "seeds", "reference": the
row that sets the target loss, "target_loss", "picture": what its curves are drawn against, "figures": those of the printed tables}. A
row with "begin" first trains so many steps with that topology, and resumes from their checkpoint. Each row trains under each
condition (trouble.straggle, trouble.delay, ..) with each seed, in a random order. The output has the held-out loss against samples,
updates, seconds and bytes, the time to a target, staleness and traffic, with 95% intervals over seeds; then the best row of each
measure, and the rows whose difference from it may be noise. Snapshots are evaluated after the run, so that evaluation is no barrier.

The folder --out gets a folder for each run, study.json, study.csv and study.html, one offline page. Finished runs are not repeated: after an
interrupt or a failure the same command continues. Failed runs are named and repeated, and runs of another command or build are repeated.
Rows of unequal budgets, models, data or batches are refused. --quick is experiments/studies/quick.json: three minutes on two busy cores.
Needs Python 3.9 with scipy and jinja2 (`make deps`). Exit status: 0 done; 1 a run failed or runs are unlike; 2 the command line or the study is wrong;
130 Ctrl-C.
"""
import argparse
import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cli
from program import built

QUICK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "studies", "quick.json")


def parse(argv):
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    ap.add_argument("study", metavar="STUDY.json", nargs="?", help="the study")
    ap.add_argument("--quick", action="store_true", help="the short study of every kind of consistency")
    ap.add_argument("--out", metavar="DIR", help="default: runs/ and the name of the study")
    ap.add_argument("--rows", metavar="A,B", help="only these rows")
    ap.add_argument("--conditions", metavar="A,B", help="only these conditions")
    ap.add_argument("--seeds", metavar="1,2,..", help="seeds to use instead of the study's")
    ap.add_argument("--target-loss", type=float, metavar="X", help="take the time to this held-out loss (default: the study's, else the worst "
                    "that the reference row's runs ended with)")
    ap.add_argument("--order-seed", type=int, metavar="N", help="seed of the random order of the runs (default: a new one each time)")
    ap.add_argument("--limit", type=float, metavar="SECONDS", default=600.0, help="end a run that takes longer (default %(default)g)")
    ap.add_argument("--read", action="store_true", help="train nothing: show the finished runs, whichever build made them")
    ap.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    ap.add_argument("--picture", metavar="FILE", help="draw the curves into this SVG file too")
    ap.add_argument("--program", metavar="FILE", default=built(), help="default: $STARRING, else build/starring")
    args = ap.parse_args(argv)
    if bool(args.study) == args.quick:
        ap.error("name a study, as experiments/studies/quick.json, or give --quick")
    args.study = QUICK if args.quick else args.study
    args.out = args.out or os.path.join("runs", os.path.splitext(os.path.basename(args.study))[0])
    try:
        args.seeds = [int(s) for s in args.seeds.split(",")] if args.seeds else None
    except ValueError:
        ap.error(f"--seeds {args.seeds}: expected whole numbers with commas between them")
    return args


def main(argv=None):
    words = sys.argv[1:] if argv is None else argv
    args = parse(words)
    cli.needs("scipy", "jinja2")
    from study import command
    return command.run(args, words)


if __name__ == "__main__":
    cli.run(main, "interrupted; the same command continues with the remaining runs")
