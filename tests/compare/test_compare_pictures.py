#!/usr/bin/env python3
"""The pictures of experiments/compare.py's report: that each is there, and draws the numbers it was given."""
import base64
import csv
import json
import os
import re
import subprocess
import sys
import unittest
import xml.etree.ElementTree as etree

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import TOP
from comparison import claims, table
from comparison.draw import forest, lines, style, svg
from comparison.pages import curves, figures, staleness, sweep, timeline
from comparison.runs import RunError, load
from made_run import LOSSES, make_run
from test_compare import Case
from test_compare_report import collisions, drawings

MS = 1_000_000
SVG = "{http://www.w3.org/2000/svg}"


def worker(rank, at, step=3, length=100, transfers=True):
    """A worker's trace of a step of 100 ms: forward 10-40, stands still 40-60 (a peer is ready at 50), backward 60-90, idle to 100."""
    def span(tid, name, cat, begin, end, **args):
        return {"ph": "X", "pid": rank, "tid": tid, "name": name, "cat": cat, "ts": at * 1e3 + begin * 1e3, "dur": (end - begin) * 1e3,
                **({"args": args} if args else {})}
    events = [span(902, f"step {step}", "step", 0, length, step=step), span(903, "forward", "phase", 10, 40), span(903, "backward", "phase", 60, 90)]
    if transfers:
        ends = [{"ph": ph, "pid": rank, "tid": 0, "name": "weights of block.0", "cat": "transfer", "id": f"{rank} {step}", "ts": (at + when) * 1e3}
                for ph, when in (("b", 50), ("e", 60))]
        ends[0]["args"] = {"bytes": 4096}
        events += [span(900, "wait for worker 1", "wait", 40, 50, transfer="weights of block.0", worker=1),
                   span(900, "exposed communication", "comm_exposed", 50, 60, transfer="weights of block.0"), *ends]
    return events


def write_trace(directory, *events):
    names = [{"ph": "M", "pid": 0, "tid": 0, "name": "clock_error", "args": {"ns": 0}}]
    with open(os.path.join(directory, "trace.json"), "w", encoding="utf-8") as f:
        json.dump({"displayTimeUnit": "ms", "traceEvents": names + [e for several in events for e in several]}, f)


def ring(directory, at=7, length=100):
    write_trace(directory, worker(0, at, length=length), worker(1, at))


def star(directory, at=7):
    parts = [("receive", 0, 10), ("sum", 10, 20), ("hold", 20, 60), ("wait", 60, 70), ("update", 70, 90), ("reply", 90, 100)]
    shards = [{"ph": "X", "pid": 1, "tid": tid, "name": p, "cat": "server", "ts": (at + b) * 1e3, "dur": (e - b) * 1e3,
               "args": {"key": 1, "step": 3, "worker": 0}} for tid in (1, 2) for p, b, e in parts]
    write_trace(directory, worker(0, at), [{"ph": "M", "pid": 1, "tid": 0, "name": "process_name", "args": {"name": "server 0"}}], shards)


def page_drawing(html, title):
    """The wide drawing whose title begins so, as XML; fails where there is none."""
    wide = re.findall(r'<div class="on-page">(.*?)</div>', html, re.S) or [html]
    for drawing in re.findall(r"<svg.*?</svg>", "".join(wide), re.S):
        root = etree.fromstring(drawing.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))
        if (root.findtext(SVG + "title") or "").startswith(title):
            return root
    raise AssertionError(f"no drawing {title!r}")


def rects(root):
    """[(class, words, x, width, y, height)] of the named bars."""
    return [(e.get("class"), e.findtext(SVG + "title"), *(float(e.get(k)) for k in ("x", "width", "y", "height")))
            for e in root.iter(SVG + "rect") if e.find(SVG + "title") is not None]


