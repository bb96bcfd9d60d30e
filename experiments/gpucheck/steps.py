"""The parts that time whole training steps: each model with its defaults, and its choices one by one."""
import json

from .work import NO_TIME, PASSED, SKIPPED

GIB = 2**30
SEQ = 1024
RESERVE = 6 * GIB  # for the context, the libraries' workspaces, and the products that are timed between the steps
EXPECTED_ON = "NVIDIA H200"
FIFTH = 0.2
# Rates of EXPECTED_ON: flops per second of a large product of 16-bit numbers, and bytes read + written by a copy.
PRODUCT, COPY = 690e12, 4.3e12


class Model:
    """A model that is timed. batch: sequences of SEQ tokens; mfu: the target on EXPECTED_ON, as a share of its datasheet's rate, with
    causal attention; ms: the expected time of a step there. Before it has been measured, it is calculated: matrix products at PRODUCT,
    everything else at COPY."""

    def __init__(self, preset, batch, mfu, ms):
        self.preset, self.batch, self.mfu, self.ms = preset, batch, mfu, ms


MODELS = {"124m": Model("gpt2-124m", 32, 0.40, 59), "1.5b": Model("qwen2.5-1.5b", 32, 0.57, 550),
          "0.5b": Model("qwen2.5-0.5b", 64, 0.47, 435), "1558m": Model("gpt2-1558m", 32, 0.57, 557)}
TINY = Model("tiny", 2, None, None)  # for --quick

# Variants of a step, each with its configuration keys: the size of the head's chunks of logits, and the choices of a GPU's backend.
AS_IT_IS = "as it is"
SMALL_CHUNK, LARGE_CHUNK = "logits 128 MiB", "logits 1.25 GiB"
CHUNKS = {AS_IT_IS: {}, SMALL_CHUNK: {"memory.logits_bytes": 128 << 20}, LARGE_CHUNK: {"memory.logits_bytes": 5 << 28}}
# Expected milliseconds that the large chunk saves over the small one, for the models with 151,936 tokens. Measured on an H100.
LESS_MS = (-2, 5)
CHOICES = {AS_IT_IS: {}, "attention: whole batch": {"cuda.attention_slice": "whole"},
           "bias gradient: epilogue": {"cuda.bias_grad": "epilogue"}, "bias gradient: kernel": {"cuda.bias_grad": "kernel"}}
GELU = {"GELU: fused": {"cuda.gelu": "fused"}, "GELU: apart": {"cuda.gelu": "apart"}}
ACCUMULATION = 16
# 16 times forward and backward, and one update, which takes 10 ms: 28 bytes for each of 1.54e9 parameters at COPY.
ACCUMULATED_MS = 16 * (MODELS["1.5b"].ms - 10) + 10


# The keys of the bench's device that name the kernels in use.
RAN = ("attention_forward", "attention_backward", "attention_slice_sequences", "gelu", "bias_grad")


def number(value):
    return value if isinstance(value, (int, float)) else None


def compare(checker, part, what, measured, expected, unit):
    """Adds a finding if a figure measured on EXPECTED_ON is more than a fifth from the expected one. This is no failure."""
    if expected is None or measured is None or not (checker.facts.get("name") or "").startswith(EXPECTED_ON):
        return
    low, high = expected if isinstance(expected, tuple) else (expected, expected)
    if not low - FIFTH * abs(low) <= measured <= high + FIFTH * abs(high):
        wanted = f"{low:,g}" if low == high else f"{low:,g} to {high:,g}"
        part.finding(f"{what}: {measured:,.4g} {unit}, expected {wanted}")


# ---------------------------------------------------------------- how large
def predicted_bytes(checker, model, batch):
    """Device memory of a training step as --dry-run predicts it; None when it cannot."""
    outcome = checker.starring("train", "--dry-run", "--json", "--topology", "local", "--model", model, "--data", "demo",
                               "--batch", batch, "--seq", SEQ, "--dtype", "bf16", "--device", "cuda", limit=20)
    try:
        return json.loads(outcome.text)["memory"][0]["predicted_bytes"] if outcome.ok else None
    except (ValueError, LookupError):
        return None


def batch_that_fits(checker, part, model):
    """The largest batch whose predicted memory and RESERVE fit the device: the model's own, or that halved once or more."""
    room, batch = checker.facts.get("memory_bytes", 0) - RESERVE, model.batch
    while batch > 1 and (predicted_bytes(checker, model.preset, batch) or 0) > room:
        batch //= 2
    if batch < model.batch:
        part.notes.append(f"{model.preset}: {model.batch} sequences do not fit this device: {batch}")
    return batch


def size_of(checker, part, short):
    """(model, batch) of this run: the one of that short name, or with --quick the tiny one."""
    model = TINY if checker.options.quick else MODELS[short]
    return model, TINY.batch if checker.options.quick else batch_that_fits(checker, part, model)


