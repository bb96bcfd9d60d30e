"""Finds the starring program for the scripts: in the sources, in a bundle, or installed below a prefix."""
import os
import subprocess

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def built():
    """The path of $STARRING, else of the first program that exists: TOP/build/starring of the sources, TOP/bin/starring of a bundle,
    PREFIX/bin/starring if TOP is PREFIX/share/starring. If none exists, the sources' path, since `make` builds it there."""
    places = [os.path.normpath(os.path.join(TOP, folder, "starring")) for folder in ("build", "bin", "../../bin")]
    return os.environ.get("STARRING") or next((p for p in places if os.path.isfile(p)), places[0])


def run(argv, failed, **how):
    """The CompletedProcess of argv, with all that it prints. failed: an exception's class, for a program that cannot be started."""
    try:
        return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, **how)
    except OSError as e:
        raise failed(f"cannot start {argv[0]}: {e.strerror}; build it with make, or name it with --program") from None
