#!/usr/bin/env python3
"""A file system that stands still for longer than the deadline, from the moment of a death on, or when roles begin: the
scheduler and the launcher answer all the while, who reads is waited for, the death costs one restart, and the weights are those
of an undisturbed run."""
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.environ.get("STARRING", os.path.join(TOP, "build", "starring"))
sys.path.insert(0, os.path.join(TOP, "experiments"))
from drill import people  # noqa: E402

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


class StandingFiles(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="standing-")
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.hold = self.at("stands")
        with open(self.at("shim.c"), "w", encoding="utf-8") as f:
            f.write(SHIM)
        subprocess.run([os.environ.get("CC", "cc").split()[-1], "-w", "-shared", "-fPIC", "-o", self.at("shim.so"), self.at("shim.c"), "-ldl"],
                       check=True)

    def at(self, name):
        return os.path.join(self.directory, name)

    def lines(self, name):
        try:
            with open(os.path.join(self.at("run"), name), encoding="utf-8") as f:
                return [json.loads(line) for line in f if line.endswith("\n")]
        except OSError:
            return []

    def hash(self, name):
        with open(os.path.join(self.at(name), "summary.json"), encoding="utf-8") as f:
            return json.load(f)["weights_hash"]

    def one(self, victim, *more, **where):
        shutil.rmtree(self.at("run"), ignore_errors=True)
        mark = f"standing-{os.getpid()}"
        environment = {**os.environ, people.MARK: mark, "LD_PRELOAD": self.at("shim.so"), "STANDS": self.hold, **where}
        with subprocess.Popen([PROGRAM, "train", *FLAGS, "--restart", "2", "--delay", "0:constant:50", "--out", self.at("run"), *more],
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment) as p:
            try:
                end = time.monotonic() + LIMIT_S
                while len(self.lines("metrics.jsonl")) < 12 and p.poll() is None and time.monotonic() < end:
                    time.sleep(0.02)
                self.assertIsNone(p.poll(), "" if p.poll() is None else p.stderr.read())
                with open(self.hold, "w", encoding="utf-8"):
                    pass
                people.send(people.roles(mark)[victim], signal.SIGKILL)
                time.sleep(STANDS_S)
                self.assertIsNone(p.poll(), "the job has ended")
                self.assertEqual(len(self.lines("lives.jsonl")), 1)
                os.unlink(self.hold)
                said = p.communicate(timeout=LIMIT_S)[1]
            finally:
                people.end_all(mark)
        self.assertEqual(p.returncode, 0, said)
        self.assertEqual([life["restarts"] for life in self.lines("lives.jsonl")], [0, 1], said)
        self.assertEqual(said.count("starting it again"), 1, said)
        self.assertRegex(said, "waiting for the (file system of|servers to leave their state)|waiting for .*server 0, server 1 to log in")
        self.assertEqual(self.hash("run"), self.hash("undisturbed"), said)

    def test_a_death_while_files_stand_still(self):
        # The first scheduler finds files that stand still, too.
        environment = {**os.environ, "LD_PRELOAD": self.at("shim.so"), "STANDS": self.hold, "ONLY": "scheduler"}
        with open(self.hold, "w", encoding="utf-8"):
            pass
        with subprocess.Popen([PROGRAM, "train", *FLAGS, "--restart", "2", "--out", self.at("undisturbed")], stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True, env=environment) as p:
            time.sleep(2)
            os.unlink(self.hold)
            said = p.communicate(timeout=LIMIT_S)[1]
        self.assertEqual(p.returncode, 0, said)
        for victim in ("worker 1", "scheduler"):
            with self.subTest(victim):
                self.one(victim)
        # Survivors and the one in the dead one's place find a run directory of which nothing can be read.
        with self.subTest("the directory"):
            self.one("worker 1", WHERE=self.at("run") + "/")
        # Servers that leave their state answer nobody else: workers wait.
        with self.subTest("a rescue"):
            self.one("server 0", "--replicate", "--set", "parameter_server.deadline_ms=5000", WHERE=self.at("run") + "/")

    def test_a_start_while_files_stand_still(self):
        """What a role reads before it has logged in may take longer than the deadline: it is waited for."""
        with open(self.at("text.txt"), "w", encoding="utf-8") as f:
            f.write("".join(f"{n} bottles of beer on the wall, {n * n % 97} of them green\n" for n in range(12000)))
        for role, where in (("worker", "/text.txt"), ("server", "/run/"), ("scheduler", "/run/")):
            with self.subTest(role), open(self.hold, "w", encoding="utf-8"):
                environment = {**os.environ, "LD_PRELOAD": self.at("shim.so"), "STANDS": self.hold, "ONLY": role, "WHERE": where}
                with subprocess.Popen([PROGRAM, "train", *FLAGS, "--restart", "1", "--data", self.at("text.txt"), "--set",
                                       "parameter_server.deadline_ms=6000", "--out", self.at("run"), "--force"], stderr=subprocess.PIPE,
                                      stdout=subprocess.DEVNULL, text=True, env=environment) as p:
                    time.sleep(9)
                    os.unlink(self.hold)
                    said = p.communicate(timeout=LIMIT_S)[1]
                self.assertEqual(p.returncode, 0, said)
                self.assertEqual([life["restarts"] for life in self.lines("lives.jsonl")], [0], said)

    def test_a_trace_while_files_stand_still(self):
        """At its end a worker leaves its part of the trace: whatever that takes, it answers, and nobody loses it."""
        environment = {**os.environ, "LD_PRELOAD": self.at("shim.so"), "STANDS": self.hold, "WHERE": "/trace-worker-"}
        with open(self.hold, "w", encoding="utf-8"):
            pass
        with subprocess.Popen([PROGRAM, "train", *FLAGS, "--set", "parameter_server.deadline_ms=6000", "--trace", "--out", self.at("run")],
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment) as p:
            end = time.monotonic() + LIMIT_S
            while len(self.lines("metrics.jsonl")) < STEPS and p.poll() is None and time.monotonic() < end:
                time.sleep(0.02)
            time.sleep(STANDS_S)  # nobody is heard of for so long
            os.unlink(self.hold)
            said = p.communicate(timeout=LIMIT_S)[1]
        self.assertEqual(p.returncode, 0, said)
        with open(os.path.join(self.at("run"), "trace.json"), encoding="utf-8") as f:
            self.assertIn('"communication"', f.read())

    def unread(self, victim=None):
        """What is said of a job whose standard error takes nothing, while a worker stands in a file, or a role is killed."""
        mark, said = f"unread-{os.getpid()}", []
        environment = {**os.environ, people.MARK: mark, "LD_PRELOAD": self.at("shim.so"), "STANDS": self.hold, "WHERE": "/snapshots"}
        ours, theirs = os.pipe()
        fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, 4096)
        with subprocess.Popen([PROGRAM, "train", *FLAGS, "--set", "parameter_server.deadline_ms=6000", "--eval-every", "3", "--set",
                               "eval_batches=1", "--restart", "2", "--delay", "0:constant:50", "--out", self.at("run")],
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs, env=environment) as p:
            try:
                end = time.monotonic() + LIMIT_S
                while len(self.lines("metrics.jsonl")) < 8 and p.poll() is None and time.monotonic() < end:
                    time.sleep(0.02)
                if not victim:
                    with open(self.hold, "w", encoding="utf-8"):
                        pass
                os.set_blocking(theirs, False)
                try:
                    while True:
                        os.write(theirs, b"-")
                except BlockingIOError:
                    os.set_blocking(theirs, True)
                if victim:
                    people.send(people.roles(mark)[victim], signal.SIGKILL)
                    while len(self.lines("metrics.jsonl")) < STEPS and p.poll() is None and time.monotonic() < end:
                        time.sleep(0.02)
                    self.assertEqual(len(self.lines("metrics.jsonl")), STEPS)
                else:
                    time.sleep(STANDS_S)
                    os.unlink(self.hold)
                os.close(theirs)
                with open(ours, "rb") as stream:
                    reader = threading.Thread(target=lambda: said.append(stream.read().replace(b"-", b"").decode()))
                    reader.start()
                    p.wait(timeout=LIMIT_S)
                    reader.join()
            finally:
                people.end_all(mark)
        self.assertEqual(p.returncode, 0, said)
        self.assertEqual([life["restarts"] for life in self.lines("lives.jsonl")], [0, 1] if victim else [0], said)
        return said[0]

    def test_messages_while_nobody_reads(self):
        """The scheduler answers, whatever it says."""
        self.assertIn("waiting for worker 0", self.unread())

    def test_a_death_while_nobody_reads(self):
        """The launcher starts the role again, whatever it says."""
        self.assertIn("starting it again; 1 of 2 restarts is left", self.unread("worker 1"))

    def start(self, environment, role, *words):
        log = open(self.at(f"{role}-{len(self.logs)}.txt"), "w+", encoding="utf-8")
        self.logs.append(log)
        p = subprocess.Popen([PROGRAM, role, "-c", self.at("job.json"), "--out", self.at("run"), *words], stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, stderr=log, env={**os.environ, **environment})
        self.addCleanup(lambda: (p.kill(), p.wait(), log.close()))
        return p

    def said(self):
        words = []
        for log in self.logs:
            with open(log.name, encoding="utf-8") as f:
                words.append(f.read())
        return "".join(words)

    def prepare_by_hand(self):
        """(the scheduler's address, what has a role find files that stand still)"""
        self.logs = []
        with open(self.at("job.json"), "w", encoding="utf-8") as f:
            subprocess.run([PROGRAM, "train", *FLAGS, "--restart", "2", "--set", "parameter_server.deadline_ms=6000", "--delay",
                            "0:constant:50", "--print-config"], check=True, stdout=f, stderr=subprocess.DEVNULL)
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            address = f"tcp://127.0.0.1:{s.getsockname()[1]}"
        return address, {"LD_PRELOAD": self.at("shim.so"), "STANDS": self.hold}

    def test_a_death_by_hand_while_files_stand_still(self):
        """Who begins anew takes its configuration along, and says that it is at work while it reads the rest."""
        address, shim = self.prepare_by_hand()
        shim["WHERE"] = self.directory + "/"
        roles = [self.start(shim, "scheduler", "--bind", address)]
        roles += [self.start(shim, role, "--scheduler", address, "--rank", rank) for role in ("server", "worker") for rank in ("0", "1")]
        end = time.monotonic() + LIMIT_S
        while len(self.lines("metrics.jsonl")) < 8 and time.monotonic() < end:
            time.sleep(0.02)
        with open(self.hold, "w", encoding="utf-8"):
            pass
        roles[4].kill()
        roles[4].wait()
        roles[4] = self.start({}, "worker", "--scheduler", address, "--rank", "1")
        time.sleep(9)
        self.assertEqual([p.poll() for p in roles], [None] * 5, self.said())
        os.unlink(self.hold)
        self.assertEqual([p.wait(timeout=LIMIT_S) for p in roles], [0] * 5, self.said())
        self.assertEqual([life["restarts"] for life in self.lines("lives.jsonl")], [0, 1], self.said())

    def test_a_login_while_files_stand_still(self):
        """A scheduler dies while roles wait for the last of them, and the next one cannot read the job's records: they wait."""
        address, shim = self.prepare_by_hand()
        scheduler = self.start(shim, "scheduler", "--bind", address)
        roles = [self.start({}, role, "--scheduler", address, "--rank", rank) for role, rank in (("server", "0"), ("server", "1"), ("worker", "0"))]
        time.sleep(3)
        scheduler.kill()
        scheduler.wait()
        with open(self.hold, "w", encoding="utf-8"):
            pass
        scheduler = self.start(shim, "scheduler", "--bind", address)
        time.sleep(12)
        self.assertEqual([p.poll() for p in (scheduler, *roles)], [None] * 4, self.said())
        os.unlink(self.hold)
        roles.append(self.start({}, "worker", "--scheduler", address, "--rank", "1"))
        status = [p.wait(timeout=LIMIT_S) for p in (scheduler, *roles)]
        self.assertEqual(status, [0] * 5, self.said())


if __name__ == "__main__":
    unittest.main()
