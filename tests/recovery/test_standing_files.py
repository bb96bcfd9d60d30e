#!/usr/bin/env python3
"""A file system that stands still for longer than the deadline, from the moment of a death on, or when roles begin: the
scheduler and the launcher answer all the while, who reads is waited for, the death costs one restart, and the weights are those
of an undisturbed run."""
import fcntl
import os
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Runs, free_port, processes, text

DEADLINE_S, STANDS_S, LIMIT_S, STEPS = 10, 15, 150, 40
FLAGS = ["--model", "tiny", "--data", "demo", "--topology", "ps:sync", "--workers", "2", "--servers", "2", "--seq", "64", "--batch", "2",
         "--threads", "1", "--seed", "5", "--steps", str(STEPS), "--checkpoint-every", "5", "--set", "eval_batches=none",
         "--set", f"parameter_server.deadline_ms={1000 * DEADLINE_S}", "--set", "parameter_server.heartbeat_ms=200"]
# Records and checkpoints, or files with $WHERE in their path, are opened when the file $STANDS is gone.
SHIM = r"""
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void stand(const char *path) {
    const char *hold = getenv("STANDS"), *only = getenv("ONLY");
    char words[256] = "";
    int fd = only ? syscall(SYS_open, "/proc/self/cmdline", O_RDONLY) : -1;
    if (fd >= 0 && read(fd, words, sizeof words - 1) < 0) words[0] = 0;
    if (fd >= 0) close(fd);
    if (only && strcmp(words + strlen(words) + 1, only)) return;
    const char *where = getenv("WHERE");
    if (!hold || !path || (where ? !strstr(path, where) : !strstr(path, ".jsonl") && !strstr(path, "/checkpoints"))) return;
    while (access(hold, F_OK) == 0) nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
}

#define OPEN(name)                                                              \
    int name(const char *path, int flags, ...) {                                \
        int (*real)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name); \
        va_list args;                                                           \
        va_start(args, flags);                                                  \
        int mode = va_arg(args, int);                                           \
        va_end(args);                                                           \
        stand(path);                                                            \
        return real(path, flags, mode);                                         \
    }
OPEN(open)
OPEN(open64)

#define PATH(type, name)                                                        \
    type name(const char *path) {                                               \
        type (*real)(const char *) = (type (*)(const char *))dlsym(RTLD_NEXT, #name); \
        stand(path);                                                            \
        return real(path);                                                      \
    }
PATH(DIR *, opendir)

int stat(const char *restrict path, struct stat *restrict out) {
    stand(path);
    return fstatat(AT_FDCWD, path, out, 0);
}

#define FOPEN(name)                                                             \
    void *name(const char *path, const char *mode) {                            \
        void *(*real)(const char *, const char *) = (void *(*)(const char *, const char *))dlsym(RTLD_NEXT, #name); \
        stand(path);                                                            \
        return real(path, mode);                                                \
    }
FOPEN(fopen)
FOPEN(fopen64)
"""


