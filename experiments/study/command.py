"""Runs a study after its command line is parsed (experiments/consistency.py): runs, tables and page."""
import json
import os
import random
import shlex
import sys

import tables
from comparison import csvfile
from comparison.command import check_out
from comparison.draw import svg
from comparison.draw.style import PALETTE, PLOTS
from comparison.execute import check_places, run_line, time_left
from comparison.pages.report import About
from comparison.plan import refuse_unaccepted
from comparison.runs import Failure, RunError, UsageError, failures_in_words
from . import page, plan, results


def chosen(args):
    """The study of the file, reduced to the rows, conditions and seeds of the command line."""
    study = plan.read(args.study)
    study.rows = plan.chosen(study.rows, args.rows, "rows")
    study.conditions = plan.chosen(study.conditions, args.conditions, "conditions")
    study.seeds = study.seeds if args.seeds is None else plan.seeds_of(args.seeds, "--seeds")
    study.target_loss = study.target_loss if args.target_loss is None else plan.target_of(args.target_loss, "--target-loss")
    if study.reference not in [row.name for row in study.rows]:
        study.reference = study.rows[0].name
    for what, known in (("picture", list(page.AXES)), ("figures", [key for key, *_ in results.figures_of(None)])):
        unknown = [word for word in getattr(study, what) if word not in known]
        if unknown:
            raise UsageError(f"{args.study}: {what}: {unknown[0]}: expected {', '.join(known)}")
    if not study.picture:
        raise UsageError(f"{args.study}: picture: expected one at least of {', '.join(page.AXES)}")
    return study


def run_all(args, study):
    """Trains the runs that are missing, and reads all. Returns ([Cell], [Failure])."""
    base = os.path.join(args.out, plan.BASE)
    os.makedirs(args.out, exist_ok=True)
    with open(base, "w", encoding="utf-8") as f:
        json.dump({"quiet": True, **study.config}, f, indent=1)
    planned = plan.planned_of(study, args.program, base)
    version = None if args.read else plan.version_of(args.program)
    done, failed, open_runs = {}, [], []
    for condition, row, one in planned:
        run = plan.read_back(one, os.path.join(args.out, one.name), study.config, version)
        if run:
            done[one.name] = run
        elif args.read:
            failed.append(Failure(one.label, one.name, "not there, or of another command"))
        else:
            open_runs.append(one)
    if done and open_runs:
        print(f"{len(done)} of {len(planned)} runs are done already", flush=True)
    check_places([os.path.join(args.out, one.name) for one in open_runs])
    first = {one.label: one for one in reversed(open_runs)}
    refuse_unaccepted(list(first.values())[::-1], lambda one: os.path.join(args.out, one.name), True)
    seed = random.SystemRandom().randrange(10000) if args.order_seed is None else args.order_seed
    random.Random(seed).shuffle(open_runs)
    if open_runs:
        print(f"{len(open_runs)} runs, --order-seed {seed}", flush=True)
    took = []
    for number, one in enumerate(open_runs, 1):
        print(f"[{number}/{len(open_runs)}] {one.name} ...", end=" ", flush=True)
        try:
            run = plan.train(one, os.path.join(args.out, one.name), study.config, args.limit, version)
        except RunError as e:
            print("failed", flush=True)
            print(f"consistency.py: {e}", file=sys.stderr, flush=True)
            failed.append(Failure(one.label, one.name, e.brief))
            continue
        done[one.name] = run
        took.append(run.wall_seconds)
        print(run_line(run) + time_left(took, len(open_runs) - number), flush=True)
    cells = {}
    for condition, row, one in planned:
        cell = cells.setdefault((condition.name, row.name), results.Cell(condition, row, []))
        if one.name in done:
            run = done[one.name]
            run.seed_swept = True
            run.summary.update(row=row.name, condition=condition.name)
            cell.runs.append(run)
    return [cells[(c.name, r.name)] for c in study.conditions for r in study.rows], failed


def run(args, words):
    """Runs the whole command and returns its exit status. words: the command line that args were parsed from."""
    try:
        check_out(args.out)
        study = chosen(args)
        cells, failed = run_all(args, study)
        groups = [cell.runs for cell in cells if cell.runs]
        if not groups:
            raise RunError("no run is left to show:\n" + "\n".join(failures_in_words(failed, groups)))
        results.refuse_unlike(study, cells)
        results.refuse_unequal_budgets(cells)
    except RunError as e:
        print(f"consistency.py: {e}", file=sys.stderr)
        return e.status
    targets = results.target_of(study, cells)
    verdicts = results.verdicts(study, cells, targets)
    command = shlex.join([sys.argv[0], *words])
    paths = [os.path.join(args.out, f"study.{end}") for end in ("json", "csv", "html")]
    with open(paths[0], "w", encoding="utf-8") as f:
        json.dump(page.document(study, cells, targets, verdicts, failed, command), f, indent=1)
        f.write("\n")
    csvfile.write_csv(paths[1], [run for group in groups for run in group], failed)
    page.write(paths[2], study, cells, targets, verdicts, About(study.title, command, args.out, trained=not args.read, failed=tuple(failed)))
    for condition in study.conditions:
        lines = page.table(study, condition, cells, targets[condition.name], study.figures)
        if lines:
            print(f"\n{condition.name}\n\n" + (tables.markdown(lines) if args.markdown else page.text_of(lines)) + "\n")
        for verdict in verdicts:
            if verdict.condition == condition.name:
                print("* " + results.in_words(verdict))
    print("\n" + "\n".join(filter(None, [results.busy(cells), *(f"FAILED {text}" for text in failures_in_words(failed, groups)), *paths])))
    if args.picture:
        height, drawing = page.picture(study, cells, targets)
        svg.write_file(args.picture, page.WIDTH, height, study.title, PALETTE + PLOTS, drawing)
    return 1 if failed else 0
