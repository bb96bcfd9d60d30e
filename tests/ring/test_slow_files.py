#!/usr/bin/env python3
"""A ring's rank whose main thread stands in a file for longer than the deadline is slow, and not dead: the others wait for
it, whatever file it is and whenever, and the weights are those of an undisturbed run."""
import filecmp
import os
import shutil
import signal
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs, send

DEADLINE_S = 2
SLOW_S = 3.5 * DEADLINE_S
SMALL = ["--model", "tiny", "--seq", "16", "--batch", "1", "--threads", "1", "--steps", "8", "--data", "text.txt", "--workers", "2",
         "--quiet", "--set", "eval_batches=1", "--set", f"parameter_server.deadline_ms={DEADLINE_S * 1000}", "--set",
         "parameter_server.heartbeat_ms=100"]
# Loaded into the program: a process's first write to, or opening of, a file whose path has SLOW_FILE in it takes SLOW_S seconds;
# where SLOW_RANK is given, of the ranks whose digits it has.
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
    if (!slow || !strstr(path, slow) || (rank && (!own || !strstr(rank, own))) || ++times > 1) return;
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


class SlowFiles(Runs):
    shared, corpus = True, 1200

    def run_ring(self, out, launch, file=None, rank=None, *more):
        """The output."""
        self.remove(out)
        env = {"TMPDIR": self.folder, "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"}
        if file:
            env.update(LD_PRELOAD=self.preload(DISK), SLOW_FILE=file, SLOW_S=str(SLOW_S))
        if rank is not None:
            env.update(SLOW_RANK=str(rank))
        return self.run_it("train", *SMALL, "--topology", "zero:2", "--launch", launch, "--out", self.at(out), *more, env=env).stderr

    def is_waited_for(self, launch, file, said_to=r"waiting for rank 0: \d+ s in \w+, it reads or writes a file", rank=None):
        said = self.run_ring("run", launch, file, rank)
        if not os.path.exists(self.at("undisturbed")):
            self.run_ring("undisturbed", "threads")
        self.assertEqual(self.hash("run"), self.hash("undisturbed"))
        self.assertRegex(said, said_to)

    def test_each_file(self):
        for launch in ("threads", "processes"):
            for file in ("/metrics.jsonl", "/weights", "/snapshots"):
                with self.subTest(launch, file=file):
                    self.is_waited_for(launch, file)

    def test_processes_alone(self):
        """Before all that ranks say to each other."""
        self.is_waited_for("processes", "text.txt", r"waiting for rank 1: \d+ s in \w+, it reads or writes a file", 1)

    def test_several(self):
        """The first rank that is not slow itself says which are."""
        said = self.run_ring("run", "processes", "text.txt", "01", "--workers", "3")
        for rank in (0, 1):
            self.assertRegex(said, rf"waiting for rank {rank}: \d+ s in \w+, it reads or writes a file")

    @unittest.skipUnless(shutil.which("mpirun"), "no mpirun")
    def test_mpi(self):
        self.is_waited_for("mpi", "/metrics.jsonl")


class SlowCheckpoint(Runs):
    corpus = 1200

    def test_local_steps_wait_for_it(self):
        """A round begins by giving the anchor to the masters that the checkpoint behind the round before is still written from."""
        words = ["train", *SMALL, "--topology", "zero:0", "--launch", "processes", "--local-steps", "2", "--checkpoint-every", "2",
                 "--checkpoint-keep", "0"]
        env = {"ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0", "LD_PRELOAD": self.preload(DISK),
               "SLOW_FILE": "/worker-1", "SLOW_S": "1"}
        self.run_it(*words, "--out", "slow", env=env)
        self.run_it(*words, "--out", "copied", "--checkpoint-background", env=env)
        self.run_it(*words, "--out", "last", "--steps", "2")  # behind it there is no round
        for run in ("slow", "copied"):
            paths = [self.at(of, "checkpoints", "step-2", "worker-1.safetensors") for of in (run, "last")]
            self.assertTrue(filecmp.cmp(*paths, shallow=False), run)


class Suspended(Runs):
    """A queue stops all processes of a job, and lets them go on, which is no word of a death."""

    def test_it_goes_on(self):
        p = self.start("train", "--model", "tiny", "--seq", "16", "--data", "demo", "--topology", "zero:1", "--workers", "2", "--launch",
                       "processes", "--out", "run", "--steps", "40", "--delay", "0:constant:100", "--quiet")
        p.behind(1)
        pids = list(p.left())
        for number in (signal.SIGSTOP, signal.SIGCONT):
            send(number, pids)
        p.ends()


if __name__ == "__main__":
    unittest.main()
