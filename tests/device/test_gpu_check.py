#!/usr/bin/env python3
"""gpu_check.py's parts and its document: parts of several calls in one document, calls that are ended, documents of
something else, wrong words; what it makes of programs that fail and of figures that are not as expected."""
import json
import os
import re
import signal
import sys
import time
import types
import unittest

from gpu_check_helper import BUILD, EMULATION, Folder, on_the_emulated_device, run

from gpucheck import correct, document, facts, page, parts, place, speed, steps, work

OK, SLOW = 'echo "[       OK ] a"\n', 'echo "[       OK ] a"; exec sleep 60\n'
ONE_BY_ONE = ["facts", "attention", "ops"]


def shape_of(found):
    """A document without what differs from run to run: times, rates, commands."""
    return [(p["name"], p["title"], p["status"], p["finished"], [(c["name"], c["status"]) for c in p["checks"]],
             [(f["what"], f.get("way"), sorted(f)) for f in p["figures"]], p["findings"], "before" in p)
            for p in found["parts"]], found["passed"], found["complete"], found["findings"], found["identity"]


@on_the_emulated_device
class Documents(Folder):
    def test_parts_one_by_one_make_the_same_document(self):
        """In one call; and in three, backwards, the last with the document of another folder."""
        build = self.toy_build("build", a=OK)
        once, first, second = (self.at(n) for n in ("once", "first", "second"))
        status, whole, text = self.check(build, once, *ONE_BY_ONE)
        self.assertEqual(status, 0, text)
        for name in ONE_BY_ONE[:0:-1]:
            status, found, text = self.check(build, first, name)
            self.assertEqual(status, 0, text)
        status, found, text = self.check(build, second, "--resume", first, ONE_BY_ONE[0])
        self.assertEqual(status, 0, text)
        self.assertEqual(shape_of(found), shape_of(whole))
        self.assertEqual([p["name"] for p in found["parts"]], [n for n in parts.ORDER if n in ONE_BY_ONE])
        self.assertEqual(len({p["command"] for p in found["parts"]}), 3)
        self.assertEqual(shape_of(self.document(first))[0], shape_of(whole)[0][1:])  # as it was

    def test_a_call_that_is_killed_loses_nothing(self):
        """Killed when its first check is there, while what was to be replaced is kept; and the programs end with it."""
        build, out = self.toy_build("build", a=OK, b=OK), self.at("out")
        status, before, text = self.check(build, out, "facts", "ops")
        self.assertEqual(status, 0, text)
        self.script("build/tests/device/test_device_b", f'echo $$ > {self.folder}/pid; exec sleep 60\n')
        p = self.start(*self.argv(build, out, "ops")[1:], program=sys.executable, env=EMULATION)
        p.until(lambda: os.path.exists(self.at("pid")) and self.read("pid").endswith("\n"), "the second program")
        p.kill()
        p.wait()
        found = self.document(out)
        ops = found["parts"][1]
        self.assertEqual((ops["name"], ops["finished"]), ("ops", False))
        self.assertEqual([(c["name"], c["status"]) for c in ops["checks"]], [("a: a", "passed")])
        self.assertEqual(ops["before"], before["parts"][1])
        self.assertEqual(found["parts"][0], before["parts"][0])
        self.assertTrue(self.ends(int(self.read("pid"))), "the program goes on alone")
        self.assertIn("| operations against the reference | cut short |", self.page(out))
        self.assertIn("cut short", run(*self.argv(build, out, "--list")).stdout)
        self.script("build/tests/device/test_device_b", 'echo "[  FAILED  ] b"\nexit 1\n')
        status, found, text = self.check(build, out, "ops")
        self.assertEqual(status, 1, text)
        ops = found["parts"][1]
        self.assertTrue(ops["finished"] and "before" not in ops)
        self.assertEqual([(c["name"], c["status"]) for c in ops["checks"]], [("a: a", "passed"), ("b: b", "failed")])

    def ends(self, pid):
        for _ in range(200):
            try:
                with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
                    if f.read().rsplit(")", 1)[1].split()[0] == "Z":
                        return True
            except OSError:
                return True
            time.sleep(0.05)
        return False

    def page(self, out):
        return re.sub(" +", " ", self.read(out, "gpu-check.md"))

    def test_ctrl_c_keeps_what_was_found(self):
        build, out = self.toy_build("build", a=OK, b=f'echo > {self.folder}/began; exec sleep 60\n'), self.at("out")
        p = self.start(*self.argv(build, out, "ops")[1:], program=sys.executable, env=EMULATION)
        p.until(lambda: os.path.exists(self.at("began")), "the second program")
        p.send_signal(signal.SIGTERM)
        self.assertIn("the document has all results up to now", p.ends(130))
        self.assertEqual([c["name"] for c in self.document(out)["parts"][0]["checks"]], ["a: a"])

    def test_results_of_something_else_are_refused_before_anything_runs(self):
        build, out = self.toy_build("build", a=OK), self.at("out")
        found = self.check(build, out, "ops")[1]
        found["identity"]["driver"] = "12.9"
        document.replace(os.path.join(out, "gpu-check.json"), json.dumps(found))
        status, after, text = self.check(build, out, "ops")
        self.assertEqual(status, 2, text)
        self.assertIn("has results of another program or device: the driver is 12.9 there and 13.0 here. New results cannot be added to it: "
                      "name another folder with --out", text)
        self.assertEqual(after, found)

    def test_what_has_not_run_runs_and_what_does_not_fit_is_left(self):
        """No names: what is left, in order; a budget that only the first is expected to fit."""
        build, out = self.toy_build("build", a=OK), self.at("out")
        known = {p.name: p.estimate for p in parts.ROWS}
        budget = known["facts"] + 1
        status, found, text = self.check(build, out, "--budget", str(budget))
        self.assertEqual(status, 0, text)
        self.assertEqual([p["name"] for p in found["parts"]], ["facts"])
        self.assertRegex(text, rf"not begun, for --budget {budget}: ops attention parity bits bits-more .* racecheck\n")
        status, found, text = self.check(build, out, "--budget", "1")
        self.assertEqual(status, 1, text)
        self.assertIn("not begun, for --budget 1: ops attention", text)
        self.assertNotIn("facts", text.split("not begun")[1])


