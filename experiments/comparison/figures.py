"""The figures that comparisons show, in the program's own words and order (figures.json, which `make docs` writes)."""
import json
import os

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "figures.json"), encoding="utf-8") as told:
    WORDS = json.load(told)


def part(prefix):
    """[(key behind the prefix, words)] of a part of summary.json: "time.", "totals.", "memory[].peak."."""
    return [(key[len(prefix):], words) for key, words in WORDS.items() if key.startswith(prefix)]
