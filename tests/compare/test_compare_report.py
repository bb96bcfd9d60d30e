#!/usr/bin/env python3
"""The report of experiments/compare.py: plots whose labels never meet, sweeps, staleness, noise, narrow screens."""
import html.parser
import os
import re
import subprocess
import sys
import unittest
import xml.etree.ElementTree

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import TOP
from comparison import noise, table
from comparison.draw import bars, lines, style, svg
from comparison.pages import curves, figures, report, sweep
from comparison.runs import load
from made_run import HASH, make_run
from test_compare import Case

LONG = "ps:async partition_bytes=1048576 gradient_clipping=0.25 betas=[0.9,0.95] type=WarmupCosineLR"
TEXT = re.compile(r'<text class="(\w+)"([^>]*)>(.*?)</text>')
SHOWN = re.compile(r"<[^>]+>")


def boxes(drawing):
    """[(left, top, right, bottom, text)] of the upright texts of one SVG, as a browser would lay them out."""
    out = []
    for css, attributes, inner in TEXT.findall(drawing):
        if "rotate" in attributes:
            continue
        text = SHOWN.sub("", inner).replace("&amp;", "&").replace("&lt;", "<")
        x, y = (float(re.search(rf'\b{name}="([-\d.]+)"', attributes).group(1)) for name in "xy")
        width, size = svg.text_width(text, css), svg.FONT[css]
        x -= {"end": width, "middle": width / 2}.get((re.search(r'text-anchor="(\w+)"', attributes) or [0, ""])[1], 0)
        out.append((x, y - 0.8 * size, x + width, y + 0.2 * size, text))
    return out


def collisions(drawing):
    """Sentences: texts that overprint one another or leave the drawing."""
    width, height = map(float, re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawing).groups())
    found, out = boxes(drawing), []
    for i, a in enumerate(found):
        if a[0] < -1 or a[2] > width + 1 or a[1] < -1 or a[3] > height + 1:
            out.append(f"{a[4]!r} leaves the drawing: {a[:4]} of {width} x {height}")
        out += [f"{a[4]!r} meets {b[4]!r}" for b in found[i + 1:]
                if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]]
    return out


def drawings(html):
    """The plots in a page or part of it; not the marks of keys."""
    return [d for d in re.findall(r"<svg.*?</svg>", html, re.S) if 'class="key' not in d and "tp-title" not in d]


