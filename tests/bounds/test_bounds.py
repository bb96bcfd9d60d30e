#!/usr/bin/env python3
"""Bad or enormous input of the whole program: named and refused at once, in little memory, without a wait."""
import json
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.environ.get("STARRING", os.path.join(TOP, "build", "starring"))
TINY = ["--model", "tiny", "--seq", "8", "--batch", "1", "--threads", "1", "--quiet"]
STARS = (["--topology", "zero:1", "--workers", "2"], ["--topology", "ps:sync", "--workers", "2"])


class Bounds(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="starring-bounds-")

    def tearDown(self):
        shutil.rmtree(self.dir)

    def at(self, *names):
        return os.path.join(self.dir, *names)

    def put(self, name, text):
        with open(self.at(name), "w", encoding="utf-8") as f:
            f.write(text)
        return self.at(name)

    def run_it(self, *args, limit=60):
        """The program's result, with .cpu in seconds and .kib of its largest process."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        r = subprocess.run([PROGRAM, *args], cwd=self.dir, capture_output=True, text=True, timeout=limit, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        r.cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return r

    def refused(self, *args, words, status=(1, 2), limit=20):
        r = self.run_it(*args, limit=limit)
        self.assertIn(r.returncode, status, r.stderr)
        for word in words:
            self.assertIn(word, r.stderr)
        return r

    def test_pipes_and_devices(self):
        pipe = self.at("pipe")
        os.mkfifo(pipe)
        shards = self.at("model")
        os.mkdir(shards)
        os.mkfifo(self.at("model", "a.safetensors"))
        shutil.copy(self.put("config.json", json.dumps(
            {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
             "intermediate_size": 128, "vocab_size": 256})), shards)
        for args, word in ((["train", "-c", pipe, "--print-config"], "is a pipe"),
                           (["train", "--data", pipe, *TINY], "is a pipe"),
                           (["train", "--model", pipe, "--dry-run"], "is a pipe"),
                           (["train", "--model", shards, "--steps", "1", "--seq", "8"], "pipe"),
                           (["data", "info", pipe], "is a pipe"),
                           (["data", "tokenize", pipe, "x.bin"], "is a pipe"),
                           (["train", "-c", "/dev/zero", "--print-config"], "is a device"),
                           (["train", "--data", "/dev/zero", *TINY], "is a device")):
            with self.subTest(args=args[:3]):
                self.refused(*args, words=[word])
        large = self.at("large.json")
        with open(large, "w", encoding="utf-8") as f:
            f.truncate(1 << 40)
        self.refused("train", "-c", large, "--print-config", words=["large.json", "too large"])

    def test_keys(self):
        long = self.put("long.json", json.dumps({"a" * 1000000: 1, "b": {"c" * 1000000: 1}}))
        r = self.run_it("train", "-c", long, "--print-config")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn("unknown key aaa", r.stderr)
        self.assertLess(len(r.stderr), 2000)
        self.assertLess(r.cpu, 3)
        many = self.put("many.json", json.dumps({f"k{i}": 1 for i in range(100000)}))
        r = self.run_it("train", "-c", many, "--print-config")
        self.assertEqual(r.returncode, 0, r.stderr[:1000])
        self.assertIn("99980 more unknown keys", r.stderr)
        self.assertLess(r.cpu, 5)

    def test_long_lists(self):
        items = ",".join(f"{i}:2" for i in range(60000))
        path = self.put("list.json", json.dumps({"trouble": {"straggle": items.split(",")}, "workers": 60000,
                                                 "topology": "ps:sync", "train_micro_batch_size_per_gpu": 1}))
        r = self.run_it("train", "-c", path, "--print-config")
        self.assertEqual(r.returncode, 0, r.stderr[:1000])
        self.assertLess(r.cpu, 5)

    def dry(self, *args):
        """A dry run's document, within a second of CPU and 100 MB; the program prints its own peak to no one."""
        out = self.at("out.json")
        with open(out, "w", encoding="utf-8") as f:
            p = subprocess.Popen([PROGRAM, "train", "--dry-run", "--json", *args], stdout=f, stderr=subprocess.PIPE,
                                 cwd=self.dir)
            said = p.stderr.read().decode()
            _, status, used = os.wait4(p.pid, 0)
            p.returncode = os.waitstatus_to_exitcode(status)
            p.stderr.close()
        self.assertEqual(p.returncode, 0, said)
        self.assertLess(used.ru_utime + used.ru_stime, 1)
        self.assertLess(used.ru_maxrss, 100 * 1000)
        with open(out, encoding="utf-8") as f:
            return json.load(f)

    def test_predictions_of_enormous_runs(self):
        model = self.put("large.json", json.dumps(
            {"model_type": "llama", "vocab_size": 256000, "hidden_size": 1 << 20, "num_hidden_layers": 72,
             "num_attention_heads": 8192, "num_key_value_heads": 8192, "intermediate_size": 3 << 20,
             "max_position_embeddings": 4096}))
        for topology in (["ps:sync", "--servers", "4"], ["ps:sync", "--servers", "4096"], ["zero:3"], ["zero:0"]):
            with self.subTest(topology=topology):
                doc = self.dry("--model", model, "--topology", *topology, "--workers", "4")
                self.assertGreater(doc["params"], 1e15)
                self.assertFalse(doc["here"]["fits"])
                sent = [w["predicted_sent"] for w in doc["wire"] if w["role"] == "server"]
                self.assertTrue(not sent or abs(sum(sent) / (4 * 4 * doc["params"]) - 1) < 1e-3, sum(sent))
        doc = self.dry("--model", "llama-2-7b", "--topology", "ps:sync", "--servers", "4096", "--workers", "2")
        self.assertEqual(len(doc["memory"]), 4098)
        masters = sum(m["predicted"]["master"] for m in doc["memory"] if m["role"] == "server")
        self.assertLess(abs(masters / (4 * doc["params"]) - 1), 1e-3)
        self.dry("--model", "llama-2-7b", "--topology", "ps:sync", "--servers", "4096", "--workers", "2",
                 "--set", "parameter_server.partition_bytes=1024")

    def test_sizes_do_not_wrap(self):
        self.refused("train", "--dry-run", "--batch", str(1 << 30), "--seq", str(1 << 24),
                     words=["more than 4 EiB", "--batch 1073741824", "--seq 16777216"])
        self.refused("train", "--batch", str(1 << 30), "--seq", str(1 << 24), words=["16777216"])
        self.refused("train", "--dry-run", "--batch", str(1 << 30), "--seq", str(1 << 24), "--workers", "65536",
                     "--topology", "zero:1", words=["more than can be counted"])
        self.refused("train", "--dry-run", "--steps", str(1 << 53), "--batch", str(1 << 20),
                     words=["more than can be counted"])
        huge = self.put("huge.json", json.dumps(
            {"model_type": "llama", "vocab_size": 256, "hidden_size": 1 << 22, "num_hidden_layers": 16384,
             "num_attention_heads": 1024, "intermediate_size": 1 << 22}))
        self.refused("train", "--dry-run", "--model", huge, words=["more than 2^53 parameters"])

    def test_steps_cost_nothing_before_they_are_made(self):
        for topology in (["--topology", "local"], *STARS):
            with self.subTest(topology=topology[1]):
                out = self.at(topology[1].replace(":", "-"))
                with subprocess.Popen([PROGRAM, "train", *TINY, *topology, "--steps", str(10 ** 12), "--no-weights",
                                       "--out", out], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as p:
                    metrics, end = os.path.join(out, "metrics.jsonl"), time.monotonic() + 60
                    while time.monotonic() < end and not (os.path.exists(metrics) and os.path.getsize(metrics)):
                        time.sleep(0.05)
                    with open(f"/proc/{p.pid}/statm", encoding="utf-8") as f:
                        self.assertLess(int(f.read().split()[0]) * 4096, 1 << 30)
                    p.send_signal(signal.SIGINT)
                    said = p.stderr.read().decode()
                self.assertEqual(p.returncode, 130, said)
                self.assertTrue(os.path.getsize(metrics))

    def test_a_file_that_cannot_grow(self):
        """A full disk is told when it is met, by the file's name; the run goes on and ends with 1."""
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (40000, 40000))
        r = subprocess.run([PROGRAM, "train", *TINY, "--steps", "400", "--no-weights", "--out", self.at("run"),
                            "--set", "eval_batches=0"], preexec_fn=limit, capture_output=True, text=True, timeout=60,
                           check=False)
        self.assertEqual(r.returncode, 1, r.stderr)
        told = [line for line in r.stderr.splitlines() if "metrics.jsonl: cannot write" in line]
        self.assertEqual(len(told), 1, r.stderr)
        self.assertIn(self.at("run", "metrics.jsonl"), told[0])
        self.assertIn("training goes on", told[0])
        self.assertIn("metrics.jsonl", r.stderr.split(told[0])[1], "the end says it again")
        with open(self.at("run", "ranks", "worker-0.json"), encoding="utf-8") as f:
            self.assertIn('"updates":', f.read())

    def test_data_is_cut_short(self):
        """A rank leaves at once where it reads them: it has said why, and is not started again."""
        ring = ["--topology", "zero:2", "--workers", "2", "--launch", "processes", "--restart", "1"]
        for topology in (*STARS, ring):
            with self.subTest(topology=topology[1]):
                data = self.put("text.txt", "All the words of a long text. " * 50000)
                log, out = self.at("log"), topology[1].replace(":", "-")
                with open(log, "w", encoding="utf-8") as f, subprocess.Popen(
                        [PROGRAM, "train", *TINY, *topology, "--data", data, "--steps", "1000000", "--no-weights",
                         "--out", self.at(out)], stdout=f, stderr=f) as p:
                    metrics = self.at(out, "metrics.jsonl")
                    end = time.monotonic() + 60
                    while time.monotonic() < end and not (os.path.exists(metrics) and os.path.getsize(metrics)):
                        time.sleep(0.05)
                    os.truncate(data, 0)
                    try:
                        status = p.wait(60)
                    finally:
                        if p.poll() is None:
                            p.send_signal(signal.SIGKILL)
                with open(log, encoding="utf-8") as f:
                    said = f.read()
                self.assertEqual(status, 1, said)
                self.assertIn(f"data {data}: was cut short", said)
                self.assertNotIn("without a word", said)
                self.assertNotIn("starting it again", said)


if __name__ == "__main__":
    unittest.main()
