"""The figures that comparisons show, with the program's words, units and order (figures.json, which `make docs` writes)."""
import json
import os

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "figures.json"), encoding="utf-8") as told:
    TOLD = json.load(told)


def part(prefix):
    """[(key without the prefix, words)] of a part of summary.json: "time.", "totals.", "memory[].peak."."""
    return [(key[len(prefix):], words) for key, (words, _) in TOLD.items() if key.startswith(prefix)]


def unit(key):
    """The unit of a key of summary.json ("bytes", "s", ..); None if it has none."""
    return TOLD[key][1]
