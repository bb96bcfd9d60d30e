#!/usr/bin/env python3
"""Gathers what was built into a folder that runs on a machine without any of the libraries (`make bundle`).

    bundle/make_bundle.py --build BUILD --out DIR [--limit MIB] TEST...

    DIR/bin/         starring; mpirun and gpu-check, which find the rest by themselves
    DIR/lib/         libstarring_cuda.so and the shared libraries that programs, tests and Open MPI need
    DIR/openmpi/     Open MPI's launcher, plugins and messages; its PMIx likewise
    DIR/tests/       TEST.. of BUILD/tests, with their data
    DIR/experiments/ gpu_check.py, compare.py
    DIR/docs/        gpu.md, with the plan of the first hour on a GPU
    DIR/REVISION     what git calls the sources

Left to the machine: the C library, libstdc++, the NVIDIA driver, and CUDA's own libraries (cuBLASLt, cuDNN, NCCL).
Beside DIR comes DIR.tar.gz. Exit status 1 when a library is missing or the folder is larger than the limit.
"""
import argparse
import glob
import gzip
import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(HERE)
# The C library is the machine's own: another one would need its own loader. So is the compiler's runtime: CUDA's
# libraries of the machine, loaded into the same process, may need a newer one. CUDA's are large and licensed apart.
MACHINE = re.compile(r"^(ld-linux|linux-vdso|lib(c|m|dl|rt|pthread|util|resolv|nsl|anl|mvec|stdc\+\+|gcc_s)\.so"
                     r"|lib(cuda|cublas|cudnn|nccl|nvrtc|nvJitLink))")
# Plugins for networks that only a cluster's own Open MPI serves, and OpenSHMEM's.
CLUSTER = re.compile(r"^lib(fabric|uc[pst]|psm|ibverbs|rdmacm|nl-|oshmem)")
OPENSHMEM = re.compile(r"^mca_(spml|scoll|sshmem|memheap|atomic)_")
PT_DYNAMIC, DT_RPATH, DT_RUNPATH = 2, 15, 29
JARGON = ("/usr/share/doc/jargon-text/jargon.txt.gz", "/usr/share/doc/jargon-text/jargon.txt")


class Failed(Exception):
    pass


def run(*argv):
    p = subprocess.run(argv, capture_output=True, text=True, check=False)
    if p.returncode != 0:
        raise Failed(f"{' '.join(argv)}: {(p.stderr or p.stdout).strip()}")
    return p.stdout


def needed(path):
    """{soname: path} of everything a program or library is loaded with."""
    found = {}
    for line in run("ldd", path).splitlines():
        match = re.match(r"\s*(\S+) => (.+?)(?: \(0x[0-9a-f]+\))?$", line)
        if match and not MACHINE.match(match.group(1)):
            if match.group(2) == "not found":
                raise Failed(f"{path} needs {match.group(1)}, which is not installed here")
            found[match.group(1)] = match.group(2)
    return found


def drop_runpath(path):
    """Takes the search path out of a 64-bit ELF file: with one of its own, a library's libraries would not be looked
    for where the program that loads it says. The later entries of the dynamic section move up by one."""
    with open(path, "r+b") as f:
        data = bytearray(f.read())
        table, size, count = struct.unpack_from("<Q", data, 32)[0], *struct.unpack_from("<HH", data, 54)
        for i in range(count):
            kind, = struct.unpack_from("<I", data, table + i * size)
            begin, = struct.unpack_from("<Q", data, table + i * size + 8)
            length, = struct.unpack_from("<Q", data, table + i * size + 32)
            if kind != PT_DYNAMIC:
                continue
            entries = [e for e in struct.iter_unpack("<qQ", data[begin:begin + length]) if e[0] not in (DT_RPATH, DT_RUNPATH)]
            kept = b"".join(struct.pack("<qQ", *e) for e in entries)
            data[begin:begin + length] = kept.ljust(length, b"\0")
        f.seek(0)
        f.write(data)


def package_of(path):
    """The Debian package that a file comes from, or None."""
    for name in (path, path.removeprefix("/usr")):
        if shutil.which("dpkg"):
            p = subprocess.run(["dpkg", "-S", name], capture_output=True, text=True, check=False)
            if p.returncode == 0:
                return p.stdout.split(":")[0]
    return None


