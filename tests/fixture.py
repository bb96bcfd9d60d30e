"""Shared by the tests of the built program: its path, a folder with a text, runs that end and runs in progress, their processes by role,
and their files.

A test finds this file with: sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")). After it the modules of
experiments/ are found too.
"""
import contextlib
import importlib
import io
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
import unittest
from unittest import mock

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
EXPERIMENTS = os.path.join(TOP, "experiments")
PROGRAM = os.path.abspath(os.environ.get("STARRING", os.path.join(TOP, "build", "starring")))
sys.path.append(EXPERIMENTS)  # behind the standard library, which has a module tokenize too
from drill import processes  # noqa: E402

LIMIT_S = 300  # of a run, or of what a run is waited for: it hangs
TINY = ["--model", "tiny", "--workers", "2", "--threads", "1", "--dtype", "bf16", "--no-weights"]
# Open MPI refuses root, and more ranks than cores, unless it is told. A job's key is the job's own.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "STARRING_JOB_KEY"} | {
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
OWN = ("seconds", "elapsed", "memory_bytes")  # of a step's record: what differs from run to run
JOB_KEY = "0f" * 32  # of roles that a test starts one by one
PARTS = ("data", "forward", "backward", "optimizer", "comm_exposed", "wait", "host")  # of a step's time


def text(lines):
    """A text of so many lines that no two share, which the byte tokenizer takes."""
    return "".join(f"{n} bottles of beer on the wall, {n * n % 97} of them green\n" for n in range(lines))


def folder_for(case, lines=0):
    """A temporary folder that goes with a test, or with a class of tests; with text.txt of so many lines in it."""
    folder = tempfile.TemporaryDirectory(prefix="starring-test-")
    (case.addClassCleanup if isinstance(case, type) else case.addCleanup)(folder.cleanup)
    if lines:
        with open(os.path.join(folder.name, "text.txt"), "w", encoding="utf-8") as f:
            f.write(text(lines))
    return folder.name


def free_port(address="127.0.0.1"):
    with socket.socket() as s:
        s.bind((address, 0))
        return s.getsockname()[1]


def of_hand(words):
    """The environment of PROGRAM words... has besides, where it is a role that people start."""
    role = words and words[0] in ("scheduler", "server", "worker")
    return {"STARRING_JOB_KEY": JOB_KEY} if role and "--insecure" not in words else {}


class Started(subprocess.Popen):
    """A program under way. Its processes are found by a mark in their environment; those that are left end with the test. Its output
    goes to files, so that it waits for no reader: printed() of standard output, said() of standard error."""
    numbers = itertools.count()

    def __init__(self, case, argv, env=None, **how):
        self.case, self.mark = case, f"test-{os.getpid()}-{next(self.numbers)}"
        self.out = argv[argv.index("--out") + 1] if "--out" in argv else None
        self._files = [tempfile.TemporaryFile("a+", encoding="utf-8", errors="replace") for _ in range(2)]  # written at their ends
        how = {"cwd": case.folder, "stdin": subprocess.DEVNULL, "stdout": self._files[0], "stderr": self._files[1]} | how
        super().__init__(argv, env={**ENVIRONMENT, **(env or {}), processes.MARK: self.mark}, **how)
        case.addCleanup(self.end_all)

    def end_all(self):
        """Ends what is left of it, at once."""
        while processes.marked(self.mark):  # one that is being started has its mark a moment later
            processes.end_all(self.mark)
            if self.poll() is None:
                self.wait()
        self.kill()
        self.wait()
        for f in (*self._files, self.stdout, self.stderr):
            if f:
                f.close()

    def _text(self, f):
        # Opened anew: a descriptor shared with the program has one position, which the program's writes move while this reads.
        with open(f"/proc/self/fd/{f.fileno()}", encoding="utf-8", errors="replace") as own:
            return own.read()

    def printed(self):
        return self._text(self._files[0])

    def said(self):
        return self._text(self._files[1])

    # ---------------------------------------------------------------- how far it is
    def until(self, happened, what):
        """Returns what happened() returns once that is true, while the program continues. Looking takes half of a core at most."""
        end = time.monotonic() + LIMIT_S
        while True:
            began, ended = time.monotonic(), self.poll() is not None
            if value := happened():
                return value
            looked = time.monotonic()
            if ended or looked > end:
                self.case.fail(f"{'it ended' if ended else 'too long'} before {what}: {self.printed()}{self.said()}")
            time.sleep(max(0.003, looked - began))

    def behind(self, step):
        """Waits until so many steps are recorded."""
        self.until(lambda: self.case.steps(self.out) >= step, f"step {step}")

    def address(self):
        """Where a scheduler that was started by hand listens."""
        return self.until(lambda: re.search(r"listening on (\S+)\n", self.said()), "it listens")[1]

    # ---------------------------------------------------------------- its processes, of which one that has just died is none
    def left(self):
        """{pid: argv} of all of them that live."""
        return processes.marked(self.mark)

    def roles(self):
        """{"worker 1", "server 0", "scheduler" that was started by hand, "rank 1", "run" of a ring of threads that may be restarted: pid}"""
        return processes.roles(self.mark)

    def find(self, *roles):
        """Their processes, once all are there."""
        def look():
            there = self.roles()
            return [there[role] for role in roles] if set(roles) <= set(there) else None
        return self.until(look, f"there are {roles}")

    def stop(self, *roles):
        return send(signal.SIGSTOP, self.find(*roles))

    def go_on(self, *roles):
        return send(signal.SIGCONT, self.find(*roles))

    def kill_now(self, *roles):
        """At one moment: they stand still before the first one dies."""
        return send(signal.SIGKILL, self.stop(*roles))

    # ---------------------------------------------------------------- its end
    def ends(self, status=0, limit_s=LIMIT_S, settle_s=0):
        """Returns its output, when it has ended with that status (None: any) and, after so many seconds, no process of it is left.

        One that a signal ended has waited for nobody: the kernel ends its children, which takes them a moment."""
        try:
            self.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.case.fail(f"it hangs: {self.printed()}{self.said()}")
        if status is not None:
            self.case.assertEqual(self.returncode, status, self.said())
        end = time.monotonic() + (LIMIT_S if self.returncode < 0 else settle_s)
        while (left := self.left()) and time.monotonic() < end:
            time.sleep(0.01)
        self.case.assertEqual(left, {}, self.said())
        return self.said()