class Records(Folder):
    """The document without programs."""
    OURS = {"build": "b", "device": "d", "compute_capability": "9.0", "driver": "13", "quick": False}
    FACTS = {"name": "d", "compute_capability": "9.0", "driver": "13"}

    def record(self, **ours):
        found = document.Record(self.folder, None, {**self.OURS, **ours}, parts.ORDER)
        self.addCleanup(found.close)
        return found

    def test_what_must_be_the_same(self):
        record = self.record()
        record.write(device=self.FACTS, when="", host="", versions={})
        record.close()
        self.record().close()
        for key in self.OURS:
            with self.assertRaisesRegex(document.Unusable, f"{document.IDENTITY[key]} is {self.OURS[key]} there and x here"):
                self.record(**{key: "x"})

    def test_the_build_is_the_program_and_the_object(self):
        here = types.SimpleNamespace(program=self.script("starring", "a"), object=self.script("so", "b"))
        first = place.Place.fingerprint(here)
        for changed in ("starring", "so"):
            self.script(changed, "other")
            second = place.Place.fingerprint(here)
            self.assertNotEqual(second, first)
            first = second

    def test_one_writes_at_a_time(self):
        self.record()
        with self.assertRaisesRegex(document.Unusable, "another gpu-check writes to"):
            self.record()

    def test_each_check_is_on_disk_at_once(self):
        record = self.record()
        record.write(device=self.FACTS, when="2026-01-02", host="", versions={})
        part = work.Part("ops", "t", 9)
        part.about = {"command": "c"}
        part.changed = lambda: record.take(part)
        for i in range(3):
            part.check(f"c{i}", "passed")
            checks = self.document(self.folder)["parts"][0]["checks"]
            self.assertEqual([c["name"] for c in checks], [f"c{j}" for j in range(i + 1)])
            part.finding(f"f{i}")
            self.assertEqual(self.document(self.folder)["findings"], [f"ops: f{j}" for j in range(i + 1)])
            part.figure(f"g{i}")
            self.assertEqual(len(self.document(self.folder)["parts"][0]["figures"]), i + 1)
        self.assertEqual(sorted(os.listdir(self.folder)), [".lock", "gpu-check.json", "gpu-check.md"])