class Labels(unittest.TestCase):
    def assert_apart(self, html, least=1):
        found = drawings(html)
        self.assertGreaterEqual(len(found), least)
        for drawing in found:
            self.assertEqual(collisions(drawing), [])

    def test_the_check_sees_a_collision(self):
        text = svg.text_at("tick", 10, 20, "one two") + svg.text_at("tick", 30, 22, "three")
        self.assertEqual(len(collisions(svg.opening(100, 40, "") + text + "</svg>")), 1)
        self.assertEqual(len(collisions(svg.opening(20, 40, "") + svg.text_at("tick", 10, 20, "long") + "</svg>")), 1)

    def test_bars_of_2_to_24_runs(self):
        for count in (2, 7, 12, 24):
            rows = []
            for i in range(count):
                for j, label in enumerate(("worker, predicted", "measured", "server, predicted", "measured")):
                    rows.append({"group": f"{LONG} n={i}" if j == 0 else None, "label": label,
                                 "segments": [("m0", "weights", (i + 1) << 28)], "mark": (1 << 29, "formula"),
                                 "text": "1,234,567.89/1,234,568.01" if i == 3 else None})
            html = bars.bar_plot(rows, "MiB per step and some more words", "bars", 1 << 20)
            self.assert_apart(html, 2)
            self.assertEqual(html.count('class="group"') > 2 * count, True)  # long names take several lines
            self.assertLessEqual(max(d.count('class="fill') for d in drawings(html)), bars.MOST_BARS)

    def test_lines_with_any_numbers(self):
        for scale in (1e-7, 1, 123456.7, 9e12):
            for n in (1, 2, 700):
                series = [{"label": LONG, "color": i % 8, "dash": "", "points": [(k * scale, k + i) for k in range(n)]}
                          for i in range(24)]
                self.assert_apart(lines.line_plot(lines.Lines(series, "seconds since the first step began", LONG)), 2)

    def test_categories_that_do_not_fit_stand_aslant_and_inside(self):
        for count in (2, 5, 24):
            names = [f"WarmupCosineLR-{i}" for i in range(count)]
            plot = lines.Lines([{"label": "a", "color": 0, "points": [(i, 1.0 + i) for i in range(count)]}], "type",
                               "tokens/s", x_ticks=list(enumerate(names)))
            drawing = lines.line_plot(plot, svg.SMALL)
            self.assertEqual(collisions(drawing), [])
            places = [tuple(map(float, m)) for m in re.findall(r"translate\(([\d.]+) ([\d.]+)\) rotate", drawing)]
            self.assertTrue(places or count == 2)
            if places:
                apart = [b[0] - a[0] for a, b in zip(places, places[1:])]
                self.assertGreaterEqual(min(apart), svg.FONT["tick"] * 1.2)
                longest = svg.text_width(names[0])
                self.assertGreaterEqual(places[0][0], 0.7 * longest)
                height = float(re.search(r'viewBox="0 0 \d+ (\d+)"', drawing).group(1))
                self.assertGreaterEqual(height, places[0][1] + 0.6 * longest)

    def test_histograms(self):
        for n in (1, 3, 15, 64):
            self.assertEqual(collisions(bars.histogram([5] * n, "updates missed", "staleness")), [])

    def test_24_curves_all_differ(self):
        looks = {(i % 8, figures.dash(i)) for i in range(24)}
        self.assertEqual(len(looks), 24)


class SweptAxis(unittest.TestCase):
    def test_powers_stand_on_a_logarithmic_axis(self):
        places, ticks, title = sweep.axis("workers", ["1", "2", "4"])
        self.assertEqual((places, [t for _, t in ticks], title), ({"1": 0, "2": 1, "4": 2}, ["1", "2", "4"], "workers, log2"))
        places, _, title = sweep.axis("lr", ["1e-3", "1e-4"])
        self.assertAlmostEqual(places["1e-3"] - places["1e-4"], 1)
        self.assertEqual(title, "lr, log10")

    def test_bytes_are_shown_in_mib(self):
        _, ticks, title = sweep.axis("partition_bytes", ["262144", "1048576"])
        self.assertEqual(([t for _, t in ticks], title), (["0.25", "1"], "partition (MiB), log2"))

    def test_other_numbers_keep_their_distances(self):
        places, ticks, title = sweep.axis("steps", ["30", "10", "20"])
        self.assertEqual([t for _, t in ticks], ["10", "20", "30"])
        self.assertAlmostEqual(places["20"] - places["10"], places["30"] - places["20"])
        self.assertEqual(title, "steps")

    def test_words_are_categories_in_the_order_given(self):
        places, ticks, _ = sweep.axis("type", ["WarmupLR", "Adam", "1"])
        self.assertEqual(places, {"WarmupLR": 0, "Adam": 1, "1": 2})
        self.assertEqual(ticks, [(0, "WarmupLR"), (1, "Adam"), (2, "1")])


