#!/usr/bin/env python3
"""Predicts what a step of training would take on a machine that is described in a file: memory, bytes and time.

examples:
  predict.py --topology zero:1 --topology zero:3 --workers 64 --model llama-2-7b --dtype bf16 --machine dgx-h100
  predict.py --topology ps:sync --topology zero:2 --workers 8 --servers 2 --model gpt2-124m --machine laptop --bandwidth 10Gbit
  predict.py --topology zero:3 --workers 1024 --model llama-2-7b --dtype bf16 --machine dgx-a100 --network fat_tree:4:1
  predict.py --calibrate mine.json
  predict.py --topology zero:1 --workers 8 --model gpt2-124m --machine mine.json --straggle 3:2 --delay '*:exponential:20' --json
  predict.py --html cluster.html        one offline page: choose model, N, S, topology, network, machine, stragglers

Memory and bytes are the program's own (`starring train --dry-run`), and so is what a step does and in which order. The network is simulated
with SimGrid, flow by flow; computing is what the machine file says of each unit. docs/predicting.md describes machine files, and what
is simulated and what is not. The words behind "--" go to `starring train` as they stand.
Needs Python 3.9 with simgrid and numpy (`make deps`); goes on in /usr/bin/python3 where python3 is another that lacks simgrid.
Exit status: 0 done; 1 a run or a bench failed; 2 the command line is wrong, or this cannot be predicted; 130 Ctrl-C.
"""
import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cli


def main(argv=None):
    from prediction import command
    argv, parser = sys.argv[1:] if argv is None else argv, command.parser(__doc__)
    options = parser.parse_args(argv)
    cli.in_debians("simgrid", sys.argv)
    if options.html:
        cli.needs("simgrid", "numpy", "pandas", "jinja2")
        from prediction import page
        return page.run(parser, argv)
    return command.run(options)


if __name__ == "__main__":
    cli.run(main)
