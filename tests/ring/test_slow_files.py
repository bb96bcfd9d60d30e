#!/usr/bin/env python3
"""A ring's rank whose main thread stands in a file for longer than the deadline is slow, and not dead: the others wait for
it, whatever file it is and whenever, and the weights are those of an undisturbed run."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.environ.get("STARRING", os.path.join(TOP, "build", "starring"))
sys.path.insert(0, os.path.join(TOP, "experiments"))
from drill import people  # noqa: E402

LIMIT_S = 180
DEADLINE_S = 2
SLOW_S = 3.5 * DEADLINE_S
SMALL = ["--model", "tiny", "--seq", "16", "--batch", "1", "--threads", "1", "--steps", "8", "--data", "text.txt", "--workers", "2",
         "--quiet", "--set", "eval_batches=1", "--set", f"parameter_server.deadline_ms={DEADLINE_S * 1000}", "--set",
         "parameter_server.heartbeat_ms=100"]
# Loaded into the program: a process's first write to, or opening of, a file whose path has SLOW_FILE in it takes SLOW_S seconds;
# where SLOW_RANK is given, of the rank of that number.
DISK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int times;

static void take_time(const char *path) {
    const char *slow = getenv("SLOW_FILE"), *rank = getenv("SLOW_RANK"), *own = getenv("STARRING_RANK");
    if (!slow || !strstr(path, slow) || (rank && (!own || strcmp(own, rank))) || ++times > 1) return;
    struct timespec t = {atoi(getenv("SLOW_S")), 0};
    while (nanosleep(&t, &t)) continue;
}

static void look(int fd) {
    char link[64], path[512];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = 0;
    take_time(path);
}

int open(const char *path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    int mode = va_arg(args, int);
    va_end(args);
    take_time(path);
    return ((int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open"))(path, flags, mode);
}

FILE *fopen(const char *path, const char *mode) {
    take_time(path);
    return ((FILE *(*)(const char *, const char *))dlsym(RTLD_NEXT, "fopen"))(path, mode);
}

ssize_t write(int fd, const void *data, size_t bytes) {
    look(fd);
    return syscall(SYS_write, fd, data, bytes);
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at) {
    look(fd);
    return syscall(SYS_pwrite64, fd, data, bytes, at);
}
"""


class SlowFiles(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="starring-slow-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        with open(cls.at("text.txt"), "w", encoding="utf-8") as f:
            f.write("".join(f"{n} bottles of beer on the wall, {n * n % 97} of them green\n" for n in range(1200)))
        with open(cls.at("disk.c"), "w", encoding="utf-8") as f:
            f.write(DISK)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", cls.at("disk.so"), cls.at("disk.c")], check=True)
        cls.undisturbed, _ = cls.run_ring("threads", None)

    @classmethod
    def at(cls, *path):
        return os.path.join(cls.folder, *path)

    @classmethod
    def run_ring(cls, launch, file, rank=None):
        """(the hash of its weights, what was said)"""
        out = cls.at("run")
        shutil.rmtree(out, ignore_errors=True)
        environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                       "OMPI_MCA_rmaps_base_oversubscribe": "1", "TMPDIR": cls.folder,
                       "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"}
        if file:
            environment.update(LD_PRELOAD=cls.at("disk.so"), SLOW_FILE=file, SLOW_S=str(SLOW_S))
        if rank is not None:
            environment.update(SLOW_RANK=str(rank))
        p = subprocess.run([PROGRAM, "train", *SMALL, "--topology", "zero:2", "--launch", launch, "--out", out], text=True,
                           cwd=cls.folder, capture_output=True, timeout=LIMIT_S, env=environment, check=False)
        if p.returncode:
            raise AssertionError(f"{launch}, {file}: status {p.returncode}\n{p.stderr}")
        with open(os.path.join(out, "summary.json"), encoding="utf-8") as f:
            return json.load(f)["weights_hash"], p.stderr

    def is_waited_for(self, launch, file, said_to=r"waiting for rank 0: \d+ s in \w+, it reads or writes a file", rank=None):
        weights, said = self.run_ring(launch, file, rank)
        self.assertEqual(weights, self.undisturbed)
        self.assertRegex(said, said_to)

    def test_threads(self):
        for file in ("/metrics.jsonl", "/weights", "/snapshots"):
            with self.subTest(file):
                self.is_waited_for("threads", file)

    def test_processes(self):
        for file in ("/metrics.jsonl", "/weights", "/snapshots"):
            with self.subTest(file):
                self.is_waited_for("processes", file)

    def test_processes_alone(self):
        """Before all that ranks say to each other."""
        self.is_waited_for("processes", "text.txt", r"waiting for rank 1: \d+ s in \w+, it reads or writes a file", 1)

    @unittest.skipUnless(shutil.which("mpirun"), "no mpirun")
    def test_mpi(self):
        self.is_waited_for("mpi", "/metrics.jsonl")


class Suspended(unittest.TestCase):
    """A queue stops all processes of a job, and lets them go on, which is no word of a death."""

    def test_it_goes_on(self):
        mark = f"suspended-{os.getpid()}"
        self.addCleanup(people.end_all, mark)
        with tempfile.TemporaryDirectory(prefix="starring-suspended-") as folder:
            metrics = os.path.join(folder, "metrics.jsonl")
            p = subprocess.Popen([PROGRAM, "train", "--model", "tiny", "--seq", "16", "--data", "demo", "--topology", "zero:1", "--workers",
                                  "2", "--launch", "processes", "--out", folder, "--steps", "40", "--delay", "0:constant:100", "--quiet"],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, people.MARK: mark})
            while p.poll() is None and not (os.path.exists(metrics) and os.path.getsize(metrics)):
                time.sleep(0.01)
            pids = list(people.marked(mark))
            for number in (signal.SIGSTOP, signal.SIGCONT):
                for pid in pids:
                    people.send(pid, number)
            _, said = p.communicate(timeout=LIMIT_S)
        self.assertEqual(p.returncode, 0, said)


if __name__ == "__main__":
    unittest.main()
