#!/usr/bin/env python3
"""A cluster in a box: trains across network namespaces whose links have a given bandwidth, one rank in each, and prints
the step's time next to the time that the wire alone would take.

examples (as root):
  netlab.py --bandwidth 1Gbit --topologies ps:sync,zero:1 --workers 4
  netlab.py --bandwidth 200Mbit --topologies ps:sync,zero:0,zero:3 --workers 4 --servers 1,2,4 -c experiments/recipes/incast.json
  netlab.py --clean                     removes the namespaces of labs that were killed

A star's roles get --insecure, since only the lab's own processes reach its links. If STARRING_JOB_KEY is set, they use that key
instead. The arguments after "--" are passed to `starring train` unchanged. The lab is built inside its own namespaces, which it removes
at its end, also after Ctrl-C; after a SIGKILL the next lab removes them. Needs root, iproute2 and, unless rings get
`-- --collective tcp`, Open MPI. Exit status: 0 done; 1 a run failed; 2 the command line is wrong, or this machine allows no lab;
130 Ctrl-C, 143 SIGTERM.
"""
import argparse
import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cli
from netlab import formula, lab, rate, train
from program import built

TAIL_LINES = 25


def parse(argv):
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    ap.add_argument("--bandwidth", metavar="RATE", default="1Gbit", help="of every link, each way (default %(default)s)")
    ap.add_argument("--topologies", metavar="T1,T2,..", default="ps:sync,zero:0,zero:1,zero:2,zero:3")
    ap.add_argument("--workers", type=int, metavar="N", default=4)
    ap.add_argument("--servers", metavar="S1,S2,..", default="1", help="a star runs once with each (default %(default)s)")
    ap.add_argument("--steps", type=int, metavar="N", help="default: the configuration's, else 6")
    ap.add_argument("-c", "--config", metavar="FILE", help="configuration, as of `starring train`")
    ap.add_argument("--out", metavar="DIR", default="runs/netlab", help="one run directory each (default %(default)s)")
    ap.add_argument("--limit", type=float, metavar="SECONDS", help="end a run that takes longer")
    ap.add_argument("--program", metavar="FILE", default=built())
    ap.add_argument("--clean", action="store_true", help="remove what killed labs have left, and do nothing else")
    ap.add_argument("more", nargs="*", metavar="-- OPTIONS", help="of `starring train`, for all runs")
    args = ap.parse_args(argv)
    try:
        rate.parse(args.bandwidth)
        args.server_counts = [int(s) for s in args.servers.split(",")]
    except ValueError as e:
        ap.error(f"--bandwidth or --servers: {e}")
    args.names = [t for t in args.topologies.split(",") if t]
    if not args.names or "local" in args.names:
        ap.error("--topologies: name stars and rings; local is one process and has no links")
    if args.workers < 2 or min(args.server_counts) < 1:
        ap.error("--workers must be at least 2, --servers at least 1")
    return args


def runs_of(args):
    """The runs, in order: [(name, topology, number of servers, or None for a ring)]."""
    out = []
    for topology in args.names:
        name = topology.replace(":", "-")
        if topology.startswith("ps:"):
            out += [(f"{name}-s{s}", topology, s) for s in args.server_counts]
        else:
            out.append((name, topology, None))
    return out


def command(args, topology, servers, directory):
    words = [args.program, "train"] + (["-c", args.config] if args.config else [])
    words += ["--topology", topology, "--workers", str(args.workers)] + (["--servers", str(servers)] if servers else [])
    if args.steps or not args.config:
        words += ["--steps", str(args.steps or 6)]
    return words + args.more + ["--no-weights", "--force", "--out", directory]


def run_one(args, topology, servers, directory):
    """Trains once. Returns its measurement, or None after printing the end of the run's log."""
    os.makedirs(os.path.dirname(directory), exist_ok=True)
    path = directory + ".log"
    with open(path, "wb") as log:
        status = train.train(command(args, topology, servers, directory), log, args.limit, args.bandwidth)
    if status == 0:
        return formula.Measured(directory)
    with open(path, encoding="utf-8", errors="replace") as f:
        tail = f.read().replace("\r", "\n").splitlines()[-TAIL_LINES:]
    what = f"exit status {status}" if isinstance(status, int) else status
    print(f"netlab.py: {topology}: {what}; the end of {path}:\n" + "\n".join("    | " + line for line in tail), file=sys.stderr)
    return None


def main(argv=None):
    args = parse(argv)
    done = []
    try:
        if args.clean:
            lab.check_possible()
            removed = lab.clean()
            print("\n".join("removed " + name for name in removed) or "nothing to remove")
            return 0
        for name, topology, servers in runs_of(args):
            print(f"{name} ...", end=" ", flush=True)
            measured = run_one(args, topology, servers, os.path.join(os.path.abspath(args.out), name))
            if not measured:
                return 1
            print(f"{measured.seconds:.3f} s a step", flush=True)
            done.append(measured)
    except (lab.LabError, ValueError) as e:
        print(f"netlab.py: {e}", file=sys.stderr)
        return 2
    print("\n" + formula.table(done))
    return 0


if __name__ == "__main__":
    cli.run(main, "interrupted; the lab is removed, finished runs are kept")
