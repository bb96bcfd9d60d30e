#!/usr/bin/env python3
"""Consistencies of the star with what belongs to others: each pair trains as both promise, or is refused in words.

Features of the ring in pairs: every two settings meet in some run, which has the bits of the plain run, and memory and
bytes as predicted.

A factor that must not change the arithmetic is compared with the run without it; one that does (dtype, groups, ..) is part of
both. Runs take some hundredths of a second each.
"""
import itertools
import json
import os
import random
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs

# GPT-2's traits: a tied embedding, biases, learned positions.
GPT2 = {"model_type": "gpt2", "n_embd": 48, "n_layer": 5, "n_head": 3, "n_positions": 64, "vocab_size": 256}

OFFLOAD = "zero_optimization.offload_optimizer."

FILED = ["--set", "zero_optimization.offload_param.device=nvme", "--set", "zero_optimization.offload_param.nvme_path=DISK"]

ACCUMULATE = ["--set", "gradient_accumulation_steps=3"]

# name: {setting: options}. The first setting is the plain one.
BITS = {  # part of the arithmetic: the plain run has them too
    "micro-batches": {"1": [], "3": ACCUMULATE, "3, own type": [*ACCUMULATE, "--set", "data_types.grad_accum_dtype=DTYPE"]},
    "model": {"tiny": ["--model", "tiny"], "gpt2": ["--model", "GPT2"]},
    "workers": {"2": ["--workers", "2"], "3": ["--workers", "3"], "4": ["--workers", "4"],
                "5": ["--workers", "5"], "7": ["--workers", "7"]},
    "group": {"none": [], "2": ["--reduce-group", "2"]},
    "code": {"none": [], **{name: ["--set", f"parameter_server.compression={name}"] for name in ("int8", "onebit", "topk")}},
    "documents": {"packed": [], "whole": ["--documents", "whole"]},
    "lora": {"none": [], "2": ["--set", "lora.r=2"],
             "all": ["--set", "lora.r=3", "--set", "lora.alpha=5", "--set", "lora.targets=all-linear"]},
    "dtype": {"bf16": ["--dtype", "bf16"], "fp32": ["--dtype", "fp32"], "fp16": ["--dtype", "fp16"]},
}
SAME = {  # none of these may change a bit
    "topology": {t: ["--topology", t] for t in ("zero:0", "zero:1", "zero:2", "zero:3", "ps:sync")},
    "offload": {"none": [], "cpu": ["--set", OFFLOAD + "device=cpu"],
                "params": ["--set", OFFLOAD + "device=cpu", "--set", "zero_optimization.offload_param.device=cpu"],
                "disk": ["--set", OFFLOAD + "device=nvme", "--set", OFFLOAD + "nvme_path=DISK"],
                "filed": ["--set", OFFLOAD + "device=cpu", *FILED], "all filed": ["--set", OFFLOAD + "device=nvme", "--set", OFFLOAD + "nvme_path=DISK", *FILED],
                "half": ["--set", OFFLOAD + "device=cpu", "--set", OFFLOAD + "ratio=0.5"]},
    "recompute": {
        "none": [],
        "cheap": ["--set", "activation_checkpointing.recompute=cheap"],
        "block": ["--set", "activation_checkpointing.recompute=block"],
        "four": ["--set", "activation_checkpointing.number_checkpoints=4"],
        "host": ["--set", "activation_checkpointing.cpu_checkpointing=true"],
    },
    "hpz": {"1": [], "2": ["--set", "zero_optimization.zero_hpz_partition_size=2"]},
    "bucket": {"auto": [], "60k": [w for way in ("reduce", "allgather") for w in ("--set", f"zero_optimization.{way}_bucket_size=60000")],
               "all": [w for way in ("reduce", "allgather") for w in ("--set", f"zero_optimization.{way}_bucket_size=5e8")]},
    "overlap": {"on": [], "off": ["--set", "zero_optimization.overlap_comm=false"]},
}
FACTORS = {**BITS, **SAME}
# The settings that go with codes of pushed gradients, which the star has.
CODED = {"topology": "ps:sync", "group": "none", "offload": "none", "overlap": "on", "hpz": "1", "bucket": "auto"}


