"""The machine and the versions, for the report's notes."""
import datetime
import os
import platform
import re
import shutil
import subprocess

TOP = os.path.join(os.path.dirname(__file__), "..", "..")


def output(*argv):
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=10, check=True, cwd=TOP).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def processor():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            match = re.search(r"^model name\s*:\s*(.+)$", f.read(), re.M)
        return match.group(1) if match else platform.machine()
    except OSError:
        return platform.machine()


def system():
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except (OSError, AttributeError):
        return platform.system()


def memory_gib():
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB"
    except (ValueError, OSError):
        return ""


def version_of(package):
    return output("pkg-config", "--modversion", package) if shutil.which("pkg-config") else ""


def of_run(run):
    """The machine that a run reports: "host (processor, 2 cores, 15.6 GiB)"; None if it reports none."""
    found = run.machine
    if not isinstance(found, dict):
        return None
    size = f"{found['memory_bytes'] / 2**30:.1f} GiB" if isinstance(found.get("memory_bytes"), (int, float)) else ""
    cores = f"{found['cores']} cores" if found.get("cores") else ""
    inside = ", ".join(part for part in (found.get("processor"), cores, size) if part)
    return f"{found.get('host') or 'unknown host'}" + (f" ({inside})" if inside else "")


def shared(runs):
    """[(name, [values])]: the media, stragglers, machines and builds that the runs report, each value once."""
    media = [(f"{r.medium} ({r.launch})" if r.launch else r.medium) + (f", links of {r.links} each way" if r.links else "")
             for r in runs if r.medium not in (None, "none")]
    trouble = [text for text in dict.fromkeys(r.get("trouble", "text") for r in runs) if text]
    hidden = ["a star's (parameter_server.bind), not a ring's: a star's times include it"] if any(r.security == "job" for r in runs) else []
    return [("medium", list(dict.fromkeys(media))), ("encrypted", hidden), ("made slow on purpose", trouble), ("machine", list(dict.fromkeys(filter(None, map(of_run, runs))))),
            ("revision", list(dict.fromkeys(r.revision for r in runs if r.revision)))]


def facts(trained):
    """[(name, value)] of this machine, without empty values. If nothing was trained here, only the date: the runs are from elsewhere."""
    date = ("report written", datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"))
    if not trained:
        return [date]
    libraries = [(name, version_of(package)) for name, package in
                 (("ZeroMQ", "libzmq"), ("protobuf-c", "libprotobuf-c"), ("Open MPI", "ompi-c"))]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    listed = [
        date,
        ("processor", processor()),
        ("cores used", str(cores)),
        ("memory", memory_gib()),
        ("system", f"{system()}, Linux {platform.release()}"),
        ("compiler", (output("gcc", "--version") or "").split("\n")[0]),
        ("libraries", ", ".join(f"{n} {v}" for n, v in libraries if v)),
        ("Python", platform.python_version()),
    ]
    return [(k, v) for k, v in listed if v]
