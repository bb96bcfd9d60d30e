#!/usr/bin/env python3
"""docs/files.md against the program's figures, and against the files that small runs leave: every key found is documented with
its type, every documented key is found, every file is listed; every line of a .jsonl file has the same keys and types."""
import fnmatch
import glob
import json
import os
import re
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import PROGRAM, TOP, Runs

EMULATED = os.path.join(os.path.dirname(PROGRAM), "tests", "emulated")
PAGE = os.path.join(TOP, "docs", "files.md")
sys.path.insert(0, os.path.join(TOP, "docs"))
import make_files  # noqa: E402

SMALL = ["--model", "tiny", "--steps", "3", "--seq", "8", "--batch", "1", "--threads", "1", "--quiet"]
STAR = ["--workers", "2", "--servers", "2", "--trace"]
EVALS = ["--set", "eval_every=2", "--set", "eval_batches=1"]
WARMUP = ["--set", "scheduler.params.warmup_num_steps=2"]
RUNS = {
    "local": ["--topology", "local", "--dtype", "fp16", *EVALS, "--keep-snapshots", "--set", "target_loss=9"],
    "sync": ["--topology", "ps:sync", *STAR, "--set", "eval_batches=0", "--straggle", "1:2", "--delay", "0:constant:1",
             "--restart", "1", "--fault", "dup=0.1"],
    "elastic": ["--topology", "ps:sync", "--elastic", "1:2", "--no-weights", "--set", "eval_batches=0"],
    "units": ["--topology", "ps:sync", "--workers", "2", "--resident", "units", "--servers-on", "workers", "--set", "eval_batches=0"],
    "late": ["--topology", "ps:backup:1", "--workers", "2", "--no-weights", "--set", "eval_batches=0"],
    "async": ["--topology", "ps:async", *STAR, *EVALS, "--delay", "0:constant:20", "--delay", "1:constant:20", "--record-arrivals", "--log-updates"],
    "old": ["--topology", "ps:async", "--workers", "2", "--no-weights", "--set", "eval_batches=0", "--set", "parameter_server.max_staleness=0"],
    "gossip": ["--topology", "gossip", "--workers", "2", "--set", "eval_batches=0", "--set", "lora.r=2", "--set", "lora.targets=q_proj"],
    "rounds": ["--topology", "zero:0", "--workers", "2", "--no-weights", "--set", "eval_batches=0", "--local-steps", "1",
               "--set", "zero_optimization.reduce_bucket_size=100000"],
    "replay": ["--topology", "ps:async", *STAR, *EVALS, "--replay-arrivals", "async"],
    "zero": ["--topology", "zero:2", "--set", "zero_optimization.offload_optimizer.device=cpu", "--workers", "2", "--reduce-group", "1", "--dtype", "bf16", "--trace", *EVALS,
             "--set", "data.val_path=held.txt", "--checkpoint-every", "2"],
    "decay": ["--no-weights", "--set", "eval_batches=0", "--set", "scheduler.type=WarmupDecayLR",
              "--set", "scheduler.params.total_num_steps=3", *WARMUP],
    "cosine": ["--no-weights", "--set", "eval_batches=0", "--set", "scheduler.type=WarmupCosineLR",
               "--set", "scheduler.params.total_num_steps=3", *WARMUP],
    "cycle": ["--no-weights", "--set", "eval_batches=0", "--set", "scheduler.type=OneCycle", "--set", "optimizer.type=Lion",
              "--set", "scheduler.params.cycle_min_lr=1e-4", "--set", "scheduler.params.cycle_max_lr=1e-3"],
    "onebit": ["--topology", "zero:0", "--workers", "2", "--no-weights", "--set", "eval_batches=0", "--set",
               "optimizer.type=OneBitAdam", "--set", "optimizer.params.freeze_step=1"],
    "range": ["--no-weights", "--set", "eval_batches=0", "--set", "scheduler.type=LRRangeTest", "--set", "optimizer.type=SGD",
              "--set", "tensorboard.output_path=curves", "--set", "csv_monitor.output_path=curves"],
}
PRINTED = ("train --dry-run --json", "plan --json")
GPU = ["--topology", "zero:1", "--workers", "2", "--device", "cuda", "--dtype", "bf16", "--set", "eval_batches=0"]
TYPES = {dict: "object", list: "list", str: "string", bool: "boolean", int: "integer", float: "number",
         type(None): "null"}


