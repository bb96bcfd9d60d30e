"""Collects the results of parts, and runs programs with time limits."""
import os
import re
import signal
import subprocess
import time

import cli

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
NO_TIME = "no time left"


class Part:
    """One part's results. checks: what must hold; figures: what was measured, with targets where there are any;
    findings: figures that are far from what was expected, and whatever else a person should look at.

    changed() is called after each of them, so that all results are on disk before the next program is run."""

    def __init__(self, name, title, limit, changed=lambda: None):
        self.name, self.title, self.limit, self.changed = name, title, limit, changed
        self.checks, self.figures, self.notes, self.findings = [], [], [], []
        self.finished, self.seconds = False, 0.0
        self.about = {}  # further keys of the part in the document: when, command, libraries, ..

    def check(self, name, status, why="", **more):
        self.checks.append({"name": name, "status": status, **({"why": why} if why else {}), **more})
        self.changed()
        return status == PASSED

    def expect(self, name, holds, why=""):
        return self.check(name, PASSED if holds else FAILED, "" if holds else why)

    def figure(self, what, **values):
        self.figures.append({"what": what, **values})
        self.changed()

    def finding(self, text):
        self.findings.append(text)
        self.changed()

    def count(self, status):
        return sum(c["status"] == status for c in self.checks)

    @property
    def status(self):
        if self.count(FAILED):
            return FAILED
        return PASSED if self.count(PASSED) or self.figures else SKIPPED

    @property
    def why(self):
        """The first sentence that explains the status."""
        return next((c.get("why", "") for c in self.checks if c["status"] == self.status and c.get("why")), "")

    def document(self):
        return {"name": self.name, "title": self.title, "status": self.status, "why": self.why, "finished": self.finished,
                **self.about, "seconds": round(self.seconds, 2), "limit_seconds": round(self.limit, 1),
                "findings": self.findings, "checks": self.checks, "figures": self.figures, "notes": self.notes}


def signal_name(number):
    """The name of a signal: "SIGKILL" for 9. Python names only the first and the last real-time signal; others become "SIGRTMIN+N"."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"


class Outcome:
    """The result of a program. status: its exit status, or None if it was killed at its time limit. out_of_time: it was killed because the part's
    time was over, which is no failure of the program."""

    def __init__(self, argv, status, text, errors, seconds, out_of_time=False):
        self.argv, self.status, self.text, self.errors, self.seconds = argv, status, text, errors, seconds
        self.out_of_time = out_of_time

    @property
    def ok(self):
        return self.status == 0

    @property
    def verdict(self):
        return PASSED if self.ok else SKIPPED if self.out_of_time else FAILED

    def why(self):
        """One sentence about a failure: the program's last error, or how it ended."""
        if self.out_of_time:
            return NO_TIME
        said = re.findall(r"^(?:starring: )?(?:error|failed): (.*)$", self.errors, re.M) or \
            [line for line in self.errors.splitlines() if line.strip()][-1:]
        if self.status is None:
            return f"still running after {self.seconds:.0f} s"
        if self.status < 0:
            return f"died of {signal_name(-self.status)}" + (f": {said[-1]}" if said else "")
        return said[-1] if said else f"exit status {self.status}"


def end(process):
    """Ends the program with SIGTERM, so that it can end its ranks; kills all its processes after a grace period. Returns its output."""
    process.terminate()
    try:
        return process.communicate(timeout=5)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()


class Checker:
    """Runs programs for one part after another, each part within its own limit."""

    def __init__(self, place, out, options):
        self.place, self.out, self.options = place, out, options
        self.facts = {}  # the device's properties
        self.part, self.part_ends = "start", time.monotonic() + 60
        self.logs = 0

    def left(self):
        """The seconds that the current part has left."""
        return self.part_ends - time.monotonic()

    def begin(self, part):
        self.part, self.part_ends, self.logs = part.name, time.monotonic() + part.limit, 0

    def run(self, argv, env=None, limit=None):
        """A program in the top folder, ended with its children at the limit or when the part's time is over."""
        began = time.monotonic()
        left = max(0.1, self.left())
        limit = min(left, limit or left)
        p = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             errors="replace", cwd=self.place.top, env={**self.place.env, **(env or {})},
                             start_new_session=True, preexec_fn=cli.dies_with_us(signal.SIGTERM))
        try:
            text, errors = p.communicate(timeout=limit)
            status = p.returncode
        except subprocess.TimeoutExpired:
            text, errors = end(p)
            status = None
        except BaseException:
            end(p)
            raise
        outcome = Outcome(argv, status, text, errors, time.monotonic() - began, status is None and limit >= left)
        self.log(outcome)
        return outcome

    def log(self, outcome):
        self.logs += 1
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", os.path.basename(outcome.argv[0]))
        folder = os.path.join(self.out, "logs")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, f"{self.part}-{self.logs:03d}-{name}.txt"), "w", encoding="utf-8") as f:
            f.write(f"$ {' '.join(outcome.argv)}\n# status {outcome.status}, {outcome.seconds:.2f} s\n{outcome.text}"
                    + (f"\n# standard error\n{outcome.errors}" if outcome.errors else ""))

    def starring(self, *argv, env=None, limit=None):
        """Runs `starring` with these arguments."""
        return self.run([self.place.program, *[str(a) for a in argv]], env=env, limit=limit)