class Timeline(Case):
    def groups(self, **made):
        out = []
        for topology, make in made.items():
            name = topology.replace("_", ":")
            directory = make_run(self.at(topology), name, step_seconds={"median": 0.1, "p5": 0.1, "p95": 0.1})
            make(directory)
            out.append([load(topology, directory)])
        return out

    def test_a_step_is_drawn_as_it_was_recorded(self):
        root = page_drawing(timeline.section(self.groups(zero_1=ring)), "zero:1, step 3: 100.0 ms")
        found = rects(root)
        idle = next(e for e in root.iter(SVG + "rect") if e.get("class") == "idle")
        left, full = float(idle.get("x")), float(idle.get("width"))
        places = {words.split(",")[0].split(":")[0]: (round((x - left) / full, 3), round(w / full, 3)) for _, words, x, w, _, _ in found[:4]}
        self.assertEqual(places["forward"], (0.1, 0.3))
        self.assertEqual(places["waiting for worker 1"], (0.4, 0.1))       # until the last peer was ready
        self.assertEqual(places["exposed communication"], (0.5, 0.1))   # after it
        self.assertEqual(places["backward"], (0.6, 0.3))
        css = {words.split(",")[0].split(":")[0]: (c, h) for c, words, _, _, _, h in found[:4]}
        self.assertEqual((css["waiting for worker 1"][0], css["exposed communication"][0]), ("fill m3 thin", "fill m2"))
        self.assertEqual(css["waiting for worker 1"][1] * 2, css["exposed communication"][1])
        transfer = next(r for r in found if r[1].startswith("weights of block.0"))
        self.assertIn("4,096 bytes: 10.00 ms", transfer[1])             # from when every part was ready
        self.assertAlmostEqual((transfer[2] - left) / full, 0.5, 3)
        self.assertEqual(sum(e.get("class") == "idle" for e in root.iter(SVG + "rect")), 2)  # a lane per worker

    def test_servers_have_a_lane_per_thread(self):
        root = page_drawing(timeline.section(self.groups(ps_sync=star)), "ps:sync, step 3")
        texts = ["".join(e.itertext()) for e in root.iter(SVG + "text")]
        for name in ("worker 0", "server 0.0", "server 0.1"):
            self.assertIn(name, texts)
        said = {words.split(",")[0]: words for _, words, *_ in rects(root)}
        self.assertIn(": 40.00 ms", said["hold"])
        self.assertIn(": 20.00 ms", said["update"])
        self.assertNotIn("wait", said)  # nothing to do is left empty

    def test_all_topologies_have_one_scale(self):
        html = timeline.section(self.groups(zero_1=ring, zero_2=lambda d: ring(d, length=200)))
        widths = [max(float(e.get("width")) for e in page_drawing(html, name).iter(SVG + "rect") if e.get("class") == "idle")
                  for name in ("zero:1", "zero:2")]
        self.assertAlmostEqual(widths[1] / widths[0], 2.0, 2)
        left = {next(e.get("x") for e in page_drawing(html, n).iter(SVG + "rect") if e.get("class") == "idle") for n in ("zero:1", "zero:2")}
        self.assertEqual(len(left), 1)

    def test_the_step_nearest_to_the_median_is_drawn(self):
        steps = [e for k, length in ((1, 300), (2, 100), (3, 250)) for e in worker(0, k * 1000, k, length)]
        self.assertEqual(timeline.chosen_step(timeline.ranks_of(steps), 0.12)["step"], 2)

    def test_a_step_that_a_worker_did_not_see_is_not_drawn(self):
        """The last steps of a slow worker come when a fast one is done: theirs is the nearest length, but one worked alone."""
        slow = [e for k, length in ((1, 95), (2, 100), (3, 100)) for e in worker(0, k * 100, k, length)]
        fast = [e for at in (170, 180, 190) for e in worker(1, at, 7, 10, transfers=False)]
        step = timeline.chosen_step(timeline.ranks_of(slow + fast), 0.1)
        self.assertLess(step["begin"], 200 * MS)
        self.assertGreater(step["end"], 170 * MS)

    def test_of_workers_out_of_step_one_with_others_in_it_is_drawn(self):
        events = [e for k in (1, 2, 3) for e in worker(0, k * 100, k)] + worker(1, 310, 9)
        self.assertEqual(timeline.chosen_step(timeline.ranks_of(events), 0.1)["step"], 3)
        made = self.groups(ps_async=lambda d: write_trace(d, events))
        idle = [e for e in page_drawing(timeline.section(made), "ps:async, step 3").iter(SVG + "rect") if e.get("class") == "idle"]
        widths = [float(e.get("width")) for e in idle]
        self.assertAlmostEqual(widths[1] / widths[0], 0.9, 2)  # what was not recorded is not called idle

    def test_an_asynchronous_worker_has_its_own_window(self):
        made = self.groups(ps_async=lambda d: write_trace(d, worker(0, 0), worker(1, 900)))
        self.assertIn("step 3: 100.0 ms", timeline.section(made))

    def test_runs_without_a_trace_have_none_and_a_torn_one_is_named(self):
        groups = self.groups(zero_1=lambda d: None)
        self.assertEqual(timeline.section(groups), "")
        for torn, words in (('{"traceEvents": [', "no JSON"), ('{"traceEvents": 7}', "no trace of a run"), ('[]', "no trace of a run")):
            self.write(torn, "zero_1", "trace.json")
            with self.assertRaisesRegex(RunError, f"trace.json: {words}"):
                timeline.section(groups)

    def test_labels_stand_apart(self):
        html = timeline.section(self.groups(zero_1=ring, ps_sync=star))
        self.assertEqual(len(drawings(html)), 4)
        for drawing in drawings(html):
            self.assertEqual(collisions(drawing), [])


