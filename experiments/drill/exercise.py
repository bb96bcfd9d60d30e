"""Runs one exercise: a run, one or two kills, and the checks afterwards."""
import os
import random
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field

import cli

from . import jobs, moments, processes

RESTARTS = 6
FROZEN_SHARE, TWO_SHARE, AGAIN_SHARE, LAUNCHER_SHARE = 0.06, 0.15, 0.15, 0.08
NOBODY = "nobody"  # Result.how of a run without kills: a process that is declared dead was alive
SETTLE_S = 5  # the time in which processes and shared memory of a killed run may disappear by themselves


@dataclass
class Result:
    """One exercise and its outcome."""
    number: int
    job: str
    victims: list
    moment: str
    how: str  # "killed", "killed twice", "frozen", "launcher" (it is killed, and the run resumed by hand), NOBODY
    hit: bool = False  # a process was killed or frozen while the run was active
    wrong: list = field(default_factory=list)  # sentences on what went wrong; empty: the exercise has passed
    to_next_s: float = None  # from the kill to the next completed step
    steps_again: int = None  # steps that were repeated after the kill
    seconds: float = None


def draw_result(number, job, seed):
    """Draws the victims and the time of the kill, which depend only on the seed and the exercise's number. Returns (Result, generator)."""
    draw = random.Random(f"{seed}/{number}")
    star = len(job.victims) > 3
    count = 2 if star and draw.random() < TWO_SHARE else 1
    victims = draw.sample(job.victims, count)
    how = "killed"
    if job.victims != ["run"] and draw.random() < LAUNCHER_SHARE:
        how = "launcher"
    elif star and count == 1 and draw.random() < FROZEN_SHARE:
        how = "frozen"
    elif draw.random() < AGAIN_SHARE:
        how = "killed twice"
    return Result(number, job.name, victims, draw.choice(list(moments.MOMENTS)), how), draw


