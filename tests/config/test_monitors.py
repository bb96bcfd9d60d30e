#!/usr/bin/env python3
"""DeepSpeed's monitors: event files are read back by a decoder of this file's own (and by the package tensorboard where it is
installed), csv files by Python's; both say what metrics.jsonl says, go on behind a checkpoint, and say what cannot be
written."""
import csv
import glob
import os
import re
import resource
import signal
import struct
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs

BATCH = 4
SMALL = ["--model", "tiny", "--seq", "16", "--threads", "1", "--no-weights", "--quiet", "--data", "text.txt", "--steps", "6",
         "--set", "eval_batches=none", "--set", "scheduler.type=WarmupLR"]
RING = ["--topology", "zero:2", "--workers", "2", "--batch", "2"]
STAR = ["--topology", "ps:sync", "--workers", "2", "--batch", "2"]
# Steps are skipped until the scale has come down.
FP16 = ["--dtype", "fp16", "--set", "fp16.initial_scale_power=24", "--set", "fp16.hysteresis=1"]
TENSORBOARD = ["--set", "tensorboard.enabled=true", "--set", "tensorboard.output_path=curves/deep", "--set", "tensorboard.job_name=job"]
CSV = ["--set", "csv_monitor.enabled=true", "--set", "csv_monitor.job_name=table"]
PREFIX = "Train/Samples/"
CSV_NAMES = {"train_loss": "loss", "lr": "lr", "loss_scale": "loss_scale"}  # the last one in fp16


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return (crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF


def records(path):
    with open(path, "rb") as f:
        data = f.read()
    while len(data) >= 12 and len(data) >= 16 + struct.unpack_from("<Q", data)[0]:  # else torn by a full disk
        length, head = struct.unpack_from("<QI", data)
        body, (tail,) = data[12:12 + length], struct.unpack_from("<I", data, 12 + length)
        if (head, tail) != (masked(data[:8]), masked(body)):
            raise AssertionError(f"{path}: a checksum is wrong")
        yield body
        data = data[16 + length:]


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def fields(data):
    """{field number: value} of a protobuf message; what is nested stays bytes."""
    out, at = {}, 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            out[key >> 3], at = varint(data, at)
        elif key & 7 == 2:
            n, at = varint(data, at)
            out[key >> 3], at = data[at:at + n], at + n
        else:
            n = 8 if key & 7 == 1 else 4
            out[key >> 3], at = struct.unpack_from("<d" if n == 8 else "<f", data, at)[0], at + n
    return out


def events(path):
    """(version, first step of the session or None, {tag: [(step, value)]})."""
    version, start, curves = None, None, {}
    for number, body in enumerate(records(path)):
        event = fields(body)
        if number == 0:
            version = event[3]
        elif 7 in event:
            assert fields(event[7]) == {1: 1}
            start = event[2]
        else:
            value = fields(fields(event[5])[1])
            curves.setdefault(value[1].decode(), []).append((event[2], value[2]))
        assert event[1] > 1e9, "wall time"
    return version, start, curves


class Monitors(Runs):
    corpus = 900

    def train(self, out, *more, **how):
        return self.run_it("train", *SMALL, *more, "--out", out, **how).stderr

    def event_files(self):
        return sorted(glob.glob(self.at("curves", "deep", "job", "events.out.tfevents.*")), key=os.path.getmtime)

    def table(self, name):
        with open(self.at("table", f"Train_Samples_{name}.csv"), newline="", encoding="utf-8") as f:
            return list(csv.reader(f))

    def test_what_is_written(self):
        for where, more in ((RING, FP16), (STAR, ["--dtype", "bf16"])):
            with self.subTest(where[1]):
                self.train(where[1], *where, *more, *TENSORBOARD, *CSV)
                said = self.lines(where[1], "metrics.jsonl")
                version, start, curves = events(self.event_files()[-1])
                self.assertEqual((version, start), (b"brain.Event:2", None))
                some = {key for line in said for key in line if line[key] is not None}  # no norm where every step is skipped
                self.assertEqual({PREFIX + ("train_loss" if key == "loss" else key) for key in some}, set(curves))
                self.assertEqual(some | {"grad_norm"}, set(said[0]))
                for tag, points in curves.items():
                    key = tag.removeprefix(PREFIX).replace("train_loss", "loss")
                    expected = [(BATCH * line["step"], line[key]) for line in said if line[key] is not None]
                    self.assertEqual(points, [(x, struct.unpack("f", struct.pack("f", y))[0]) for x, y in expected], key)
                self.assertEqual(curves[PREFIX + "step"][-1][1], 6)
                for name, key in CSV_NAMES.items():
                    if key == "loss_scale" and more is not FP16:
                        continue
                    rows = self.table(name)
                    self.assertEqual(rows[0], ["step", name])
                    rows = rows[-len(said):]
                    self.assertEqual([int(x) for x, _ in rows], [BATCH * line["step"] for line in said])
                    for (_, got), line in zip(rows, said):
                        self.assertAlmostEqual(float(got), line[key], delta=1e-7 * abs(line[key]))
                if more is FP16:
                    self.assertTrue(said[0]["skipped"])
                    self.assertEqual(curves["Train/Samples/lr"][0][1], 0.0)  # a zero is written, not left out

    def test_it_goes_on(self):
        self.train("one", *RING, *FP16, *TENSORBOARD, *CSV, "--checkpoint-every", "4")
        before = {name: self.table(name) for name in ("train_loss", "lr", "loss_scale")}
        self.train("one", *RING, *FP16, *TENSORBOARD, *CSV, "--checkpoint-every", "4", "--resume", "one/checkpoints/step-4")
        for name, rows in before.items():
            self.assertEqual(self.table(name), rows)
        whole, rest = [events(path) for path in self.event_files()]
        self.assertEqual(rest[1], 4 * BATCH + 1)
        for tag, points in whole[2].items():
            if not re.search("/(seconds|elapsed)$", tag):
                self.assertEqual(rest[2][tag], [point for point in points if point[0] > 4 * BATCH])

    def test_the_package_reads_it(self):
        try:
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        except ImportError:
            self.skipTest("the package tensorboard is not installed")
        self.train("run", *RING, "--dtype", "bf16", *TENSORBOARD)
        board = EventAccumulator(self.at("curves", "deep", "job"))
        board.Reload()
        curves = events(self.event_files()[0])[2]
        for tag in board.Tags()["scalars"]:
            self.assertEqual([(e.step, e.value) for e in board.Scalars(tag)], curves[tag])

    def test_nothing_unasked(self):
        self.train("run", *RING, "--dtype", "bf16", "--set", "tensorboard.output_path=curves", "--set", "csv_monitor.job_name=j")
        self.assertEqual(sorted(os.listdir(self.folder)), ["run", "text.txt"])

    def test_what_cannot_be_made(self):
        os.mkdir(self.at("table"))
        os.mkdir(self.at("table", "Train_Samples_lr.csv"))
        said = self.train("run", *RING, "--dtype", "bf16", *CSV, status=1)
        self.assertIn("table/Train_Samples_lr.csv: Is a directory", said)
        said = self.train("other", *RING, "--dtype", "bf16", *TENSORBOARD, "--set", "tensorboard.output_path=text.txt", status=2)
        self.assertIn("text.txt: is a file, not a directory: choose another tensorboard.output_path", said)

    def test_what_cannot_be_written(self):
        """A limit on the size of files, which the curves reach; so does metrics.jsonl."""
        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))
        said = self.train("run", "--topology", "local", "--batch", "1", *TENSORBOARD, "--steps", "100", status=1, preexec_fn=limit)
        told = re.findall(r"(\S+): cannot write: File too large: what it would say from step (\d+) on is lost; training continues, "
                          "and ends with exit status 1", said)
        self.assertEqual(len(told), 1, said)
        self.assertEqual(told[0][0], os.path.relpath(self.event_files()[0], self.folder))
        curves = events(self.event_files()[0])[2]
        self.assertIn(len(curves["Train/Samples/train_loss"]), (int(told[0][1]) - 1, int(told[0][1])))


if __name__ == "__main__":
    unittest.main()
