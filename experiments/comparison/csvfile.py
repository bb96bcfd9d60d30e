"""The CSV: one flat record per run."""
import csv

from . import comparability, noise
from .runs import CLASSES, PINNED, device_bytes
from .table import SERVER_TIMES, fullest_gpu, server_times, time_per_step

# Every CSV begins with these columns. The other keys of summary.json's top level, and of its totals, follow.
HEAD = ("medium", "launch", "revision", "topology", "stage", "consistency", "workers", "servers", "model", "dtype", "device", "params",
        "seed", "data", "steps", "skipped", "tokens_per_step", "train_batch_size", "tokens_per_second", "weights_hash", "tokens_applied",
        "samples_applied", "seconds")
TOTALS = ("memory_bytes", "pss_bytes", "rss_bytes", "sent_per_step", "received_per_step", "cpu_seconds")


def csv_record(run):
    """One flat record per run; bytes are bytes, times seconds per step."""
    record = {"run": run.name, "label": run.label, "repeat": run.repeat + 1}
    for key in ("host", "lr", "clip"):
        record[key] = comparability.fact(run, key)
    record.update((key, run.summary.get(key)) for key in HEAD)
    record.update((key, value) for key, value in run.summary.items() if not isinstance(value, (dict, list)))
    for key in ("median", "p5", "p95"):
        record[f"step_seconds_{key}"] = run.get("step_seconds", key)
    record["loss_first"], record["loss_last"] = run.losses[0], run.losses[-1]
    record["val_loss"], record["unigram_entropy"] = run.val_loss, run.unigram_entropy
    record["weights_hash"], record["cpu_kernel"] = run.weights_hash, run.get("cpu_kernel", "name")
    for key, value in time_per_step(run).items():
        record[f"seconds_per_step_{key}"] = f"{value:.6g}"
    servers = server_times([run])
    for key, _ in SERVER_TIMES:
        record[f"server_seconds_per_step_{key}"] = f"{servers[key]:.6g}" if key in servers else None
    for key in dict.fromkeys([*TOTALS, *(run.totals or {})]):
        record[f"total_{key}"] = run.get("totals", key)
    for role, entry in run.roles().items():
        for kind in ("predicted", "peak"):
            word = {"peak": "measured"}.get(kind, kind)
            for name in CLASSES + [PINNED]:
                record[f"{role}_{name}_bytes_{word}"] = entry[kind].get(name, 0)
            record[f"{role}_bytes_{word}"] = device_bytes(entry[kind])
        for key in ("formula_bytes", "rss_bytes", "transport_peak_bytes"):
            record[f"{role}_{key}"] = entry.get(key)
        for key, value in (run.wire_of(role) or {}).items():
            if key not in ("rank", "role"):
                record[f"{role}_wire_{key}"] = value
    gpu = fullest_gpu(run) or {}
    for key in ("name", "used_bytes", "ledger_bytes", "workspace_bytes", "other_bytes"):
        record[f"gpu_{key}"] = gpu.get(key)
    record["step_seconds_spread"] = noise.spread_of(run)
    for key in ("others_share", "stolen_share", "own_cpu_seconds", "busy_cpu_seconds", "cores"):
        record[f"load_{key}"] = run.load.get(key)
    record["uncertain"] = "; ".join(noise.why_noisy(run))
    record["rounds"] = len(run.turns["slices"]) if run.turns else None
    for key, value in run.point:
        record[f"sweep_{key}"] = value
    for key in ("mean", "max"):
        record[f"staleness_{key}"] = run.get("staleness", key)
    return record


def write_csv(path, runs, failed):
    """Writes one record per run; a failed run has only its name and the reason."""
    records = [csv_record(r) for r in runs] + [{"run": f.name, "label": f.label, "failed": f.why} for f in failed]
    with open(path, "w", encoding="utf-8", newline="") as f:
        table = csv.DictWriter(f, dict.fromkeys(key for record in records for key in record), lineterminator="\n")
        table.writeheader()
        table.writerows(records)