class Row:
    """A documented key: its pattern, its types, and when it is there."""

    def __init__(self, cells):
        self.key = cells[0].strip("`")
        self.types = set(re.split(r",\s*|\s+or\s+", cells[1]))
        self.when = cells[3]
        self.of_gpus = self.when.startswith("GPU") or "not computed on a GPU" in cells[4]
        self.pattern = re.compile(re.escape(self.key).replace(r"\*", r"[^.\[\]]+") + "$")

    def takes(self, kind):
        return kind in self.types or (kind == "integer" and "number" in self.types)


def cells_of(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def read_page():
    """{file: [Row]} of the chapters, and the file names of the table at the head."""
    chapters, listed, chapter = {}, [], None
    with open(PAGE, encoding="utf-8") as f:
        for line in f:
            if line.startswith("## "):
                chapter = line[3:].strip()
                chapters[chapter] = []
            elif line.startswith("| `") and chapter:
                chapters[chapter].append(Row(cells_of(line)))
            elif line.startswith("| `"):
                listed.append(cells_of(line)[0].strip("`"))
    return chapters, listed


def walk(value, path, found):
    """Adds (path, type) of everything in a JSON value."""
    if path:
        found.append((path, TYPES[type(value)]))
    if isinstance(value, dict):
        for key, inner in value.items():
            walk(inner, path + "." + key if path else key, found)
    if isinstance(value, list):
        for inner in value:
            walk(inner, path + "[]", found)


def documents(path):
    """The JSON documents of a file: one, or one per line."""
    with open(path, encoding="utf-8") as f:
        text = f.read()
    return [json.loads(line) for line in text.splitlines()] if path.endswith("l") else [json.loads(text)]


class Files(Runs):
    """Their runs are made once, before the first of them."""
    shared = True
    made = False

    def setUp(self):
        if not self.made:
            type(self).made = True
            type(self).chapters, type(self).listed = read_page()
            type(self).has_gpu = os.path.exists(os.path.join(EMULATED, "libstarring_cuda.so"))
            self.make_runs()

    def make_runs(self):
        self.write("to be held out, or not to be held out\n" * 20, "held.txt")
        for name, more in RUNS.items():
            self.train(name, more)
        self.lose_a_worker("away", RUNS["elastic"])
        self.print_documents()
        if self.has_gpu:
            self.train("gpu", GPU, env={"STARRING_CUDA_SO": os.path.join(EMULATED, "libstarring_cuda.so"), "LD_LIBRARY_PATH": EMULATED,
                                        "EMULATED_CUDA_DEVICES": "1"})
        os.remove(self.at("async", "ranks", "server-1.json"))
        os.remove(self.at("async", "summary.json"))
        self.run_it("summary", "async", "--json")

    def train(self, name, more, **how):
        self.run_it("train", *SMALL, *more, "--out", name, **how)

    def lose_a_worker(self, name, more):
        """A run that does without worker 1 once it is killed, and waits for worker 0 while that is stopped."""
        p = self.start("train", *SMALL, *more, "--steps", "60", "--delay", "0:constant:60", "--out", name)
        p.behind(1)
        p.stop("worker 0")
        p.kill_now("worker 1")
        time.sleep(0.4)
        p.go_on("worker 0")
        p.ends()

    def print_documents(self):
        """The documents that the program only prints, as files next to the runs."""
        for name in ("local", "units", "zero", "gossip", "rounds"):
            self.write(self.run_it("train", *SMALL, *RUNS[name], "--dry-run", "--json").stdout, f"{name}.{PRINTED[0]}")
        for name, limit, status in (("fits", "64M", 0), ("nothing", "1", 1)):
            done = self.run_it("plan", "--model", "tiny", "--device-memory", limit, "--host-memory", "8G", "--disk", "8G", "--json", status=status)
            self.write(done.stdout, f"{name}.{PRINTED[1]}")

    def of_kind(self, kind):
        found = sorted(glob.glob(self.at("*." + kind if kind in PRINTED else os.path.join("*", kind))))
        self.assertTrue(found, kind)
        return [os.path.relpath(path, self.folder) for path in found]

    def found_in(self, path):
        found = []
        for document in documents(self.at(path)):
            walk(document, "", found)
        return found

    def test_the_page_is_what_make_docs_writes(self):
        with open(PAGE, encoding="utf-8") as f:
            self.assertEqual(f.read().split("\n"), make_files.page(PROGRAM).split("\n"), "docs/files.md: run make docs")
        with open(os.path.join(TOP, make_files.WORDS), encoding="utf-8") as f:
            self.assertEqual(f.read(), make_files.words(PROGRAM), "the words of comparisons: run make docs")

    def test_every_key_found_is_documented(self):
        """An object or a list may do with the rows of what is in it."""
        for kind, rows in self.chapters.items():
            for path in self.of_kind(kind):
                for key, is_type in self.found_in(path):
                    row = next((r for r in rows if r.pattern.match(key)), None)
                    inner = any(r.key.startswith((key + ".", key + "[")) for r in rows)
                    if is_type in ("object", "list") and inner and not (row and row.key == key):
                        continue
                    self.assertIsNotNone(row, f"{path}: {key} is not in docs/files.md")
                    self.assertTrue(row.takes(is_type), f"{path}: {key} is {is_type}, docs/files.md says {row.types}")

    def test_every_key_documented_is_found(self):
        for kind, rows in self.chapters.items():
            files = {path: {key for key, _ in self.found_in(path)} for path in self.of_kind(kind)}
            for row in rows:
                holders = [path for path, keys in files.items() if any(row.pattern.match(key) for key in keys)]
                if row.when == "always":
                    self.assertEqual(holders, list(files), f"{kind}: {row.key} is not always there")
                elif row.when.endswith(("stood still", "was stopped", "had no core")):  # as the machine's load has it
                    continue
                elif self.has_gpu or not row.of_gpus:
                    self.assertTrue(holders, f"{kind}: {row.key} is in no file")
                    only_cpus = row.when == "CPU" and not self.has_gpu
                    self.assertTrue(len(holders) < len(files) or "[]" in row.key or len(files) == 1 or only_cpus,
                                    f"{kind}: {row.key} is there always")

    def test_every_file_is_listed(self):
        paths = [os.path.relpath(os.path.join(folder, name), self.at(run))
                 for run in os.listdir(self.folder)
                 for folder, _, names in os.walk(self.at(run)) for name in names]
        for path in paths:
            self.assertTrue(any(fnmatch.fnmatch(path, pattern) for pattern in self.listed), f"{path} is not listed")
        for pattern in self.listed:
            self.assertTrue(any(fnmatch.fnmatch(path, pattern) for path in paths), f"{pattern} is nowhere")

    def test_lines_of_a_file_are_alike(self):
        for kind in ("metrics.jsonl", "evals.jsonl"):
            for path in self.of_kind(kind):
                lines = documents(self.at(path))
                self.assertGreaterEqual(len(lines), 1)  # worker 0 may have found one batch of a budget
                first = [(key, type(value)) for key, value in lines[0].items()]
                self.assertIs(type(lines[0]["step"]), int)
                for line in lines:
                    alike = [(key, was) if value is None else (key, type(value))
                             for (key, value), (_, was) in zip(line.items(), first)]
                    self.assertEqual(alike, first, path)


if __name__ == "__main__":
    unittest.main()
