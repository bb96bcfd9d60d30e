"""The lab: one network namespace per host, and one with a bridge, which has a link of limited rate to each of the others.

          hub: bridge br0, 10.77.0.254
         /          |           \\
    port-w0      port-w1      port-s0       tbf on each port: what the rank receives
       |            |            |
     eth0         eth0         eth0         tbf on each eth0: what the rank sends
    ns w0        ns w1        ns s0

The machine's own network does not change: no address, route or rule. Labs of several processes may use the same addresses.

The names of namespaces contain the owner's process id and its start time: starlab-PID-START-NAME. A script that starts a lab,
or is called with --clean, removes namespaces whose owner has ended.
"""
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

import cli

from . import rate as rates

PREFIX = "starlab"
HUB = "hub"
SUBNET = "10.77.0.0/24"
MTU = 9000           # jumbo frames: headers are 0.7% of the bytes
QUEUE_MS = 20        # the length of a link's queue, above which packets are dropped; at least QUEUE_LEAST bytes
QUEUE_LEAST = 1000000
PACKET_MS = 1        # the largest packet that the kernel gives to a link: on a slow link each dropped packet of 64 KiB would cost much
PACKET_MOST = 65536
BURST_MS = 20        # what a link may send at once after it was idle, or after the kernel was late; at least one of the largest packets
BURST_LEAST = 72 << 10
HOSTS_MAX = 250


class LabError(Exception):
    """The lab cannot be built; the text says what to do."""


def started(pid):
    """The start time of a process, in the kernel's ticks; None: there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
            return int(f.read().rsplit(")", 1)[1].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def run(*words):
    """Runs a command of iproute2. Raises LabError with its error output."""
    p = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if p.returncode:
        raise LabError(f"{' '.join(words)}: {p.stderr.strip() or f'exit status {p.returncode}'}")
    return p.stdout


def check_possible(uid=None):
    """Raises LabError unless this process can build a lab: it needs root's rights, and the tools must be installed."""
    if (os.geteuid() if uid is None else uid) != 0:
        raise LabError("a cluster in a box is made of network namespaces, which only root may make: start it with sudo, "
                       "or leave --bandwidth out")
    missing = [tool for tool in ("ip", "tc", "unshare") if not shutil.which(tool)]
    if missing:
        raise LabError(f"{', '.join(missing)}: not installed; run `make deps`, or install the packages iproute2 and util-linux")
    probe = f"{PREFIX}-{os.getpid()}-{started(os.getpid())}-probe"
    try:
        run("ip", "netns", "add", probe)
    except LabError as e:
        raise LabError(f"root, but without the right to make network namespaces (a container needs CAP_SYS_ADMIN and "
                       f"CAP_NET_ADMIN: docker run --privileged): {e}") from None
    try:
        run("ip", "-n", probe, "link", "add", "br0", "type", "bridge")
        run("tc", "-n", probe, "qdisc", "add", "dev", "br0", "root", "tbf", "rate", "1gbit", "burst", "256k", "latency", "10ms")
    except LabError as e:
        raise LabError(f"this kernel or container gives no bridge or no tbf (modules bridge, veth, sch_tbf): {e}") from None
    finally:
        remove([probe])


# ---------------------------------------------------------------- leftovers
def namespaces():
    """The names of all labs' namespaces."""
    try:
        return [name for name in os.listdir("/run/netns") if name.startswith(PREFIX + "-")]
    except OSError:
        return []


def directories():
    """The labs' directories for temporary files."""
    base = tempfile.gettempdir()
    return [os.path.join(base, name) for name in os.listdir(base) if name.startswith(PREFIX + "-")]


def owner_lives(name):
    """Whether the process that owns this name's lab is still running."""
    words = os.path.basename(name).split("-")
    return len(words) > 2 and words[1].isdigit() and words[2].isdigit() and started(int(words[1])) == int(words[2])


def remove(names):
    """Kills the processes in these namespaces, and removes the namespaces with their links. A missing process or namespace is no error."""
    until = time.monotonic() + 5
    left = names
    while left and time.monotonic() < until:
        left = [name for name in left if end_all(map(int, subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True,
                                                                         check=False).stdout.split()))]
        if left:
            time.sleep(0.05)
    for name in names:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def end_all(pids):
    """Kills these processes. Returns whether there were any."""
    pids = list(pids)
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return bool(pids)


def clean():
    """Removes the namespaces and directories of labs whose owner has ended. Returns their names."""
    names = [name for name in namespaces() if not owner_lives(name)]
    places = [place for place in directories() if not owner_lives(place)]
    remove(names)
    for place in places:
        shutil.rmtree(place, ignore_errors=True)
    return names + places