def possible(case):
    """Whether the settings go together: what the program refuses, and what only the ring has."""
    if case.get("group") == "2" and case.get("workers") in ("3", "5", "7"):
        return False
    if case.get("code", "none") != "none" and any(case.get(name, only) != only for name, only in CODED.items()):
        return False
    if case.get("hpz") == "2" and (case.get("workers") in ("3", "5", "7") or case.get("topology", "zero:3") != "zero:3"):
        return False
    if case.get("topology") == "ps:sync" and (case.get("overlap", "on") != "on" or case.get("bucket", "auto") != "auto"):
        return False
    if case.get("offload") in ("params", "filed", "all filed") and case.get("topology", "zero:3") != "zero:3":
        return False
    if case.get("offload", "none") != "none" and case.get("topology", "zero:1") in ("zero:0", "ps:sync"):
        return False
    return True


def pairs_of(case):
    return {frozenset(p) for p in itertools.combinations(sorted(case.items()), 2)}


def all_pairs():
    out = set()
    for a, b in itertools.combinations(FACTORS, 2):
        for x, y in itertools.product(FACTORS[a], FACTORS[b]):
            if possible({a: x, b: y}):
                out.add(frozenset({(a, x), (b, y)}))
    return out


def covering():
    """Cases that contain every possible pair: each begins with a pair that is missing, and is filled up with what adds most."""
    rng, missing, cases = random.Random(1), all_pairs(), []
    while missing:
        case = dict(min(missing, key=sorted))
        for name in FACTORS:
            if name in case:
                continue
            settings = [s for s in FACTORS[name] if possible({**case, name: s})]
            rng.shuffle(settings)
            case[name] = max(settings, key=lambda s: len(missing & pairs_of({**case, name: s})))
        found = missing & pairs_of(case)
        assert found, f"{case} cannot be filled up: a setting that goes with nothing"
        missing -= found
        cases.append(case)
    return cases


def plain(case):
    """The same arithmetic with nothing else."""
    out = {name: case[name] if name in BITS else next(iter(FACTORS[name])) for name in FACTORS}
    # With several micro-batches stages 2 and 3 add the ranks' gradients after each, the others once: other sums.
    if case["micro-batches"] != "1" and case["topology"] in ("zero:2", "zero:3"):
        out["topology"] = "zero:2"
    if case["code"] != "none":
        out["topology"] = "ps:sync"
    return out


def setting(text):
    return ["--set", text]


# Settings that may stand beside a consistency: {name: (options, what a refusal names of it, whether the bits stay those of the run without it)}.
BESIDE = {
    "max_lead": (setting("parameter_server.max_lead=2"), "max_lead", False),
    "pushes_per_update": (setting("parameter_server.pushes_per_update=2"), "pushes_per_update", False),
    "max_staleness": (setting("parameter_server.max_staleness=1"), "max_staleness", False),
    "age_damping": (setting("parameter_server.age_damping=true"), "age_damping", False),
    "delay_compensation": (setting("parameter_server.delay_compensation=0.5"), "delay_compensation", False),
    "delay_compensation_decay": ([*setting("parameter_server.delay_compensation=0.5"), *setting("parameter_server.delay_compensation_decay=0.9")],
                                 "delay_compensation", False),
    "grace_ms": (setting("parameter_server.grace_ms=1"), "grace_ms", False),
    "read oldest": (setting("parameter_server.read=oldest"), "read oldest", False),
    "local steps": (["--local-steps", "2"], "local_steps", False),
    "local steps, elastic": (["--local-steps", "2", *setting("local_steps.outer.type=elastic")], "local_steps", False),
    "int8": (setting("parameter_server.compression=int8"), "compression", False),
    "topk": (setting("parameter_server.compression=topk"), "compression", False),
    "resident units": (["--resident", "units"], "resident|units", True),
    "servers on workers": (["--servers-on", "workers"], "servers-on", True),
    "elastic": (["--elastic", "2:3"], "elastic", True),
    "checkpoints": (["--checkpoint-every", "2"], "checkpoint", True),
    "recorded": (["--record-arrivals"], "record-arrivals", True),
    "logged": (["--log-updates"], "log-updates", True),
    "tcp": (["--medium", "tcp"], "medium", True),
    "group": (["--reduce-group", "3"], "reduce_group", False),
    "restart": (["--restart", "1"], "restart", True),
    "fp16": (["--dtype", "fp16"], "fp16", False),
    "not clipped": (setting("gradient_clipping=0"), "gradient_clipping", False),
    "micro-batches": (ACCUMULATE, "gradient_accumulation_steps", False),
    "lora": (setting("lora.r=4"), "lora", False),
    "documents": (["--documents", "whole"], "documents", False),
    "no overlap": (setting("zero_optimization.overlap_comm=false"), "overlap_comm", True),
    "evaluated": (["--eval-every", "2"], "eval_every", True),
}
CONSISTENCIES = ["ps:sync", "ps:async", "ps:ringleader", "ps:ssp:1", "ps:backup:1", "ps:quorum:2"]


