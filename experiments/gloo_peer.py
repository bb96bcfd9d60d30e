#!/usr/bin/env python3
"""Times PyTorch's Gloo as `starring bench collective` times its engines: the same primitives, sizes and calls, in the same table.

    experiments/gloo_peer.py --ranks 2 --op all_gather,all_reduce --min-bytes 64K --max-bytes 16M [--json]
    experiments/gloo_peer.py --program build/starring --rounds 9 --min-bytes 64K --max-bytes 16M    both, alternately

Run it with a Python that has PyTorch. Ranks are processes of this host, which connect through a port of the loopback. Buffers are of fp32.
As in nccl-tests, the size of an all_gather or reduce_scatter is that of the whole buffer. The order in which Gloo sums is its own. A line
names each primitive that this PyTorch's Gloo does not have. With --program each row has the program's time divided by Gloo's, the median
of the rounds.
"""
import argparse
import importlib.util
import json
import os
import socket
import statistics
import subprocess
import sys
import time

OPS = ("broadcast", "all_reduce", "reduce", "all_gather", "reduce_scatter")
WARMUP, TIMED = 5, 20


def size_of(text):
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(float(text[:-1]) * units[text[-1].upper()]) if text[-1].upper() in units else int(text)


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="\n".join(__doc__.splitlines()[1:]),
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--op", default=",".join(OPS), help="primitives, with commas between them (%(default)s)")
    p.add_argument("--min-bytes", type=size_of, default=1 << 10)
    p.add_argument("--max-bytes", type=size_of, default=4 << 20)
    p.add_argument("--factor", type=int, default=4)
    p.add_argument("--iterations", type=int, default=TIMED)
    p.add_argument("--warmup", type=int, default=WARMUP)
    p.add_argument("--json", action="store_true", help="print one JSON document, with the keys of bench collective's")
    p.add_argument("--program", help="starring: it is timed alternately with Gloo, over --engine")
    p.add_argument("--engine", default="tcp")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    p.add_argument("--port", type=int, help=argparse.SUPPRESS)
    a = p.parse_args()
    a.ops = a.op.split(",")
    if unknown := [op for op in a.ops if op not in OPS]:
        p.error(f"--op {unknown[0]}: expected some of {', '.join(OPS)}")
    if a.rank is None and importlib.util.find_spec("torch") is None:
        p.error(f"PyTorch is not installed for {sys.executable}: run this with a Python that has it, or {sys.executable} -m pip install torch")
    if a.ranks < 2 or a.factor < 2 or a.iterations < 1 or a.min_bytes < 4 or a.max_bytes < a.min_bytes:
        p.error("at least 2 ranks, a factor of 2, one call and 4 bytes; --max-bytes is not below --min-bytes")
    return a


def calls(torch, dist, a):
    """{primitive: (the send buffer's share of a row's elements, the receive buffer's, call(send, recv))}"""
    n = a.ranks
    return {"broadcast": (1, 1, lambda x, y: dist.broadcast(x, 0)),
            "all_reduce": (1, 1, lambda x, y: dist.all_reduce(x)),
            "reduce": (1, 1, lambda x, y: dist.reduce(x, 0)),
            "all_gather": (1 / n, 1, lambda x, y: dist.all_gather(list(y.chunk(n)), x)),
            "reduce_scatter": (1, 1 / n, lambda x, y: dist.reduce_scatter(y, list(x.chunk(n))))}