class Pages(Case):
    def page(self, *topologies, **summary):
        runs = [make_run(self.at(t.replace(":", "-")), t, **summary) for t in topologies]
        p = self.run_it("--runs", *runs)
        return self.report(), p.stdout

    def report(self):
        return self.read("out", "report.html")

    def test_staleness_of_async_runs_alone(self):
        page, _ = self.page("ps:async", "zero:1", staleness={"histogram": [40, 50, 10], "max": 2, "mean": 0.7})
        self.assertTrue("How stale the gradients were" in page)
        self.assertTrue("<title>1: 50 of 100</title>" in page)
        self.assertTrue("mean 0.70, at most 2" in page)
        self.assertFalse("Staleness of zero:1" in page)
        page, _ = self.page("ps:sync", "zero:1")
        self.assertFalse("How stale" in page)

    def test_nothing_is_wider_than_a_phone_but_inside_a_scroll_box(self):
        page, _ = self.page("local", "ps:sync", "ps:async", "zero:0", "zero:3")
        checker = Wide()
        checker.feed(page)
        self.assertEqual(checker.loose, [])
        self.assertGreaterEqual(checker.tables, 3)
        for drawing in drawings(page):
            self.assertNotRegex(drawing.split(">")[0], r"\swidth=|\sheight=")
            self.assertEqual(collisions(drawing), [])
        narrow = "".join(re.findall(r'<div class="on-phone">.*?</div>', page, re.S))
        self.assertGreaterEqual(len(drawings(narrow)), 4)
        for width in re.findall(r'viewBox="0 0 (\d+)', narrow):
            self.assertLessEqual(int(width), 360)
        for selector, width in re.findall(r"([^{}]*)\{[^{}]*?(?<!max-)(?<!stroke-)\b(?:min-)?width:(\d+)px", re.sub(r"@media[^{]*\{", "", style.CSS)):
            self.assertTrue(int(width) <= 360 or ".wide" in selector, f"{selector} is {width} px wide")

    def test_words_that_readers_stumbled_over_are_gone(self):
        page, text = self.page("ps:sync", "zero:2")
        for words in ("Compared is", "of it ", " a rank", "a step (", "time a step", "bytes a step"):
            self.assertFalse(words in page + text, words)
        self.assertIn(table.HOST, " ".join(text.split()))
        self.assertTrue("threads waited for a core" in page)
        self.assertEqual(html.unescape(page).count(table.RESIDENT), 2)  # below the bars and below the table
        self.assertFalse("the program itself once" in page)

    def test_times_are_divided_by_the_steps_that_they_are_of(self):
        """A resumed run's are of what came behind the checkpoint; an asynchronous worker 0 writes fewer lines than the job has steps."""
        for name, more, steps in (("all", {}, 4), ("on", {"resumed_from": 2}, 2), ("over", {"resumed_from": 4}, 1),
                                  ("slow", {"steps": 8, "batches": [4, 12]}, 8)):
            run = load(name, make_run(self.at(name), "ps:sync", **more))
            self.assertEqual((table.time_per_step(run)["total"], table.server_times([run])["total"]), (2.0 / steps, 2.0 / steps), name)

    def test_a_hash_stands_alone(self):
        page, text = self.page("ps:sync", "zero:2", cpu_kernel={"name": "amx", "built_for": "AVX-512"})
        self.assertIn(f"the final weights ({HASH}).", text)
        self.assertEqual(page.count(f'<td class="hash">{HASH}</td><td>A</td>'), 2)

    def test_the_demo_is_one_block(self):
        time = {"forward": 0.5, "backward": 1.0, "wait": 0.4, "host": 0.1, "total": 2.0, "waited_for": [{"role": "worker", "rank": 1, "seconds": 0.3}]}
        _, text = self.page("local", "ps:sync", "ps:async", "zero:0", "zero:1", "zero:2", "zero:3", time=time)
        self.assertEqual(len(re.findall("(?m)^-+$", text)), 1)
        self.assertRegex(text, r"\n    most of it for( +worker 1){7}\n      its share( +75%){7}\n")

    def test_24_columns_are_printed_in_blocks(self):
        run = load("a", make_run(self.at("a"), "zero:1"))
        groups = []
        for i in range(24):
            copy = load("a", run.directory)
            copy.label = f"zero:1 partition_bytes={1 << i}"
            groups.append([copy])
        text = table.text_table(groups)
        self.assertLessEqual(max(map(len, text.splitlines())), table.WIDTH)
        self.assertTrue(all(g[0].label in text for g in groups))
        self.assertEqual(text.count(table.EXACT), 1)