# ---------------------------------------------------------------- a lab
class Lab:
    """A context that builds the lab, and removes it at its end, also after an exception or a signal; after a SIGKILL the next lab removes it.
    bits: per second, of each link, each way. hosts: their names, of at most 6 letters."""

    def __init__(self, bits, hosts):
        if len(hosts) > HOSTS_MAX:
            raise LabError(f"{len(hosts)} ranks: a lab has at most {HOSTS_MAX}")
        self.bits, self.hosts = bits, list(hosts)
        self.prefix = f"{PREFIX}-{os.getpid()}-{started(os.getpid())}"
        self.directory = os.path.join(tempfile.gettempdir(), self.prefix)
        self.children = []
        self.handlers = {}  # the signal handlers that this lab has replaced

    def __enter__(self):
        check_possible()
        clean()
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) == signal.SIG_DFL:  # by default it would end this process at once, and leave the lab
                self.handlers[number] = signal.signal(number, exit_by_signal)
        try:
            os.mkdir(self.directory, 0o700)
            self.build()
        except FileExistsError:
            raise LabError(f"{self.directory}: this process has a lab already") from None
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        # A second Ctrl-C must not interrupt the removal.
        kept = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            remove([name for name in namespaces() if name.startswith(self.prefix + "-")])
            for child in self.children:
                child.kill()
                child.wait()
            shutil.rmtree(self.directory, ignore_errors=True)
        finally:
            for number, handler in {**kept, **self.handlers}.items():
                signal.signal(number, handler)

    def namespace(self, host):
        return f"{self.prefix}-{host}"

    def address(self, host):
        return f"10.77.0.{254 if host == HUB else 1 + self.hosts.index(host)}"

    def build(self):
        hub = self.namespace(HUB)
        run("ip", "netns", "add", hub)
        run("ip", "-n", hub, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", hub, "link", "set", "br0", "mtu", str(MTU), "up")
        run("ip", "-n", hub, "addr", "add", self.address(HUB) + "/24", "dev", "br0")
        run("ip", "-n", hub, "link", "set", "lo", "up")
        for host in self.hosts:
            self.join(host)

    def join(self, host):
        """Adds one host: its namespace, its link, and the rate limits at both ends of the link."""
        hub, own, port = self.namespace(HUB), self.namespace(host), "p-" + host
        run("ip", "netns", "add", own)
        run("ip", "link", "add", port, "netns", hub, "type", "veth", "peer", "name", "eth0", "netns", own)
        run("ip", "-n", hub, "link", "set", port, "mtu", str(MTU), "master", "br0", "up")
        run("ip", "-n", own, "link", "set", "eth0", "mtu", str(MTU), "up")
        run("ip", "-n", own, "link", "set", "lo", "up")
        run("ip", "-n", own, "addr", "add", self.address(host) + "/24", "dev", "eth0")
        # The same congestion control on every machine; if the kernel does not have it, the machine's own stays.
        subprocess.run(["ip", "netns", "exec", own, "sysctl", "-qw", "net.ipv4.tcp_congestion_control=cubic"],
                       capture_output=True, check=False)
        burst = max(int(self.bits / 8 * BURST_MS / 1e3), BURST_LEAST)
        limit = burst + max(int(self.bits / 8 * QUEUE_MS / 1e3), QUEUE_LEAST)
        packet = min(max(int(self.bits / 8 * PACKET_MS / 1e3), MTU), PACKET_MOST)
        for where, device in ((own, "eth0"), (hub, port)):
            run("ip", "-n", where, "link", "set", device, "gso_max_size", str(packet))
            run("tc", "-n", where, "qdisc", "add", "dev", device, "root", "tbf", "rate", f"{self.bits:.0f}bit",
                "burst", str(burst), "limit", str(limit))

    def counters(self):
        """{host: (bytes sent, bytes received)} over its link so far."""
        out = {}
        for host in self.hosts:
            link = json.loads(run("ip", "-n", self.namespace(host), "-s", "-j", "link", "show", "eth0"))[0]
            stats = link.get("stats64") or link["stats"]
            out[host] = (stats["tx"]["bytes"], stats["rx"]["bytes"])
        return out

    def start(self, host, argv, log, env=None):
        """Starts a process on a host. It is killed when this process dies."""
        words = ["ip", "netns", "exec", self.namespace(host)]
        child = subprocess.Popen(words + argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=env,
                                 start_new_session=True, preexec_fn=cli.dies_with_us())
        self.children.append(child)
        return child

    def __str__(self):
        return f"{len(self.hosts)} hosts, {rates.text(self.bits)} each way"


def exit_by_signal(number, _):
    """The handler of SIGTERM and SIGHUP: raises an exception, so that the lab is removed."""
    raise SystemExit(128 + number)
