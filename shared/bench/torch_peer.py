"""The training step of `starring bench step` in PyTorch, as PyTorch recommends it: weights in fp32 under bf16 autocast,
scaled_dot_product_attention, fused AdamW, clip_grad_norm_; eager or with torch.compile. `bench step --peer PYTHON` runs this
text and speaks with it in lines of JSON, which bench_peer.c writes:

    in   the job: sizes and traits of the model, batch, seq, dtype, device, threads, optimizer   (shared/model/spec.h)
    out  {"version", "cuda", "threads", "params"}
    in   {"compile": true, "steps": N, "warmup": N}; out  {"seconds": [of each step], "loss", "peak_bytes"}: until stdin ends
    out  instead of any {"error": text}, {"missing": text}: no PyTorch to compare with, {"no_room": text}: of a GPU
"""
import json
import resource
import sys
import time


def build_model(torch, m, seq):
    """The model as a torch.nn.Module: forward(tokens (B,T), targets (B,T)) is the mean loss."""
    nn, F = torch.nn, torch.nn.functional
    c, size, heads, kv, swiglu = m["channels"], m["head_size"], m["heads"], m["kv_heads"], m["mlp"] == "swiglu"

    def norm():
        return (nn.RMSNorm if m["norm"] == "rms" else nn.LayerNorm)(c, eps=m["norm_eps"])

    def rotate(x, cos, sin):  # (B,H,T,D), pairs (i, i + D/2)
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

        def attention(self, x, cos, sin):
            b, t, _ = x.shape
            q, k, v = self.qkv(x).split([heads * size, kv * size, kv * size], dim=-1)
            q, k, v = (x.view(b, t, -1, size).transpose(1, 2) for x in (q, k, v))
            if not m["positions"]:
                q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != kv)
            return self.out(y.transpose(1, 2).reshape(b, t, heads * size))

        def forward(self, x, cos, sin):
            x = x + self.attention(self.norm1(x), cos, sin)
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
            self.blocks = nn.ModuleList(Block() for _ in range(m["layers"]))
            self.norm = norm()
            self.head = nn.Linear(c, m["vocab"], bias=False)
            for p in self.parameters():
                if p.dim() > 1:
                    nn.init.normal_(p, std=0.02)
            if m["tied"]:
                self.head.weight = self.wte.weight
            angle = torch.outer(torch.arange(seq).float(), m["rope_theta"] ** (-torch.arange(0, size, 2).float() / size))
            self.register_buffer("cos", angle.cos(), persistent=False)
            self.register_buffer("sin", angle.sin(), persistent=False)

        def forward(self, tokens, targets):
            x = self.wte(tokens) + (self.wpe.weight[:tokens.shape[1]] if self.wpe else 0)
            for block in self.blocks:
                x = block(x, self.cos, self.sin)
            return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())

    return Model()


class Trainer:
    def __init__(self, torch, job):
        self.torch, self.job, self.cuda = torch, job, job["device"] == "cuda"
        self.ways, self.params, self.optimizer, self.data = {}, [], None, None  # ways: by whether it is compiled

    def open(self):
        torch, job = self.torch, self.job
        torch.manual_seed(1)
        torch.set_float32_matmul_precision("highest")
        torch.set_num_threads(job["threads"] or torch.get_num_threads())
        model = build_model(torch, job["model"], job["seq"]).to(job["device"])
        self.ways, self.params = {False: model, True: torch.compile(model)}, list(model.parameters())
        groups = [{"params": [p for p in self.params if (p.dim() > 1) == wide], "weight_decay": job["weight_decay"] * wide}
                  for wide in (True, False)]
        self.optimizer = torch.optim.AdamW(groups, lr=job["lr"], betas=(job["beta1"], job["beta2"]), eps=job["eps"], fused=True)
        self.data = torch.randint(job["model"]["vocab"], (2, job["batch"], job["seq"]), device=job["device"])
        return {"version": torch.__version__, "cuda": torch.version.cuda if self.cuda else None,
                "threads": torch.get_num_threads(), "params": sum(p.numel() for p in self.params)}

    def step(self, model):
        torch, job = self.torch, self.job
        with torch.autocast(job["device"], dtype=torch.bfloat16, enabled=job["dtype"] == "bf16"):
            loss = model(*self.data)
        loss.backward()
        if job["clip"]:
            torch.nn.utils.clip_grad_norm_(self.params, job["clip"])
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.detach())  # waits until a GPU is through with all of this

    def round(self, steps, warmup, compiled):
        seconds = []
        for _ in range(warmup + steps):
            start = time.perf_counter()
            loss = self.step(self.ways[compiled])
            seconds.append(time.perf_counter() - start)
        if self.cuda:
            self.torch.cuda.empty_cache()  # starring goes on
        peak = self.torch.cuda.max_memory_allocated() if self.cuda else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {"seconds": seconds[warmup:], "loss": loss, "peak_bytes": peak}


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

    trainer = Trainer(torch, job)
    attempt(trainer.open)
    for line in sys.stdin:
        attempt(lambda asked=json.loads(line): trainer.round(asked["steps"], asked["warmup"], asked["compile"]))
    return None


if __name__ == "__main__":
    OUT, sys.stdout = sys.stdout, sys.stderr  # what libraries print must not reach the answers
    serve(lambda **says: print(json.dumps(says), file=OUT, flush=True))
