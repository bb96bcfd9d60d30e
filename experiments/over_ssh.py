#!/usr/bin/env python3
"""Starts a command once for each rank of a job, on other hosts over ssh, and ends all ranks together.

    experiments/over_ssh.py --hosts h1:2,h2:2 starring train --topology zero:2 --model demo --data demo --out runs/ring
    experiments/over_ssh.py --hostfile hosts.txt starring train --topology ps:sync --servers 2 --model demo --data demo --out runs/star

A line of a hostfile is h1, h1:2 or h1 slots=2; if a host is named twice, its numbers of ranks are added. On each host the command runs in the
folder with the name of the current one, and by the command's local path. Each rank gets torchrun's variables; MASTER_ADDR and MASTER_PORT may
be set in the environment. The job's key is that of the environment or a random one. The key and the signals to end are sent through the
standard input of each ssh; when that input ends, the rank is ended.

Lines are labelled [HOST:RANK], except those of rank 0's standard output. The first rank that dies is named, and the others are ended; none is
started again. Exit status: 0 all ranks ended with 0; 2 none was started, or the first that died had 2; 128 + the signal that ended the job; else 1.
"""
import argparse
import asyncio
import contextlib
import os
import re
import resource
import secrets
import shlex
import shutil
import signal
import sys

SSH = "ssh -o BatchMode=yes -o ConnectTimeout=20 -o ServerAliveInterval=5 -o ServerAliveCountMax=3"
KEY = "STARRING_JOB_KEY"
HOST = re.compile(r"((?:[\w.+-]+@)?(?:\w[\w.-]*|\[[\w:.%-]+\]))(?::(\d+))?((?:\s+(?:max[-_])?slots\s*=\s*\d+)*)")
INSIDE = b"over_ssh: here"  # printed by the rank's script; all output before it is the login's
ANSWER_S = 60  # the time that all hosts have to start their ranks
SOON_S = 0.3   # two deaths may be reported in the wrong order, and one Ctrl-C twice, within this time
GRACE_S = 5    # the time that ranks have to end by themselves, and then after SIGTERM
# "$@" is the command. It leads a process group, which is killed when the command has ended. It does not run in the background, where a
# shell makes it ignore Ctrl-C.
RANK = ("""exec 3<&0 4>&1 5>&2 </dev/null; { setsid sh -c 'echo rank $$; exec "$@" >&4 2>&5 3<&- 4>&- 5>&-' sh "$@"; echo ended $?; } 2>/dev/null | """
        """{ read -r is rank; [ "$is" = rank ] || exit 1; { while read -r word; do kill -s "$word" "$rank"; done; kill -s TERM "$rank"; """
        """for s in SECONDS; do sleep 1; done; kill -s KILL -- "-$rank"; } <&3 >/dev/null 4>&- 5>&- & reader=$!; exec 3<&-; read -r is status; """
        """kill "$reader"; kill -s KILL -- "-$rank"; exit "${status:-1}"; } 2>/dev/null""")


def put(fd, data):
    try:
        while data:
            data = data[os.write(fd, data):]
    except OSError:  # the reader has closed the pipe, or the disk is full; the job continues without this output
        os.dup2(os.open(os.devnull, os.O_WRONLY), fd)


