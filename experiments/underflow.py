#!/usr/bin/env python3
"""Counts the gradients that fp16 loses, with and without loss scaling.

    experiments/underflow.py -c experiments/recipes/underflow.json
    experiments/underflow.py -c experiments/recipes/underflow.json --model demo --batch 8 --scale 1 --scale 1024

runs one step in fp32, and the same step in fp16 once for each loss scale, and reads the gradients from the checkpoints: the configuration
clips nothing and sets beta1 = 0, so AdamW's first state is the gradient. Options that are not listed here go to `starring train`."""
import argparse
import glob
import json
import os
import subprocess
import sys
import tempfile

import cli
cli.needs("numpy")
import numpy as np

import tables
from program import built

SCALES = (1.0, 1024.0, 65536.0)
SOURCE = 1e-5      # the gradient of the textbook's example
SMALLEST_NORMAL = 2.0 ** -14


def parse(argv):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-c", "--config", required=True, help="a configuration such as experiments/recipes/underflow.json")
    p.add_argument("--scale", type=float, action="append", metavar="S", help="a loss scale; repeatable (1, 1024, 65536)")
    p.add_argument("--program", default=built(), help="(%(default)s)")
    p.add_argument("--json", action="store_true", help="print one JSON document")
    return p.parse_known_args(argv)


def gradients(folder):
    """{name: fp32 array} of the first state of each tensor, of all files of the checkpoint of step 1."""
    found = {}
    for path in sorted(glob.glob(os.path.join(folder, "checkpoints", "step-1", "*.safetensors"))):
        with open(path, "rb") as f:
            length = int.from_bytes(f.read(8), "little")
            header = json.loads(f.read(length))
        values = np.memmap(path, dtype="<f4", mode="r", offset=8 + length)
        for name, said in header.items():
            if name.startswith("state0/"):
                begin, end = (byte // 4 for byte in said["data_offsets"])
                found[name] = values[begin:end]
    return found


def step(args, words, dtype, scale, out):
    argv = [args.program, "train", "-c", args.config, *words, "--dtype", dtype, "--quiet", "--no-weights", "--out", out]
    if scale:
        argv += ["--set", f"fp16.loss_scale={scale}"]
    p = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, preexec_fn=cli.dies_with_us())
    if p.returncode:
        raise RuntimeError(f"exit status {p.returncode}: {' '.join(argv)}\n{p.stderr.strip()}")
    with open(os.path.join(out, "config.json"), encoding="utf-8") as f:
        resolved = json.load(f)
    betas = resolved["optimizer"]["params"].get("betas", [None])
    if betas[0] != 0 or resolved["gradient_clipping"] != 0 or resolved["recovery"]["checkpoint_every"] != 1:
        raise RuntimeError(f"{args.config}: no state is the gradient itself: set optimizer.params.betas to [0, 0.999], gradient_clipping to 0 and "
                           "recovery.checkpoint_every to 1")
    return gradients(out)


def kind(name):
    """state0/block.3.wqkv@0 -> block.wqkv"""
    return ".".join(word for word in name[len("state0/"):].split("@")[0].split(".") if not word.isdigit())


def count(exact, by_scale):
    """[{kind, elements, nonzero, and for each scale: vanished, rounded, denormal}]; the last entry is the sum over all kinds. vanished: zero in
    fp16 where fp32's gradient is not. rounded: what becomes zero if fp32's gradient times the scale is only rounded to fp16. denormal: what
    that rounding leaves fewer than 11 bits of, zeros among it."""
    rows = {}
    for name, gradient in exact.items():
        there = gradient != 0
        row = rows.setdefault(kind(name), {"elements": 0, "nonzero": 0, "scales": [dict.fromkeys(("vanished", "rounded", "denormal"), 0) for _ in by_scale]})
        row["elements"] += gradient.size
        row["nonzero"] += int(there.sum())
        for said, (scale, found) in zip(row["scales"], by_scale):
            scaled = np.abs(gradient) * np.float32(scale)
            said["vanished"] += int((there & (found[name] == 0)).sum())
            said["rounded"] += int((there & (scaled <= 2.0 ** -25)).sum())
            said["denormal"] += int((there & (scaled < SMALLEST_NORMAL)).sum())
    total = {"kind": "all", "elements": sum(r["elements"] for r in rows.values()), "nonzero": sum(r["nonzero"] for r in rows.values()),
             "scales": [{key: sum(r["scales"][i][key] for r in rows.values()) for key in ("vanished", "rounded", "denormal")}
                        for i in range(len(by_scale))]}
    return [{"kind": k, **row} for k, row in rows.items()] + [total]


def example(value, scale):
    """The textbook's sum: what fp16 makes of a gradient, and of the gradient times the scale, divided by it again."""
    alone, scaled = np.float16(value), np.float16(np.float32(value) * np.float32(scale))
    back = float(scaled) / scale
    return {"gradient": value, "scale": scale, "fp16": float(alone), "error": abs(float(alone) - value) / value, "scaled": float(scaled),
            "back": back, "error_back": abs(back - value) / value}


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
    scales = args.scale or list(SCALES)
    try:
        with tempfile.TemporaryDirectory() as folder:
            exact = step(args, words, "fp32", None, os.path.join(folder, "fp32"))
            by_scale = [(s, step(args, words, "fp16", s, os.path.join(folder, f"fp16-{i}"))) for i, s in enumerate(scales)]
            document = {"scales": scales, "example": [example(v, 1024.0) for v in (SOURCE, 1e-6, 1e-7, 1e-8)], "rows": count(exact, by_scale)}
    except (RuntimeError, OSError) as e:
        print(f"underflow.py: error: {e}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(document, indent=1))
    else:
        show(document)
    return 0


if __name__ == "__main__":
    cli.run(main)
