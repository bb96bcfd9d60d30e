"""Writes the last lines that a comparison prints: one line per run, its meaning, and which file to open. --full prints the table instead."""
import os
import re
import shlex
import sys
import textwrap

import tables

from .. import equality, sample, speed, table
from ..runs import as_float, device_bytes, failures_in_words
from ..spread import median

WIDTH = table.WIDTH


def hash_of(group):
    found = {run.weights_hash for run in group}
    return str(found.pop()) if len(found) == 1 else "varies"


def of_role(role, what):
    """The cells of one role's figure."""
    def cell(group):
        run = group[0]
        entry, wire = run.roles().get(role), run.wire_of(role)
        if what == "memory":
            return table.DASH if entry is None else table.pair(device_bytes(entry["predicted"]), device_bytes(entry["peak"]))
        return table.DASH if wire is None else table.pair(wire.get("predicted_sent"), wire.get("sent_per_step"))
    return cell


def columns(groups):
    """The table's columns: [(heading of two lines, function that returns a group's cell)]."""
    letters = equality.letters([run for group in groups for run in group])
    held_out = any(isinstance(run.val_loss, (int, float)) for group in groups for run in group)
    roles = table.all_roles([group[0] for group in groups])
    speeds = {id(s.group): s for s in speed.speeds_of(groups)}
    others = list(dict.fromkeys(s.reference[0].label for s in speeds.values() if s.time))

    def letter(group):
        found = list(dict.fromkeys(letters[id(run)] for run in group))
        return ",".join(found) if len(found) < 4 else f"{found[0]}..{found[-1]}"

    def time(group):
        s = speeds[id(group)]
        if not s.time:
            return "1" if others else table.DASH
        return f"{s.time.value:.2f}" + ("" if s.time.low is None else f" \u00b1{100 * s.time.width():.0f}%")
    return [(("same", "bits"), letter),
            (("held-out", "loss"), lambda g: table.number(median([r.val_loss for r in g]), "{:.4f}")) if held_out else
            (("last", "loss"), lambda g: table.number(median([as_float(r.losses[-1]) for r in g]), "{:.4f}")),
            *(((role + "'s", "MiB"), of_role(role, "memory")) for role in roles),
            *(((role, "sends MiB"), of_role(role, "sent")) for role in roles),
            (("", "tokens/s"), lambda g: speeds[id(g)].text),
            (("time over", f"{others[0]}'s" if len(others) == 1 else "another's"), time),
            (("CPU s", "a step"), lambda g: table.number(speeds[id(g)].cpu_per_step, "{:.3f}")),
            (("weights", "hash"), hash_of)]


def lines_of(groups):
    """The table: one line per run."""
    shown = [("", "", [g[0].label for g in groups])]
    shown += [(*heading, [cell(g) for g in groups]) for heading, cell in columns(groups)]
    shown = [c for c in shown if any(cell not in (table.DASH, "") for cell in c[2])]
    out = tables.text([[c[0] for c in shown], [c[1] for c in shown], *([c[2][i] for c in shown] for i in range(len(groups)))]).splitlines()
    return out[:2] + ["-" * max(map(len, out))] + out[2:]


def about_bits(runs):
    """States which runs are equal, and briefly why others are not. Broken promises are stated in full."""
    groups, out = sorted(equality.equal_groups(runs), key=len, reverse=True), []
    letters = equality.letters(runs)
    for group in groups:
        if len(group) > 1:
            out.append(f"{letters[id(group[0])]}: {' = '.join(equality.names(group, runs))}{equality.repeats(group)}: equal to the last "
                       "bit, each loss and all weights.")
    reasons = {}
    for group in groups:
        reference = next(g[0] for g in groups if g[0].seed == group[0].seed)
        found = equality.explanation(group[0], reference) if group[0] is not reference else None
        if found:
            reasons.setdefault(re.split(r"[.:] ", found[1])[0], set()).add(letters[id(found[0])])
    out += [f"{', '.join(sorted(found))} differ{'s' * (len(found) == 1)}: {why}." for why, found in reasons.items()]
    return ([" ".join(out)] if out else []) + [text for kind, text in equality.in_words(runs) if kind == "broken"]


def about_words(continued):
    """The texts that the runs' weights generated; one text if all are the same."""
    if not continued:
        return []
    said = f"{sample.verdict(continued).rstrip('.') or 'The weights speak'} (prompt \"{sample.PROMPT}\"):"
    texts = dict.fromkeys(s.text for s in continued)
    return [said] + [("" if len(texts) == 1 else f"{s.label}: ") + s.text for s in continued[:len(texts)]]


def folders(runs):
    """The run directories as shell words: runs/demo/{local,ps-sync}."""
    parents = {os.path.dirname(r.directory) for r in runs}
    names = [os.path.basename(r.directory) for r in runs]
    if len(parents) == 1 and len(names) > 1 and all(re.fullmatch(r"[\w.=-]+", name) for name in names):
        return f"{shlex.quote(parents.pop())}/{{{','.join(names)}}}"
    return shlex.join(r.directory for r in runs)


def what_next(runs, html_path, continued, program):
    """The file to open and the commands to type. Commands are not wrapped, so that they can be copied."""
    out = [f"Open {html_path}: curves, one step of each, where memory and time go.",
           f"Every figure: {shlex.quote(sys.argv[0])} --full --runs {folders(runs)}"]
    if continued:
        run, near = next(r for r in runs if r.label == continued[-1].label), os.path.relpath(program)
        words = shlex.join([near if os.sep in near and not near.startswith("..") else program, "generate", "--model", run.directory])
        out.append(f"Let the weights continue a text: {words} --prompt \"hacker: \"")
    return out


def text(groups, target, continued, html_path, failed=(), program=""):
    """The whole text. program: the path of the program, for the commands to type."""
    runs = [run for group in groups for run in group]
    below = [f"failed: {words}" for words in failures_in_words(failed, groups)]
    below += [" ".join(['"12.34 =": predicted and measured agree to the byte.', *speed.in_short(groups)]), *about_bits(runs)]
    wrapped = [textwrap.fill(words, WIDTH, break_long_words=False, break_on_hyphens=False) for words in below + about_words(continued)]
    return "\n".join(lines_of(groups) + [""] + wrapped + what_next(runs, html_path, continued, program))