class Bundle:
    def __init__(self, out):
        self.out = out
        self.libraries = {}

    def at(self, *names):
        path = os.path.join(self.out, *names)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return path

    def add(self, source, *names, strip=False, libraries=False):
        """One file; libraries: and all that it is loaded with, into lib/ when the bundle is complete."""
        target = self.at(*names)
        shutil.copy(source, target)
        if strip:
            run("strip", "--strip-unneeded", target)
        if libraries:
            self.libraries.update(needed(source))
        return target

    def add_tree(self, source, *names, pattern="*"):
        for path in sorted(glob.glob(os.path.join(source, pattern))):
            if os.path.isdir(path):
                if os.path.basename(path) != "__pycache__":
                    self.add_tree(path, *names, os.path.basename(path))
            else:
                self.add(path, *names, os.path.basename(path))

    def add_libraries(self):
        for name, path in sorted(self.libraries.items()):
            drop_runpath(self.add(path, "lib", name, strip=True))

    def add_licenses(self):
        """Adds the copyright file of each library's package; a plugin of Open MPI has its library's."""
        without = []
        for name, path in sorted(self.libraries.items()):
            package = package_of(os.path.realpath(path))
            text = f"/usr/share/doc/{package}/copyright"
            if package and os.path.exists(text):
                self.add(text, "licenses", package + ".txt")
            else:
                without.append(name)
        if without:
            print(f"bundle: no licence text was found for {' '.join(without)}: add it before you pass the bundle on")

    def files(self):
        for folder, _, names in os.walk(self.out):
            for name in names:
                yield os.path.join(folder, name)


def add_program(bundle, build):
    bundle.add(os.path.join(build, "starring"), "bin", "starring", strip=True, libraries=True)
    cuda = os.path.join(build, "libstarring_cuda.so")
    if os.path.exists(cuda):
        bundle.add(cuda, "lib", "libstarring_cuda.so", strip=True)
        bundle.libraries.update((n, p) for n, p in needed(cuda).items())
    else:
        print("bundle: without CUDA: no nvcc was found, or CUDA=0")
    mpi = os.path.join(build, "libstarring_mpi.so")
    if os.path.exists(mpi):
        bundle.add(mpi, "lib", "libstarring_mpi.so", strip=True)
        bundle.libraries.update((n, p) for n, p in needed(mpi).items())
    for name in ("mpirun", "gpu-check"):
        bundle.add(os.path.join(HERE, name), "bin", name)
    bundle.add(os.path.join(HERE, "README.md"), "README.md")
    bundle.add(os.path.join(TOP, "docs", "gpu.md"), "docs", "gpu.md")
    bundle.add(os.path.join(TOP, "LICENSE"), "LICENSE")


def add_revision(bundle):
    p = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False, cwd=TOP)
    with open(bundle.at("REVISION"), "w", encoding="utf-8") as f:
        f.write(p.stdout if p.returncode == 0 else "")


def add_tests(bundle, build, tests):
    for path in tests:
        bundle.add(path, "tests", os.path.relpath(path, os.path.join(build, "tests")), strip=True, libraries=True)
    bundle.add_tree(os.path.join(TOP, "tests", "data", "vectors"), "tests", "data", "vectors")
    bundle.add_tree(os.path.join(TOP, "experiments"), "experiments")
    for path in JARGON:
        if os.path.exists(path):
            with (gzip.open if path.endswith(".gz") else open)(path, "rb") as text, open(bundle.at("data", "jargon.txt"), "wb") as f:
                f.write(text.read())
            return
    print("bundle: without the jargon text: the package jargon-text is not installed; `--data demo` generates one")


def openmpi_paths():
    """{name: folder} as Open MPI was installed."""
    return {k.strip(): v.strip() for k, v in
            (line.split(":", 1) for line in run("ompi_info", "--path", "all").splitlines() if ":" in line)}


