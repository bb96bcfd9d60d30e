#!/usr/bin/env python3
"""Bad or enormous input of the whole program: named and refused at once, in little memory, without a wait."""
import json
import os
import resource
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import PROGRAM, Runs

TINY = ["--model", "tiny", "--seq", "8", "--batch", "1", "--threads", "1", "--quiet"]
STARS = (["--topology", "zero:1", "--workers", "2"], ["--topology", "ps:sync", "--workers", "2"])


class Bounds(Runs):
    def config(self, name):
        """Returns what --print-config prints for this file, and the CPU seconds that it took."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        said = self.run_it("train", "-c", name, "--print-config").stderr
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return said, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def refused(self, *args, said):
        """With status 1 or 2, and nothing waits for ever."""
        p = self.run_it(*args, status=None)
        self.assertIn(p.returncode, (1, 2), p.stderr)
        for word in said:
            self.assertIn(word, p.stderr)

    def test_pipes_and_devices(self):
        pipe = self.at("pipe")
        os.mkfifo(pipe)
        shards = os.path.dirname(self.write(json.dumps({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
                                                        "intermediate_size": 128, "vocab_size": 256}), "model", "config.json"))
        os.mkfifo(self.at("model", "a.safetensors"))
        for args, word in ((["train", "-c", pipe, "--print-config"], "is a pipe"),
                           (["train", "--data", pipe, *TINY], "is a pipe"),
                           (["train", "--model", pipe, "--dry-run"], "is a pipe"),
                           (["train", "--model", shards, "--steps", "1", "--seq", "8"], "pipe"),
                           (["data", "info", pipe], "is a pipe"),
                           (["data", "tokenize", pipe, "x.bin"], "is a pipe"),
                           (["train", "-c", "/dev/zero", "--print-config"], "is a device"),
                           (["train", "--data", "/dev/zero", *TINY], "is a device")):
            with self.subTest(args=args[:3]):
                self.refused(*args, said=[word])
        large = self.at("large.json")
        with open(large, "w", encoding="utf-8") as f:
            f.truncate(1 << 40)
        self.refused("train", "-c", large, "--print-config", said=["large.json", "too large"])

    def test_keys(self):
        said, cpu = self.config(self.write(json.dumps({"a" * 1000000: 1, "b": {"c" * 1000000: 1}}), "long.json"))
        self.assertIn("unknown key aaa", said)
        self.assertLess(len(said), 2000)
        self.assertLess(cpu, 3)
        said, cpu = self.config(self.write(json.dumps({f"k{i}": 1 for i in range(100000)}), "many.json"))
        self.assertIn("99980 more unknown keys", said)
        self.assertLess(cpu, 5)

    def test_long_lists(self):
        config = {"trouble": {"straggle": [f"{i}:2" for i in range(60000)]}, "workers": 60000, "topology": "ps:sync",
                  "train_micro_batch_size_per_gpu": 1}
        self.assertLess(self.config(self.write(json.dumps(config), "list.json"))[1], 5)

    def dry(self, *args):
        """A dry run's document, within a second of CPU and 100 MB; the program prints its own peak to no one."""
        out = self.at("out.json")
        with open(out, "w", encoding="utf-8") as f:
            p = subprocess.Popen([PROGRAM, "train", "--dry-run", "--json", *args], stdout=f, stderr=subprocess.PIPE,
                                 cwd=self.folder)
            said = p.stderr.read().decode()
            _, status, used = os.wait4(p.pid, 0)
            p.returncode = os.waitstatus_to_exitcode(status)
            p.stderr.close()
        self.assertEqual(p.returncode, 0, said)
        self.assertLess(used.ru_utime + used.ru_stime, 1)
        self.assertLess(used.ru_maxrss, 100 * 1000)
        return self.json("out.json")

    def test_predictions_of_enormous_runs(self):
        model = self.write(json.dumps(
            {"model_type": "llama", "vocab_size": 256000, "hidden_size": 1 << 20, "num_hidden_layers": 72,
             "num_attention_heads": 8192, "num_key_value_heads": 8192, "intermediate_size": 3 << 20,
             "max_position_embeddings": 4096}), "large.json")
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
                     said=["more than 4 EiB", "--batch 1073741824", "--seq 16777216"])
        self.refused("train", "--batch", str(1 << 30), "--seq", str(1 << 24), said=["16777216"])
        self.refused("train", "--dry-run", "--batch", str(1 << 30), "--seq", str(1 << 24), "--workers", "65536",
                     "--topology", "zero:1", said=["more than can be counted"])
        self.refused("train", "--dry-run", "--steps", str((1 << 53) - 1), "--batch", str(1 << 20),
                     said=["more than can be counted"])
        huge = self.write(json.dumps(
            {"model_type": "llama", "vocab_size": 256, "hidden_size": 1 << 22, "num_hidden_layers": 16384,
             "num_attention_heads": 1024, "intermediate_size": 1 << 22}), "huge.json")
        self.refused("train", "--dry-run", "--model", huge, said=["more than 2^53 parameters"])

    def test_steps_cost_nothing_before_they_are_made(self):
        for topology in (["--topology", "local"], *STARS):
            with self.subTest(topology=topology[1]):
                p = self.start("train", *TINY, *topology, "--steps", str(10 ** 12), "--no-weights", "--out", topology[1].replace(":", "-"))
                p.behind(1)
                with open(f"/proc/{p.pid}/statm", encoding="utf-8") as f:
                    self.assertLess(int(f.read().split()[0]) * 4096, 1 << 30)
                p.send_signal(signal.SIGINT)
                p.ends(130)

    def test_a_file_that_cannot_grow(self):
        """A full disk is told when it is met, by the file's name; the run goes on and ends with 1."""
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (40000, 40000))
        r = self.run_it("train", *TINY, "--steps", "400", "--no-weights", "--out", self.at("run"), "--set", "eval_batches=0", preexec_fn=limit,
                        status=1)
        told = [line for line in r.stderr.splitlines() if "metrics.jsonl: cannot write" in line]
        self.assertEqual(len(told), 1, r.stderr)
        self.assertIn(self.at("run", "metrics.jsonl"), told[0])
        self.assertIn("training continues", told[0])
        self.assertIn("metrics.jsonl", r.stderr.split(told[0])[1], "the end says it again")
        self.assertIn('"updates":', self.read("run", "ranks", "worker-0.json"))

    def test_data_is_cut_short(self):
        """A rank leaves at once where it reads them: it has said why, and is not started again."""
        ring = ["--topology", "zero:2", "--workers", "2", "--launch", "processes", "--restart", "1"]
        for topology in (*STARS, ring):
            with self.subTest(topology=topology[1]):
                data = self.write("All the words of a long text. " * 50000, "text.txt")
                p = self.start("train", *TINY, *topology, "--data", data, "--steps", "1000000", "--no-weights", "--out",
                               topology[1].replace(":", "-"))
                p.behind(1)
                os.truncate(data, 0)
                said = p.ends(1)
                self.assertIn(f"data {data}: was cut short", said)
                self.assertNotIn("without a word", said)
                self.assertNotIn("starting it again", said)


if __name__ == "__main__":
    unittest.main()
