"""Hosts of a cluster on this machine: each a network namespace of netlab's lab, with mounts, a name, processes, shared memory and a
boot identity of its own. Nothing but the program and the system's files is common to two of them.

    hub 10.77.0.254
     |- h1 10.77.0.1   the test's folder, /run and /dev/shm are file systems in memory of its own; what lay in the folder when the
     |- h2 10.77.0.2   hosts began is copied into each, and the folder's shared/ is one for all where the test asks for it
     `- h3 10.77.0.3

A host ends when its first process does, and whatever runs there ends with it: sshd, Slurm's daemons, ranks. All names resolve
from /etc/hosts. A host has sshd on port 22 (begin_ssh) with keys of this test alone, and plain `ssh h2` works.
"""
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from fixture import Started
from netlab import lab

LIMIT_S = 60         # of what a host begins with
BITS = 10e9          # of a link
TOOLS = ("ip", "unshare", "nsenter", "mount", "ssh-keygen")
MARK = "STARRING_DRILL"
# $1: the folder; $2: the host's name; $3: "shared" where the folder's shared/ is one for all. Files of /etc are put over those of the
# machine in this host's view alone.
FIRST = r"""
set -e
mount --make-rprivate /
hostname "$2"
mount -t proc proc /proc
own=$1/.host-$2
mount --bind "$own/boot_id" /proc/sys/kernel/random/boot_id
for name in hosts nsswitch.conf resolv.conf passwd; do mount --bind "$1/.etc/$name" "/etc/$name"; done
[ ! -d "$1/.etc/ssh" ] || [ ! -d /etc/ssh ] || mount --bind "$1/.etc/ssh" /etc/ssh
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -m 755 /run/sshd /run/munge /run/own /run/slurm
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs tmpfs /run/own
cp -a "$1/." /run/own/
rm -rf /run/own/shared /run/own/.host-*
mkdir -p /run/own/tmp
if [ "$3" = shared ]; then mkdir /run/own/shared; mount --bind "$1/shared" /run/own/shared; fi
mount --move /run/own "$1"
cd "$1"
trap "" CHLD
touch /run/begun
exec sleep infinity
"""
SSH = """Host *
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  IdentityFile /etc/ssh/user_key
  LogLevel ERROR
  SendEnv {mark}
"""
SSHD = """Port 22
HostKey /etc/ssh/host_key
AuthorizedKeysFile /etc/ssh/user_key.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
StrictModes no
UsePAM no
UseDNS no
AcceptEnv {mark}
MaxStartups 100
"""


def why_not(*tools):
    """Why no hosts can be made here, or why they lack one of these tools; None: they can be had."""
    try:
        lab.check_possible()
    except lab.LabError as e:
        return str(e)
    missing = [tool for tool in (*TOOLS, *tools) if not where_is(tool)]
    return f"{', '.join(missing)}: not installed; .ci/deps tests installs what there is" if missing else None


