"""The parts that measure single operations, collectives, and PyTorch's steps for comparison."""
import json
import shutil
import sys

from . import steps
from .work import PASSED, SKIPPED, NO_TIME


# ---------------------------------------------------------------- single operations
def kernels(short):
    """A part: `bench kernels` at a model's sizes, bf16: each operation's share of the measured copy or matrix product."""
    def part_of(checker, part):
        model, batch = steps.size_of(checker, part, short)
        size = ["--elements", 4096, "--matmul", 64, "--rounds", 1] if checker.options.quick else []
        outcome = checker.starring("bench", "kernels", "--dtype", "bf16", "--json", *steps.words_of(checker, model, batch), *size)
        if not outcome.ok:
            part.check(f"{model.preset}: bench kernels", outcome.verdict, outcome.why())
            return
        result = json.loads(outcome.text)
        part.check(f"{model.preset}: bench kernels", PASSED)
        for row in result["operations"]:
            has_target = "target_reached" in row
            part.figure(row["operation"], shapes_of=model.preset,
                        **{k: v for k, v in row.items() if k not in ("operation", "target_reached")},
                        wanted=result.get("target_share_of_copy") if has_target else None, met=row.get("target_reached"))
        copies = sorted(row["copy_bytes_per_second"] for row in result["operations"] if "copy_bytes_per_second" in row)
        copy = copies[len(copies) // 2] if copies else None
        steps.compare(checker, part, "the copy, read + written", copy and copy / 1e12, steps.COPY / 1e12, "TB/s")
    return part_of


# ---------------------------------------------------------------- collectives
def gpu_count(checker):
    if not shutil.which("nvidia-smi"):
        return 1
    outcome = checker.run(["nvidia-smi", "-L"], limit=20)
    visible = checker.place.env.get("CUDA_VISIBLE_DEVICES")
    count = sum(line.startswith("GPU ") for line in outcome.text.splitlines()) or 1
    return min(count, len([d for d in visible.split(",") if d])) if visible else count


def time_collectives(checker, part, name, argv, env=None):
    """Runs `bench collective` once. Adds a check (no wrong element) and its figures to the part. Returns the outcome."""
    size = ["--max-bytes", "4K", "--iterations", "1", "--warmup", "0"] if checker.options.quick else \
        ["--min-bytes", "64K", "--max-bytes", "256M", "--factor", "16"]
    outcome = checker.run([checker.place.program, "bench", "collective", "--device", "cuda", "--json", *argv, *size], env=env)
    if not outcome.ok:
        return outcome
    rows = json.loads(outcome.text)["rows"]
    sides = [(r, place) for r in rows for place in ("out_of_place", "in_place") if r.get(place)]
    wrong = sum(r[place]["wrong"] for r, place in sides)
    part.expect(name, bool(sides) and wrong == 0, f"{wrong} wrong elements")
    for row, place in sides:
        part.figure(name, **{k: v for k, v in row.items() if not k.endswith("_place")}, place=place, **row[place])
    return outcome


def collectives(checker, part):
    """`starring bench collective`: over NCCL with one rank and one on each GPU, and between threads on one GPU."""
    count, several = gpu_count(checker), {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    jobs = [("NCCL, 1 rank", ["--engine", "nccl", "--ranks", "1"], None),
            ("threads, 2 ranks on one GPU", ["--engine", "threads", "--ranks", "2"], None)]
    for mode in ("ordered", "native") if count > 1 else ():
        jobs.append((f"NCCL, {count} GPUs, {mode}", ["--engine", "nccl", "--ranks", str(count), "--reduce", mode], None))
    if count == 1:
        jobs.append(("NCCL, 2 ranks on one GPU", ["--engine", "nccl", "--ranks", "2"], several))
    for name, argv, env in jobs:
        if checker.left() < 3:
            part.check(name, SKIPPED, NO_TIME)
            continue
        outcome = time_collectives(checker, part, name, argv, env)
        if outcome.ok:
            continue
        refused = env is several and "does not allow" in outcome.errors  # NCCL before 2.30
        absent = "nccl" in argv and any(n.startswith("libnccl") and not f for n, f, _ in checker.place.libraries)
        part.check(name, SKIPPED if refused or absent else outcome.verdict, "libnccl.so.2 was not found" if absent else outcome.why())


# ---------------------------------------------------------------- PyTorch
WANTED_OF_PEER = 1.10
NO_ROOM = "beside ours"  # in the bench's message if the GPU has too little memory for PyTorch as well


def peer_step(checker, model, batch):
    """Runs `bench step --peer` with the largest batch for which both programs fit. Returns (batch, outcome)."""
    size = ["--steps", 2, "--rounds", 1] if checker.options.quick else ["--steps", 10, "--rounds", 2]
    while True:
        outcome = checker.starring("bench", "step", "--dtype", "bf16", "--json", *steps.words_of(checker, model, batch), *size,
                                   "--peer", checker.options.python or sys.executable)
        crowded = NO_ROOM in outcome.errors or "free memory of GPU" in outcome.errors
        if outcome.ok or not crowded or batch == 1:
            return batch, outcome
        batch //= 2


def peers(short):
    """A part: `bench step --peer`, the same step in PyTorch, alternating with the program's. The target is 1.10 times PyTorch's rate."""
    def part_of(checker, part):
        model, batch = steps.size_of(checker, part, short)
        batch, outcome = peer_step(checker, model, batch)
        if outcome.status == 2 and "PyTorch" in outcome.errors:
            part.check("PyTorch", SKIPPED, outcome.why())
            return
        if not outcome.ok:
            part.check(model.preset, outcome.verdict, outcome.why())
            return
        part.check(model.preset, PASSED)
        step = json.loads(outcome.text)
        peer, memory = step["peer"], step["memory"]
        ours = {**peer["starring"], "peak_bytes": memory["ledger_peak_bytes"] + memory["workspace_bytes"]}
        theirs = {**peer[peer["better"]], "peak_bytes": peer["peak_bytes"]}
        met = peer["ratio"] >= WANTED_OF_PEER
        part.figure(model.preset, batch=batch, seq=step["seq"], dtype=step["dtype"], params=step["params"], starring=ours,
                    pytorch=theirs, way=peer["better"], versions={k: peer[k] for k in ("pytorch", "cuda")},
                    ratio=peer["ratio"], wanted=WANTED_OF_PEER, met=met)
        if not met:
            part.finding(f"{model.preset}: {peer['ratio']:.2f} times PyTorch's tokens per second, wanted {WANTED_OF_PEER:.2f}")
    return part_of