class Ratios(unittest.TestCase):
    ROWS = [("tokens/s, of ps:sync", [("zero:2", claims.Ratio(1.08, 3, 1.05, 1.11, differs=True)), ("zero:3", claims.Ratio(1.0, 3, 0.8, 1.2))])]

    def test_what_is_claimed_is_bold_and_stands_off_the_line(self):
        root = etree.fromstring(forest.draw(self.ROWS, svg.WIDE, "Ratios", "times").replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))
        circles = [(e.get("class"), float(e.get("cx")), e.findtext(SVG + "title")) for e in root.iter(SVG + "circle")]
        self.assertEqual([(c, w) for c, _, w in circles], [("dot c0", "zero:2: 1.08 (1.05 to 1.11)"), ("dot c7", "zero:3: 1.00 (0.80 to 1.20)")])
        one = float(next(e.get("x1") for e in root.iter(SVG + "line") if e.get("class") == "level"))
        self.assertAlmostEqual(circles[1][1], one, 1)
        path = next(e.get("d") for e in root.iter(SVG + "path") if e.get("class") == "curve c0")
        begin, end = map(float, re.match(r"M([\d.]+) [\d.]+H([\d.]+)", path).groups())
        self.assertTrue(one < begin < circles[0][1] < end)

    def test_labels_stand_apart_and_inside(self):
        wide = [("w" * 20, [(f"ps:async workers={i}", claims.Ratio(2.0**i, 3, 2.0**i / 3, 2.0**i * 3)) for i in range(-4, 5)])]
        for rows in (self.ROWS, wide):
            for width in (svg.WIDE, svg.NARROW):
                self.assertEqual(collisions(forest.draw(rows, width, "Ratios", "times as much, logarithmic")), [])


