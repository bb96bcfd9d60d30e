#!/usr/bin/env python3
"""Makes a package of Debian or Ubuntu from what was built (`make deb`).

    packaging/make_deb.py --build BUILD --out DIR

writes DIR/starring_VERSION_ARCHITECTURE.deb: what `make install` installs, below /usr, stripped. dpkg-shlibdeps names
the libraries that the program needs. A plugin's library (Open MPI) is only recommended, as the program runs without it.
CUDA's libraries are no packages of Debian: the machine brings them. Install it with `apt install ./starring_*.deb`.
"""
import argparse
import glob
import gzip
import os
import re
import shutil
import subprocess
import sys
import tempfile

import install
import pages

TOP = install.TOP
# As Debian's tools ask for it; the sources name no address.
MAINTAINER = f"{os.environ.get('DEBFULLNAME', 'The Starring authors')} <{os.environ.get('DEBEMAIL', 'starring@localhost')}>"
CONTROL = """Package: starring
Version: {version}
Architecture: {architecture}
Maintainer: {maintainer}
Installed-Size: {kib}
Depends: {depends}
Recommends: {recommends}
Suggests: jargon-text, iproute2
Section: science
Priority: optional
Description: trains one transformer through two topologies, with the same bits
 One program trains one transformer as a star (a parameter server over
 ZeroMQ) and as a ring (ZeRO stages 0 to 3 over collectives), with the same
 model, kernels, data and arithmetic, predicts memory and bytes, and
 measures them.
 .
 {built_for}
"""
COPYRIGHT = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: starring

Files: *
{owner}
License: Expat

License: Expat
{text}
"""


def run(*argv, **how):
    p = subprocess.run(argv, capture_output=True, text=True, check=False, **how)
    if p.returncode:
        raise install.Failed(f"{' '.join(argv)}: {(p.stderr or p.stdout).strip()}")
    return p.stdout


def write(text, *names, mode=0o644, packed=False):
    path = os.path.join(*names)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    data = gzip.compress(text.encode(), 9, mtime=0) if packed else text.encode()
    with open(path + (".gz" if packed else ""), "wb") as f:
        f.write(data)
    os.chmod(f.name, mode)


def version_of(program):
    """The program's version; with the sources' revision where they have one, so that a later build is a later version."""
    version = pages.ask(os.path.abspath(program), "--version")[1].split()[1]
    p = subprocess.run(["git", "log", "-1", "--format=%cd.%h", "--date=format:%Y%m%d.%H%M%S"], capture_output=True, text=True, check=False, cwd=TOP)
    return f"{version}+git{p.stdout.strip()}" if p.returncode == 0 else version


def depends(program, plugins):
    """(what the package needs, what it is better with), as dpkg-shlibdeps says it."""
    with tempfile.TemporaryDirectory() as folder:  # it wants the control file of sources
        write("Source: starring\n\nPackage: starring\nArchitecture: any\n", folder, "debian", "control")

        def asked(files):
            said = run("dpkg-shlibdeps", "-O", "--warnings=0", *files, cwd=folder) if files else ""
            return [d.strip() for d in said.partition("=")[2].split(",") if d.strip()]
        needs = asked([program])
        names = {d.split()[0] for d in needs}
        return needs, [d for d in asked(plugins) if d.split()[0] not in names]


def copyright_text():
    with open(os.path.join(TOP, "LICENSE"), encoding="utf-8") as f:
        _, owner, text = f.read().rstrip("\n").split("\n\n", 2)
    return COPYRIGHT.format(owner=re.sub(r"^Copyright \(c\) ", "Copyright: ", owner), text="\n".join(" " + (line or ".") for line in text.split("\n")))


def stage(build, root, version):
    """Moves what Debian expects at other paths than `make install` uses."""
    usr, doc = os.path.join(root, "usr"), os.path.join(root, "usr/share/doc/starring")
    install.install(build, usr, keep_list=False)
    for path in glob.glob(usr + "/share/man/man1/*.1"):
        with open(path, encoding="utf-8") as f:
            write(f.read(), path, packed=True)
        os.unlink(path)
    os.makedirs(usr + "/share/zsh/vendor-completions")
    os.rename(usr + "/share/zsh/site-functions/_starring", usr + "/share/zsh/vendor-completions/_starring")
    os.rmdir(usr + "/share/zsh/site-functions")
    os.unlink(doc + "/LICENSE")
    write(copyright_text(), doc, "copyright")
    p = subprocess.run(["git", "log", "-1", "--format=%cD"], capture_output=True, text=True, check=False, cwd=TOP)
    date = p.stdout.strip() if p.returncode == 0 else run("date", "-R").strip()
    write(f"starring ({version}) unstable; urgency=medium\n\n  * Built from the sources.\n\n -- {MAINTAINER}  {date}\n", doc, "changelog", packed=True)
    for path in [usr + "/bin/starring", *glob.glob(usr + "/lib/starring/*.so")]:
        run("strip", "--strip-unneeded", "--remove-section=.comment", "--remove-section=.note", path)


def make_deb(build, out):
    """The package's path."""
    for tool, package in (("dpkg-deb", "dpkg"), ("dpkg-shlibdeps", "dpkg-dev"), ("strip", "binutils")):
        if not shutil.which(tool):
            raise install.Failed(f"{tool} is not installed (the package {package})")
    architecture = run("dpkg", "--print-architecture").strip()
    with tempfile.TemporaryDirectory() as folder:
        root = os.path.join(folder, "root")
        version = version_of(os.path.join(build, "starring"))
        stage(build, root, version)
        plugins = sorted(glob.glob(root + "/usr/lib/starring/*.so"))
        needs, better = depends(root + "/usr/bin/starring", [so for so in plugins if "cuda" not in os.path.basename(so)])
        kinds = [re.sub(r".*_(\w+)\.so", r"\1", so) for so in plugins]
        files = sorted(os.path.relpath(os.path.join(at, n), root) for at, _, names in os.walk(root) for n in names)
        kib = sum(-(-os.path.getsize(os.path.join(root, n)) // 1024) for n in files)
        sums = run("md5sum", *files, cwd=root)
        write(sums, root, "DEBIAN", "md5sums")
        write(CONTROL.format(version=version, architecture=architecture, maintainer=MAINTAINER, kib=kib, depends=", ".join(needs),
                             recommends=", ".join(["python3 (>= 3.9)", "python3-scipy", "python3-jinja2", "python3-simgrid", *(["openmpi-bin"] if "mpi" in kinds else []), *better]),
                             built_for=f"Plugins: {', '.join(kinds) or 'none'}."), root, "DEBIAN", "control")
        os.makedirs(out, exist_ok=True)
        path = os.path.join(out, f"starring_{version}_{architecture}.deb")
        run("dpkg-deb", "--root-owner-group", "--build", root, path)
    return path


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--build", default=os.path.join(TOP, "build"), help="where make has built (%(default)s)")
    ap.add_argument("--out", default=os.path.join(TOP, "build"), metavar="DIR", help="where the package is put (%(default)s)")
    args = ap.parse_args()
    try:
        print(f"deb: {make_deb(args.build, args.out)}")
    except (install.Failed, pages.Failed, OSError, subprocess.TimeoutExpired) as e:
        print(f"deb: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
