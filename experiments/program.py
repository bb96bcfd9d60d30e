"""Finds the program from the scripts: in the sources, in a bundle, or installed below a prefix."""
import os

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def built():
    """$STARRING, else the program beside these scripts, wherever they are started: TOP/build of the sources, TOP/bin of a bundle,
    PREFIX/bin of PREFIX/share/starring. The first that is there; where none is, that of the sources, which make builds."""
    places = [os.path.normpath(os.path.join(TOP, folder, "starring")) for folder in ("build", "bin", "../../bin")]
    return os.environ.get("STARRING") or next((p for p in places if os.path.isfile(p)), places[0])
