#!/usr/bin/env python3
"""The page of predict.py --html in a browser: a small grid is predicted, the page is driven through choices, and every number that it
shows is compared with those of predict.py --json, and of the program's --dry-run."""
import html
import json
import math
import os
import re
import shutil
import subprocess
import sys
import unittest
from urllib.parse import quote, unquote

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import EXPERIMENTS, PROGRAM, Runs

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# Debian's SimGrid is there for Debian's Python only.
PYTHON = next((p for p in (sys.executable, "/usr/bin/python3") if os.path.exists(p) and
               subprocess.run([p, "-c", "import simgrid, jinja2"], capture_output=True, check=False).returncode == 0), None)
MACHINE = "small"   # dgx-a100 with devices that demo's zero:0 does not fit
AXES = {"model": ["tiny", "demo"], "network": ["100gbe", "ib400-fat-tree-4:1"], "straggler": ["none", "lognormal"],
        "topology": ["ps:sync", "ps:async", "ps:backup:2", "zero:0", "zero:2"], "workers": ["2", "4"], "servers": ["1", "N/2", "N"]}
LISTS = {"model": "--models", "network": "--networks", "straggler": "--stragglers", "workers": "--workers", "servers": "--servers"}
SHARED = ["--machine", "small.json", "--per-node", "1", "--steps", "6", "--effort", "0.2", "--seq", "512", "--batch", "2"]
OF_A_CHOICE = {"100gbe": ["--bandwidth", "100gbit", "--latency", "50us"], "ib400-fat-tree-4:1": ["--bandwidth", "400gbit", "--latency", "20us", "--network", "fat_tree:4:1"],
               "none": [], "lognormal": ["--straggle", "*:lognormal:0.2"]}
CHOICES = [   # those that are compared with predict.py --json
    {"topology": "ps:sync", "beside": "zero:2", "workers": "4", "servers": "1"},
    {"topology": "ps:async", "beside": "ps:backup:2", "workers": "4", "servers": "N/2", "straggler": "lognormal"},
    {"topology": "zero:2", "beside": "zero:0", "workers": "2", "network": "ib400-fat-tree-4:1"},
    {"topology": "zero:0", "beside": "ps:backup:2", "workers": "2", "model": "demo"},   # too large, and refused
]
UNITS = {"": 1, "s": 1, "ms": 1e-3, "\u00b5s": 1e-6, "bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "%": 0.01,
         "thousand": 1e3, "million": 1e6, "billion": 1e9}
# Leaves what a browser shows after each of these addresses: [[name, value, text] of each figure], and the texts of what has no number.
WALK = """const said = [];
for (const hash of %s) {
  location.hash = hash;
  fromAddress();
  said.push({figures: [...document.querySelectorAll("[data-of]")].map((e) => [e.getAttribute("data-of"), e.getAttribute("value"), e.textContent]),
             crosses: document.querySelectorAll("#scale circle.cross").length, dots: [...document.querySelectorAll("#scale circle.pa")].map((e) => e.getAttribute("value")),
             a: place("answer-a").textContent, b: place("answer-b").textContent, crossing: place("crossing").textContent, scale: place("scales").textContent});
}
leave(said);"""


def shows(text, value):
    """Whether a shown text is this value, as near as its digits say: "43.7 ms" and "1,020 KiB" have three, "4.1%" two, "1,234" is exact."""
    number, places, unit = re.fullmatch(r"([\d,]+(?:\.(\d+))?) ?(\D*)", text).groups()
    number = float(number.replace(",", ""))
    if unit and number:
        last = 10.0 ** (math.floor(math.log10(number)) - (1 if unit == "%" else 2))
    else:
        last = 10.0 ** -len(places or "") if number else 0
    return abs(number - value / UNITS[unit]) <= 0.501 * last


