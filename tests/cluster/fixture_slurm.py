"""A real Slurm on the hosts of a test (fixture_hosts.py): munged and slurmd on each, slurmctld on the first, as root, with
configuration, state and logs of this test alone. srun and sbatch are started on any of them."""
import os

from fixture_hosts import LIMIT_S, where_is

TOOLS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "sinfo")
CPUS = 4  # that Slurm believes a host to have
CONF = """ClusterName=starring
SlurmctldHost={first}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
StateSaveLocation=/run/slurm/state
SlurmdSpoolDir=/run/slurm/spool
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
SlurmctldLogFile=/run/slurm/slurmctld.log
SlurmdLogFile=/run/slurm/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
InactiveLimit=0
KillWait=2
SlurmdTimeout=0
MailProg=/bin/true
SchedulerParameters=sched_interval=1
{nodes}
PartitionName=all Nodes={names} Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""


class Slurm:
    """On hosts that have begun."""

    def __init__(self, hosts):
        self.hosts = hosts
        conf = CONF.format(first=hosts.names[0], names=",".join(hosts.names), nodes="\n".join(
            f"NodeName={host.name} NodeAddr={host.address} CPUs={CPUS} State=UNKNOWN" for host in hosts.all))
        key = os.urandom(128)
        self.env = {"SLURM_CONF": "/run/slurm/slurm.conf"}
        for host in hosts.all:
            for name, content in (("slurm.conf", conf.encode()), ("cgroup.conf", b"CgroupPlugin=cgroup/v1\n"), ("munge.key", key)):
                path = host.path("/run/slurm", name)
                with open(path, "wb") as f:
                    f.write(content)
                os.chmod(path, 0o600)
            host.daemon(where_is("munged"), "--force", "--key-file=/run/slurm/munge.key", "--log-file=/run/munge/munged.log",
                        "--pid-file=/run/munge/munged.pid", "--seed-file=/run/munge/munged.seed",
                        ready=lambda host=host: os.path.exists(host.path("/run/munge/munge.socket.2")))
        first = hosts[0]
        os.makedirs(first.path("/run/slurm/state"))
        for host in hosts.all:
            os.makedirs(host.path("/run/slurm/spool"))
        first.daemon(where_is("slurmctld"), "-D", env=self.env, ready=lambda: self.nodes() is not None)
        for host in hosts.all:
            host.daemon(where_is("slurmd"), "-D", "-N", host.name, env=self.env,
                        ready=lambda host=host: (self.nodes() or {}).get(host.name) == "idle")

    def nodes(self):
        """{host: its state as sinfo says it}; None: slurmctld does not answer."""
        p = self.hosts[0].run("sinfo", "-h", "-N", "-o", "%N %t", env=self.env, status=None, limit_s=LIMIT_S)
        return dict(line.split() for line in p.stdout.splitlines()) if p.returncode == 0 else None

    def start(self, case, *words, host=0, env=None):
        """srun or sbatch with its words, under way."""
        return self.hosts[host].start(case, *words, env={**self.env, **(env or {})})
