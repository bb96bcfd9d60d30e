#!/usr/bin/env python3
"""The first things that a reader of a comparison sees: its last lines, the beginning of the report, and which conclusions are allowed."""
import html
import os
import re
import shutil
import subprocess
import sys
import unittest
from argparse import Namespace

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import TOP
from comparison import noise, table
from comparison.draw import style
from comparison.pages import closing, figures
from comparison.runs import CLASSES, load
from made_run import HASH, LOSSES, make_run
from test_compare import Case
from test_compare_pictures import ring, star

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# Lines that a made-up run, which has no weights, cannot say.
SPOKEN = ["equal, byte for byte", "the sentence", "its rest", "Let the weights continue a text"]


def keyed(case, page):
    """How many entries the keys of a page have. Each hides something of its figure, and no line is there without one."""
    entries = 0
    for figure in re.findall("<figure.*?</figure>", page, re.S):
        drawn = re.sub(r'<ul class="legend">.*?</ul>', "", figure, flags=re.S)
        for kind, what in re.findall(r'<li data-(line|class)="([^"]*)">', figure):
            entries += 1
            there = f'<g data-line="{what}">' in drawn if kind == "line" else re.search(rf'class="[^"]*\b{what}\b', drawn)
            case.assertTrue(there, (kind, what))
        case.assertEqual(set(re.findall('<g data-line="([^"]*)">', drawn)), set(re.findall('<li data-line="([^"]*)">', figure)))
    return entries