class Words(Folder):
    def refused(self, *words):
        p = run(*self.argv(BUILD, self.folder, *words))
        self.assertEqual(p.returncode, 2, p.stderr)
        return p.stderr

    def test_unknown_parts(self):
        text = self.refused("facts", "op")
        self.assertIn("no part op (did you mean ops?); the parts: facts ops attention parity ", text)
        self.assertIn("no part 7; the parts: facts", self.refused("7"))
        self.assertIn("no part stpe (did you mean step?)", self.refused("stpe"))  # of a group
        self.assertIn("exclude each other", self.refused("--all", "ops"))

    def test_a_budget_of_nothing_is_no_missing_limit(self):
        for budget in ("0", "-5", "nan", "inf", "much"):
            self.assertIn(f"--budget: '{budget}': expected a number above 0",
                          self.refused(f"--budget={budget}", "--list"))

    def test_what_is_no_document_is_said_and_not_read(self):
        part = {"name": "facts", "title": "", "status": "passed", "finished": True, "seconds": 1, "checks": [], "figures": [],
                "findings": [], "notes": []}
        for key, value in (("parts", [1]), ("parts", [{**part, "finished": "yes"}]), ("parts", [{**part, "status": "well"}]),
                           ("identity", "x"), ("schema", 1), ("parts", [part])):
            found = {"schema": document.SCHEMA, "identity": {}, "parts": [], key: value}
            document.replace(self.at("gpu-check.json"), json.dumps(found))
            p = run(*self.argv(BUILD, self.folder, "--list"))
            self.assertEqual(p.returncode, 0, p.stderr)
            self.assertEqual("is no document of this gpu-check" in p.stderr, value != [part], p.stderr)

    def test_a_folder_that_cannot_be_written(self):
        document.replace(self.at("file"), "")
        p = run(*self.argv(BUILD, self.at("file"), "facts"))
        self.assertEqual(p.returncode, 2, p.stderr)
        self.assertIn("/file (File exists): name another folder with --out", p.stderr)

    @on_the_emulated_device
    def test_nothing_to_go_on_with(self):
        p = run(*self.argv(BUILD, self.folder, "--resume", "/nowhere", "ops"), env=EMULATION)
        self.assertEqual(p.returncode, 2)
        self.assertIn("there is no /nowhere/gpu-check.json to continue: check the folder of --resume", p.stderr)
        with open(self.at("gpu-check.json"), "w", encoding="utf-8") as f:
            f.write('{"schema": 1, "parts": []}')
        p = run(*self.argv(BUILD, self.folder, "ops"), env=EMULATION)
        self.assertEqual(p.returncode, 2)
        self.assertIn("is no document of this gpu-check", p.stderr)

    def test_the_list_says_what_a_part_takes(self):
        p = run(*self.argv(BUILD, self.folder, "--list"))
        self.assertEqual(p.returncode, 0, p.stderr)
        for row in parts.ROWS:
            self.assertRegex(p.stdout, rf"(?m)^{row.name} +{row.estimate} s +{row.limit} s +not run +{row.title}$")

    def test_parts_fit(self):
        """Each is expected to end well before its limit, and none has four minutes; a group is all of its parts."""
        for row in parts.ROWS:
            self.assertLess(row.limit, 240, row.name)
            self.assertLessEqual(1.3 * row.estimate, row.limit, row.name)
        self.assertEqual(parts.named("step"), ["step-124m", "step-1.5b", "step-0.5b", "step-1558m"])
        self.assertEqual((parts.named("bits"), parts.named("st")), (["bits"], []))


