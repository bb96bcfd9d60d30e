#!/usr/bin/env python3
"""experiments/lab_check.py: what it takes for true, and that it finds what is false."""
import io
import os
import sys
import tempfile
import unittest
from contextlib import redirect_stdout

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "experiments"))
import lab_check


def page_of(text):
    return lab_check.read_page("page.md", text)


class Reading(unittest.TestCase):
    def test_commands_with_what_they_must_print(self):
        commands, prose = page_of("Run this:\n\n```console\n$ echo a\na\n$ echo b \\\n    c\nb c\n```\nDone.\n")
        self.assertEqual([(c.text, c.expected, c.line) for c in commands],
                         [("echo a", ["a"], 4), ("echo b \\\n    c", ["b c"], 6)])
        self.assertEqual([text for _, text in prose], ["Run this:", "", "Done."])

    def test_a_command_goes_on_as_on_a_terminal(self):
        commands, _ = page_of("```console\n$ for i in 1; do\n> echo $i; done\n1\n```\n")
        self.assertEqual([(c.text, c.expected) for c in commands], [("for i in 1; do\necho $i; done", ["1"])])

    def test_other_blocks_are_no_prose_and_no_commands(self):
        commands, prose = page_of("```text\n$ rm -r /\n```\n")
        self.assertEqual((commands, prose), ([], []))

    def test_a_page_that_is_wrong_is_named_with_its_line(self):
        for text, word in (("```console\n$ a\n", "never closed"), ("```console\nno command\n```\n", "without a command"),
                           ("\n```console sometimes\n$ a\n```\n", "page.md:2")):
            with self.assertRaises(ValueError) as caught:
                page_of(text)
            self.assertIn(word, str(caught.exception))


class Comparing(unittest.TestCase):
    def test_equal_but_for_blanks(self):
        self.assertIsNone(lab_check.difference(["a   b", ""], ["a b"]))

    def test_another_figure_is_found(self):
        self.assertIn("1.25", lab_check.difference(["loss 1.25"], ["loss 1.26"]))

    def test_dots_within_a_line_and_for_lines(self):
        self.assertIsNone(lab_check.difference(["took ... s", "...", "end"], ["took 12 s", "x", "y", "end"]))
        self.assertIsNone(lab_check.difference(["...", "b", "..."], ["a", "b", "c"]))
        self.assertIsNotNone(lab_check.difference(["...", "z"], ["a", "b"]))

    def test_lines_left_out_or_added_are_found(self):
        self.assertIsNotNone(lab_check.difference(["a", "c"], ["a", "b", "c"]))
        self.assertIsNotNone(lab_check.difference(["a"], ["a", "b"]))
        self.assertIsNotNone(lab_check.difference(["a", "b"], ["a"]))


class Figures(unittest.TestCase):
    def wrong(self, text, *sources):
        return [figure for _, figure in lab_check.unfounded([(1, text)], sources)]

    def test_what_a_command_printed_may_be_said(self):
        self.assertEqual(self.wrong("It sends 2,730,000 bytes, 1.5 times 26%.", "2730000", "1.5 and 26"), [])

    def test_what_none_printed_may_not(self):
        self.assertEqual(self.wrong("loss 2.41, 120 steps, 12 MiB, 7%", "nothing"), ["2.41", "120", "12", "7"])

    def test_small_numbers_and_names_claim_nothing(self):
        self.assertEqual(self.wrong("Exercise 2: 4 workers in zero:3, see [page](x/2024.md), stage-2, 16-bit, `24 GiB`", ""), [])


class Running(unittest.TestCase):
    def check(self, text):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "page.md")
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
            said = io.StringIO()
            with redirect_stdout(said):
                wrong = lab_check.check([path], sys.executable, directory)
            return wrong, said.getvalue()

    def test_a_true_page(self):
        wrong, said = self.check("Prints 42.5.\n```console\n$ echo $((40 + 2)).5\n42.5\n```\n"
                                 "```console varies\n$ date\n```\n```console fails\n$ false\n```\n")
        self.assertEqual(wrong, 0, said)

    def test_each_falsehood_counts(self):
        wrong, said = self.check("Prints 42.5.\n```console\n$ echo 43.5\n44.5\n```\n```console varies\n$ false\n```\n"
                                 "```console fails\n$ true\n```\n")
        self.assertEqual(wrong, 4, said)

    def test_figures_that_vary_found_nothing(self):
        wrong, said = self.check("It took 12.5 s.\n```console varies\n$ echo $((12)).5\n```\n")
        self.assertEqual(wrong, 1, said)

    def test_a_command_that_hangs_is_ended(self):
        limit, lab_check.COMMAND_SECONDS = lab_check.COMMAND_SECONDS, 0.3
        try:
            wrong, said = self.check("```console\n$ sleep 60; true\n```\n")
        finally:
            lab_check.COMMAND_SECONDS = limit
        self.assertEqual(wrong, 1)
        self.assertIn("still running", said)


if __name__ == "__main__":
    unittest.main()
