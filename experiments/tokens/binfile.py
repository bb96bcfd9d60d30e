"""llm.c's token files and their sidecars.

Format (llm.c, dev/data/data_common.py, write_datafile): 256 int32 {magic, version, number of tokens, 0 ..}, then the
tokens, all little-endian: uint16 under magic 20240520 version 1, uint32 under magic 20240801 version 7.
"""
import array
import json
import os
import struct
import sys

from . import VERSION, RunError

HEADER_WORDS = 256
MOST_TOKENS = 2**31 - 1  # the header's count is an int32
FORMATS = {2: (20240520, 1, "H"), 4: (20240801, 7, "I")}  # bytes of a token: (magic, version, type code of `array`)


class BinWriter:
    """Writes FILE under a temporary name. finish() renames it; without finish(), discard() removes it."""

    def __init__(self, path, vocab_size):
        self.path, self.vocab_size = path, vocab_size
        self.width = 2 if vocab_size <= 1 << 16 else 4
        self.tokens = 0
        self.parts = [f"{path}.part{os.getpid()}", f"{path}.json.part{os.getpid()}"]
        try:
            self.file = open(self.parts[0], "wb")
            self.file.write(self.header())
        except OSError as e:
            self.discard()
            raise RunError(f"{self.parts[0]}: {e.strerror}") from None

    def header(self):
        magic, version, _ = FORMATS[self.width]
        return struct.pack(f"<{HEADER_WORDS}i", magic, version, self.tokens, *[0] * (HEADER_WORDS - 3))

    def add(self, ids):
        self.tokens += len(ids)
        if self.tokens > MOST_TOKENS:
            raise RunError(f"{self.path}: llm.c's header counts to {MOST_TOKENS:,} tokens and the texts have more: make several "
                           "files of them in one directory, which --data takes as a whole")
        values = array.array(FORMATS[self.width][2], ids)
        if sys.byteorder == "big":
            values.byteswap()
        try:
            values.tofile(self.file)
        except OSError as e:
            raise RunError(f"{self.parts[0]}: {e.strerror}") from None

    def finish(self, sidecar):
        """Renames the file, and then its sidecar (a dictionary), so that no sidecar describes a missing file."""
        side = self.path + ".json"
        try:
            self.file.seek(0)
            self.file.write(self.header())
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()
            with open(self.parts[1], "w", encoding="utf-8") as f:
                json.dump(sidecar, f, indent=2, ensure_ascii=False)
                f.write("\n")
            if os.path.exists(side):
                os.unlink(side)
            os.replace(self.parts[0], self.path)
            os.replace(self.parts[1], side)
        except OSError as e:
            raise RunError(f"{e.filename or self.path}: {e.strerror}") from None

    def discard(self):
        if hasattr(self, "file"):
            try:
                self.file.close()
            except OSError:
                pass  # the disk is full; the file is removed anyway
        for part in self.parts:
            if os.path.exists(part):
                os.unlink(part)


def sidecar(encoder, writer, sources, documents):
    """The sidecar's contents: the facts that training checks against the model (shared/data/vocabulary.h), and others for its readers."""
    return {"format": "starring tokens", "program": f"starring tokenize.py {VERSION}",
            "tokenizer": {"name": encoder.name, "kind": encoder.kind, "files": encoder.files},
            "vocab_size": encoder.vocab_size, "tokens": writer.tokens, "documents": documents,
            "document_start": encoder.start, "sources": [s.facts() for s in sources]}
