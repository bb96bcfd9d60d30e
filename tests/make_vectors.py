#!/usr/bin/env python3
"""Writes tests/data/vectors: what tiny models compute in fp64 with PyTorch, for tests/model/test_shared_parity.c.

    python3 tests/make_vectors.py [OUT [NAME..]]    needs torch, numpy, safetensors; transformers when installed
    python3 tests/make_vectors.py [OUT] --greedy    greedy.json alone, from the weights there; needs transformers
    python3 tests/make_vectors.py [OUT] --lora      NAME/lora alone, from the weights there; needs peft

The models are defined here from their papers and, when transformers is installed, compared with its
own classes for them (logits and every gradient). For each model it writes

    NAME/config.json, NAME/model.safetensors   the initial weights, fp32, as a Hugging Face directory
    NAME/gradients/model.safetensors           the gradient of the mean loss, fp32, under the same names
    NAME/after/model.safetensors               the weights after ten AdamW steps on the same batch, fp32
    NAME/expected.safetensors                  tokens, targets (B,T) I64; logits (B,T,V), losses (10) F64:
                                               losses[i] is the mean loss before update i+1
    NAME/greedy.json                           prompts and what transformers' generate() appends without sampling,
                                               in fp32, from the initial weights (tests/model/test_shared_generate.c)
    NAME/lora/                                 a LoRA adapter over the initial weights, as peft saves it; under its
                                               names in gradients/ and after/ adapter_model.safetensors what training
                                               the adapter alone gives, and expected.safetensors with logits, losses

AdamW: lr 1e-3, betas (0.9, 0.95), eps 1e-8, weight decay 0.1 on matrices only, no clipping.
"""

import json
import math
import pathlib
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

BATCH, SEQ, STEPS = 2, 11, 10
LORA_RANK, LORA_ALPHA = 4, 6
ADAPTER_PREFIX, A_NAME, B_NAME = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
# Target modules of each model's adapter: all, some of a fused product, and peft's choice for GPT-2 and one name that is two
# modules.
LORA_TARGETS = {
    "llama": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "qwen": ["q_proj", "v_proj"],
    "mistral": ["k_proj", "o_proj", "up_proj"],
    "gpt2": ["c_attn", "c_proj", "c_fc"],
}
GREEDY_CASES, GREEDY_TOKENS, GREEDY_MARGIN = 4, 40, 0.01
COMMON = {
    "vocab_size": 37,
    "initializer_range": 0.02,
    "bos_token_id": None,
    "eos_token_id": None,
    "torch_dtype": "float32",
}
LLAMA = {
    **COMMON,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
}
CONFIGS = {
    # Untied; rotary frequencies scaled as in LLaMA 3, with a short original context so that it shows.
    "llama": {
        **LLAMA,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    },
    "qwen": {
        **LLAMA,
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "rope_scaling": None,
    },
    # Untied; heads wider than hidden_size / heads; a window longer than the sequences.
    "mistral": {
        **LLAMA,
        "hidden_size": 16,
        "intermediate_size": 24,
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "tie_word_embeddings": False,
        "sliding_window": 12,
    },
    "gpt2": {
        **COMMON,
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "tie_word_embeddings": True,
        "n_embd": 24,
        "n_layer": 2,
        "n_head": 3,
        "n_positions": 13,
        "n_inner": None,
        "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu_new",
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    },
}


