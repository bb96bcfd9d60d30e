"""Finds the program, its tests and CUDA's libraries, in a checkout or in a bundle."""
import glob
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CUDA_SO = "libstarring_cuda.so"
# The names that CUDA's pip packages give their folders below site-packages.
PIP_FOLDERS = ["nvidia/cu{major}/lib", "nvidia/cublas/lib", "nvidia/cudnn/lib", "nvidia/cuda_nvrtc/lib", "nvidia/nccl/lib"]
# The libraries that libcudnn.so.9 loads by itself when a graph is built (NVIDIA's cuDNN API overview). If one of them is missing,
# nothing fails before that. The engines that are compiled at run time need NVRTC.
CUDNN_PARTS = ["graph", "heuristic", "engines_precompiled", "engines_runtime_compiled"]


def library_names(major):
    """The sonames of everything that is loaded at run time, of this CUDA."""
    return [f"libcublasLt.so.{major}", "libcudnn.so.9", *(f"libcudnn_{p}.so.9" for p in CUDNN_PARTS),
            f"libnvrtc.so.{major}", "libnccl.so.2"]


class NotBuilt(Exception):
    """A needed file was not built; the text says what to do."""


class Place:
    """The paths of a checkout or a bundle. program, tests: paths; top: the folder that tests run in; env: the environment of the programs."""

    def __init__(self, build=None):
        bundled = not build and os.path.exists(os.path.join(TOP, "bin", "starring"))
        self.top = TOP
        self.bundled = bundled
        self.build = TOP if bundled else os.path.abspath(build or os.path.join(TOP, "build"))
        self.program = os.path.join(self.build, "bin", "starring") if bundled else os.path.join(self.build, "starring")
        self.tests = os.path.join(self.build, "tests")
        if not os.path.exists(self.program):
            raise NotBuilt(f"there is no {self.program}: run make, or name the folder with --build")
        self.env = dict(os.environ)
        if bundled:  # its own mpirun
            self.env["PATH"] = os.path.join(TOP, "bin") + ":" + self.env.get("PATH", "")
        self.libraries = []  # [(file, folder or None, where it was found)]
        self.find_object()
        self.find_libraries()

    def find_object(self):
        """Sets the variable by which the tests find the CUDA object: they are in another folder than the program."""
        path = os.path.join(self.build, "lib" if self.bundled else "", CUDA_SO)
        if not self.env.get("STARRING_CUDA_SO") and os.path.exists(path):
            self.env["STARRING_CUDA_SO"] = path
        self.object = self.env.get("STARRING_CUDA_SO", path)

    def device_tests(self):
        """{family: path}"""
        found = sorted(glob.glob(os.path.join(self.tests, "device", "test_device_*")))
        return {os.path.basename(p)[len("test_device_"):]: p for p in found if os.access(p, os.X_OK)}

    def fingerprint(self):
        """A hash that identifies the build: 16 hexadecimal digits, over the program and the CUDA object."""
        digest = hashlib.sha256()
        for path in (self.program, self.object):
            with open(path, "rb") as f:
                digest.update(hashlib.sha256(f.read()).digest())
        return digest.hexdigest()[:16]

    # ---------------------------------------------------------------- CUDA's libraries
    def needed_major(self):
        """The major version of CUDA that the object was built with, from the name of the cuBLASLt it loads."""
        try:
            with open(self.object, "rb") as f:
                match = re.search(rb"libcublasLt\.so\.(\d+)", f.read())
        except OSError:
            match = None
        return match.group(1).decode() if match else None

    def find_libraries(self):
        major = self.needed_major()
        if not major:
            return
        known = cached_libraries()
        given = [p for p in self.env.get("LD_LIBRARY_PATH", "").split(":") if p]
        system = ["/usr/local/cuda/lib64"] + sorted(glob.glob(f"/usr/local/cuda-{major}*/lib64"), reverse=True)
        pip = [os.path.join(site, f.format(major=major)) for site in site_packages() for f in PIP_FOLDERS]
        taken = []
        for name in library_names(major):
            folder, where = find_in(name, given), "LD_LIBRARY_PATH"
            if not folder and name in known:
                folder, where = os.path.dirname(known[name]), "the system's list of libraries"
            if not folder:
                folder, where = find_in(name, system), "the CUDA toolkit"
                folder, where = (folder, where) if folder else (find_in(name, pip), "pip's packages")
                if folder and folder not in taken:
                    taken.append(folder)
            self.libraries.append((name, folder, where if folder else "nowhere"))
        if taken:
            self.env["LD_LIBRARY_PATH"] = ":".join(given + taken)


def find_in(name, folders):
    return next((f for f in folders if os.path.exists(os.path.join(f, name))), None)


def cached_libraries():
    """{soname: path} of what the loader finds by itself."""
    ldconfig = shutil.which("ldconfig") or "/sbin/ldconfig"
    try:
        text = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return {}
    return dict(re.findall(r"^\s*(\S+) \(.*x86-64.*\) => (\S+)$", text, re.M))


def site_packages():
    """Folders of installed packages, of this interpreter and of the one called python3."""
    ask = "import json, site; print(json.dumps(site.getsitepackages() + [site.getusersitepackages()]))"
    found = []
    for python in dict.fromkeys([sys.executable, shutil.which("python3") or sys.executable]):
        p = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False)
        if p.returncode == 0:
            found += [s for s in json.loads(p.stdout) if s not in found]
    return found