class ReadmePicture(Case):
    TOPOLOGIES = ("ps:sync", "ps:async", "zero:0", "zero:1", "zero:2", "zero:3")

    def draw(self):
        return subprocess.run([sys.executable, os.path.join(TOP, "docs", "readme_plot.py"), self.at("demo"), "--out",
                               self.at("x.svg")], capture_output=True, text=True, check=False)

    def test_losses_and_memory_of_star_and_ring(self):
        for t in self.TOPOLOGIES:
            other = {"losses": ["5.5", "5.4", "5.1", "5.0"]} if t == "ps:async" else {}
            make_run(self.at("demo", t.replace(":", "-")), t, **other)
        p = self.draw()
        self.assertEqual(p.returncode, 0, p.stderr)
        root = xml.etree.ElementTree.parse(self.at("x.svg")).getroot()
        texts = ["".join(e.itertext()) for e in root.iter("{http://www.w3.org/2000/svg}text")]
        for words in ("ps:sync = zero:0-3 (the same bits)", "ps:async", "star: worker", "star: server", "ring: zero:3", "6.0"):
            self.assertIn(words, texts)
        curves = [e for e in root.iter("{http://www.w3.org/2000/svg}path") if "L" in e.get("d")]
        self.assertEqual(len(curves), 2)

    def test_a_missing_run_is_named(self):
        make_run(self.at("demo", "ps-sync"), "ps:sync")
        p = self.draw()
        self.assertEqual(p.returncode, 1)
        self.assertIn("ps-async", p.stderr)
        self.assertIn("make demo", p.stderr)
        self.assertFalse(os.path.exists(self.at("x.svg")))


class Wide(html.parser.HTMLParser):
    """Tables outside of boxes that scroll."""
    VOID = {"meta", "br", "img", "link", "input", "hr"}

    def __init__(self):
        super().__init__()
        self.open, self.loose, self.tables = [], [], 0

    def handle_starttag(self, tag, attrs):
        if tag == "table":
            self.tables += 1
            if "wide" not in [c for _, css in self.open for c in css.split()]:
                self.loose.append(self.getpos())
        if tag not in self.VOID:
            self.open.append((tag, dict(attrs).get("class") or ""))

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        self.open.pop()


STAT = """cpu  {0} 0 0 0 0 0 0 0 0 0
cpu0 {1} 10 20 5000 60 70 80 {2} 30 0
cpu1 {3} 0 0 5000 0 0 0 0 0 0
intr 12345
"""


