#!/usr/bin/env python3
"""Places a model's ranks in three dimensions, data x tensor x pipeline, and computes what each holds and sends.

examples:
  placement.py --model experiments/recipes/models/bloom-176b.json --tensor 4 --pipe 12 --data 8 --stages units --micro 2 --batch 2048
  placement.py --model experiments/recipes/models/mt-nlg-530b.json --tensor 8 --pipe 35 --data 8 --zero 0 --batch 1920 --seconds 60.1
  placement.py --model experiments/recipes/models/deep.json --seq 64 --tensor 4 --data 2 --pipe 4 --per-node 4 --batch 16

The program trains with data parallelism only. The other two dimensions are computed from its dry run: the elements and flops of each unit,
the bytes per element of each class of memory, and the bytes that a data-parallel rank sends. Activations are by the formulas of Korthikanti et
al. (2022), the bytes of tensor and pipeline parallelism by those of Narayanan et al. (2021); docs/experiments/three-d.md has them.
Exit status: 0 done; 2 the command line is wrong, or the program refuses it."""
import argparse
import itertools
import json
import os
import sys
from dataclasses import dataclass

import cli
import tables
from prediction import CannotPredict, dryrun
from program import built

AXES = ("tensor", "data", "pipe")   # the usual order, from the innermost axis, whose ranks are neighbours, to the outermost
RECOMPUTE = ("none", "selective", "full")
CLASSES = ("parameter", "gradient", "master", "optimizer")


def parse(argv):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True, help="a config.json of GPT-2's architecture")
    p.add_argument("--tensor", type=cli.count, default=1, metavar="T", help="ranks that share each matrix (%(default)s)")
    p.add_argument("--pipe", type=cli.count, default=1, metavar="P", help="stages that share the blocks (%(default)s)")
    p.add_argument("--data", type=cli.count, default=1, metavar="D", help="copies of the model (%(default)s)")
    p.add_argument("--per-node", type=cli.count, default=8, metavar="G", help="devices of a node (%(default)s)")
    p.add_argument("--order", default=",".join(AXES), help="axes from the innermost to the outermost (%(default)s)")
    p.add_argument("--stages", choices=["blocks", "units"], default="blocks",
                   help="blocks: each stage has as many blocks; units: the embedding and the head count as a block each (%(default)s)")
    p.add_argument("--seq", type=cli.count, default=2048, metavar="T", help="tokens per sequence (%(default)s)")
    p.add_argument("--micro", type=cli.count, default=1, metavar="B", help="sequences of a micro-batch (%(default)s)")
    p.add_argument("--batch", type=cli.count, required=True, help="sequences of a step, of all ranks")
    p.add_argument("--zero", type=int, choices=[0, 1], default=1, help="stage of the data-parallel ranks (%(default)s)")
    p.add_argument("--gradients", choices=["16-bit", "fp32-too"], default="16-bit",
                   help="fp32-too: 4 more bytes per element, for the sum of the micro-batches (%(default)s)")
    p.add_argument("--recompute", choices=RECOMPUTE, default="full", help="(%(default)s)")
    p.add_argument("--sequence-parallel", action="store_true", help="tensor ranks share the activations between the matrices too")
    p.add_argument("--inside", type=cli.above_zero, default=300, metavar="GB/s", help="rate of a device within its node, each way (%(default)s: A100's NVLink)")
    p.add_argument("--across", type=cli.above_zero, default=200, metavar="GB/s", help="rate of a node to the others, each way (%(default)s: eight HDR links)")
    p.add_argument("--tflops", type=cli.above_zero, metavar="X", help="Tflop/s that a device reaches: prints the step's seconds")
    p.add_argument("--seconds", type=cli.above_zero, metavar="X", help="a step's seconds: prints the Tflop/s that a device reaches")
    p.add_argument("--program", default=built(), help="(%(default)s)")
    p.add_argument("--json", action="store_true", help="print one JSON document")
    options = p.parse_args(argv)
    options.order = tuple(options.order.split(","))
    if sorted(options.order) != sorted(AXES):
        p.error(f"--order has each of {', '.join(AXES)} once")
    if options.batch % (options.data * options.micro):
        p.error(f"--batch {options.batch} is no multiple of --data x --micro = {options.data * options.micro}")
    return options


