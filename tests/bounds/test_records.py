#!/usr/bin/env python3
"""What grows with keys, ranks, steps or a file's contents is counted before the run, bounded, or refused in words."""
import json
import os
import re
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.environ.get("STARRING", os.path.join(TOP, "build", "starring"))
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


class Records(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="starring-records-")

    def tearDown(self):
        shutil.rmtree(self.dir)

    def at(self, *names):
        return os.path.join(self.dir, *names)

    def run_it(self, *args, **more):
        """Status, output, errors, and the peak of the program's memory in KiB."""
        with open(self.at("out"), "wb") as out, open(self.at("errors"), "wb") as errors:
            r = subprocess.run([sys.executable, "-c", MEASURE, PROGRAM, *args], stdin=subprocess.DEVNULL, stdout=out,
                               stderr=errors, cwd=self.dir, timeout=120, check=False, **more)
        with open(self.at("out"), encoding="utf-8") as out, open(self.at("errors"), encoding="utf-8") as errors, \
                open(self.at("kib"), encoding="utf-8") as kib:
            return r.returncode, out.read(), errors.read(), int(kib.read())

    def dry(self, *args):
        status, out, said, kib = self.run_it("train", "--dry-run", "--json", *args)
        self.assertEqual(status, 0, said)
        self.assertLess(kib, 100 * 1000)
        return json.loads(out)

    def allowed(self, *args):
        return self.dry(*args)["here"]["limits"][0]["allowed_bytes"]

    def refused(self, *args, words):
        status, _, said, kib = self.run_it(*args)
        self.assertIn(status, (1, 2), said)
        for word in words:
            self.assertIn(word, said)
        return kib

    def test_a_prediction_for_each_of_many_ranks(self):
        doc = self.dry("--model", "tiny", "--topology", "ps:async", "--workers", "65536", "--servers", "3")
        for rows in (doc["memory"], doc["wire"]):
            self.assertEqual([r["rank"] for r in rows], [*range(65536), 0, 1, 2])
            self.assertEqual({r["role"] for r in rows[:65536]}, {"worker"})

    def test_a_prediction_for_many_ranks_of_many_layers(self):
        with open(self.at("deep.json"), "w", encoding="utf-8") as f:
            json.dump({**CONFIG, "num_hidden_layers": 16384}, f)
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
            self.refused("train", *ASYNC, *flag, "--steps", str(1 << 53), "--dry-run",
                         words=[flag[0], "at most 2147483647 pushes of a key", "fewer --steps"])

    def test_keys_are_counted(self):
        star = ["--model", "llama-2-7b", "--topology", "ps:sync", "--workers", "8"]
        few, many = (self.allowed(*star, "--set", f"parameter_server.partition_bytes={n}") for n in (1 << 20, 1024))
        keys = self.dry(*star)["params"] * 4 / 1024
        self.assertGreater(many - few, keys * 9 * 100, "a record of each key and, at the server, of each worker")

    def test_values_of_documents(self):
        def put(name, head, body):
            with open(self.at(name), "wb") as f:
                f.write(head + body)
            return self.at(name)
        path = put("list.json", b"", b'{"trouble": {"straggle": [' + b"0," * 3000000 + b"0]}}")
        self.assertLess(self.refused("train", "-c", path, "--print-config", words=["list.json:1:", "at most 524288 values"]),
                        250 * 1000)
        os.mkdir(self.at("model"))
        with open(self.at("model", "config.json"), "w", encoding="utf-8") as f:
            json.dump(CONFIG, f)
        header = b'{"a":{"dtype":"F32","shape":[' + b"0," * 10000000 + b'0],"data_offsets":[0,0]}}'
        put("model/model.safetensors", struct.pack("<Q", len(header)), header)
        self.assertLess(self.refused("train", "--model", self.at("model"), "--steps", "1", "--seq", "8",
                                     words=["model.safetensors", "at most 2097152 are read"]), 250 * 1000)
        os.mkdir(self.at("run"))
        put("run/summary.json", b"", b"[" + b"0," * 10000000 + b"0]")
        self.assertLess(self.run_it("summary", self.at("run"))[3], 250 * 1000)
        with open(self.at("run", "summary.json"), "wb") as f:
            f.truncate(3 << 30)
        self.assertLess(self.run_it("summary", self.at("run"))[3], 250 * 1000)

    def test_counts_do_not_wrap(self):
        self.refused("train", "--model", "tiny", "--topology", "ps:sync", "--workers", "2", "--elastic",
                     "4294967297:4294967298", "--dry-run", words=["--elastic", "MIN:MAX", "4294967298"])
        self.refused("bench", "ps", "--workers", "4294967297", words=["--workers 4294967297", "from 1 to"])
        self.refused("train", *TINY, "--topology", "ps:sync", "--workers", "2", "--steps", "1", "--out", self.at("o"), "--set",
                     "parameter_server.bind=tcp://127.0.0.1:4294967297", words=["4294967297", "a port is a number"])

    def test_a_log_that_cannot_grow(self):
        """--log-updates on a full disk: told when it is met, by the file's name; the run goes on and ends with 1."""
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (60000, 60000))
        status, _, said, _ = self.run_it("train", *TINY, "--topology", "ps:async", "--workers", "2", "--steps", "200",
                                         "--log-updates", "--medium", "tcp", "--out", self.at("run"), preexec_fn=limit)
        self.assertEqual(status, 1, said)
        told = [line for line in said.splitlines() if "updates-0.jsonl: cannot write" in line]
        self.assertEqual(len(told), 1, said)
        self.assertIn(self.at("run", "ranks", "updates-0.jsonl"), told[0])
        self.assertIn("training goes on", told[0])
        self.assertIn("are missing: File too large", said.split(told[0])[1], "the end says it again")
        lost = int(re.search(r"the lines from step (\d+) on are lost", told[0])[1])
        with open(self.at("run", "metrics.jsonl"), encoding="utf-8") as f:
            last = json.loads(f.readlines()[-1])
        # Which worker did how many of the 400 batches is nobody's promise; that they were done is.
        self.assertGreater(last["samples"], 2 * lost)

    def test_logs_stay_until_they_are_merged(self):
        """What the servers wrote line by line is there until it is in the one file, whatever ends the merging."""
        os.makedirs(self.at("run", "updates.jsonl.part"))
        status, _, said, _ = self.run_it("train", *TINY, "--topology", "ps:async", "--workers", "2", "--steps", "3",
                                         "--log-updates", "--trace", "--force", "--out", self.at("run"))
        self.assertEqual(status, 1, said)
        self.assertIn("updates.jsonl: cannot be written", said)
        with open(self.at("run", "ranks", "updates-0.jsonl"), encoding="utf-8") as f:
            self.assertTrue(all(line.endswith("}\n") for line in f))
        for name in ("summary.json", "trace.json"):
            with open(self.at("run", name), encoding="utf-8") as f:
                json.load(f)

    def test_a_file_that_cannot_be_written_costs_no_other(self):
        for topology, name in (("ps:sync", "trace-worker-1.json"), ("ps:async", "trace-worker-0.json"),
                               ("ps:sync", "timeline-worker-1.json"), ("zero:1", "trace-1.json")):
            with self.subTest(topology=topology, name=name):
                out = self.at(topology.replace(":", "-") + name)
                os.makedirs(os.path.join(out, "ranks", name, "in the way"))
                status, _, said, _ = self.run_it("train", "--model", "tiny", "--seq", "8", "--batch", "1", "--threads", "1",
                                                 "--quiet", "--topology", topology, "--workers", "2", "--steps", "5",
                                                 "--trace", "--force", "--out", out)
                self.assertEqual(status, 1, said)
                self.assertIn(name + ": cannot write", said)
                for left in ("weights/model.safetensors", "ranks/worker-0.json", "ranks/worker-1.json"):
                    self.assertTrue(os.path.exists(os.path.join(out, left)), left + " is missing: " + said)

    def test_benches_are_refused_what_there_is_no_room_for(self):
        self.refused("bench", "collective", "--ranks", "16", "--max-bytes", "1024G",
                     words=["--max-bytes 1099511627776", "GiB are left"])
        if os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") > (44 << 32):
            self.skipTest("this machine has room for the largest bench adam")
        self.refused("bench", "adam", "--device", "cpu", "--elements", str(1 << 32),
                     words=["bench adam at these sizes takes", "GiB are left", "smaller --elements"])

    def test_a_server_of_many_threads(self):
        """libzmq itself stops at 1023 sockets of a process, two for each thread, and says "Too many open files"."""
        if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 8192:
            self.skipTest("few descriptors here")
        status, _, said, _ = self.run_it("train", *TINY, "--topology", "ps:sync", "--workers", "1", "--steps", "1", "--set",
                                         "parameter_server.threads=520", "--set", "parameter_server.deadline_ms=100000",
                                         "--out", self.at("run"))
        self.assertEqual(status, 0, said)

    def test_a_prompt_without_an_end(self):
        out = self.at("run")
        status, _, said, _ = self.run_it("train", "--model", "tiny", "--seq", "8", "--batch", "1", "--quiet", "--steps", "1",
                                         "--topology", "local", "--out", out)
        self.assertEqual(status, 0, said)
        for flag in ("--prompt", "--prompt-ids"):
            with open("/dev/zero", "rb") as zeros, open(self.at("errors"), "wb") as errors:
                r = subprocess.run([sys.executable, "-c", MEASURE, PROGRAM, "generate", "--model", out, flag, "-"], cwd=self.dir,
                                   stdin=zeros, stdout=subprocess.DEVNULL, stderr=errors, timeout=60, check=False)
            self.assertIn(r.returncode, (1, 2))
            with open(self.at("errors"), encoding="utf-8") as errors, open(self.at("kib"), encoding="utf-8") as kib:
                self.assertIn(flag + " -: standard input has more than 16777216 bytes", errors.read())
                self.assertLess(int(kib.read()), 150 * 1000)

    def test_a_path_that_is_too_long(self):
        out = "/".join(["x"] * 4000)
        self.refused("train", *TINY, "--topology", "local", "--steps", "1", "--out", self.at(out), words=["File name too long"])
        self.assertFalse(os.path.exists(self.at("x")), "nothing of it was made")

    def test_scripts_wait_for_no_pipe(self):
        out = self.at("run")
        status, _, said, _ = self.run_it("train", *TINY, "--topology", "zero:1", "--workers", "2", "--steps", "2", "--out", out)
        self.assertEqual(status, 0, said)
        shutil.copytree(out, self.at("whole"))
        compare = [sys.executable, os.path.join(TOP, "experiments", "compare.py"), "--runs", out, self.at("whole"), "--out", self.at("compared")]
        for name in ("config.json", "load.json", "netlab.json", "timeline.json", "evals.jsonl", "metrics.jsonl", "summary.json"):
            with self.subTest(name=name):
                if os.path.exists(os.path.join(out, name)):
                    os.unlink(os.path.join(out, name))
                os.mkfifo(os.path.join(out, name))
                r = subprocess.run([*compare, "--force"], capture_output=True, text=True, timeout=60, check=False)
                self.assertNotIn("Traceback", r.stderr)
                if name in ("timeline.json", "evals.jsonl", "metrics.jsonl", "summary.json"):
                    self.assertIn(r.returncode, (1, 2), r.stderr)
                    self.assertIn(name + ": is a pipe", r.stderr)
        texts = self.at("texts")
        os.mkfifo(texts)
        r = subprocess.run([sys.executable, os.path.join(TOP, "experiments", "tokenize.py"), "--tokenizer", texts, "--out",
                            self.at("t.bin"), texts], capture_output=True, text=True, timeout=60, check=False)
        self.assertIn(r.returncode, (1, 2), r.stderr)
        self.assertNotIn("Traceback", r.stderr)


if __name__ == "__main__":
    unittest.main()
