"""What starts the ranks of a run on the hosts of a test (fixture_hosts.py): a row for each way, which all take the same words of
`starring train` and give Started processes, rank 0's among the first.

    torchrun's variables   a process a rank, with the environment that torchrun gives
    torchrun               the real one, once on each host, where PyTorch is
    srun, sbatch           the real Slurm of fixture_slurm.py
    mpirun                 Open MPI's on h1, its daemons over ssh
    ssh                    experiments/over_ssh.py on h1
"""
import functools
import os
import shutil
import subprocess
import sys

from fixture import EXPERIMENTS, LIMIT_S, PROGRAM
from fixture_hosts import why_not

PORT = 29511  # of the meeting point; each test's hosts have a network of their own


def torch_environment(rank, world, local, locals_, host="h1", port=PORT):
    """The variables that torchrun gives a rank."""
    return {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(locals_),
            "GROUP_RANK": str(rank // locals_), "MASTER_ADDR": host, "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "none"}


def torch_variables(case, cluster, each, words, env):
    world = len(cluster.hosts) * each
    return [host.start(case, PROGRAM, *words, env={**env, **torch_environment(k * each + j, world, j, each)})
            for k, host in enumerate(cluster.hosts.all) for j in range(each)]


@functools.cache
def python_with_torch():
    """The Python that has PyTorch, which need not be the one of the tests; None: there is none."""
    for python in (sys.executable, shutil.which("python3"), "/usr/bin/python3"):
        words = [python, "-c", "import importlib.util as u, sys; sys.exit(not u.find_spec('torch'))"]
        if python and subprocess.run(words, check=False, capture_output=True).returncode == 0:
            return python
    return None


def torchrun(case, cluster, each, words, env):
    """What it prints is kept and printed: PyTorch 1.13 under Python 3.11 fails where it is to leave that alone."""
    return [host.start(case, python_with_torch(), "-m", "torch.distributed.run", "--nnodes", str(len(cluster.hosts)), "--nproc_per_node", str(each),
                       "--node_rank", str(k), "--master_addr", "h1", "--master_port", str(PORT), "--redirects", "1", "--tee", "1", "--log_dir", "torch-logs", "--no_python", PROGRAM, *words, env=env)
            for k, host in enumerate(cluster.hosts.all)]


def srun(case, cluster, each, words, env):
    return [cluster.slurm().start(case, "srun", "-N", str(len(cluster.hosts)), "--ntasks-per-node", str(each), PROGRAM, *words, env=env)]


def sbatch(case, cluster, each, words, env):
    """A script as people write them, whose one line of work is srun. Its output is on h1."""
    script = "\n".join(["#!/bin/sh", f"#SBATCH -N {len(cluster.hosts)}", f"#SBATCH --ntasks-per-node {each}", f"srun {PROGRAM} {' '.join(words)}", ""])
    with open(cluster.hosts[0].path("job.sh"), "w", encoding="utf-8") as f:
        f.write(script)
    return [cluster.slurm().start(case, "sbatch", "--wait", "-o", "job.out", "job.sh", env=env)]


def mpirun(case, cluster, each, words, env):
    names = ",".join(f"{name}:{each}" for name in cluster.hosts.names)
    # A namespace's first packet waits for nobody: of the interfaces only eth0 leads to the others.
    return [cluster.hosts[0].start(case, "mpirun", "-H", names, "--map-by", f"ppr:{each}:node", "--mca", "btl_tcp_if_include", "eth0",
                                   "--mca", "oob_tcp_if_include", "eth0", *(w for name in env for w in ("-x", name)), PROGRAM, *words, env=env)]


def ssh(case, cluster, each, words, env):
    return [cluster.hosts[0].start(case, sys.executable, os.path.join(EXPERIMENTS, "over_ssh.py"), "--hosts",
                                   ",".join(f"{name}:{each}" for name in cluster.hosts.names), PROGRAM, *words, env=env)]


class Starter:
    def __init__(self, name, start, tools=(), why_not=lambda: None):
        self.name, self._start, self.tools, self.why_not = name, start, tools, why_not

    def missing(self):
        """Why it cannot start ranks here; None: it can."""
        return self.why_not() or why_not(*self.tools)

    def start(self, case, cluster, each, *words, env=None):
        """`starring words...` as so many ranks on each host, under way: the processes that were started for it."""
        return self._start(case, cluster, each, words, env or {})


STARTERS = {row.name: row for row in (
    Starter("torchrun's variables", torch_variables),
    Starter("torchrun", torchrun, why_not=lambda: None if python_with_torch() else "PyTorch is not installed"),
    Starter("srun", srun, ("srun", "slurmctld", "slurmd", "munged")),
    Starter("sbatch", sbatch, ("srun", "slurmctld", "slurmd", "munged")),
    Starter("mpirun", mpirun, ("mpirun", "sshd")),
    Starter("ssh", ssh, ("sshd",)),
)}


def said(processes):
    """Everything that they printed."""
    return "".join(p.printed() + p.said() for p in processes)


def all_end(processes, status=0, settle_s=LIMIT_S, **how):
    """Returns their output when all have ended with that status (None: any) and no process of them is left; mpirun does not wait for
    its ssh, which ends a moment later."""
    for p in processes:
        p.ends(status, settle_s=settle_s, **how)
    return said(processes)