# ---------------------------------------------------------------- placement
def strides(options, order=None):
    """{axis: the difference between the numbers of two ranks that are neighbours along it}."""
    found, stride = {}, 1
    for axis in order or options.order:
        found[axis] = stride
        stride *= getattr(options, axis)
    return found


def coordinates(options):
    """[{axis: position, "rank", "node"}], one entry per rank."""
    along, ranks = strides(options), options.tensor * options.pipe * options.data
    return [{axis: rank // along[axis] % getattr(options, axis) for axis in AXES} | {"rank": rank, "node": rank // options.per_node} for rank in range(ranks)]


def members(options, axis, along):
    """The number of ranks of one group along an axis that are in the same node."""
    return max(1, min(getattr(options, axis), options.per_node // along[axis]))


def words_of(ranks):
    return " ".join(map(str, ranks)) if len(ranks) <= 4 and ranks[-1] < 100 else f"{ranks[0]}-{ranks[-1]}" if ranks[-1] - ranks[0] == len(ranks) - 1 else \
        f"{ranks[0]},{ranks[1]},..{ranks[-1]}"


def drawing(options):
    """A table with a row per stage and a column per copy of the model. A cell has the numbers of its tensor ranks; "|" begins a new node."""
    where = coordinates(options)
    cell = {(c["pipe"], c["data"]): [] for c in where}
    for c in where:
        cell[c["pipe"], c["data"]].append(c)
    rows = [["", *(f"data {d}" for d in range(options.data))]]
    shown = list(range(options.pipe)) if options.pipe <= 12 else [0, 1, 2, None, options.pipe - 1]
    for stage in shown:
        if stage is None:
            rows.append(["..", *(".." for _ in range(options.data))])
            continue
        row = [f"pipe {stage}"]
        for d in range(options.data):
            here = cell[stage, d]
            before = cell[stage, d - 1] if d else None
            row.append(("  " if before and before[-1]["node"] == here[0]["node"] else "| ") + words_of([c["rank"] for c in here]))
        rows.append(row)
    return tables.text(rows, left=1 + options.data)


# ---------------------------------------------------------------- what a rank holds and sends
@dataclass
class Model:
    """The dry run's figures: elements and flops per unit; bytes per element of each class, and sent per element, of a data-parallel rank."""
    params: int
    units: tuple
    hidden: int
    heads: int
    vocabulary: int
    bytes: dict
    sent: float


def ask(options):
    words = ["--model", options.model, "--seq", str(options.seq), "--batch", str(options.micro), "--dtype", "bf16"]
    said = dryrun.ask(options.program, (*words, "--topology", f"zero:{options.zero}", "--workers", str(options.data)) if options.data > 1
                      else (*words, "--topology", "local"))
    if not os.path.isfile(options.model):
        raise CannotPredict(f"--model {options.model} is no config.json: its n_embd, n_head and vocab_size are read from there")
    with open(options.model, encoding="utf-8") as f:
        config = json.load(f)
    for what in ("n_embd", "n_head", "vocab_size"):
        if what not in config:
            raise CannotPredict(f"{options.model} has no {what}: a config.json of GPT-2's architecture has")
        if what != "vocab_size" and config[what] % options.tensor:
            raise CannotPredict(f"{what} {config[what]} of {options.model} does not divide by --tensor {options.tensor}")
    padded = sum(u.padded for u in said.units)
    predicted = said.memory[0]["predicted"]
    return Model(said.params, said.units, config["n_embd"], config["n_head"], config["vocab_size"],
                 {c: predicted[c] / padded for c in CLASSES} | {"fp32 gradient": 4 * (options.gradients == "fp32-too")},
                 said.wire[0]["predicted_sent"] / padded if said.wire else 0)


def stages(options, model):
    """(blocks, has the embedding, has the head) of each stage."""
    blocks, extra = len(model.units) - 2, 2 if options.stages == "units" else 0
    if (blocks + extra) % options.pipe:
        raise CannotPredict(f"{blocks} blocks{' and embedding and head' if extra else ''} do not divide into --pipe {options.pipe} equal stages"
                            + ("" if extra else ": --stages units counts the embedding and the head as blocks"))
    each = (blocks + extra) // options.pipe
    last = options.pipe - 1
    return [(each - (extra // 2) * ((s == 0) + (s == last)), s == 0, s == last) for s in range(options.pipe)]


def elements(options, model, stage):
    """The elements of one rank of a stage. Tensor ranks share the matrices, and the biases of the matrices that are split by columns. Each has all norms, all
    biases that are added after a sum (6 h per block) and all positions. The tied head of the last stage is a copy of the token embedding."""
    blocks, first, last = stage
    whole = 6 * model.hidden
    words = model.vocabulary * model.hidden
    n = blocks * ((model.units[1].elements - whole) / options.tensor + whole)
    if first:
        n += words / options.tensor + model.units[0].elements - words
    if last:
        n += model.units[-1].elements + (words / options.tensor if options.pipe > 1 else 0)
    return round(n)


def activations(options, model, blocks, flying):
    """Bytes of activations (Korthikanti et al., table 2 and section 5). By the 1F1B schedule a stage holds those of `flying` micro-batches."""
    s, b, h, a, t = options.seq, options.micro, model.hidden, model.heads, options.tensor
    sbh = s * b * h
    shared = 10 / t if options.sequence_parallel else 10
    none = sbh * (shared + 24 / t + 5 * a * s / (h * t))
    if options.recompute == "full":
        return flying * blocks * 2 * sbh / (t if options.sequence_parallel else 1) + none   # the inputs of all blocks, and the activations of the block that is recomputed
    return flying * blocks * (none if options.recompute == "none" else sbh * (shared + 24 / t))


def ring(n):
    """Bytes that a rank sends per byte of an all-reduce over n ranks."""
    return 2 * (n - 1) / n


def traffic(options, model, stage, n, micro_batches):
    """{axis: bytes that a rank sends per step}. At the end of a stage all tensor ranks have the same activations: each sends its share to the next
    stage, which gathers them (Narayanan et al., section 4.1). The gradients of the two copies of a tied embedding are summed."""
    blocks, first, last = stage
    t = options.tensor
    message = 2 * options.seq * options.micro * model.hidden
    reduces = 4 + 2 * (options.recompute == "full")
    ends = (0 if first else 1) + (0 if last else 1)
    tied = 2 * model.vocabulary * model.hidden / t if options.pipe > 1 and (first or last) else 0
    return {"tensor": (blocks * reduces * ring(t) + ends * (t - 1) / t) * message * micro_batches, "data": n * model.sent,
            "pipe": ends * message / t * micro_batches + tied}


def seconds(options, sent, order=None):
    """{axis: seconds} at the links' rates: within the node, and over the node's link, which all groups of the node share."""
    along, found = strides(options, order), {}
    for axis in AXES:
        k = members(options, axis, along)
        whole = k == getattr(options, axis)
        inside = sent[axis] / (options.inside * 1e9) if k > 1 else 0
        outside = 0 if whole else options.per_node / k * sent[axis] / (options.across * 1e9)
        found[axis] = max(inside, outside)
    return found


def compute(options):
    model = ask(options)
    micro_batches = options.batch // (options.data * options.micro)
    rows = []
    for i, stage in enumerate(stages(options, model)):
        n = elements(options, model, stage)
        memory = {c: n * each for c, each in model.bytes.items() if each}
        memory["activation"] = activations(options, model, stage[0], min(options.pipe - i, micro_batches))
        if stage[2]:
            memory["logits"] = 4 * options.seq * options.micro * model.vocabulary / options.tensor
        rows.append({"stage": i, "blocks": stage[0], "elements": n, "memory": memory, "bytes": sum(memory.values()),
                     "sent": traffic(options, model, stage, n, micro_batches)})
    fullest = max(rows, key=lambda row: row["bytes"])
    busiest = {axis: max(row["sent"][axis] for row in rows) for axis in AXES}
    again = options.recompute == "full"
    flops = sum(u.forward_flops * (1 + again * u.name.startswith("block")) + u.backward_flops for u in model.units) * options.batch / options.micro
    ranks = options.tensor * options.pipe * options.data
    whole = {"parameter": 2, "gradient": 2, "master": 4, "optimizer": 8, "fp32 gradient": model.bytes["fp32 gradient"]}
    return {"ranks": ranks, "nodes": -(-ranks // options.per_node), "params": model.params, "micro_batches": micro_batches,
            "bubble": (options.pipe - 1) / micro_batches, "stages": rows, "fullest": fullest, "sent": busiest,
            "checkpoint_bytes": {"weights": model.params * 2, "weights, masters and moments": model.params * 14},
            "state_bytes": model.params * sum(whole.values()), "boundaries_bytes": 2 * options.batch * options.seq * model.hidden * (len(model.units) - 2),
            "flops": flops, "seconds": flops / ranks / options.tflops * 1e-12 if options.tflops else None,
            "tflops": flops / ranks / options.seconds * 1e-12 if options.seconds else None,
            "orders": [{"order": order, "seconds": seconds(options, busiest, order)} for order in itertools.permutations(AXES)]}


# ---------------------------------------------------------------- the report
def digits(x, places):
    """With so many decimal places, or with two digits where that leaves none."""
    return f"{x:.{places}f}" if x == 0 or x >= 10 ** -places else f"{x:.2g}"


def show(options, said):
    gb = lambda n: digits(n * 1e-9, 1)
    print(f"{options.model}: {said['params']:,} parameters; {said['ranks']} ranks = {options.tensor} tensor x {options.data} data x {options.pipe} pipe, "
          f"{said['nodes']} nodes of {options.per_node}")
    along = strides(options)
    print("rank = " + " + ".join(f"{along[axis]} {axis}" if along[axis] > 1 else axis for axis in options.order) + "; | begins a node\n")
    print(drawing(options))
    most = said["fullest"]
    print(f"\nmemory of a rank of stage {most['stage']}, the fullest ({most['blocks']} blocks, {most['elements']:,} elements), GB:\n")
    print(tables.text([["", "GB"]] + [[c, gb(n)] for c, n in most["memory"].items()] + [["all", gb(most["bytes"])]]))
    print(f"\nsent by a rank per step ({said['micro_batches']} micro-batches; the pipeline's bubble adds {said['bubble']:.1%} of the time), the busiest stage:\n")
    print(tables.text([["", "GB"]] + [[axis, gb(said["sent"][axis])] for axis in AXES]))
    print(f"\nseconds on the links, {options.inside:g} GB/s within a node and {options.across:g} GB/s between nodes, by order from the innermost axis:\n")
    print(tables.text([["", *AXES, "sum"]] + [[" ".join(o["order"]) + " *" * (o["order"] == options.order), *(digits(o["seconds"][axis], 2) for axis in AXES),
                                                digits(sum(o["seconds"].values()), 2)] for o in said["orders"]]))
    weights, all_of_it = said["checkpoint_bytes"].values()
    print(f"\nof all ranks, without sharding: state {digits(said['state_bytes'] * 1e-12, 1)} TB, inputs of all blocks of the whole batch "
          f"{digits(said['boundaries_bytes'] * 1e-12, 1)} TB (of one sequence {gb(said['boundaries_bytes'] / options.batch)} GB)")
    print(f"16-bit weights {digits(weights / 2 ** 30, 0)} GiB; with masters and moments {digits(all_of_it / 2 ** 40, 2)} TiB")
    for what, words in (("seconds", f"at {options.tflops} Tflop/s"), ("tflops", f"Tflop/s of a device, if a step takes {options.seconds} s")):
        if said[what]:
            print(f"{said['flops']:.3g} flops a step: {digits(said[what], 1)} {'s a step ' if what == 'seconds' else ''}{words}")


def main(argv=None):
    options = parse(argv)
    try:
        said = compute(options)
    except CannotPredict as e:
        print(f"placement.py: error: {e}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(said | {"ranks_at": coordinates(options)}, indent=1))
    else:
        show(options, said)
    return 0


if __name__ == "__main__":
    cli.run(main)
