#!/usr/bin/env python3
"""A ring under mpirun has a process above it, as a star has its launcher: whoever is killed or stands still is named in one
message, all others are ended by the deadline, the exit status is one that is documented, nothing is left, and nobody else
can connect to what it listens on."""
import contextlib
import glob
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.environ.get("STARRING", os.path.join(TOP, "build", "starring"))
LIMIT_S = 180  # a hang; far above what anything here takes
FOREVER = "1000000"
DEADLINE_S = 6  # whoever only waits for a core is heard within it
LONG_S = 600
SMALL = ["--model", "tiny", "--seq", "16", "--batch", "1", "--threads", "1", "--data", "text.txt", "--no-weights", "--topology", "zero:1",
         "--workers", "2", "--launch", "mpi"]
LISTENS = "0A"  # /proc/net/tcp
NOBODY = 65534
# As in a container that may make no networks.
NO_NETWORKS = ["unshare", "-U", "--map-root-user", "sh", "-c", 'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"', "sh"]


def may_forbid_networks():
    return shutil.which("unshare") and subprocess.run([*NO_NETWORKS, "true"], capture_output=True, check=False).returncode == 0


@unittest.skipUnless(shutil.which("mpirun"), "no mpirun")
class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="starring-supervise-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        cls.temporary = cls.at("tmp")  # what mpirun leaves among the temporary files is this test's
        os.mkdir(cls.temporary)
        cls.environment = {**os.environ, "TMPDIR": cls.temporary}
        for name, lines in (("text.txt", 1200), ("long.txt", 30000)):
            with open(cls.at(name), "w", encoding="utf-8") as f:
                f.write("".join(f"{n} bottles of beer on the wall, {n * n % 97} of them green\n" for n in range(lines)))

    @classmethod
    def at(cls, *path):
        return os.path.join(cls.folder, *path)

    def setUp(self):
        self.out = self.at("run")
        shutil.rmtree(self.out, ignore_errors=True)

    def argv(self, *more, steps=FOREVER, deadline_s=LONG_S, evaluation="0"):
        return [PROGRAM, "train", *SMALL, "--out", self.out, "--steps", steps, "--set", f"eval_batches={evaluation}", "--set",
                f"parameter_server.deadline_ms={deadline_s * 1000:.0f}", *more]

    def start(self, *more, under=(), **how):
        p = subprocess.Popen([*under, *self.argv("--quiet", *more, **how)], cwd=self.folder, text=True, stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=self.environment)
        self.addCleanup(p.stderr.close)
        self.addCleanup(lambda: p.poll() is None and p.kill())
        return p

    # ---------------------------------------------------------------- who is there
    def all(self):
        """Processes of this test's run: [(pid, parent, rank or None)]."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as f:
                    line = f.read()
                with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
                    state, parent = f.read().rpartition(")")[2].split()[:2]
                with open(f"/proc/{pid}/environ", encoding="utf-8", errors="replace") as f:
                    variables = dict(entry.partition("=")[::2] for entry in f.read().split("\0"))
            except OSError:
                continue
            if self.out in line and state != "Z":
                found.append((int(pid), int(parent), variables.get("OMPI_COMM_WORLD_RANK")))
        return found

    def ranks(self):
        return {int(rank): pid for pid, _, rank in self.all() if rank is not None}

    def mpirun(self):
        ranks = [parent for _, parent, rank in self.all() if rank is not None]
        return ranks[0] if ranks else None

    def until(self, p, what, happened):
        end = time.monotonic() + LIMIT_S
        while not (value := happened()):
            if p.poll() is not None:
                self.fail(f"ended with {p.returncode} before {what}: {p.stderr.read()}")
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.005)
        return value

    def steps(self):
        with contextlib.suppress(OSError), open(os.path.join(self.out, "metrics.jsonl"), encoding="utf-8") as f:
            return f.read().count("\n")
        return 0

    def in_a_step(self, p):
        self.until(p, "a step", lambda: self.steps() >= 2)
        return self.ranks()

    def begun(self, p):
        """The ranks as soon as there are both: before MPI_Init, or in it."""
        return self.until(p, "both ranks", lambda: len(self.ranks()) == 2 and self.ranks())

    # ---------------------------------------------------------------- how it ends
    def left(self):
        segments = [name for pid in self.families for name in glob.glob(f"/dev/shm/*_segment.*.{pid:x}????.*")]
        return [pid for pid, _, _ in self.all()] + glob.glob(self.temporary + "/ompi*/*") + segments

    families = ()

    def know_family(self):
        """The number that all names of this mpirun's segments begin with, for left()."""
        for name in glob.glob(self.temporary + "/ompi*/*/contact.txt"):
            with open(name, encoding="utf-8") as f:
                self.families = [int(f.read().partition(".")[0]) >> 16 & 0xffff]

    def ends(self, p, status):
        try:
            _, said = p.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            self.fail("it hangs")
        self.assertEqual(p.returncode, status, said)
        self.assertEqual(self.left(), [], said)
        return said

    def own_words(self, said):
        """Of the program. A library may have noticed on its own that a peer is gone."""
        return [line for line in said.splitlines() if line.startswith("starring: ")]

    def state(self):
        with open(os.path.join(self.out, "state.json"), encoding="utf-8") as f:
            return json.load(f)

    def names(self, p, pattern, status=1, recorded=True):
        words = self.own_words(self.ends(p, status))
        self.assertEqual(len(words), 1, words)
        self.assertRegex(words[0], pattern)
        if recorded:
            self.assertEqual(self.state()["state"], "failed")
            self.assertRegex(self.state()["why"], pattern)


