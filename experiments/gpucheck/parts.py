"""Lists the parts of gpu-check in order: correctness, speed, reasons for the speed, comparison with PyTorch."""
from . import correct, facts, speed, steps

SHORTS = {"124m": "gpt2-124m", "1.5b": "qwen2.5-1.5b", "0.5b": "qwen2.5-0.5b", "1558m": "gpt2-1558m"}


class Row:
    """One part. estimate: seconds on an H100 or H200 with 16 cores; limit: seconds after which its remaining checks are skipped."""

    def __init__(self, name, run, title, estimate, limit):
        self.name, self.run, self.title, self.estimate, self.limit = name, run, title, estimate, limit

    @property
    def group(self):
        return self.name.split("-")[0]


def by_model(group, make, title, estimates, limit):
    return [Row(f"{group}-{short}", make(short), f"{title}: {SHORTS[short]}", estimate, limit)
            for short, estimate in estimates.items()]


# The estimates are measured on an H100 with 16 cores if the part has run there (docs/results), else calculated, and rather too
# long than too short. A program that opens the device takes 1 to 3 s. One that trains 1.5 billion parameters takes 12 s before its
# first step and after its last one (initial weights, hash). PyTorch compiles for 20 to 90 s.
ROWS = [
    Row("facts", facts.facts, "the device, its driver and libraries", 3, 60),
    Row("ops", correct.operations, "operations against the reference", 50, 220),
    Row("attention", correct.attention, "whose attention runs", 5, 60),
    Row("parity", correct.parity, "PyTorch's vectors", 5, 60),
    Row("bits", correct.bits, "star and ring, equality of bits, bf16", 75, 220),
    Row("bits-more", correct.more_bits, "star and ring, other number formats, 4 ranks", 150, 230),
    Row("collectives", speed.collectives, "collectives", 30, 100),
    *by_model("step", steps.steps, "training steps", {"124m": 13, "1.5b": 57, "0.5b": 36, "1558m": 60}, 200),
    Row("accumulation", steps.accumulation, "16 micro-batches a step: qwen2.5-1.5b", 50, 150),
    *by_model("choices", steps.choices, "what a GPU may choose", {"124m": 27, "1.5b": 60, "0.5b": 45, "1558m": 100}, 230),
    *by_model("kernels", speed.kernels, "single operations", {"124m": 10, "1.5b": 12, "0.5b": 12, "1558m": 15}, 120),
    *by_model("peers", speed.peers, "PyTorch in the same run", {"124m": 55, "1.5b": 150, "0.5b": 150, "1558m": 170}, 235),
    Row("memcheck", correct.memcheck, "compute-sanitizer memcheck", 60, 235),
    Row("racecheck", correct.racecheck, "compute-sanitizer racecheck", 100, 235),
]
BY_NAME = {row.name: row for row in ROWS}
ORDER = list(BY_NAME)


def named(word):
    """The names of the parts that an argument of the command line selects: one part, or all parts of a group."""
    return [word] if word in BY_NAME else [row.name for row in ROWS if row.group == word]
