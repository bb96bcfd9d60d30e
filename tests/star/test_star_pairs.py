#!/usr/bin/env python3
"""Each row of ps/star_pairs.c: two settings that do not go together are refused, and the error names both, why, and what to do."""
import os
import re
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import TOP, Runs


def key(*settings):
    return [word for setting in settings for word in ("--set", setting)]


def ps(*settings):
    return key(*(f"parameter_server.{setting}" for setting in settings))


DECAY = ps("delay_compensation=0.5", "delay_compensation_decay=0.9")
CYCLE = key("scheduler.type=OneCycle", "scheduler.params.cycle_min_lr=1e-4", "scheduler.params.cycle_max_lr=1e-3",
            "scheduler.params.cycle_first_step_size=2", "optimizer.params.betas=[0.9, 0.99]")
# The requirements of a setting: its topology, if it needs one, and its words.
ASKS = {
    "ON_ARRIVAL": ("async", []), "ORDERED": ("ringleader", []), "IN_STEPS": ("sync", []), "AHEAD": ("ssp:1", []), "OWN_PACE": ("async", []), "DROPS": ("backup:1", []),
    "CHANGES": ("async", []), "ONE_VERSION": ("sync", []), "ENOUGH_IS_ALL": ("backup:1", []), "ONE_RESULT": ("sync", []),
    "LOCAL_STEPS": ("", ["--local-steps", "2"]), "LOCAL_ASYNC": ("async", ["--local-steps", "2"]), "UNITS": ("", ["--resident", "units"]),
    "BESIDE": ("", ["--servers-on", "workers"]), "CODES": ("", ps("compression=int8")), "CODES_DECIDED": ("", ps("compression=int8")),
    "GROUPS": ("", ["--reduce-group", "3"]), "ELASTIC": ("", ["--elastic", "1:3"]), "OLDEST": ("", ps("read=oldest")),
    "ORDER": ("", ["--record-arrivals"]), "LOG": ("", ["--log-updates"]), "NO_OVERLAP": ("", key("zero_optimization.overlap_comm=false")),
    "SUMS_16": ("", ["--dtype", "bf16", *key("gradient_accumulation_steps=2", "data_types.grad_accum_dtype=bf16")]), "RESTART": ("", ["--restart", "1"]),
    "RESUME": ("", ["--resume", "nowhere"]), "RESUME_STATE": ("", ["--resume", "nowhere"]), "CHECKPOINTS": ("", ["--checkpoint-every", "2"]),
    "EVALUATIONS": ("", key("eval_every=2")), "MAX_LEAD": ("", ps("max_lead=1")), "SUMS": ("", ps("pushes_per_update=2")),
    "FRESH": ("", ps("max_staleness=1")), "DAMPING": ("", ps("age_damping=true")), "COMPENSATION": ("", ps("delay_compensation=0.5")),
    "NO_COMPENSATION": ("", ps("delay_compensation=0")), "DECAY": ("", DECAY), "GRACE": ("", ps("grace_ms=5")), "CYCLE": ("", CYCLE),
    "FP16": ("", ["--dtype", "fp16"]),
}
# Where no row of the pair names a topology: one that has both.
TOPOLOGY = {"ORDER": "async", "SUMS": "async", "FRESH": "async", "COMPENSATION": "async", "DECAY": "async"}


class Pairs(Runs):
    corpus = 1000

    def test_each_row(self):
        with open(os.path.join(TOP, "ps", "star_pairs.c"), encoding="utf-8") as f:
            text = re.sub(r"\s*\\\n\s*", " ", f.read())
        words = dict(re.findall(r'\bS\((\w+), .*?,\s*(?:\S+ \? )?("[^"]+"|topology)', text))
        rows = re.findall(r"\n    \{([A-Z_0-9]+), ([A-Z_0-9]+),", text)
        self.assertGreater(len(rows), 40)
        self.assertEqual(sorted(words), sorted(ASKS))
        self.assertEqual(sorted({name for row in rows for name in row}), sorted(ASKS), "a setting that is in no row")
        for one, other in rows:
            (a, first), (b, second) = ASKS[one], ASKS[other]
            topology = "ps:" + (a or b or ("ssp:1" if one == "OLDEST" else "backup:1" if (one, other) == ("ELASTIC", "ORDER")
                                            else TOPOLOGY.get(one) or TOPOLOGY.get(other) or "sync"))
            said = [f"--topology {topology}" if words[x] == "topology" else words[x].strip('"') for x in (one, other)]
            with self.subTest(one=one, other=other):
                err = self.refused("train", "--model", "tiny", "--steps", "4", "--workers", "3", "--data", "text.txt", "--out", "run",
                                   "--topology", topology, *first, *second, said=f"error: {said[0]}: with {said[1]} ")
                self.assertRegex(err, r": with [^:]+(:\w+)? [a-z].*: [a-z]")


if __name__ == "__main__":
    unittest.main()
