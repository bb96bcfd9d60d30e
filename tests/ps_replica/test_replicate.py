#!/usr/bin/env python3
"""Replicas of servers in whole runs: processes are killed in the middle, without any checkpoint besides, and the job goes
on at the very step; two neighbours at once, and it begins again. The bits are those of an undisturbed run."""
import unittest

from killed_runs import SMALL, STEPS, KilledRuns


class Replicate(KilledRuns):
    def test_a_server_dies(self):
        life, _ = self.run_and_kill("server", ["server 1"], dtype="fp16")
        self.check_no_step_lost("server", life)
        self.assertIn("server 1", life["why"])
        self.check_same("server", dtype="fp16")
        for rank in self.summary("server")["wire"]:
            replica = rank.get("replica")
            self.assertEqual(replica is not None, rank["role"] == "server")
            if replica:
                self.assertEqual(replica["sent_per_step"], replica["predicted_sent"])
                self.assertEqual(replica["received_per_step"], replica["predicted_received"])
        self.assert_as_predicted(self.summary("server"))

    def test_worker_0_dies(self):
        life, _ = self.run_and_kill("worker", ["worker 0"], "--medium", "tcp", dtype="fp16")
        self.check_no_step_lost("worker", life)
        self.check_same("worker", dtype="fp16")

    def test_two_servers_that_are_no_neighbours_and_a_worker(self):
        life, _ = self.run_and_kill("three", ["server 0", "server 2", "worker 1"], servers=4)
        self.check_no_step_lost("three", life)
        self.check_same("three")

    def test_two_neighbours(self):
        life, said = self.run_and_kill("both", ["server 0", "server 1"], servers=3)
        self.assertIsNone(life["resumed_from"])
        self.assertGreaterEqual(life["steps_lost"], STEPS // 3)
        self.assertIn("its neighbour, which kept its replica, have both died", life["why"], said)
        self.check_same("both")

    def test_a_checkpoint_besides(self):
        """Its own checkpoints are older than what survivors have; one of them is being written when the server dies."""
        life, _ = self.run_and_kill("besides", ["server 0"], "--checkpoint-every", "3", "--checkpoint-background")
        self.assertEqual(life["steps_lost"], 0)
        self.check_same("besides")

    def test_refused(self):
        for words, why in ((["--topology", "zero:1", "--workers", "2"], "of the star's servers"),
                           (["--topology", "ps:async", "--servers", "2"], "use ps:sync"),
                           (["--topology", "ps:sync", "--servers", "1"], "--servers 2 or more"),
                           (["--topology", "ps:sync", "--servers", "2"], "give --restart N too"),
                           (["--topology", "ps:sync", "--servers", "2", "--restart", "1"], "give --out DIR")):
            self.refused("train", *SMALL, *words, "--replicate", said=why)


if __name__ == "__main__":
    unittest.main()
