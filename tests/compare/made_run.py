"""Made-up run directories, for tests and for made-up programs, which start fast: nothing beside the standard library is imported."""
import json
import os

LOSSES = ["5.5451774597167969", "5.5", "5.25", "5.125"]
HASH = "0x0123456789abcdef"


def explained(topology):
    """summary.json's words of a topology, as the program would have them."""
    kind, ordered = topology.split(":")[0], topology in ("local", "ps:sync") or topology.startswith("zero:")
    return {"picture": {"ps": "star", "zero": "ring"}.get(kind, None if kind == "local" else kind), "how": f"This is how {kind} works.", "rule": f"This is when {topology} updates." if kind == "ps" else None,
            "differs": None if ordered else f"the servers of {topology} do as they like",
            "loss_of": "worker 0's own samples" if topology in ("ps:async", "gossip") else "the global batch",
            "waits_for_all": kind != "ps" or ordered}


def make_run(directory, topology, losses=LOSSES, weights_hash=HASH, config=None, evals=None, **summary):
    """A finished run as the program leaves it; losses are written as the texts given."""
    os.makedirs(directory, exist_ok=True)
    star = topology.startswith("ps:")
    classes = {"parameter": 1 << 20, "gradient": 1 << 20, "activation": 3 << 20}
    worker = {"rank": 0, "role": "worker", "predicted": classes, "peak": dict(classes), "formula": "4P+12P/N", "formula_bytes": 4 << 20, "rss_bytes": 9 << 20, "transport_peak_bytes": 0}
    wire = {"rank": 0, "role": "worker", "sent_per_step": 3 << 20, "received_per_step": 3 << 20,
            "predicted_sent": 3 << 20, "predicted_received": 3 << 20}
    full = {"topology": topology, "explained": explained(topology), "workers": 1 if topology == "local" else 2, "servers": 1 if star else 0,
            "dtype": "bf16", "device": "cpu", "params": 3000000, "steps": len(losses), "tokens_per_step": 1024,
            "model": "demo", "data": "demo", "seed": 1, "skipped": 0, "train_batch_size": 8,
            "tokens_per_second": 2000.0, "step_seconds": {"median": 0.5, "p5": 0.4, "p95": 0.6},
            "loss": {"first": float(losses[0]), "last": float(losses[-1])}, "val_loss": 2.5, "unigram_entropy": 3.25,
            "weights_hash": weights_hash, "memory": [worker], "wire": [wire],
            "medium": "none" if topology == "local" else "shm", "launch": "processes" if star else "mpi", "revision": "abc1",
            "machine": {"host": "here", "processor": "some CPU", "cores": 2, "memory_bytes": 4 << 30},
            "totals": {"memory_bytes": 20 << 20, "rss_bytes": 70 << 20, "pss_bytes": 50 << 20, "sent_per_step": 12 << 20,
                       "received_per_step": 12 << 20, "cpu_seconds": 3.5},
            "time": {"data": 0.1, "forward": 0.5, "backward": 1.0, "comm_exposed": 0.1, "comm_overlapped": 0.2,
                     "optimizer": 0.1, "wait": 0.05, "host": 0.15, "total": 2.0}}
    if star:
        full["memory"] = [worker, {"rank": 0, "role": "server", "predicted": {"master": 6 << 20}, "peak": {"master": 6 << 20},
                                   "formula_bytes": 6 << 20, "rss_bytes": 9 << 20, "transport_peak_bytes": 1 << 19}]
        full["server_time"] = [{"receive": 0.2, "sum": 0.1, "hold": 0.05, "wait": 1.2, "update": 0.25, "reply": 0.2, "total": 2.0}]
        full["staleness"] = {"histogram": [4, 2], "max": 1, "mean": 1 / 3}
    full.update(summary)
    with open(os.path.join(directory, "summary.json"), "w", encoding="utf-8") as f:
        json.dump(full, f)
    with open(os.path.join(directory, "config.json"), "w", encoding="utf-8") as f:
        json.dump({"topology": topology, "gradient_clipping": 1.0, "optimizer": {"params": {"lr": 1e-3}}, **(config or {})}, f)
    with open(os.path.join(directory, "metrics.jsonl"), "w", encoding="utf-8") as f:
        for i, loss in enumerate(losses):
            f.write(f'{{"step": {i + 1}, "loss": {loss}, "grad_norm": 1.0, "lr": 0.001, "loss_scale": 1, '
                    f'"tokens": 1024, "seconds": 0.5, "skipped": false}}\n')
    with open(os.path.join(directory, "evals.jsonl"), "w", encoding="utf-8") as f:
        for step, loss in evals or [(len(losses), 2.5)]:
            f.write(json.dumps({"step": step, "samples": 8 * step, "updates": step, "seconds": 0.5 * step, "val_loss": loss,
                                "unigram_entropy": 3.25, "tokens": 4096}) + "\n")
    return directory