class Killed(Case):
    def test_a_rank(self):
        for rank in (0, 1):
            shutil.rmtree(self.out, ignore_errors=True)
            p = self.start()
            ranks = self.in_a_step(p)
            os.kill(ranks[rank], signal.SIGKILL)
            self.names(p, rf"rank {rank} \(pid {ranks[rank]}\) was killed.* after step \d+")

    def test_a_rank_before_mpi_init(self):
        p = self.start()
        ranks = self.begun(p)
        self.know_family()
        os.kill(ranks[1], signal.SIGKILL)
        # A supervisor that had no core before it died has never seen it.
        self.names(p, rf"rank 1 \(pid {ranks[1]}\) was killed|mpirun ended the ranks", recorded=False)

    def test_mpirun(self):
        for wait in (self.in_a_step, self.begun):
            shutil.rmtree(self.out, ignore_errors=True)
            p = self.start()
            wait(p)
            self.know_family()
            mpirun = self.mpirun()
            os.kill(mpirun, signal.SIGKILL)
            self.names(p, rf"mpirun \(pid {mpirun}\) was killed by signal 9", recorded=False)

    def test_the_command_beside_a_stopped_rank(self):
        """Nobody is left who could be told: all are ended all the same, those that stand still too."""
        p = self.start()
        ranks = self.in_a_step(p)
        self.know_family()
        os.kill(ranks[1], signal.SIGSTOP)
        p.kill()
        p.communicate()
        end = time.monotonic() + LIMIT_S
        while self.left() and time.monotonic() < end:
            time.sleep(0.02)
        self.assertEqual(self.left(), [])


    def test_a_rank_that_is_told_to_end(self):
        """By nobody whom it obeys."""
        p = self.start()
        os.kill(self.in_a_step(p)[1], signal.SIGTERM)
        self.names(p, "rank 1 was told to end by a signal of another process .* after step", recorded=False)


class StandsStill(Case):
    def stop(self, p, pid, pattern, **how):
        os.kill(pid, signal.SIGSTOP)
        self.names(p, pattern, **how)

    def test_before_mpi_init(self):
        p = self.start(deadline_s=DEADLINE_S)
        self.stop(p, self.begun(p)[1], "rank 1 gave no sign of life", recorded=False)

    def test_in_a_step(self):
        p = self.start(deadline_s=DEADLINE_S)
        self.stop(p, self.in_a_step(p)[0], "rank 0 gave no sign of life.* after step")

    def test_mpirun(self):
        p = self.start(deadline_s=DEADLINE_S)
        self.begun(p)
        mpirun = self.mpirun()
        self.stop(p, mpirun, rf"mpirun \(pid {mpirun}\) gave no sign of life", recorded=False)

    def test_the_guard(self):
        """It has nothing to say, and goes on when it is needed."""
        p = self.start(steps="30")
        self.in_a_step(p)
        guards = [pid for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()) if self.is_guard_of(p, pid)]
        self.assertEqual(len(guards), 1)
        os.kill(guards[0], signal.SIGSTOP)
        self.ends(p, 0)

    def is_guard_of(self, p, pid):
        with contextlib.suppress(OSError, IndexError):
            with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
                name, _, rest = f.read().partition("(")[2].rpartition(")")
            return name == "starring-guard" and int(rest.split()[1]) == p.pid
        return False

    def test_evaluating(self):
        """All steps are done, rank 1 has left, rank 0 evaluates."""
        p = self.start("--data", "long.txt", "--set", "eval_every=1", steps="60", deadline_s=DEADLINE_S, evaluation=FOREVER)
        self.until(p, "the end of all steps", lambda: os.path.exists(os.path.join(self.out, "state.json")) and
                   self.state()["state"] == "complete")
        self.stop(p, self.ranks()[0], "rank 0 gave no sign of life.* after step 60", recorded=False)


