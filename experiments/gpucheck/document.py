"""Keeps the document in which several calls collect their parts: checks which results may be added, and writes it."""
import contextlib
import datetime
import fcntl
import json
import os
import sys

from . import page
from .work import FAILED, PASSED

SCHEMA = 2
NAME, PAGE = "gpu-check.json", "gpu-check.md"
# The facts in which all results of a document must agree, with their printed names.
IDENTITY = {"build": "the program's build", "device": "the device", "compute_capability": "the compute capability",
            "driver": "the driver", "quick": "--quick"}


class Unusable(Exception):
    """No results can be added to this document; the text says why and what to do."""


# The keys that a part of an earlier call must have, with their types.
PART = {"name": str, "title": str, "status": str, "finished": bool, "seconds": (int, float), "checks": list, "figures": list,
        "findings": list, "notes": list}


def is_document(found):
    """Whether a JSON value has all keys of a Record's document that are read again."""
    return (isinstance(found, dict) and found.get("schema") == SCHEMA and isinstance(found.get("identity"), dict)
            and isinstance(found.get("parts"), list)
            and all(isinstance(p, dict) and all(isinstance(p.get(key), kind) for key, kind in PART.items())
                    and p["status"] in page.MARK for p in found["parts"]))


def read(folder):
    """The document in a folder, or None if there is none."""
    path = os.path.join(folder, NAME)
    try:
        with open(path, encoding="utf-8") as f:
            found = json.load(f)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as e:
        raise Unusable(f"{path} cannot be read ({e}): name another folder with --out") from None
    if not is_document(found):
        raise Unusable(f"{path} is no document of this gpu-check (schema {SCHEMA}): name another folder with --out")
    return found


def check_same(path, theirs, ours):
    """Raises Unusable if the identities differ."""
    differing = [f"{words} is {theirs.get(key)} there and {ours[key]} here" for key, words in IDENTITY.items()
                 if theirs.get(key) != ours[key]]
    if differing:
        raise Unusable(f"{path} has results of another program or device: {'; '.join(differing)}. New results cannot be added to it: "
                       "name another folder with --out")


def replace(path, text):
    """Replaces a file atomically: a reader finds either the old text or the new one."""
    new = f"{path}.{os.getpid()}.new"
    with open(new, "w", encoding="utf-8") as f:
        f.write(text)
    os.replace(new, path)


class Record:
    """The document of a folder. Parts of earlier calls are kept. A part that runs again replaces its earlier result, which it keeps as
    "before" until it has finished."""

    def __init__(self, out, resume, identity, order):
        """resume: the folder of the document to continue; None: the document in `out`, if there is one."""
        found = read(resume or out)
        if resume and not found:
            raise Unusable(f"there is no {os.path.join(resume, NAME)} to continue: check the folder of --resume")
        if found:
            check_same(os.path.join(resume or out, NAME), found["identity"], identity)
        self.out, self.order = out, order
        self.document = {"schema": SCHEMA, "identity": identity, **(found or {})}
        self.parts = {p["name"]: p for p in self.document.get("parts", []) if p.get("name") in order}
        os.makedirs(out, exist_ok=True)
        self.lock = open(os.path.join(out, ".lock"), "w", encoding="utf-8")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise Unusable(f"another gpu-check writes to {out}: wait for it, or name another folder with --out") from None

    def close(self):
        with contextlib.suppress(OSError):
            self.lock.close()

    def finished(self, name):
        return bool(self.parts.get(name, {}).get("finished"))

    def take(self, part):
        """Stores the part's current state on disk."""
        old, new = self.parts.get(part.name, {}), part.document()
        before = old if old.get("finished") else old.get("before")
        self.parts[part.name] = new if part.finished or not before else {**new, "before": before}
        self.write()

    def write(self, **more):
        parts = [self.parts[name] for name in self.order if name in self.parts]
        self.document.update(more)
        self.document.update(
            passed=passed(parts), complete=all(self.finished(name) for name in self.order),
            seconds=round(sum(p["seconds"] for p in parts), 1),
            findings=[f"{p['name']}: {text}" for p in parts for text in p["findings"]], parts=parts)
        replace(os.path.join(self.out, NAME), json.dumps(self.document, indent=1) + "\n")
        replace(os.path.join(self.out, PAGE), page.page(self.document))


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def command(place):
    return " ".join(["bin/gpu-check" if place.bundled else "experiments/gpu_check.py", *sys.argv[1:]])


def passed(parts):
    """Whether no check failed and at least one passed."""
    return all(p["status"] != FAILED for p in parts) and any(c["status"] == PASSED for p in parts for c in p["checks"])