def figures_of(side, said):
    """{name on the page: value} of one prediction, as predict.py --json has it."""
    out = {f"{side}.{q}": said["step_seconds"][q] for q in ("median", "p5", "p95", "p99")}
    out |= {f"{side}.{part}": value for part, value in said["parts"].items()}
    out |= {f"{side}.mean": said["step_seconds"]["mean"], f"{side}.tokens": said["tokens_per_second"], f"{side}.limit": said["limit"]}
    if said["error"]:
        out |= {f"{side}.error": said["error"]["mean"], f"{side}.worst": said["error"]["worst"]}
    if said["staleness"]:
        out |= {f"{side}.staleness.{what}": said["staleness"][what] for what in ("mean", "max")}
    for row in said["memory"]:
        out |= {f"{side}.{row['role']}.{what}": value for what, value in row["parts"].items()}
        out |= {f"{side}.{row['role']}.{what}": row[what] for what in ("predicted_bytes", "formula", "formula_bytes")}
        out[f"{side}.{row['role']}"] = row["predicted_bytes"]
    for row in said["wire"]:
        out |= {f"{side}.{row['role']}.{what}": row[what] for what in ("sent", "received")}
    return out


def in_the_table(said):
    """The same of a row of the table of all topologies: {the name's end: value}."""
    found = figures_of("x", said)
    names = {"median": "median", "p95": "p95", "tokens": "tokens", "worker": "worker", "server": "server", "worker.sent": "worker.sent", "server.sent": "server.sent"}
    return {f"all.{said['configuration']['topology']}.{name}": found[f"x.{of}"] for name, of in names.items() if f"x.{of}" in found}


class Pages(Runs):
    """Tests of a page in a browser."""
    shared = True

    def predict(self, *words, status=0):
        return Runs.run_it(self, os.path.join(EXPERIMENTS, "predict.py"), "--program", PROGRAM, *words, program=PYTHON, status=status)

    def dom(self, name, *flags):
        return subprocess.run([BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={self.at('browser')}", "--window-size=1400,900",
                               *flags, "--dump-dom", "file://" + self.at(name)], capture_output=True, text=True, timeout=200, check=False).stdout

    def browse(self, page, script, width=1400):
        """The argument that a script in the page gives to leave(). The page is in a frame: a window is 500 pixels wide at least."""
        script = f"function leave(what) {{ parent.postMessage(encodeURIComponent(JSON.stringify(what)), '*'); }}\n{script}"
        self.write(page.replace("</body>", f"<script>{script}</script></body>"), "inside.html")
        self.write("<body><script>onmessage = (e) => { document.body.dataset.said = e.data; };</script>"
                   f'<iframe src="inside.html" style="border:0" width="{width}" height="900"></iframe></body>', "browsed.html")
        said = re.search('data-said="([^"]*)"', self.dom("browsed.html"))
        self.assertTrue(said)
        return json.loads(unquote(said.group(1)))


