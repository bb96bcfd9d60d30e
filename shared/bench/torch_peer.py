"""The training step of `starring bench step` in PyTorch. It follows PyTorch's advice: weights in fp32 under bf16 autocast,
scaled_dot_product_attention, fused AdamW, clip_grad_norm_; eager or with torch.compile. `bench step --peer PYTHON` runs this
program and exchanges lines of JSON with it (bench_peer.c):

    in   the job: sizes and traits of the model (shared/model/spec.h), batch, seq, dtype, device, threads, clip (0: none), and
         matmul: the side of a square product, which runs `launches` times after each step
    out  {"version", "cuda", "threads", "params"}
    in   {"compile": true, "steps": N, "warmup": N}; out  {"seconds": [per step], "product_seconds": [per step], "peak_bytes"}
    out  instead of these: {"error": text}, {"missing": text}: no usable PyTorch, {"no_room": text}: out of GPU memory
"""
import json
import resource
import sys
import time


def build_model(torch, m, seq, device):
    """The model as a torch.nn.Module: forward(tokens (B,T), targets (B,T)) is the mean loss."""
    nn, F = torch.nn, torch.nn.functional
    c, size, heads, kv, swiglu = m["channels"], m["head_size"], m["heads"], m["kv_heads"], m["mlp"] == "swiglu"

    def norm():
        return (nn.RMSNorm if m["norm"] == "rms" else nn.LayerNorm)(c, eps=m["norm_eps"])

    angle = torch.outer(torch.arange(seq).float(), m["rope_theta"] ** (-torch.arange(0, size, 2).float() / size)).to(device)
    cos, sin = angle.cos(), angle.sin()

    def rotate(x):  # (B,H,T,D), pairs (i, i + D/2)
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = norm(), norm()
            self.qkv = nn.Linear(c, (heads + 2 * kv) * size, bias=m["qkv_bias"])
            self.out = nn.Linear(heads * size, c, bias=m["out_bias"])
            self.up = nn.Linear(c, (2 if swiglu else 1) * m["ffn"], bias=m["mlp_bias"])
            self.down = nn.Linear(m["ffn"], c, bias=m["mlp_bias"])

        def attention(self, x):
            b, t, _ = x.shape
            q, k, v = self.qkv(x).split([heads * size, kv * size, kv * size], dim=-1)
            q, k, v = (x.view(b, t, -1, size).transpose(1, 2) for x in (q, k, v))
            if not m["positions"]:
                q, k = rotate(q), rotate(k)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != kv)
            return self.out(y.transpose(1, 2).reshape(b, t, heads * size))

        def forward(self, x):
            x = x + self.attention(self.norm1(x))
            hidden = self.up(self.norm2(x))
            if not swiglu:
                return x + self.down(F.gelu(hidden, approximate="tanh"))
            gate, up = hidden.chunk(2, dim=-1)
            return x + self.down(F.silu(gate) * up)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte = nn.Embedding(m["vocab"], c)
            self.wpe = nn.Embedding(m["positions"], c) if m["positions"] else None
            self.blocks = nn.Sequential(*(Block() for _ in range(m["layers"])), norm())
            self.head = nn.Linear(c, m["vocab"], bias=False)
            for p in (p for p in self.parameters() if p.dim() > 1):
                nn.init.normal_(p, std=0.02)
            if m["tied"]:
                self.head.weight = self.wte.weight

        def forward(self, tokens, targets):
            x = self.wte(tokens) + (self.wpe.weight[:tokens.shape[1]] if self.wpe else 0)
            return F.cross_entropy(self.head(self.blocks(x)).flatten(0, 1).float(), targets.flatten())

    return Model().to(device)


def open_trainer(torch, job, turns):
    """Returns the facts of the model and of PyTorch; appends to turns the function that times steps."""
    cuda, dtype = job["device"] == "cuda", torch.bfloat16 if job["dtype"] == "bf16" else torch.float32
    torch.set_float32_matmul_precision("highest")
    torch.set_num_threads(job["threads"])
    model = build_model(torch, job["model"], job["seq"], job["device"])
    params, ways = list(model.parameters()), {False: model, True: torch.compile(model)}  # key: compiled or not
    optimizer = torch.optim.AdamW(params, lr=1e-4, weight_decay=0.1, fused=True)
    data = torch.randint(job["model"]["vocab"], (2, job["batch"], job["seq"]), device=job["device"])
    square = torch.randn(2, job["matmul"], job["matmul"], device=job["device"], dtype=dtype)

    def step(forward):
        with torch.autocast(job["device"], dtype=dtype, enabled=job["dtype"] == "bf16"):
            loss = forward(*data)
        loss.backward()
        if job["clip"]:
            torch.nn.utils.clip_grad_norm_(params, job["clip"])
        optimizer.step()
        optimizer.zero_grad()

    def products(count):
        for _ in range(count):
            torch.mm(square[0], square[1].T)

    def timed(work, what):
        start = time.perf_counter()
        work(what)
        if cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - start

    def take_turn(steps, warmup, compiled):
        pairs = [(timed(step, ways[compiled]), timed(products, job["launches"])) for _ in range(warmup + steps)]
        seconds, squares = zip(*pairs[warmup:])
        if cuda:
            torch.cuda.empty_cache()  # starring's own training continues and needs the memory
        peak = torch.cuda.max_memory_allocated() if cuda else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {"seconds": seconds, "product_seconds": squares, "peak_bytes": peak}

    turns.append(take_turn)
    return {"version": torch.__version__, "cuda": torch.version.cuda if cuda else None, "threads": torch.get_num_threads(),
            "params": sum(p.numel() for p in params)}


def serve(answer):
    job = json.loads(sys.stdin.readline())
    try:
        import torch  # pylint: disable=import-outside-toplevel
    except ImportError as e:
        return answer(missing=f"PyTorch is not installed for it ({e})")
    old = tuple(int(n) for n in torch.__version__.split(".")[:2]) < (2, 5)
    if old or (job["device"] == "cuda" and not torch.cuda.is_available()):
        return answer(missing=f"its PyTorch {torch.__version__} {'is older than 2.5' if old else 'sees no GPU'}")

    def attempt(work):
        try:
            return answer(**work())
        except torch.OutOfMemoryError as e:
            return answer(no_room=str(e).split(".", maxsplit=1)[0])
        except Exception as e:  # pylint: disable=broad-except
            return answer(error=f"{type(e).__name__}: {e}".splitlines()[0])

    turns = []
    attempt(lambda: open_trainer(torch, job, turns))
    for line in sys.stdin:
        attempt(lambda asked=json.loads(line): turns[0](asked["steps"], asked["warmup"], asked["compile"]))
    return None


if __name__ == "__main__":
    OUT, sys.stdout = sys.stdout, sys.stderr  # output of libraries must not be mixed with the answers
    serve(lambda **says: print(json.dumps(says), file=OUT, flush=True))