def send(number, pids):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # its launcher may have ended it with the one before
            os.kill(pid, number)
    return pids


class Runs(unittest.TestCase):
    """Tests that run the program in self.folder, and name a run by its directory in it."""
    folder = None
    shared = False  # one folder for all tests of the class
    corpus = 0      # lines of its text.txt

    @classmethod
    def setUpClass(cls):
        if cls.shared:
            cls.folder = folder_for(cls, cls.corpus)

    def setUp(self):
        if not self.shared:
            self.folder = folder_for(self, self.corpus)

    # ---------------------------------------------------------------- files
    def at(self, *names):
        return os.path.join(self.folder, *names)

    def write(self, content, *names):
        os.makedirs(os.path.dirname(self.at(*names)), exist_ok=True)
        with open(self.at(*names), "w", encoding="utf-8") as f:
            f.write(content)
        return self.at(*names)

    def script(self, content, *names):
        """A file that can be started."""
        path = self.write(content, *names)
        os.chmod(path, 0o755)
        return path

    def read(self, *names):
        with open(self.at(*names), encoding="utf-8") as f:
            return f.read()

    def remove(self, *names):
        """A directory with all that is in it, if it is there."""
        shutil.rmtree(self.at(*names), ignore_errors=True)

    def preload(self, source):
        """A library made from this C source, for LD_PRELOAD."""
        path = self.write(source, "preload.c")
        compiler = os.environ.get("CC", "cc").split()[-1]
        subprocess.run([compiler, "-w", "-shared", "-fPIC", "-o", self.at("preload.so"), path, "-ldl"], check=True)
        return self.at("preload.so")

    # ---------------------------------------------------------------- runs
    def run_it(self, *words, status=0, env=None, program=PROGRAM, **how):
        """The ended process of PROGRAM words..., which ends with that status; None: with any. env: what its environment has besides."""
        how = {"cwd": self.folder, "timeout": LIMIT_S, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | how
        if "input" not in how:
            how.setdefault("stdin", subprocess.DEVNULL)
        p = subprocess.run([program, *words], text=True, check=False, env={**ENVIRONMENT, **of_hand(words), **(env or {})}, **how)
        if status is not None:
            self.assertEqual(p.returncode, status, f"{words}\n{p.stderr}")
        return p

    def run_script(self, name, *words, **how):
        """The ended process of experiments/NAME words...; STARRING names the program to it."""
        return Runs.run_it(self, os.path.join(EXPERIMENTS, name), *words, program=sys.executable, **how)

    def call_script(self, name, *words, status=None, env=None):
        """The same in this process, which has loaded the script's libraries already: returncode, stdout and stderr of it."""
        said, errors, before = io.StringIO(), io.StringIO(), os.getcwd()
        os.chdir(self.folder)
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors), \
                    mock.patch.object(sys, "argv", [os.path.join(EXPERIMENTS, name)]), \
                    mock.patch.dict(os.environ, {**ENVIRONMENT, **(env or {})}, clear=True):
                found = importlib.import_module(os.path.splitext(name)[0]).main(list(words))
        except SystemExit as e:
            found = e.code
        finally:
            os.chdir(before)
        if status is not None:
            self.assertEqual(found, status, errors.getvalue())
        return types.SimpleNamespace(returncode=found, stdout=said.getvalue(), stderr=errors.getvalue())

    def refused(self, *words, said, status=2, **how):
        """Returns the output of PROGRAM words..., which is refused with each of these."""
        err = self.run_it(*words, status=status, **how).stderr
        for part in [said] if isinstance(said, str) else said:
            self.assertIn(part, err)
        return err

    def start(self, *words, program=PROGRAM, under=(), env=None, **how):
        """PROGRAM words... under way; under: what starts it."""
        return Started(self, [*under, program, *words], env={**of_hand(words), **(env or {})}, **how)

    def by_hand(self, words, *roles, **how):
        """A star's roles as people start them, one by one: the scheduler with these words, the others with their role and words, and
        numbered in this order."""
        scheduler = self.start("scheduler", *words, **how)
        ranks = [[other[0] for other in roles[:i]].count(role[0]) for i, role in enumerate(roles)]
        return [scheduler, *(self.start(*role, "--rank", str(rank), "--scheduler", scheduler.address(), **how)
                             for role, rank in zip(roles, ranks))]

    # ---------------------------------------------------------------- what a run leaves
    def json(self, *names):
        return json.loads(self.read(*names))

    def lines(self, run, name):
        """The documents of a run's file of JSON lines."""
        return [json.loads(line) for line in self.read(run, name).splitlines()]

    def lines_yet(self, run, name):
        """Those of whole lines of a run under way, which may not have the file yet."""
        try:
            return [json.loads(line) for line in self.read(run, name).splitlines(True) if line.endswith("\n")]
        except OSError:
            return []

    def steps(self, run):
        """How many are recorded yet: whole lines."""
        try:
            return self.read(run, "metrics.jsonl").count("\n")
        except OSError:
            return 0

    def summary(self, run):
        return self.json(run, "summary.json")

    def hash(self, run):
        return self.summary(run)["weights_hash"]

    def curve(self, run):
        """metrics.jsonl without what differs from run to run."""
        return [{k: v for k, v in line.items() if k not in OWN} for line in self.lines(run, "metrics.jsonl")]

    def lives(self, run):
        return [row for row in self.lines_yet(run, "history.jsonl") if row["kind"] == "life"]

    def absences(self, run):
        """Rows of workers that go, and that are back."""
        return [row for row in self.lines_yet(run, "history.jsonl") if row["kind"] != "life"]

    def checkpoints(self, run):
        """The names of its checkpoints, and of whatever else lies there, in the order of their steps."""
        names = os.listdir(self.at(run, "checkpoints")) if os.path.exists(self.at(run, "checkpoints")) else []
        return sorted(names, key=lambda name: int(name.split("-")[1]))

    def events(self, run):
        return self.json(run, "trace.json")["traceEvents"]

    def assert_same_run(self, run, undisturbed, begin=0):
        """The same curve behind the first steps, and the same weights."""
        self.assertEqual(self.curve(run), self.curve(undisturbed)[begin:])
        self.assertIsNotNone(self.hash(undisturbed))
        self.assertEqual(self.hash(run), self.hash(undisturbed))

    def assert_as_predicted(self, summary, about=None):
        """Each rank's memory, to the byte; and what its transport holds, no more than was said."""
        for rank in summary["memory"]:
            self.assertEqual(rank["predicted"], rank["peak"], about)
            self.assertLessEqual(rank["transport_peak_bytes"], rank["transport_bound_bytes"], about)


def thread_names(events):
    """{(pid, thread): its name} of a trace."""
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