class Rank(asyncio.SubprocessProtocol):
    def __init__(self, job, number, login, local, locals_):
        self.job, self.number, self.login, self.host = job, number, login, login.rpartition("@")[2]
        self.place = {"RANK": number, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": locals_}
        self.answered, self.ended = asyncio.Event(), asyncio.Event()  # answered: the rank's script runs, or ssh has ended
        self.ssh, self.inside, self.status, self.ended_s, self.last_line, self.rest = None, False, None, 0, "", [b"", b"", b""]

    def argv(self):
        variables = " ".join(f"{name}={shlex.quote(str(value))}" for name, value in {**self.place, **self.job.variables}.items())
        script = (f"cd {shlex.quote(os.getcwd())} || exit 1; set -- {' '.join(map(shlex.quote, self.job.command))}; "
                  "for it in \"$1\" setsid; do command -v \"$it\" >/dev/null || { echo \"$it: not found\" >&2; exit 1; }; done; "
                  f"echo '{INSIDE.decode()}'; read -r {KEY} || exit 1; export {KEY} {variables}; {RANK.replace('SECONDS', '1 ' * GRACE_S)}")
        return [*self.job.ssh, self.login, "exec sh -c " + shlex.quote(script)]

    async def live(self):
        try:
            self.ssh, _ = await self.job.loop.subprocess_exec(lambda: self, *self.argv(), start_new_session=True)
            if self.job.number and not self.job.began_s:  # Ctrl-C came meanwhile, and ended those that had begun
                self.kill()
        except OSError as e:
            self.connection_lost(e)
        await self.ended.wait()

    def kill(self):  # its host hears the end of its input; ssh.kill() would ask for the status, which then reaches nobody else
        if self.ssh and self.ssh.get_returncode() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.ssh.get_pid(), signal.SIGKILL)

    def pipe_data_received(self, fd, data):
        *lines, self.rest[fd] = (self.rest[fd] + data).split(b"\n")
        for line in lines:
            if self.inside:
                put(fd, (f"[{self.host}:{self.number}] ".encode() if self.number or fd == 2 else b"") + line + b"\n")
            if line == INSIDE:
                self.inside, self.last_line = True, ""
                self.answered.set()
            elif line.strip() and (fd == 2 or not self.inside):
                self.last_line = line.decode(errors="replace").strip()

    def pipe_connection_lost(self, fd, _):
        self.pipe_data_received(fd, b"\n" if self.rest[fd] else b"")

    def process_exited(self):
        # connection_lost is not called while another process holds ssh's output open.
        self.job.loop.call_later(GRACE_S, self.connection_lost, None)

    def connection_lost(self, e):
        if self.status is None:
            status, self.last_line = self.ssh.get_returncode() if self.ssh else 255, str(e or self.last_line)
            self.status, self.ended_s = status if status >= 0 else 255, self.job.loop.time()
            self.answered.set()
            self.ended.set()
            self.job.rank_ended(self)

    def how(self):
        number, name = self.status - 128, f"rank {self.number} on {self.host}"
        what = (f"the connection to {name} has ended" if self.status == 255 else f"{name} ended with exit status {self.status}" if number <= 0
                else f"{name} was killed by signal {number} ({signal.strsignal(number)})")
        return f"{what} {self.ended_s - self.job.began_s:.1f} s after the start"