def add_openmpi(bundle):
    """Under openmpi/ the folders keep their places relative to the prefix: OPAL_PREFIX then moves them all."""
    paths = openmpi_paths()
    left = []
    for name in ("orterun", "orted"):
        drop_runpath(bundle.add(os.path.join(paths["Bindir"], name), "openmpi", "bin", name, strip=True, libraries=True))
    plugins = os.path.relpath(paths["Pkglibdir"], paths["Prefix"])
    for path in sorted(glob.glob(os.path.join(paths["Pkglibdir"], "mca_*.so"))):
        name = os.path.basename(path)
        if OPENSHMEM.match(name) or any(CLUSTER.match(n) for n in needed(path)):
            left.append(name[4:-3])
            continue
        drop_runpath(bundle.add(path, "openmpi", plugins, name, strip=True, libraries=True))
    bundle.add_tree(paths["Pkgdatadir"], "openmpi", os.path.relpath(paths["Pkgdatadir"], paths["Prefix"]), pattern="help-*")
    bundle.add_tree(paths["Sysconfdir"], "openmpi", "etc", pattern="openmpi-mca-params.conf")
    print(f"bundle: Open MPI's plugins for clusters' networks are left out: {' '.join(left)}")
    pmix = bundle.libraries.get("libpmix.so.2")
    home = os.path.join(os.path.dirname(pmix), "pmix2") if pmix else ""
    if os.path.isdir(home):
        for path in sorted(glob.glob(os.path.join(home, "lib", "pmix", "*.so"))):
            drop_runpath(bundle.add(path, "openmpi", "pmix", "lib", "pmix", os.path.basename(path), strip=True, libraries=True))
        bundle.add_tree(os.path.join(home, "share"), "openmpi", "pmix", "share")


def glibc_needed(bundle):
    """{(2, 36): [file...]}: the newest symbol versions of the C library that each file asks for."""
    versions = {}
    for path in bundle.files():
        with open(path, "rb") as f:
            if f.read(4) != b"\x7fELF":
                continue
        text = run("readelf", "--version-info", "--wide", path)
        found = [tuple(int(n) for n in v.split(".")) for v in re.findall(r"Name: GLIBC_(\d[\d.]*)", text)]
        if found:
            versions.setdefault(max(found), []).append(os.path.relpath(path, bundle.out))
    return versions


def say_glibc(bundle):
    versions = glibc_needed(bundle)
    newest = max(versions)
    named = versions[newest]
    print(f"bundle: needs glibc {'.'.join(map(str, newest))} or newer, for {' '.join(sorted(named)[:6])}"
          f"{' ..' if len(named) > 6 else ''} (Ubuntu 22.04 has 2.35, Debian 12 2.36, Ubuntu 24.04 2.39)")


def within_limit(bundle, limit):
    """Says how large the folder and its archive are; False when the folder is larger than the limit, in MiB."""
    size = sum(os.path.getsize(p) for p in bundle.files()) / 2**20
    packed = os.path.getsize(bundle.out + ".tar.gz") / 2**20
    print(f"bundle: {bundle.out}: {size:.1f} MiB of {limit:g}, {bundle.out}.tar.gz: {packed:.1f} MiB")
    if size > limit:
        print(f"bundle: larger than {limit:g} MiB", file=sys.stderr)
    return size <= limit


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--build", required=True, help="where `make bundle` has built")
    ap.add_argument("--out", required=True, help="the folder to make; what it holds is replaced")
    ap.add_argument("--limit", type=float, default=60, help="largest size in MiB (default %(default)s)")
    ap.add_argument("tests", nargs="*", metavar="TEST", help="a program below BUILD/tests")
    args = ap.parse_args()
    shutil.rmtree(args.out, ignore_errors=True)
    bundle = Bundle(args.out)
    try:
        add_program(bundle, args.build)
        add_revision(bundle)
        add_tests(bundle, args.build, args.tests)
        add_openmpi(bundle)
        bundle.add_libraries()
        bundle.add_licenses()
        say_glibc(bundle)
    except (Failed, OSError, KeyError) as e:
        print(f"bundle: {e}", file=sys.stderr)
        return 1
    with tarfile.open(args.out + ".tar.gz", "w:gz", compresslevel=6) as tar:
        tar.add(args.out, "bundle")
    return 0 if within_limit(bundle, args.limit) else 1


if __name__ == "__main__":
    sys.exit(main())
