#!/usr/bin/env python3
"""predict.py as a command: what it prints of a dry run, and each refusal in a sentence."""
import json
import os
import stat
import subprocess
import sys
import unittest

import made
from made import made_machine, needs_simgrid, reduced
from fixture import EXPERIMENTS, PROGRAM, folder_for

from prediction import CannotPredict, machine  # noqa: E402

SCRIPT = os.path.join(EXPERIMENTS, "predict.py")


class Command(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = folder_for(cls)
        cls.write("machine.json", json.dumps(made.MACHINE))
        # Answers as the program does, and writes down what it was asked.
        cls.program = cls.write("program", f"""#!/bin/sh
echo "$@" >>{cls.folder}/asked
case "$*" in
*"--model none"*) echo 'starring: error: model "none" is no preset' >&2; exit 2;;
*zero:9*) echo '{{"topology": "zero:9", "workers": 2}}';;
*) sed "s/zero:2/$3/" {cls.folder}/told.json;;
esac
""")
        os.chmod(cls.program, stat.S_IRWXU)
        cls.write("told.json", json.dumps(reduced(2, 1000).told()))

    @classmethod
    def write(cls, name, text):
        path = os.path.join(cls.folder, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return path

    def predict(self, *words, status=0, of=None):
        p = subprocess.run([sys.executable, SCRIPT, "--program", self.program, "--machine", of or os.path.join(self.folder, "machine.json"), *words],
                           capture_output=True, text=True, check=False)
        self.assertEqual(status, p.returncode, p.stderr)
        self.assertNotIn("Traceback", p.stderr)
        return p

    def refused(self, *words, of=None):
        said = self.predict(*words, status=2, of=of).stderr
        self.assertEqual(1, said.count("error:"), said)
        return said

    @needs_simgrid
    def test_document(self):
        doc, = json.loads(self.predict("--topology", "zero:2", "--workers", "2", "--json").stdout)
        self.assertEqual(["configuration", "memory", "wire", "step_seconds", "parts", "tokens_per_second", "limit", "staleness", "fits", "error", "notes"], list(doc))
        self.assertEqual({"role": "worker", "sent": 4000, "received": 4000, "formula": "2U"}, doc["wire"][0])
        self.assertEqual(4000, doc["memory"][0]["predicted_bytes"])
        self.assertAlmostEqual(made.COMPUTING, doc["step_seconds"]["median"], 4)
        self.assertAlmostEqual(16 / made.COMPUTING, doc["tokens_per_second"], 1)
        self.assertAlmostEqual(doc["step_seconds"]["mean"], sum(doc["parts"].values()), 9)
        self.assertTrue(doc["fits"])

    @needs_simgrid
    def test_rows_and_words(self):
        said = self.predict("--topology", "zero:1", "--topology", "zero:2", "--workers", "2", "--batch", "3", "--straggle", "0:2", "--set", "seed=4", "--", "--lr", "1").stdout
        self.assertRegex(said, r"(?m)^zero:1 +2 .*\n^zero:2 +2 ")
        self.assertIn("The fastest: zero:1 and zero:2 (equally fast).", said)
        with open(os.path.join(self.folder, "asked"), encoding="utf-8") as f:
            asked = f.read()
        self.assertIn("train --topology zero:1 --workers 2 --steps 720720 --batch 3 --device cuda --straggle 0:2 --set seed=4 --lr 1 --dry-run --json\n", asked)

    @needs_simgrid
    def test_where_the_fastest_changes(self):
        """The sentence names each place where another row becomes the fastest."""
        from prediction import result

        def made_row(topology, workers, tokens, rate=1.25e8):
            return {"configuration": {"topology": topology, "workers": workers, "servers": 2 if topology[0] == "p" else 0,
                                      "network": {"bytes_per_second": rate}}, "tokens_per_second": tokens}
        rows = [made_row("ps:sync", n, 100 * min(n, 4)) for n in (2, 4, 8, 16)] + [made_row("zero:2", n, 60 * n) for n in (2, 4, 8, 16)]
        self.assertEqual(["The fastest: ps:sync with 2 servers from N = 2 on (1.67 times as fast as zero:2), zero:2 from N = 8 on (1.2 times as fast as ps:sync with 2 servers)."],
                         result.crossings(rows))
        rows = [made_row("zero:1", 2, 5, 1e8), made_row("zero:2", 2, 4, 1e8), made_row("zero:1", 2, 5, 1e10), made_row("zero:2", 2, 6, 1e10)]
        self.assertEqual(["The fastest: zero:1 from 800 Mbit/s on (1.25 times as fast as zero:2), zero:2 from 80 Gbit/s on (1.2 times as fast as zero:1)."], result.crossings(rows))
        self.assertEqual([], result.crossings(rows[:1]))

    def test_refusals(self):
        for words, said in (
                (("--model", "none"), 'model "none" is no preset'),
                (("--topology", "zero:9"), "does not say what a step of zero:9 does"),
                (("--bandwidth", "10"), "--bandwidth '10': expected a bandwidth"),
                (("--bandwidth", "10 parsec"), "expected a bandwidth"),
                (("--latency", "5"), "--latency '5': expected a time with its unit"),
                (("--network", "ring"), "--network ring: possible are switch, fat_tree, dragonfly, torus"),
                (("--network", "torus:2"), "only fat_tree has a ratio"),
                (("--network", "fat_tree:4:0"), "only fat_tree has a ratio"),
                (("--workers", "0"), "--workers"), (("--workers", "2,"), "--workers"), (("--bandwidth", "10Gbit,"), "--bandwidth ''"),
                (("--per-node", "x"), "--per-node"),
                (("--steps", "-1"), "--steps"),
                (("--nonsense",), "--nonsense")):
            with self.subTest(words=words):
                self.assertIn(said, self.refused(*words))

    def test_what_goes_before_the_dashes(self):
        for flag, *value in (["--workers", "4"], ["--straggle", "0:3"], ["--delay=0:constant:5"], ["--steps", "3"], ["--set", "a=b"], ["-c", "a.json"], ["--help"]):
            with self.subTest(flag):
                self.assertIn(f"{flag.split('=')[0]} after --:", self.refused("--topology", "zero:2", "--", flag, *value))

    def test_another_program(self):
        other = self.write("other", "#!/bin/sh\necho yes\n")
        os.chmod(other, stat.S_IRWXU)
        self.assertIn("answers with something other than JSON", self.refused("--topology", "zero:2", "--program", other))

    def test_machines_are_refused(self):
        def file(**changes):
            told = json.loads(json.dumps(made.MACHINE))
            for path, value in changes.items():
                section, _, key = path.partition("__")
                if key:
                    told[section][key] = value
                else:
                    told[section] = value
            return self.write("bad.json", json.dumps(told))
        self.assertIn('machine "nowhere" is neither a file nor one of', self.refused(of="nowhere"))
        self.assertIn("no JSON", self.refused(of=self.write("bad.json", "{")))
        self.assertIn("is a directory", self.refused(of=self.folder))
        self.assertIn("bad.json: speed: unknown; a machine has", self.refused(of=file(speed=1)))
        self.assertIn("bad.json: network.speed: unknown; possible are", self.refused(of=file(network__speed=1)))
        self.assertIn("bad.json: network.bytes_per_second: \"fast\": expected a number above 0", self.refused(of=file(network__bytes_per_second="fast")))
        self.assertIn("bad.json: network.bytes_per_second: 0: expected", self.refused(of=file(network__bytes_per_second=0)))
        self.assertIn("bad.json: network.kind: \"tree\": possible are", self.refused(of=file(network__kind="tree")))
        self.assertIn("bad.json: network is missing", self.refused(of=file(network=None)))
        self.assertIn("neither units (measured times) nor device (peaks)", self.refused(of=file(units=None, device=None)))
        self.assertIn("cores.ranks_share: \"rack\": possible are", self.refused(of=file(cores={"count": 2, "ranks_share": "rack"})))
        self.assertIn("bad.json: no JSON: maximum recursion depth", self.refused(of=self.write("bad.json", "[" * 100000)))
        self.assertIn("bad.json: sources: expected an object of texts", self.refused(of=file(sources=["a page"])))
        self.assertIn("bad.json: name: expected a text", self.refused(of=file(name=3)))
        self.assertIn("bad.json: node.devices: 2.5: expected a whole number, at least 1", self.refused(of=file(node__devices=2.5)))
        self.assertIn("bad.json: device.efficiency.products: unknown; possible are product, memory", self.refused(of=file(device__efficiency={"products": 1})))
        self.assertIn("bad.json: device.efficiency.product: 1.5: expected a number above 0, at most 1", self.refused(of=file(device__efficiency={"product": 1.5})))
        self.assertIn("bad.json: network.efficiency: 20: expected a number above 0, at most 1", self.refused(of=file(network__efficiency=20)))
        self.assertIn("bad.json: device.flops_per_second.fp32: 0: expected a number above 0", self.refused(of=file(device__flops_per_second={"fp32": 0})))
        for exchange, said in (({"1e6": 0.5}, ".1e6: 0.5: expected an object of objects"), ({"1e6": {"4": {"fast": 1}}}, '.1e6.4: "fast": expected a number above 0 in'),
                               ({"0": {"4": {"1e9": 1}}}, ': "0": expected a number above 0 in'), ({"1e6": {"4": {"1e9": {"1": 1}}}}, '.1e6.4.1e9: {"1": 1}: expected')):
            self.assertIn("bad.json: network.exchange" + said, self.refused(of=file(network__exchange=exchange)))

    @needs_simgrid
    def test_computing_that_nobody_knows(self):
        def file(**sections):
            return self.write("bad.json", json.dumps({**made.MACHINE, **sections}))
        other = {**made.MACHINE["units"], "model": "another"}
        self.assertIn("has times of another fp32, and no device", self.refused(of=file(units=other, device=None)))
        self.assertIn("device.flops_per_second has no fp32", self.refused(of=file(units=None, device={**made.MACHINE["device"], "flops_per_second": {"bf16": 1e12}})))
        lacks = {**made.MACHINE["units"], "seconds": {"block": {"forward": 1, "backward": 1}}}
        self.assertIn("units.seconds of made lacks embedding, head", self.refused(of=file(units=lacks)))

    def test_without_simgrid(self):
        p = subprocess.run([sys.executable, "-S", SCRIPT, "--machine", os.path.join(self.folder, "machine.json")], capture_output=True, text=True, check=False)
        self.assertEqual(2, p.returncode)
        self.assertRegex(p.stderr, r"error: .* lacks simgrid.*make deps.*python3-simgrid")

    @needs_simgrid
    def test_another_simgrid(self):
        with open(os.path.join(self.folder, "simgrid.py"), "w", encoding="utf-8") as f:
            f.write("simgrid_version = '5.0'\nclass NetZone: create_star_zone = None\n")
        p = subprocess.run([sys.executable, SCRIPT, "--model", "tiny", "--machine", "laptop"], env={**os.environ, "PYTHONPATH": self.folder},
                           capture_output=True, text=True, check=False)
        self.assertEqual(2, p.returncode)
        self.assertRegex(p.stderr, r"error: SimGrid 5.0 \(.*simgrid.py\) has no NetZone.add_netzone_star, .* and no NetZone.set_parent, .*: releases 3.32 to 4.1 are known")

    def test_help_needs_no_package(self):
        p = subprocess.run([sys.executable, "-S", SCRIPT, "--help"], capture_output=True, text=True, check=False)
        self.assertEqual(0, p.returncode, p.stderr)
        self.assertIn("--topology", p.stdout)


class Machines(unittest.TestCase):
    def test_words_change_a_machine(self):
        changed = machine.changed(made_machine(), "1.6Tbit", "5us", "fat_tree:4:1", 8)
        self.assertEqual((2e11, 5e-6, "fat_tree", 4, 8), (changed.rate, changed.network["latency_seconds"], changed.network["kind"],
                                                          changed.network["oversubscription"], changed.per_node))
        for words, rate in (("10Gbit", 1.25e9), ("100mbit/s", 1.25e7), ("50GB/s", 5e10), ("900 GB/s", 9e11)):
            self.assertEqual(rate, machine.bytes_per_second(words))
        self.assertEqual(1, machine.changed(made_machine(), network="fat_tree").network["oversubscription"])

    def test_devices_that_are_not_used_leave_their_links(self):
        node = made_machine(node={"devices": 8}, network={"links_per_node": 8, "bytes_per_second": 400e9})
        self.assertEqual(100e9, machine.changed(node, per_node=2).rate)
        self.assertEqual(400e9, machine.changed(node, per_node=16).rate)
        one_link = made_machine(node={"devices": 8}, network={"links_per_node": 1, "bytes_per_second": 400e9})
        self.assertEqual(400e9, machine.changed(one_link, per_node=1).rate)
        self.assertEqual(1.25e9, machine.changed(node, bandwidth="10Gbit", per_node=2).rate)

    def test_efficiency_is_of_payload(self):
        self.assertEqual(0.9e9, made_machine(network={"efficiency": 0.9}).rate)

    def test_described_machines_are_read(self):
        for name in machine.names():
            with self.subTest(name=name):
                self.assertEqual(name, machine.load(name).name)
        with self.assertRaises(CannotPredict):
            machine.load("../machine")


@needs_simgrid
@unittest.skipUnless(os.path.exists(PROGRAM), "build/starring is not built")
class Program(unittest.TestCase):
    """The program's own dry runs: its refusals, and what each row says as the dry run does."""

    def predict(self, *words, status=0):
        p = subprocess.run([sys.executable, SCRIPT, "--program", PROGRAM, "--json", *words], capture_output=True, text=True, check=False)
        self.assertEqual(status, p.returncode, p.stderr)
        return json.loads(p.stdout) if status == 0 else p.stderr

    def setUp(self):
        self.machine = os.path.join(folder_for(self), "machine.json")
        with open(self.machine, "w", encoding="utf-8") as f:
            json.dump({**made.MACHINE, "units": None, "device": {**made.MACHINE["device"], "kind": "cpu", "memory_bytes": 1e6}}, f)

    def test_every_ring(self):
        options = ["--workers", "4", "--model", "tiny", "--machine", self.machine]
        rings = ["local", "zero:0", "zero:1", "zero:2", "zero:3", "gossip"]
        documents = self.predict(*(word for ring in rings for word in ("--topology", ring)), *options)
        for ring, doc in zip(rings, documents):
            with self.subTest(ring=ring):
                workers = [] if ring == "local" else ["--workers", "4", "--medium", "tcp"]
                told = json.loads(subprocess.run([PROGRAM, "train", "--dry-run", "--json", "--topology", ring, "--model", "tiny", "--device", "cpu", *workers],
                                                 capture_output=True, text=True, check=True).stdout)
                self.assertEqual(max(row["predicted_bytes"] for row in told["memory"]), doc["memory"][0]["predicted_bytes"])
                self.assertEqual(max((row["predicted_sent"] for row in told["wire"]), default=0), max((row["sent"] for row in doc["wire"]), default=0))
                self.assertFalse(doc["fits"])
                self.assertAlmostEqual(doc["step_seconds"]["mean"], sum(doc["parts"].values()), 9)

    def test_settings_that_change_the_order(self):
        """Overlap, prefetch, groups, accumulation and local steps: the step changes in the direction that it must."""
        def step(*words, network="1Gbit"):
            return self.predict("--workers", "4", "--model", "tiny", "--machine", self.machine, "--bandwidth", network, *words)[0]["step_seconds"]["mean"]
        plain = step("--topology", "zero:3")
        self.assertGreater(step("--topology", "zero:3", "--set", "zero_optimization.overlap_comm=false"), plain)
        self.assertLess(step("--topology", "zero:3", "--per-node", "2", "--set", "zero_optimization.zero_hpz_partition_size=2"),
                        step("--topology", "zero:3", "--per-node", "2"))
        self.assertLess(step("--topology", "zero:1", "--set", "gradient_accumulation_steps=4"), 4 * step("--topology", "zero:1"))

    def test_the_program_refuses(self):
        self.assertIn("200000000 micro-batches has more tasks than a document holds",
                      self.predict("--topology", "zero:1", "--machine", self.machine, "--set", "gradient_accumulation_steps=200000000", status=2))
        self.assertIn("there is no rank 7", self.predict("--topology", "zero:1", "--workers", "2", "--machine", self.machine, "--straggle", "7:2", status=2))


if __name__ == "__main__":
    unittest.main()
