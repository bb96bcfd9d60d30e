#!/usr/bin/env python3
"""State that lies on the host: the bits, and the checkpoints, of a run that keeps it on the device; what is refused."""
import os
import resource
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import TINY, Runs

OPTIMIZER = "zero_optimization.offload_optimizer."
PARAM = ["--set", "zero_optimization.offload_param.device=cpu"]


class Offload(Runs):
    def setUp(self):
        super().setUp()
        self.disk, self.other = self.at("disk"), self.at("other")
        os.mkdir(self.disk)
        os.mkdir(self.other)

    def words(self, out, *more, steps=6):
        return ["train", *TINY, "--data", "demo", "--steps", str(steps), "--seq", "24", "--batch", "1", "--lr", "0.01", "--quiet", "--force",
                "--set", "eval_batches=none", "--out", out, *more]

    def run_of(self, out, *more, steps=6):
        self.run_it(*self.words(out, *more, steps=steps))
        return self.summary(out)

    def offload(self, **keys):
        return [w for name, value in keys.items() for w in ("--set", f"{OPTIMIZER}{name}={value}")]

    def nvme(self, **keys):
        return self.offload(device="nvme", nvme_path=self.disk, **keys)

    def losses(self, out):
        return [line["val_loss"] for line in self.lines(out, "evals.jsonl")]

    def assert_refused(self, more, *said):
        self.refused(*self.words("refused", *more), said=said)


