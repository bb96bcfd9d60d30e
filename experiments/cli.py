"""Ends a script as its user expects after `| head`, Ctrl-C, a full disk or a closed terminal."""
import argparse
import ctypes
import errno
import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import tempfile

READER_LEFT = 141   # what a shell shows of a program that ended by SIGPIPE
INTERRUPTED = 130   # and of one that ended by Ctrl-C
DEBIANS = "/usr/bin/python3"
PR_SET_PDEATHSIG = 1  # linux/prctl.h
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def dies_with_us(number=signal.SIGKILL):
    """For subprocess's preexec_fn, from the main thread: the kernel sends the child this signal when this process dies, after a SIGKILL as
    well."""
    libc, parent = ctypes.CDLL(None), os.getpid()

    def before_exec():
        libc.prctl(PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:  # it died in between
            os._exit(128 + number)
    return before_exec


def needs(*packages):
    """Ends the script with status 2 and a sentence on what to install, unless this Python has these packages."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        print(f"{os.path.basename(sys.argv[0])}: error: {sys.executable} lacks {', '.join(missing)}: run `make deps`, or apt install "
              f"{' '.join('python3-' + name for name in missing)}, or {sys.executable} -m pip install {' '.join(missing)}", file=sys.stderr)
        sys.exit(2)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # small tables want no threads, which would disturb the runs that are measured


def in_debians(package, argv):
    """Executes argv in Debian's Python if this interpreter does not have the package and that one does: some packages exist only in
    Debian."""
    asks = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    if importlib.util.find_spec(package) is None and os.path.realpath(sys.executable) != os.path.realpath(DEBIANS) and os.access(DEBIANS, os.X_OK):
        if subprocess.run([DEBIANS, "-c", asks], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0:
            os.execv(DEBIANS, [DEBIANS, *argv])


def count(words):
    """A type of argparse: a whole number above 0."""
    if not words.isdigit() or int(words) < 1:
        raise argparse.ArgumentTypeError(f"{words!r}: expected a whole number above 0")
    return int(words)


def above_zero(words):
    """A type of argparse: a number above 0."""
    try:
        found = float(words)
    except ValueError:
        found = 0
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"{words!r}: expected a number above 0")
    return found


def answer(find, show, as_json, *failures):
    """Calls find(folder) with a temporary folder, and prints its result as JSON or with show(). Prints an exception of the types `failures` as
    one line. Returns the exit status."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            found = find(folder)
    except failures as e:
        print(f"{os.path.basename(sys.argv[0])}: error: {e}", file=sys.stderr)
        return 1
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        show(found)
    return 0


def forget_output():
    """Discards the output that is still in the buffer: the interpreter would try to write it again at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run(main, interrupted="interrupted"):
    """Calls main() and exits with its status. A closed pipe (`| head`) ends the script silently, Ctrl-C with the words `interrupted`, a
    full disk with status 1; none prints a traceback."""
    name = os.path.basename(sys.argv[0])
    if sys.stdout is None:  # closed by the caller
        sys.stdout = open(os.devnull, "w", encoding="utf-8")
    sys.stdout.reconfigure(errors="backslashreplace")  # file names need not be UTF-8
    try:
        try:
            status = main()
        except SystemExit as e:  # argparse, after --help
            status = e.code
        sys.stdout.flush()
    except BrokenPipeError:
        forget_output()
        status = READER_LEFT
    except OSError as e:
        if e.errno not in NO_ROOM:
            raise
        forget_output()
        print(f"{name}: error: {e.filename or 'the output'} could not be written: {e.strerror}", file=sys.stderr)
        status = 1
    except KeyboardInterrupt:
        print(f"\n{name}: {interrupted}", file=sys.stderr)
        status = INTERRUPTED
    sys.exit(status)
