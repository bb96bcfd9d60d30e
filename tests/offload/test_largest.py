#!/usr/bin/env python3
"""The control group of experiments/largest.py: both versions of the kernel's interface in a hierarchy of ordinary files, and the kernel's own
where it lets itself be mounted."""
import contextlib
import os
import subprocess
import sys
import unittest
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import fixture
import largest

LIMIT = 512 << 20


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as f:
        return f.read()


class Groups(unittest.TestCase):
    def setUp(self):
        self.root = fixture.folder_for(self)
        self.name = f"starring-{os.getpid()}"

    def old(self):
        os.mkdir(os.path.join(self.root, "memory"))

    def made(self, *files):
        """A group under the root, in which the kernel's mkdir makes these files; it takes them away with the folder."""
        def mkdir(path):
            real_mkdir(path)
            for name in files:
                open(os.path.join(path, name), "w", encoding="utf-8").close()

        def rmdir(path):
            for name in os.listdir(path):
                os.unlink(os.path.join(path, name))
            real_rmdir(path)
        real_mkdir, real_rmdir = os.mkdir, os.rmdir
        self.enterContext(mock.patch("largest.os.mkdir", mkdir))
        self.enterContext(mock.patch("largest.os.rmdir", rmdir))
        return largest.Group(LIMIT, self.root)

    def test_version_2_limits_memory_and_forbids_swap(self):
        group = self.made("memory.max", "memory.swap.max", "cgroup.procs")
        self.assertEqual(group.folder, os.path.join(self.root, self.name))
        self.assertEqual(read(self.root, "cgroup.subtree_control"), "+memory")
        self.assertEqual((read(group.folder, "memory.max"), read(group.folder, "memory.swap.max")), (str(LIMIT), "0"))
        group.enter()
        self.assertEqual(read(group.folder, "cgroup.procs"), str(os.getpid()))
        self.assertEqual(sorted(os.listdir(group.folder)), ["cgroup.procs", "memory.max", "memory.swap.max"])   # and writes nothing else
        group.close()
        self.assertFalse(os.path.exists(group.folder))

    def test_version_2_of_a_kernel_without_swap(self):
        group = self.made("memory.max")
        self.assertEqual((read(group.folder, "memory.max"), os.listdir(group.folder)), (str(LIMIT), ["memory.max"]))

    def test_version_1_has_a_hierarchy_for_memory(self):
        self.old()
        group = self.made("memory.limit_in_bytes", "cgroup.procs")
        self.assertEqual(group.folder, os.path.join(self.root, "memory", self.name))
        self.assertEqual(read(group.folder, "memory.limit_in_bytes"), str(LIMIT))
        self.assertEqual(os.listdir(self.root), ["memory"])
        group.enter()
        self.assertEqual(read(group.folder, "cgroup.procs"), str(os.getpid()))

    def test_a_group_that_cannot_be_limited_is_taken_away_again(self):
        def refuse(self, value, name):
            if name == "memory.max":
                raise PermissionError(13, "Permission denied", name)
        with mock.patch("largest.Group.put", refuse), self.assertRaisesRegex(largest.Failed, "memory.max.*start the script as root"):
            self.made("memory.max")
        self.assertEqual(os.listdir(self.root), [])

    def test_the_kernels_version_2(self):
        """Where the kernel has memory in its second version the group is limited; where the first has it, the refusal is the script's."""
        if subprocess.run(["mount", "-t", "cgroup2", "none", self.root], capture_output=True, check=False).returncode:
            self.skipTest("cgroup2 cannot be mounted here")
        self.addCleanup(subprocess.run, ["umount", self.root], check=True)
        if "memory" not in read(self.root, "cgroup.controllers").split():
            with self.assertRaisesRegex(largest.Failed, "no control group can be made here"):
                largest.Group(LIMIT, self.root)
            self.assertFalse(os.path.exists(os.path.join(self.root, self.name)))
            return
        group = largest.Group(LIMIT, self.root)
        with contextlib.closing(group):
            child = subprocess.run(["cat", "/proc/self/cgroup"], preexec_fn=group.enter, capture_output=True, text=True, check=True)
            self.assertRegex(child.stdout, f"(?m)^0::.*/{self.name}$")
            self.assertEqual(read(group.folder, "memory.max").strip(), str(LIMIT))


if __name__ == "__main__":
    unittest.main()
