#!/usr/bin/env python3
"""experiments/recipes/ and studies/, and their pages: every JSON is one that the program takes, every page names a command that is right
for its program, and figures that do not depend on load are those that the program gives."""
import glob
import json
import os
import re
import shlex
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import PROGRAM, TOP, Runs
import consistency
import largest
from comparison import options
from netlab import formula
from study import plan

PAGES = os.path.join(TOP, "docs", "experiments")
RECIPES, STUDIES = "experiments/recipes", "experiments/studies"
JUDGED = "experiments/prediction/judged.json"   # stored runs, which take the place of a recipe on their page

SCRIPTS = tuple(f"experiments/{name}.py" for name in ("largest", "netlab", "placement", "predict", "superlinear", "underflow"))

MIB = 1 << 20


def text_of(name):
    with open(os.path.join(PAGES, name + ".md"), encoding="utf-8") as f:
        return f.read()


def names():
    return sorted(os.path.basename(p)[:-3] for p in glob.glob(os.path.join(PAGES, "*.md")) if not p.endswith("README.md"))


def commands(name):
    """The commands that a page shows, as lists of words."""
    lines = re.findall(r"^    ((?:sudo )?(?:experiments|build)/\S.*)$", text_of(name), re.MULTILINE)
    return [[w for w in shlex.split(line) if w != "sudo"] for line in lines]


def recipes(name):
    """The JSON files that the commands of a page name."""
    return {w for command in commands(name) for w in command if w.startswith((RECIPES + "/", STUDIES + "/")) or w == JUDGED}


def run(*argv):
    p = subprocess.run([PROGRAM, *argv], cwd=TOP, capture_output=True, text=True, timeout=120, check=False)
    return p.returncode, p.stdout, p.stderr


def document(*argv):
    status, out, err = run(*argv)
    if status:
        raise AssertionError(f"{argv}: {err}")
    return json.loads(out)


def dry(config, topology, *words):
    return document("train", "-c", config, "--topology", topology, "--dry-run", "--json", *words)


def busiest(entries, role, key):
    """The largest of a role's figures in MiB, as tables print it; "-" where the role is not there."""
    found = [e[key] for e in entries if e["role"] == role]
    return f"{max(found) / MIB:.2f}" if found else "-"


def rows(name, column):
    """{first cell: cells of the columns up to the one called so} of each row of a page's tables that have it; of rows that begin
    alike the last."""
    found, head = {}, []
    for line in text_of(name).splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            head = []
        elif not head:
            head = cells
        elif column in head and not cells[0].startswith("---"):
            found[cells[0]] = dict(zip(head, cells))
    return found


FIGURES = ("worker", "server", "worker sends", "server sends", "worker receives", "server receives", "device memory", "sent per step",
           "received per step")


def demo_figures(text):
    """{topology: {what: cell}} of the demo's memory and bytes, as compare.py's closing lines or its --full table show them."""
    found = {}
    for line in text.replace(" =", "").splitlines():
        cells = re.split(r" {2,}", line.strip())
        if re.fullmatch(r"local|(ps|zero):\w+", cells[0]) and len(cells) > 6:
            if re.fullmatch(r"[A-Z]", cells[1]):    # a line for each run
                found[cells[0]] = dict(zip(FIGURES, cells[3:7]))
            else:                                  # a column for each
                found = {topology: {} for topology in cells}
        elif cells[0] in FIGURES and len(cells) == 1 + len(found):
            for topology, cell in zip(found, cells[1:]):
                found[topology].setdefault(cells[0], cell)
    return found