class Interrupted(Case):
    def one_message(self, said, name):
        """Behind the answer at once, if there were ranks to be asked."""
        words = self.own_words(said)
        words = words[1:] if words[0].endswith(f"{name}: ending after this step; again ends now") else words
        self.assertEqual(len(words), 1, words)
        self.assertIn(f"{name}: ended", words[0])
        return words[0]

    def test_in_a_step(self):
        for number, name in ((signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")):
            shutil.rmtree(self.out, ignore_errors=True)
            p = self.start()
            self.in_a_step(p)
            p.send_signal(number)
            self.assertIn("after step", self.one_message(self.ends(p, 128 + number), name))
            self.assertEqual(self.state()["state"], "interrupted")

    def test_before_mpi_init(self):
        p = self.start()
        self.begun(p)
        p.send_signal(signal.SIGTERM)
        self.one_message(self.ends(p, 143), "SIGTERM")

    def test_beside_a_death(self):
        """The step in hand will not end before the deadline, which is far away."""
        p = self.start()
        ranks = self.in_a_step(p)
        p.send_signal(signal.SIGSTOP)  # it hears of both at once
        os.kill(ranks[1], signal.SIGKILL)
        p.send_signal(signal.SIGTERM)
        p.send_signal(signal.SIGCONT)
        self.one_message(self.ends(p, 143), "SIGTERM")
        self.assertEqual(self.state()["state"], "interrupted")

    def test_twice(self):
        p = self.start()
        os.kill(self.in_a_step(p)[1], signal.SIGSTOP)
        until = time.monotonic() + LIMIT_S
        while p.poll() is None and time.monotonic() < until:
            p.send_signal(signal.SIGINT)
            time.sleep(0.05)
        self.one_message(self.ends(p, 130), "Ctrl-C")

    def test_beside_a_rank_that_stands_still(self):
        """The step in hand ends with the deadline: that is no failure of the ranks that waited."""
        for rank in (0, 1):
            shutil.rmtree(self.out, ignore_errors=True)
            p = self.start(deadline_s=DEADLINE_S)
            os.kill(self.in_a_step(p)[rank], signal.SIGSTOP)
            p.send_signal(signal.SIGINT)
            self.assertIn(f"rank {rank} gave no sign of life", self.one_message(self.ends(p, 130), "Ctrl-C"))
            self.assertEqual(self.state()["state"], "interrupted")


class OtherMpiruns(Case):
    """What is called mpirun, and starts nobody."""

    def start_with(self, script, **how):
        folder = self.at("other")
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, "mpirun")
        with open(path, "w", encoding="utf-8") as f:
            f.write(script)
        os.chmod(path, 0o755)
        self.environment = {**self.environment, "PATH": folder + os.pathsep + os.environ["PATH"]}
        return self.start(**how)

    def test_that_waits(self):
        p = self.start_with("#!/bin/sh\nsleep 1000\n", deadline_s=1)
        self.names(p, r"mpirun \(pid \d+\) has started 0 of 2 ranks, no more for \d+\.\d s, and was killed", recorded=False)

    def test_that_ends(self):
        self.names(self.start_with("#!/bin/sh\nexit 0\n"), "mpirun ended with status 0 before its ranks had begun", recorded=False)
        self.names(self.start_with("#!/bin/sh\nexit 3\n"), "mpirun ended with status 3 before its ranks had begun", recorded=False)

    def test_that_is_not_there(self):
        self.environment = {**self.environment, "PATH": "/nowhere"}
        self.names(self.start(), "mpirun: No such file or directory; run `make deps`", recorded=False)


class Fails(Case):
    def test_a_run_directory_that_cannot_be(self):
        """One rank fails while the other makes its channels, which have no way yet to tell anybody that it gives up."""
        self.out = self.at("n" * 300)  # what is known before is said before
        said = self.ends(self.start(steps="3", deadline_s=DEADLINE_S), 2)
        self.assertIn("n: cannot make the directory: File name too long", said)
        self.assertNotIn("egmentation", said)

    def test_a_refused_configuration(self):
        """mpirun alone would take ten seconds to end it, and describe at length that it does."""
        p = self.start("--data", "nothing.txt", steps="3")
        words = self.ends(p, 2).splitlines()
        self.assertEqual(len(words), 1, words)
        self.assertIn("nothing.txt", words[0])

    def test_a_rank_that_fails_in_a_step(self):
        p = self.start("--dtype", "fp32", "--lr", "1e30", steps="200")
        said = self.ends(p, 1)
        self.assertIn("diverged", said)
        self.assertNotIn("mpirun", said)
        self.assertEqual(self.state()["state"], "failed")


class Strangers(Case):
    """Who connects to the job's ports, or would like to."""

    LOOPBACK = {f"{struct.unpack('=I', socket.inet_aton('127.0.0.1'))[0]:08X}",
                "".join(f"{word:08X}" for word in struct.unpack("=4I", socket.inet_pton(socket.AF_INET6, "::1")))}

    def listeners(self, pids):
        """Addresses and ports, as everybody on this machine sees them."""
        inodes, found = set(), []
        for pid in pids:
            for fd in glob.glob(f"/proc/{pid}/fd/*"):
                with contextlib.suppress(OSError):
                    inodes.add(os.readlink(fd))
        for table in ("tcp", "tcp6"):
            with open(f"/proc/self/net/{table}", encoding="utf-8") as f:
                rows = [line.split() for line in f][1:]
            found += [row[1].split(":") for row in rows if row[3] == LISTENS and f"socket:[{row[9]}]" in inodes]
        return [(address, int(port, 16)) for address, port in found]

    def run_and_look(self, *more, under=(), **how):
        shutil.rmtree(self.out, ignore_errors=True)
        p = self.start(*more, under=under, **how)
        ranks = self.in_a_step(p)
        return p, self.listeners([p.pid, self.mpirun(), *ranks.values()])

    def test_nobody_listens(self):
        if subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False).returncode and \
           subprocess.run(["unshare", "-U", "-n", "true"], capture_output=True, check=False).returncode:
            self.skipTest("no networks can be made here")
        for medium in ("shm", "tcp"):
            p, found = self.run_and_look("--medium", medium)
            self.assertEqual(found, [], medium)
            p.send_signal(signal.SIGINT)
            self.ends(p, 130)

    @unittest.skipUnless(may_forbid_networks(), "no user namespaces")
    def test_without_a_network_of_its_own(self):
        p, found = self.run_and_look("--medium", "tcp", under=NO_NETWORKS)
        self.assertGreaterEqual(len(found), 3)  # mpirun's, and one a rank
        self.assertEqual([one for one in found if one[0] not in self.LOOPBACK], [])
        p.send_signal(signal.SIGINT)
        self.ends(p, 130)

    def as_nobody(self, ports):
        """Another user's process: it writes what no one expects, or nothing, to each port, and finds itself shut out."""
        "127.0.0.1".encode("idna")  # loads what the other user may not read
        told, tells = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.setgid(NOBODY)
                os.setuid(NOBODY)
                held = [socket.create_connection(("127.0.0.1", port)) for port in ports for _ in range(10)]
                for one in held[::2]:
                    with contextlib.suppress(OSError):
                        one.sendall(bytes(range(256)))
                for one in held:
                    one.settimeout(LIMIT_S / 3)
                    with contextlib.suppress(ConnectionError):  # closed with what nobody has read
                        assert one.recv(1) == b""
                os.write(tells, b"1")
            finally:
                os._exit(0)
        self.addCleanup(os.waitpid, child, 0)
        os.close(tells)
        self.assertEqual(os.read(told, 1), b"1", "a connection was kept")
        os.close(told)

    @unittest.skipUnless(os.geteuid() == 0 and may_forbid_networks(), "only root can be another user")
    def test_another_user_connects(self):
        p, found = self.run_and_look("--medium", "tcp", under=NO_NETWORKS)
        self.as_nobody({port for address, port in found if len(address) == 8})
        done = self.steps()
        self.until(p, "more steps", lambda: self.steps() > done)
        p.send_signal(signal.SIGINT)
        self.ends(p, 130)

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("nsenter"), "only root gets into another network")
    def test_an_idle_connection(self):
        """mpirun waits for it to close, for ever; its ranks have ended."""
        p = self.start("--delay", "0:constant:400", steps="25")
        self.in_a_step(p)
        mpirun = self.mpirun()
        rows = subprocess.run(["nsenter", "-t", str(mpirun), "-n", "cat", "/proc/self/net/tcp"], capture_output=True, text=True,
                              check=True).stdout.splitlines()[1:]
        ports = [int(row.split()[1].partition(":")[2], 16) for row in rows if row.split()[3] == LISTENS]
        self.assertTrue(ports)
        code = "import socket, sys, time\nheld = [socket.create_connection(('127.0.0.1', int(n))) for n in sys.argv[1:]]\n" \
               "print('held', flush=True)\ntime.sleep(600)\n"
        with subprocess.Popen(["nsenter", "-t", str(mpirun), "-n", "python3", "-c", code, *map(str, ports)], text=True,
                              stdout=subprocess.PIPE) as holder:
            self.addCleanup(holder.kill)
            self.assertEqual(holder.stdout.readline(), "held\n")
            self.ends(p, 0)
            holder.kill()