class Expectations(Folder):
    """Figures beside what is expected of an H200."""

    def findings(self, facts_of, measured, expected):
        part = work.Part("step-124m", "", 10)
        steps.compare(self.checker(facts_of), part, "a step", measured, expected, "ms")
        return part.findings

    def test_more_than_a_fifth_is_a_finding(self):
        h200 = {"name": "NVIDIA H200"}
        for measured in (48, 59, 70.5):
            self.assertEqual(self.findings(h200, measured, 59), [])
        self.assertEqual(self.findings(h200, 71, 59), ["a step: 71 ms, expected 59"])
        self.assertEqual(self.findings(h200, 47, 59), ["a step: 47 ms, expected 59"])
        self.assertEqual(self.findings(h200, 12.5, (20, 30)), ["a step: 12.5 ms, expected 20 to 30"])
        self.assertEqual(self.findings(h200, 36, (20, 30)), [])
        self.assertEqual(self.findings(h200, 71, None) + self.findings({"name": "NVIDIA A100"}, 71, 59), [])

    def time(self, warning="", **result):
        found = {"model": "gpt2-124m", "batch": 32, "seq": 1024, "step_seconds": 0.1, "tokens_per_second": 327680.0,
                 "late_allocations": 0, "mfu_datasheet": 0.4, "mfu_datasheet_causal": 0.37,
                 "memory": {"predicted_bytes": 8, "ledger_peak_bytes": 8}, **result}
        checker, part = self.checker({"name": "NVIDIA H200"}, quick=False), work.Part("step-124m", "", 60)
        checker.run = lambda argv, **_: work.Outcome(argv, 0, json.dumps(found), warning, 0.1)
        steps.time_step(checker, part, steps.MODELS["124m"], 32, steps.AS_IT_IS, {}, 59)
        return part

    def test_a_slow_step_is_no_failure(self):
        part = self.time()
        self.assertEqual(part.status, "passed")
        self.assertEqual(part.findings, ["gpt2-124m, as it is: ms of a step: 100 ms, expected 59"])
        figure = part.figures[0]
        self.assertEqual((figure["wanted"], figure["met"], figure["expected_ms"]), (0.40, False, 59))  # of causal attention

    def test_the_target_is_in_the_causal_counting(self):
        self.assertFalse(self.time(mfu_datasheet=0.41, mfu_datasheet_causal=0.39).figures[0]["met"])
        self.assertTrue(self.time(mfu_datasheet=0.43, mfu_datasheet_causal=0.40).figures[0]["met"])

    def test_remarks_of_the_device_are_findings(self):
        part = self.time("starring: warning: attention: our own kernel runs\nstarring: a note\n", step_seconds=0.059)
        self.assertEqual(part.findings, ["gpt2-124m, as it is: attention: our own kernel runs"])

    def test_memory_that_differs_fails(self):
        part = self.time(memory={"predicted_bytes": 8, "ledger_peak_bytes": 16}, late_allocations=2)
        self.assertEqual([c["name"] for c in part.checks if c["status"] == "failed"],
                         ["gpt2-124m, as it is: memory as predicted, to the byte",
                          "gpt2-124m, as it is: nothing allocated after the first step"])

    def test_the_batch_that_fits(self):
        checker, part = self.checker({"memory_bytes": steps.RESERVE + 20 * 2**30}), work.Part("step-1.5b", "", 60)
        checker.run = lambda argv, **_: work.Outcome(argv, 0, json.dumps(
            {"memory": [{"predicted_bytes": int(argv[argv.index("--batch") + 1]) * 2**30}]}), "", 0.1)
        self.assertEqual(steps.batch_that_fits(checker, part, steps.MODELS["1.5b"]), 16)
        self.assertEqual(part.notes, ["qwen2.5-1.5b: 32 sequences do not fit this device: 16"])

    PEERS = {"seq": 32, "dtype": "bf16", "params": 7, "memory": {"ledger_peak_bytes": 2, "workspace_bytes": 1},
             "peer": {"pytorch": "2.9", "cuda": "13.0", "peak_bytes": 4, "better": "compiled", "ratio": 1.05,
                      "starring": {"tokens_per_second": 105}, "eager": {"tokens_per_second": 50},
                      "compiled": {"tokens_per_second": 100}}}

    def time_peers(self, most, status, errors):
        """The part where `bench step --peer` has room for `most` sequences, and else ends like that."""
        checker, part, asked = self.checker(), work.Part("peers-124m", "", 60), []

        def answer(argv, **_):
            asked.append(int(argv[argv.index("--batch") + 1]))
            self.assertEqual(argv[argv.index("--peer") + 1], sys.executable)
            return work.Outcome(argv, *((0, json.dumps(self.PEERS), "") if asked[-1] <= most else (status, "", errors)), 0.1)
        checker.run = answer
        speed.peers("124m")(checker, part)
        return part, asked

    def test_peers_take_the_batch_that_leaves_room_for_both(self):
        crowded = "starring: error: bench step: --peer python: PyTorch's model failed beside ours; a smaller --batch"
        part, asked = self.time_peers(1, 1, crowded)
        self.assertEqual(asked, [2, 1])
        figure = part.figures[0]
        self.assertEqual((figure["batch"], figure["pytorch"], figure["starring"]["peak_bytes"], figure["ratio"], figure["met"]),
                         (1, {"tokens_per_second": 100, "peak_bytes": 4}, 3, 1.05, False))
        self.assertEqual(part.findings, ["tiny: 1.05 times PyTorch's tokens per second, wanted 1.10"])
        part, asked = self.time_peers(0, 1, crowded)
        self.assertEqual((asked, part.status), ([2, 1], "failed"))

    def test_peers_without_pytorch_are_skipped(self):
        part, asked = self.time_peers(0, 2, "starring: error: bench step: --peer python: PyTorch is not installed for it")
        self.assertEqual((len(asked), [c["status"] for c in part.checks]), (1, ["skipped"]))

    def test_libraries_are_loaded_or_said_to_be_missing(self):
        checker, part = self.checker(), work.Part("facts", "", 60)
        checker.place.libraries = [("libm.so.6", None, "nowhere"), ("libcudnn_graph.so.77", None, "nowhere")]
        facts.libraries(checker, part)
        self.assertEqual([(c["name"], c["status"]) for c in part.checks],
                         [("libm.so.6 is loaded", "passed"), ("libcudnn_graph.so.77 is loaded", "skipped")])
        self.assertEqual(len(part.findings), 1)
        self.assertRegex(part.findings[0], r"libcudnn_graph\.so\.77 is missing: libcudnn_graph\.so\.77: cannot open shared "
                         r"object file.*; attention in 16 bits takes our own kernel without it$")