@unittest.skipUnless(PYTHON, "no simgrid")
@unittest.skipUnless(BROWSER, "no chromium")
class Page(Pages):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        with open(os.path.join(EXPERIMENTS, "prediction", "machines", "dgx-a100.json"), encoding="utf-8") as f:
            told = json.load(f)
        case = cls()
        dry = case.run_it("train", "--topology", "zero:0", "--workers", "2", "--model", "demo", "--device", "cuda", "--dtype", "bf16", "--seq", "512", "--batch", "2",
                          "--dry-run", "--json").stdout
        told["device"]["memory_bytes"] = json.loads(dry)["memory"][0]["predicted_bytes"] - 1
        case.write(json.dumps({**told, "name": MACHINE}), "small.json")
        words = [word for axis, flag in LISTS.items() for word in (flag, ",".join(AXES[axis]))]
        words += [word for topology in AXES["topology"] for word in ("--topology", topology)]
        case.predict("--html", "page.html", *words, *SHARED)
        cls.page = case.read("page.html")

    def said(self, choice, *topologies):
        """predict.py --json of these topologies at a choice; those that it refuses are left out."""
        full = {axis: values[0] for axis, values in AXES.items()} | choice
        words = [*OF_A_CHOICE[full["network"]], *OF_A_CHOICE[full["straggler"]], "--model", full["model"], "--dtype", "bf16", "--workers", full["workers"],
                 "--servers", full["servers"]]
        asked = [word for topology in topologies for word in ("--topology", topology)]
        return json.loads(self.predict("--json", *asked, *words, *SHARED).stdout)

    def test_every_number_is_that_of_predict_and_of_the_dry_run(self):
        walked = self.browse(self.page, WALK % json.dumps(self.addresses(CHOICES)))
        compared = 0
        for choice, shown in zip(CHOICES, walked):
            possible = [t for t in AXES["topology"] if not (t == "ps:backup:2" and choice["workers"] == "2")]
            documents = {d["configuration"]["topology"]: d for d in self.said(choice, *possible)}
            expected = {}
            for side, topology in (("a", choice["topology"]), ("b", choice["beside"])):
                expected |= figures_of(side, documents[topology]) if topology in documents else {}
            for document in documents.values():
                expected |= in_the_table(document)
            self.assertGreater(len(shown["figures"]), 30)
            for name, value, text in shown["figures"]:
                if ".at." in name:   # of other numbers of workers too
                    self.assertTrue(shows(text, float(value)), (name, value, text))
                    continue
                self.assertIn(name, expected, choice)
                if isinstance(expected[name], str):
                    self.assertEqual((value, text), (expected[name], expected[name]))
                    continue
                self.assertAlmostEqual(float(value) / (expected[name] or 1), 1 if expected[name] else 0, delta=2e-8, msg=(choice, name))
                self.assertTrue(shows(text, expected[name]), (choice, name, text, expected[name]))
                compared += 1
        self.assertGreater(compared, 150)
        late = {name: float(value) for name, value, _ in walked[1]["figures"] if name in ("a.p5", "a.median", "a.p95", "a.p99")}
        self.assertEqual(len(set(late.values())), 4, late)   # each is another number, so none stands in another's place
        star = walked[0]["figures"]
        self.assertEqual({name for name, _, _ in star if name.endswith(".formula_bytes")}, {"a.worker.formula_bytes", "a.server.formula_bytes", "b.worker.formula_bytes"})

    def test_shown_texts_are_read_as_people_read_them(self):
        for text, value, right in (("43.7 ms", 0.04374, True), ("43.7 ms", 0.0438, False), ("1,020 KiB", 1023 * 1024, True), ("1,020 KiB", 1026 * 1024, False), ("0 s", 0.0, True),
                                   ("0 s", 1e-6, False), ("1,234", 1234, True), ("1,234", 1235, False), ("4.1%", 0.0412, True), ("12%", 0.134, False)):
            self.assertEqual(shows(text, value), right, (text, value))

    def test_where_star_and_ring_cross_is_said_from_the_points(self):
        said = self.walk({"topology": "ps:sync", "beside": "zero:2", "servers": "1"})
        at = {name: float(value) for name, value, _ in said["figures"] if ".at." in name}
        faster = {n: "both are equal" if abs(at[f"b.at.{n}"] / at[f"a.at.{n}"] - 1) < 0.005 else "ps:sync is faster" if at[f"a.at.{n}"] < at[f"b.at.{n}"] else "zero:2 is faster"
                  for n in AXES["workers"]}
        if len(set(faster.values())) == 1:
            self.assertIn(faster["2"].replace("both are equal", "Both are equally fast"), said["crossing"])
        else:
            self.assertEqual(said["crossing"], f"They cross: {faster['2']} at N = 2, {faster['4']} at N = 4.")
        self.assertEqual([float(value) for value in said["dots"]], [at[f"a.at.{n}"] for n in AXES["workers"]])

    def test_each_crossing_of_the_two_lines_has_a_mark(self):
        for servers in AXES["servers"]:
            said = self.walk({"topology": "ps:sync", "beside": "zero:2", "servers": servers})
            at = {name: float(value) for name, value, _ in said["figures"] if ".at." in name}
            ahead = [at[f"a.at.{n}"] < at[f"b.at.{n}"] for n in AXES["workers"]]
            self.assertEqual(said["crosses"], sum(one != other for one, other in zip(ahead, ahead[1:])), (servers, at))
        made = self.browse(self.page, """const times = (topology, workers) => points.get(AXES.reduce((key, axis) => key * axes[axis].length +
  (axis === "servers" && !isStar(topology) ? 0 : choose({topology, workers})[axis]), 0))[4];
const shown = () => [...document.querySelectorAll("#scale circle.cross")].map((e) => e.textContent);
const said = [];
for (const factor of [2, 0.5]) {   // faster with few workers; with both numbers
  times(chosen.topology, 0)[0] = times(chosen.beside, 0)[0] / 2;
  times(chosen.topology, 1)[0] = times(chosen.beside, 1)[0] * factor;
  draw();
  said.push(shown());
}
leave(said);""")
        self.assertEqual(made, [["The lines cross between N = 2 and N = 4"], []])

    def test_it_opens_with_quantiles_that_differ(self):
        said = self.browse(self.page, """leave({straggler: axes.straggler[chosen.straggler].name, star: isStar(chosen.topology), ring: !isStar(chosen.beside),
       quantiles: ["a.median", "a.p5", "a.p95", "a.p99"].map((name) => document.querySelector(`#times [data-of="${name}"]`).value)});""")
        self.assertEqual((said["straggler"], said["star"], said["ring"], len(set(said["quantiles"]))), ("lognormal", True, True, 4))

    def test_the_default_grid_has_what_a_teacher_asks(self):
        """Servers from one to as many as workers, no, fixed and drawn stragglers; each choice has options that the program takes."""
        script = """import json, sys
sys.path.insert(0, sys.argv[1])
from prediction import command, page
given = command.parser("").parse_args([])
given.workers = None
grid = page.Grid(page.axes_of(given, page.machines_of(["dgx-h100:1"], given)))
print(json.dumps([options for _, options in grid.choices()]))"""
        choices = json.loads(subprocess.run([PYTHON, "-c", script, EXPERIMENTS], capture_output=True, text=True, check=True).stdout)
        star = [c for c in choices if c["topology"] == "ps:sync"]
        self.assertEqual({c["servers"] for c in star if c["workers"] == 64}, {1, 16, 64})
        self.assertEqual({c["servers"] for c in star if c["workers"] == 2}, {1, 2})
        late = {c.get("straggle") for c in choices}
        self.assertEqual(late, {None, "0:2", "*:lognormal:0.2"})
        for words in late - {None}:
            self.run_it("train", "--topology", "zero:0", "--workers", "2", "--model", "tiny", "--straggle", words, "--dry-run")

    def test_what_cannot_be_is_said(self):
        said = self.walk({"topology": "zero:0", "beside": "ps:backup:2", "model": "demo", "workers": "2"})
        self.assertRegex(said["a"], "^Does not fit.*zero:0.* a worker needs .* MiB, its device has .* MiB")
        refused = self.run_it("train", "--topology", "ps:backup:2", "--workers", "2", "--model", "demo", "--dry-run", status=2).stderr
        self.assertIn(refused.split("error: ", 1)[1].strip().splitlines()[-1], said["b"])

    def test_wrong_command_lines_are_refused(self):
        for words, said in ((["--models", "tiny"], "goes with --html"), (["--html", "x.html", "--networks", "wet"], "possible are own, 25gbe"),
                            (["--html", "x.html", "--json"], "give one of them"), (["--html", "x.html", "--machines", "small.json", *SHARED], "--machines and --machine"),
                            (["--html", "none/x.html", *SHARED], "none/x.html"), (["--html", "x.html", "--machine", "nowhere"], "neither a file nor one of"),
                            (["--html", "x.html", "--model", "nobody", "--topology", "zero:1", "--workers", "2", *SHARED], "choices can be predicted")):
            p = self.predict(*words, status=2)
            self.assertIn(said, p.stderr)
            self.assertNotIn("Traceback", p.stderr)

    def test_a_person_without_a_mouse_can_use_it(self):
        found = self.browse(self.page, """const select = place("workers");
select.selectedIndex = 0;
select.dispatchEvent(new Event("change"));
leave({unlabelled: [...document.querySelectorAll("select")].filter((e) => e.labels.length !== 1 || e.tabIndex < 0).length,
       selects: document.querySelectorAll("select").length, silent: [...document.querySelectorAll("svg:not(.key)")].filter((e) => !e.querySelector("title") || e.getAttribute("role") !== "img").length,
       headless: [...document.querySelectorAll("section")].filter((e) => !document.getElementById(e.getAttribute("aria-labelledby"))).length,
       buttons: [...document.querySelectorAll("#all button")].length, live: document.querySelector(".answers").getAttribute("aria-live"),
       workers: axes.workers[chosen.workers].name, address: location.hash, answer: place("answer-a").textContent});""")
        self.assertEqual((found["unlabelled"], found["selects"], found["silent"], found["headless"], found["live"]), (0, 8, 0, 0, "polite"))
        self.assertEqual(found["buttons"], len(AXES["topology"]))
        self.assertIn(f"workers={found['workers']}", found["address"])
        self.assertIn(f"N = {found['workers']}", found["answer"])

    def test_it_fits_a_phone(self):
        wide = self.browse(self.page, """document.querySelectorAll("details").forEach((d) => { d.open = true; });
draw();
leave([...document.querySelectorAll("body *")].filter((e) => !e.closest(".wide") && !e.closest("svg") && e.getBoundingClientRect().right > innerWidth + 1)
      .map((e) => e.tagName + "#" + e.id).concat(String(innerWidth), document.documentElement.scrollWidth <= innerWidth ? "fits" : "scrolls"));""", 390)
        self.assertEqual(wide, ["390", "fits"])

    def test_texts_in_drawings_stay_inside(self):
        for width in (390, 1400):
            cut = self.browse(self.page, """leave([...document.querySelectorAll(".drawing svg:not(.key) text")].filter((e) => {
  const box = e.getBoundingClientRect(), all = e.ownerSVGElement.getBoundingClientRect();
  return box.left < all.left - 1 || box.right > all.right + 1;
}).map((e) => e.textContent));""", width)
            self.assertEqual(cut, [])

    def test_without_scripts_the_whole_grid_is_a_table(self):
        static = self.page.replace("<script>", "<script type='text/none'>").replace("<noscript>", "").replace("</noscript>", "")
        self.write(static, "static.html")
        shown = self.dom("static.html")
        self.assertEqual(len(re.findall('<details class="all">', shown)), len(AXES["model"]) * len(AXES["network"]) * len(AXES["straggler"]))
        [document] = self.said({"workers": "4"}, "zero:2")
        worker = document["memory"][0]["predicted_bytes"]
        table = re.search(f"<summary>tiny, {MACHINE}, 1 device a node, 100 Gbit/s Ethernet; stragglers: none</summary>.*?</table>", shown, re.S).group()
        time, memory = re.search("<th scope=\"row\">zero:2</th><td>[^<]*</td><td>([^<]*), ([^<]*)</td>", table).groups()
        self.assertTrue(shows(time, document["step_seconds"]["median"]), time)
        self.assertEqual(memory, f"{worker / 2**30:,.2f} GiB")

    def test_it_needs_no_network(self):
        self.assertIn("default-src 'none'", html.unescape(self.page))
        self.assertEqual(re.findall(r"(?:src|href)\s*=|@import|url\(|fetch\(|XMLHttp", self.page), [])

    def walk(self, choice):
        return self.browse(self.page, WALK % json.dumps(self.addresses([choice])))[0]

    @classmethod
    def addresses(cls, choices):
        return ["&".join(f"{axis}={quote(value)}" for axis, value in choice.items()) for choice in cls.complete(choices)]

    @staticmethod
    def complete(choices):
        return [{axis: values[0] for axis, values in AXES.items()} | {"machine": MACHINE} | choice for choice in choices]


if __name__ == "__main__":
    unittest.main()
