#!/usr/bin/env python3
"""Trains one model through several topologies and compares them: a table, a CSV, one offline HTML report.

examples:
  compare.py --a ps:sync --b zero:2 --workers 2 --steps 50
  compare.py --topologies local,ps:sync,zero:0,zero:3 --config experiments/demo.json --out runs/mine
  compare.py --a ps:sync --b zero:3 --workers 3 --steps 20 --assert-equal
  compare.py --a ps:sync --b zero:2 --medium shm,tcp --decide 3% --within 600
  compare.py --a ps:sync --sweep servers=1,2,3
  compare.py --a ps:async --b zero:1 --sweep seed=1,2,3 --repeat 1
  compare.py --a zero:1 --b zero:3 --sweep gradient_clipping=0,1.0 --set optimizer.params.lr=1e-3
  compare.py --runs runs/demo/ps-sync runs/demo/zero-3        reads finished runs, trains nothing

Both sides use processes and the same medium: shared memory, or that of --medium. All runs are started, and take turns: each
trains for a slice of steps while the others are paused, in a new random order each round, so that a change of the machine's speed
affects all of them. Times are compared as ratios within a round, with 95% intervals. Without --repeat everything is repeated until
the ratios are known to 5% (--decide), within 120 seconds in all (--within). Whole runs take turns, three times each, on GPUs, with
--bandwidth, and if the memory does not hold all runs at once. If the program refuses a run, this is reported before the first run
trains. The runs end with the comparison. When a run fails, --keep-going compares the others. Paths are relative to the current
directory. Needs Python 3.9 with scipy and jinja2 (`make deps`).
Exit status: 0 done; 1 a run failed, the runs are unlike, or --assert-equal found a difference; 2 the command line is wrong, or
a run's directory is not there; 130 Ctrl-C.
"""
import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cli
from comparison import options
from program import built


def main(argv=None):
    words = sys.argv[1:] if argv is None else argv
    args = options.parse(words, __doc__, built())
    cli.needs("scipy", "jinja2")
    from comparison import command
    return command.run(args, words)


if __name__ == "__main__":
    cli.run(main, "interrupted; finished runs are kept")