class Learning(Case):
    def repeats(self, topology, held_out):
        group = []
        for i, evals in enumerate(held_out):
            group.append(load(topology, make_run(self.at(f"{topology}{i}"), topology, evals=evals)))
        return group

    def test_held_out_loss_against_samples_updates_and_seconds(self):
        groups = [self.repeats("zero:1", [[(2, 4.0), (4, 2.0)]]), self.repeats("ps:async", [[(2, 3.0), (4, 2.5)], [(2, 3.4), (4, 2.3)]])]
        html = curves.held_out(groups, 2.5)
        for words, places in (("samples", (16, 32)), ("updates", (2, 4)), ("seconds", (1.0, 2.0))):
            root = page_drawing(html, f"Held-out loss against {words}")
            self.assertEqual(len([e for e in root.iter(SVG + "circle")]), 4)
            self.assertEqual([e.get("class") for e in root.iter(SVG + "path") if "band" in (e.get("class") or "")], ["band c1"])
            titles = [e.findtext(SVG + "title") for e in root.iter(SVG + "circle")]
            self.assertIn("zero:1: 4", titles)
            self.assertIn("ps:async: 3.2", titles)  # the median of both runs
            ticks = ["".join(e.itertext()) for e in root.iter(SVG + "text")]
            self.assertTrue(any(t.replace(",", "") in (str(places[0]), f"{places[0]:.1f}", str(places[1])) for t in ticks), ticks)
        self.assertIn("<td>zero:1</td><td>1.75</td><td>4</td><td>28</td>", html)

    def test_bands_of_training_losses(self):
        group = [load("ps:async", make_run(self.at(f"a{i}"), "ps:async", ["5.0", low, "4.0"], weights_hash=f"0x{i}"))
                 for i, low in enumerate(("4.5", "4.75", "4.25"))]
        points, band = curves.curve_of(group)
        self.assertEqual(points, [(1, 5.0), (2, 4.5), (3, 4.0)])
        self.assertEqual(band, [(1, 5.0, 5.0), (2, 4.25, 4.75), (3, 4.0, 4.0)])
        html = curves.losses([group])
        self.assertIn('class="band c0"', html)
        self.assertIn("Areas span from the lowest to the highest run.", html)
        self.assertEqual(curves.curve_of([group[0], group[0]])[1], [])  # equal runs have no band

    def test_a_band_is_drawn_where_it_is(self):
        plot = lines.Lines([{"label": "a", "color": 0, "points": [(0, 1.0), (1, 2.0)], "band": [(0, 0.5, 1.5), (1, 1.0, 3.0)]}], "x", "y")
        root = page_drawing(lines.line_plot(plot), "")
        path = next(e.get("d") for e in root.iter(SVG + "path") if e.get("class") == "band c0")
        ys = [float(y) for _, y in re.findall(r"([\d.]+) ([\d.]+)", path)]
        self.assertEqual(len(ys), 4)
        self.assertAlmostEqual((ys[0] - ys[1]) / (ys[3] - ys[2]), 1.5 / 0.5, 1)


