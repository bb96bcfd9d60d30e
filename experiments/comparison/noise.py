"""Measures how busy the machine was with other programs during a run, and states what makes the run's times uncertain.

The load is measured over the whole run: the processor time of everything on this job's cores (/proc/stat)
minus that of the run and its descendants (getrusage of the ended children). A run directory
keeps it as load.json."""
import json
import os
import resource
import statistics
import time

import regular

FILE = "load.json"
SPREAD_BOUND = 0.25   # (p95 - p5) / median of the step times; a quiet machine stays below 0.1
OTHERS_BOUND = 0.10   # of the cores' time, taken by other programs
STEAL_BOUND = 0.05    # of the cores' time, taken by the hypervisor
LEAST_STEPS = 5       # the fewest steps from which a spread is computed


def cpu_seconds(stat, cpus=None, ticks=100):
    """(busy, stolen) seconds since boot from /proc/stat's text, summed over the cores in `cpus` (all when None).
    Busy is user, nice and system: the network's interrupts are this job's own traffic."""
    busy = stolen = 0
    for line in stat.splitlines():
        word, *fields = line.split() or [""]
        if not word.startswith("cpu") or not word[3:].isdigit() or (cpus is not None and int(word[3:]) not in cpus):
            continue
        count = [int(f) for f in fields] + [0] * 8
        busy += count[0] + count[1] + count[2]
        stolen += count[7]
    return busy / ticks, stolen / ticks


def shares(before, after, own_seconds, wall_seconds, cores):
    """The content of load.json, from two results of cpu_seconds() and the processor time of the run itself."""
    room = wall_seconds * cores
    busy, stolen = after[0] - before[0], after[1] - before[1]
    return {"wall_seconds": round(wall_seconds, 3), "cores": cores, "own_cpu_seconds": round(own_seconds, 3),
            "busy_cpu_seconds": round(busy, 3), "stolen_cpu_seconds": round(stolen, 3),
            "others_share": round(max(busy - own_seconds, 0.0) / room, 4) if room > 0 else 0.0,
            "stolen_share": round(max(stolen, 0.0) / room, 4) if room > 0 else 0.0}


def own_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Watch:
    """Measures the load from its creation to result(). The children must have ended before result(), since getrusage counts only ended ones."""

    def __init__(self, stat="/proc/stat"):
        self.stat = stat
        self.cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
        self.before, self.own, self.began = self.read(), own_seconds(), time.monotonic()

    def read(self):
        try:
            with open(self.stat, encoding="ascii") as f:
                return cpu_seconds(f.read(), self.cpus, os.sysconf("SC_CLK_TCK"))
        except (OSError, ValueError):
            return None

    def result(self):
        """shares(), or None if the system has no /proc/stat."""
        after = self.read()
        if self.before is None or after is None:
            return None
        return shares(self.before, after, own_seconds() - self.own, time.monotonic() - self.began, self.cores())

    def cores(self):
        return len(self.cpus) if self.cpus else os.cpu_count()


def family(pid):
    """pid and its descendants, as /proc shows them now."""
    children = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as f:
                    children.setdefault(int(f.read().rpartition(")")[2].split()[1]), []).append(int(name))
            except (OSError, IndexError, ValueError):
                pass
    out = [pid]
    for one in out:
        out += children.get(one, [])
    return out


def seconds_of(pid, ticks):
    """Processor seconds of a process and of its ended children; None if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
            return sum(int(word) for word in f.read().rpartition(")")[2].split()[11:15]) / ticks
    except (OSError, ValueError):
        return None


class SliceWatch(Watch):
    """A Watch of a run that takes turns: begin() and end() enclose each slice."""

    def __init__(self, stat="/proc/stat"):
        super().__init__(stat)
        self.ticks, self.members = os.sysconf("SC_CLK_TCK"), []
        self.sums = dict.fromkeys(("wall_seconds", "own_cpu_seconds", "busy_cpu_seconds", "stolen_cpu_seconds"), 0.0)

    def own_so_far(self, pid):
        found = [seconds_of(one, self.ticks) for one in self.members]
        if not found or None in found:
            self.members = family(pid)
            found = [seconds_of(one, self.ticks) for one in self.members]
        return sum(one for one in found if one is not None)

    def begin(self, pid):
        self.own, self.before, self.began = self.own_so_far(pid), self.read(), time.monotonic()

    def end(self, pid):
        """The slice's load, with the processor time of all roles; {} if the system has no /proc/stat."""
        after, wall, own = self.read(), time.monotonic() - self.began, self.own_so_far(pid) - self.own
        if self.before is None or after is None:
            return {}
        found = shares(self.before, after, own, wall, self.cores())
        for key in self.sums:
            self.sums[key] += found[key]
        return {"cpu_seconds": round(own, 3), "others_share": found["others_share"], "stolen_share": found["stolen_share"]}

    def result(self):
        """shares() of all slices together."""
        s = self.sums
        return shares((0, 0), (s["busy_cpu_seconds"], s["stolen_cpu_seconds"]), s["own_cpu_seconds"], s["wall_seconds"], self.cores())


def write(directory, result):
    if result:
        with open(os.path.join(directory, FILE), "w", encoding="utf-8") as f:
            json.dump(result, f, indent=1)
            f.write("\n")


def read(directory):
    """The run's load; {} if none was measured."""
    try:
        with regular.open_file(os.path.join(directory, FILE), limit=regular.WHOLE, encoding="utf-8") as f:
            found = json.load(f)
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}


def spread(seconds):
    """(p95 - p5) / median of the steps after the first, which warms up; None if there are too few."""
    values = sorted(s for s in seconds[1:] if isinstance(s, (int, float)))
    if len(values) < LEAST_STEPS or statistics.median(values) <= 0:
        return None
    p5, p95 = (values[int(p * (len(values) - 1) + 0.5)] for p in (0.05, 0.95))
    return (p95 - p5) / statistics.median(values)


def spread_of(run):
    return spread([m.get("seconds") for m in run.metrics])


def why_noisy(run):
    """Reasons, with figures, why this run's times are uncertain; [] if there are none."""
    out = []
    step, others, stolen = spread_of(run), run.load.get("others_share"), run.load.get("stolen_share")
    if step is not None and step > SPREAD_BOUND:
        out.append(f"step times spread over {step:.0%} of the median")
    if others is not None and others > OTHERS_BOUND:
        out.append(f"other programs took {others:.0%} of the cores")
    if stolen is not None and stolen > STEAL_BOUND:
        out.append(f"the hypervisor took {stolen:.0%} of the cores")
    return out


def cause(group):
    """Why these runs' times are uncertain, and how to measure better."""
    def middle(key):
        found = [run.load[key] for run in group if isinstance(run.load.get(key), (int, float))]
        return statistics.median(found) if found else None
    others, stolen = middle("others_share"), middle("stolen_share")
    if others is None:
        return "it is not known what else ran on this machine: runs that this script starts itself take turns, which is more reliable"
    if stolen > max(STEAL_BOUND, others):
        return (f"the hypervisor took {stolen:.0%} of the cores (steal) for other machines of this host: a machine that shares no cores, or "
                "another hour, helps")
    if others > OTHERS_BOUND:
        return f"other programs took {others:.0%} of the cores: end them, or compare when they are done"
    return ("hardly any other program ran (they took "
            f"{others:.0%} of the cores): this machine's speed changes by itself, and only more rounds help (--decide, --within)")