class Job:
    def __init__(self, args):
        self.ssh, self.go_on, self.command = shlex.split(args.ssh), args.go_on, [shutil.which(args.command[0]) or args.command[0], *args.command[1:]]
        self.variables = {"WORLD_SIZE": sum(args.hosts.values()), "MASTER_ADDR": args.master,
                          "MASTER_PORT": os.environ.get("MASTER_PORT") or 20000 + secrets.randbelow(10000)}
        places = [(login, local, count) for login, count in args.hosts.items() for local in range(count)]
        self.ranks = [Rank(self, number, *place) for number, place in enumerate(places)]
        self.began_s, self.first, self.number, self.number_s, self.loop = 0, None, 0, 0, asyncio.get_running_loop()

    def tell(self, word):
        for rank in self.ranks:
            if word and rank.ssh and rank.ssh.get_returncode() is None:
                rank.ssh.get_pipe_transport(0).write(word.encode() + b"\n")
            elif not word:
                rank.kill()

    def end(self, *words):
        for i, word in enumerate((*words, None)):  # the signals in this order, GRACE_S apart; None: kills ssh
            self.loop.call_later(i * GRACE_S, self.tell, word)

    def interrupt(self, number):
        if not self.began_s or (self.number and self.loop.time() - self.number_s > SOON_S):
            self.end(*["KILL"] * bool(self.began_s))
        elif not self.number:
            self.tell(number.name[3:])
        self.number, self.number_s = self.number or number, self.number_s or self.loop.time()

    def ends_job(self, rank):  # whether the rank has failed, and the job must end for it
        return rank.status not in (None, 0, self.number and 128 + self.number) and not (self.go_on and rank.number and rank.status != 2)

    def rank_ended(self, rank):
        if self.ends_job(rank):
            self.loop.call_later(SOON_S, self.judge)
        elif self.began_s and rank.status and not self.number and self.ranks[0].status is None:
            put(2, f"over_ssh: {rank.how()}; the others continue, if they can\n".encode())
        elif self.go_on and not rank.number:
            self.loop.call_later(GRACE_S, self.end, "TERM", "KILL")

    def judge(self):
        if self.began_s and not self.first and (dead := list(filter(self.ends_job, self.ranks))):
            # A rank that a signal has killed counts as the first: the others may have failed because of it.
            self.first = min(dead, key=lambda rank: (not 128 < rank.status < 255, rank.ended_s))
            words = f"; its last line: {self.first.last_line}" if self.first.last_line else ""
            put(2, f"over_ssh: error: {self.first.how()}: the first to fail, the others are ended{words}\n".encode())
            self.loop.call_later(GRACE_S, self.end, "TERM", "KILL")

    async def run(self):
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                self.loop.add_signal_handler(number, self.interrupt, signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)
        lives = [asyncio.ensure_future(rank.live()) for rank in self.ranks]
        await asyncio.wait([asyncio.ensure_future(rank.answered.wait()) for rank in self.ranks], timeout=ANSWER_S)
        absent = {rank.login: rank.last_line or f"ssh has not let the rank in within {ANSWER_S} s" for rank in self.ranks[::-1]
                  if not rank.inside or rank.status is not None}
        if absent or self.number:
            for login in reversed([] if self.number else absent):
                put(2, f"over_ssh: error: {login}: {absent[login]}; no rank was started\n".encode())
            self.end()
        else:
            self.began_s = self.loop.time()
            self.tell(os.environ.get(KEY) or secrets.token_hex(32))
        await asyncio.gather(*lives)
        for ssh in (rank.ssh for rank in self.ranks if rank.ssh):
            ssh.close()  # another process may still have its pipes
        self.judge()
        well = self.began_s and not self.first and not any(rank.status for rank in self.ranks if not (self.go_on and rank.number))
        return 0 if well else 128 + self.number if self.number else 2 if not self.began_s or self.first.status == 2 else 1


def hosts_of(p, lines, where):
    hosts = {}
    for text in filter(None, (line.split("#")[0].strip() for line in lines)):
        match = HOST.fullmatch(text)
        slots = match and (re.search(r"\sslots\s*=\s*(\d+)", match[3]) or [None, match[2] or "1"])[1]
        if not match or int(slots) < 1:
            p.error(f"{where}: \"{text}\": write h1, me@h1, h1:2, in a file also h1 slots=2, and of IPv6 [fd00::1]:2")
        login = re.sub(r"[\[\]]", "", match[1])
        hosts[login] = hosts.get(login, 0) + int(slots)
    first = os.environ.get("MASTER_ADDR") or next(iter(hosts), "").rpartition("@")[2]
    if not hosts or (len(hosts) > 1 and re.match(r"localhost$|::1$|127\.", first)):
        p.error(f"{where}: " + (f"other hosts do not reach the first as {first}: give its name, or MASTER_ADDR" if hosts else "no host is named"))
    return hosts, first


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = p.add_mutually_exclusive_group(required=True)
    which.add_argument("--hosts", metavar="H:N,..", help="so many ranks on each host (1)")
    which.add_argument("--hostfile", type=argparse.FileType(errors="replace"), metavar="FILE", help="the same, from lines HOST slots=N")
    p.add_argument("--ssh", default=SSH, metavar="COMMAND", help="what makes a connection, with its options (%(default)s)")
    p.add_argument("--go-on", action="store_true", help="of a job with --elastic: a rank that dies, if it is not rank 0, ends no other")
    p.add_argument("--dry-run", action="store_true", help="print what would be started, a line each")
    p.add_argument("command", nargs=argparse.REMAINDER, help="starring train and its options, or another command")
    args = p.parse_args()
    args.command = args.command[args.command[:1] == ["--"]:] or p.error("which command? Write it after the options: starring train ..")
    args.hosts, args.master = hosts_of(p, args.hostfile or args.hosts.split(","), f"--hostfile {args.hostfile.name}" if args.hostfile else "--hosts")
    return args


async def main(args):
    job = Job(args)
    return await job.run() if not args.dry_run else print("\n".join(shlex.join(rank.argv()) for rank in job.ranks))


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parse())))
