"""Archives become files: only files and folders, only below their own folder, and no more than the limits allow."""

from __future__ import annotations

import gzip
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, TypeVar

from fewfed.data.limits import Limits
from fewfed.data.readers.opening import open_regular, size_of
from fewfed.data.zip_entries import refused_entry
from fewfed.errors import DataError, in_one_line

T = TypeVar("T")
MOST_ENTRIES = 200_000
BLOCK = 1 << 20
LONGEST_NAME = 255
MOST_FOLDERS = 100
SHOWN = 80
_DAMAGE = (
    *(tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error),
    *(EOFError, ValueError, LookupError, ArithmeticError, RuntimeError),
    *(FileExistsError, NotADirectoryError, IsADirectoryError),  # one entry is a file, and a folder of another
)
"""What the libraries raise for an archive that is none."""


def unpack(archive: Path, folder: Path, limits: Limits | None = None) -> None:
    """Extract a .zip or .tar.gz; one that holds links, passwords or too much is refused, a damaged one is deleted."""
    limits = limits or Limits()
    try:
        if archive.suffix == ".zip":
            _unzip(archive, folder, limits)
        else:
            _untar(archive, folder, limits)
    except _DAMAGE as error:
        archive.unlink()
        reason = in_one_line(error)
        raise DataError(
            f"{archive.name} is damaged ({reason}): expected a whole archive; it was deleted, run this again"
        ) from error


def _unzip(archive: Path, folder: Path, limits: Limits) -> None:
    stored = size_of(archive, limits)
    with open_regular(archive, limits) as file, _read(lambda: zipfile.ZipFile(file)) as content:
        entries = content.infolist()
        _refuse_crowds(archive, len(entries))
        for entry in entries:
            link = "is a link: expected files and folders" if stat.S_ISLNK(entry.external_attr >> 16) else ""
            _refuse(archive, entry.filename, refused_entry(entry) or link)
        targets = [_target(archive, folder, entry.filename) for entry in entries]
        # An entry is never read beyond the size it claims here.
        limits.check(archive.name, sum(entry.file_size for entry in entries), stored)
        for entry, target in zip(entries, targets, strict=True):
            if entry.is_dir():
                target.mkdir(parents=True, exist_ok=True)
            else:
                _write(_read(partial(content.open, entry)), target)


def _untar(archive: Path, folder: Path, limits: Limits) -> None:
    stored = size_of(archive, limits)
    with open_regular(archive, limits) as file, gzip.GzipFile(fileobj=file) as unpacked:
        bounded = _Bounded(unpacked, archive.name, stored, limits)
        total = 0
        with tarfile.open(fileobj=bounded, mode="r:") as content:  # type: ignore[call-overload]
            for count, member in enumerate(content, start=1):
                _refuse_crowds(archive, count)
                if member.size < 0 or not (member.isreg() or member.isdir()):
                    _refuse(archive, member.name, "is a link or a device: expected files and folders")
                target = _target(archive, folder, member.name)
                if member.isdir():
                    target.mkdir(parents=True, exist_ok=True)
                    continue
                # A sparse file is larger than what is stored of it.
                total += member.size
                limits.check(archive.name, total, stored)
                _write(content.extractfile(member), target)


class _Bounded:
    """An unpacked file that is refused where it goes on for too long: sizes in a .tar may say anything."""

    def __init__(self, file: gzip.GzipFile, name: str, stored: int, limits: Limits) -> None:
        self._file = file
        self._name = name
        self._stored = stored
        self._limits = limits

    def read(self, size: int) -> bytes:
        if size < 0:
            raise tarfile.ReadError("negative size")
        self._limits.check(self._name, self.tell() + size, self._stored)
        return self._file.read(size)

    def seek(self, place: int) -> int:
        self._limits.check(self._name, place, self._stored)
        return self._file.seek(place)

    def tell(self) -> int:
        return self._file.tell()


def _target(archive: Path, folder: Path, name: str) -> Path:
    inner = PurePosixPath(name)
    if len(inner.parts) > MOST_FOLDERS or any(len(os.fsencode(part)) > LONGEST_NAME for part in inner.parts):
        _refuse(archive, name, "has a name that is too long: expected one that a system can keep")
    root = folder.resolve()
    target = root / inner
    if inner.is_absolute() or ".." in inner.parts or not target.resolve().is_relative_to(root):
        _refuse(archive, name, "lies outside: expected an archive that stays in its folder")
    return target


def _write(packed: IO[bytes], target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with packed, target.open("wb") as file:
        while block := _read(lambda: packed.read(BLOCK)):
            file.write(block)


def _read(step: Callable[[], T]) -> T:
    """The result of reading from an archive; what the system says then is the archive's fault, not that of the disk."""
    try:
        return step()
    except OSError as error:
        raise EOFError(in_one_line(error)) from error


def _refuse(archive: Path, name: str, reason: str) -> None:
    if reason:
        raise DataError(f"{archive.name} was refused: its entry '{name[:SHOWN]}' {reason}")


def _refuse_crowds(archive: Path, entries: int) -> None:
    if entries > MOST_ENTRIES:
        raise DataError(f"{archive.name} was refused: it has more than {MOST_ENTRIES} entries")
