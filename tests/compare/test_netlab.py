#!/usr/bin/env python3
"""A cluster in a box (experiments/netlab.py): step times beside the formulas, traffic on the links, bits, and nothing left
behind. Building one needs root; what does not is tested without."""
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import EXPERIMENTS, LIMIT_S, PROGRAM, Runs
from netlab import formula, lab, rate, train

SCRIPT = os.path.join(EXPERIMENTS, "netlab.py")
NOBODY = 65534
MODEL = {"model_type": "gpt2", "vocab_size": 2048, "n_positions": 64, "n_embd": 128, "n_layer": 1, "n_head": 4,
         "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}
SMALL = ["--model", "model.json", "--tokenizer", "byte", "--seq", "8", "--batch", "1", "--dtype", "bf16", "--set",
         "eval_batches=0", "--set", "gradient_clipping=0", "--set", "parameter_server.partition_bytes=16384", "--set",
         "parameter_server.credit_bytes=131072", "--threads", "1"]


def why_not():
    """Why no lab can be built here, or None."""
    try:
        lab.check_possible()
    except lab.LabError as e:
        return str(e)
    return None if shutil.which("mpirun") else "mpirun is not installed"


WHY_NOT = why_not()


class Words(Runs):
    def test_rates(self):
        self.assertEqual(rate.parse("1Gbit"), 1e9)
        self.assertEqual(rate.parse("2.5gbit/s"), 2.5e9)
        self.assertEqual(rate.text(200e6), "200 Mbit/s")
        for wrong in ("1", "fast", "1Gb", "0Gbit", "-1Gbit", "9999Gbit", "1 KiB"):
            with self.assertRaisesRegex(ValueError, "1Gbit, 200Mbit"):
                rate.parse(wrong)

    def test_formulas(self):
        m, b = 1000, 10
        for servers, expected in ((1, 400), (2, 200), (4, 100), (8, 100)):
            self.assertEqual(formula.seconds("ps:sync", m, 4, servers, b), expected)
        self.assertEqual(formula.seconds("zero:1", m, 4, 0, b), 150)
        self.assertEqual(formula.seconds("zero:3", m, 4, 0, b), 225)

    def test_the_formula_knows_nothing_of_the_programs_bytes(self):
        for topology, servers, dtype, wanted in (("zero:1", 0, "bf16", 2 * 0.75 * 2000), ("zero:3", 0, "fp32", 3 * 0.75 * 4000),
                                                 ("ps:sync", 2, "fp16", 4 / 2 * 2000)):
            for name, found in (("summary.json", {"topology": topology, "params": 1000, "dtype": dtype, "workers": 4, "servers": servers,
                                                  "wire": [{"role": "worker", "rank": 0, "predicted_sent": 77, "sent_per_step": 78}]}),
                                ("config.json", {"gradient_clipping": 0}), ("netlab.json", {"bits_per_second": 80}),
                                ("metrics.jsonl", {"seconds": 9})):
                self.write(json.dumps(found), name)
            self.assertEqual(formula.Measured(self.folder).formula(), wanted / 10)

    def test_payload_of_the_whole_run(self):
        """Steps since it went on; of ps:async each worker's own, and the job's on a server."""
        wire = [{"role": role, "rank": rank, "sent_per_step": 100, "received_per_step": 10} for role, rank in
                (("worker", 0), ("worker", 1), ("server", 0))]
        for more, wanted in (({}, [800, 800, 800]), ({"resumed_from": 6}, [200, 200, 200]), ({"batches": [5, 11]}, [500, 1100, 800])):
            run = formula.Measured.__new__(formula.Measured)
            run.summary = {"servers": 1, "steps": 8, "wire": wire, **more}
            run.config = {"parameter_server": {"servers_on": "hosts"}}
            run.lab = {"links": {host: {"sent_bytes": 1, "received_bytes": 1} for host in ("w0", "w1", "s0")}}
            self.assertEqual([sent for _, sent, *_ in run.links()], wanted)

    def test_the_engine_that_is_asked_for(self):
        for words, wanted in (("--collective tcp", True), ("--collective=tcp --steps 2", True), ("--set ring.collective=tcp", True),
                              ("--collective mpi", False), ("--medium tcp", False), ("--model tcp", False)):
            self.assertEqual(train.asks_for_tcp(["starring", "train", *words.split()]), wanted, words)

    def test_only_root(self):
        with self.assertRaisesRegex(lab.LabError, "only root.*sudo"):
            lab.check_possible(uid=NOBODY)

    def test_wrong_command_lines(self):
        for words, says in ((["--bandwidth", "fast"], "1Gbit"), (["--topologies", "local"], "local"), (["--workers", "1"], "--workers")):
            self.assertIn(says, self.run_script("netlab.py", *words, status=2).stderr)


@unittest.skipIf(WHY_NOT, f"no cluster in a box here: {WHY_NOT}")
class Box(Runs):
    def setUp(self):
        super().setUp()
        self.write(json.dumps(MODEL), "model.json")

    def argv(self, bandwidth, topology, steps, out="out"):
        return [SCRIPT, "--program", PROGRAM, "--bandwidth", bandwidth, "--topologies", topology, "--workers", "2",
                "--steps", str(steps), "--out", out, "--limit", "120", "--", *SMALL]

    def left(self, pid):
        """Files that a lab of that process has left."""
        mine = f"{lab.PREFIX}-{pid}-"
        return [n for n in lab.namespaces() + [os.path.basename(d) for d in lab.directories()] if n.startswith(mine)]

    def measure(self, bandwidth, topology, steps):
        self.run_it(*self.argv(bandwidth, topology, steps), program=sys.executable)
        name = topology.replace(":", "-") + ("-s1" if topology.startswith("ps") else "")
        return formula.Measured(self.at("out", name))

    def check_time(self, topology):
        """No sooner than the formula, for a machine only adds to what links take; and the formula's bytes were on the links."""
        run = self.measure("8Mbit", topology, 4)
        self.assertGreater(run.seconds / run.formula(), 0.85, f"{topology}: {run.seconds:.3f} s, formula {run.formula():.3f} s")
        for host, sent, received, link_sent, link_received in run.links():
            self.assertGreater(link_sent, sent, host)
            self.assertGreater(link_received, received, host)
            self.assertLess(link_sent, sent * 1.1 + 3 * run.weights(), host)
        self.assertEqual((run.summary["medium"], run.summary["machine"]["host"]), ("tcp", os.uname().nodename))
        return run

    def test_times_follow_the_formulas(self):
        star, ring = self.check_time("ps:sync"), self.check_time("zero:1")
        self.assertEqual(star.summary["weights_hash"], ring.summary["weights_hash"])
        self.assertAlmostEqual(star.formula() / ring.formula(), 2)

    def test_both_ways_are_limited(self):
        """Two links into one, and one into two: the one's limit holds."""
        count, received = 500000, []
        # Two of them write to one file: a line is one write.
        take = ("import os, socket, sys; s = socket.create_server((sys.argv[1], 9)); os.write(1, b'up\\n'); n = 0\n"
                "c = [s.accept()[0] for _ in range(int(sys.argv[2]))]\n"
                "for x in c:\n  while d := x.recv(65536): n += len(d)\nos.write(1, b'%d\\n' % n)")
        give = ("import socket, sys; s = socket.create_connection((sys.argv[1], 9)); s.sendall(bytes(int(sys.argv[2]))); s.close()")
        for senders, receivers in ((("b", "c"), ("a",)), (("a", "a"), ("b", "c"))):
            with lab.Lab(8e6, ["a", "b", "c"]) as box, open(self.at("said"), "w+b") as log:
                for host in receivers:
                    box.start(host, [sys.executable, "-c", take, box.address(host), str(2 // len(receivers))], log)
                while os.path.getsize(log.name) < 3 * len(receivers):
                    time.sleep(0.01)
                began = time.monotonic()
                for host, to in zip(senders, receivers * 2):
                    box.start(host, [sys.executable, "-c", give, box.address(to), str(count)], log)
                for child in box.children:
                    self.assertEqual(child.wait(LIMIT_S), 0)
                seconds = time.monotonic() - began
                with open(log.name, encoding="ascii") as f:
                    received = [int(word) for word in f.read().split() if word != "up"]
                self.assertEqual(sum(received), 2 * count)
                self.assertGreater(seconds, 0.85)  # 1 MB at 1 MB/s; either link alone would need half of it

    def begin(self):
        """A lab in the middle of a run."""
        self.remove("out")
        p = self.start(*self.argv("8Mbit", "zero:1", 1000), program=sys.executable)
        p.until(lambda: self.steps("out/zero-1"), "its first step")
        self.assertTrue(self.left(p.pid))
        return p

    def running(self):
        """Processes of this test's run."""
        found = subprocess.run(["pgrep", "-f", self.folder], capture_output=True, text=True, check=False).stdout.split()
        return [pid for pid in found if int(pid) != os.getpid()]

    def test_ctrl_c_and_sigterm(self):
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            p = self.begin()
            p.send_signal(number)
            p.ends(status)
            self.assertEqual(self.left(p.pid), [])
            self.assertEqual(self.running(), [])

    def test_sigkill_and_two_at_once(self):
        killed, lives = self.begin(), None
        killed.kill()
        killed.wait()
        self.assertTrue(self.left(killed.pid))
        try:
            lives = subprocess.Popen([sys.executable, "-c", "import sys, time; sys.path.insert(0, sys.argv[1])\n"
                                      "from netlab.lab import Lab\n"
                                      "with Lab(1e9, ['a', 'b']): print('up', flush=True); time.sleep(600)",
                                      EXPERIMENTS], stdout=subprocess.PIPE, text=True)
            self.assertEqual(lives.stdout.readline(), "up\n")
            self.assertEqual(self.left(killed.pid), [])      # the next one has removed it
            self.assertEqual(self.running(), [])
            self.run_script("netlab.py", "--clean")
            self.assertTrue(self.left(lives.pid))             # and none that lives
        finally:
            if lives:
                lives.terminate()
                lives.communicate(timeout=60)
        self.assertEqual(self.left(lives.pid), [])

    @unittest.skipUnless(shutil.which("setpriv"), "no setpriv")
    def test_nobody_is_refused(self):
        os.chmod(self.folder, 0o777)
        for argv in ([SCRIPT, "--out", "out"],
                     [os.path.join(EXPERIMENTS, "compare.py"), "--program", PROGRAM, "--a", "ps:sync", "--b", "zero:1", "--bandwidth", "1Gbit",
                      "--repeat", "1", "--out", "out"]):
            p = self.run_it("--reuid", str(NOBODY), "--clear-groups", sys.executable, *argv, program="setpriv", status=2)
            self.assertIn("sudo", p.stderr)

    def test_compare(self):
        p = self.run_script("compare.py", "--program", PROGRAM, "--a", "ps:sync", "--b", "zero:1", "--bandwidth", "40Mbit", "--repeat", "1",
                            "--workers", "2", "--steps", "2", "--model", "model.json", "--seq", "8", "--batch", "1", "--dtype", "bf16", "--set",
                            "data.tokenizer=byte", "--set", "eval_batches=0", "--assert-equal", "--full", "--out", "cmp")
        self.assertIn("links of 40 Mbit/s", p.stdout)


if __name__ == "__main__":
    unittest.main()