class Others(Case):
    def test_totals_and_servers(self):
        groups = [[load(t, make_run(self.at(t), t))] for t in ("ps:sync", "zero:2")]
        html = figures.totals(groups)
        for words, shown in (("Of the whole job: device memory", "20.0"), ("Of the whole job: resident memory", "50.0"),
                             ("Of the whole job: sent", "12.0"), ("Of the whole job: CPU seconds", "3.5")):
            texts = ["".join(e.itertext()) for e in page_drawing(html, words).iter(SVG + "text")]
            self.assertEqual(texts.count(shown), 2, (words, texts))
        said = {words.split(":")[1].split(",")[1].strip(): words for _, words, *_ in rects(page_drawing(figures.servers(groups), "Time of the servers"))}
        self.assertTrue(said["hold (ms)"].endswith(": 12.50"), said)    # 0.05 s over 4 steps
        self.assertTrue(said["wait (ms)"].endswith(": 300.00"), said)
        self.assertEqual(figures.servers(groups[1:]), "")
        text = table.text_table(groups)
        self.assertRegex(text, r"whole job, all roles added \(MiB\)\n +device memory +20\.00 +20\.00\n +resident memory +50 +50\n")
        self.assertRegex(text, r"CPU seconds of training +3\.5 +3\.5")
        self.assertRegex(text, r"a server's threads, per step, added \(ms\) +500\.0 +-\n +receive +50\.0 +-\n +sum +25\.0 +-\n +hold +12\.5 +-\n")

    def test_parts_that_do_not_add_up_are_said(self):
        time = {"forward": 1.0, "host": 0.5, "total": 2.0}
        for check, doubted in ((0.98, True), (1.02, True), (0.995, False)):
            text = " ".join(table.text_table([[load("a", make_run(self.at("a"), "zero:1", time={**time, "check": check}))]]).split())
            self.assertEqual("do not trust them: zero:1" in text, doubted, check)

    def test_staleness_over_time_and_per_worker(self):
        stale = {"histogram": [40, 50, 10], "max": 2, "mean": 0.7, "workers": [{"worker": 0, "mean": 0.5, "max": 1}, {"worker": 1, "mean": 0.9, "max": 2}],
                 "units": [{"unit": "block.0", "mean": 0.65, "max": 2}], "series": [[8, 0.5], [16, 0.75], [24, 1.0]], "spread": {"mean": 0.25, "max": 1}}
        html = staleness.section([[load("a", make_run(self.at("a"), "ps:async", staleness=stale))]])
        root = page_drawing(html, "Staleness over time")
        curve = next(e.get("d") for e in root.iter(SVG + "path") if e.get("class") == "curve c0")
        ys = [float(y) for _, y in re.findall(r"([\d.]+) ([\d.]+)", curve)]
        self.assertAlmostEqual(ys[0] - ys[1], ys[1] - ys[2], 0)
        for cells in ("<td>worker 1</td><td>0.90</td><td>2</td>", "<td>unit block.0</td><td>0.65</td><td>2</td>"):
            self.assertIn(cells, html)
        self.assertIn("mean 0.25, at most 1", html)

    def test_scaling_over_workers_beside_its_formula(self):
        groups = []
        for n, speed in (("1", 1000.0), ("2", 1500.0), ("4", 2000.0)):
            run = load(n, make_run(self.at(n), "zero:1", tokens_per_second=speed))
            run.label, run.point = f"zero:1 workers={n}", [("workers", n)]
            groups.append([run])
        html = sweep.section(groups)
        root = page_drawing(html, "speed-up over 1 worker")
        self.assertEqual([e.findtext(SVG + "title") for e in root.iter(SVG + "circle")], ["zero:1: 1", "zero:1: 1.5", "zero:1: 2"])
        self.assertEqual(sum(e.get("class") == "level c7" for e in root.iter(SVG + "path")), 1)
        memory = page_drawing(html, "memory per worker (MiB)")
        self.assertEqual(sum((e.get("class") or "").startswith("level") for e in memory.iter(SVG + "path")), 1)

    def test_steps_across_links_stand_beside_their_formula(self):
        groups = []
        for topology in ("ps:sync", "zero:1"):
            directory = make_run(self.at(topology), topology, medium="tcp", config={"gradient_clipping": 0})
            with open(os.path.join(directory, "netlab.json"), "w", encoding="utf-8") as f:
                json.dump({"bits_per_second": 1e9, "links": {}}, f)
            groups.append([load(topology, directory)])
        # M = 6 MB, 3,000,000 parameters of 2 bytes: a star of two workers and a server takes 2M/B, a ring of two M/B; steps took 500 ms
        found = [1e3 * 2 * 6e6 / 125e6, 1e3 * 6e6 / 125e6]
        text = table.text_table(groups)
        self.assertRegex(text, rf"link of every rank +1 Gbit/s +1 Gbit/s\n +step by the formula \(ms\) +{found[0]:.1f} +{found[1]:.1f}\n"
                               r" +measured \(ms\) +500\.0 +500\.0\n")
        root = page_drawing(figures.links(groups), "Steps across the network")
        marks = [e.findtext(SVG + "title") for e in root.iter(SVG + "path") if e.get("class") == "mark"]
        self.assertEqual(marks, [f"formula: {v:,.1f} ms" for v in found])
        self.assertEqual(figures.links([[load("a", make_run(self.at("a"), "zero:1"))]]), "")

    def test_each_figure_is_a_file_and_a_table_by_a_link(self):
        """As data of the link: nothing is fetched, and no script makes it."""
        runs = [make_run(self.at(t.replace(":", "-")), t, evals=[(2, 4.0), (4, 2.0)]) for t in ("ps:async", "zero:1")]
        star(runs[0])
        ring(runs[1])
        self.run_it("--runs", *runs)
        html = self.read("out", "report.html")
        names = []
        for shown in re.findall("<figure>.*?</figure>", html, re.S):
            kinds = {}
            for name, kind, data in re.findall(r'<a download="([\w.-]+)" href="data:([\w/+]+);base64,([\w+/=]+)">', shown):
                kinds[kind] = base64.b64decode(data).decode()
                names.append(name)
            self.assertEqual(set(kinds), {"image/svg+xml", "text/csv"})
            root = etree.fromstring(kinds["image/svg+xml"])
            self.assertIn("--c0:", root.findtext(SVG + "style"))
            on_page = len(re.findall("<svg viewBox", re.sub('<div class="on-phone">.*?</div>', "", shown, flags=re.S)))
            inside = [e for e in root.iter(SVG + "svg") if e is not root and e.get("class") is None]
            self.assertEqual(len(inside), on_page)
            self.assertLessEqual(max(float(e.get("y")) + float(e.get("height")) for e in inside), float(root.get("viewBox").split()[3]))
            lines_of = list(csv.reader(kinds["text/csv"].splitlines()))
            self.assertGreater(len(lines_of), 1, names[-1])
            self.assertEqual({len(line) for line in lines_of}, {len(lines_of[0])}, names[-1])
        self.assertEqual(len(names), len(set(names)))
        self.assertGreaterEqual(len(names), 2 * 9)
        losses = [line for line in csv.reader(base64.b64decode(re.search(r'"loss.csv" href="data:text/csv;base64,([^"]*)"', html).group(1)).decode().splitlines())]
        self.assertEqual([line[2:4] for line in losses[1:]], [[str(i + 1), str(float(loss))] for i, loss in enumerate(LOSSES)])

    def test_foreign_runs_keep_their_own_machine(self):
        there = {"host": "far", "processor": "other CPU", "cores": 64, "memory_bytes": 512 << 30}
        runs = [make_run(self.at(n), t, machine=there, revision="beef") for n, t in (("a", "ps:sync"), ("b", "zero:2"))]
        p = self.run_it("--runs", *runs)
        self.assertIn("machine: far (other CPU, 64 cores, 512.0 GiB)", p.stdout)
        self.assertIn("revision: beef", p.stdout)
        self.assertIn("medium: shm (processes), shm (mpi)", p.stdout)
        notes = self.read("out", "report.html").split("<summary>Notes</summary>")[1]
        self.assertIn("far (other CPU, 64 cores, 512.0 GiB)", notes)
        self.assertNotIn("cores used", notes)   # this machine's own facts
        self.assertNotIn("compiler", notes)

    def test_a_report_with_everything_is_one_file_and_fits_a_phone(self):
        runs = [make_run(self.at(n), t, evals=[(2, 4.0), (4, 2.0)]) for n, t in (("ps-sync.r1", "ps:sync"), ("ps-sync.r2", "ps:sync"),
                                                                                 ("zero-1.r1", "zero:1"), ("zero-1.r2", "zero:1"))]
        for directory in runs:
            (star if "ps" in os.path.basename(directory) else ring)(directory)
        p = self.run_it("--runs", *runs, "--assert-equal")
        html = self.read("out", "report.html")
        for heading in ("Which times differ", "One step of each", "The whole table", "Loss against step", "Loss against seconds", "Loss on held-out text",
                        "Memory per rank", "Bytes per step", "The whole job", "Where the time goes", "The servers' threads", "Notes"):
            self.assertRegex(html, rf"<(h2|h3|summary)>{heading}")
        self.assertNotRegex(html, r"<link|<img|@import|url\((?!#)|src=|https?://(?!www.w3.org)")
        self.assertEqual(re.findall("<script>(.*?)</script>", html, re.S), [style.SCRIPT])
        self.assertEqual(html.count("<script"), 1)
        self.assertIn('http-equiv="Content-Security-Policy" content="default-src \'none\';', html)
        narrow = "".join(re.findall(r'<div class="on-phone">.*?</div>', html, re.S))
        self.assertGreaterEqual(len(drawings(narrow)), 12)
        for width in re.findall(r'viewBox="0 0 (\d+)', narrow):
            self.assertLessEqual(int(width), 360)
        for drawing in drawings(html):
            self.assertEqual(collisions(drawing), [])


