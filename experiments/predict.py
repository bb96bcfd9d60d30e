#!/usr/bin/env python3
"""Predicts the memory, bytes and time of a training step on a machine that is described in a file.

examples:
  predict.py --topology zero:1 --topology zero:3 --workers 64 --model llama-2-7b --dtype bf16 --machine dgx-h100
  predict.py --topology ps:sync --topology zero:2 --workers 8 --servers 2 --model gpt2-124m --machine laptop --bandwidth 10Gbit
  predict.py --topology zero:3 --workers 1024 --model llama-2-7b --dtype bf16 --machine dgx-a100 --network fat_tree:4:1
  predict.py --calibrate mine.json
  predict.py --topology zero:1 --workers 8 --model gpt2-124m --machine mine.json --straggle 3:2 --delay '*:exponential:20' --json
  predict.py --html cluster.html        one offline page: choose model, N, S, topology, network, machine, stragglers

Memory, bytes and the order of a step's tasks are those of the program's dry run (`starring train --dry-run`). The network is simulated
with SimGrid, flow by flow; the machine file gives the compute time of each unit. docs/predicting.md describes machine files, and what
is simulated and what is not. The arguments after "--" are passed to `starring train` unchanged.
Needs Python 3.9 with simgrid and numpy (`make deps`). If this Python has no simgrid, the script continues in /usr/bin/python3.
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
        cli.needs("simgrid", "numpy", "jinja2")
        from prediction import page
        return page.run(parser, argv)
    return command.run(options)


if __name__ == "__main__":
    cli.run(main)