class Closing(Case):
    """The end of a comparison, unless --full."""
    DEMO = ("local", "ps:sync", "ps:async", "zero:0", "zero:1", "zero:2", "zero:3")

    def end(self, *topologies, repeats=1, **summary):
        """The last lines for runs of these topologies; ps:async and local end in bits of their own."""
        runs = []
        for t in topologies:
            own = {"losses": LOSSES[:3] + ["5.0"], "weights_hash": f"{len(t):016x}"} if t in ("local", "ps:async") else {"weights_hash": "ab" * 8}
            runs += [make_run(self.at(t.replace(":", "-") + f".r{i + 1}" * (repeats > 1)), t, **{**own, **summary}) for i in range(repeats)]
        p = self.run_it("--runs", *runs, full=False)
        return p.stdout.splitlines(), runs

    def test_the_demo_ends_with_25_lines_at_most(self):
        lines, runs = self.end(*self.DEMO)
        self.assertLessEqual(len(lines) + len(SPOKEN), 25)
        self.assertLessEqual(max(len(line) for line in lines if "compare.py --full" not in line), table.WIDTH)
        rows = {line.split()[0]: re.split(r"\s{2,}", line)[1:] for line in lines[4:11]}
        self.assertEqual(tuple(rows), self.DEMO)
        self.assertEqual(rows["local"], ["B", "2.5000", "5.00 =", "-", "3.00 =", "2,000", "1.00", "0.875", "0000000000000005"])
        self.assertEqual(rows["ps:sync"], ["A", "2.5000", "5.00 =", "6.00 =", "3.00 =", "2,000", "1", "0.875", "abababababababab"])
        self.assertEqual([row[0] for row in rows.values()], ["B", "A", "C", "A", "A", "A", "A"])
        text = " ".join(lines)
        self.assertIn("A: ps:sync = zero:0 = zero:1 = zero:2 = zero:3: equal to the last bit, each loss and all weights. B differs: it is one worker. C differs: the servers", text)
        self.assertRegex(lines[2], r"  hash$")
        for words in ('"12.34 =": predicted and measured agree', "it claims nothing (--repeat 3)", "report.html: "):
            self.assertIn(words, text)
        shown = re.search(r"compare.py --full --runs (\S+)", text).group(1)
        listed = subprocess.run(["bash", "-c", f"echo {shown}"], capture_output=True, text=True, check=True).stdout.split()
        self.assertEqual(listed, runs)

    def test_what_is_not_as_predicted_or_uncertain_is_not_said_to_be(self):
        wire = {"rank": 0, "role": "worker", "sent_per_step": 3 << 20, "received_per_step": 0, "predicted_sent": 2 << 20,
                "predicted_received": 0}
        runs = [make_run(self.at("a"), "zero:1", wire=[wire]), make_run(self.at("b"), "zero:2")]
        noise.write(runs[1], {"others_share": 0.5, "stolen_share": 0.0})
        p = self.run_it("--runs", *runs, full=False)
        self.assertRegex(p.stdout, r"\nzero:1 .* 2\.00/3\.00 +2,000  ")
        self.assertRegex(p.stdout, r"\nzero:2 .* 3\.00 = +2,000 ~ ")
        self.assertIn("other programs took 50% of the cores: end them", " ".join(p.stdout.split()))

    def test_a_broken_promise_is_told_in_full(self):
        runs = [make_run(self.at("a"), "zero:1"), make_run(self.at("b"), "zero:2", LOSSES[:3] + ["5.0"])]
        p = self.run_it("--runs", *runs, full=False)
        self.assertIn("BROKEN PROMISE: zero:1 and zero:2 differ at step 4", p.stdout)

    def test_weights_that_are_not_as_expected(self):
        made = {t: make_run(self.at(t.replace(":", "-")), t, weights_hash=w * 16)
                for t, w in (("local", "1"), ("ps:sync", "a"), ("zero:1", "a"), ("ps:async", "2"))}
        for device, expected, status in (("cpu", "a", 0), ("cuda", "b", 0), ("cpu", "b", 1)):
            made["zero:1"] = make_run(self.at("zero-1"), "zero:1", weights_hash="a" * 16, device=device)
            made["ps:sync"] = make_run(self.at("ps-sync"), "ps:sync", weights_hash="a" * 16, device=device)
            p = self.run_it("--runs", *made.values(), "--expect", expected * 16, "--force", full=False, status=status)
            self.assertEqual(p.stderr.count("NOT AS EXPECTED: "), 2 * status)  # one worker's and an asynchronous run's are not promised
        self.assertIn(f"NOT AS EXPECTED: zero:1 ends with the weights {'a' * 16}, not with {'b' * 16}", p.stderr)
        self.run_it("--runs", made["local"], "--expect", "12", status=2)

    def test_the_demo_expects_the_hash_that_its_page_names(self):
        shown = subprocess.run(["make", "-n", "demo"], cwd=TOP, capture_output=True, text=True, check=True).stdout
        with open(os.path.join(TOP, "docs", "demo.md"), encoding="utf-8") as f:
            page = f.read()
        self.assertEqual(re.findall(r"--expect (\S+)", shown), re.findall(r"(?m)^    weights +([0-9a-f]{16})$", page))
        self.assertEqual(shown.count("--expect "), 1)

    def test_commands_are_named_as_they_were_called(self):
        _, runs = self.end("ps:sync", "zero:1")
        for folder, compare in ((TOP, "experiments/compare.py"), (os.path.join(TOP, "docs"), "../experiments/compare.py")):
            p = subprocess.run([sys.executable, compare, "--runs", *runs, "--out", self.out], cwd=folder, capture_output=True, text=True,
                               check=True)
            typed = re.search(r"(?m)^Every figure: (.*)$", p.stdout).group(1)
            self.assertTrue(typed.startswith(f"{compare} --full --runs "), typed)
            p = subprocess.run(["bash", "-c", f"{typed} --out {self.out}"], cwd=folder, capture_output=True, text=True, check=False)
            self.assertEqual((p.returncode, "host" in p.stdout), (0, True), p.stderr)
        spoken = [Namespace(label="zero:1", text="x")]
        loaded = [load("x", run) for run in runs]
        for program, shown in ((os.path.join(os.getcwd(), "build", "starring"), "build/starring"), ("/opt/x y/starring", "'/opt/x y/starring'"),
                               ("../b/starring", "../b/starring")):
            self.assertIn(f": {shown} generate --model {runs[1]} --prompt", closing.what_next(loaded, "r.html", spoken, program)[-1])

    def test_repeats_give_medians_and_a_sentence(self):
        lines, _ = self.end("ps:sync", "zero:1", repeats=3)
        self.assertEqual([line.split()[0] for line in lines[4:6]], ["ps:sync", "zero:1"])
        self.assertIn("zero:1 needs 1.00 times ps:sync's time (1.00 to 1.00): not beyond noise.", " ".join(lines))
        self.assertNotIn("--repeat 3", " ".join(lines))


