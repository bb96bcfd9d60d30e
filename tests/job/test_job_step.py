#!/usr/bin/env python3
"""The dry run's "step": the graph of a worker's tasks is what runs do. Every transfer in a trace is the list's at its place, and nothing
begins there before what it needs has ended. Sums over the tasks are the bytes that the dry run predicts."""
import json
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs

STEPS = 4
SMALL = ["--data", "demo", "--seq", "24", "--batch", "2", "--threads", "1", "--steps", str(STEPS), "--no-weights", "--quiet"]
KEEP_UNITS = ["--set", "parameter_server.resident=units"]


def sets(**keys):
    return [w for key, value in keys.items() for w in ("--set", f"{key.replace('__', '.')}={value}")]


MICRO = sets(gradient_accumulation_steps=2)
BUCKETS = sets(zero_optimization__reduce_bucket_size=100000, zero_optimization__allgather_bucket_size=100000)
GROUPS = sets(zero_optimization__zero_hpz_partition_size=2)
SERIAL = sets(zero_optimization__overlap_comm="false")
TRACED = {
    "zero:0": ["--topology", "zero:0", "--workers", "2"],
    "zero:0, bundles": ["--topology", "zero:0", "--workers", "2", *BUCKETS],
    "zero:1": ["--topology", "zero:1", "--workers", "3", *MICRO],
    "zero:2": ["--topology", "zero:2", "--workers", "4"],
    "zero:2, bundles of two micro-batches": ["--topology", "zero:2", "--workers", "2", *BUCKETS, *MICRO],
    "zero:2, tied": ["--model", "demo", "--topology", "zero:2", "--workers", "2", *MICRO],
    "zero:3": ["--topology", "zero:3", "--workers", "4", *MICRO],
    "zero:3, far ahead": ["--topology", "zero:3", "--workers", "2", *sets(zero_optimization__stage3_prefetch_bucket_size=100000)],
    "zero:3, tied": ["--model", "demo", "--topology", "zero:3", "--workers", "2", *MICRO],
    "zero:3, without overlap": ["--topology", "zero:3", "--workers", "2", *SERIAL, *MICRO],
    "zero:3, groups": ["--topology", "zero:3", "--workers", "4", *GROUPS, *MICRO],
    "zero:2, groups": ["--topology", "zero:2", "--workers", "4", *sets(reduce_group=2)],
    "zero:2, no_sync": ["--topology", "zero:2", "--workers", "2", *sets(ring__no_sync="true"), *MICRO],
    "zero:2, local steps": ["--topology", "zero:2", "--workers", "2", "--local-steps", "2"],
    "zero:3, offload": ["--topology", "zero:3", "--workers", "2", *sets(zero_optimization__offload_optimizer__device="cpu",
                                                                      zero_optimization__offload_param__device="cpu")],
    "zero:2, offload": ["--topology", "zero:2", "--workers", "2", *MICRO, *sets(zero_optimization__offload_optimizer__device="cpu")],
    "zero:3, nothing ahead": ["--topology", "zero:3", "--workers", "2", *sets(zero_optimization__stage3_prefetch_bucket_size=0)],
    "zero:2, lora": ["--topology", "zero:2", "--workers", "2", *sets(lora__r=4)],
    "zero:3, lora": ["--topology", "zero:3", "--workers", "2", *sets(lora__r=4), *MICRO],
    "zero:3, tied, lora": ["--model", "demo", "--topology", "zero:3", "--workers", "2", *sets(lora__r=4)],
    "ps:sync, lora": ["--topology", "ps:sync", "--workers", "2", *sets(lora__r=4)],
    "ps:sync": ["--topology", "ps:sync", "--workers", "2", "--servers", "2", *MICRO],
    "ps:sync, no clipping": ["--topology", "ps:sync", "--workers", "2", "--servers", "2", *sets(gradient_clipping=0)],
    "ps:sync, without overlap": ["--topology", "ps:sync", "--workers", "2", *SERIAL],
    "ps:ssp": ["--topology", "ps:ssp:1", "--workers", "2", *MICRO],
    "ps:quorum": ["--topology", "ps:quorum:2", "--workers", "2", *sets(gradient_clipping=0)],
    "ps:sync, codes": ["--topology", "ps:sync", "--workers", "2", *sets(parameter_server__compression="int8", gradient_clipping=0)],
    "ps:sync, local steps": ["--topology", "ps:sync", "--workers", "2", "--local-steps", "2"],
    "ps:sync, units": ["--topology", "ps:sync", "--workers", "2", "--servers", "2", *KEEP_UNITS, *MICRO],
    "ps:sync, units, lora": ["--topology", "ps:sync", "--workers", "2", "--servers", "3", *sets(lora__r=4), *KEEP_UNITS, *MICRO],
    "ps:sync, units, tied, lora": ["--model", "demo", "--topology", "ps:sync", "--workers", "2", "--servers-on", "workers", *sets(lora__r=4),
                                   *KEEP_UNITS],
    "ps:sync, units, tied": ["--model", "demo", "--topology", "ps:sync", "--workers", "2", "--servers-on", "workers", *KEEP_UNITS],
}
PREDICTED = {
    "servers on workers": ["--topology", "ps:sync", "--workers", "4", "--servers-on", "workers"],
    "codes": ["--topology", "ps:sync", "--workers", "2", "--servers", "3", *sets(parameter_server__compression="int8",
                                                                              gradient_clipping=0)],
    "async": ["--topology", "ps:async", "--workers", "4"],
    "ssp": ["--topology", "ps:ssp:2", "--workers", "3"],
    "gossip": ["--topology", "gossip", "--workers", "5", *sets(gossip__graph="exponential")],
    "local": ["--topology", "local", "--workers", "1"],
    "large": ["--model", "gpt2-124m", "--topology", "zero:3", "--workers", "4096", *sets(gradient_accumulation_steps=4)],
}
SHORT = {"forward": "f", "backward": "b", "all_gather": "g", "reduce_scatter": "r", "update": "u", "push": "push", "pull": "pull"}
GRAPHS = {
    "--topology zero:2":
        "f0,pg0 f1,pg1 f2,pg2 f3,pg3 b3 r3,b3 b2 r2,b2 b1,r3 r1,b1 b0,r2 r0,b0 norm,r0 all_reduce,norm g,norm decide,g u0 g0,u0 "
        "u1 g1,u1 u2 g2,u2 u3 g3,u3",
    "--topology zero:3":
        "g0,pu0 g1,pu1 f0,g0 g2,f0,pu2 f1,g1 g3,f1,pu3 f2,g2 f3,g3 b3,g3 r3,b3 g1,b3 b2,g2 r2,b2 g0,b2 b1,g1,r3 r1,b1 b0,g0,r2 "
        "r0,b0 norm,r0,g0 all_reduce,norm g,norm decide,g u0 u1 u2 u3",
    "--topology ps:sync":
        "f0,ppull0 f1,ppull1 f2,ppull2 f3,ppull3 b3,ppush3 push3,b3 b2,ppush2 push2,b2 b1,ppush1 push1,b1 b0,ppush0 push0,b0 "
        "decide,push0 pull0,push0,decide pull1,push1,decide pull2,push2,decide pull3,push3,decide",
    "--topology ps:async --set gradient_clipping=0":
        "f0,ppull0 f1,ppull1 f2,ppull2 f3,ppull3 b3,ppush3 push3,b3 b2,ppush2 push2,b2 b1,ppush1 push1,b1 b0,ppush0 push0,b0 "
        "pull3,push3 pull2,push2 pull1,push1 pull0,push0",
    "--topology ps:sync --set zero_optimization.overlap_comm=false":
        "f0,ppull3 f1,ppull1 f2,ppull2 f3,ppull3 b3,ppush3 b2,ppush2 b1,ppush1 b0,ppush0 push3,b0 push2,b0 push1,b0 push0,b0 "
        "decide,push0 pull0,push0,decide pull1,push1,decide pull2,push2,decide pull3,push3,decide",
    "--topology ps:sync --resident units":
        "pull0,ppush0 pull1,ppush1 f0,pull0 pull2,f0,ppush2 f1,pull1 pull3,f1,ppush3 f2,pull2 f3,pull3 b3,pull3 push3,b3 pull1,b3 "
        "b2,pull2 push2,b2 pull0,b2 b1,pull1,push3 push1,b1 b0,pull0,push2 push0,b0 decide,push0",
    "--topology zero:3 --set zero_optimization.overlap_comm=false":
        "g0,pu0 f0,g0 g1,f0,pu1 f1,g1 g2,f1,pu2 f2,g2 g3,f2,pu3 f3,g3 b3,g3 r3,b3 b2,r3,g2 r2,b2 g1,b2 b1,r2,g1 r1,b1 g0,b1 "
        "b0,r1,g0 r0,b0 norm,r0,g0 all_reduce,norm g,norm decide,g u0 u1 u2 u3",
    "--topology zero:1 --local-steps 2":
        "f0,pg0 f1,pg1 f2,pg2 f3,pg3 b3 b2 b1 b0 norm decide u0 u1 u2 u3 delta3 r3,delta3 delta2 r2,delta2 delta1 r1,delta1 "
        "delta0 r0,delta0 norm,r0 all_reduce,norm g,norm decide,g u0 g0,u0 u1 g1,u1 u2 g2,u2 u3 g3,u3",
    "--topology gossip":
        "exchange0,pmix3 exchange1,pmix3 exchange2,pmix3 exchange3,pmix3 f0 f1 f2 f3 b3 b2 b1 b0 norm,exchange3 decide u0 u1 u2 "
        "u3 mix0 mix1 mix2 mix3",
}