class Recipes(unittest.TestCase):
    def test_each_recipe_has_its_page_and_each_page_its_recipe(self):
        there = {os.path.relpath(p, TOP) for folder in (RECIPES, STUDIES) for p in glob.glob(os.path.join(TOP, folder, "*.json"))}
        self.assertEqual(there - {f"{STUDIES}/quick.json"} - set().union(*(recipes(name) for name in names())), set())
        with open(os.path.join(PAGES, "README.md"), encoding="utf-8") as f:
            index = f.read()
        for name in names():
            self.assertIn(f"[{name}]({name}.md)", index)
            self.assertTrue(recipes(name), f"{name}: no command")

    def test_the_program_takes_every_recipe(self):
        for path in [os.path.relpath(p, TOP) for p in glob.glob(os.path.join(TOP, RECIPES, "*.json"))]:
            with self.subTest(recipe=path):
                for topology in ("ps:sync", "zero:2"):
                    status, _, err = run("train", "-c", path, "--topology", topology, "--print-config")
                    self.assertEqual((status, "warning" in err, "unknown" in err), (0, False, False), err)

    def test_every_command_is_one(self):
        for name in names():
            for command in commands(name):
                with self.subTest(command=" ".join(command)):
                    self.check(*command)

    def check(self, program, *words):
        if program == "experiments/compare.py":
            args = options.parse(list(words), "", PROGRAM)
            for sweep in args.sweep:
                key, values = sweep.split("=", 1) if isinstance(sweep, str) else (sweep[0], ",".join(sweep[1]))
                for value in values.split(","):
                    status, _, err = run("train", "-c", args.config, "--topology", "zero:1", "--set", f"{key}={value}",
                                         "--print-config")
                    self.assertEqual(status, 0, err)
        elif program == "experiments/consistency.py":  # what the program makes of its rows: test_consistency.py
            self.assertTrue(plan.read(os.path.join(TOP, consistency.parse(list(words)).study)).rows)
        elif program in SCRIPTS:
            p = subprocess.run([sys.executable, os.path.join(TOP, program), *words, "--help"], capture_output=True, check=False)
            self.assertEqual(p.returncode, 0)
        else:
            self.assertEqual(program, "build/starring")
            dry = ["--dry-run"] if "--dry-run" not in words and words[0] != "plan" else []
            status, _, err = run(*words, *dry)
            self.assertEqual(status, 0, err)


class Refusals(Runs):
    def test_what_scripts_of_pages_refuse(self):
        bloom, tiny = f"{RECIPES}/models/bloom-176b.json", ["underflow.py", "--model", "tiny", "--threads", "1", "--batch", "1", "-c"]
        for argv, status, said in (
                (["placement.py", "--model", bloom, "--batch", "8", "--pipe", "12"], 2, "70 blocks do not divide into --pipe 12 equal stages: --stages units"),
                (["placement.py", "--model", bloom, "--batch", "8", "--tensor", "5"], 2, "n_embd 14336 of .* does not divide by --tensor 5"),
                (["placement.py", "--model", bloom, "--batch", "7", "--data", "2"], 2, "--batch 7 is no multiple of --data x --micro = 2"),
                (["placement.py", "--model", bloom, "--batch", "8", "--order", "tensor,data"], 2, "each of tensor, data, pipe once"),
                (["placement.py", "--model", "demo", "--batch", "8"], 2, "demo is no config.json"),
                (["placement.py", "--model", "nothing.json", "--batch", "8"], 2, "nothing.json"),
                (["largest.py", "-c", f"{RECIPES}/dtypes.json"], 1, "model.name demo is no config.json: the number of blocks"),
                (["largest.py", "-c", f"{RECIPES}/offload.json", "--limit", "5x"], 2, "'5x' is no size such as 512M"),
                (["superlinear.py", "-c", f"{RECIPES}/dtypes.json"], 1, "sets no memory.device_bytes"),
                (["superlinear.py", "-c", f"{RECIPES}/superlinear.json", "--workers", "2,0"], 2, "'2,0' is no list of whole numbers"),
                (["superlinear.py", "-c", f"{RECIPES}/superlinear.json", "--program", "nowhere"], 1, "cannot start nowhere: .*build it with make"),
                (["placement.py", "--model", bloom, "--batch", "8", "--across", "0"], 2, "--across: '0': expected a number above 0"),
                (["largest.py", "-c", f"{RECIPES}/offload.json", "--limit", "0"], 2, "'0' is no size"),
                ([*tiny, f"{RECIPES}/dtypes.json"], 1, r"set optimizer.params.betas to \[0, 0.999\]"),
                ([*tiny, f"{RECIPES}/underflow.json", "--steps", "3"], 1, "and steps to 1"),
                ([*tiny, f"{RECIPES}/underflow.json", "--scale", "0"], 2, "--scale: '0': expected a number above 0"),
                ([*tiny, f"{RECIPES}/underflow.json", "--scale", "1e12"], 1, r"--scale 1e\+12: a gradient exceeds 65504"),
                ([*tiny, f"{RECIPES}/underflow.json", "--dtype=bf16"], 2, "--dtype: the script chooses it")):
            with self.subTest(command=argv):
                p = self.run_script(*argv, status=status, cwd=TOP)
                self.assertRegex(p.stderr, said)


