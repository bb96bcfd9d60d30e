#!/usr/bin/env python3
"""Loads an adapter that `starring train` wrote with peft, lets peft write one, and compares both programs' losses.

    python3 tests/check_peft.py ADAPTER [--program build/starring]     needs torch, transformers, peft, safetensors

ADAPTER is the directory of an fp32 run with LoRA, RUN/weights, or one of peft. Every tensor is used and none is missing; the
logits agree with the definitions in make_vectors.py. Then the loss on the same held-out tokens has to agree, computed by peft
and by the program: for ADAPTER, and for an adapter that peft has changed and saved. The program writes that adapter again
with the same tensors, to the last bit.
"""

import argparse
import json
import os
import pathlib
import struct
import subprocess
import tempfile

import peft
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from make_vectors import logits_of, mean_loss, with_adapter

LLMC_MAGIC, LLMC_HEADER = 20240520, 256  # a token file of llm.c: 256 int32, and tokens of 16 bits
WINDOWS, SEQ = 6, 24


def base_of(adapter):
    named = json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"]
    return next(p for p in (adapter / "base", pathlib.Path(named), adapter / named) if (p / "config.json").exists())


def load(adapter):
    base = AutoModelForCausalLM.from_pretrained(base_of(adapter), dtype=torch.float64, attn_implementation="eager")
    model = peft.PeftModel.from_pretrained(base, adapter, autocast_adapter_dtype=False).eval()
    tensors = load_file(adapter / "adapter_model.safetensors")
    state = peft.get_peft_model_state_dict(model)
    assert set(state) == set(tensors), set(state) ^ set(tensors)
    for name, value in tensors.items():
        assert torch.equal(state[name], value.to(state[name].dtype)), name
    return model.double(), tensors


def check_logits(adapter, model, tensors):
    """Against the definitions, which read the files without peft."""
    base, config = base_of(adapter), json.loads((adapter / "adapter_config.json").read_text())
    c = json.loads((base / "config.json").read_text())
    weights = {k: v.double() for k, v in load_file(base / "model.safetensors").items()}
    scale = config["lora_alpha"] / config["r"] ** (0.5 if config.get("use_rslora") else 1)
    tokens = torch.randint(0, c["vocab_size"], (2, 11), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        ours = logits_of(c, with_adapter(c, weights, {k: v.double() for k, v in tensors.items()}, scale), tokens)
        theirs = model(tokens).logits
        changed = (theirs - logits_of(c, weights, tokens)).abs().max()
    torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-5)
    assert changed > 0, "the adapter changes nothing"


def write_tokens(path, tokens):
    header = struct.pack("<3i", LLMC_MAGIC, 1, len(tokens)) + bytes(4 * (LLMC_HEADER - 3))
    path.write_bytes(header + struct.pack(f"<{len(tokens)}H", *tokens))


def losses(adapter, model, program, work):
    """The loss on held-out tokens: (peft's, the program's). The program takes a step of learning rate 0 before."""
    c = model.config
    seq = min(SEQ, getattr(c, "max_position_embeddings", None) or c.n_positions, getattr(c, "sliding_window", None) or SEQ)
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, c.vocab_size, (WINDOWS * seq + 1,), generator=generator)
    write_tokens(work / "held_out.bin", tokens.tolist())
    write_tokens(work / "train.bin", torch.randint(0, c.vocab_size, (1000,), generator=generator).tolist())
    with torch.no_grad():
        logits = model(tokens[:-1].view(WINDOWS, seq)).logits
        theirs = mean_loss(logits, tokens[1:].view(WINDOWS, seq)).item()
    out = work / "run"
    subprocess.run(
        [program, "train", "--topology", "local", "--model", adapter, "--data", work / "train.bin"]
        + ["--data-val", work / "held_out.bin", "--steps", "1", "--lr", "0", "--batch", "1", "--seq", str(seq)]
        + ["--set", "eval_batches=all", "--dtype", "fp32", "--out", out, "--force"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    ours = json.loads((out / "evals.jsonl").read_text().splitlines()[-1])["val_loss"]
    assert abs(ours - theirs) <= 1e-5 * theirs, f"the program's loss is {ours}, peft's {theirs}"
    return theirs, ours


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("adapter", type=pathlib.Path)
    parser.add_argument("--program", default="build/starring")
    args = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        model, tensors = load(args.adapter)
        check_logits(args.adapter, model, tensors)
        theirs, ours = losses(args.adapter, model, args.program, work)
        print(f"{args.adapter}: {len(tensors)} matrices loaded by peft {peft.__version__}; held-out loss {theirs:.6f} by peft, "
              f"{ours:.6f} by the program")

        # The other way round: peft changes the adapter and saves it.
        torch.manual_seed(3)
        with torch.no_grad():
            for name, value in model.named_parameters():
                if "lora_" in name:
                    value.copy_((value + 0.05 * torch.randn_like(value)).float())
        saved = work / "adapter"
        model.float().save_pretrained(saved, save_embedding_layers=False)
        (saved / "base").symlink_to(base_of(args.adapter).resolve())
        model, tensors = load(saved)
        theirs, ours = losses(saved, model, args.program, work)
        again = load_file(work / "run" / "weights" / "adapter_model.safetensors")
        assert set(again) == set(tensors), set(again) ^ set(tensors)
        for name, value in tensors.items():
            assert torch.equal(again[name], value), name
        print(f"peft's own adapter: held-out loss {theirs:.6f} by peft, {ours:.6f} by the program, which writes the same tensors")


if __name__ == "__main__":
    main()
