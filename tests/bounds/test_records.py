#!/usr/bin/env python3
"""Memory that grows with keys, ranks, steps or a file's contents is predicted before the run, bounded, or refused with a sentence."""
import json
import os
import re
import resource
import shutil
import struct
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import EXPERIMENTS, PROGRAM, Runs

ASYNC = ["--model", "tiny", "--topology", "ps:async", "--workers", "2"]
TINY = ["--model", "tiny", "--seq", "8", "--batch", "1", "--threads", "1", "--quiet", "--no-weights"]
CONFIG = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
          "intermediate_size": 128, "vocab_size": 256}
# A process is charged with the memory of the one that it was forked from: a small one stands between.
MEASURE = '''
import resource, subprocess, sys
status = subprocess.run(sys.argv[1:], check=False).returncode
with open("kib", "w") as f:
    f.write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(status if status >= 0 else 128 - status)
'''


class Records(Runs):
    def measured(self, *args, status=0, stdin=subprocess.DEVNULL, **how):
        """The ended process, and the peak of the program's memory in KiB."""
        p = self.run_it("-c", MEASURE, PROGRAM, *args, program=sys.executable, status=status, stdin=stdin, **how)
        return p, int(self.read("kib"))

    def dry(self, *args):
        p, kib = self.measured("train", "--dry-run", "--json", *args)
        self.assertLess(kib, 100 * 1000)
        return json.loads(p.stdout)

    def allowed(self, *args):
        return self.dry(*args)["here"]["limits"][0]["allowed_bytes"]

    def refused(self, *args, said, stdin=subprocess.DEVNULL):
        """With status 1 or 2; the peak of its memory in KiB."""
        p, kib = self.measured(*args, status=None, stdin=stdin)
        self.assertIn(p.returncode, (1, 2), p.stderr)
        for word in said:
            self.assertIn(word, p.stderr)
        return kib

    def test_a_prediction_for_each_of_many_ranks(self):
        doc = self.dry("--model", "tiny", "--topology", "ps:async", "--workers", "65536", "--servers", "3")
        for rows in (doc["memory"], doc["wire"]):
            self.assertEqual([r["rank"] for r in rows], [*range(65536), 0, 1, 2])
            self.assertEqual({r["role"] for r in rows[:65536]}, {"worker"})

    def test_a_prediction_for_many_ranks_of_many_layers(self):
        self.write(json.dumps({**CONFIG, "num_hidden_layers": 16384}), "deep.json")
        for topology in (["zero:2"], ["ps:sync", "--servers", "4096"]):
            with self.subTest(topology=topology[0]):
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                doc = self.dry("--model", self.at("deep.json"), "--topology", *topology, "--workers", "65536")
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                self.assertGreater(len(doc["memory"]), 65535)
                self.assertLess(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 3)

    def test_arrivals_are_counted(self):
        few, many = (self.allowed(*ASYNC, "--record-arrivals", "--steps", n) for n in ("1000", "1000001000"))
        self.assertGreater(many - few, 1000000000 * 2 * 12)
        few, many = (self.allowed(*ASYNC, "--replay-arrivals", "elsewhere", "--steps", n) for n in ("1000", "1000001000"))
        self.assertGreater(many - few, 1000000000 * 2 * 16)
        for flag in (["--record-arrivals"], ["--replay-arrivals", "elsewhere"]):
            self.refused("train", *ASYNC, *flag, "--steps", str((1 << 53) - 1), "--dry-run",
                         said=[flag[0], "at most 2147483647 pushes of a key", "fewer --steps"])

    def test_keys_are_counted(self):
        star = ["--model", "llama-2-7b", "--topology", "ps:sync", "--workers", "8"]
        few, many = (self.allowed(*star, "--set", f"parameter_server.partition_bytes={n}") for n in (1 << 20, 1024))
        keys = self.dry(*star)["params"] * 4 / 1024
        self.assertGreater(many - few, keys * 9 * 100, "a record of each key and, at the server, of each worker")

    def test_values_of_documents(self):
        path = self.write('{"trouble": {"straggle": [' + "0," * 3000000 + "0]}}", "list.json")
        self.assertLess(self.refused("train", "-c", path, "--print-config", said=["list.json:1:", "at most 524288 values"]), 250 * 1000)
        self.write(json.dumps(CONFIG), "model", "config.json")
        header = b'{"a":{"dtype":"F32","shape":[' + b"0," * 10000000 + b'0],"data_offsets":[0,0]}}'
        with open(self.at("model", "model.safetensors"), "wb") as f:
            f.write(struct.pack("<Q", len(header)) + header)
        self.assertLess(self.refused("train", "--model", self.at("model"), "--steps", "1", "--seq", "8",
                                     said=["model.safetensors", "at most 2097152 are read"]), 250 * 1000)
        summary = self.write("[" + "0," * 10000000 + "0]", "run", "summary.json")
        self.assertLess(self.measured("summary", self.at("run"), status=None)[1], 250 * 1000)
        os.truncate(summary, 0)
        os.truncate(summary, 3 << 30)
        self.assertLess(self.measured("summary", self.at("run"), status=None)[1], 250 * 1000)

    def test_counts_do_not_wrap(self):
        self.refused("train", "--model", "tiny", "--topology", "ps:sync", "--workers", "2", "--elastic",
                     "4294967297:4294967298", "--dry-run", said=["--elastic", "MIN:MAX", "4294967298"])
        self.refused("bench", "ps", "--workers", "4294967297", said=["--workers 4294967297", "from 1 to"])
        self.refused("train", *TINY, "--topology", "ps:sync", "--workers", "2", "--steps", "1", "--out", self.at("o"), "--set",
                     "parameter_server.bind=tcp://127.0.0.1:4294967297", said=["4294967297", "a port is a number"])

    def test_a_log_that_cannot_grow(self):
        """--log-updates on a full disk: told when it is met, by the file's name; the run goes on and ends with 1."""
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (60000, 60000))
        said = self.run_it("train", *TINY, "--topology", "ps:async", "--workers", "2", "--steps", "200", "--log-updates", "--medium", "tcp",
                           "--out", self.at("run"), preexec_fn=limit, status=1).stderr
        told = [line for line in said.splitlines() if "updates-0.jsonl: cannot write" in line]
        self.assertEqual(len(told), 1, said)
        self.assertIn(self.at("run", "ranks", "updates-0.jsonl"), told[0])
        self.assertIn("training continues", told[0])
        self.assertIn("are missing: File too large", said.split(told[0])[1], "the end says it again")
        lost = int(re.search(r"the lines from step (\d+) on are lost", told[0])[1])
        last = self.lines("run", "metrics.jsonl")[-1]
        # Which worker did how many of the 400 batches is nobody's promise; that they were done is.
        self.assertGreater(last["samples"], 2 * lost)

    def test_logs_stay_until_they_are_merged(self):
        """The servers' own lines exist until they are in the one file, whatever ends the merging."""
        os.makedirs(self.at("run", "updates.jsonl.part"))
        said = self.run_it("train", *TINY, "--topology", "ps:async", "--workers", "2", "--steps", "3", "--log-updates", "--trace", "--force",
                           "--out", self.at("run"), status=1).stderr
        self.assertIn("updates.jsonl: cannot be written", said)
        self.assertTrue(all(line.endswith("}\n") for line in self.read("run", "ranks", "updates-0.jsonl").splitlines(True)))
        for name in ("summary.json", "trace.json"):
            self.json("run", name)

    def test_a_file_that_cannot_be_written_costs_no_other(self):
        for topology, name in (("ps:sync", "trace-worker-1.json"), ("ps:async", "trace-worker-0.json"),
                               ("ps:sync", "trace-1.json"), ("zero:1", "trace-1.json")):
            with self.subTest(topology=topology, name=name):
                out = self.at(topology.replace(":", "-") + name)
                os.makedirs(os.path.join(out, "ranks", name, "in the way"))
                said = self.run_it("train", "--model", "tiny", "--seq", "8", "--batch", "1", "--threads", "1", "--quiet", "--topology", topology,
                                   "--workers", "2", "--steps", "5", "--trace", "--force", "--out", out, status=1).stderr
                self.assertIn(name + ": cannot write", said)
                for left in ("weights/model.safetensors", "ranks/worker-0.json", "ranks/worker-1.json"):
                    self.assertTrue(os.path.exists(os.path.join(out, left)), left + " is missing: " + said)

    def test_benches_are_refused_what_there_is_no_room_for(self):
        self.refused("bench", "collective", "--ranks", "16", "--max-bytes", "1024G",
                     said=["--max-bytes 1099511627776", "GiB are left"])
        if os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") > (44 << 32):
            self.skipTest("this machine has room for the largest bench adam")
        self.refused("bench", "adam", "--device", "cpu", "--elements", str(1 << 32),
                     said=["bench adam at these sizes takes", "GiB are left", "smaller --elements"])

    def test_a_server_of_many_threads(self):
        """libzmq itself stops at 1023 sockets of a process, two for each thread, and says "Too many open files"."""
        if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 8192:
            self.skipTest("few descriptors here")
        self.run_it("train", *TINY, "--topology", "ps:sync", "--workers", "1", "--steps", "1", "--set", "parameter_server.threads=520", "--set",
                    "parameter_server.deadline_ms=100000", "--out", "run")

    def test_a_prompt_without_an_end(self):
        out = self.at("run")
        self.run_it("train", "--model", "tiny", "--seq", "8", "--batch", "1", "--quiet", "--steps", "1", "--topology", "local", "--out", out)
        for flag in ("--prompt", "--prompt-ids"):
            with open("/dev/zero", "rb") as zeros:
                kib = self.refused("generate", "--model", out, flag, "-", stdin=zeros,
                                   said=[flag + " -: standard input has more than 16777216 bytes"])
            self.assertLess(kib, 150 * 1000)

    def test_a_path_that_is_too_long(self):
        out = "/".join(["x"] * 4000)
        self.refused("train", *TINY, "--topology", "local", "--steps", "1", "--out", self.at(out), said=["File name too long"])
        self.assertFalse(os.path.exists(self.at("x")), "nothing of it was made")

    def test_scripts_wait_for_no_pipe(self):
        out = self.at("run")
        self.run_it("train", *TINY, "--topology", "zero:1", "--workers", "2", "--steps", "2", "--out", out)
        shutil.copytree(out, self.at("whole"))
        compare = [sys.executable, os.path.join(EXPERIMENTS, "compare.py"), "--runs", out, self.at("whole"), "--out", self.at("compared")]
        for name in ("config.json", "load.json", "netlab.json", "trace.json", "evals.jsonl", "metrics.jsonl", "summary.json"):
            with self.subTest(name=name):
                if os.path.exists(os.path.join(out, name)):
                    os.unlink(os.path.join(out, name))
                os.mkfifo(os.path.join(out, name))
                r = subprocess.run([*compare, "--force"], capture_output=True, text=True, timeout=60, check=False)
                self.assertNotIn("Traceback", r.stderr)
                if name in ("trace.json", "evals.jsonl", "metrics.jsonl", "summary.json"):
                    self.assertIn(r.returncode, (1, 2), r.stderr)
                    self.assertIn(name + ": is a pipe", r.stderr)
        texts = self.at("texts")
        os.mkfifo(texts)
        r = subprocess.run([sys.executable, os.path.join(EXPERIMENTS, "tokenize.py"), "--tokenizer", texts, "--out",
                            self.at("t.bin"), texts], capture_output=True, text=True, timeout=60, check=False)
        self.assertIn(r.returncode, (1, 2), r.stderr)
        self.assertNotIn("Traceback", r.stderr)


if __name__ == "__main__":
    unittest.main()