class Exercise:
    """A run whose processes are killed."""
    next_step_s = jobs.LIMIT_S  # the time limit for the first step after a kill

    def __init__(self, program, config, job, result, directory):
        self.result, self.job, self.directory = result, job, directory
        self.out, self.mark = os.path.join(directory, "run"), f"{os.getpid()}-{result.number}"
        self.argv = jobs.command(program, config, job, self.out, RESTARTS)
        self.process = None

    def start(self, argv):
        environment = dict(os.environ, **{processes.MARK: self.mark})
        log = os.path.join(self.directory, "output.txt")
        with open(log, "ab") as f:
            f.write((" ".join(argv) + "\n").encode())
            f.flush()
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=f, stderr=subprocess.STDOUT, env=environment,
                                            preexec_fn=cli.dies_with_us())

    def alive(self):
        return self.process.poll() is None

    def signal_victims(self, number):
        """Sends the signal to all living victims. Returns whether there was one."""
        there = processes.roles(self.mark)
        return any([processes.send(there[v], number) for v in self.result.victims if v in there])

    def await_victims(self):
        """Waits for victims that have not started yet; gives up if the job ends."""
        until = time.monotonic() + 2
        while self.alive() and time.monotonic() < until and not set(self.result.victims) <= set(processes.roles(self.mark)):
            time.sleep(moments.LOOK_S)

    def measure(self, died, step, before):
        """Measures from the kill to the next completed step: metrics.jsonl is cut to the checkpoint's step and grows again. before:
        {victim: pid}."""
        moments.wait(lambda: all(processes.roles(self.mark).get(v) not in (None, pid) for v, pid in before.items()), self.alive)
        path, cut_to = os.path.join(self.out, "metrics.jsonl"), None
        while self.alive() and time.monotonic() - died < self.next_step_s:
            try:
                now = os.path.getsize(path)
            except OSError:
                now = 0
            reached = moments.last_step(self.out) if cut_to is not None and now > cut_to else 0
            if reached:
                self.result.to_next_s = time.monotonic() - died
                self.result.steps_again = max(0, step + 1 - reached)
                return
            cut_to = now if cut_to is None else min(cut_to, now)
            time.sleep(moments.LOOK_S)

    def deaths(self, draw):
        r = self.result
        if r.how == NOBODY:
            return
        if not moments.MOMENTS[r.moment](self.out, self.alive, draw):
            return
        if r.how != "launcher":
            self.await_victims()
        there = processes.roles(self.mark)
        before = {v: there[v] for v in r.victims if v in there}
        step, died = moments.last_step(self.out), time.monotonic()
        if r.how == "launcher":
            r.hit = self.alive()
            self.process.kill()
            self.process.wait()
            self.start(self.argv + ["--resume", "latest"])
            self.measure(died, step, before)
            return
        r.hit = self.signal_victims(signal.SIGSTOP if r.how == "frozen" else signal.SIGKILL)
        if r.hit and r.how == "killed twice":
            moments.in_restore(self.out, self.alive, draw)
            self.signal_victims(signal.SIGKILL)
        if r.hit:
            self.measure(died, step, before)

    def finish(self, began):
        try:
            status = self.process.wait(timeout=max(1, jobs.LIMIT_S - (time.monotonic() - began)))
        except subprocess.TimeoutExpired:
            self.result.wrong.append(f"it hung: still running after {jobs.LIMIT_S} s")
            return
        if status != 0:
            with open(os.path.join(self.directory, "output.txt"), encoding="utf-8", errors="replace") as f:
                said = f.read().splitlines()[-5:]
            self.result.wrong.append(f"exit status {status}: " + " | ".join(said))

    def check_left(self, segments):
        """Checks that no process, shared memory or unfinished checkpoint of the run is left."""
        until, mpi = time.monotonic() + SETTLE_S, "mpi" in self.job.flags
        shared = {name for name in processes.segments() - segments if processes.is_of_a_run(name, mpi)}
        while (processes.marked(self.mark) or shared) and time.monotonic() < until:
            time.sleep(0.05)
            shared &= processes.segments()
        left = processes.marked(self.mark)
        self.result.wrong += [f"left behind: process {pid}: {' '.join(argv)[:120]}" for pid, argv in left.items()]
        processes.end_all(self.mark)
        self.result.wrong += [f"left behind: {processes.SHARED}/{name}" for name in sorted(shared & processes.segments())]
        self.result.wrong += [f"left behind: {name}" for name in moments.partials(self.out)]

    def check_hash(self):
        got, steps = jobs.hash_of(self.out)
        if steps != jobs.STEPS:
            self.result.wrong.append(f"{steps} steps instead of {jobs.STEPS}")
        elif self.job.equal and got != self.job.reference["weights_hash"]:
            self.result.wrong.append(f"the last weights are {got} instead of {self.job.reference['weights_hash']}")

    def run(self, draw):
        began, segments = time.monotonic(), processes.segments()
        os.makedirs(self.directory, exist_ok=True)
        try:
            self.start(self.argv)
            self.deaths(draw)
            self.finish(began)
        finally:
            if self.alive():
                self.process.kill()
                self.process.wait()
        self.check_left(segments)
        restarts = len(moments.starts(self.out)) - 1
        if self.result.how == NOBODY and restarts > 0:
            self.result.wrong.append(f"the run restarted {restarts} times, although no process had been killed")
        if not self.result.wrong:
            self.check_hash()
        self.result.seconds = time.monotonic() - began
        if not self.result.wrong:
            shutil.rmtree(self.directory)
        return self.result


def exercise(program, config, job, number, place, spared=False):
    """Runs one exercise and returns its Result. place: (seed, directory of the drill). spared: nothing is killed."""
    seed, directory = place
    result, draw = draw_result(number, job, seed)
    if spared:
        result = Result(number, job.name, [], "no moment", NOBODY)
    return Exercise(program, config, job, result, os.path.join(directory, f"{number:04d}")).run(draw)


def undisturbed(program, config, job, directory):
    """Trains the job without kills, checkpoints or message faults, and stores its final hash, with which the drilled runs must agree."""
    out = os.path.join(directory, "undisturbed-" + job.name.replace(":", "").replace(", ", "-").replace(" ", "-"))
    argv = jobs.command(program, config, job, out, 0)
    p = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=jobs.LIMIT_S, check=False)
    if p.returncode:
        raise jobs.DrillError(f"{job.name}: the undisturbed run failed: {' '.join(argv)}\n{p.stderr}")
    job.reference["weights_hash"], steps = jobs.hash_of(out)
    if steps != jobs.STEPS or not job.reference["weights_hash"]:
        raise jobs.DrillError(f"{job.name}: the undisturbed run left no hash in {out}")
    shutil.rmtree(out)