class Beside(Runs):
    """Six steps of three workers on two servers."""
    STEPS, WORKERS = 6, 3
    SMALL = ["train", "--model", "tiny", "--data", "demo", "--steps", str(STEPS), "--seq", "24", "--batch", "2", "--threads", "1", "--quiet",
             "--no-weights", "--workers", str(WORKERS), "--servers", "2", "--force"]

    def asked(self, topology, names, *more):
        """Whether the program does it with all of these, and a text for failures; where it refuses, the words name one of them."""
        words = [w for name in names for w in BESIDE[name][0]]
        if "evaluated" not in names:
            words += setting("eval_batches=none")
        if "servers on workers" in names:
            words += ["--servers", "3"]
        p = self.run_it(*self.SMALL, "--topology", topology, "--out", "run", *words, *more, status=None)
        about = f"{topology} {names}: {p.stderr}"
        self.assertIn(p.returncode, (0, 2), about)
        if p.returncode:
            self.assertRegex(p.stderr, "|".join(BESIDE[name][1] for name in names), about)
        return p.returncode == 0, about

    def beside(self, topology, *names):
        """The summary of the run with all of these; None: it is refused."""
        trained, about = self.asked(topology, names)
        if not trained:
            return None
        s = self.summary("run")
        self.assert_as_predicted(s, about)
        self.assertTrue(s["weights_hash"], about)
        if s.get("batches", [self.STEPS])[0]:  # else others of its budget were there first, and it has no loss
            self.assertTrue(0 < s["loss"]["last"] < 10, about)
        # All that was dealt is in the weights, or is counted as what is not.
        dealt = self.STEPS * self.WORKERS * 2 * (3 if "micro-batches" in names else 1)
        left_out = sum(s.get("dropped_pushes", [])) + sum(s.get("late_steps", [])) + sum(s.get("missed_steps", []))
        skipped = any(line["skipped"] for line in self.lines("run", "metrics.jsonl"))
        if topology == "ps:ringleader":  # what is in the table at the end is in no update
            self.assertTrue(0 < s["samples_applied"] <= dealt, about)
        elif not left_out and not skipped and "fp16" not in names:
            self.assertEqual(s["samples_applied"], dealt, about)
        return s

    def test_each_key_with_each_consistency(self):
        trains = set()
        for topology in CONSISTENCIES:
            plain = self.beside(topology)
            for name, (_, _, same) in BESIDE.items():
                with self.subTest(topology, beside=name):
                    s = self.beside(topology, name)
                    trains |= {(topology, name)} if s else set()
                    if s and same and topology == "ps:sync":
                        self.assertEqual(s["weights_hash"], plain["weights_hash"])
        # Each key has a consistency that it goes with, and each consistency goes with what belongs to all.
        self.assertEqual({name for _, name in trains}, set(BESIDE))
        self.assertEqual({(t, n) for t in CONSISTENCIES for n in ("checkpoints", "tcp", "logged", "evaluated", "servers on workers")} - trains, set())


