"""Runs one training command in a lab: each role of a star, and each rank of a ring, has its own host."""
import json
import os
import re
import subprocess
import time

from . import rate as rates
from .lab import HUB, SUBNET, Lab, LabError

PORT = 9000
ASK_SECONDS = 60
GRACE_S = 10            # the time that the other processes have to end after one has failed
FLAGS = ("--no-weights", "--force", "--save-on-interrupt")  # options that are passed to train or to each worker; all others become configuration
LEFT = "netlab.json"


def train(argv, log, limit, bandwidth):
    """Runs `starring train ...` (argv) with each rank behind a link of the bandwidth, its output in the open file `log`. It
    leaves an ordinary run directory, with netlab.json in it. Returns the exit status, or a sentence if it was killed after
    `limit` seconds (None: no limit). Raises LabError or ValueError if this machine or the command does not allow it."""
    bits, config = rates.parse(bandwidth), resolve(argv)
    if config["topology"] == "local":
        raise LabError("--topology local is one process and has no links: leave --bandwidth out")
    config["medium"] = "tcp"
    flags = [word for word in argv if word in FLAGS]
    with Lab(bits, hosts_of(config)) as lab:
        path = os.path.join(lab.directory, "config.json")
        over_mpi = is_ring(config) and not asks_for_tcp(argv)
        start = start_over_mpi if over_mpi else start_over_tcp if is_ring(config) else start_star
        config["launch"] = "mpi" if over_mpi else "auto" if is_ring(config) else "processes"
        if is_ring(config):  # with mpirun the ranks must use MPI
            config["ring"] = {**config.get("ring", {}), "collective": "mpi" if over_mpi else "tcp"}
        # The program lets no role join without a key or this option. The namespaces' links lead only to each other, and the wire is
        # measured, not the cipher; a key in the environment is used.
        if not is_ring(config) and not os.environ.get("STARRING_JOB_KEY"):
            config["security"] = {**(config.get("security") or {}), "insecure": True}
        with open(path, "w", encoding="utf-8") as f:
            json.dump(config, f)
        status = wait(start(lab, argv[0], config, path, flags, log), limit)
        if status == 0:
            write_counters(lab, config["out"])
    return status


def asks_for_tcp(argv):
    """Whether the command asks for the ring's engine tcp. The resolved configuration cannot tell: it always has tcp, because of
    --medium tcp."""
    return re.search(r"(--collective[ =]|ring\.collective=)tcp( |$)", " ".join(argv)) is not None


def is_ring(config):
    return not config["topology"].startswith("ps:")


def server_host(config, server):
    """The name of a server's host: its own one, or its worker's."""
    return f"{'w' if config['parameter_server']['servers_on'] == 'workers' else 's'}{server}"


def hosts_of(config):
    """The names of all hosts: one per rank; a server that runs with a worker shares the worker's."""
    if is_ring(config):
        return [f"r{i}" for i in range(config["workers"])]
    servers = [server_host(config, i) for i in range(config["parameter_server"]["servers"])]
    return list(dict.fromkeys(["sch", *servers, *(f"w{i}" for i in range(config["workers"]))]))


