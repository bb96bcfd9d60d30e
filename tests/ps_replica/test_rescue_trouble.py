#!/usr/bin/env python3
"""What becomes of a rescue that is itself disturbed: the disk is full, another server or the scheduler dies while survivors
write, the directory vanishes. A server that stands still keeps the rescue open meanwhile, so that no moment has to be
hit. Steps may be lost, as the last checkpoint says; never a bit, and no half checkpoint is taken."""
import glob
import os
import resource
import subprocess
import unittest

from killed_runs import STEPS, KilledRuns

EVERY, AT = 30, STEPS // 3
CHECKPOINTS = ["--checkpoint-every", str(EVERY)]


class RescueTrouble(KilledRuns):
    def parts(self, out, name):
        """Files of that name in the rescue's checkpoint while it is written; a run's own has a step that EVERY divides."""
        return [path for path in glob.glob(self.at(out, "checkpoints", ".*.partial", name))
                if int(path.split("/.step-")[1].split(".")[0]) % EVERY]

    def rescue(self, out, dead, held, seen, *more, servers=3):
        """A run of which server `dead` has died, while server `held` stands still, and the others have left their parts."""
        p = self.begun(out, *more, servers=servers)
        p.stop(f"server {held}")
        p.kill_now(f"server {dead}")
        p.until(lambda: self.parts(out, seen), "the others' parts")
        return p

    def check_fallback(self, out, life, why):
        """The second life began with the newest checkpoint that is no rescue's, and its line says why and what that cost."""
        self.assertIn(why, life["why"])
        step = int((life["resumed_from"] or "step-0").split("-")[1])
        self.assertEqual(step % EVERY, 0)
        self.assertGreater(life["steps_lost"], 0)
        self.assertLessEqual(step + life["steps_lost"], STEPS)
        return step

    def test_the_disk_is_full(self):
        """Servers can write nothing any more, not even why: a limit on the size of files is all that this takes."""
        # A file takes no message either, which a pipe does.
        p = self.begun("full", "--medium", "tcp", *CHECKPOINTS, at=AT + 3, restore_signals=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        last = max(int(name.split("-")[1]) for name in os.listdir(self.at("full", "checkpoints")) if name[0] == "s")
        for pid in p.find("server 0", "server 1"):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        p.kill_now("server 1")
        p.until(lambda: len(self.lives("full")) == 2, "a second life")
        for pid in p.find("server 0", "server 1"):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        life, _ = self.goes_on(p, "full")
        # A server says so: nobody waits for the deadline.
        self.assertGreaterEqual(self.check_fallback("full", life, "server 0 could not keep its state: checkpoints/"), last)
        self.assertIn("File too large", life["why"])
        self.check_same("full")

    def test_its_neighbour_dies_too(self):
        p = self.rescue("neighbour", 1, 2, "server-0.json", *CHECKPOINTS)
        p.kill_now("server 2")
        life, _ = self.goes_on(p, "neighbour")
        self.check_fallback("neighbour", life, "server 1 and its neighbour, which kept its replica, have both died")
        self.check_same("neighbour")

    def test_one_that_has_left_its_part_dies(self):
        """No neighbour: no step is lost, and its part is the one that it wrote."""
        p = self.rescue("left", 1, 2, "server-3.json", servers=4)
        p.kill_now("server 3")
        p.go_on("server 2")
        life, _ = self.goes_on(p, "left")
        self.check_no_step_lost("left", life)
        self.check_same("left")

    def test_the_scheduler_dies(self):
        p = self.rescue("scheduler", 1, 2, "server-0.json", *CHECKPOINTS)
        p.kill_now("scheduler")
        p.go_on("server 2")
        life, _ = self.goes_on(p, "scheduler")
        self.check_fallback("scheduler", life, "scheduler")
        self.check_same("scheduler")

    def test_the_directory_vanishes(self):
        """All checkpoints go, when a part has been seen; who comes later makes the directory anew."""
        p = self.rescue("vanishes", 1, 2, "server-0.json", *CHECKPOINTS)
        partial, = self.parts("vanishes", "")
        os.rename(self.at("vanishes", "checkpoints"), self.at("vanishes", "gone"))
        os.makedirs(partial)
        p.go_on("server 2")
        life, _ = self.goes_on(p, "vanishes")
        self.assertEqual(self.check_fallback("vanishes", life, "the servers' state could not be kept"), 0)
        self.assertIn("vanished", life["why"])
        self.check_same("vanishes")


if __name__ == "__main__":
    unittest.main()