def model(options):
    return [] if "--model" in options else ["--model", "tiny"]


def joined(tasks):
    """Transfers as the timeline has them: the legs of a call of groups are one."""
    found, last = [], None
    for i, t in enumerate(tasks):
        key = (t["task"], t.get("unit", t.get("units")), t.get("micro"), t["stream"])
        if "team" in t and t["team"] != "all" and found and last == (key, i - 1):
            found[-1]["tasks"].append(i)
            found[-1]["sent"] += t["sent"]
        else:
            found.append({"tasks": [i], "sent": t.get("sent", 0)})
        last = (key, i)
    return found


class Trace:
    """A worker's events: its transfers by their number, and when the k-th run of an operation on the compute stream began and ended."""
    def __init__(self, events, worker):
        own = [e for e in events if e["pid"] == worker]
        stream = next(e["tid"] for e in own if e["name"] == "thread_name" and e["args"]["name"] == "compute")
        self.ops, self.transfers = {}, {}
        for e in sorted((e for e in own if e["ph"] == "X" and e["tid"] == stream), key=lambda e: e["ts"]):
            self.ops.setdefault(e["name"], []).append((e["ts"], e["ts"] + e["dur"]))
        for e in own:
            if e.get("cat") == "transfer":
                t = self.transfers.setdefault(int(e["id"], 16) & (1 << 40) - 1, {"name": e["name"]})
                t[e["ph"]] = e["ts"]
                t.update(e.get("args", {}))