def resolve(argv):
    """The configuration of a training command, as the program resolves it."""
    words = [word for word in argv if word not in FLAGS]
    try:
        p = subprocess.run(words + ["--medium", "tcp", "--print-config"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                           timeout=ASK_SECONDS, check=False)
    except OSError as e:
        raise LabError(f"cannot start {argv[0]}: {e.strerror}; build it with make, or name it with --program") from None
    if p.returncode:
        raise LabError(p.stderr.strip())
    config = json.loads(p.stdout)
    if not config.get("out"):
        raise LabError("every rank must know the run directory: give --out DIR")
    config["out"] = os.path.abspath(config["out"])
    config["threads"] = config.get("threads") or max(1, (os.cpu_count() or 1) // config["workers"])
    return config


def start_star(lab, program, config, path, flags, log):
    """Starts all roles by hand, as on many machines."""
    program = os.path.abspath(program)
    scheduler = f"tcp://{lab.address('sch')}:{PORT}"
    children = [lab.start("sch", [program, "scheduler", "-c", path, "--bind", scheduler], log)]
    joins = ["-c", path, "--scheduler", scheduler]
    for i in range(config["parameter_server"]["servers"]):
        host = server_host(config, i)
        bind = f"parameter_server.bind=tcp://{lab.address(host)}:*"
        children.append(lab.start(host, [program, "server", *joins, "--rank", str(i), "--set", bind], log))
    for i in range(config["workers"]):
        children.append(lab.start(f"w{i}", [program, "worker", *joins, "--rank", str(i), *flags], log))
    return children


def start_over_tcp(lab, program, config, path, flags, log):
    """Starts a ring's ranks by hand, with torchrun's variables: they connect at rank 0's address."""
    command = [os.path.abspath(program), "train", "-c", path, *flags]
    return [start_one(lab, rank, config["workers"], command, log) for rank in range(config["workers"])]


def start_one(lab, rank, ranks, command, log):
    """Starts a rank on its host. The host gets its own hostname, since ranks with the same hostname would use shared memory."""
    host = lab.hosts[rank]
    env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", MASTER_ADDR=lab.address(lab.hosts[0]),
               MASTER_PORT=str(PORT))
    return lab.start(host, ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', host, *command], log, env)


def start_over_mpi(lab, program, config, path, flags, log):
    return [start_ranks(lab, config["workers"], [os.path.abspath(program), "train", "-c", path, *flags], log)]


def start_ranks(lab, ranks, command, log):
    """Starts the ranks with mpirun, which runs in the hub. Instead of ssh it calls a script that enters the host's namespace. Each daemon
    gets its own hostname, so that mpirun treats them as several hosts. The ranks get this machine's hostname again, for their reports,
    and rank 0's address in MASTER_ADDR, since they cannot find it by name."""
    shell = os.path.join(lab.directory, "shell")
    with open(shell, "w", encoding="utf-8") as f:
        f.write("#!/bin/sh\nhost=$1\nshift\n"
                f"exec ip netns exec {lab.namespace('$host')} unshare --uts sh -c \"hostname $host; $*\"\n")
    os.chmod(shell, 0o700)
    env = dict(os.environ, TMPDIR=lab.directory, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
               OMPI_MCA_plm="rsh", OMPI_MCA_plm_rsh_agent=shell, PRTE_MCA_plm_ssh_agent=shell,
               OMPI_MCA_oob_tcp_if_include=SUBNET, OMPI_MCA_btl_tcp_if_include=SUBNET)
    hosts = ",".join(f"{host}:1" for host in lab.hosts)
    beside = os.path.join(os.path.dirname(command[0]), "mpirun")
    words = [beside if os.access(beside, os.X_OK) else "mpirun", "-n", str(ranks), "--host", hosts,
             "--bind-to", "none", "unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', os.uname().nodename,
             "env", f"MASTER_ADDR={lab.address(lab.hosts[0])}", *command]
    return lab.start(HUB, words, log, env)


def wait(children, limit):
    """Waits for the processes. Returns 0 if all have ended with 0, else the first other status, or a sentence at the time limit. Processes that
    still run are killed when the lab is removed."""
    until = time.monotonic() + limit if limit else None
    failed, grace = 0, None
    while True:
        codes = [child.poll() for child in children]
        bad = [code for code in codes if code]
        if bad and not failed:
            failed, grace = bad[0], time.monotonic() + GRACE_S
        if all(code is not None for code in codes) or (grace and time.monotonic() > grace):
            return failed if failed >= 0 else 128 - failed
        if until and time.monotonic() > until:
            return f"still running after {limit:g} s; it was ended"
        time.sleep(0.02)


def write_counters(lab, out):
    """Writes the links' byte counters into the run directory."""
    with open(os.path.join(out, LEFT), "w", encoding="utf-8") as f:
        json.dump({"bits_per_second": lab.bits,
                   "links": {host: {"sent_bytes": sent, "received_bytes": received}
                             for host, (sent, received) in lab.counters().items()}}, f, indent=1)
        f.write("\n")
