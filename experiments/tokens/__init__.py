"""The modules of experiments/tokenize.py, which turns text into llm.c's token files.

    text.py      files into documents, documents into pieces that can be encoded one by one
    encoder.py   a Hugging Face tokenizer: its files, the token that starts a document, where text may be cut
    binfile.py   llm.c's format and the sidecar
    stream.py    all of it in a stream
"""
VERSION = "0.1"


class UsageError(Exception):
    """The command line is wrong: exit status 2."""


class RunError(Exception):
    """The work failed: exit status 1."""
