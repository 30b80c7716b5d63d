"""Data files are opened here: regular files only, and no larger than the limits."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from fewfed.data.limits import Limits
from fewfed.errors import DataError

# Not waiting, because a pipe without a writer would block for ever; other systems lack some of these.
_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)


def open_regular(path: Path, limits: Limits) -> BinaryIO:
    """The file for reading; links to regular files are followed, devices and pipes are refused."""
    size_of(path, limits)
    try:
        descriptor = os.open(path, _FLAGS)
    except (OSError, ValueError) as error:
        raise _unopened(path, error) from error
    try:
        # Once more, because the name may have come to mean something else.
        _refuse_special(path, os.fstat(descriptor))
    except DataError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def size_of(path: Path, limits: Limits) -> int:
    """Bytes of a regular file within the limits; a `DataError` says what else it is."""
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        raise _unopened(path, error) from error
    _refuse_special(path, status)
    limits.check_total(str(path), status.st_size)
    return status.st_size


def read_bytes(path: Path, limits: Limits) -> bytes:
    """As many bytes as the file has when it is opened: some never end."""
    with open_regular(path, limits) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def _refuse_special(path: Path, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    kinds = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))
    what = next((name for test, name in kinds if test(status.st_mode)), "a device")
    raise DataError(f"{path} is {what}: expected a regular file")


def _unopened(path: Path, error: Exception) -> DataError:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return DataError(f"{path} cannot be opened ({reason}): expected a file that can be read")
