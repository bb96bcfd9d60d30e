"""Reads sources, encodes them and writes the tokens, with no more in memory than one batch needs."""
import time
from concurrent.futures import ThreadPoolExecutor

from .text import PIECE_CHARS, pieces

BATCH_PIECES = 4096  # the most pieces of a batch, which many short documents reach


class Progress:
    """Shows the progress as a line on the terminal; prints nothing if standard error is no terminal."""

    def __init__(self, file, total_bytes):
        self.file, self.total_bytes = file, total_bytes
        self.start = self.shown = time.monotonic()

    def show(self, done_bytes, tokens):
        now = time.monotonic()
        if not self.file or now - self.shown < 0.2:
            return
        self.shown = now
        percent = 100 * done_bytes / self.total_bytes if self.total_bytes else 100
        self.file.write(f"\r{percent:3.0f}%  {done_bytes / 1e6:,.1f} MB  {tokens:,} tokens  "
                        f"{done_bytes / 1e6 / (now - self.start):.1f} MB/s\x1b[K")
        self.file.flush()

    def clear(self):
        if self.file and self.shown > self.start:
            self.file.write("\r\x1b[K")
            self.file.flush()


def batches(sources, cutter, separator, workers, size):
    """Yields batches, lists of (starts, text) with about one piece per worker. A source is opened only when it is read."""
    batch, chars = [], 0
    for source in sources:
        source.open()
        try:
            for piece in pieces(source, cutter, separator, size):
                batch.append(piece)
                chars += len(piece[1])
                if chars >= size * workers or len(batch) >= BATCH_PIECES:
                    yield batch
                    batch, chars = [], 0
        finally:
            source.close()
    if batch:
        yield batch


def run(sources, encoder, writer, separator=None, workers=1, progress=None, size=PIECE_CHARS):
    """Writes each document's tokens after the token that starts a document; returns the number of documents.

    The encoder works on one batch while the tokens of the one before are written and the next is read.
    """
    documents, waiting = 0, None

    def write(batch, result):
        started = 0
        for (starts, _), ids in zip(batch, result.result()):
            if starts:
                started += 1
                writer.add([encoder.start["id"]])
            writer.add(ids)
        if progress:
            progress.show(sum(s.bytes for s in sources), writer.tokens)
        return started

    with ThreadPoolExecutor(1) as pool:
        for batch in batches(sources, encoder.cutter, separator, workers, size):
            result = pool.submit(encoder.encode_batch, [text for _, text in batch])
            if waiting:
                documents += write(*waiting)
            waiting = batch, result
        if waiting:
            documents += write(*waiting)
    return documents
