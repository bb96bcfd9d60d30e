"""Compares published times of other programs on their machines with predict.py's predictions of the same steps (published.json).

A row's efficiency (the share of the datasheet's rate that forward and backward reach) comes from published figures of other models, so that
a prediction does not use its own row. Figures that need tensor or pipeline parallelism, which this program does not have, have no row; they
are listed in `refused`.
"""
import copy
import json
import os
import tempfile

import regular
import tables

from . import command, judge, machine

FOLDER = os.path.dirname(os.path.abspath(__file__))
ROWS = os.path.join(FOLDER, "published.json")


def read():
    with regular.open_file(ROWS, limit=regular.WHOLE, encoding="utf-8") as f:
        return json.load(f)


def described(row, folder):
    """Writes the row's machine, with the row's efficiency, to a file in the folder. Returns its path."""
    told = copy.deepcopy(machine.load(row["machine"]).told)
    told["device"]["efficiency"]["product"] = row["efficiency"]
    path = os.path.join(folder, "machine.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(told, f)
    return path


def predicted(program, row, folder):
    """Predicts one row, and returns the document (result.py)."""
    words = [os.path.join(FOLDER, word) if word.startswith("models/") else word for word in row["words"]]
    options = command.parser("").parse_args([*words, "--machine", described(row, folder), "--program", program])
    return command.predict(options, options.topology[0])


def lines(rows):
    """The table's rows, with published and predicted times."""
    out = [["published", "machine", "GPUs", "step", "predicted", "error", "of it computing", "exposed", "efficiency of", "what may be the cause"]]
    for row in rows:
        found = row["predicted"]
        out.append([row["name"], row["machine"], row["words"][row["words"].index("--workers") + 1], f"{row['step_seconds']:.3g} s", f"{found['seconds']:.3g} s",
                    f"{100 * (found['seconds'] / row['step_seconds'] - 1):+.0f}%", f"{found['computing']:.3g} s", f"{found['exposed']:.3g} s",
                    row["efficiency_of"], row["why"]])
    return out


def page(text):
    """The page's text with its table of the stored rows."""
    return tables.placed(text, "published", lines(read()["rows"]))


def run(program):
    """predict.py --published: predicts all rows, prints the table and keeps the figures. Exit status."""
    told = read()
    with tempfile.TemporaryDirectory() as folder:
        for row in told["rows"]:
            document = predicted(program, row, folder)
            parts = document["parts"]
            row["predicted"] = {"seconds": document["step_seconds"]["median"], "computing": parts["forward"] + parts["backward"] + parts["optimizer"],
                                "exposed": parts["exposed"] + parts["wait"]}
    with open(ROWS, "w", encoding="utf-8") as f:
        json.dump(told, f, indent=1)
        f.write("\n")
    judge.rewrite(page)
    print(tables.text(lines(told["rows"])))
    for refused in told["refused"]:
        print(f"\nnot predicted: {refused['what']}: {refused['why']}")
    return 0