class Results(Folder):
    """What gpu_check.py makes of programs that fail."""

    def take(self, text, status=0, errors=""):
        part = work.Part("ops", "", 10)
        correct.take_tests(part, "norm", work.Outcome(["norm"], status, text, errors, 1.0))
        return {c["name"]: (c["status"], c.get("why", "")) for c in part.checks}

    def test_tests_that_fail_say_why(self):
        place_of = "[   LINE   ] --- ./a.h:3: error: Failure!\n"
        found = self.take("[       OK ] a\n[  FAILED  ] b\n[  FAILED  ] c\n", 2, "ERROR: element 3: got 1\n[  ERROR   ] --- "
                          + place_of + "[  ERROR   ] --- 0x1 != 0x2\n" + place_of + "[  FAILED  ] 2 test(s), listed below:\n"
                          "[  FAILED  ] b\n[  FAILED  ] c\n")
        self.assertEqual(found, {"norm: a": ("passed", ""), "norm: b": ("failed", "element 3: got 1"),
                                 "norm: c": ("failed", "0x1 != 0x2")})

    def test_a_test_that_finds_no_device_has_failed(self):
        found = self.take("device: skipped: no driver\n[  SKIPPED ] a\n[  SKIPPED ] 1 test(s), listed below:\n")
        self.assertEqual(found, {"norm: a": ("failed", "no driver")})

    def test_crashes_hangs_and_silence(self):
        self.assertEqual(self.take("[       OK ] a\n", -11)["norm: the program"], ("failed", "died of SIGSEGV"))
        self.assertEqual(self.take("[       OK ] a\n", None)["norm: the program"], ("failed", "still running after 1 s"))
        self.assertEqual(self.take("")["norm: the program"], ("failed", "ran no test"))
        self.assertEqual(self.take("[       OK ] a\n", 3, "oh\n")["norm: the program"], ("failed", "oh"))

    def test_unequal_runs_fail(self):
        """A trainer whose zero:2 has another loss in step 2, and whose ps:sync does not run."""
        def train(name, label, *_):
            if label == "ps:sync over shm":
                raise correct.NoRun("failed", "refused")
            r = correct.runs.Run(name, "")
            r.label, r.losses, r.metrics = label, ["1.5", "1.25" if label == "zero:2" else "1.125"], [{"step": 1}, {"step": 2}]
            r.summary = {"weights_hash": "ab", "memory": [{"role": "worker", "rank": 0, "predicted": {"gradient": 8},
                                                           "peak": {"gradient": 8 + 8 * (label == "zero:3")}}]}
            return r
        part = work.Part("topologies", "", 60)
        correct.check_group(types.SimpleNamespace(checker=self.checker(), run=train), part, "fp32", 2)
        failed = {c["name"]: c["why"] for c in part.checks if c["status"] == "failed"}
        self.assertEqual(sorted(failed), ["fp32, 2 ranks: ps:sync over shm", "fp32, 2 ranks: zero:2 = zero:0",
                                          "fp32, 2 ranks: zero:3: memory as predicted, to the byte"])
        self.assertIn("at step 2", failed["fp32, 2 ranks: zero:2 = zero:0"])
        self.assertIn("predicted 8, counted 16", failed["fp32, 2 ranks: zero:3: memory as predicted, to the byte"])
        self.assertEqual(part.status, "failed")

    def test_the_page_shows_targets_and_failures(self):
        timed, peers = work.Part("step-124m", "training steps", 10), work.Part("peers-124m", "PyTorch", 10)
        timed.about = peers.about = {"command": "c", "libraries": {"cudnn": 91300}}
        timed.finished = True
        timed.check("gpt2-124m, as it is", "failed", "no memory")
        timed.finding("slow")
        timed.figure("tiny", way="as it is", batch=2, seq=32, step_seconds=0.002, tokens_per_second=32000.0, mfu_datasheet=0.25,
                     mfu_datasheet_causal=0.24, share_of_matmul=0.5, wanted=0.4, met=False, expected_ms=1.5,
                     memory={"ledger_peak_bytes": 2**30})
        side = {"tokens_per_second": 1000.0, "peak_bytes": 2**31}
        peers.figure("tiny", batch=2, seq=32, starring=side, pytorch=side, ratio=1.2, wanted=1.1, met=True)
        text = page.page({"device": {"name": "G"}, "identity": {"driver": "580.1", "build": "0f"}, "when": "2026-01-02 03:04 UTC",
                          "seconds": 1.0, "host": "h", "versions": {"starring": "r"}, "findings": ["step-124m: slow"],
                          "parts": [timed.document(), peers.document()]})
        self.assertIn("# G, 2026-01-02\n\n    c\n\n", text)
        text = re.sub(" +", " ", text)
        for fact in ("driver 580.1", "cuDNN 91300", "starring r, build 0f"):
            self.assertIn(fact, text)
        self.assertIn("- finding, step-124m: slow\n", text)
        self.assertIn("| training steps | FAILED |", text)
        self.assertIn("| PyTorch | cut short |", text)
        self.assertIn("- FAILED: gpt2-124m, as it is: no memory", text)
        self.assertIn("| tiny | as it is | 2 | 32 | 32,000 | 25.0% | 24.0% | 40.0% | missed | 2.00 | 1.5 | 50.0% | 1.0 |", text)
        self.assertIn("| tiny | 2 | 32 | 1,000 | 1,000 | 1.20 | 1.10 | reached | 2.0 | 2.0 |", text)

    def test_a_program_is_ended_at_its_limit(self):
        outcome = self.checker().run(["/bin/sh", "-c", "echo began; sleep 3600"], limit=3)
        self.assertIsNone(outcome.status)
        self.assertEqual((outcome.text, outcome.verdict), ("began\n", "failed"))
        self.assertIn("still running after", outcome.why())
        self.assertLess(outcome.seconds, 600)  # it was not waited for

    def test_a_program_for_which_the_part_has_no_time_is_skipped(self):
        checker = self.checker(limit=0.5)
        outcome = checker.run(["sleep", "60"])
        self.assertEqual((outcome.verdict, outcome.why()), ("skipped", "no time left"))

    def test_libraries_of_pip_are_found(self):
        packages = self.at("site")
        for name in ("nvidia/cu77/lib/libcublasLt.so.77", "nvidia/cudnn/lib/libcudnn.so.9"):
            os.makedirs(os.path.dirname(os.path.join(packages, name)))
            with open(os.path.join(packages, name), "wb"):
                pass
        with open(self.at("starring"), "wb"):
            pass
        with open(self.at(place.CUDA_SO), "wb") as f:
            f.write(b"\0libcublasLt.so.77\0")
        known, sites = place.cached_libraries, place.site_packages
        place.cached_libraries, place.site_packages = dict, lambda: [packages]
        given = {k: os.environ.pop(k) for k in ("STARRING_CUDA_SO", "LD_LIBRARY_PATH") if k in os.environ}
        try:
            found = place.Place(self.folder)
        finally:
            place.cached_libraries, place.site_packages = known, sites
            os.environ.update(given)
        self.assertEqual(found.libraries[0], ("libcublasLt.so.77", os.path.join(packages, "nvidia/cu77/lib"), "pip's packages"))
        self.assertIn(os.path.join(packages, "nvidia/cu77/lib"), found.env["LD_LIBRARY_PATH"].split(":"))
        self.assertEqual(found.env["STARRING_CUDA_SO"], self.at(place.CUDA_SO))


if __name__ == "__main__":
    unittest.main()