class Bits(Offload):
    def test_device_classes_fall_and_the_host_has_them(self):
        plain = self.run_of("plain", "--topology", "zero:2")
        cpu = self.run_of("cpu", "--topology", "zero:2", *self.offload(device="cpu"))
        self.assertEqual(plain["weights_hash"], cpu["weights_hash"])
        for rank, was in zip(cpu["memory"], plain["memory"]):
            self.assertEqual((rank["peak"]["master"], rank["peak"]["optimizer"]), (0, 0))
            state = was["peak"]["master"] + was["peak"]["optimizer"]
            self.assertGreater(state, 0)
            # Two staged gradients and weights beside it.
            self.assertGreater(rank["peak"]["offload"], state)
            self.assertEqual(rank["predicted"], rank["peak"])
        self.assertEqual(cpu["totals"]["memory_bytes"] + 2 * state, plain["totals"]["memory_bytes"])
        for rank, memory in zip(cpu["wire"], plain["memory"]):
            shard = memory["peak"]["master"] // 2  # of the 16-bit weights
            self.assertEqual((rank["offload"]["down_per_step"], rank["offload"]["up_per_step"]), (shard, shard))

    def test_a_file_has_what_memory_had(self):
        words = ["--topology", "zero:1", "--dtype", "fp32"]
        host, disk = self.run_of("host", *words, *self.offload(device="cpu")), self.run_of("disk", *words, *self.offload(device="nvme", nvme_path=self.folder))
        self.assertEqual(host["weights_hash"], disk["weights_hash"])
        for rank, was in zip(disk["memory"], host["memory"]):
            self.assertEqual(rank["predicted"], rank["peak"])
            self.assertNotEqual(rank["peak"]["offload"], was["peak"]["offload"])
        for rank, memory in zip(disk["wire"], disk["memory"]):
            moved = rank["offload"]
            self.assertEqual(moved["read_per_step"], moved["written_per_step"])
            # Master and two moments, each rounded up to 4096 bytes.
            self.assertGreaterEqual(moved["read_per_step"], 3 * memory["peak"]["parameter"] // 2)

    def test_snapshots_are_of_the_updated_weights(self):
        curves = []
        for words in ([], self.offload(device="cpu"), self.offload(device="cpu") + PARAM):
            self.run_of("run", "--topology", "zero:3", "--set", "eval_every=2", "--set", "eval_batches=1", *words)
            curves.append(self.losses("run"))
        self.assertEqual(len(curves[0]), 3)
        self.assertEqual(curves[0], curves[1])
        self.assertEqual(curves[0], curves[2])

    def test_weights_of_stage_3_on_the_host(self):
        words = ["--topology", "zero:3", "--set", "gradient_accumulation_steps=2"]
        plain, host = self.run_of("plain", *words), self.run_of("host", *words, *self.offload(device="cpu"), *PARAM)
        self.assertEqual(plain["weights_hash"], host["weights_hash"])
        for rank, was in zip(host["memory"], plain["memory"]):
            self.assertEqual(rank["peak"]["parameter"], 0)
            self.assertGreater(was["peak"]["parameter"], 0)
            self.assertEqual(rank["predicted"], rank["peak"])
        for rank in host["wire"]:
            moved = rank["offload"]
            self.assertGreater(moved["up_per_step"], moved["down_per_step"])
            self.assertEqual(moved["up_per_step"], moved["predicted_up"])


class Checkpoints(Offload):
    def test_a_run_goes_on_with_and_without(self):
        whole = self.run_of("whole", "--topology", "zero:2")["weights_hash"]
        cpu, background = self.offload(device="cpu"), ["--set", "recovery.checkpoint_background=true"]
        disk = self.offload(device="nvme", nvme_path=self.folder)
        for first, second in ((disk, []), (cpu, disk + PARAM), (disk + background, disk), (cpu + background, cpu + PARAM), (cpu, []), ([], cpu)):
            with self.subTest(first=first, second=second):
                self.run_of("half", "--topology", "zero:1", "--checkpoint-every", "3", *first, steps=3)
                end = self.run_of("end", "--topology", "zero:3", "--resume", "half", *second)
                self.assertEqual(end["weights_hash"], whole)


class Disk(Offload):
    """The optimizer in a file of each rank."""

    def test_bits_and_bytes(self):
        whole = {dtype: self.run_of("whole", "--topology", "zero:2", "--dtype", dtype)["weights_hash"] for dtype in ("bf16", "fp32", "fp16")}
        params = PARAM
        for topology, dtype, words in (("zero:1", "bf16", []), ("zero:2", "fp16", []), ("zero:3", "fp32", []), ("zero:3", "bf16", params),
                                       ("zero:3", "fp32", params), ("zero:2", "bf16", self.offload(ratio=0.4))):
            with self.subTest(topology=topology, dtype=dtype, words=words):
                run = self.run_of("filed", "--topology", topology, "--dtype", dtype, *self.nvme(), *words)
                self.assertEqual(run["weights_hash"], whole[dtype])
                self.assert_as_predicted(run)
                for memory, wire in zip(run["memory"], run["wire"]):
                    self.assertEqual((memory["peak"]["optimizer"]) == 0, "ratio=0.4" not in str(words))
                    offload = wire["offload"]
                    self.assertGreater(offload["read_per_step"], 0)
                    self.assertEqual(offload["read_per_step"] % 4096, 0)
                    for name in ("read", "written", "down", "up"):
                        self.assertEqual(offload[f"{name}_per_step"], offload[f"predicted_{name}"])
                    self.assertEqual(offload["read_per_step"], offload["written_per_step"])
                self.assertEqual(os.listdir(self.disk), [])

    def test_a_run_goes_on_with_and_without(self):
        whole = self.run_of("whole", "--topology", "zero:2")["weights_hash"]
        for first, second in ((self.nvme(), []), ([], self.nvme()), (self.nvme() + ["--set", "recovery.checkpoint_background=true"], self.nvme())):
            with self.subTest(first=first, second=second):
                self.run_of("half", "--topology", "zero:1", "--checkpoint-every", "3", *first, steps=3)
                end = self.run_of("end", "--topology", "zero:3", "--resume", "half", *second)
                self.assertEqual(end["weights_hash"], whole)

    def test_every_stage_is_predicted(self):
        done = self.run_it(*self.words("dry", "--topology", "zero:3", *self.nvme(), *PARAM, "--dry-run"))
        self.assertIn("zero:0   worker  16P", done.stdout)
        self.assertRegex(done.stdout, r"offload: read +[0-9.]+ MiB ")

    def test_no_room(self):
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
        done = self.run_it(*self.words("full", "--workers", "1", "--topology", "zero:1", *self.nvme(), steps=1), status=1, preexec_fn=limit)
        self.assertIn(f"{self.disk} takes no file of ", done.stderr)
        self.assertIn("another directory with zero_optimization.offload_optimizer.nvme_path", done.stderr)
        self.assertEqual(os.listdir(self.disk), [])

    def test_no_directory(self):
        self.assert_refused(["--topology", "zero:1", *self.offload(device="nvme")], "nvme_path is missing")
        self.assert_refused(["--topology", "zero:1", *self.offload(device="nvme", nvme_path="/no/such/dir")], "nvme_path /no/such/dir does not exist")
        self.assert_refused(["--topology", "zero:1", *self.offload(device="nvme", nvme_path="/dev/null")], "nvme_path /dev/null is no directory")


class Weights(Offload):
    """Weights of stage 3 in a file of each rank, which every gather reads."""

    def setUp(self):
        super().setUp()
        self.param = ["--set", "zero_optimization.offload_param.device=nvme", "--set", f"zero_optimization.offload_param.nvme_path={self.other}"]

    def test_bits_and_bytes(self):
        aio = ["--set", "aio.block_size=4096", "--set", "aio.queue_depth=1"]
        for dtype, device, words in (("bf16", "cpu", []), ("fp16", "nvme", ["--set", "zero_optimization.overlap_comm=false"]), ("fp32", "nvme", []),
                                     ("bf16", "nvme", ["--set", "gradient_accumulation_steps=2", *aio]),
                                     ("fp32", "nvme", ["--set", "zero_optimization.stage3_prefetch_bucket_size=1e9"]),
                                     ("bf16", "cpu", ["--set", "zero_optimization.stage3_prefetch_bucket_size=0", "--set",
                                                      "activation_checkpointing.recompute=block"])):
            with self.subTest(dtype=dtype, device=device, words=words):
                words = ["--topology", "zero:3", "--dtype", dtype, *words]
                whole = self.run_of("whole", *words, *self.offload(device="cpu"), *PARAM)
                filed = self.run_of("filed", *words, *self.offload(device=device, nvme_path=self.disk), *self.param)
                self.assertEqual((filed["weights_hash"], filed["loss"]), (whole["weights_hash"], whole["loss"]))
                self.assert_as_predicted(filed)
                for rank in filed["memory"]:
                    self.assertEqual(rank["peak"]["parameter"], 0)
                for rank, was in zip(filed["wire"], whole["wire"]):
                    offload = rank["offload"]
                    for name in ("read", "written", "down", "up"):
                        self.assertEqual(offload[f"{name}_per_step"], offload[f"predicted_{name}"])
                    # The host's link is as before; each gather reads what goes up, rounded up to 4096 bytes.
                    self.assertEqual((offload["up_per_step"], offload["down_per_step"]), (was["offload"]["up_per_step"], was["offload"]["down_per_step"]))
                    self.assertGreaterEqual(offload["read_per_step"], offload["up_per_step"])
                    # For 16-bit weights one copy; in fp32 none next to the masters.
                    state = 0 if device == "cpu" else self.run_of("state", *words, *self.offload(device="nvme", nvme_path=self.disk), *PARAM)["wire"][rank["rank"]]["offload"]["written_per_step"]
                    self.assertEqual(offload["written_per_step"] - state > 0, dtype != "fp32")
                self.assertEqual(os.listdir(self.disk) + os.listdir(self.other), [])

    def test_snapshots_and_checkpoints(self):
        for dtype, device in (("bf16", "cpu"), ("fp32", "nvme"), ("fp16", "nvme")):
            with self.subTest(dtype=dtype, device=device):
                plain = ["--topology", "zero:3", "--dtype", dtype, "--set", "eval_every=2", "--set", "eval_batches=1"]
                filed = plain + self.offload(device=device, nvme_path=self.disk) + self.param
                whole = self.run_of("plain", *plain)
                self.run_of("half", *filed, "--checkpoint-every", "3", steps=3)
                end = self.run_of("end", *filed, "--resume", "half")
                self.assertEqual(end["weights_hash"], whole["weights_hash"])
                self.assertEqual(self.losses("end"), self.losses("plain")[1:])
                self.assertEqual(len(self.losses("end")), 2)

    def test_weights_of_fp32_are_masters(self):
        done = self.run_it(*self.words("masters", "--topology", "zero:3", "--dtype", "fp32", *self.offload(device="cpu"), *self.param, steps=1))
        self.assertIn("offload_param.device: fp32 weights are the masters, and lie in host memory with these: nvme for offload_optimizer too", done.stderr)

    def test_what_is_refused(self):
        self.assert_refused(["--topology", "zero:3", *self.param], "offload_param", "offload the whole optimizer too")
        self.assert_refused(["--topology", "zero:3", *self.offload(device="cpu"), *self.param[:2]], "zero_optimization.offload_param", "nvme_path is missing")
        self.assert_refused(["--topology", "zero:3", *self.nvme(), "--set", "aio.block_size=5000"], "aio.block_size is 5000", "as 8192")


class Refused(Offload):
    def test_wrong_combinations(self):
        self.assert_refused(["--topology", "zero:0", *self.offload(device="cpu")], "offload_optimizer", "in stage 0", "use stage 1, 2 or 3")
        self.assert_refused(["--topology", "zero:1", *self.offload(device="disk")], "offload_optimizer.device", '"nvme"')
        self.assert_refused(["--topology", "zero:1", *self.offload(device="cpu", ratio=1.5)], "offload_optimizer.ratio", "from 0 to 1")
        self.assert_refused(["--topology", "zero:3", *PARAM], "offload_param", "offload the whole optimizer too")

    def test_the_old_word_and_a_star(self):
        old = self.run_of("old", "--topology", "zero:1", "--set", "zero_optimization.cpu_offload=true", steps=1)
        self.assertGreater(old["memory"][0]["peak"]["offload"], 0)
        star = self.run_it(*self.words("star", "--topology", "ps:sync", *self.offload(device="cpu"), steps=1))
        self.assertIn("have an effect only with zero:1 to zero:3", star.stderr)


if __name__ == "__main__":
    unittest.main()