class StepPlot(Case):
    def draw(self, *names):
        return subprocess.run([sys.executable, os.path.join(TOP, "docs", "step_plot.py"), *(self.at(n) for n in names), "--out",
                               self.at("x.svg")], capture_output=True, text=True, check=False)

    def make(self, name, topology, how):
        how(make_run(self.at(name), topology, step_seconds={"median": 0.1, "p5": 0.1, "p95": 0.1}))

    def test_runs_below_each_other_on_one_scale(self):
        self.make("a", "zero:1", ring)
        self.make("b", "zero:2", lambda d: ring(d, length=200))
        p = self.draw("a", "b")
        self.assertEqual(p.returncode, 0, p.stderr)
        root = etree.parse(self.at("x.svg")).getroot()
        texts = ["".join(e.itertext()) for e in root.iter(SVG + "text")]
        self.assertIn("zero:1, step 3: 100.0 ms", texts)
        self.assertIn("zero:2, step 3: 200.0 ms", texts)
        self.assertIn("backward", texts)                      # the key says nothing of servers
        below = [e for e in root.iter(SVG + "svg")][1:]
        widths = [max(float(e.get("width")) for e in d.iter(SVG + "rect") if e.get("class") == "idle") for d in below]
        self.assertAlmostEqual(widths[1] / widths[0], 2.0, 2)
        ends = [float(d.get("y")) + float(d.get("height")) for d in below]
        self.assertGreater(float(below[1].get("y")), ends[0])
        self.assertLessEqual(ends[1], float(root.get("viewBox").split()[3]))

    def test_a_star_names_its_servers_in_the_key(self):
        self.make("s", "ps:sync", star)
        self.assertEqual(self.draw("s").returncode, 0)
        self.assertIn("backward; a server's sum", ["".join(e.itertext()) for e in etree.parse(self.at("x.svg")).getroot().iter(SVG + "text")])

    def test_a_run_without_spans_is_named(self):
        self.make("a", "zero:1", ring)
        self.make("b", "zero:2", lambda d: None)
        p = self.draw("a", "b")
        self.assertEqual(p.returncode, 1)
        self.assertIn(self.at("b"), p.stderr)
        self.assertFalse(os.path.exists(self.at("x.svg")))