class Reading(Case):
    """How the report begins, and what its reader may do with it."""

    def page(self, *runs, **env):
        p = self.run_it("--runs", *runs)
        return self.read("out", "report.html")

    def demo(self):
        own = {"local": {"losses": LOSSES[:3] + ["5.0"], "weights_hash": "1" * 16, "val_loss": 2.25},
               "ps:async": {"losses": LOSSES[:3] + ["4.0"], "weights_hash": "2" * 16}}
        return [make_run(self.at(t.replace(":", "-")), t, evals=[(2, 4.0), (4, 2.5)], **own.get(t, {}))
                for t in Closing.DEMO]

    def test_the_parts_stand_in_order(self):
        page = self.page(*self.demo())
        places = [page.index(part) for part in ("<h1>", '<ol class="five">', '<table class="overview">', "<h2>Speed", "<h2>Loss against step",
                                                "<h2>Memory per rank", "<h2>Bytes per step", "<h2>More", "<summary>How the topologies work",
                                                "<summary>Loss against seconds", "<summary>Which runs are equal", "<summary>The formulas",
                                                "<summary>The whole table", "<summary>Notes")]
        self.assertEqual(places, sorted(places))
        self.assertNotIn("<h2>", page[page.index("<h2>More") + 4:])  # all else is folded

    def test_what_was_run_is_in_the_title(self):
        for topologies, summary, title in ((("ps:sync", "gossip"), {}, "ps:sync and gossip compared"), (("ps:quorum:2",), {}, "ps:quorum:2, one run"),
                                           (("ps:sync", "zero:1"), {"local_steps": 5}, "ps:sync and zero:1 compared with 5 local steps per round"),
                                           (("ps:ssp:2", "zero:1"), {"trouble": {"text": "rank 1 computes 3 times as long in all steps"}},
                                            "ps:ssp:2 and zero:1 compared: rank 1 computes 3 times as long in all steps")):
            page = self.page(*(make_run(self.at(t.replace(":", "-")), t, **summary) for t in topologies))
            self.assertIn(f"<h1>{title}</h1>", page)
            self.assertIn(f"<title>{title}</title>", page)
        self.assertIn("Rank 1 computes 3 times as long in all steps", self.sentences(page)["Speed"])

    def test_topologies_explain_themselves(self):
        page = self.page(make_run(self.at("a"), "gossip"), make_run(self.at("b"), "ps:ssp:2"), make_run(self.at("c"), "ps:sync"))
        for words in ("<strong>gossip.</strong> This is how gossip works.", "<strong>ps:ssp:2 and ps:sync.</strong> This is how ps works.",
                      "<strong>ps:ssp:2.</strong> This is when ps:ssp:2 updates.", "<strong>ps:sync.</strong> This is when ps:sync updates.", "gossip (worker 0&#x27;s own samples)",
                      "it is not to be compared with the others point by point"):
            self.assertIn(words, page)
        drawn = re.search('<div class="pictures">(.*?)</div></div>', page, re.S).group(1)
        self.assertEqual(re.findall("<title>(\\w+)", drawn), ["Gossip", "A"])
        self.assertNotIn("owns shard", page)   # nobody ran a ring
        self.assertNotIn("point by point", self.page(make_run(self.at("b"), "zero:1")))

    def test_formulas_are_of_the_runs_own_type(self):
        run = load("x", make_run(self.at("x"), "zero:1", dtype="fp32"))
        run.summary["memory"][0]["formula"], run.summary["wire"][0]["formula"] = "8P+8P/N", "2U"
        page = figures.formulas([run]) + figures.memory([run])
        self.assertIn("<td>zero:1</td><td>worker</td><td>fp32</td><td>8P+8P/N</td><td>4.00</td><td>2U</td><td>3.00</td>", page)
        self.assertNotRegex(page, "16-bit|16P")

    def test_runs_are_called_as_everywhere_else(self):
        runs = [make_run(self.at(f"{t.replace(':', '-')}.r{i}"), t) for t in ("ps:sync", "zero:1") for i in (1, 2)]
        exact = re.search("<summary>The exact results</summary>.*?</table>", self.page(*runs), re.S).group()
        self.assertEqual(re.findall("<tr><td>([^<]*)</td>", exact), ["ps:sync (run 1)", "ps:sync (run 2)", "zero:1 (run 1)", "zero:1 (run 2)"])

    def test_every_class_of_memory_has_a_name_a_colour_and_an_outline(self):
        for i, name in enumerate(CLASSES):
            self.assertIn(name, figures.CLASS_WORDS)
            self.assertIn(f".m{i}{{fill:var(--m{i})}}.hollow.m{i}{{stroke:var(--m{i})}}", style.CSS)
            self.assertEqual(style.CSS.count(f"--m{i}:#"), 2)  # on light and on dark

    def test_the_long_table_folds(self):
        page = self.page(*self.demo())
        folded = re.search(r"<details class=\"all\"><summary>The whole table</summary>(.*?)</details>", page, re.S)
        self.assertGreater(folded.group(1).count("<tr>"), 20)
        self.assertIn(">weights hash</td>", folded.group(1))
        self.assertEqual(page.count(">weights hash</td>"), 1)

    def sentences(self, page):
        found = re.search('<ol class="five">(.*?)</ol>', page, re.S).group(1)
        return dict(re.findall(r"<li><b>(\w+)\.</b> (.*?)</li>", found))

    def test_five_sentences_say_what_came_out(self):
        said = self.sentences(self.page(*self.demo()))
        self.assertEqual(list(said), ["Bits", "Loss", "Memory", "Bytes", "Speed"])
        self.assertEqual(said["Bits"], f"ps:sync = zero:0 = zero:1 = zero:2 = zero:3: the same bits, each loss and all weights ({HASH}); "
                         "local and ps:async end in others.")
        self.assertEqual(said["Loss"], "On held-out text, in nats per token: 2.2500 (local) to 2.5000 (ps:sync, ps:async, zero:0, zero:1, "
                         "zero:2 and zero:3). A model that knows only the token frequencies has a loss of 3.2500.")
        self.assertEqual(said["Memory"], "A worker holds, in MiB: 5.00 in all runs; the whole job: 20.00 in all runs; as predicted, to the byte.")
        self.assertEqual(said["Bytes"], "A worker sends each step, in MiB: 3.00 in all runs; the whole job: 12.00 in all runs; as predicted, to the byte.")
        self.assertEqual(said["Speed"], "Time per token over that of ps:sync: 1.00 in all runs. A ratio without an interval is of one run each, which do not show how much repeats differ: it claims nothing (--repeat 3).")

    def test_sentences_of_what_is_not_so(self):
        wire = {"rank": 0, "role": "worker", "sent_per_step": 3 << 20, "received_per_step": 0, "predicted_sent": 2 << 20,
                "predicted_received": 0}
        runs = [make_run(self.at("a"), "zero:1", wire=[wire]), make_run(self.at("b"), "zero:2", LOSSES[:3] + ["5.0"])]
        noise.write(runs[1], {"others_share": 0.5, "stolen_share": 0.0})
        said = self.sentences(self.page(*runs))
        self.assertEqual(said["Bits"], "No two runs end in the same bits.")
        self.assertIn("not as predicted in zero:1.", said["Bytes"])
        self.assertIn("other programs took 50% of the cores: end them", said["Speed"])
        self.assertIn("zero:2 needs 1.00 times zero:1's time.", html.unescape(said["Speed"]))
        said = self.sentences(self.page(make_run(self.at("g"), "gossip", val_loss=None), make_run(self.at("b"), "zero:2", val_loss=None)))
        self.assertIn("5.1250 in all runs. The loss of gossip is of worker 0's own samples.", html.unescape(said["Loss"]))
        said = self.sentences(self.page(make_run(self.at("l"), "local")))
        self.assertEqual(said["Bits"], f"The weights end as {HASH}.")
        self.assertEqual(said["Bytes"], "One process sends nothing.")

    def test_each_entry_of_a_key_stands_for_something(self):
        self.assertGreater(keyed(self, self.page(*self.demo())), 20)

    def browse(self, page, script, width=1400):
        """Returns the text that a script in the page leaves in the body's data-said. The page is in a frame: a window is 500 pixels wide at least."""
        self.write(page.replace("</body>", f"<script>{script}\nparent.postMessage(document.body.dataset.said, '*');</script></body>"), "inside.html")
        self.write("<body><script>onmessage = function (e) { document.body.dataset.said = e.data; };</script>"
                   f'<iframe src="inside.html" style="border:0" width="{width}" height="900"></iframe></body>', "browsed.html")
        p = subprocess.run([BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={self.at('browser')}", "--window-size=1400,900",
                            "--dump-dom", "file://" + self.at("browsed.html")], capture_output=True, text=True, timeout=200, check=False)
        said = re.search('data-said="([^"]*)"', p.stdout)
        self.assertTrue(said, p.stderr)
        return said.group(1).split()

    @unittest.skipUnless(BROWSER, "no chromium")
    def test_a_browser_hides_and_shows_them(self):
        said = self.browse(self.page(*self.demo()), """function gone(f) { return f.querySelectorAll(".gone").length; }
var said = [];
document.querySelectorAll("figure").forEach(function (f) { f.querySelectorAll(".legend li").forEach(function (li) {
  var before = gone(f); li.click(); var between = gone(f); li.dispatchEvent(new KeyboardEvent("keydown", {key: "Enter"}));
  said.push(before + "," + (between > 0) + "," + gone(f)); }); });
document.body.dataset.said = said.join(" ");""")
        self.assertEqual(set(said), {"0,true,0"})
        self.assertGreater(len(said), 20)

    @unittest.skipUnless(BROWSER, "no chromium")
    def test_the_demo_fits_six_screens_and_a_phone(self):
        runs = self.demo()
        for directory in runs[1:]:   # of the one process nothing is drawn here
            (star if "ps" in os.path.basename(directory) else ring)(directory)
        page = self.page(*runs)
        self.assertEqual(page.count('class="plot lanes"'), 6)
        height = self.browse(page, """var more = Array.from(document.querySelectorAll("h2")).find(function (h) { return h.textContent == "More"; });
document.body.dataset.said = more.getBoundingClientRect().top + window.scrollY;""")
        self.assertLess(float(height[0]), 6 * 900)
        width = self.browse(page, """document.querySelectorAll("details").forEach(function (d) { d.open = true; });
var wide = [];
document.querySelectorAll("body *").forEach(function (e) {
  if (!e.closest(".wide") && !e.closest("svg") && e.getBoundingClientRect().right > window.innerWidth + 1) wide.push(e.tagName + "." + e.className); });
var pictures = Array.from(document.querySelectorAll(".pictures>div")).map(function (d) { return d.getBoundingClientRect(); });
document.body.dataset.said = [window.innerWidth, document.documentElement.scrollWidth, wide.length ? wide.join("+") : "fits",
                              pictures[1].top >= pictures[0].bottom ? "stacked" : "beside"].join(" ");""", 390)
        self.assertEqual((width[0], width[2:]), ("390", ["fits", "stacked"]), width)
        self.assertLessEqual(int(width[1]), 390)


if __name__ == "__main__":
    unittest.main()
