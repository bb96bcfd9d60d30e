#!/usr/bin/env python3
"""`bench collective --reduction`: every reduction over every engine of this machine gives what a plain loop gives; and the smallest of
all programs, in which four ranks print 4.0 (`--ones`)."""
import json
import os
import shutil
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import PROGRAM, Runs

REDUCTIONS = ("sum", "min", "max", "prod", "lor")
ONES = {"sum": "4.0", "min": "1.0", "max": "1.0", "prod": "1.0", "lor": "1.0"}


class Reductions(Runs):
    def over(self, engine, *words, ranks=4):
        """The bench over an engine with so many ranks."""
        if engine == "mpi":
            return self.run_it("-n", str(ranks), PROGRAM, "bench", "collective", *words, program="mpirun")
        return self.run_it("bench", "collective", "--ranks", str(ranks), "--engine", engine, *words)

    def engines(self):
        yield from ("threads", "shm", "tcp")
        if shutil.which("mpirun") and os.path.exists(os.path.join(os.path.dirname(PROGRAM), "libstarring_mpi.so")):
            yield "mpi"

    def test_every_element_is_right(self):
        for engine in self.engines():
            for how in REDUCTIONS:
                for dtype, mode in (("fp32", "ordered"), ("bf16", "ordered"), ("int64", "ordered"), ("fp32", "native")):
                    if engine == "tcp" and mode == "native":  # it has none
                        continue
                    p = self.over(engine, "--reduction", how, "--dtype", dtype, "--reduce", mode, "--op", "reduce,all_reduce,reduce_scatter",
                                  "--max-bytes", "4K", "--iterations", "1", "--warmup", "0", "--json", ranks=3)
                    told = json.loads(p.stdout)
                    self.assertEqual(told["wrong"], 0, (engine, how, dtype, mode))
                    self.assertEqual({row["redop"] for row in told["rows"]}, {how})

    def test_four_ranks_print_four(self):
        for engine in self.engines():
            for how, said in ONES.items():
                p = self.over(engine, "--ones", "--reduction", how)
                self.assertEqual(p.stdout.split(), 4 * [said], (engine, how))

    def test_refusals(self):
        self.refused("bench", "collective", "--ones", "--op", "all_reduce", said="--ones times nothing and joins ones of fp32: leave --op out")
        self.refused("bench", "collective", "--ones", "--json", said="leave --json out")
        self.refused("bench", "collective", "--reduction", "mean", said="--reduction mean: expected one of sum, min, max, prod, lor")


if __name__ == "__main__":
    unittest.main()