class Times(Case):
    def test_printed_parts_add_up_to_the_printed_mean(self):
        """The same for repeats, and for servers: the median of each phase by itself would not."""
        repeats = []
        for i, (forward, wait) in enumerate([(0.5, 0.9), (0.9, 0.1), (0.7, 2.5)]):
            time = {"data": 0.1, "forward": forward, "backward": 1.0, "comm_exposed": 0.1, "comm_overlapped": 0.2, "optimizer": 0.1,
                    "wait": wait, "host": 0.2, "total": 1.5 + forward + wait}
            server = {"receive": forward, "sum": 0.1, "hold": wait, "wait": 0.2, "update": 0.2, "reply": 0.2, "total": 0.7 + forward + wait}
            repeats.append(load("a", make_run(self.at(str(i)), "ps:sync", time=time, server_time=[server])))
        cells = {label: [float(c.split()[0]) for c in values] for label, values in table.rows([repeats]) if label.strip() in
                 [words for _, words in table.TIMES + table.SERVER_TIMES] or "(ms)" in label}
        for total, names in (("step, mean over workers (ms)", table.TIMES), ("a server's threads, per step, added (ms)", table.SERVER_TIMES)):
            self.assertGreater(cells[total][0], 0)
            self.assertAlmostEqual(sum(cells["  " + words][0] for _, words in names), cells[total][0], delta=0.3)


if __name__ == "__main__":
    unittest.main()
