#!/usr/bin/env python3
"""The same training step in PyTorch and in starring, timed in turn on one device; prints the ratio.

    experiments/gpu_peers.py [--models M1,M2] [--batch B] [--seq T] [--json FILE]
    experiments/gpu_peers.py --device cpu --models tiny --batch 2 --seq 32 --no-compile      (tries the script)

PyTorch's side is what it recommends: weights in fp32 under bf16 autocast, scaled_dot_product_attention,
torch.compile, fused AdamW, clip_grad_norm_. starring's is `starring bench step`. Model, batch, sequence and what a
step does are the same; the numbers of parameters are compared. Each round times both, PyTorch first, in a process
that lives through all rounds of its model. Where the two have no room side by side for a batch, both take half of it.

A row of the JSON document:
    model, batch, seq, dtype, params         the shape
    starring, pytorch                        {step_seconds, tokens_per_second, peak_bytes, rounds: [seconds..]}
    ratio, wanted, met                       tokens per second, starring's over PyTorch's
    error                                    instead of these, when a side failed

Exit status: 0 done (whatever the ratio), 1 a side failed, 2 wrong options, 3 nothing to compare with: PyTorch or the
GPU is missing. PyTorch must be 2.5 or newer.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import cli

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(HERE)
WANTED = 1.10
NOTHING_TO_COMPARE = 3
# As shared/model/spec.c. GPT-2: learned positions, LayerNorm, GELU, biases. The others: RoPE, RMSNorm, SwiGLU.
PRESETS = {
    "tiny": dict(family="llama", vocab=256, channels=64, layers=2, heads=4, kv_heads=2, head_size=16, ffn=176,
                 eps=1e-5, theta=1e4, bias=False, tied=False),
    "demo": dict(family="llama", vocab=256, channels=192, layers=6, heads=6, kv_heads=2, head_size=32, ffn=640,
                 eps=1e-5, theta=1e4, bias=False, tied=True),
    "gpt2-124m": dict(family="gpt2", vocab=50257, channels=768, layers=12, heads=12, kv_heads=12, head_size=64,
                      ffn=3072, eps=1e-5, positions=1024, bias=True, tied=True),
    "gpt2-1558m": dict(family="gpt2", vocab=50257, channels=1600, layers=48, heads=25, kv_heads=25, head_size=64,
                       ffn=6400, eps=1e-5, positions=1024, bias=True, tied=True),
    "qwen2.5-0.5b": dict(family="llama", vocab=151936, channels=896, layers=24, heads=14, kv_heads=2, head_size=64,
                         ffn=4864, eps=1e-6, theta=1e6, bias=True, tied=True),
    "qwen2.5-1.5b": dict(family="llama", vocab=151936, channels=1536, layers=28, heads=12, kv_heads=2, head_size=128,
                         ffn=8960, eps=1e-6, theta=1e6, bias=True, tied=True),
}


class Failed(Exception):
    pass


class NoRoom(Exception):
    """Starring finds too little device memory beside what PyTorch holds."""


# ---------------------------------------------------------------- PyTorch's side, in a process of its own
def build_model(torch, spec, seq):
    """The model as a torch.nn.Module: forward(tokens (B,T), targets (B,T)) is the mean loss."""
    nn, F = torch.nn, torch.nn.functional
    c, size, heads, kv = spec["channels"], spec["head_size"], spec["heads"], spec["kv_heads"]
    gpt2 = spec["family"] == "gpt2"

    def norm():
        return nn.LayerNorm(c, eps=spec["eps"]) if gpt2 else nn.RMSNorm(c, eps=spec["eps"])

    def rotate(x, cos, sin):  # (B,H,T,D), pairs (i, i + D/2)
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = norm(), norm()
            self.qkv = nn.Linear(c, (heads + 2 * kv) * size, bias=spec["bias"])
            self.out = nn.Linear(heads * size, c, bias=gpt2)
            self.up = nn.Linear(c, spec["ffn"] if gpt2 else 2 * spec["ffn"], bias=gpt2)
            self.down = nn.Linear(spec["ffn"], c, bias=gpt2)

        def attention(self, x, cos, sin):
            b, t, _ = x.shape
            q, k, v = self.qkv(x).split([heads * size, kv * size, kv * size], dim=-1)
            q = q.view(b, t, heads, size).transpose(1, 2)
            k = k.view(b, t, kv, size).transpose(1, 2)
            v = v.view(b, t, kv, size).transpose(1, 2)
            if not gpt2:
                q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != kv)
            return self.out(y.transpose(1, 2).reshape(b, t, heads * size))

        def mlp(self, x):
            if gpt2:
                return self.down(F.gelu(self.up(x), approximate="tanh"))
            gate, up = self.up(x).chunk(2, dim=-1)
            return self.down(F.silu(gate) * up)

        def forward(self, x, cos, sin):
            x = x + self.attention(self.norm1(x), cos, sin)
            return x + self.mlp(self.norm2(x))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte = nn.Embedding(spec["vocab"], c)
            self.wpe = nn.Embedding(spec["positions"], c) if gpt2 else None
            self.blocks = nn.ModuleList(Block() for _ in range(spec["layers"]))
            self.norm = norm()
            self.head = nn.Linear(c, spec["vocab"], bias=False)
            for p in self.parameters():
                if p.dim() > 1:
                    nn.init.normal_(p, std=0.02)
            if spec["tied"]:
                self.head.weight = self.wte.weight
            angle = torch.outer(torch.arange(seq).float(),
                                spec.get("theta", 1e4) ** (-torch.arange(0, size, 2).float() / size))
            self.register_buffer("cos", angle.cos(), persistent=False)
            self.register_buffer("sin", angle.sin(), persistent=False)

        def forward(self, tokens, targets):
            x = self.wte(tokens)
            if gpt2:
                x = x + self.wpe.weight[:tokens.shape[1]]
            for block in self.blocks:
                x = block(x, self.cos, self.sin)
            logits = self.head(self.norm(x))
            return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    return Model()


class TorchSide:
    def __init__(self, torch, job):
        self.torch, self.job, self.cuda = torch, job, job["device"] == "cuda"
        torch.manual_seed(1)
        torch.set_float32_matmul_precision("highest")
        model = build_model(torch, PRESETS[job["model"]], job["seq"]).to(job["device"])
        self.params = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            [{"params": [p for p in self.params if p.dim() > 1], "weight_decay": 0.1},
             {"params": [p for p in self.params if p.dim() < 2], "weight_decay": 0.0}],
            lr=1e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)
        self.model = torch.compile(model) if job["compile"] else model
        shape = (job["batch"], job["seq"])
        self.tokens = torch.randint(PRESETS[job["model"]]["vocab"], shape, device=job["device"])
        self.targets = torch.randint(PRESETS[job["model"]]["vocab"], shape, device=job["device"])

    def wait(self):
        if self.cuda:
            self.torch.cuda.synchronize()

    def step(self):
        torch = self.torch
        with torch.autocast(self.job["device"], dtype=torch.bfloat16, enabled=self.job["dtype"] == "bf16"):
            loss = self.model(self.tokens, self.targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.params, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss

    def round(self, steps, warmup):
        loss = None
        for _ in range(warmup):
            loss = self.step()
        seconds = []
        for _ in range(steps):
            self.wait()
            start = time.perf_counter()
            loss = self.step()
            self.wait()
            seconds.append(time.perf_counter() - start)
        peak = self.torch.cuda.max_memory_allocated() if self.cuda else None
        if self.cuda:
            self.torch.cuda.empty_cache()  # starring runs next
        return {"step_seconds": statistics.median(seconds), "peak_bytes": peak, "loss": float(loss.detach()),
                "params": sum(p.numel() for p in self.params)}


def worker(job):
    """Answers each line of stdin, {"steps": N, "warmup": N}, with a line of JSON on stdout."""
    answers, sys.stdout = sys.stdout, sys.stderr  # what libraries print must not reach the answers

    def answer(value):
        print(json.dumps(value), file=answers, flush=True)

    try:
        import torch  # pylint: disable=import-outside-toplevel
    except ImportError as e:
        return answer({"missing": f"PyTorch is not installed for {sys.executable} ({e})"})
    if tuple(int(n) for n in torch.__version__.split(".")[:2]) < (2, 5):
        return answer({"missing": f"PyTorch {torch.__version__} is older than 2.5"})
    if job["device"] == "cuda" and not torch.cuda.is_available():
        return answer({"missing": f"PyTorch {torch.__version__} sees no GPU"})
    answer({"version": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()})
    try:
        side = TorchSide(torch, job)
        for line in sys.stdin:
            answer(side.round(**json.loads(line)))
    except torch.cuda.OutOfMemoryError as e:
        answer({"no_room": str(e).split(".", maxsplit=1)[0]})
    except Exception as e:  # pylint: disable=broad-except
        answer({"error": f"{type(e).__name__}: {e}"})
    return None


# ---------------------------------------------------------------- the two in turn
class TorchProcess:
    def __init__(self, args, job):
        self.p = subprocess.Popen([args.python, os.path.abspath(__file__), "--worker", json.dumps(job)], text=True,
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=None if args.verbose else subprocess.DEVNULL)
        self.versions = self.read()

    def read(self):
        line = self.p.stdout.readline()
        if not line:
            raise Failed(f"PyTorch's process ended with status {self.p.wait()}; --verbose shows what it said")
        return json.loads(line)

    def round(self, steps, warmup):
        self.p.stdin.write(json.dumps({"steps": steps, "warmup": warmup}) + "\n")
        self.p.stdin.flush()
        return self.read()

    def close(self):
        self.p.stdin.close()
        self.p.wait()
        self.p.stdout.close()


def starring_round(args, job, steps):
    argv = [args.program, "bench", "step", "--model", job["model"], "--batch", str(job["batch"]), "--seq", str(job["seq"]),
            "--dtype", job["dtype"], "--device", job["device"], "--steps", str(steps), "--json"]
    p = subprocess.run(argv, capture_output=True, text=True, check=False)
    if p.returncode != 0 and "free memory of GPU" in p.stderr:
        raise NoRoom
    if p.returncode != 0:
        raise Failed(f"{' '.join(argv)}: {p.stderr.strip() or f'exit status {p.returncode}'}")
    return json.loads(p.stdout)


def peak_of(result):
    """Device memory of a bench step: what its ledger counted, and the workspaces of libraries."""
    memory = result.get("memory") or {}
    return memory.get("ledger_peak_bytes", 0) + memory.get("workspace_bytes", 0) or None


def summarise(job, rounds):
    tokens = job["batch"] * job["seq"]
    seconds = statistics.median(r["step_seconds"] for r in rounds)
    return {"step_seconds": seconds, "tokens_per_second": tokens / seconds,
            "peak_bytes": rounds[-1].get("peak_bytes", peak_of(rounds[-1])), "rounds": [r["step_seconds"] for r in rounds]}


def compare(args, job):
    """One row, or None when there is no room for this batch: PyTorch holds its weights and moments while starring runs."""
    torch, ours, theirs = TorchProcess(args, job), [], []
    try:
        if "missing" in torch.versions:
            return {"missing": torch.versions["missing"]}
        for i in range(args.rounds):
            result = torch.round(args.steps, args.warmup if i == 0 else 1)
            if "no_room" in result:
                return None
            if "error" in result:
                raise Failed(f"PyTorch: {result['error']}")
            theirs.append(result)
            ours.append(starring_round(args, job, args.steps))
    except NoRoom:
        return None
    finally:
        torch.close()
    if ours[0]["params"] != theirs[0]["params"]:
        raise Failed(f"{job['model']}: {ours[0]['params']} parameters in starring, {theirs[0]['params']} in PyTorch: "
                     "the presets differ")
    row = {k: job[k] for k in ("model", "batch", "seq", "dtype")}
    row.update(params=ours[0]["params"], versions=torch.versions, compiled=job["compile"],
               starring=summarise(job, ours), pytorch=summarise(job, theirs), wanted=WANTED)
    row["starring"].update({k: ours[-1][k] for k in ("mfu_datasheet", "share_of_matmul") if k in ours[-1]})
    row["ratio"] = row["starring"]["tokens_per_second"] / row["pytorch"]["tokens_per_second"]
    row["met"] = row["ratio"] >= WANTED
    return row


def compare_with_room(args, job):
    """A row at the largest batch that fits; without torch.compile where that fails (no compiler, no Triton)."""
    while True:
        try:
            row = compare(args, job)
        except Failed as e:
            if not job["compile"] or "PyTorch" not in str(e):
                raise
            print(f"{job['model']}: {e}; once more without torch.compile", file=sys.stderr)
            job = {**job, "compile": False}
            continue
        if row or job["batch"] == 1:
            return row or {**job, "error": "there is no room for both at one sequence"}
        job = {**job, "batch": job["batch"] // 2}
        print(f"{job['model']}: there is no room for both at this batch; both take {job['batch']}", file=sys.stderr)


def gib(peak):
    return f"{peak / 2**30:.1f}" if peak else "-"


def print_rows(rows):
    print(f"{'model':<14} {'B':>4} {'T':>5} {'starring':>12} {'PyTorch':>12} {'ratio':>6} {'wanted':>6}  {'GiB':>6} {'GiB':>6}")
    for r in rows:
        if "error" in r:
            print(f"{r['model']:<14} {r['batch']:>4} {r['seq']:>5} failed: {r['error']}")
            continue
        note = "" if r["compiled"] else "  without torch.compile"
        print(f"{r['model']:<14} {r['batch']:>4} {r['seq']:>5} {r['starring']['tokens_per_second']:>12,.0f} "
              f"{r['pytorch']['tokens_per_second']:>12,.0f} {r['ratio']:>6.2f} {r['wanted']:>6.2f}  "
              f"{gib(r['starring']['peak_bytes']):>6} {gib(r['pytorch']['peak_bytes']):>6}{note}")
    print("tokens/s, medians of steps; ratio is starring's over PyTorch's; GiB: memory of starring, of PyTorch")


def options():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--models", default="gpt2-124m", help=f"of {' '.join(PRESETS)}; comma-separated, each may end in :BATCH "
                    "(default %(default)s)")
    ap.add_argument("--batch", type=int, default=32, help="sequences per step (default %(default)s)")
    ap.add_argument("--seq", type=int, default=1024, help="tokens a sequence (default %(default)s)")
    ap.add_argument("--dtype", default="bf16", choices=["bf16", "fp32"])
    ap.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    ap.add_argument("--steps", type=int, default=10, help="timed steps a round (default %(default)s)")
    ap.add_argument("--warmup", type=int, default=5, help="PyTorch's steps before the first round (default %(default)s)")
    ap.add_argument("--rounds", type=int, default=2, help="both are timed so often, in turn (default %(default)s)")
    ap.add_argument("--no-compile", action="store_true", help="PyTorch without torch.compile")
    ap.add_argument("--program", default=None, help="starring (default: the bundle's or build/starring)")
    ap.add_argument("--python", default=sys.executable, help="the interpreter that has PyTorch (default: this one)")
    ap.add_argument("--json", metavar="FILE", help="write the rows there")
    ap.add_argument("--verbose", action="store_true", help="show what PyTorch prints")
    ap.add_argument("--worker", help=argparse.SUPPRESS)
    return ap


def jobs_of(args):
    for name in args.models.split(","):
        model, _, batch = name.partition(":")
        if model not in PRESETS:
            raise SystemExit(f"gpu_peers: no model {model}; known: {' '.join(PRESETS)}")
        yield {"model": model, "batch": int(batch or args.batch), "seq": args.seq, "dtype": args.dtype,
               "device": args.device, "compile": not args.no_compile}


def default_program():
    for path in (os.path.join(TOP, "bin", "starring"), os.path.join(TOP, "build", "starring")):
        if os.path.exists(path):
            return path
    raise SystemExit("gpu_peers: there is no build/starring: run make, or name it with --program")


def main():
    args = options().parse_args()
    if args.worker:
        return worker(json.loads(args.worker))
    args.program = args.program or default_program()
    rows, failed = [], False
    for job in jobs_of(args):
        try:
            row = compare_with_room(args, job)
        except (Failed, OSError, ValueError) as e:
            row = {**job, "error": str(e)}
        if "missing" in row:
            print(f"gpu_peers: nothing to compare with: {row['missing']}", file=sys.stderr)
            return NOTHING_TO_COMPARE
        failed = failed or "error" in row
        rows.append(row)
    print_rows(rows)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump({"rows": rows}, f, indent=1)
    return 1 if failed else 0


if __name__ == "__main__":
    cli.run(main)
