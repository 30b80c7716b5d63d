"""Memory that two processes share: a file without a name, in memory where there is room and else on a disk.

All of it is taken from the system before it is used: memory that runs out later would end the process without a word.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import warnings

import numpy as np
import torch
from torch import Tensor

from fewfed.errors import RunError

_MEMORY = "/dev/shm"
_SMALLEST = 4096


class Area:
    """One piece of shared memory that is replaced by a larger one when it is too small."""

    def __init__(self) -> None:
        self.fd = -1
        self._map: mmap.mmap | None = None
        self._tensor: Tensor | None = None
        self.fresh = False

    def reserve(self, size: int) -> Tensor:
        if self._tensor is None or len(self._tensor) < size:
            self.close()
            self.attach(_file_of(max(size, _SMALLEST) * 5 // 4), mmap.ACCESS_WRITE)
            self.fresh = True
        assert self._tensor is not None
        return self._tensor

    def attach(self, fd: int, access: int) -> None:
        self.close()
        self.fd = fd
        self._map = mmap.mmap(fd, 0, access=access)
        with warnings.catch_warnings():  # Of memory that cannot be written to, which is wanted here.
            warnings.simplefilter("ignore")
            self._tensor = torch.from_numpy(np.frombuffer(self._map, np.uint8))

    @property
    def tensor(self) -> Tensor:
        assert self._tensor is not None
        return self._tensor

    def close(self) -> None:
        # The mapping itself goes when the last tensor that looks into it does.
        self._map = None
        self._tensor = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _file_of(room: int) -> int:
    """The descriptor of a file without a name, all of whose bytes are there."""
    refused: list[str] = []
    for find in (_memory_with, lambda _: tempfile.gettempdir()):
        folder = ""
        try:
            folder = find(room)
            with tempfile.TemporaryFile(dir=folder) as file:
                file.truncate(room)
                _take(file.fileno(), room)
                return os.dup(file.fileno())
        except OSError as error:
            refused.append(": ".join(filter(None, (folder, error.strerror or str(error)))))
    raise RunError(
        f"there is no room for {-(-room // (1 << 20))} MiB that worker processes exchange ({'; '.join(refused)}): free "
        "some, let TMPDIR name a folder with more, or use --executor sequential"
    )


def _memory_with(room: int) -> str:
    """The folder that is memory, where there is space in it; containers often give it only 64 MiB."""
    space = os.statvfs(_MEMORY)
    free = space.f_bavail * space.f_frsize
    if free <= 2 * room:
        raise OSError(f"{_MEMORY}: {free >> 20} MiB are free")
    return _MEMORY


def _take(fd: int, room: int) -> None:
    """Have the system set the bytes of a file aside: a hole that cannot be filled ends whoever writes to it."""
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(fd, 0, room)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # A file system that knows no such thing.
            raise
