"""Splits files into documents, and documents into pieces.

A piece is as much text as one call of the encoder takes. Pieces end where the tokens before and after do not depend
on each other (encoder.Cutter finds such places), so that the tokens of the pieces, one after the other, are those
of the document encoded as a whole. Where no such place is found a piece grows to the whole document.
"""
import codecs
import hashlib
import os

import regular

from . import RunError, UsageError

PIECE_CHARS = 1 << 16  # the least length of a piece, which ends at the first possible cut after it
MARGIN_CHARS = 64      # text that must follow a cut, so that the cut can be tested
POINTER = b"version https://git-lfs.github.com/spec/"
# First bytes of files that are no text, each with the kind of file and what to do.
KINDS = ((POINTER, "is a pointer of Git LFS, not the file itself: git lfs pull in its folder fetches it"),
         (b"\x1f\x8b", "is compressed: unpack it with gzip -d"),
         (b"\x28\xb5\x2f\xfd", "is compressed: unpack it with zstd -d"),
         (b"\xfd7zXZ", "is compressed: unpack it with xz -d"),
         (b"BZh9", "is compressed: unpack it with bunzip2"),
         (b"PK\x03\x04", "is a zip archive: unpack it with unzip"),
         (b"PAR1", "is a Parquet table: write its column of texts into a text file (pandas.read_parquet)"),
         (b"%PDF-", "is a PDF document: take its text with pdftotext"),
         (b"\x80\x04\x95", "is a pickle of Python: write its texts into a text file"),
         (b"\xff\xfe", "looks like UTF-16: convert it with iconv"),
         (b"\xfe\xff", "looks like UTF-16: convert it with iconv"))


def kind_of(head):
    """A sentence on why a file that begins with these bytes is no text; None if the bytes are of no known kind."""
    return next((what for magic, what in KINDS if head.startswith(magic)), None)


def printable(name):
    """A file's name for the sidecar, as valid UTF-8, which names of files need not be."""
    return os.fsencode(name).decode("utf-8", "replace")


class Source:
    """One file of text, which is read once from front to back. After that, facts() has its entry in the sidecar."""

    def __init__(self, path, errors="strict"):
        self.path, self.errors = path, errors
        self.bytes = 0
        self.hash = hashlib.sha256()

    def open(self):
        try:
            self.file = regular.open_file(self.path, "rb")
        except OSError as e:
            raise RunError(f"{self.path}: {e.strerror}") from None
        self.pending, self.base = b"", 0  # the bytes of an incomplete character, and their offset in the file
        return self

    def close(self):
        self.file.close()

    def more(self, count):
        """The text of about `count` more bytes, at least one character; "" at the file's end."""
        while True:
            try:
                data = self.file.read(count)
            except OSError as e:
                raise RunError(f"{self.path}: {e.strerror}") from None
            what = None if self.bytes else kind_of(data)
            if what and (self.errors == "strict" or data.startswith(POINTER)):
                raise RunError(f"{self.path}: {what}")
            self.hash.update(data)
            self.bytes += len(data)
            text = self.decode(self.pending + data, final=not data)
            if text or not data:
                return text

    def decode(self, data, final):
        try:
            text, used = codecs.utf_8_decode(data, self.errors, final)
        except UnicodeDecodeError as e:
            raise RunError(f"{self.path}: byte 0x{data[e.start]:02x} at offset {self.base + e.start} is not UTF-8; "
                           "--errors replace puts U+FFFD in the place of such bytes") from None
        zero = text.find("\0") if self.errors == "strict" else -1
        if zero >= 0:
            at = self.base + len(text[:zero].encode("utf-8"))
            raise RunError(f"{self.path}: a zero byte at offset {at}: is this a text? --errors replace takes it as it is")
        if self.base == 0 and text.startswith("\ufeff"):
            text = text[1:]  # the byte order mark, which some editors write, is not part of the text
        self.pending, self.base = data[used:], self.base + used
        return text

    def facts(self):
        return {"name": printable(os.path.basename(self.path)), "bytes": self.bytes, "sha256": self.hash.hexdigest()}


def find_files(paths):
    """The files that the paths name; for a directory, its .txt files in the order of their names."""
    files = []
    for path in paths:
        if os.path.isdir(path):
            names = sorted((n for n in os.listdir(path) if n.endswith(".txt")), key=os.fsencode)
            if not names:
                raise UsageError(f"{path}: the directory has no .txt file")
            files += [os.path.join(path, n) for n in names]
        else:
            files.append(path)
    for path in files:
        if not os.path.isfile(path):
            raise UsageError(f"{path}: {'not a regular file' if os.path.exists(path) else 'no such file'}")
        if not os.access(path, os.R_OK):
            raise UsageError(f"{path}: may not be read")
    return files


def pieces(source, cutter, separator=None, size=PIECE_CHARS):
    """Yields (starts, text) for each piece of the source, in order. starts: whether the piece is the first of its document.

    source.more(n) returns text. cutter.find(text, first, last) returns a position in [first, last) to cut at, or -1; without a
    cutter documents are not cut. A separator ends a document and belongs to none. Documents of only white space are left out.
    """
    text, starts, searched, ended = "", True, 0, False
    hold = len(separator) - 1 if separator else 0  # the end of the text read so far may be the beginning of a separator
    while not ended:
        # If nothing could be cut, the next read doubles the text, so that the total work stays proportional to it.
        more = source.more(max(size, len(text)))
        ended, text = not more, text + more
        if separator and separator in text:
            *whole, text = text.split(separator)
            for document in whole:
                yield from cut(document, starts, cutter, size)
                starts, searched = True, 0
        while cutter and not ended and len(text) - hold - MARGIN_CHARS > size:
            last = len(text) - hold - MARGIN_CHARS
            at = cutter.find(text, max(size, searched), last)
            if at < 0:
                searched = last
                break
            yield starts, text[:at]
            starts, text, searched = False, text[at:], 0
    yield from cut(text, starts, cutter, size)


def cut(document, starts, cutter, size):
    """Yields the remaining pieces of a document whose end has been read."""
    if starts and not document.strip():
        return
    while cutter and len(document) - MARGIN_CHARS > size:
        at = cutter.find(document, size, len(document) - MARGIN_CHARS)
        if at < 0:
            break
        yield starts, document[:at]
        starts, document = False, document[at:]
    if document:
        yield starts, document
