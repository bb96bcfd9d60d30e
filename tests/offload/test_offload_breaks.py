#!/usr/bin/env python3
"""A disk that breaks while a run has its state there: what every rank says, how it ends, and that the last checkpoint stands.

The run is stopped behind a checkpoint, its file is damaged, and it goes on. Then the checkpoint is resumed from, and the end
compared with a run that nothing happened to.
"""
import errno
import glob
import os
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import TINY, Runs

EVERY = 20
MOUNTED = ["unshare", "-m", "sh", "-c", 'mount $0 "$1" "$2" && shift 2 && exec "$@"']
OPTIMIZER, PARAM = "zero_optimization.offload_optimizer.", "zero_optimization.offload_param."


def mounted(options, what, where):
    return [*MOUNTED, options, what, where]


def can_mount(options, what, where):
    return not subprocess.run([*mounted(options, what, where), "true"], capture_output=True, check=False).returncode


def files_in(folder):
    """{(process, path of its descriptor)} of all files without a name that are open in a folder."""
    found = set()
    for path in glob.glob("/proc/[0-9]*/fd/*"):
        try:
            link = os.readlink(path)
        except OSError:
            continue
        if link.startswith(folder + "/") and link.endswith("(deleted)"):
            found.add((int(path.split("/")[2]), path))
    return found


class Breaks(Runs):
    def setUp(self):
        super().setUp()
        self.disk = self.at("disk")
        os.mkdir(self.disk)

    def words(self, out, steps, *more):
        return ["train", *TINY, "--data", "demo", "--steps", str(steps), "--seq", "24", "--batch", "1", "--lr", "0.01", "--quiet", "--force",
                "--out", self.at(out), "--set", "eval_batches=none", *more]

    def state(self, folder):
        return ["--topology", "zero:2", "--set", OPTIMIZER + "device=nvme", "--set", f"{OPTIMIZER}nvme_path={folder}"]

    def weights(self, folder):
        return ["--topology", "zero:3", "--set", OPTIMIZER + "device=cpu", "--set", PARAM + "device=nvme", "--set", f"{PARAM}nvme_path={folder}"]

    def hash_of(self, out, steps, *more):
        self.run_it(*self.words(out, steps, "--topology", "zero:2", *more))
        return self.hash(out)

    def last(self):
        steps = [int(os.path.basename(p).split("-")[1]) for p in glob.glob(self.at("run", "checkpoints", "step-*[0-9]"))]
        return max(steps, default=0)

    def begin(self, *words, steps=1000000, before=()):
        """The run, stopped behind a checkpoint."""
        run = self.start(*self.words("run", steps, "--checkpoint-every", str(EVERY), *words), under=before)
        run.until(self.last, "a checkpoint")
        self.files = files_in(self.disk)
        self.assertEqual(len(self.files), 2)
        self.signal(signal.SIGSTOP)
        return run

    def signal(self, number):
        for process in {p for p, _ in self.files}:
            os.kill(process, number)

    def ends(self, run, *words, whole=0):
        """It goes on and fails, and what it left is what an undisturbed run has; whole: only up to this step, 0: to its last checkpoint."""
        self.signal(signal.SIGCONT)
        said, last = run.ends(1), self.last()
        for word in (*words, self.disk, "--resume latest", "offload to disk: "):
            self.assertIn(word, said)
        self.assertRegex(said, r"\[rank [01]\] offload to disk: (embed|block\.\d|head)\S*: (reading|writing) \d+ bytes at \d+ of the file in ")
        self.assertGreaterEqual(last, EVERY)
        run_dir = self.at("run")
        if whole:
            last, run_dir = whole, os.path.join(run_dir, "checkpoints", f"step-{whole}")
        again = self.hash_of("again", last + 3, "--resume", run_dir)
        self.assertEqual(again, self.hash_of("whole", last + 3))

    def cut(self, which=0):
        os.truncate(sorted(self.files)[which][1], 8192)

    def test_a_file_is_cut(self):
        for words in (self.state(self.disk), self.weights(self.disk)):
            with self.subTest(words=words):
                run = self.begin(*words)
                self.cut()
                self.ends(run, "it ends at 8192, another program has truncated it")
                self.remove("run")

    def test_ranks_that_are_processes(self):
        run = self.begin(*self.weights(self.disk), "--launch", "processes")
        self.assertEqual(len({p for p, _ in self.files}), 2)
        self.cut(1)
        self.ends(run, "it ends at 8192, another program has truncated it")

    def test_the_directory_vanishes(self):
        # The file has no name: nobody can take it away.
        run = self.begin(*self.weights(self.disk), "--set", OPTIMIZER + "device=nvme", "--set", f"{OPTIMIZER}nvme_path={self.folder}", steps=60)
        os.rmdir(self.disk)
        self.signal(signal.SIGCONT)
        run.ends()
        self.assertEqual(self.hash("run"), self.hash_of("whole", 60))

    def test_the_disk_fills(self):
        small = ("-t tmpfs -o size=16m", "none", self.disk)
        if not can_mount(*small):
            self.skipTest("no file system can be mounted here")
        run = self.begin(*self.state(self.disk), before=mounted(*small))
        process, whole = min(self.files)[0], self.last()
        # A disk that promised more than it has: the room of the files is taken back, and given to another. Its former contents are read as
        # zeros now, which a real full disk does not do, and a checkpoint that was about to be written may have them.
        with open(f"/proc/{process}/root{self.disk}/other", "wb", buffering=0) as other:
            size = os.fstatvfs(other.fileno())
            os.posix_fallocate(other.fileno(), 0, size.f_bavail * size.f_frsize)
            for _, path in self.files:
                subprocess.run(["fallocate", "-p", "-o", "0", "-l", str(os.stat(path).st_size), path], check=True)
            size = os.fstatvfs(other.fileno())
            os.posix_fallocate(other.fileno(), 0, os.fstat(other.fileno()).st_size + size.f_bavail * size.f_frsize)
        self.ends(run, os.strerror(errno.ENOSPC), f"name another directory with {OPTIMIZER}nvme_path", whole=whole)


if __name__ == "__main__":
    unittest.main()