def words_of(checker, model, batch):
    """The command line options for this model and batch."""
    return ["--device", "cuda", "--model", model.preset, "--batch", batch, "--seq", 32 if checker.options.quick else SEQ]


# ---------------------------------------------------------------- one step
def check_memory(part, name, result):
    memory = result.get("memory") or {}
    part.expect(f"{name}: memory as predicted, to the byte", memory.get("predicted_bytes") == memory.get("ledger_peak_bytes"),
                f"predicted {memory.get('predicted_bytes')}, counted {memory.get('ledger_peak_bytes')}")
    part.expect(f"{name}: nothing allocated after the first step", not result.get("late_allocations"),
                f"{result.get('late_allocations')} allocations")


def time_step(checker, part, model, batch, way, settings, expected=None, steps=10):
    """Runs `bench step` once. Adds checks and a figure to the part. Returns the bench's document, or None. expected: ms."""
    name = f"{model.preset}, {way}"
    if checker.left() < 5:
        part.check(name, SKIPPED, NO_TIME)
        return None
    more = ["--steps", 2, "--matmul", 64] if checker.options.quick else ["--steps", steps]
    for key, value in settings.items():
        more += ["--set", f"{key}={value}"]
    outcome = checker.starring("bench", "step", "--json", "--dtype", "bf16", *words_of(checker, model, batch), *more)
    if not outcome.ok:
        part.check(name, outcome.verdict, outcome.why())
        return None
    result = json.loads(outcome.text)
    part.check(name, PASSED)
    check_memory(part, name, result)
    for line in outcome.errors.splitlines():
        said = line.partition("starring: warning: ")[2]
        if said and not any(text.endswith(said) for text in part.findings):  # each remark once per part
            part.finding(f"{name}: {said}")
    mfu = number(result.get("mfu_datasheet_causal"))
    expected = None if checker.options.quick or batch != model.batch else expected
    ran = {k: (result.get("device") or {}).get(k) for k in RAN}
    part.figure(model.preset, way=way, **{k: v for k, v in result.items() if k not in ("model", "device")}, ran=ran,
                wanted=model.mfu, met=None if mfu is None or model.mfu is None else mfu >= model.mfu, expected_ms=expected)
    compare(checker, part, f"{name}: ms of a step", 1e3 * result["step_seconds"], expected, "ms")
    return result


def difference(checker, part, model, found, ways, expected=None):
    """Adds the time that the second variant saves over the first as a figure; expected: ms."""
    first, second = (found.get(way) for way in ways)
    if not first or not second:
        return
    less = 1e3 * (first["step_seconds"] - second["step_seconds"])
    part.notes.append(f"{model.preset}: {ways[1]} takes {abs(less):.2f} ms {'less' if less > 0 else 'more'} than {ways[0]}"
                      + (f"; expected on an {EXPECTED_ON[7:]}: {expected[0]} to {expected[1]} ms less" if expected else ""))
    compare(checker, part, f"{model.preset}: {ways[1]} against {ways[0]}", less, expected, "ms less")


# ---------------------------------------------------------------- the parts
def steps(short):
    """A part: the model as it is, and with small and large chunks of logits."""
    def part_of(checker, part):
        part.notes.append("MFU: flops of a step / its seconds / the datasheet; wanted with causal attention")
        model, batch = size_of(checker, part, short)
        found = {way: time_step(checker, part, model, batch, way, settings, model.ms if way == AS_IT_IS else None)
                 for way, settings in CHUNKS.items()}
        product = (found[AS_IT_IS] or {}).get("matmul_flops_per_second")
        compare(checker, part, "the large matrix product", product and product / 1e12, PRODUCT / 1e12, "TFLOP/s")
        difference(checker, part, model, found, (SMALL_CHUNK, LARGE_CHUNK), LESS_MS if "qwen" in model.preset else None)
    return part_of


def choices(short):
    """A part: the choices of a GPU's backend, one at a time, compared with the model as it is."""
    def part_of(checker, part):
        model, batch = size_of(checker, part, short)
        ways = {**CHOICES, **(GELU if MODELS[short].preset.startswith("gpt2") else {})}
        found = {way: time_step(checker, part, model, batch, way, settings) for way, settings in ways.items()}
        for way in list(ways)[1:]:
            difference(checker, part, model, found, (AS_IT_IS, way))
    return part_of


def accumulation(checker, part):
    """16 micro-batches per step: one update, with the sum of all gradients in fp32."""
    model, batch = size_of(checker, part, "1.5b")
    time_step(checker, part, model, batch, f"accumulation {ACCUMULATION}", {"gradient_accumulation_steps": ACCUMULATION},
              ACCUMULATED_MS, steps=2)
