"""Finds the starring program for the scripts: in the sources, in a bundle, or installed below a prefix."""
import os

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def built():
    """The path of $STARRING, else of the first program that exists: TOP/build/starring of the sources, TOP/bin/starring of a bundle,
    PREFIX/bin/starring if TOP is PREFIX/share/starring. If none exists, the sources' path, since `make` builds it there."""
    places = [os.path.normpath(os.path.join(TOP, folder, "starring")) for folder in ("build", "bin", "../../bin")]
    return os.environ.get("STARRING") or next((p for p in places if os.path.isfile(p)), places[0])