def run_rank(a):
    """Runs one rank. Rank 0 prints each row as a line of JSON."""
    import torch
    import torch.distributed as dist
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // a.ranks))
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{a.port}", rank=a.rank, world_size=a.ranks)
    table = calls(torch, dist, a)
    for op in a.ops:
        size = a.min_bytes
        while size <= a.max_bytes:
            sends, receives, call = table[op]
            count = max(a.ranks, size // 4 // a.ranks * a.ranks)
            x, y = (torch.zeros(round(count * part)) for part in (sends, receives))
            try:
                for _ in range(a.warmup):
                    call(x, y)
            except (RuntimeError, NotImplementedError) as e:
                if a.rank == 0:
                    print(json.dumps({"operation": op, "why": str(e).splitlines()[0]}), flush=True)
                break
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(a.iterations):
                call(x, y)
            seconds = torch.tensor([(time.perf_counter() - begin) / a.iterations], dtype=torch.float64)
            dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
            if a.rank == 0:
                print(json.dumps({"operation": op, "size": count * 4, "seconds": seconds.item()}), flush=True)
            size *= a.factor
    dist.destroy_process_group()


def time_gloo(a):
    """Starts the ranks over PyTorch's Gloo, and returns their rows: [{operation, size, seconds}]."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    words = [sys.executable, os.path.abspath(__file__), "--port", str(port), *(w for k in ("ranks", "op", "min_bytes", "max_bytes", "factor", "iterations", "warmup")
                                                                              for w in ("--" + k.replace("_", "-"), str(getattr(a, k))))]
    ranks = [subprocess.Popen([*words, "--rank", str(r)], stdout=subprocess.PIPE if r == 0 else subprocess.DEVNULL, text=True) for r in range(a.ranks)]
    said = ranks[0].communicate()[0]
    if any(r.wait() for r in ranks):
        sys.exit("gloo_peer.py: a rank of Gloo has failed: its error is above")
    rows = [json.loads(line) for line in said.splitlines()]
    for row in rows:
        if "why" in row:
            print(f"gloo_peer.py: {row['operation']}: this PyTorch's Gloo does not have it: {row['why']}", file=sys.stderr)
    return [row for row in rows if "seconds" in row]


def time_program(a):
    """The rows of `starring bench collective`: in place, as Gloo's calls are, if the primitive has an in-place form."""
    p = subprocess.run([a.program, "bench", "collective", "--engine", a.engine, "--device", "cpu", "--ranks", str(a.ranks), "--op", a.op,
                        "--min-bytes", str(a.min_bytes), "--max-bytes", str(a.max_bytes), "--factor", str(a.factor), "--iterations",
                        str(a.iterations), "--warmup", str(a.warmup), "--json"], stdout=subprocess.PIPE, check=True)
    return [{"operation": r["operation"], "size": r["size"], "seconds": (r["in_place"] or r["out_of_place"])["seconds"]}
            for r in json.loads(p.stdout)["rows"]]


def bus_factor(op, n):
    return {"all_reduce": 2 * (n - 1) / n, "broadcast": 1, "reduce": 1}.get(op, (n - 1) / n)


def document(a, rows):
    """Gloo's rows as a document with the keys of `bench collective --json`."""
    return {"bench": "collective", "collective": "gloo (PyTorch)", "ranks": a.ranks, "ranks_are": "processes", "reduce": "native",
            "iterations": a.iterations, "warmup": a.warmup,
            "rows": [{"operation": r["operation"], "size": r["size"], "count": r["size"] // 4, "type": "fp32", "by": "library", "out_of_place": None,
                      "in_place": {"seconds": r["seconds"], "algorithm_bytes_per_second": r["size"] / r["seconds"],
                                   "bus_bytes_per_second": r["size"] / r["seconds"] * bus_factor(r["operation"], a.ranks)}} for r in rows]}


def print_table(a, rows):
    print(f"# gloo (PyTorch), {a.ranks} ranks as processes, {a.iterations} calls a row after {a.warmup} for warming up")
    print(f"# {'operation':<14} {'size (B)':>12} {'time (us)':>12} {'algbw (GB/s)':>14} {'busbw (GB/s)':>14}")
    for r in rows:
        rate = r["size"] / r["seconds"] * 1e-9
        print(f"  {r['operation']:<14} {r['size']:>12} {r['seconds'] * 1e6:>12.2f} {rate:>14.3f} {rate * bus_factor(r['operation'], a.ranks):>14.3f}")


def compare(a):
    """Times both in each round, in alternating order, and prints the median of the rounds' ratios."""
    times = {}
    for k in range(a.rounds):
        for name, run in (("gloo", time_gloo), (a.engine, time_program))[::1 if k % 2 else -1]:
            for r in run(a):
                times.setdefault((r["operation"], r["size"]), {}).setdefault(name, []).append(r["seconds"])
    rows = [{"operation": op, "size": size, "gloo_seconds": statistics.median(t["gloo"]), a.engine + "_seconds": statistics.median(t[a.engine]),
             "over_gloo": statistics.median(x / y for x, y in zip(t[a.engine], t["gloo"]))}
            for (op, size), t in times.items() if len(t) == 2]
    if a.json:
        print(json.dumps({"bench": "collective beside gloo", "ranks": a.ranks, "rounds": a.rounds, "rows": rows}, indent=2))
        return
    print(f"# {a.engine} beside PyTorch's gloo, {a.ranks} ranks, medians of {a.rounds} rounds in turn; below 1: {a.engine} is faster")
    print(f"# {'operation':<14} {'size (B)':>12} {'gloo (us)':>12} {a.engine + ' (us)':>12} {a.engine + ' / gloo':>12}")
    for r in rows:
        print(f"  {r['operation']:<14} {r['size']:>12} {r['gloo_seconds'] * 1e6:>12.2f} {r[a.engine + '_seconds'] * 1e6:>12.2f} {r['over_gloo']:>12.2f}")


def main():
    a = arguments()
    if a.rank is not None:
        return run_rank(a)
    if a.program:
        return compare(a)
    rows = time_gloo(a)
    return print(json.dumps(document(a, rows), indent=2)) if a.json else print_table(a, rows)


if __name__ == "__main__":
    main()
