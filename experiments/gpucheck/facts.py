"""The facts: the device, its driver, the libraries that are loaded at run time, the tools of later parts."""
import json
import os
import shutil
import sys

from .work import PASSED, SKIPPED

# A Python program that loads each library named in its arguments, as starring would, and prints the loader's errors.
LOAD = """import ctypes, json, sys
said = {}
for name in sys.argv[1:]:
    try:
        ctypes.CDLL(name)
        said[name] = ""
    except OSError as e:
        said[name] = str(e)
print(json.dumps(said))
"""
# The consequences of a missing library, by the beginning of its name.
WITHOUT = {"libcudnn": "attention in 16 bits takes our own kernel without it",
           "libnvrtc": "cuDNN compiles its attention with it: without it attention takes our own kernel",
           "libnccl": "rings over NCCL need it"}
QUERY = "name,driver_version,memory.total,clocks.max.sm,clocks.max.memory,power.limit,ecc.mode.current,mig.mode.current"


def of_device(checker):
    """(the device's properties, None), or (None, why the backend finds no device)."""
    outcome = checker.starring("bench", "adam", "--device", "cuda", "--json", "--rounds", 1, "--elements", 262144)
    try:
        found = json.loads(outcome.text).get("device") if outcome.ok else None
    except ValueError:
        found = None
    return (found, None) if found else (None, outcome.why() if not outcome.ok else "starring bench names no device")


def nvidia_smi(checker):
    """nvidia-smi's values, a dictionary per GPU; [] if nvidia-smi is missing or fails."""
    if not shutil.which("nvidia-smi"):
        return []
    outcome = checker.run(["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv"], limit=20)
    rows = [[c.strip() for c in line.split(",")] for line in outcome.text.strip().splitlines()] if outcome.ok else []
    return [dict(zip(rows[0], row)) for row in rows[1:]]


def libraries(checker, part):
    """Checks that each library can be loaded. For one that cannot, the check states what is missing and what happens without it."""
    found = checker.place.libraries
    if not found:
        part.notes.append("the object with everything CUDA asks for no cuBLASLt: it is the tests' emulation")
        return
    outcome = checker.run([sys.executable, "-c", LOAD, *[name for name, _, _ in found]], limit=40)
    said = json.loads(outcome.text) if outcome.ok else {}
    for name, folder, where in found:
        missing = said.get(name, "the loader has not answered: " + outcome.why())
        part.figure("library", file=name, folder=folder, found_in=where, missing=missing)
        if not missing:
            part.check(f"{name} is loaded", PASSED)
            continue
        without = next((w for begins, w in WITHOUT.items() if name.startswith(begins)), "")
        part.check(f"{name} is loaded", SKIPPED, missing + (f"; {without}" if without else ""))
        part.finding(f"{name} is missing: {missing}" + (f"; {without}" if without else ""))


def tools(checker, part):
    """Notes which tools of the last parts are installed, so that a user learns early which ones are missing."""
    path = os.pathsep.join([checker.place.env.get("PATH", ""), "/usr/local/cuda/bin"])
    for name, needs in (("compute-sanitizer", "memcheck and racecheck"), ("mpirun", "a ring over MPI in bits"),
                        ("ncu", "counters of single kernels, by hand")):
        part.notes.append(f"{name}, for {needs}: {shutil.which(name, path=path) or 'not installed'}")
    python = checker.options.python or sys.executable
    outcome = checker.run([python, "-c", "import importlib.metadata as m; print(m.version('torch'))"], limit=20)
    part.notes.append(f"PyTorch, for peers: {outcome.text.strip() if outcome.ok else f'not installed for {python}'}")


def facts(checker, part):
    """Collects the facts."""
    part.check("a device of compute capability 8.0 or more", PASSED)
    part.figure("device", **checker.facts)
    for gpu in nvidia_smi(checker):
        part.figure("nvidia-smi", **gpu)
    libraries(checker, part)
    tools(checker, part)