def llama_shapes(c):
    C, D, H, KV, I = (
        c[k]
        for k in (
            "hidden_size",
            "head_dim",
            "num_attention_heads",
            "num_key_value_heads",
            "intermediate_size",
        )
    )
    shapes = {"model.embed_tokens.weight": (c["vocab_size"], C)}
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        shapes[p + "input_layernorm.weight"] = (C,)
        for name, rows in (("q", H * D), ("k", KV * D), ("v", KV * D)):
            shapes[p + f"self_attn.{name}_proj.weight"] = (rows, C)
            if c["model_type"] == "qwen2":
                shapes[p + f"self_attn.{name}_proj.bias"] = (rows,)
        shapes[p + "self_attn.o_proj.weight"] = (C, H * D)
        shapes[p + "post_attention_layernorm.weight"] = (C,)
        shapes[p + "mlp.gate_proj.weight"] = (I, C)
        shapes[p + "mlp.up_proj.weight"] = (I, C)
        shapes[p + "mlp.down_proj.weight"] = (C, I)
    shapes["model.norm.weight"] = (C,)
    if not c["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (c["vocab_size"], C)
    return shapes


def gpt2_shapes(c):
    C = c["n_embd"]
    I = c.get("n_inner") or 4 * C
    shapes = {"transformer.wte.weight": (c["vocab_size"], C), "transformer.wpe.weight": (c["n_positions"], C)}
    for i in range(c["n_layer"]):
        p = f"transformer.h.{i}."
        for name, shape in (
            ("ln_1", (C,)),
            ("attn.c_attn", (C, 3 * C)),
            ("attn.c_proj", (C, C)),
            ("ln_2", (C,)),
            ("mlp.c_fc", (C, I)),
            ("mlp.c_proj", (I, C)),
        ):
            shapes[p + name + ".weight"] = shape  # Conv1D: (in, out)
            shapes[p + name + ".bias"] = shape[-1:]
    shapes["transformer.ln_f.weight"] = (C,)
    shapes["transformer.ln_f.bias"] = (C,)
    if not c["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (c["vocab_size"], C)
    return shapes


def shapes_of(c):
    return gpt2_shapes(c) if c["model_type"] == "gpt2" else llama_shapes(c)


def rope_frequencies(c):
    D = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    freq = c.get("rope_theta", 10000.0) ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
    scaling = c.get("rope_scaling")
    if not scaling:
        return freq
    if scaling["rope_type"] == "linear":
        return freq / scaling["factor"]
    # LLaMA 3: long waves are slowed down, short ones kept, those between interpolated.
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * freq / (2 * math.pi)
    smooth = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - smooth) * freq / scaling["factor"] + smooth * freq


def attention(q, k, v):
    """q (B,H,T,D), k and v (B,KV,T,D); causal, heads in groups."""
    B, H, T, D = q.shape
    k, v = (x.repeat_interleave(H // x.shape[1], dim=1) for x in (k, v))
    scores = q @ k.transpose(2, 3) / math.sqrt(D)
    scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, H * D)


def llama_logits(c, w, tokens):
    B, T = tokens.shape
    H, KV = c["num_attention_heads"], c["num_key_value_heads"]
    D = c.get("head_dim") or c["hidden_size"] // H
    x = w["model.embed_tokens.weight"][tokens]
    angle = torch.arange(T, dtype=torch.float64)[:, None] * rope_frequencies(c)[None, :]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)  # (T,D/2)

    def norm(x, weight):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + c["rms_norm_eps"]) * weight

    def rotate(x):
        a, b = x[..., : D // 2], x[..., D // 2 :]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        n = norm(x, w[p + "input_layernorm.weight"])
        q, k, v = (
            F.linear(n, w[p + f"self_attn.{s}_proj.weight"], w.get(p + f"self_attn.{s}_proj.bias"))
            .view(B, T, heads, D)
            .transpose(1, 2)
            for s, heads in (("q", H), ("k", KV), ("v", KV))
        )
        x = x + F.linear(attention(rotate(q), rotate(k), v), w[p + "self_attn.o_proj.weight"])
        n = norm(x, w[p + "post_attention_layernorm.weight"])
        gate, up = F.linear(n, w[p + "mlp.gate_proj.weight"]), F.linear(n, w[p + "mlp.up_proj.weight"])
        x = x + F.linear(F.silu(gate) * up, w[p + "mlp.down_proj.weight"])
    return F.linear(norm(x, w["model.norm.weight"]), w.get("lm_head.weight", w["model.embed_tokens.weight"]))


def gpt2_logits(c, w, tokens):
    B, T = tokens.shape
    C, H = c["n_embd"], c["n_head"]
    x = w["transformer.wte.weight"][tokens] + w["transformer.wpe.weight"][:T]

    def norm(x, name):
        return F.layer_norm(x, (C,), w[name + ".weight"], w[name + ".bias"], c["layer_norm_epsilon"])

    def dense(x, name):
        return x @ w[name + ".weight"] + w[name + ".bias"]

    for i in range(c["n_layer"]):
        p = f"transformer.h.{i}."
        qkv = dense(norm(x, p + "ln_1"), p + "attn.c_attn").split(C, -1)
        x = x + dense(attention(*(y.view(B, T, H, C // H).transpose(1, 2) for y in qkv)), p + "attn.c_proj")
        x = x + dense(
            F.gelu(dense(norm(x, p + "ln_2"), p + "mlp.c_fc"), approximate="tanh"), p + "mlp.c_proj"
        )
    return F.linear(norm(x, "transformer.ln_f"), w.get("lm_head.weight", w["transformer.wte.weight"]))


def logits_of(c, w, tokens):
    """(B,T,V) of the model that config c and weights w (by Hugging Face name) describe."""
    return (gpt2_logits if c["model_type"] == "gpt2" else llama_logits)(c, w, tokens)


def mean_loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def initial_weights(c, generator):
    """fp32. Larger than a real initialization, and nothing is exactly one or zero: every term counts."""
    w = {}
    for name, shape in shapes_of(c).items():
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        is_norm = len(shape) == 1 and not name.endswith("bias")
        w[name] = (1 + 0.1 * x if is_norm else 0.15 * x).float()
    return w


def save(path, tensors):
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({k: v.detach().contiguous() for k, v in tensors.items()}, path, metadata={"format": "pt"})


def compare_with_transformers(directory, tokens, targets, logits, gradients):
    try:
        from transformers import AutoModelForCausalLM
    except ImportError:
        print(f"{directory.name}: transformers is not installed, not compared")
        return
    model = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float64, attn_implementation="eager"
    ).eval()
    theirs = model(tokens).logits
    # transformers computes rotary angles in fp32.
    torch.testing.assert_close(theirs, logits, rtol=1e-5, atol=1e-5)
    mean_loss(theirs, targets).backward()
    named = dict(model.named_parameters())
    for name, gradient in gradients.items():
        torch.testing.assert_close(named[name].grad, gradient, rtol=1e-4, atol=1e-6)
    print(f"{directory.name}: logits and {len(gradients)} gradients agree with {type(model).__name__}")


def greedy_case(model, prompt, count):
    """The continuation that generate() appends to prompt, and the margin of the least clear of its choices."""
    out = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        min_new_tokens=count,
        max_new_tokens=count,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_logits=True,
    )
    best = torch.cat(out.logits).topk(2).values
    return {
        "prompt": prompt,
        "ids": out.sequences[0, len(prompt) :].tolist(),
        "least_margin": round((best[:, 0] - best[:, 1]).min().item(), 6),
    }


def write_greedy(directory):
    """Keeps the first prompts whose continuation varies and whose choices no rounding can turn."""
    try:
        import transformers
    except ImportError:
        print(f"{directory.name}: transformers is not installed, greedy.json left as it is")
        return
    c = json.loads((directory / "config.json").read_text())
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    model.generation_config.eos_token_id = None
    generator = torch.Generator().manual_seed(7)
    positions = c.get("n_positions") or c["max_position_embeddings"]
    cases = []
    while len(cases) < GREEDY_CASES:
        length = 1 + 2 * len(cases)
        prompt = torch.randint(0, c["vocab_size"], (length,), generator=generator).tolist()
        case = greedy_case(model, prompt, min(GREEDY_TOKENS, positions - length))
        if len(set(case["ids"])) >= 4 and case["least_margin"] >= GREEDY_MARGIN:
            cases.append(case)
    lines = ",\n".join("  " + json.dumps(case) for case in cases)
    made_by = f"{type(model).__name__}.generate of transformers {transformers.__version__}"
    (directory / "greedy.json").write_text(f'{{"made_by": "{made_by}", "cases": [\n{lines}\n]}}\n')
    print(f"{directory.name}: {len(cases)} greedy continuations by {made_by}")


def write_vectors(name, out):
    c = CONFIGS[name]
    generator = torch.Generator().manual_seed(20240 + len(name))
    tokens = torch.randint(0, c["vocab_size"], (BATCH, SEQ), generator=generator)
    targets = torch.randint(0, c["vocab_size"], (BATCH, SEQ), generator=generator)
    first = initial_weights(c, generator)
    directory = out / name
    save(directory / "model.safetensors", first)
    (directory / "config.json").write_text(json.dumps(c, indent=2) + "\n")

    w = {k: v.double().requires_grad_() for k, v in first.items()}
    groups = [
        {"params": [v for v in w.values() if v.dim() == 2], "weight_decay": 0.1},
        {"params": [v for v in w.values() if v.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        logits = logits_of(c, w, tokens)
        loss = mean_loss(logits, targets)
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            save(directory / "expected.safetensors", {"tokens": tokens, "targets": targets, "logits": logits})
            gradients = {k: v.grad.clone() for k, v in w.items()}
            save(directory / "gradients" / "model.safetensors", {k: g.float() for k, g in gradients.items()})
            compare_with_transformers(directory, tokens, targets, logits.detach(), gradients)
        optimizer.step()
    save(directory / "after" / "model.safetensors", {k: v.float() for k, v in w.items()})
    expected = load_file(directory / "expected.safetensors")
    save(
        directory / "expected.safetensors", {**expected, "losses": torch.tensor(losses, dtype=torch.float64)}
    )
    print(
        f"{name}: {sum(v.numel() for v in w.values())} parameters, loss {losses[0]:.6f} -> {losses[-1]:.6f}"
    )


def lora_modules(c, targets):
    """Names of the modules that an adapter changes, with the shape (out, in) of their product."""
    conv1d = c["model_type"] == "gpt2"
    for name, shape in shapes_of(c).items():
        module = name.removesuffix(".weight")
        if len(shape) == 2 and module.rsplit(".", 1)[-1] in targets:
            yield module, shape[::-1] if conv1d else shape


def with_adapter(c, w, adapter, scale):
    """The weights with the adapter's products added: W + scale B A (transposed for Conv1D)."""
    w = dict(w)
    for name, a in adapter.items():
        if name.endswith(A_NAME):
            added = scale * adapter[name.removesuffix(A_NAME) + B_NAME] @ a
            weight = name.removeprefix(ADAPTER_PREFIX).removesuffix(A_NAME) + ".weight"
            w[weight] = w[weight] + (added.T if c["model_type"] == "gpt2" else added)
    return w


def save_with_peft(directory, base, targets, adapter, tokens, targets_of_tokens, logits, gradients):
    """Lets peft write its two files, and compares its logits and gradients with ours."""
    import peft
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64, attn_implementation="eager")
    model.name_or_path = ".."
    conv1d = model.config.model_type == "gpt2"
    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=LORA_RANK,
        lora_alpha=LORA_ALPHA,
        target_modules=sorted(targets),
        fan_in_fan_out=conv1d,
        base_model_name_or_path="..",
    )
    model = peft.get_peft_model(model, config).eval()
    loaded = peft.set_peft_model_state_dict(model, adapter)
    assert not loaded.unexpected_keys, loaded.unexpected_keys
    theirs = model(tokens).logits
    torch.testing.assert_close(theirs, logits, rtol=1e-5, atol=1e-5)
    mean_loss(theirs, targets_of_tokens).backward()
    named = {k.replace(".default", ""): v for k, v in model.named_parameters() if v.requires_grad}
    assert set(named) == set(gradients), set(named) ^ set(gradients)
    for name, gradient in gradients.items():
        torch.testing.assert_close(named[name].grad, gradient, rtol=1e-4, atol=1e-6)
    model.float().save_pretrained(directory, save_embedding_layers=False)
    (directory / "README.md").unlink()  # a card for the hub
    # A set has no order from run to run.
    path = directory / "adapter_config.json"
    text = json.loads(path.read_text())
    path.write_text(json.dumps({**text, "target_modules": sorted(text["target_modules"])}, indent=2) + "\n")
    print(f"{base.name}: logits and {len(gradients)} gradients of the adapter agree with peft {peft.__version__}")


def write_lora(base):
    c = json.loads((base / "config.json").read_text())
    targets, scale = LORA_TARGETS[base.name], LORA_ALPHA / LORA_RANK
    w = {k: v.double() for k, v in load_file(base / "model.safetensors").items()}
    expected = load_file(base / "expected.safetensors")
    tokens, labels = expected["tokens"], expected["targets"]
    generator = torch.Generator().manual_seed(99)
    adapter = {}
    for module, (rows, columns) in lora_modules(c, targets):
        for side, shape in ((A_NAME, (LORA_RANK, columns)), (B_NAME, (rows, LORA_RANK))):
            x = 0.2 * torch.randn(shape, generator=generator, dtype=torch.float64)
            # B is not zero, as it is before training, so that A has a gradient.
            adapter[ADAPTER_PREFIX + module + side] = x.float().double().requires_grad_()
    optimizer = torch.optim.AdamW(adapter.values(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    directory, file, losses = base / "lora", "adapter_model.safetensors", []
    directory.mkdir(exist_ok=True)
    for step in range(STEPS):
        optimizer.zero_grad()
        logits = logits_of(c, with_adapter(c, w, adapter, scale), tokens)
        loss = mean_loss(logits, labels)
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            first = {"logits": logits.detach()}
            gradients = {k: v.grad.clone() for k, v in adapter.items()}
            initial = {k: v.detach().clone() for k, v in adapter.items()}
            save_with_peft(directory, base, targets, initial, tokens, labels, logits.detach(), gradients)
            saved = load_file(directory / file)
            assert all(torch.equal(saved[k].double(), v) for k, v in initial.items())
            save(directory / "gradients" / file, {k: g.float() for k, g in gradients.items()})
        optimizer.step()
    save(directory / "after" / file, {k: v.float() for k, v in adapter.items()})
    save(directory / "expected.safetensors", {**first, "losses": torch.tensor(losses, dtype=torch.float64)})
    print(f"{base.name}: {len(adapter)} matrices of the adapter, loss {losses[0]:.6f} -> {losses[-1]:.6f}")


def main():
    words = [word for word in sys.argv[1:] if word not in ("--greedy", "--lora")]
    out = pathlib.Path(words[0]) if words else pathlib.Path(__file__).parent / "data" / "vectors"
    for name in words[1:] or CONFIGS:
        if "--lora" in sys.argv:
            write_lora(out / name)
            continue
        if "--greedy" not in sys.argv:
            write_vectors(name, out)
            write_lora(out / name)
        if "sliding_window" not in CONFIGS[name]:  # what is generated outgrows the window
            write_greedy(out / name)


if __name__ == "__main__":
    main()
