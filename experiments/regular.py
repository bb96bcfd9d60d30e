"""Opens files that a user names: only regular files. A pipe, a terminal or a device could make open() or
read() wait for ever, or give bytes without end."""
import errno
import os
import stat

WHOLE = 256 << 20  # bytes: the largest document that is read at once
KINDS = ((stat.S_ISDIR, errno.EISDIR, "is a directory, not a file"),
         (stat.S_ISFIFO, errno.EINVAL, "is a pipe, not a regular file: write its bytes to a file first"),
         (stat.S_ISSOCK, errno.EINVAL, "is a socket, not a regular file"))


def refuse_others(path, mode):
    for is_kind, number, words in KINDS:
        if is_kind(mode):
            raise OSError(number, words, path)
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "is a device, not a regular file", path)


def open_file(path, mode="r", limit=None, **more):
    """open(path, mode); raises OSError with a clear text for other kinds of files, and for more than `limit` bytes."""
    refuse_others(path, os.stat(path).st_mode)  # checked before it is opened: opening some devices has an effect
    file = open(path, mode, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY), **more)
    try:
        found = os.fstat(file.fileno())
        refuse_others(path, found.st_mode)
        if limit is not None and found.st_size > limit:
            raise OSError(errno.EFBIG, f"is too large: at most {limit} bytes are read", path)
    except OSError:
        file.close()
        raise
    return file
