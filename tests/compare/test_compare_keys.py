#!/usr/bin/env python3
"""compare.py and who may join a star: who gets --insecure, and which runs may stand beside each other."""
import unittest

from made_run import make_run
from test_compare import Case, FakeProgram
from comparison import equality, comparability, machine
from comparison.runs import load


class Insecure(FakeProgram):
    def test_it_is_given_to_stars_alone(self):
        p = self.run_it("--program", self.program, "--topologies", "local,ps:sync,zero:3", "--repeat", "1", "--medium", "tcp", "--insecure")
        given = {line.split()[2]: "--insecure" in line for line in self.order()[-3:]}
        self.assertEqual(given, {"local": False, "ps:sync": True, "zero:3": False})


class Likeness(Case):
    def runs(self, **second):
        return [load(d, d) for d in (make_run(self.at("a"), "ps:sync", security="job"), make_run(self.at("b"), "ps:sync", **second),
                                     make_run(self.at("c"), "zero:2"))]

    def test_encrypted_stars_stand_apart_from_plain_ones(self):
        star, other, ring = self.runs(security="loopback")
        self.assertEqual(list(comparability.unlike([[star], [other]])), ["encryption"])
        for one in (star, other):
            self.assertEqual(comparability.unlike([[one], [ring]]), {})
        star.summary["security"] = "insecure"
        self.assertEqual(comparability.unlike([[star], [other]]), {})

    def test_the_table_says_that_a_ring_is_not_encrypted(self):
        star, other, ring = self.runs(security="loopback")
        self.assertIn("not a ring's", dict(machine.shared([star, ring]))["encrypted"][0])
        self.assertEqual(dict(machine.shared([other, ring]))["encrypted"], [])

    def test_they_move_no_bit(self):
        star, other, _ = self.runs(security="loopback")
        star.config = lambda: {"seed": 1, "security": {"insecure": False}}
        other.config = lambda: {"seed": 1, "security": {"insecure": True}}
        self.assertEqual(equality.promise(star), equality.promise(other))


if __name__ == "__main__":
    unittest.main()
