"""The parts that measure: training steps, single operations, collectives, PyTorch beside us."""
import json
import os
import shutil
import sys

from .work import FAILED, NO_TIME, PASSED, SKIPPED

GIB = 2**30
SEQ = 1024
# (model, batch or None for the largest that fits, MFU wanted on an H200)
STEPS = [("gpt2-124m", 32, 0.40), ("gpt2-1558m", None, 0.57), ("qwen2.5-1.5b", None, 0.57), ("qwen2.5-0.5b", None, 0.47)]
LARGEST_BATCH = 64
RESERVE = 6 * GIB  # context, workspaces of libraries, the products that are timed between the steps
PEERS_MISSING = 3  # gpu_peers.py's exit status


def number(value):
    return value if isinstance(value, (int, float)) else None


# ---------------------------------------------------------------- training steps
def predicted_bytes(checker, model, batch):
    """Device memory of a training step as --dry-run predicts it; None when it cannot."""
    outcome = checker.starring("train", "--dry-run", "--json", "--topology", "local", "--model", model, "--data", "demo",
                               "--batch", batch, "--seq", SEQ, "--dtype", "bf16", limit=20)
    try:
        return json.loads(outcome.text)["memory"][0]["predicted_bytes"] if outcome.ok else None
    except (ValueError, LookupError):
        return None


def largest_batch(checker, model):
    """The largest power of two whose prediction fits the device's memory beside the reserve; at least 1."""
    room = checker.facts.get("memory_bytes", 0) - RESERVE
    batch = LARGEST_BATCH
    while batch > 1 and (predicted_bytes(checker, model, batch) or 0) > room:
        batch //= 2
    return batch


def time_step(checker, part, model, batch, wanted):
    size = ["--batch", 2, "--seq", 32, "--steps", 3, "--matmul", 64] if checker.options.quick else \
        ["--batch", batch, "--seq", SEQ, "--steps", 10]
    outcome = checker.starring("bench", "step", "--device", "cuda", "--json", "--model", model, "--dtype", "bf16", *size)
    name = f"{model}: bench step"
    if not outcome.ok:
        part.check(name, outcome.verdict, outcome.why())
        return
    result = json.loads(outcome.text)
    memory = result.get("memory") or {}
    part.check(name, PASSED)
    part.expect(f"{model}: memory as predicted, to the byte", memory.get("predicted_bytes") == memory.get("ledger_peak_bytes"),
                f"predicted {memory.get('predicted_bytes')}, counted {memory.get('ledger_peak_bytes')}")
    part.expect(f"{model}: nothing allocated after the first step", not result.get("late_allocations"),
                f"{result.get('late_allocations')} allocations")
    mfu = number(result.get("mfu_datasheet"))
    part.figure(model, **{k: v for k, v in result.items() if k not in ("model", "device")}, wanted=wanted,
                met=None if mfu is None or wanted is None else mfu >= wanted)


def steps(checker, part):
    """`starring bench step`, bf16: MFU against the datasheet, share of a large matrix product of the same run."""
    part.notes.append("MFU = flops per step / step seconds / the datasheet's dense bf16 rate; wanted: on an H200")
    for model, batch, wanted in [("tiny", 2, None)] if checker.options.quick else STEPS:
        if checker.left() < 5:
            part.check(f"{model}: bench step", SKIPPED, NO_TIME)
            continue
        time_step(checker, part, model, batch or largest_batch(checker, model), wanted)


# ---------------------------------------------------------------- single operations
def bench(checker, part):
    """`starring bench kernels`, bf16: each operation's share of the measured copy or matrix product."""
    size = ["--elements", 65536, "--matmul", 64, "--rounds", 1] if checker.options.quick else []
    outcome = checker.starring("bench", "kernels", "--device", "cuda", "--dtype", "bf16", "--json", *size)
    if not outcome.ok:
        part.check("bench kernels", outcome.verdict, outcome.why())
        return
    result = json.loads(outcome.text)
    part.check("bench kernels", PASSED)
    for row in result["operations"]:
        has_target = "target_reached" in row
        part.figure(row["operation"], **{k: v for k, v in row.items() if k not in ("operation", "target_reached")},
                    wanted=result.get("target_share_of_copy") if has_target else None, met=row.get("target_reached"))


# ---------------------------------------------------------------- collectives
def gpu_count(checker):
    if not shutil.which("nvidia-smi"):
        return 1
    outcome = checker.run(["nvidia-smi", "-L"], limit=20)
    visible = checker.place.env.get("CUDA_VISIBLE_DEVICES")
    count = sum(line.startswith("GPU ") for line in outcome.text.splitlines()) or 1
    return min(count, len([d for d in visible.split(",") if d])) if visible else count


def time_collectives(checker, part, name, argv, env=None):
    """One `bench collective` as a check (no wrong element) and figures; the outcome."""
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
    jobs = [("NCCL, 1 rank", ["--collective", "nccl", "--ranks", "1"], None),
            ("threads, 2 ranks on one GPU", ["--collective", "local", "--ranks", "2"], None)]
    for mode in ("ordered", "native") if count > 1 else ():
        jobs.append((f"NCCL, {count} GPUs, {mode}", ["--collective", "nccl", "--ranks", str(count), "--reduce", mode], None))
    if count == 1:
        jobs.append(("NCCL, 2 ranks on one GPU", ["--collective", "nccl", "--ranks", "2"], several))
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
def peers(checker, part):
    """experiments/gpu_peers.py: the same steps in PyTorch, in the same run; wanted is 1.10 times its rate."""
    script, found = os.path.join(checker.place.top, "experiments", "gpu_peers.py"), os.path.join(checker.out, "peers.json")
    models = [(m, b or largest_batch(checker, m)) for m, b, _ in ([("tiny", 2, None)] if checker.options.quick else STEPS)]
    for model, batch in models:
        if checker.left() < 15:
            part.check(model, SKIPPED, NO_TIME)
            continue
        argv = [checker.options.python or sys.executable, script, "--program", checker.place.program, "--models", f"{model}:{batch}",
                "--json", found]
        argv += ["--seq", "32", "--steps", "2", "--warmup", "1", "--rounds", "1"] if checker.options.quick else ["--seq", str(SEQ)]
        outcome = checker.run(argv)
        if outcome.status == PEERS_MISSING:
            part.check("PyTorch", SKIPPED, outcome.errors.strip().splitlines()[-1])
            return
        if not outcome.ok:
            said = outcome.text.strip().splitlines()
            part.check(model, outcome.verdict, said[1].strip() if len(said) > 1 and not outcome.out_of_time else outcome.why())
            continue
        part.check(model, PASSED)
        with open(found, encoding="utf-8") as f:
            for row in json.load(f)["rows"]:
                part.figure(row.pop("model"), **row)
