#!/usr/bin/env python3
"""Loads a directory that `starring train` wrote with transformers and checks what it finds.

    python3 tests/check_transformers.py DIR [--same-as OTHER]      needs torch, transformers, safetensors

Every tensor is used and none is missing; its logits agree with the definitions in make_vectors.py; and with
--same-as, its weights are those of directory OTHER (written in the same type), to the last bit.
"""

import argparse
import json
import os
import pathlib

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from make_vectors import logits_of


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dir", type=pathlib.Path)
    parser.add_argument("--same-as", type=pathlib.Path)
    args = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")

    model, loading = AutoModelForCausalLM.from_pretrained(
        args.dir, dtype=torch.float64, attn_implementation="eager", output_loading_info=True
    )
    problems = {k: v for k, v in loading.items() if v}
    assert not problems, f"transformers reports {problems}"
    c = json.loads((args.dir / "config.json").read_text())
    weights = load_file(args.dir / "model.safetensors")
    tied = c["tie_word_embeddings"]
    assert tied != ("lm_head.weight" in weights), "the head must be in the file exactly when it is untied"
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight or not tied
    named = dict(model.named_parameters())
    assert set(named) == set(weights), set(named) ^ set(weights)
    for name, value in weights.items():
        assert torch.equal(named[name], value.double()), name

    positions = c.get("max_position_embeddings") or c["n_positions"]
    positions = min(positions, c.get("sliding_window") or positions)
    tokens = torch.randint(
        0, c["vocab_size"], (2, min(31, positions)), generator=torch.Generator().manual_seed(1)
    )
    with torch.no_grad():
        ours = logits_of(c, {k: v.double() for k, v in weights.items()}, tokens)
        torch.testing.assert_close(model.eval()(tokens).logits, ours, rtol=1e-5, atol=1e-5)
    if args.same_as:
        other = load_file(args.same_as / "model.safetensors")
        assert set(other) == set(weights), set(other) ^ set(weights)
        for name, value in other.items():
            assert value.dtype == weights[name].dtype and torch.equal(value, weights[name]), name
    parameters = sum(v.numel() for v in weights.values())
    print(
        f"{args.dir}: {type(model).__name__}, {parameters} parameters, logits agree"
        + (f", weights equal {args.same_as}" if args.same_as else "")
    )


if __name__ == "__main__":
    main()
