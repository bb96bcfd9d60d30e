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


def facts():
    """[(name, value)] without the empty ones."""
    libraries = [(name, version_of(package)) for name, package in
                 (("ZeroMQ", "libzmq"), ("protobuf-c", "libprotobuf-c"), ("Open MPI", "ompi-c"))]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    listed = [
        ("date", datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")),
        ("processor", processor()),
        ("cores used", str(cores)),
        ("memory", memory_gib()),
        ("system", f"{system()}, Linux {platform.release()}"),
        ("starring", output("git", "describe", "--always", "--dirty")),
        ("compiler", (output("gcc", "--version") or "").split("\n")[0]),
        ("libraries", ", ".join(f"{n} {v}" for n, v in libraries if v)),
        ("Python", platform.python_version()),
    ]
    return [(k, v) for k, v in listed if v]