class StandingFiles(Runs):
    def setUp(self):
        super().setUp()
        self.hold = self.at("stands")
        self.shim = {"LD_PRELOAD": self.preload(SHIM), "STANDS": self.hold}

    def stand(self):
        self.write("", "stands")

    def go_on(self):
        os.unlink(self.hold)

    def train(self, *more, **where):
        return self.start("train", *FLAGS, "--out", self.at("run"), *more, env=self.shim | where)

    def restarts(self):
        return [life["restarts"] for life in self.lives("run")]

    def one(self, victim, *more, **where):
        self.remove("run")
        p = self.train("--restart", "2", "--delay", "0:constant:50", *more, **where)
        p.behind(12)
        self.stand()
        p.kill_now(victim)
        time.sleep(STANDS_S)
        self.assertIsNone(p.poll(), "the job has ended")
        self.assertEqual(self.restarts(), [0])
        self.go_on()
        said = p.ends()
        self.assertEqual(self.restarts(), [0, 1], said)
        self.assertEqual(said.count("starting it again"), 1, said)
        self.assertRegex(said, "waiting for the file system of|waiting for .*server 0, server 1 to be ready")
        self.assertEqual(self.hash("run"), self.hash("undisturbed"), said)

    def test_a_death_while_files_stand_still(self):
        self.train("--restart", "2", "--out", self.at("undisturbed")).ends()
        with self.subTest("worker 1"):
            self.one("worker 1")
        # Survivors and the one in the dead one's place find a run directory of which nothing can be read.
        with self.subTest("the directory"):
            self.one("server 0", WHERE=self.at("run") + "/")

    def test_a_start_while_files_stand_still(self):
        """A role's reading before it is ready may take longer than the deadline: it is waited for."""
        self.write(text(12000), "text.txt")
        for role, where in (("worker", "/text.txt"), ("server", "/run/")):
            with self.subTest(role):
                self.stand()
                p = self.train("--restart", "1", "--data", self.at("text.txt"), "--set", "parameter_server.deadline_ms=6000", "--force",
                               ONLY=role, WHERE=where)
                time.sleep(9)
                self.go_on()
                said = p.ends()
                self.assertEqual(self.restarts(), [0], said)

    def test_a_trace_while_files_stand_still(self):
        """At its end a worker leaves its part of the trace: whatever that takes, it answers, and nobody loses it."""
        self.stand()
        p = self.train("--set", "parameter_server.deadline_ms=6000", "--trace", WHERE="/trace-worker-")
        p.behind(STEPS)
        time.sleep(STANDS_S)  # nobody is heard of for so long
        self.go_on()
        p.ends()
        self.assertIn('"communication"', self.read("run", "trace.json"))

    def unread(self, victim=None):
        """The messages about a job whose standard error is blocked, while a worker is blocked by a file, or a role is killed."""
        ours, theirs = os.pipe()
        fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, 4096)
        p = self.start("train", *FLAGS, "--set", "parameter_server.deadline_ms=6000", "--eval-every", "3", "--set", "eval_batches=1", "--restart",
                       "2", "--delay", "0:constant:50", "--out", self.at("run"), env=self.shim | {"WHERE": "/snapshots"}, stderr=theirs)
        p.behind(8)
        if not victim:
            self.stand()
        os.set_blocking(theirs, False)
        try:
            while True:
                os.write(theirs, b"-")
        except BlockingIOError:
            os.set_blocking(theirs, True)
        if victim:
            p.kill_now(victim)
            p.behind(STEPS)
            self.assertEqual(self.steps("run"), STEPS)
        else:
            time.sleep(STANDS_S)
            self.go_on()
        os.close(theirs)
        said = []
        with open(ours, "rb") as stream:
            reader = threading.Thread(target=lambda: said.append(stream.read().replace(b"-", b"").decode()))
            reader.start()
            p.ends(status=None)
            reader.join()
        self.assertEqual(p.returncode, 0, said)
        self.assertEqual(self.restarts(), [0, 1] if victim else [0], said)
        return said[0]

    def test_messages_while_nobody_reads(self):
        """The scheduler answers, whatever it says."""
        self.assertIn("waiting for worker 0", self.unread())

    def test_a_death_while_nobody_reads(self):
        """The launcher starts the role again, whatever it says."""
        self.assertIn("starting it again; 1 of 2 restarts is left", self.unread("worker 1"))

    def role(self, environment, role, *words):
        p = self.start(role, "-c", self.at("job.json"), "--out", self.at("run"), *words, env=environment)
        self.roles.append(p)
        return p

    def said(self):
        return "".join(p.said() for p in self.roles)

    def prepare_by_hand(self):
        """The scheduler's address."""
        self.roles = []
        self.write(self.run_it("train", *FLAGS, "--restart", "2", "--set", "parameter_server.deadline_ms=6000", "--delay", "0:constant:50",
                               "--print-config").stdout, "job.json")
        return f"tcp://127.0.0.1:{free_port()}"

    def test_a_death_by_hand_while_files_stand_still(self):
        """A role that begins anew takes its configuration along, and says that it is at work while it reads the rest."""
        address, shim = self.prepare_by_hand(), self.shim | {"WHERE": self.folder + "/"}
        roles = [self.role(shim, "scheduler", "--bind", address)]
        roles += [self.role(shim, role, "--scheduler", address, "--rank", rank) for role in ("server", "worker") for rank in ("0", "1")]
        roles[0].behind(8)
        self.stand()
        roles[4].kill()
        roles[4].wait()
        roles[4] = self.role({}, "worker", "--scheduler", address, "--rank", "1")
        time.sleep(9)
        self.assertEqual([p.poll() for p in roles], [None] * 5, self.said())
        self.go_on()
        self.assertEqual([p.wait(timeout=LIMIT_S) for p in roles], [0] * 5, self.said())
        self.assertEqual(self.restarts(), [0, 1], self.said())

    def test_another_scheduler_while_files_stand_still(self):
        """A scheduler dies while roles wait for the last of them, and the next one cannot read the job's records: they wait."""
        address = self.prepare_by_hand()
        scheduler = self.role(self.shim, "scheduler", "--bind", address)
        roles = [self.role({}, role, "--scheduler", address, "--rank", rank) for role, rank in (("server", "0"), ("server", "1"), ("worker", "0"))]
        time.sleep(3)
        scheduler.kill()
        scheduler.wait()
        self.stand()
        scheduler = self.role(self.shim, "scheduler", "--bind", address)
        time.sleep(12)
        self.assertEqual([p.poll() for p in (scheduler, *roles)], [None] * 4, self.said())
        self.go_on()
        roles.append(self.role({}, "worker", "--scheduler", address, "--rank", "1"))
        status = [p.wait(timeout=LIMIT_S) for p in (scheduler, *roles)]
        self.assertEqual(status, [0] * 5, self.said())

    def test_a_scheduler_that_cannot_begin(self):
        """Findings made only after roles have joined are sent to them: their last message is the reason."""
        address = self.prepare_by_hand()
        self.stand()
        scheduler = self.role(self.shim | {"WHERE": "/nothing"}, "scheduler", "--bind", address, "--resume", self.at("nothing"))
        roles = [self.role({}, role, "--scheduler", address, "--rank", "0") for role in ("server", "worker")]
        until, port = time.monotonic() + LIMIT_S, f":{int(address.rpartition(':')[2]):04X}"
        while time.monotonic() < until:
            lines = [line.split() for kind in ("tcp", "tcp6") for line in processes.read(f"/proc/net/{kind}").decode().splitlines()]
            if sum(line[1].endswith(port) and line[3] == "01" for line in lines) == 2:
                break
            time.sleep(0.05)
        time.sleep(2)  # connected, they come
        self.go_on()
        self.assertEqual([p.wait(timeout=LIMIT_S) for p in (scheduler, *roles)], [1] * 3, self.said())
        reason = f"--resume {self.at('nothing')}: {self.at('nothing')}: No such file or directory"
        self.assertEqual(self.said().count(f"] the scheduler: {reason}"), 2, self.said())


if __name__ == "__main__":
    unittest.main()