def where_is(tool):
    return shutil.which(tool, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


class Host:
    """One of them. Paths are the test folder's, as the host sees it."""

    def __init__(self, hosts, name):
        self.hosts, self.name, self.address = hosts, name, hosts.lab.address(name)
        self.log = open(os.path.join(hosts.folder, f".host-{name}", "log"), "w", encoding="utf-8")  # closed with the hosts
        self.process = hosts.lab.start(name, ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "sh", "-c",
                                              FIRST, "sh", hosts.folder, name, "shared" if hosts.shared else ""], self.log)
        self.pid = None  # of its first process, here
        self.daemons = []

    def wait(self):
        """Waits until it has begun."""
        end = time.monotonic() + LIMIT_S
        while self.process.poll() is None and time.monotonic() < end:
            with contextlib.suppress(OSError, ValueError):
                with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children", encoding="ascii") as f:
                    pid = int(f.read())
                if os.path.exists(f"/proc/{pid}/root/run/begun"):
                    self.pid = pid
                    return
            time.sleep(0.005)
        with open(self.log.name, encoding="utf-8") as f:
            raise lab.LabError(f"host {self.name} did not begin: {f.read()}")

    def inside(self, *words, env=None):
        """The words that carry out `words` here, in the test's folder; `under` of Runs.start. env: what the environment has besides."""
        return ["nsenter", "-t", str(self.pid), "-m", "-u", "-i", "-n", "-p", "env", "-C", self.hosts.folder,
                f"TMPDIR={self.hosts.folder}/tmp", *(f"{k}={v}" for k, v in (env or {}).items()), *words]

    def start(self, case, *words, env=None):
        """A program under way here."""
        return Started(case, self.inside(*words, env=env))

    def run(self, *words, env=None, status=0, limit_s=LIMIT_S):
        """The ended process of what must end with that status; None: with any."""
        p = subprocess.run(self.inside(*words, env=env), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                           timeout=limit_s)
        if status is not None and p.returncode != status:
            raise lab.LabError(f"{self.name}: {' '.join(words)}: exit status {p.returncode}: {p.stdout}{p.stderr}")
        return p

    def daemon(self, *words, ready, env=None):
        """Begins what ends with the host, and waits until ready() is true."""
        child = subprocess.Popen(self.inside(*words, env=env), stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        self.daemons.append(child)
        end = time.monotonic() + LIMIT_S
        while not ready():
            if child.poll() or time.monotonic() > end:  # one that goes into the background ends with 0
                with open(self.log.name, encoding="utf-8", errors="replace") as f:
                    raise lab.LabError(f"{self.name}: {words[0]} did not begin: {f.read()}")
            time.sleep(0.02)

    def path(self, *names):
        """Where a file of its folder, or of its system where the name is absolute, lies in this machine's view."""
        return f"/proc/{self.pid}/root" + os.path.join(self.hosts.folder, *names)

    def begin_ssh(self):
        self.daemon(where_is("sshd"), "-D", "-e", ready=lambda: self.run(
            "ssh", "-o", "BatchMode=yes", self.name, "true", status=None).returncode == 0)

    # ---------------------------------------------------------------- what may befall it
    def cut(self):
        """From now on no packet reaches it or leaves it; nobody is told: its link stays, but the bridge does not have its port."""
        self._link("nomaster")

    def join(self):
        self._link("master", "br0")

    def vanish(self):
        """It is off: no packet says so."""
        self.cut()
        self.end()

    def end(self):
        """Its processes are gone, and have been waited for."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.process.wait()
            self.pid = None
        for child in self.daemons:
            child.wait()

    @contextlib.contextmanager
    def dropping(self, share):
        """Loses that share of what it sends and receives: for so much of each period all of it. Periods differ, or what TCP says again
        after 0.2 s, 0.4 s and so on would be lost again and again."""
        words = "while :; do for ms in 53 97 31 79 113 67 41; do " + "; ".join(
            f"ip link set p-{self.name} {how}; sleep $(awk \"BEGIN {{print $ms * {part / 1000}}}\")"
            for how, part in (("nomaster", share), ("master br0", 1 - share))) + "; done; done"
        child = self.hosts.lab.start(lab.HUB, ["sh", "-c", words], subprocess.DEVNULL)
        try:
            yield
        finally:
            child.kill()
            child.wait()
            self.join()

    def _link(self, *words):
        lab.run("ip", "-n", self.hosts.lab.namespace(lab.HUB), "link", "set", "p-" + self.name, *words)


class Hosts:
    """h1, h2, ... of a test or of a class of tests, gone at its end. case.folder is there. tools: what the test needs besides."""

    def __init__(self, case, count, shared=False, ssh=False, tools=()):
        reason = why_not(*tools, *(["sshd"] if ssh else []))
        if reason:
            raise unittest.SkipTest(reason)
        self.folder, self.shared = os.path.realpath(case.folder), shared
        self.names = [f"h{i + 1}" for i in range(count)]
        self.lab = lab.Lab(BITS, self.names)
        later = case.addClassCleanup if isinstance(case, type) else case.addCleanup
        self.lab.__enter__()
        later(self._end)
        self._write_files(ssh)
        self.all = []
        for name in self.names:
            self.all.append(Host(self, name))
        for host in self.all:
            host.wait()
        if ssh:
            for host in self.all:
                host.begin_ssh()

    def __getitem__(self, index):
        return self.all[index]

    def __len__(self):
        return len(self.all)

    def _end(self):
        for host in self.all:
            host.end()
        self.lab.__exit__()
        for host in self.all:
            host.log.close()

    def _write_files(self, ssh):
        etc = os.path.join(self.folder, ".etc")
        os.makedirs(etc)
        if self.shared:
            os.makedirs(os.path.join(self.folder, "shared"), exist_ok=True)

        def write(content, *names, mode=0o644):
            path = os.path.join(self.folder, *names)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as f:
                f.write(content)
            os.chmod(path, mode)
        write("".join(f"{address} {name}\n" for address, name in [("127.0.0.1", "localhost"), *(
            (self.lab.address(name), name) for name in self.names)]), ".etc", "hosts")
        write("passwd: files\ngroup: files\nshadow: files\nhosts: files\n", ".etc", "nsswitch.conf")
        write("", ".etc", "resolv.conf")
        with open("/etc/passwd", encoding="utf-8") as f:
            write(f.read(), ".etc", "passwd")
        for name in self.names:
            with open("/proc/sys/kernel/random/uuid", encoding="ascii") as f:
                write(f.read(), f".host-{name}", "boot_id")
        if ssh:
            write(SSH.format(mark=MARK), ".etc", "ssh", "ssh_config")
            write(SSHD.format(mark=MARK), ".etc", "ssh", "sshd_config")
            for key in ("host_key", "user_key"):
                subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", os.path.join(etc, "ssh", key)], check=True)