class Pairs(Runs):
    def setUp(self):
        super().setUp()
        self.known, self.gpt2 = {}, self.write(json.dumps(GPT2), "config.json")

    def options(self, case):
        words = [w for name in FACTORS for w in FACTORS[name][case[name]]]
        return [{"GPT2": self.gpt2}.get(w, w.replace("DISK", self.folder).replace("DTYPE", case["dtype"])) for w in words]

    def summary(self, case):
        key = tuple(sorted(case.items()))
        if key not in self.known:
            done = self.run_it("train", "--data", "demo", "--steps", "4", "--seq", "24", "--batch", "2", "--threads", "1", "--quiet", "--json",
                               "--no-weights", "--force", "--out", "run", "--set", "eval_batches=none", *self.options(case))
            self.known[key] = json.loads(done.stdout)
        return self.known[key]

    def check(self, case):
        found, expected = self.summary(case), self.summary(plain(case))
        self.assertEqual(found["weights_hash"], expected["weights_hash"], f"other bits: {case}")
        self.assertEqual(found["loss"], expected["loss"], f"other losses: {case}")
        self.assert_as_predicted(found, case)
        for rank in found["wire"]:
            self.assertEqual((rank["sent_per_step"], rank["received_per_step"]), (rank["predicted_sent"], rank["predicted_received"]),
                             f"bytes of {rank['role']} {rank['rank']}: {case}")
            halves = case["hpz"] == "2" and case["workers"] == "4"  # of two ranks one group is all, and hpZ is off
            self.assertEqual("across" in rank, case["topology"] != "ps:sync" and (case["group"] != "none" or halves))
            across = rank.get("across", {})
            for way in ("sent", "received"):
                self.assertEqual(across.get(f"{way}_per_step"), across.get(f"predicted_{way}"), f"across groups: {case}")
            for way in ("down", "up", "read", "written") if "offload" in rank else ():
                self.assertEqual(rank["offload"][way + "_per_step"], rank["offload"]["predicted_" + way], f"{way}: {case}")

    def test_every_two_settings_meet(self):
        met = set().union(*(pairs_of(c) for c in covering()))
        self.assertEqual(all_pairs() - met, set())

    def test_bits_memory_and_bytes(self):
        for case in covering():
            with self.subTest(**case):
                self.check(case)

    def test_secondary_shards_keep_gathers_within_the_group(self):
        base = {name: next(iter(FACTORS[name])) for name in FACTORS}
        base.update({"workers": "4", "topology": "zero:3", "group": "2"})
        without, found = self.summary(base), self.summary({**base, "hpz": "2"})
        self.assertEqual(found["weights_hash"], without["weights_hash"])
        for a, b in zip(without["wire"], found["wire"]):
            self.assertLess(b["across"]["sent_per_step"], a["across"]["sent_per_step"])
            self.assertEqual(b["across"]["predicted_sent_ungrouped"], a["across"]["predicted_sent_ungrouped"])
        for a, b in zip(without["memory"], found["memory"]):
            # Two shards of a quarter beside one: 3/4 of the whole for 1/4.
            self.assertEqual(b["peak"]["parameter"], 3 * a["peak"]["parameter"])

    def test_what_secondary_shards_do_not_go_with(self):
        hpz = ["train", "--model", "tiny", "--topology", "zero:3", "--workers", "4", "--json", "--dry-run", "--set",
               "zero_optimization.zero_hpz_partition_size=2"]
        self.run_it(*hpz)
        for words, text in ((["--workers", "3"], "--workers 3 ranks are not groups of 2"),
                            (["--workers", "8", "--reduce-group", "4"], "reduce_group is 4"),
                            (["--set", "reduce=native"], '"native"')):
            self.refused(*hpz, *words, said=("zero_hpz_partition_size 2: ", text))

    def test_what_is_compared_differs_where_it_should(self):
        base = {name: next(iter(FACTORS[name])) for name in FACTORS}
        other = [{name: list(FACTORS[name])[1]} for name in BITS if name not in ("group", "code")]
        other += [{"topology": "ps:sync", "code": code} for code in BITS["code"] if code != "none"]
        other += [{"workers": "4"}, {"workers": "4", "group": "2"}]  # of two ranks a group of two is all
        hashes = {self.summary({**base, **change})["weights_hash"] for change in other}
        self.assertEqual(len(hashes | {self.summary(base)["weights_hash"]}), len(other) + 1)


if __name__ == "__main__":
    unittest.main()
