"""Counts what fp16 loses of gradients: reads them from checkpoints, compares them with fp32's, and rounds single numbers."""
import glob
import json
import os

import numpy as np

SMALLEST_NORMAL = 2.0 ** -14


def gradients(folder):
    """{name: fp32 array}: each tensor's first optimizer state, from all files of step 1's checkpoint."""
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


def kind(name):
    """state0/block.3.wqkv@0 -> block.wqkv"""
    return ".".join(word for word in name[len("state0/"):].split("@")[0].split(".") if not word.isdigit())


def count(exact, by_scale):
    """[{kind, elements, nonzero, and for each scale: vanished, rounded, denormal}]; the last entry is the sum over all kinds. Elements counted as
    vanished: zero in the fp16 run, but not in the fp32 run. rounded: zero if the fp32 run's gradient times the scale is rounded to fp16.
    denormal: less than fp16's smallest normal number after that scaling, so that fewer than 11 bits are left; zeros count as well."""
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
    """The textbook's example: a gradient rounded to fp16, and the gradient times the scale rounded to fp16 and divided by the scale again."""
    alone, scaled = np.float16(value), np.float16(np.float32(value) * np.float32(scale))
    back = float(scaled) / scale
    return {"gradient": value, "scale": scale, "fp16": float(alone), "error": abs(float(alone) - value) / value, "scaled": float(scaled),
            "back": back, "error_back": abs(back - value) / value}
