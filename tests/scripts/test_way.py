#!/usr/bin/env python3
"""docs/star.md: the table and the picture of the way from star to ring are what the program predicts, and its memory what the page's
formulas say."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import PROGRAM, TOP, Runs
sys.path.append(os.path.join(TOP, "docs"))
import way_plot  # noqa: E402


class Way(Runs):
    @classmethod
    def setUpClass(cls):
        cls.said = {stop.name: way_plot.predicted(PROGRAM, stop) for stop in way_plot.STOPS}
        cls.way = {stop.name: way_plot.machines(stop, cls.said[stop.name]) for stop in way_plot.STOPS}

    def memory(self, stop, machine=0):
        return sum(self.way[stop][machine].memory.values())

    def test_page_and_picture_are_what_the_program_says(self):
        self.assertEqual(self.run_it(os.path.join(TOP, "docs", "way_plot.py"), "--check", program=sys.executable).stderr, "")

    def test_a_changed_figure_is_found(self):
        rows = way_plot.table([(stop, self.way[stop.name]) for stop in way_plot.STOPS])
        page = way_plot.read(way_plot.PAGE)
        self.assertEqual(way_plot.with_table(page, rows), page)
        self.assertNotEqual(way_plot.with_table(page, rows.replace("121.29", "121.30")), page)
        with self.assertRaisesRegex(RuntimeError, "marks"):
            way_plot.with_table(page.replace("<!-- way", "<!-- "), rows)

    def test_formulas_of_the_page(self):
        p, n = self.said["S = 1"]["params"], way_plot.N
        for stop, machine, bytes_each in (("S = 1", 0, 4), ("S = 1", 1, 18), ("S = N", 0, 4), ("S = N", 1, 18 / n)):
            with self.subTest(stop=stop, machine=machine):
                self.assertAlmostEqual(self.memory(stop, machine) / (bytes_each * p), 1, delta=0.01)
        for stop, bytes_each in (("zero:3", 16 / n), ("resident units", 18 / n), ("on the workers", 4 + 18 / n)):
            with self.subTest(stop=stop):
                slots = self.way[stop][0].memory["communication"]
                self.assertAlmostEqual((self.memory(stop) - slots) / (bytes_each * p), 1, delta=0.01)
        self.assertEqual([m.sent for m in self.way["resident units"]], [m.sent for m in self.way["zero:3"]])
        sent = [machine.sent / (2 * p) for stop in ("S = 1", "S = N") for machine in self.way[stop]]
        for found, wanted in zip(sent, (1, n, 1, 1)):
            self.assertAlmostEqual(found, wanted, delta=0.01)


if __name__ == "__main__":
    unittest.main()