class Output(Case):
    """What becomes of what is printed is no reason to fail, whoever prints it."""

    LAUNCHES = ((), ("--launch", "threads"), ("--launch", "threads", "--topology", "local", "--workers", "1"),
                ("--launch", "processes", "--topology", "ps:sync"))

    def launches(self):
        for i, launch in enumerate(self.LAUNCHES):
            self.out = self.at(f"printed{i}")
            shutil.rmtree(self.out, ignore_errors=True)
            yield self.argv(*launch, steps="12")

    def complete(self):
        self.assertEqual(self.state()["state"], "complete")
        self.assertEqual(self.steps(), 12)

    def test_the_reader_leaves(self):
        for argv in self.launches():
            argv += ["--delay", "0:constant:200"]  # there is more to print when the reader has left
            with subprocess.Popen(argv, cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  env=self.environment) as p:
                p.stdout.readline()
                p.stdout.close()
                _, said = p.communicate(timeout=LIMIT_S)
            self.assertEqual(p.returncode, 0, said)
            self.assertEqual(said.count("nobody reads standard output"), 1, said)
            self.complete()

    def test_the_disk_is_full(self):
        for argv in self.launches():
            with open("/dev/full", "w", encoding="utf-8") as full:
                p = subprocess.run([*argv, "--set", "gradient_clipping=1"], cwd=self.folder, text=True, stdout=full,
                                   stderr=subprocess.PIPE, timeout=LIMIT_S, check=False, env=self.environment)
            self.assertEqual(p.returncode, 1, p.stderr)
            self.assertEqual(p.stderr.count("No space left on device"), 1, p.stderr)
            self.assertEqual(len(p.stderr.splitlines()), 1, p.stderr)
            self.complete()

    def test_closed_streams(self):
        for argv in self.launches():
            for closes in ("<&-", ">&-", "<&- >&- 2>&-"):
                shutil.rmtree(self.out, ignore_errors=True)
                p = subprocess.run(["sh", "-c", f'exec "$@" {closes}', "sh", *argv], cwd=self.folder, capture_output=True,
                                   timeout=LIMIT_S, check=False, env=self.environment)
                self.assertEqual(p.returncode, 0, p.stderr)
                with open(os.path.join(self.out, "metrics.jsonl"), encoding="utf-8") as f:
                    self.assertEqual([json.loads(line)["step"] for line in f], list(range(1, 13)), closes)


del Case  # unittest would run it

if __name__ == "__main__":
    unittest.main()
