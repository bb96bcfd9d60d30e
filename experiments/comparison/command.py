"""Runs a comparison after its command line is parsed (experiments/compare.py): runs, table, CSV, report."""
import os
import re
import shlex
import sys
import tempfile

from . import csvfile, equality, learning, comparability, sample, sentences, table
from .execute import run_all
from .pages import closing, report
from .runs import Failure, RunError, UsageError, failures_in_words, load


def check_out(out):
    """Raises UsageError if the directory cannot be made. Called before the training, which may take hours."""
    at = os.path.abspath(out)
    while not os.path.lexists(at):
        at = os.path.dirname(at)
    if not os.path.isdir(at):
        raise UsageError(f"--out {out}: {at} is no directory")
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".starring-", dir=at))
    except OSError as e:
        raise UsageError(f"--out {out}: nothing can be written in {at}: {e.strerror}") from None


REPEAT = re.compile(r"(?:-seed=[^/]*?)?\.r(\d+)$|-seed=[^/]*$")


def read_runs(args):
    """([[runs of one label] ..], [Failure]) of --runs. Repeats and seeds of one comparison form one group again: NAME.r1 with NAME.r2,
    NAME-seed=1 with NAME-seed=2."""
    groups, failed = {}, []
    missing = [directory for directory in args.runs if not os.path.isdir(directory)]
    if missing:
        raise UsageError("".join(f"--runs {directory}: there is no such directory\n" for directory in missing).rstrip())
    real = [os.path.realpath(directory) for directory in args.runs]
    for i, path in enumerate(real):
        if path in real[:i]:
            raise UsageError(f"--runs {args.runs[i]}: this run is named twice, and would be compared with itself: name it once")
    for directory in args.runs:
        path = os.path.abspath(directory)
        match = REPEAT.search(path)
        base = path[:match.start()] if match else path
        try:
            run = load(os.path.basename(path), directory)
        except RunError as e:
            if not args.keep_going:
                raise
            failed.append(Failure(os.path.basename(path), os.path.basename(path), e.brief))
            continue
        run.repeat = int(match.group(1) or 1) - 1 if match else 0
        groups.setdefault(base, []).append(run)
    bases = [os.path.basename(base) for base in groups]
    labels = [group[0].label for group in groups.values()]
    for base, group in groups.items():
        name = os.path.basename(base)
        if labels.count(group[0].topology) > 1:
            label = f"{group[0].topology} ({name if bases.count(name) == 1 else os.path.relpath(base)})"
            for run in group:
                run.label = label
    return list(groups.values()), failed


def check(args, runs):
    """Prints each difference that --assert-equal forbids and each hash that --expect does not. Returns 1 if there are any, else 0."""
    wrong = []
    if args.assert_equal == "all":
        wrong = [f"NOT EQUAL: {sentence}" for sentence in equality.unequal_pairs(runs)]
    elif args.assert_equal == "promised":
        wrong = [f"BROKEN PROMISE: {sentence}" for sentence in equality.broken_promises(runs)]
    wrong += [f"NOT AS EXPECTED: {sentence}" for sentence in equality.unexpected(runs, args.expect)]
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    return 1 if wrong else 0


def sample_weights(args, runs):
    """(the continuations that the weights write, exit status)."""
    try:
        return sample.continuations(runs, args.program), 0
    except RunError as e:
        print(f"compare.py: {e}", file=sys.stderr)
        return [], 1


def print_results(args, groups, target, continued, failed, paths):
    """The results on the terminal."""
    if not args.full:
        print("\n" + closing.text(groups, target, continued, paths[1], failed, args.program))
        return
    print("\n" + table.text_table(groups, target, failed) + "\n")
    for sentence in sentences.in_words(groups, target):
        print("* " + sentence)
    for _, sentence in equality.in_words([run for group in groups for run in group]):
        print("* " + sentence)
    if args.markdown:
        print("\n" + table.markdown_table(groups, target, failed))
    if continued:
        print("\n" + sample.as_text(continued))
    print("\n" + "\n".join(paths))


def run(args, words):
    """Runs the whole command and returns its exit status. words: the command line that args were parsed from."""
    try:
        check_out(args.out)
        groups, failed = read_runs(args) if args.runs else run_all(args)
        if not groups:
            raise RunError("no run is left to compare:\n" + "\n".join(failures_in_words(failed, groups)))
        comparability.refuse_unlike(groups, args.force)
    except RunError as e:
        print(f"compare.py: {e}", file=sys.stderr)
        return e.status
    runs = [run for group in groups for run in group]
    target = learning.default_target(runs) if args.target_loss is None else args.target_loss
    os.makedirs(args.out, exist_ok=True)
    csv_path, html_path = os.path.join(args.out, "compare.csv"), os.path.join(args.out, "report.html")
    csvfile.write_csv(csv_path, runs, failed)
    continued, status = sample_weights(args, runs)
    about = report.About(args.title, shlex.join([sys.argv[0], *words]), args.out, trained=not args.runs, target=target,
                         failed=tuple(failed))
    try:
        report.write(html_path, groups, about, sample.as_html(continued))
    except RunError as e:
        print(f"compare.py: no report: {e}", file=sys.stderr)
        status = e.status
    print_results(args, groups, target, continued, failed, (csv_path, html_path))
    return check(args, runs) or (1 if failed else status)
