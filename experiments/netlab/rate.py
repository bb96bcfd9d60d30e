"""Reads and prints bandwidths."""
import re

UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
EXAMPLES = "1Gbit, 200Mbit or 2.5Gbit"


def parse(words, most=1e12):
    """Bits per second, at most `most`; ValueError says what is expected."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)(?:/s|ps)?", words.strip())
    unit = UNITS.get(match.group(2).lower()) if match else None
    bits = float(match.group(1)) * unit if unit else 0
    if not 1e6 <= bits <= most:
        raise ValueError(f"{words!r}: expected a bandwidth from 1Mbit to 1000Gbit, as {EXAMPLES}")
    return bits


def text(bits):
    """The bandwidth in words: 1 Gbit/s."""
    for unit, size in (("Tbit/s", 1e12), ("Gbit/s", 1e9), ("Mbit/s", 1e6)):
        if bits >= size:
            return f"{bits / size:g} {unit}"
    return f"{bits / 1e3:g} kbit/s"
