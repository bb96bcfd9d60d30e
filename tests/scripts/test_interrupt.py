#!/usr/bin/env python3
"""Ctrl-C and SIGTERM: one message, a summary of what was done, weights of the step that all ranks agreed on; and what
`starring summary` says of runs that go on, were killed or failed."""
import json
import os
import random
import signal
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import LIMIT_S, Runs, send

MODEL = {"model_type": "gpt2", "vocab_size": 257, "n_embd": 20, "n_layer": 3, "n_head": 5, "n_positions": 33,
         "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}
SIZE = ["--seq", "16", "--batch", "1", "--threads", "1", "--quiet"]
FOREVER = "1000000"
ANSWER = "starring: {}: ending after this step; again ends now"


class Case(Runs):
    def setUp(self):
        super().setUp()
        self.write(json.dumps(MODEL), "model.json")

    def argv(self, out, *more, steps=FOREVER):
        return ["train", "--model", "model.json", *SIZE, "--steps", steps, "--out", out, *more]

    def begin(self, *argv):
        """The command in a process group of its own, as a shell starts it."""
        return self.start(*argv, start_new_session=True)

    def begun(self, out, *more):
        """A run that has made some steps."""
        p = self.begin(*self.argv(out, *more))
        p.behind(2)
        return p

    def state(self, out, status):
        """The document of `starring summary OUT --json`, which ends with this status."""
        return json.loads(self.run_it("summary", out, "--json", status=status).stdout)


class Interrupted(Case):
    def interrupt(self, number, out, *more):
        """A run to which its terminal's whole group gets the signal after some steps."""
        p = self.begun(out, *more)
        os.killpg(p.pid, number)
        err = p.ends(128 + number)
        said = [line for line in err.splitlines() if "ended after step" in line]
        self.assertEqual(len(said), 1, err)
        self.answered(number, err)
        self.assertNotIn("error", err)
        summary = self.summary(out)
        self.assertEqual(summary["state"], "interrupted")
        if "ps:async" in more:  # the job's: worker 0 has done as many of its batches as it came to
            self.assertEqual(summary["steps"], summary["samples_applied"] // summary["train_batch_size"])
        else:
            self.assertEqual(summary["steps"], self.steps(out))
        self.assertEqual(summary["steps_planned"], int(FOREVER))
        self.assertNotIn("missing_reports", summary)
        self.assertIn(f"after step {summary['steps']} of", said[0])
        self.assertEqual(self.state(out, 1), summary)
        return summary

    def answered(self, number, err):
        """Once for the job, and before anything else."""
        words = ANSWER.format("Ctrl-C" if number == signal.SIGINT else "SIGTERM")
        self.assertEqual(err.splitlines()[0], words, err)
        self.assertEqual(err.count("ending after this step"), 1, err)

    def test_an_answer_at_once(self):
        """In a step that takes longer than anybody's patience; asked again, it ends there."""
        for topology, more in (("local", []), ("local", ["--restart", "1", "--checkpoint-every", "1"]), ("zero:1", ["--workers", "2"]),
                               ("zero:1", ["--workers", "2", "--launch", "threads"]), ("ps:sync", ["--workers", "2", "--servers", "2"])):
            argv = self.argv("cut", "--force", "--topology", topology, *more, "--delay", "0:constant:600000", "--set", "gradient_clipping=1")
            p = self.begin(*[word for word in argv if word != "--quiet"])
            p.until(lambda p=p: "tokens per step" in p.printed(), "the step begins")
            os.killpg(p.pid, signal.SIGINT)
            p.until(lambda p=p: "\n" in p.said(), f"an answer of {topology} {more}")
            self.assertEqual((p.said().strip(), p.poll()), (ANSWER.format("Ctrl-C"), None), (topology, more))
            time.sleep(0.7)  # one that comes at once counts as the same
            os.killpg(p.pid, signal.SIGINT)
            err = p.ends(status=None)
            self.assertIn(p.returncode, (130, -signal.SIGINT), err)
            self.assertEqual(err.count("ending after"), 1, err)

    def kept(self, number, topology, *more):
        """The weights are those of a run of so many steps."""
        more = ["--topology", topology, *more]
        cut = self.interrupt(number, "cut", "--save-on-interrupt", *more)
        self.assertTrue(os.path.exists(self.at("cut", "weights", "model.safetensors")))
        self.run_it(*self.argv("whole", *more, steps=str(cut["steps"])))
        whole = self.state("whole", 0)
        self.assertEqual(whole["state"], "complete")
        self.assertEqual(cut["weights_hash"], whole["weights_hash"])
        self.assertEqual(cut["loss"], whole["loss"])

    def test_local_keeps_its_weights(self):
        self.kept(signal.SIGINT, "local")

    def test_ring_keeps_its_weights(self):
        self.kept(signal.SIGINT, "zero:3", "--workers", "3")

    def test_star_keeps_its_weights(self):
        self.kept(signal.SIGTERM, "ps:sync", "--workers", "2", "--servers", "2")

    def test_weights_are_not_kept_unasked(self):
        summary = self.interrupt(signal.SIGTERM, "cut", "--topology", "zero:1", "--workers", "2")
        self.assertIsNone(summary["weights_hash"])
        self.assertFalse(os.path.exists(self.at("cut", "weights")))

    def test_asynchronous_workers_leave_together(self):
        # Evaluations are barriers: a worker that left early must not be waited for there.
        for every in ("0", "7"):
            summary = self.interrupt(signal.SIGINT, "cut" + every, "--save-on-interrupt", "--topology", "ps:async",
                                     "--workers", "3", "--set", "eval_every=" + every, "--set", "eval_batches=1")
            self.assertTrue(summary["weights_hash"])

    def test_one_worker_alone_is_asked(self):
        """Its word reaches the others: synchronous ones with the step, asynchronous ones with heartbeats."""
        for topology in ("ps:sync", "ps:async"):
            out = topology.replace(":", "-")
            p = self.begun(out, "--topology", topology, "--workers", "2", "--set", "parameter_server.deadline_ms=20000")
            p.terminate()  # the launcher alone; it asks the workers
            p.ends(143)

    def test_before_the_first_step(self):
        p = self.begin(*self.argv("cut", "--topology", "ps:sync", "--workers", "2"))
        p.until(lambda: any("worker" in argv for argv in p.left().values()), "a worker")
        os.killpg(p.pid, signal.SIGINT)
        err = p.ends(130)
        self.answered(signal.SIGINT, err)
        self.assertEqual(err.count("Ctrl-C"), 2, err)
        self.assertEqual(len(err.splitlines()), 2, err)  # the roles leave speaking to their launcher
        p = self.run_it("summary", "cut", status=1)
        self.assertEqual(p.stderr, "")
        self.assertIn("state       interrupted", p.stdout)

    def test_a_second_one_ends_at_once(self):
        p = self.begun("cut", "--topology", "ps:sync", "--workers", "2", "--set", f"parameter_server.deadline_ms={4000 * LIMIT_S}")
        workers = p.find("worker 0", "worker 1")
        send(signal.SIGSTOP, workers[:1])  # its step would not end before the star's deadline
        until = time.monotonic() + LIMIT_S  # half the deadline is more
        while p.poll() is None and time.monotonic() < until:
            p.send_signal(signal.SIGINT)
            time.sleep(0.05)
        self.assertEqual(p.poll(), 130)
        self.assertEqual(p.left(), {})
        for worker in workers:
            self.assertFalse(os.path.exists(f"/proc/{worker}"))
        self.assertEqual(self.state("cut", 1)["state"], "interrupted")

    def test_two_at_once_are_one(self):
        """`timeout` sends its signal to the command, and again to the group that both are in."""
        for topology, workers in (("local", "1"), ("zero:1", "2"), ("ps:sync", "2")):
            out = "timeout-" + topology.replace(":", "-")
            p = self.begun(out, "--topology", topology, "--workers", workers, "--delay", "0:constant:200")
            p.terminate()
            time.sleep(0.02)
            p.terminate()  # in the same step
            err = p.ends(143)
            self.assertEqual(len([line for line in err.splitlines() if "SIGTERM: ended after step" in line]), 1, err)
            self.answered(signal.SIGTERM, err)
            self.assertEqual(self.state(out, 1)["state"], "interrupted")

    def test_a_killed_role_is_named_once(self):
        for topology in ("ps:sync", "ps:async"):
            out = topology.replace(":", "-")
            p = self.begun(out, "--topology", topology, "--workers", "2")
            p.kill_now("worker 0")
            who, cost = p.ends(1).splitlines()
            self.assertRegex(who, "worker 0 .* was killed by signal 9")
            self.assertRegex(cost, f"{out} has no checkpoint: the .* lost: --checkpoint-every K")

    def test_a_ring_names_the_cause(self):
        """Not what followed from it on the other ranks, which may be the first to leave."""
        self.write("in the way of the directory", "r", "weights")
        self.run_it(*self.argv("r", "--topology", "zero:2", "--workers", "4", steps="2"), status=1)
        told = self.state("r", 1)
        self.assertEqual(told["state"], "failed")
        self.assertTrue(told["why"].startswith("r/weights"), told["why"])

    def test_a_run_that_fails_says_why(self):
        """A rank of a ring whose loss is infinite from the start; the first rank's words are in state.json."""
        self.run_it(*self.argv("r", "--topology", "zero:1", "--workers", "2", "--dtype", "fp32", "--lr", "1e30", steps="200"), status=1)
        told = self.state("r", 1)
        self.assertEqual(told["state"], "failed")
        self.assertIn("diverged", told["why"])
        self.assertGreater(told["steps"], 0)

    def test_a_ring_of_processes_leaves_its_figures(self):
        """Its ranks have the time to end the step in hand."""
        p = self.begun("cut", "--topology", "zero:1", "--workers", "2", "--medium", "shm")
        os.killpg(p.pid, signal.SIGINT)
        err = p.ends(130)
        self.assertIn("ended after step", err)
        self.answered(signal.SIGINT, err)
        summary = self.state("cut", 1)
        self.assertEqual(summary["state"], "interrupted")
        self.assertEqual(summary["steps"], self.steps("cut"))
        self.assertEqual({e["pid"] for e in self.events("cut") if e.get("cat") == "step"}, {0, 1})

    def test_a_ring_of_processes_keeps_its_weights(self):
        self.kept(signal.SIGTERM, "zero:2", "--workers", "2", "--launch", "processes")

    def test_another_mpirun_leaves_no_time(self):
        self.refused(*self.argv("x", "--topology", "zero:0", "--workers", "2", "--save-on-interrupt"), said="--save-on-interrupt: mpirun kills",
                     env={"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"})
        self.assertFalse(os.path.exists(self.at("x")))


class Progress(Case):
    def test_each_line_says_how_long(self):
        argv = self.argv("r", "--set", "steps_per_print=1", steps="4")
        p = self.run_it(*[word for word in argv if word != "--quiet"])
        lines = [line for line in p.stdout.splitlines() if "tok/s" in line]
        self.assertEqual(len(lines), 4, p.stdout)
        for line in lines[:-1]:
            self.assertRegex(line, r"  \d+:\d\d left")
        self.assertNotIn("left", lines[-1])


class Summary(Case):
    def test_running_and_dead(self):
        p = self.begun("r")
        before = sorted(os.listdir(self.at("r")))
        told = self.state("r", 3)
        self.assertEqual((told["state"], told["pid"], told["topology"]), ("running", p.pid, "local"))
        self.assertGreaterEqual(told["steps"], 2)
        self.assertIsNotNone(told["loss"]["last"])
        self.assertEqual((told["reports"], told["missing_reports"]), ([], ["worker 0"]))
        self.assertEqual(sorted(os.listdir(self.at("r"))), before)
        self.refused(*self.argv("r", "--force"), said=f"process {p.pid}")
        p.kill()
        p.wait()
        self.assertEqual(self.state("r", 1)["state"], "dead")
        self.assertIn("died: process ", self.run_it("summary", "r", status=1).stdout)
        self.assertNotIn("summary.json", os.listdir(self.at("r")))
        self.refused(*self.argv("r", steps="2"), said="--force")

    def test_what_is_broken_is_said(self):
        self.run_it(*self.argv("r", steps="3"))
        whole = self.summary("r")
        with open(self.at("r", "metrics.jsonl"), "a", encoding="utf-8") as f:
            f.write('{"step":4,"lo')
        self.write('{"topology":"lo', "r", "summary.json")
        p = self.run_it("summary", "r", "--json")
        self.assertEqual(json.loads(p.stdout), whole)
        self.assertIn("summary.json is not whole", p.stderr)
        self.assertIn("the last line", p.stderr)
        self.assertEqual(self.read("r", "summary.json"), '{"topology":"lo')  # overwrites nothing
        os.remove(self.at("r", "config.json"))
        p = self.run_it("summary", "r", status=None)
        self.assertIn("config.json is missing", p.stderr)
        self.assertIn("steps       3", p.stdout)

    def cut(self, name, at):
        """The output of `summary` for the run with this file cut after so many bytes; the file is then restored."""
        with open(self.at("r", name), "rb") as f:
            whole = f.read()
        os.truncate(self.at("r", name), at)
        shown = [self.run_it("summary", "r", *more, status=None) for more in ((), ("--json",))]
        with open(self.at("r", name), "wb") as f:
            f.write(whole)
        self.assertEqual([p.stderr for p in shown], [shown[0].stderr] * 2)
        self.assertEqual(shown[0].returncode, shown[1].returncode)
        return shown[0], json.loads(shown[1].stdout)

    def test_cut_anywhere(self):
        """A missing file is named, with status 1; figures that follow from other files are computed again. Errors never end well."""
        self.run_it(*self.argv("r", steps="4"))
        whole, draw = self.summary("r"), random.Random(11)
        for name in ("config.json", "metrics.jsonl", "summary.json", "trace.json", "state.json", "ranks/worker-0.json"):
            size = os.path.getsize(self.at("r", name))
            for at in [0, size - 2, *(draw.randrange(size) for _ in range(5))]:
                p, told = self.cut(name, at)
                self.assertEqual(p.returncode, 1 if name in ("config.json", "metrics.jsonl") else 0, (name, at, p.stderr))
                self.assertEqual("error" in p.stderr, p.returncode == 1, (name, at, p.stderr))
                self.assertEqual(told, whole, (name, at))
                if name in ("config.json", "metrics.jsonl"):
                    self.assertIn(f"error: r/{name} is", p.stderr)

    def test_a_star_ended_at_once(self):
        """Two Ctrl-C: its ranks leave no reports. Existing files are described, nothing is made up from them, and nothing is written."""
        self.run_it(*self.argv("r", "--topology", "ps:sync", "--workers", "2", steps="4"))
        report = self.read("r", "ranks", "worker-0.json")
        os.remove(self.at("r", "summary.json"))
        for text in (None, "", report[:-40], "[]"):
            if text is None:
                os.remove(self.at("r", "ranks", "worker-0.json"))
            else:
                self.write(text, "r", "ranks", "worker-0.json")
            p = self.run_it("summary", "r", status=1)
            self.assertIn("no report   worker 0\n", p.stdout)
            self.assertNotIn("nan", p.stdout)
            self.assertFalse(os.path.exists(self.at("r", "summary.json")))
        self.write(report, "r", "ranks", "worker-0.json")
        self.run_it("summary", "r")

    def test_files_of_others(self):
        """Documents of other shapes, and what is no file: said, not printed as nan, not waited for."""
        self.run_it(*self.argv("r", steps="3"))
        whole = self.summary("r")
        for text in ("[]", "{}", "5", '{"topology":3,"workers":"x","steps":[]}'):
            self.write(text, "r", "summary.json")
            p = self.run_it("summary", "r", "--json")
            self.assertEqual(json.loads(p.stdout), whole, text)
            self.assertIn("summary.json is not whole", p.stderr)
        for text in ('{"state":"running"}', '{"state":"running","pid":1e300,"host":"x","start_ticks":-1}'):
            self.write(text, "r", "state.json")
            self.assertEqual(self.state("r", 0), whole)
        os.remove(self.at("r", "state.json"))
        os.mkfifo(self.at("r", "state.json"))
        self.assertEqual(self.state("r", 0), whole)

    def test_a_complete_run_without_its_table(self):
        self.run_it(*self.argv("r", steps="3"))
        os.remove(self.at("r", "summary.json"))
        self.write("step,loss\n1,2\n", "r", "metrics.jsonl")
        self.refused("summary", "r", said="metrics.jsonl: line 1 is no JSON object", status=1)

    def test_closed_streams(self):
        """Output to a stream that the shell closed must not go into the next file that is opened."""
        for i, topology in enumerate((["local"], ["zero:1", "--workers", "2"], ["ps:sync", "--workers", "2"])):
            out = f"r{i}"
            argv = [word for word in self.argv(out, "--topology", *topology, steps="2") if word != "--quiet"]
            self.start(*argv, under=("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh")).ends()
            self.assertEqual([line["step"] for line in self.curve(out)], [1, 2])

    def test_out_is_a_file(self):
        self.refused(*self.argv("model.json", steps="1"), said="model.json: is a file")

    def test_no_run(self):
        os.mkdir(self.at("empty"))
        for name, says in (("empty", "no run directory"), ("nothing", "no such directory"), ("model.json", "is a file")):
            p = self.run_it("summary", name, status=2)
            self.assertEqual(p.stdout, "")
            self.assertIn(says, p.stderr)

    def test_a_refused_weights_file_leaves_no_directory(self):
        self.write(json.dumps(MODEL), "m", "config.json")
        self.write("no weights", "m", "model.safetensors")
        for _ in range(2):
            self.refused("train", "--model", "m", *SIZE, "--steps", "1", "--out", "r", said="model.safetensors")
            self.assertFalse(os.path.exists(self.at("r")))

    def test_a_run_without_a_step_is_in_nobodys_way(self):
        # An address that no server can bind to: known only once the roles have started.
        star = ["--topology", "ps:sync", "--workers", "1", "--insecure", "--set",
                "parameter_server.bind=tcp://192.0.2.1:*"]
        self.run_it(*self.argv("r", *star), status=1)
        told = self.state("r", 1)
        self.assertEqual((told["state"], told["steps"]), ("failed", 0))
        self.assertIn("server 0", told["why"])
        self.run_it(*self.argv("r", steps="2"))
        self.assertEqual(self.state("r", 0)["steps"], 2)

    def test_two_runs_in_one_second(self):
        for p in [self.start("train", "--model", "model.json", *SIZE, "--steps", "1") for _ in range(3)]:
            p.ends()
        self.assertEqual(len(os.listdir(self.at("runs"))), 3)
        # With one --out one wins.
        ended = [self.start(*self.argv("one", steps="1")) for _ in range(3)]
        for p in ended:
            p.ends(status=None)
        self.assertEqual(sorted(p.returncode for p in ended), [0, 2, 2])


if __name__ == "__main__":
    unittest.main()