class Step(Runs):
    def document(self, options):
        return json.loads(self.run_it("train", *model(options), *SMALL, *options, "--dry-run", "--json").stdout)

    # ---------------------------------------------------------------- names and order
    def asked(self, step, star):
        """[(name, bytes, tasks)] of a step's transfers, in the order in which a worker asks for them."""
        tasks = step["workers"]["tasks"]
        names = [f" of {u['name']}" for u in step["units"]]
        found, push_asks = [], star and not any("micro" in t for t in tasks if t["task"] == "pull")
        for m in joined(tasks):
            t = tasks[m["tasks"][0]]
            kind = t["task"]
            if kind == "decide" and t.get("pattern") == "scheduler":
                found.append(("control", 0, m["tasks"]))
            elif t.get("control"):
                size, peers = t["team_size"], t["team_size"] - 1
                found.append(("control", t["bytes"] * (2 if kind == "all_reduce" else 1) * peers // size, m["tasks"]))
            elif "bytes" in t and t["pattern"] != "host" and not (push_asks and kind == "pull"):
                reduced = t["stream"] in ("reduce", "push")
                unit = t["unit"] if "unit" in t else t["units"][0] if reduced else t["units"][-1]
                found.append((f"{'gradients' if reduced else 'weights'}{names[unit]}", t["bytes"] if star else m["sent"], m["tasks"]))
                if push_asks:  # a push asks for the next weights
                    pull = next(i for i, p in enumerate(tasks) if p["task"] == "pull" and p["unit"] == unit)
                    found.append((f"weights{names[unit]}", tasks[pull]["bytes"], [pull]))
        return found

    # ---------------------------------------------------------------- times
    def computed(self, trace, step, number, task):
        """When the operation ran that stands for a task of compute: (begin, end); None: it has none, or other operations."""
        names = [u["name"] for u in step["units"]]
        blocks, micro, kind = len({n for n in names if n.startswith("block")}), step["micro_batches"], task["task"]
        u, updated = task.get("unit", 0), sum(u["elements"] > 0 for u in step["units"])
        name, _, block = names[u].partition(".")
        at = number * micro + task.get("micro", 0)
        local = step["every"] > 1
        where = {("forward", "embedding"): ("embed_fwd", at), ("backward", "embedding"): ("embed_bwd", at),
                 ("backward", "head"): ("xent", at),
                 ("forward", "block"): ("attn_fwd", at * blocks + int(block or 0)),
                 ("backward", "block"): ("attn_bwd", at * blocks + blocks - 1 - int(block or 0))}
        if kind in ("forward", "backward"):
            op, i = where.get((kind, name), (None, 0))
        elif local:
            return None
        else:
            op, i = {"decide": ("decide", number), "norm": ("sumsq", number * updated),
                     "update": ("adamw", number * updated + u)}.get(kind, (None, 0))
        return trace.ops[op][i] if op and i < len(trace.ops.get(op, [])) else None

    def check_worker(self, step, trace, star):
        tasks, asked, every = step["workers"]["tasks"], self.asked(step, star), step["every"]
        self.assertGreater(len(trace.transfers), len(asked))
        ends, begins, compared = {}, {}, 0
        for number, seen in trace.transfers.items():
            round_, i = divmod(number - 1, len(asked))
            name, size, which = asked[i]
            self.assertEqual((seen["name"], seen["bytes"]), (name, size), f"transfer {number}, of {asked}")
            for t in which:  # of its legs only the first begins there, and only the last ends
                s = round_ * every + every - 1
                if t == which[0]:
                    begins[s, t] = seen["b"]
                if t == which[-1]:
                    ends[s, t] = seen["e"]
        for s in range(STEPS):
            for i, t in enumerate(tasks):
                ran = self.computed(trace, step, s, t) if t["stream"] == "compute" else None
                if ran:
                    begins[s, i], ends[s, i] = ran
        for s, i in begins:
            needed = [(s, n) for n in tasks[i]["needs"]] + [(s - 1, n) for n in tasks[i]["needs_previous"]]
            for n in needed:
                # An answer's transfer begins with the question, and the sender learns later than the server that a push has ended.
                answer = {tasks[i].get("pattern"), tasks[n[1]].get("pattern")} <= {"servers", "scheduler"}
                # With ps:ssp the answer may be older than the pushes of others, which a push's transfer waits for.
                older = answer and step["consistency"]["name"] == "ssp"
                begin, end = (ends.get((s, i)), begins.get(n)) if answer else (begins[s, i], ends.get(n))
                if begin and end and not older:
                    compared += 1
                    self.assertGreaterEqual(begin, end - 0.002, f"step {s}: {tasks[i]} began before {tasks[n[1]]} had ended")
        self.assertGreater(compared, 0)

    # ---------------------------------------------------------------- the tests
    def test_the_graphs_of_short_steps(self):
        """Each task with those that it waits for besides the order of its stream; p: of the previous step."""
        for options, graph in GRAPHS.items():
            with self.subTest(options):
                tasks = self.document(["--workers", "2", *options.split()])["step"]["workers"]["tasks"]
                written = [f"{SHORT.get(t['task'], t['task'])}{t.get('unit', '')}" for t in tasks]
                found = " ".join(",".join([written[i], *(written[n] for n in t["needs"]), *("p" + written[n] for n in t["needs_previous"])])
                                 for i, t in enumerate(tasks))
                self.assertEqual(found, graph)

    def test_a_trace_has_the_tasks(self):
        for name, options in TRACED.items():
            with self.subTest(name):
                self.run_it("train", *model(options), *SMALL, *options, "--trace", "--force", "--out", "run",
                            *sets(eval_batches="none"))
                events = self.json("run", "trace.json")["traceEvents"]
                step, star = self.document(options)["step"], options[options.index("--topology") + 1].startswith("ps:")
                for worker in range(int(options[options.index("--workers") + 1])):
                    self.check_worker(step, Trace(events, worker), star)

    def test_sums_are_the_predicted_bytes(self):
        for name, options in (TRACED | PREDICTED).items():
            with self.subTest(name):
                document = self.document(options)
                step = document["step"]
                tasks = step["workers"]["tasks"]
                wire = next(w for w in document["wire"] if (w["role"], w["rank"]) == ("worker", step["workers"]["rank"]))
                for way in ("sent", "received"):
                    moved = sum(t.get(way, 0) for t in tasks)
                    self.assertEqual(moved // step["every"], wire[f"predicted_{way}"])
                    self.assertEqual(wire[f"predicted_{way}"], max(w[f"predicted_{way}"] for w in document["wire"] if w["role"] == "worker"))
                for key, kind in (("predicted_down", "down"), ("predicted_up", "up")):
                    self.assertEqual(sum(t["bytes"] for t in tasks if t["task"] == kind), wire.get("offload", {}).get(key, 0))
                for i, t in enumerate(tasks):
                    self.assertTrue(all(0 <= n < i and tasks[n]["stream"] != t["stream"] for n in t["needs"]), t)
                    self.assertTrue(all(n < len(tasks) for n in t["needs_previous"]), t)
                whole = sum(u["padded"] for u in step["units"])
                self.assertEqual(sum(u["elements"] for u in step["units"]), document["params"])
                self.assertTrue(all(u["elements"] <= u["padded"] for u in step["units"]))
                updated = sum(t["elements"] for t in tasks if t["task"] == "update" and not t.get("round"))
                if not options[1].startswith("ps:") and "--model" not in options:
                    self.assertIn(updated, (whole, whole // document["workers"]))
                for t in tasks if "keys" in step else []:
                    for kind, key in (("push", "bytes"), ("pull", "pull_bytes")):
                        if t["task"] == kind:
                            self.assertEqual(t["bytes"], sum(k[key] for k in step["keys"] if k["unit"] == t["unit"]))

    def test_flops_are_those_of_the_summary(self):
        for more in (MICRO, sets(lora__r=4), sets(activation_checkpointing__recompute="block")):
            with self.subTest(more):
                options = ["--topology", "local", "--workers", "1", *more]
                step = self.document(options)["step"]
                self.run_it("train", *model(options), *SMALL, *options, "--force", "--out", "run")
                summary = self.summary("run")
                flops = sum(u["forward_flops"] + u["backward_flops"] for u in step["units"])
                self.assertEqual(flops, 2 * 24 * (summary["flops_per_token"] + summary["recomputed_flops_per_token"]))
                self.assertEqual(step["micro_batches"], 2 if more is MICRO else 1)

    def test_the_document_stays_small(self):
        few, many = (len(json.dumps(self.document(["--topology", "zero:3", "--workers", str(n)])["step"])) for n in (2, 4096))
        self.assertLess(many, 2 * few)
        step = self.document(["--topology", "local", "--workers", "1", *sets(gradient_accumulation_steps=200000000)])["step"]
        self.assertEqual((step["micro_batches"], step["workers"]["tasks"]), (200000000, None))


if __name__ == "__main__":
    unittest.main()
