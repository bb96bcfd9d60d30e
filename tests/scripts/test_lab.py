#!/usr/bin/env python3
"""experiments/lab_check.py: what it takes for true, and that it finds what is false."""
import io
import os
import sys
import tempfile
import unittest
from contextlib import redirect_stderr, redirect_stdout

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

    def test_the_lab_s_own_pages(self):
        """Without running them: what a page says that a command prints stands for it."""
        sources, proses = [], []
        for page in lab_check.PAGES:
            with open(os.path.join(ROOT, page), encoding="utf-8") as f:
                commands, prose = lab_check.read_page(page, f.read())
            proses.append((page, prose))
            for c in commands:
                sources += [c.text] + (c.expected if c.kind != "varies" else [])
        for page, prose in proses:
            self.assertEqual(lab_check.unfounded(prose, sources), [], page)


class Answers(unittest.TestCase):
    def setUp(self):
        with open(os.path.join(ROOT, "docs", "lab-answers.md"), encoding="utf-8") as f:
            self.key = dict(lab_check.KEY.findall(f.read()))
        with open(os.path.join(ROOT, "docs", "lab-worksheet.md"), encoding="utf-8") as f:
            self.sheet = f.read()

    def look(self, sheet, *more):
        """(exit status, what was said) of sheets of these texts."""
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for i, text in enumerate((sheet, *more)):
                paths.append(os.path.join(folder, f"{i}.md"))
                with open(paths[-1], "w", encoding="utf-8") as f:
                    f.write(text)
            said = io.StringIO()
            with redirect_stdout(said), redirect_stderr(said):
                status = lab_check.main(["--answers", *paths])
            return status, said.getvalue().replace(folder + os.sep, "")

    def filled(self, **other):
        """The sheet with the key's answers, or those of `other` ({"1_2": text})."""
        lines = []
        for line in self.sheet.splitlines():
            number = line.split(" ")[0]
            answer = other.get(number.replace(".", "_"), self.key.get(number, ""))
            lines.append(line + " " + answer if line.endswith("=>") else line)
        return "\n".join(lines) + "\n"

    def test_an_empty_sheet(self):
        status, said = self.look(self.sheet)
        self.assertEqual(status, 1)
        self.assertIn(f"0.md: 0 of {len(self.key)} correct; 0 of ", said)
        self.assertEqual(said.count("empty"), len(self.key))

    def test_the_key_is_right(self):
        status, said = self.look(self.filled())
        self.assertEqual((status, said.count("\n")), (0, 1), said)
        self.assertIn(f"{len(self.key)} of {len(self.key)} correct", said)

    def test_as_students_write(self):
        status, said = self.look(self.filled(**{"1_1": "43.5 MiB", "1_8": "4 P", "1_11": "zero:3 and zero:2", "2_1": "5.4; 5.44; 5.45",
                                                "3_1": "Yes.", "1_9": "activations", "2_6": "8, 6 and 9"}))
        self.assertEqual(status, 0, said)
        self.assertIn("1 of ", said)
        status, said = self.look(self.filled(**{"1_1": "43,54", "2_4": "5,44, 8,16, 9,52", "2_5": "8,16; 12,25; 14,29", "2_6": "8,6,9"}))
        self.assertEqual(status, 0, said)

        right = [("2_7", "4 servers"), ("2_7", "four"), ("2_6", "8M, 6M, 9M"), ("2_6", "8 P b, 6 P b and 9 P b"), ("3_4", "N-1 = 3"),
                 ("3_3", "not at all"), ("3_3", "none"), ("1_7", "ZeRO 3"), ("1_7", "zero-3"), ("1_11", "zero 2 and 3"),
                 ("1_11", "ZeRO2, ZeRO3"), ("3_1", "y"), ("3_1", "yes, the same"), ("3_2", "N"), ("1_1", "16P = 43.54 MiB"),
                 ("1_1", "43.54 (16P)"), ("1_8", "4"), ("1_8", "4 * P bytes"), ("2_1", "N=2: 5.44, N=4: 5.44, N=8: 5.44"),
                 ("1_1", "\n43.54 MiB"), ("2_2", "\n\n10.88\n21.77\n43.54"), ("4_1", "\nyes\n")]
        for question, answer in right:
            status, said = self.look(self.filled(**{question: answer}))
            self.assertEqual(status, 0, (question, answer, said))
        wrong = [("2_7", "3 servers"), ("2_6", "8M, 9M, 6M"), ("3_4", "N-1"), ("3_4", "3 = 4"), ("3_3", "very"), ("1_7", "zero 2"),
                 ("1_11", "zero 1 to 3"), ("1_11", "all"), ("3_1", "n"), ("3_1", "not always"), ("3_2", "yes, no doubt"), ("1_8", "7P"),
                 ("1_1", "\n\n"), ("1_1", "43.54 or 19.05"), ("1_1", "zero:3"), ("3_4", "ps:sync 3, 4")]
        for question, answer in wrong:
            status, said = self.look(self.filled(**{question: answer}))
            self.assertEqual((status, said.count("\n")), (1, 2), (question, answer, said))

    def test_the_form_of_an_answer_is_said(self):
        _, said = self.look(self.filled(**{"1_1": "", "1_7": "", "2_1": "", "4_1": "maybe", "4_4": "yes"}))
        for line in ("1.1  empty (expected: one number)", "1.7  empty (expected: names of topologies, as zero:0)",
                     "2.1  empty (expected: 3 numbers, in the order of the question)", "4.1  wrong: maybe (expected: yes or no)",
                     "4.4  wrong: yes"):
            self.assertIn(f"  {line}\n", said)

    def test_what_is_wrong_is_named_and_not_told(self):
        status, said = self.look(self.filled(**{"1_1": "44.2", "1_11": "zero:3", "2_1": "5.44", "2_6": "6, 8, 9", "3_1": "no"}))
        self.assertEqual(status, 1)
        self.assertEqual([line.split()[0] for line in said.splitlines()[1:]], ["1.1", "1.11", "2.1", "2.6", "3.1"])
        self.assertIn("wrong: 44.2", said)
        self.assertNotIn("43.54", said)

    def test_a_class(self):
        status, said = self.look(self.filled(), self.filled(**{"3_1": "no"}))
        self.assertEqual(status, 1)
        self.assertEqual(len([line for line in said.splitlines() if " correct; " in line]), 2)
        # One sheet that is none does not keep the others from being looked through.
        status, said = self.look("# something else\n", self.filled())
        self.assertEqual((status, said.count(" correct; ")), (2, 1), said)

    def test_what_is_no_worksheet(self):
        status, said = self.look("# something else\n")
        self.assertEqual(status, 2)
        self.assertIn("is it a copy of docs/lab-worksheet.md", said)
        said = io.StringIO()
        with redirect_stderr(said):
            self.assertEqual(lab_check.main(["--answers", "/nonexistent"]), 2)
        self.assertEqual(said.getvalue(), "lab_check.py: /nonexistent: No such file or directory\n")

    def test_every_answer_has_its_question(self):
        questions = [number for number, _ in lab_check.ANSWER.findall(self.sheet)]
        self.assertEqual(len(questions), len(set(questions)))
        self.assertLessEqual(set(self.key), set(questions))
        for number, answer in self.key.items():  # nobody is asked for what the page itself says
            line = next(l for l in self.sheet.splitlines() if l.startswith(number + " "))
            words = line.split("=>")[0].lower()
            self.assertTrue("(" in line or lab_check.numbers(words) != lab_check.numbers(answer), line)
        for number in set(questions) - set(self.key):
            line = next(l for l in self.sheet.splitlines() if l.startswith(number + " "))
            self.assertIn("why", line, "a question without a key asks for words")


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
