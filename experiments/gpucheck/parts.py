"""The parts of gpu-check in order: correct, then where the time goes, then why, then against whom."""
from . import correct, facts, speed, steps

SHORTS = {"124m": "gpt2-124m", "1.5b": "qwen2.5-1.5b", "0.5b": "qwen2.5-0.5b", "1558m": "gpt2-1558m"}


class Row:
    """estimate: seconds on an H200 with 16 cores; limit: seconds after which what has not run is skipped."""

    def __init__(self, name, run, title, estimate, limit):
        self.name, self.run, self.title, self.estimate, self.limit = name, run, title, estimate, limit

    @property
    def group(self):
        return self.name.split("-")[0]


def by_model(group, make, title, estimates, limit):
    return [Row(f"{group}-{short}", make(short), f"{title}: {SHORTS[short]}", estimate, limit)
            for short, estimate in estimates.items()]


# How the estimates come about. A program that opens the device takes 3 s, one that trains 1.5 thousand million
# parameters 12 s until its first step and after its last (initial weights, hash); then as many steps as are said in
# steps.py, two more to warm up, and 16 large products of 1.6 ms after each. A whole-model test, or one family of
# operations against the scalar reference, takes the reference 5 to 10 s on a core. PyTorch compiles for 60 to 90 s.
ROWS = [
    Row("facts", facts.facts, "the device, its driver and libraries", 10, 60),
    Row("ops", correct.operations, "operations against the reference", 80, 220),
    Row("attention", correct.attention, "whose attention runs", 15, 60),
    Row("parity", correct.parity, "PyTorch's vectors", 15, 60),
    Row("bits", correct.bits, "star and ring, equality of bits, bf16", 100, 220),
    Row("bits-more", correct.more_bits, "star and ring, other number formats, 4 ranks", 150, 230),
    Row("collectives", speed.collectives, "collectives", 30, 100),
    *by_model("step", steps.steps, "training steps", {"124m": 30, "1.5b": 60, "0.5b": 45, "1558m": 60}, 200),
    Row("accumulation", steps.accumulation, "16 micro-batches a step: qwen2.5-1.5b", 50, 150),
    *by_model("choices", steps.choices, "what a GPU may choose", {"124m": 60, "1.5b": 80, "0.5b": 60, "1558m": 120}, 230),
    *by_model("kernels", speed.kernels, "single operations", {"124m": 20, "1.5b": 25, "0.5b": 25, "1558m": 25}, 120),
    *by_model("tune", steps.tune, "products by measurement", {"124m": 35, "1.5b": 70, "0.5b": 60, "1558m": 80}, 230),
    *by_model("peers", speed.peers, "PyTorch in the same run", {"124m": 90, "1.5b": 150, "0.5b": 130, "1558m": 170}, 235),
    Row("memcheck", correct.memcheck, "compute-sanitizer memcheck", 120, 235),
    Row("racecheck", correct.racecheck, "compute-sanitizer racecheck", 120, 235),
]
BY_NAME = {row.name: row for row in ROWS}
ORDER = list(BY_NAME)


def named(word):
    """The parts that a word of the command line means: one, or all of a group."""
    return [word] if word in BY_NAME else [row.name for row in ROWS if row.group == word]