class Noise(Case):
    def test_proc_stat_is_summed_over_the_cores_of_the_job(self):
        text = STAT.format(999, 100, 7, 900)
        self.assertEqual(noise.cpu_seconds(text), (10.3, 0.07))
        self.assertEqual(noise.cpu_seconds(text, {0}), (1.3, 0.07))
        self.assertEqual(noise.cpu_seconds("", {0}), (0, 0))

    def test_what_is_not_this_jobs_is_others(self):
        before = noise.cpu_seconds(STAT.format(0, 0, 0, 0))
        after = noise.cpu_seconds(STAT.format(0, 900, 100, 600))
        found = noise.shares(before, after, own_seconds=9.0, wall_seconds=10.0, cores=2)
        self.assertEqual((found["others_share"], found["stolen_share"]), (0.3, 0.05))
        self.assertEqual(noise.shares(before, after, 16.0, 10.0, 2)["others_share"], 0)
        with open(os.path.join(TOP, "docs", "files.md"), encoding="utf-8") as f:
            page = f.read()
        self.assertEqual([key for key in found if f"`{key}`" not in page], [])

    def test_a_watch_reads_the_file_twice(self):
        path = self.at("stat")
        with open(path, "w", encoding="ascii") as f:
            f.write(STAT.format(0, 0, 0, 0))
        watch = noise.Watch(path)
        watch.cpus = {0}
        with open(path, "w", encoding="ascii") as f:
            f.write(STAT.format(0, 250, 0, 0))
        self.assertEqual(watch.result()["busy_cpu_seconds"], 250 / os.sysconf("SC_CLK_TCK"))
        os.remove(path)
        self.assertIsNone(watch.result())

    def test_the_spread_leaves_the_first_step_out(self):
        self.assertIsNone(noise.spread([1.0, 1.0, 1.0]))
        self.assertEqual(noise.spread([50.0] + [1.0] * 20), 0)
        self.assertAlmostEqual(noise.spread([1.0] + [1.0] * 18 + [2.0, 2.0, 2.0]), 1.0)

    def noisy_page(self, **shares):
        quiet, other = make_run(self.at("q"), "zero:0"), make_run(self.at("n"), "zero:1")
        noise.write(quiet, {"others_share": 0.01, "stolen_share": 0.0})
        noise.write(other, {"others_share": 0.01, "stolen_share": 0.0, **shares})
        p = self.run_it("--runs", quiet, other)
        return p.stdout, self.read("out", "report.html")

    def test_a_noisy_run_is_marked_and_no_other(self):
        text, page = self.noisy_page(others_share=0.35)
        self.assertRegex(text, r"tokens/s +2,000 +2,000 ~")
        self.assertRegex(text, r"forward +125\.0 +125\.0 ~")
        self.assertRegex(text, r"cores' time taken by others +1% +35%")
        self.assertIn('"~" is uncertain: other programs took 35% of the cores: end them', " ".join(text.split()))
        self.assertIn("other programs took 35% of the cores: end them", page)
        rows = self.table()
        self.assertEqual([r["uncertain"] for r in rows], ["", "other programs took 35% of the cores"])
        self.assertEqual(rows[1]["load_others_share"], "0.35")

    def test_times_are_marked_wherever_they_stand(self):
        run = load("zero:1", make_run(self.at("r"), "zero:1", evals=[(2, 4.0), (3, 2.125)]))
        self.assertIn("<td>zero:1</td><td>1.25</td>", curves.time_to([[run]], 3.0625))
        self.assertFalse(" ~" in figures.totals([[run]]))
        run.load = {"others_share": 0.5}
        self.assertIn("<td>zero:1</td><td>1.25 ~</td>", curves.time_to([[run]], 3.0625))
        self.assertIn("<td>never</td>", curves.time_to([[run]], 2.0))
        page = figures.totals([[run]])
        self.assertEqual((page.index("<h3>CPU seconds") < page.index("zero:1 ~"), page.count("<h3>")), (True, 4))

    def test_the_caption_tells_medians_as_the_table_does(self):
        runs = [load("zero:1", make_run(self.at(f"m{i}"), "zero:1", val_loss=loss)) for i, loss in enumerate((2.5, 2.75, 2.625))]
        self.assertIn("Held-out loss after the last step: zero:1 2.6250.", curves.losses([runs]))

    def test_quiet_runs_are_not_marked(self):
        text, page = self.noisy_page(others_share=noise.OTHERS_BOUND, stolen_share=noise.STEAL_BOUND)
        self.assertNotIn("~", text)
        self.assertFalse("is uncertain" in page)

    def test_steal_and_spread_are_noise(self):
        text, _ = self.noisy_page(stolen_share=0.2)
        self.assertIn("hypervisor took 20%", " ".join(text.split()))
        run = load("a", make_run(self.at("a"), "zero:1", ["5.0"] * 20))
        self.assertEqual(noise.why_noisy(run), [])
        for i, m in enumerate(run.metrics):
            m["seconds"] = 1.0 + 0.5 * (i % 2)
        self.assertEqual(len(noise.why_noisy(run)), 1)


if __name__ == "__main__":
    unittest.main()
