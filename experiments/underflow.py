#!/usr/bin/env python3
"""Counts the gradients that fp16 loses, with and without loss scaling.

    experiments/underflow.py -c experiments/recipes/underflow.json
    experiments/underflow.py -c experiments/recipes/underflow.json --model demo --batch 8 --scale 1 --scale 1024

The script runs one step in fp32, and the same step in fp16 once for each loss scale, and reads the gradients from the checkpoints: the
configuration clips nothing and sets beta1 = 0, so AdamW's first state is the gradient. All other options are passed to `starring train`."""
import argparse
import json
import os

import cli
import program
import tables

SCALES = (1.0, 1024.0, 65536.0)
EXAMPLES = (1e-5, 1e-6, 1e-7, 1e-8)   # gradients; the first is the textbook's


def parse(argv):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-c", "--config", required=True, help="a configuration such as experiments/recipes/underflow.json")
    p.add_argument("--scale", type=cli.above_zero, action="append", metavar="S", help="a loss scale; repeatable (1, 1024, 65536)")
    p.add_argument("--program", default=program.built(), help="(%(default)s)")
    p.add_argument("--json", action="store_true", help="print one JSON document")
    args, words = p.parse_known_args(argv)
    for own in ("--dtype", "--out"):
        if any(word.split("=")[0] == own for word in words):
            p.error(f"{own}: the script chooses it for each run")
    return args, words


def step(args, words, dtype, scale, out):
    """Runs the step. Returns {name: gradient}."""
    import halves
    argv = [args.program, "train", "-c", args.config, *words, "--dtype", dtype, "--quiet", "--no-weights", "--out", out]
    if scale:
        argv += ["--set", f"fp16.loss_scale={scale}"]
    p = program.run(argv, RuntimeError, preexec_fn=cli.dies_with_us())
    if p.returncode:
        raise RuntimeError(f"exit status {p.returncode}: {' '.join(argv)}\n{p.stderr.strip()}")
    with open(os.path.join(out, "config.json"), encoding="utf-8") as f:
        resolved = json.load(f)
    betas = resolved["optimizer"]["params"].get("betas", [None])
    if betas[0] != 0 or resolved["gradient_clipping"] != 0 or resolved["recovery"]["checkpoint_every"] != 1 or resolved["steps"] != 1:
        raise RuntimeError(f"{args.config}: no state is the gradient itself: set optimizer.params.betas to [0, 0.999], gradient_clipping to 0, "
                           "recovery.checkpoint_every to 1 and steps to 1")
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
        if json.loads(f.readline())["skipped"]:
            raise RuntimeError(f"--scale {scale:g}: a gradient exceeds 65504, fp16's largest number, and the step is skipped: choose a smaller scale")
    return halves.gradients(out)


def show(document):
    print(tables.text([["gradient", "in fp16", "error", "times 1024 in fp16", "divided again", "error"]]
                      + [[f"{e['gradient']:.0e}", f"{e['fp16']:.4g}", f"{e['error']:.2%}", f"{e['scaled']:.4g}", f"{e['back']:.4g}", f"{e['error_back']:.3%}"]
                         for e in document["example"]], left=0))
    print("\nElements whose gradient is not zero in fp32 and is zero in fp16, by loss scale:\n")
    head = ["tensor", "elements", "nonzero", *(f"{s:g}" for s in document["scales"])]
    body = [[r["kind"], f"{r['elements']:,}", f"{r['nonzero']:,}", *(f"{s['vanished']:,}" for s in r["scales"])] for r in document["rows"]]
    total = document["rows"][-1]["scales"]
    body += [[words, "", "", *(f"{s[key]:,}" for s in total)] for words, key in
             (("all, if only rounded", "rounded"), ("all, below 2^-14", "denormal"))]
    print(tables.text([head, *body]))


def main(argv=None):
    args, words = parse(argv)
    cli.needs("numpy")
    import halves
    scales = args.scale or list(SCALES)

    def find(folder):
        exact = step(args, words, "fp32", None, os.path.join(folder, "fp32"))
        by_scale = [(s, step(args, words, "fp16", s, os.path.join(folder, f"fp16-{i}"))) for i, s in enumerate(scales)]
        return {"scales": scales, "example": [halves.example(v, 1024.0) for v in EXAMPLES], "rows": halves.count(exact, by_scale)}
    return cli.answer(find, show, args.json, RuntimeError, OSError)


if __name__ == "__main__":
    cli.run(main)
