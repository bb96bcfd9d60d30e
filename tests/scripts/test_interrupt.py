#!/usr/bin/env python3
"""Ctrl-C and SIGTERM: one message, a summary of what was done, weights of the step that all ranks agreed on; and what
`starring summary` says of runs that go on, were killed or failed."""
import json
import os
import random
import select
import signal
import subprocess
import tempfile
import time
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.environ.get("STARRING", os.path.join(TOP, "build", "starring"))
MODEL = {"model_type": "gpt2", "vocab_size": 257, "n_embd": 20, "n_layer": 3, "n_head": 5, "n_positions": 33,
         "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}
SIZE = ["--seq", "16", "--batch", "1", "--threads", "1", "--quiet"]
LIMIT_S = 60  # a hang; far above what anything here takes
FOREVER = "1000000"
ANSWER = "starring: {}: ending after this step; again ends now"


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        with open(self.at("model.json"), "w", encoding="utf-8") as f:
            json.dump(MODEL, f)

    def at(self, *names):
        return os.path.join(self.folder, *names)

    def argv(self, out, *more, steps=FOREVER):
        return [PROGRAM, "train", "--model", "model.json", *SIZE, "--steps", steps, "--out", out, *more]

    def start(self, *argv):
        """The command in a process group of its own, as a shell starts it."""
        p = subprocess.Popen(argv, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             start_new_session=True)
        self.addCleanup(self.end, p)
        return p

    def end(self, p):
        """Nothing that a test started outlives it."""
        if p.poll() is None:
            p.kill()
            p.communicate()
        p.stdout.close()
        p.stderr.close()

    def run_it(self, *argv):
        return subprocess.run(argv, cwd=self.folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    def wait_for_steps(self, p, out, count=2):
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until and p.poll() is None:
            if self.lines(out) >= count:
                return
            time.sleep(0.01)
        p.kill()
        self.fail(f"no step: {p.communicate()}")

    def lines(self, out):
        try:
            with open(self.at(out, "metrics.jsonl"), encoding="utf-8") as f:
                return f.read().count("\n")
        except FileNotFoundError:
            return 0

    def json_of(self, out, name="summary.json"):
        with open(self.at(out, name), encoding="utf-8") as f:
            return json.load(f)

    def state(self, out, status):
        """The document of `starring summary OUT --json`, which ends with this status."""
        p = self.run_it(PROGRAM, "summary", out, "--json")
        self.assertEqual(p.returncode, status, p.stdout + p.stderr)
        return json.loads(p.stdout)


class Interrupted(Case):
    def interrupt(self, number, out, *more):
        """A run to which its terminal's whole group gets the signal after some steps."""
        p = self.start(*self.argv(out, *more))
        self.wait_for_steps(p, out)
        os.killpg(p.pid, number)
        _, err = p.communicate(timeout=LIMIT_S)
        self.assertEqual(p.returncode, 128 + number, err)
        said = [line for line in err.splitlines() if "ended after step" in line]
        self.assertEqual(len(said), 1, err)
        self.answered(number, err)
        self.assertNotIn("error", err)
        summary = self.json_of(out)
        self.assertEqual(summary["state"], "interrupted")
        if "ps:async" in more:  # the job's: worker 0 has done as many of its batches as it came to
            self.assertEqual(summary["steps"], summary["samples_applied"] // summary["train_batch_size"])
        else:
            self.assertEqual(summary["steps"], self.lines(out))
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
            p = self.start(*[word for word in argv if word != "--quiet"])
            self.assertIn("tokens per step", p.stdout.readline())  # the step begins
            os.killpg(p.pid, signal.SIGINT)
            self.assertTrue(select.select([p.stderr], [], [], LIMIT_S)[0], (topology, more))
            first = p.stderr.readline()
            self.assertEqual((first.strip(), p.poll()), (ANSWER.format("Ctrl-C"), None), (topology, more))
            time.sleep(0.7)  # one that comes at once counts as the same
            os.killpg(p.pid, signal.SIGINT)
            _, err = p.communicate(timeout=LIMIT_S)
            self.assertIn(p.returncode, (130, -signal.SIGINT), err)
            self.assertNotIn("ending after", err)

    def kept(self, number, topology, *more):
        """The weights are those of a run of so many steps."""
        more = ["--topology", topology, *more]
        cut = self.interrupt(number, "cut", "--save-on-interrupt", *more)
        self.assertTrue(os.path.exists(self.at("cut", "weights", "model.safetensors")))
        p = self.run_it(*self.argv("whole", *more, steps=str(cut["steps"])))
        self.assertEqual(p.returncode, 0, p.stderr)
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
            p = self.start(*self.argv(out, "--topology", topology, "--workers", "2", "--set",
                                      "parameter_server.deadline_ms=20000"))
            self.wait_for_steps(p, out)
            os.kill(p.pid, signal.SIGTERM)  # the launcher alone; it asks the workers
            _, err = p.communicate(timeout=LIMIT_S)
            self.assertEqual(p.returncode, 143, err)

    def test_before_the_first_step(self):
        p = self.start(*self.argv("cut", "--topology", "ps:sync", "--workers", "2"))
        until = time.monotonic() + LIMIT_S
        while not self.workers_of(p.pid) and time.monotonic() < until:
            time.sleep(0.001)
        os.killpg(p.pid, signal.SIGINT)
        _, err = p.communicate(timeout=LIMIT_S)
        self.assertEqual(p.returncode, 130, err)
        self.answered(signal.SIGINT, err)
        self.assertEqual(err.count("Ctrl-C"), 2, err)
        self.assertEqual(len(err.splitlines()), 2, err)  # the roles leave speaking to their launcher
        p = self.run_it(PROGRAM, "summary", "cut")
        self.assertEqual((p.returncode, p.stderr), (1, ""))
        self.assertIn("state       interrupted", p.stdout)

    def workers_of(self, pid):
        """Process numbers of a launcher's workers."""
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8") as f:
                    parent = int(f.read().rpartition(")")[2].split()[1])
                with open(f"/proc/{name}/cmdline", encoding="utf-8") as f:
                    words = f.read().split("\0")
            except (OSError, ValueError):
                continue
            if parent == pid and "worker" in words:
                found.append(int(name))
        return found

    def test_a_second_one_ends_at_once(self):
        p = self.start(*self.argv("cut", "--topology", "ps:sync", "--workers", "2", "--set", "parameter_server.deadline_ms=300000"))
        self.wait_for_steps(p, "cut")
        workers = self.workers_of(p.pid)
        self.assertEqual(len(workers), 2)
        os.kill(workers[0], signal.SIGSTOP)  # its step would not end before the star's deadline
        until = time.monotonic() + LIMIT_S  # half the deadline is more
        while p.poll() is None and time.monotonic() < until:
            p.send_signal(signal.SIGINT)
            time.sleep(0.05)
        self.assertEqual(p.poll(), 130)
        self.assertEqual(self.workers_of(p.pid), [])
        for worker in workers:
            self.assertFalse(os.path.exists(f"/proc/{worker}"))
        self.assertEqual(self.state("cut", 1)["state"], "interrupted")

    def test_two_at_once_are_one(self):
        """`timeout` sends its signal to the command, and again to the group that both are in."""
        for topology, workers in (("local", "1"), ("zero:1", "2"), ("ps:sync", "2")):
            out = "timeout-" + topology.replace(":", "-")
            p = self.start(*self.argv(out, "--topology", topology, "--workers", workers, "--delay", "0:constant:200"))
            self.wait_for_steps(p, out)
            p.terminate()
            time.sleep(0.02)
            p.terminate()  # in the same step
            _, err = p.communicate(timeout=LIMIT_S)
            self.assertEqual(p.returncode, 143, err)
            self.assertEqual(len([line for line in err.splitlines() if "SIGTERM: ended after step" in line]), 1, err)
            self.answered(signal.SIGTERM, err)
            self.assertEqual(self.state(out, 1)["state"], "interrupted")

    def test_a_killed_role_is_named_once(self):
        for topology in ("ps:sync", "ps:async"):
            out = topology.replace(":", "-")
            p = self.start(*self.argv(out, "--topology", topology, "--workers", "2"))
            self.wait_for_steps(p, out)
            os.kill(self.workers_of(p.pid)[0], signal.SIGKILL)
            _, err = p.communicate(timeout=LIMIT_S)
            self.assertEqual(p.returncode, 1, err)
            self.assertEqual(len(err.splitlines()), 1, err)
            self.assertIn("was killed by signal 9", err)

    def test_a_ring_names_the_cause(self):
        """Not what followed from it on the other ranks, which may be the first to leave."""
        os.mkdir(self.at("r"))
        with open(self.at("r", "weights"), "w", encoding="utf-8") as f:
            f.write("in the way of the directory")
        p = self.run_it(*self.argv("r", "--topology", "zero:2", "--workers", "4", steps="2"))
        self.assertEqual(p.returncode, 1, p.stderr)
        told = self.state("r", 1)
        self.assertEqual(told["state"], "failed")
        self.assertTrue(told["why"].startswith("r/weights"), told["why"])

    def test_a_run_that_fails_says_why(self):
        """A rank of a ring whose loss is infinite from the start; the first rank's words are in state.json."""
        p = self.run_it(*self.argv("r", "--topology", "zero:1", "--workers", "2", "--dtype", "fp32", "--lr", "1e30",
                                   steps="200"))
        self.assertEqual(p.returncode, 1, p.stderr)
        told = self.state("r", 1)
        self.assertEqual(told["state"], "failed")
        self.assertIn("diverged", told["why"])
        self.assertGreater(told["steps"], 0)

    def test_a_ring_of_processes_leaves_its_figures(self):
        """Its ranks have the time to end the step in hand."""
        p = self.start(*self.argv("cut", "--topology", "zero:1", "--workers", "2", "--medium", "shm"))
        self.wait_for_steps(p, "cut")
        os.killpg(p.pid, signal.SIGINT)
        _, err = p.communicate(timeout=LIMIT_S)
        self.assertEqual(p.returncode, 130, err)
        self.assertIn("ended after step", err)
        self.answered(signal.SIGINT, err)
        summary = self.state("cut", 1)
        self.assertEqual(summary["state"], "interrupted")
        self.assertEqual(summary["steps"], self.lines("cut"))
        self.assertEqual(len(self.json_of("cut", "timeline.json")["ranks"]), 2)

    def test_a_ring_of_processes_keeps_its_weights(self):
        self.kept(signal.SIGTERM, "zero:2", "--workers", "2", "--launch", "processes")

    def test_another_mpirun_leaves_no_time(self):
        argv = self.argv("x", "--topology", "zero:0", "--workers", "2", "--save-on-interrupt")
        p = subprocess.run(argv, cwd=self.folder, capture_output=True, text=True, timeout=LIMIT_S, check=False,
                           env={**os.environ, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"})
        self.assertEqual(p.returncode, 2)
        self.assertIn("--save-on-interrupt: mpirun kills", p.stderr)
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
        p = self.start(*self.argv("r"))
        self.wait_for_steps(p, "r")
        before = sorted(os.listdir(self.at("r")))
        told = self.state("r", 3)
        self.assertEqual((told["state"], told["pid"], told["topology"]), ("running", p.pid, "local"))
        self.assertGreaterEqual(told["steps"], 2)
        self.assertIsNotNone(told["loss"]["last"])
        self.assertEqual((told["reports"], told["missing_reports"]), ([], ["worker 0"]))
        self.assertEqual(sorted(os.listdir(self.at("r"))), before)
        again = self.run_it(*self.argv("r", "--force"))
        self.assertEqual(again.returncode, 2)
        self.assertIn(f"process {p.pid}", again.stderr)
        p.kill()
        p.communicate()
        self.assertEqual(self.state("r", 1)["state"], "dead")
        shown = self.run_it(PROGRAM, "summary", "r")
        self.assertEqual(shown.returncode, 1)
        self.assertIn("died: process ", shown.stdout)
        self.assertNotIn("summary.json", os.listdir(self.at("r")))
        again = self.run_it(*self.argv("r", steps="2"))
        self.assertEqual(again.returncode, 2)
        self.assertIn("--force", again.stderr)

    def test_what_is_broken_is_said(self):
        self.assertEqual(self.run_it(*self.argv("r", steps="3")).returncode, 0)
        whole = self.json_of("r")
        with open(self.at("r", "metrics.jsonl"), "a", encoding="utf-8") as f:
            f.write('{"step":4,"lo')
        with open(self.at("r", "summary.json"), "w", encoding="utf-8") as f:
            f.write('{"topology":"lo')
        p = self.run_it(PROGRAM, "summary", "r", "--json")
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertEqual(json.loads(p.stdout), whole)
        self.assertIn("summary.json is not whole", p.stderr)
        self.assertIn("the last line", p.stderr)
        with open(self.at("r", "summary.json"), encoding="utf-8") as f:
            self.assertEqual(f.read(), '{"topology":"lo')  # overwrites nothing
        os.remove(self.at("r", "config.json"))
        p = self.run_it(PROGRAM, "summary", "r")
        self.assertIn("config.json is missing", p.stderr)
        self.assertIn("steps       3", p.stdout)

    def cut(self, name, at):
        """What `summary` says of the run with this file ended after so many bytes; the file is then whole again."""
        with open(self.at("r", name), "rb") as f:
            whole = f.read()
        os.truncate(self.at("r", name), at)
        shown = [self.run_it(PROGRAM, "summary", "r", *more) for more in ((), ("--json",))]
        with open(self.at("r", name), "wb") as f:
            f.write(whole)
        self.assertEqual([p.stderr for p in shown], [shown[0].stderr] * 2)
        self.assertEqual(shown[0].returncode, shown[1].returncode)
        return shown[0], json.loads(shown[1].stdout)

    def test_cut_anywhere(self):
        """What is missing is named, with status 1; what follows from other files is put together again. Errors never end well."""
        self.assertEqual(self.run_it(*self.argv("r", steps="4")).returncode, 0)
        whole, draw = self.json_of("r"), random.Random(11)
        for name in ("config.json", "metrics.jsonl", "summary.json", "timeline.json", "state.json", "ranks/worker-0.json"):
            size = os.path.getsize(self.at("r", name))
            for at in [0, size - 2, *(draw.randrange(size) for _ in range(5))]:
                p, told = self.cut(name, at)
                self.assertEqual(p.returncode, 1 if name in ("config.json", "metrics.jsonl") else 0, (name, at, p.stderr))
                self.assertEqual("error" in p.stderr, p.returncode == 1, (name, at, p.stderr))
                self.assertEqual(told, whole, (name, at))
                if name in ("config.json", "metrics.jsonl"):
                    self.assertIn(f"error: r/{name} is", p.stderr)

    def test_a_star_ended_at_once(self):
        """Two Ctrl-C: its ranks leave no reports. What is there is told, nothing is made up from it, and nothing is written."""
        self.assertEqual(self.run_it(*self.argv("r", "--topology", "ps:sync", "--workers", "2", steps="4")).returncode, 0)
        with open(self.at("r", "ranks", "worker-0.json"), encoding="utf-8") as f:
            report = f.read()
        os.remove(self.at("r", "summary.json"))
        for text in (None, "", report[:-40], "[]"):
            os.remove(self.at("r", "ranks", "worker-0.json"))
            if text is not None:
                with open(self.at("r", "ranks", "worker-0.json"), "w", encoding="utf-8") as f:
                    f.write(text)
            p = self.run_it(PROGRAM, "summary", "r")
            self.assertEqual(p.returncode, 1, p.stdout + p.stderr)
            self.assertIn("no report   worker 0\n", p.stdout)
            self.assertNotIn("nan", p.stdout)
            self.assertFalse(os.path.exists(self.at("r", "summary.json")))
            if text is None:
                with open(self.at("r", "ranks", "worker-0.json"), "w", encoding="utf-8") as f:
                    f.write("")
        with open(self.at("r", "ranks", "worker-0.json"), "w", encoding="utf-8") as f:
            f.write(report)
        self.assertEqual(self.run_it(PROGRAM, "summary", "r").returncode, 0)

    def test_files_of_others(self):
        """Documents of other shapes, and what is no file: said, not printed as nan, not waited for."""
        self.assertEqual(self.run_it(*self.argv("r", steps="3")).returncode, 0)
        whole = self.json_of("r")
        for text in ("[]", "{}", "5", '{"topology":3,"workers":"x","steps":[]}'):
            with open(self.at("r", "summary.json"), "w", encoding="utf-8") as f:
                f.write(text)
            p = self.run_it(PROGRAM, "summary", "r", "--json")
            self.assertEqual((p.returncode, json.loads(p.stdout)), (0, whole), text)
            self.assertIn("summary.json is not whole", p.stderr)
        for text in ('{"state":"running"}', '{"state":"running","pid":1e300,"host":"x","start_ticks":-1}'):
            with open(self.at("r", "state.json"), "w", encoding="utf-8") as f:
                f.write(text)
            self.assertEqual(self.state("r", 0), whole)
        os.remove(self.at("r", "state.json"))
        os.mkfifo(self.at("r", "state.json"))
        self.assertEqual(self.state("r", 0), whole)

    def test_a_complete_run_without_its_table(self):
        self.assertEqual(self.run_it(*self.argv("r", steps="3")).returncode, 0)
        os.remove(self.at("r", "summary.json"))
        with open(self.at("r", "metrics.jsonl"), "w", encoding="utf-8") as f:
            f.write("step,loss\n1,2\n")
        p = self.run_it(PROGRAM, "summary", "r")
        self.assertEqual(p.returncode, 1)
        self.assertIn("metrics.jsonl: line 1 is no JSON object", p.stderr)

    def test_closed_streams(self):
        """What is printed to a stream that the shell closed must not land in the next file that is opened."""
        for i, topology in enumerate((["local"], ["zero:1", "--workers", "2"], ["ps:sync", "--workers", "2"])):
            out = f"r{i}"
            argv = [word for word in self.argv(out, "--topology", *topology, steps="2") if word != "--quiet"]
            p = self.run_it("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *argv)
            self.assertEqual(p.returncode, 0)
            with open(self.at(out, "metrics.jsonl"), encoding="utf-8") as f:
                self.assertEqual([json.loads(line)["step"] for line in f], [1, 2])

    def test_out_is_a_file(self):
        p = self.run_it(*self.argv("model.json", steps="1"))
        self.assertEqual(p.returncode, 2)
        self.assertIn("model.json: is a file", p.stderr)

    def test_no_run(self):
        os.mkdir(self.at("empty"))
        for name, says in (("empty", "no run directory"), ("nothing", "no such directory"), ("model.json", "is a file")):
            p = self.run_it(PROGRAM, "summary", name)
            self.assertEqual((p.returncode, p.stdout), (2, ""))
            self.assertIn(says, p.stderr)

    def test_a_refused_weights_file_leaves_no_directory(self):
        os.mkdir(self.at("m"))
        with open(self.at("m", "config.json"), "w", encoding="utf-8") as f:
            json.dump(MODEL, f)
        with open(self.at("m", "model.safetensors"), "wb") as f:
            f.write(b"no weights")
        argv = [PROGRAM, "train", "--model", "m", *SIZE, "--steps", "1", "--out", "r"]
        for _ in range(2):
            p = self.run_it(*argv)
            self.assertEqual(p.returncode, 2, p.stderr)
            self.assertIn("model.safetensors", p.stderr)
            self.assertFalse(os.path.exists(self.at("r")))

    def test_a_run_without_a_step_is_in_nobodys_way(self):
        # An address that no server can bind to: known only once the roles have started.
        star = ["--topology", "ps:sync", "--workers", "1", "--insecure", "--set",
                "parameter_server.bind=tcp://192.0.2.1:*"]
        p = self.run_it(*self.argv("r", *star))
        self.assertEqual(p.returncode, 1, p.stderr)
        told = self.state("r", 1)
        self.assertEqual((told["state"], told["steps"]), ("failed", 0))
        self.assertIn("server 0", told["why"])
        p = self.run_it(*self.argv("r", steps="2"))
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertEqual(self.state("r", 0)["steps"], 2)

    def test_two_runs_in_one_second(self):
        argv = [PROGRAM, "train", "--model", "model.json", *SIZE, "--steps", "1"]
        both = [self.start(*argv) for _ in range(3)]
        for p in both:
            _, err = p.communicate(timeout=LIMIT_S)
            self.assertEqual(p.returncode, 0, err)
        self.assertEqual(len(os.listdir(self.at("runs"))), 3)
        # With one --out one wins.
        both = [self.start(*self.argv("one", steps="1")) for _ in range(3)]
        ended = sorted((p.communicate(timeout=LIMIT_S), p.returncode)[1] for p in both)
        self.assertEqual(ended, [0, 2, 2])


if __name__ == "__main__":
    unittest.main()
