"""Finds the processes of a run by a mark in their environment, and the shared memory that a run may leave."""
import contextlib
import os
import signal
import subprocess
import sys

import cli

MARK = "STARRING_DRILL"
SHARED = "/dev/shm"


@contextlib.contextmanager
def burning(count):
    """A context in which so many processes compute without end."""
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"], stdin=subprocess.DEVNULL, preexec_fn=cli.dies_with_us())
               for _ in range(count)]
    try:
        yield
    finally:
        for b in burners:
            b.kill()
            b.wait()


def read(path):
    try:
        with open(path, "rb") as f:
            return f.read()
    except OSError:
        return b""


def stat_of(pid):
    """(state letter, parent) of a process, or (None, None) when it is gone."""
    text = read(f"/proc/{pid}/stat").decode(errors="replace")
    behind = text[text.rfind(")") + 2:].split()
    return (behind[0], int(behind[1])) if len(behind) > 1 else (None, None)


def marked(mark):
    """{pid: argv} of the living processes that inherited the mark."""
    wanted, found = f"{MARK}={mark}".encode(), {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or wanted not in read(f"/proc/{name}/environ").split(b"\0"):
            continue
        if stat_of(name)[0] not in (None, "Z", "X"):
            found[int(name)] = [w.decode(errors="replace") for w in read(f"/proc/{name}/cmdline").split(b"\0")[:-1]]
    return found


def descriptors(pid):
    """[{number: target}], one entry per descriptor table of the process. Its threads usually share one."""
    tables = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            folder, found = f"/proc/{pid}/task/{thread}/fd", {}
            with contextlib.suppress(OSError):
                for fd in os.listdir(folder):
                    with contextlib.suppress(OSError):
                        found[fd] = os.readlink(f"{folder}/{fd}")
            if found and found not in tables:
                tables.append(found)
    return tables


def listening(pids):
    """The TCP ports that these processes listen on."""
    mine = {target[8:-1] for pid in pids for table in descriptors(pid) for target in table.values() if target.startswith("socket:[")}
    lines = (line.split() for path in ("/proc/net/tcp", "/proc/net/tcp6") for line in read(path).decode().splitlines()[1:])
    return {int(words[1].rpartition(":")[2], 16) for words in lines if words[3] == "0A" and words[9] in mine}


def role_of(argv, environment):
    """"worker 1", "scheduler" that was started by hand, "rank 0" of a ring, "mpirun", "run" of a launcher's only child, or None."""
    if not argv:
        return None
    if os.path.basename(argv[0]).startswith(("mpirun", "mpiexec", "orterun", "prterun")):
        return "mpirun"
    if len(argv) > 1 and argv[1] in ("worker", "server", "scheduler"):
        rank = argv[argv.index("--rank") + 1] if "--rank" in argv else None
        return argv[1] if rank is None else f"{argv[1]} {rank}"
    rank = environment.get("STARRING_RANK", environment.get("OMPI_COMM_WORLD_RANK"))
    if rank is not None:
        return f"rank {rank}"
    return "run" if "--life" in argv else None


def environment_of(pid):
    pairs = (w.decode(errors="replace").partition("=") for w in read(f"/proc/{pid}/environ").split(b"\0"))
    return {name: value for name, _, value in pairs}


def roles(mark):
    """{role: pid} of a run's processes."""
    return {role_of(argv, environment_of(pid)): pid for pid, argv in marked(mark).items()}


def send(pid, number):
    """Sends the signal. Returns whether the process existed."""
    try:
        os.kill(pid, number)
        return True
    except ProcessLookupError:
        return False


def end_all(mark):
    for pid in marked(mark):
        send(pid, signal.SIGKILL)


def is_of_a_run(name, mpi):
    """Whether a name in shared memory is of a run's processes, or of Open MPI for them. Benches and fuzzers create others."""
    if name.startswith(("vader_segment", "sm_segment")):
        return mpi
    return name.startswith("starring-") and not name.startswith(("starring-bench", "starring-fuzz"))


def segments():
    """The names in shared memory."""
    try:
        return set(os.listdir(SHARED))
    except OSError:
        return set()