class Figures(Runs):
    def test_memory_of_the_paper_s_row(self):
        shown = rows("memory", "predicted here (bytes)")
        self.assertEqual(sorted(shown), ["zero:0", "zero:1", "zero:2", "zero:3"])
        for stage, row in shown.items():
            said = document("train", "-c", f"{RECIPES}/memory.json", "--topology", stage, "--dry-run", "--json")["memory"][0]
            self.assertEqual(int(row["predicted here (bytes)"]), said["predicted_bytes"])
            self.assertEqual(int(row["of which slots (bytes)"]), said["predicted"]["communication"])
            self.assertEqual(row["formula"], said["formula"])
            self.assertEqual(float(row["formula here (GB)"]), round(said["formula_bytes"] * 1e-9, 1))
            self.assertEqual(float(row["predicted here (GB)"]), round(said["predicted_bytes"] * 1e-9, 1))
            self.assertEqual(float(row["paper (GB)"]), float(row["formula here (GB)"]))

    def test_memory_of_20_linear_layers(self):
        shown, moments = rows("memory", "predicted = counted (bytes)"), rows("memory", "after the step")
        said = document("bench", "zero", "--dry-run", "--json")
        self.assertEqual((said["params"], len(said["rows"])), (80040000, 4))
        for stage in said["rows"]:
            row, predicted = shown[f"zero:{stage['stage']}"], stage["predicted"]
            self.assertEqual(int(row["predicted = counted (bytes)"]), predicted["total"])
            for column, kind in (("weights", "parameter"), ("gradients", "gradient"), ("moments", "optimizer"),
                                 ("slots", "communication")):
                self.assertEqual(row[column], f"{predicted.get(kind, 0) * 1e-6:.2f}")
            for moment in ("model created", "before the step", "after the step"):
                self.assertEqual(int(moments[f"zero:{stage['stage']}"][moment]), round(predicted["total"] * 1e-6))

    def test_memory_of_pytorch_s_recipe_by_formula(self):
        """Its allocator takes 2 MiB at a time and splits off only what leaves more than 1 MiB."""
        weight, bias = -(-4 * 2000 * 2000 // (1 << 21)) << 21, -(-4 * 2000 // 512) * 512
        w, one = 20 * (weight + bias), 4 * 2000 * 2000
        buckets, scratch = 20 * (one + 8000) + weight - one, 2 * weight
        made = {"model created": w, "+ DDP": w + buckets, "before the step": 2 * w + buckets,
                "after the step, sharded": 3 * w + buckets + scratch, "after the step, Adam": 4 * w + buckets + scratch}
        shown = rows("memory", "MB by the formula")
        self.assertEqual({k: (r["MB by the formula"], int(r["published"])) for k, r in shown.items()},
                         {k: (f"{v * 1e-6:.1f}", int(v // 1e6)) for k, v in made.items()})

    def test_memory_of_a_transformer_as_large(self):
        shown = rows("memory", "formula of zero:0, zero:1")
        for topology in ("zero:0", "zero:1"):
            said = dry(f"{RECIPES}/memory-79m.json", topology)["memory"][0]
            self.assertEqual(int(shown["predicted = measured (bytes)"][topology]), said["predicted_bytes"])
            self.assertEqual([shown[k][topology] for k in ("weights", "gradients", "moments", "activations, 1 x 64 tokens", "workspace", "predicted = measured")],
                             [f"{n * 1e-6:.1f}" for n in (*(said["predicted"][k] for k in ("parameter", "gradient", "optimizer", "activation", "workspace")),
                                                          said["predicted_bytes"])])

    def test_adapters_beside_full_training(self):
        shown = rows("lora", "worker sends (MiB)")
        for topology in ("ps:sync", "zero:3"):
            for what, r in (("all weights", 0), ("r = 8", 8)):
                said = dry(f"{RECIPES}/lora.json", topology, "--set", f"lora.r={r}")
                row = shown[f"{topology}, {what}"]
                self.assertEqual(row["trained parameters"], f"{said['params']:,}")
                for role in ("worker", "server"):
                    self.assertEqual(row[f"{role} sends (MiB)"], busiest(said["wire"], role, "predicted_sent"))
                    self.assertEqual(row[f"{role} holds (MiB)"], busiest(said["memory"], role, "predicted_bytes"))

    def test_adapters_of_a_large_model(self):
        """docs/lora.md: sends, holds and a server's memory, in full, of r = 8, and of all linear layers."""
        with open(os.path.join(TOP, "docs", "lora.md"), encoding="utf-8") as f:
            tables = [re.findall(r"^\| ((?:ps|zero):\w+) \| (.*) \|$", part, re.MULTILINE) for part in f.read().split("LLaMA 2 7B, 8 workers")]
        sets = ((), ("--set", "lora.r=8"), ("--set", "lora.r=8", "--set", "lora.targets=all-linear"))
        both = ((tables[0], ("--model", "demo", "--workers", "4", "--servers", "2", "--seq", "64", "--batch", "2", "--threads", "1")),
                (tables[1], ("--model", "llama-2-7b", "--workers", "8", "--servers", "8", "--seq", "512", "--batch", "1")))
        self.assertEqual([len(t) for t in tables], [6, 5])
        for table, words in both:
            for topology, cells in table:
                with self.subTest(topology=topology, words=words):
                    own = words if topology.startswith("ps") else words[:4] + words[6:]
                    said = [document("train", "--topology", topology, "--dtype", "bf16", "--dry-run", "--json", *own, *more) for more in sets]
                    found = [[max((e[key] for e in d[where] if e["role"] == role), default=None) for d in said]
                             for where, role, key in (("wire", "worker", "predicted_sent"), ("memory", "worker", "predicted_bytes"),
                                                      ("memory", "server", "predicted_bytes"))]
                    for cell, n in zip(cells.split(" | "), sum(found, [])):
                        units = {"-": "-"} if n is None else {"": f"{n / MIB:.2f}", "GiB": f"{n / MIB / 1024:.2f} GiB", "MiB": f"{n / MIB:.1f} MiB"}
                        self.assertIn(cell, units.values())

    def test_gradients_that_vanish(self):
        argv = next(c for c in commands("underflow") if "demo" in c)
        p = subprocess.run([sys.executable, *argv, "--json"], cwd=TOP, capture_output=True, text=True, check=False, env={**os.environ, "STARRING": PROGRAM})
        self.assertEqual(p.returncode, 0, p.stderr)
        said = json.loads(p.stdout)
        number = lambda cell: int(cell.replace(",", ""))
        row = rows("underflow", "demo's model, 8 x 256 tokens")["all"]
        self.assertEqual([number(row["elements"])] + [number(row[f"scale {s:g}"]) for s in said["scales"]],
                         [said["rows"][-1]["elements"]] + [s["vanished"] for s in said["rows"][-1]["scales"]])
        shown = {row["gradient"]: row for row in rows("underflow", "divided again").values()}
        for e in said["example"]:
            self.assertEqual([shown[f"{e['gradient']:.0e}"][k] for k in ("in fp16", "times 1024, in fp16", "divided again")],
                             [f"{e[k]:.4g}" for k in ("fp16", "scaled", "back")])

    def test_largest_models_of_the_offload_page(self):
        """Page and script: every way of the table at its number of blocks."""
        with open(os.path.join(TOP, RECIPES, "models", "deep.json"), encoding="utf-8") as f:
            model = json.load(f)
        shown = re.findall(r"^\| (\d) \| (\S+ \S+) \| (\S+) \| (\d+) \| ([0-9,]+) \| ([0-9.]+) \| (\d+) \|", text_of("offload"), re.MULTILINE)
        self.assertEqual(len(shown), 4)
        last = None
        for (workers, state, topology, blocks, params, times, predicted), (n, how, flags) in zip(shown, largest.ways(self.folder)):
            self.assertEqual((int(workers), state == "on disk"), (n, how != "none"))
            path = self.write(json.dumps({**model, "n_layer": int(blocks)}), f"{blocks}.json")
            said = document("train", "-c", f"{RECIPES}/offload.json", *flags, "--model", path, "--dry-run", "--json")
            self.assertEqual((said["topology"], said["params"], said["here"]["limits"][0]["predicted_bytes"]),
                             (topology, int(params.replace(",", "")), int(predicted)))
            self.assertEqual(times, f"{said['params'] / last:.1f}" if how != "none" else "1")
            last = said["params"]

    def test_largest_batches_of_the_superlinear_page(self):
        shown = {n: (row["micro-batch"], row["predicted (bytes)"], row["plan: tokens/s and rank"].split()[0])
                 for n, row in rows("superlinear", "predicted (bytes)").items()}
        argv = next(c for c in commands("superlinear") if c[0].endswith("superlinear.py"))
        p = subprocess.run([sys.executable, *argv, "--dry-run", "--json"], cwd=TOP, capture_output=True, text=True, check=False,
                           env={**os.environ, "STARRING": PROGRAM})
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertEqual(shown, {str(r["workers"]): (str(r["batch"]), str(r["predicted_bytes"]), f"{r['planned_per_second']:,.0f}")
                                 for r in json.loads(p.stdout)["rows"]})

    def test_bytes_of_1024_cards(self):
        shown = re.findall(r"^\| (\S+), (fp32|bf16), (\d+) workers \| (workers|servers|ranks)[^|]* \| ([0-9.]+) \|", text_of("fat-tree"), re.MULTILINE)
        self.assertEqual(len(shown), 7)
        for topology, dtype, workers, who, terabytes in shown:
            said = dry(f"{RECIPES}/fat-tree.json", topology, "--workers", workers, "--dtype", dtype)
            role = "server" if who == "servers" else "worker"
            self.assertEqual(terabytes, f"{1e-12 * sum(e['predicted_sent'] for e in said['wire'] if e['role'] == role):.1f}", topology)
        self.assertEqual(round(128 * 175e9 * 4 * 1e-12, 1), 89.6)
        self.assertIn(f"GPT-3 ({said['params']:,} parameters)", text_of("fat-tree"))

    def test_three_dimensions(self):
        """Drawings and tables of the page are those of its commands."""
        page, made = text_of("three-d"), []
        for command in commands("three-d"):
            p = subprocess.run([sys.executable, *command], cwd=TOP, capture_output=True, text=True, check=False, env={**os.environ, "STARRING": PROGRAM})
            self.assertEqual(p.returncode, 0, p.stderr)
            made.append(p.stdout)
            self.assertIn(re.search(r"begins a node\n\n(.*?)\n\n", p.stdout, re.S).group(1), page)
        for text, column in zip(made, ("BLOOM", "MT-NLG, D = 8")):
            for axis, cells in rows("three-d", column).items():
                self.assertRegex(text, rf"\n{axis} +{re.escape(cells[column])}\n")
            for order, cells in rows("three-d", "MT-NLG: sum").items():
                figures = [cells[c] for c in ("BLOOM: tensor", "data", "pipe", "sum")] if column == "BLOOM" else [cells["MT-NLG: sum"]]
                self.assertRegex(text, order.replace(", ", " ") + r".*" + " +".join(re.escape(f.strip("*")) for f in figures) + "\n")
        bloom, nlg = made[:2]
        here = {label: cells["here"] for label, cells in rows("three-d", "published").items()}
        for text, said, wanted in ((bloom, "{} parameters;", "parameters"), (bloom, "16-bit weights {} GiB", "16-bit weights (GiB)"),
                                   (bloom, "moments {} TiB", "weights, masters and moments (TiB)"), (bloom, ": {} s a step at", "seconds of a step at 150 Tflop/s of a GPU"),
                                   (nlg, "state {} TB", "state of all, 20 bytes a parameter (TB)"), (nlg, "whole batch {} TB", "inputs of all blocks, batch 1920 (TB)"),
                                   (nlg, "one sequence {} GB", "the same of one sequence (GB)"), (nlg, ": {} Tflop/s", "Tflop/s of a GPU at 60.1 s a step, 280 nodes")):
            figure = here[wanted] if wanted != "parameters" else "176,276,602,880"
            self.assertIn(said.format(figure), text)

    def test_bytes_of_the_overlap_page(self):
        shown = rows("overlap", "sent per step and worker (MiB)")
        self.assertEqual(len(shown), 6)
        for name, row in shown.items():
            topology, overlap = name.split(", ")
            said = dry(f"{RECIPES}/overlap.json", topology, "--medium", "tcp", "--set", f"zero_optimization.overlap_comm={overlap}")
            self.assertEqual(row["sent per step and worker (MiB)"], busiest(said["wire"], "worker", "predicted_sent"), name)

    def test_memory_and_bytes_of_the_dtypes_page(self):
        shown = {label: [row[d] for d in ("fp32", "bf16", "fp16")] for label, row in rows("dtypes", "fp16").items()}
        said = {t: [dry(f"{RECIPES}/dtypes.json", t, "--medium", "shm", "--dtype", d) for d in ("fp32", "bf16", "fp16")]
                for t in ("ps:sync", "zero:1")}
        for topology, runs in said.items():
            self.assertEqual(shown["a worker of ps:sync or zero:1 sends (MiB a step)"], [busiest(d["wire"], "worker", "predicted_sent") for d in runs])
            for role in ("worker", "server") if topology == "ps:sync" else ("worker",):
                self.assertEqual(shown[f"memory of a {role}, {topology} (MiB)"], [busiest(d["memory"], role, "predicted_bytes") for d in runs])
            self.assertEqual(shown[f"memory of the whole job, {topology} (MiB)"],
                             [f"{sum(e['predicted_bytes'] for e in d['memory']) / MIB:.2f}" for d in runs])

    def test_formulas_of_the_incast_page(self):
        lines = re.findall(r"^\| `(\S+)` \| (\d*) ?\| ([0-9.]+) s \|", text_of("incast"), re.MULTILINE)
        self.assertEqual([(topology, servers) for topology, servers, _ in lines], [("ps:sync", s) for s in "124"] + [(f"zero:{s}", "") for s in range(4)])
        said = dry(f"{RECIPES}/incast.json", "zero:3", "--workers", "4")
        for topology, servers, seconds in lines:
            self.assertEqual(seconds, f"{formula.seconds(topology, 2 * said['params'], 4, int(servers or 0), 200e6 / 8):.3f}", topology)
        self.assertIn(f"M is {2e-6 * said['params']:.1f} MB;", text_of("incast"))
        self.assertIn(f"{3 * 0.75 * 2e-6 * said['params']:.1f} MB here; the program sends {1e-6 * said['wire'][0]['predicted_sent']:.1f} MB", text_of("incast"))

    def test_memory_and_bytes_of_the_demo_in_its_pages(self):
        with open(os.path.join(TOP, "README.md"), encoding="utf-8") as readme, \
                open(os.path.join(TOP, "docs", "demo.md"), encoding="utf-8") as page:
            table = re.search(r"```text\n(.*?)```", readme.read(), re.S).group(1)
            text = page.read()
        self.assertIn(table, text)
        shown = demo_figures(text)
        self.assertEqual(list(shown), ["local", "ps:sync", "ps:async"] + [f"zero:{stage}" for stage in range(4)])
        for topology, cells in shown.items():
            alone = [] if topology == "local" else ["--workers", "2", "--medium", "shm"]
            said = dry("experiments/demo.json", topology, *alone)
            wanted = {words: f"{sum(e[key] for e in said[part]) / MIB:.2f}" for words, part, key in
                      (("device memory", "memory", "predicted_bytes"), ("sent per step", "wire", "predicted_sent"), ("received per step", "wire", "predicted_received"))}
            for role in ("worker", "server"):
                wanted |= {role: busiest(said["memory"], role, "predicted_bytes"), f"{role} sends": busiest(said["wire"], role, "predicted_sent"),
                           f"{role} receives": busiest(said["wire"], role, "predicted_received")}
            self.assertLessEqual({"worker", "server", "worker sends", "server sends"}, set(cells))
            self.assertEqual(cells, {words: wanted[words] for words in cells}, topology)

    def test_what_bench_zero_counts_is_what_it_predicts(self):
        for dtype in ("fp32", "bf16"):
            size = ["--units", "3", "--width", "60", "--workers", "3", "--dtype", dtype, "--json"]
            counted, predicted = document("bench", "zero", *size), document("bench", "zero", *size, "--dry-run")
            for one, other in zip(counted["rows"], predicted["rows"]):
                self.assertEqual(one["predicted"], other["predicted"])
                for moment in ("created", "before_step", "after_step"):
                    self.assertEqual(one[moment], one["predicted"])
                self.assertAlmostEqual(one["gradient_norm"], 6 * counted["params"] ** 0.5, delta=0.01)
        self.assertEqual(run("bench", "zero", "--stage", "4")[0], 2)
        self.assertEqual(run("bench", "zero", "--dtype", "fp64")[0], 2)


if __name__ == "__main__":
    unittest.main()
