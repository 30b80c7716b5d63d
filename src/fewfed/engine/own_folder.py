"""A folder that this program writes in, and that somebody else may have filled.

Files are reached through the folder's descriptor and links in it are never followed, so that a run folder from a
stranger cannot lead us to read, overwrite or delete anything outside it. A file appears whole or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fewfed.errors import RunError

PART = ".part"
"""Ending of a file that is being written."""

MOST_BYTES = 1 << 34
"""The largest file that is read unless another limit is given."""

_FILE, _FOLDER = 0o600, 0o700


@dataclass(frozen=True)
class File:
    """A name in a folder of ours."""

    folder: OwnFolder
    name: str

    @property
    def path(self) -> Path:
        """For messages."""
        return self.folder.path / self.name

    @classmethod
    def at(cls, path: Path) -> File:
        return cls(OwnFolder(path.parent), path.name)


class OwnFolder:
    """A folder by its path, or below another one by its name."""

    def __init__(self, path: Path, above: OwnFolder | None = None) -> None:
        """`above`: the folder it lies in. Without one the path is the user's own, and may be a link."""
        self.path = path
        self._above = above
        self._descriptor: int | None = None

    def __truediv__(self, name: str) -> File:
        return File(self, name)

    def below(self, name: str) -> OwnFolder:
        return OwnFolder(self.path / name, self)

    def make(self) -> None:
        """Create the folder unless it is there: for its owner alone, where the umask allows more."""
        try:
            if self._above is None:
                self.path.mkdir(_FOLDER, parents=True, exist_ok=True)
            else:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(self.path.name, _FOLDER, dir_fd=self._above._opened())
        except OSError as error:
            raise RunError(f"cannot create '{self.path}': {_why(error)}; choose another --out") from error
        self._opened()

    def exists(self) -> bool:
        try:
            self._opened()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def names(self) -> list[str]:
        """Everything in the folder. A link, or anything else but a file or a folder, is refused."""
        with os.scandir(self._opened()) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        for entry in found:
            if not (entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)):
                raise _refused(self.path / entry.name, entry.is_symlink())
        return [entry.name for entry in found]

    def has(self, name: str) -> bool:
        """Whether there is a plain file of this name."""
        try:
            found = os.stat(name, dir_fd=self._opened(), follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        if not stat.S_ISREG(found.st_mode):
            raise _refused(self.path / name, stat.S_ISLNK(found.st_mode))
        return True

    def read(self, name: str, most: int = MOST_BYTES) -> bytes:
        """The content of a file. Its size is looked at before memory is taken."""
        try:
            with os.fdopen(self._open(name, os.O_RDONLY), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size > most:
                    raise RunError(f"'{self.path / name}' has {size} bytes: expected at most {most}")
                return file.read(size)
        except OSError as error:
            raise RunError(f"cannot read '{self.path / name}': {_why(error)}") from error

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[int]:
        """A file open for reading, for whoever wants only a part of it."""
        try:
            opened = self._open(name, os.O_RDONLY)
        except OSError as error:
            raise RunError(f"cannot read '{self.path / name}': {_why(error)}") from error
        try:
            yield opened
        finally:
            os.close(opened)

    def write(self, name: str, content: bytes, durable: bool = True) -> None:
        """Replace a file atomically and durably: a crash or a full disk leaves the old one as it was.

        `durable` False leaves it to the system when the content reaches the disk: it outlives this process, but not a
        crash of the machine.
        """
        part = name + PART
        try:
            with os.fdopen(self._new(part), "wb") as file:
                file.write(content)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            self.rename(part, name)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(part, dir_fd=self._opened())
            raise RunError(
                f"cannot write '{self.path / name}': {_why(error)}; what was there before is unchanged"
            ) from error

    def append(self, name: str, content: bytes) -> None:
        """Write at the end of a file, which is made where it is missing."""
        try:
            with os.fdopen(self._open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as file:
                file.write(content)
        except OSError as error:
            raise RunError(f"cannot write '{self.path / name}': {_why(error)}") from error

    def flush(self, name: str) -> None:
        """Wait until a file is on the disk."""
        try:
            with os.fdopen(self._open(name, os.O_WRONLY), "wb") as file:
                os.fsync(file.fileno())
        except OSError as error:
            raise RunError(f"cannot write '{self.path / name}': {_why(error)}") from error

    def rename(self, old: str, new: str) -> None:
        here = self._opened()
        os.replace(old, new, src_dir_fd=here, dst_dir_fd=here)

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._opened())

    @contextlib.contextmanager
    def descriptor_of(self, name: str) -> Iterator[int]:
        """A file open for reading and writing, made where it is missing."""
        try:
            opened = self._open(name, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise RunError(f"cannot write '{self.path / name}': {_why(error)}; choose another --out") from error
        try:
            yield opened
        finally:
            os.close(opened)

    def _open(self, name: str, flags: int) -> int:
        # Without waiting: a pipe that nobody writes to would block for ever.
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            opened = os.open(name, flags, _FILE, dir_fd=self._opened())
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise _refused(self.path / name, error.errno == errno.ELOOP) from error
            raise
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            os.close(opened)
            raise _refused(self.path / name, is_link=False)
        return opened

    def _new(self, name: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(name, flags, _FILE, dir_fd=self._opened())
        except FileExistsError:  # Left by a process that was killed, or put there by somebody: not written through.
            os.unlink(name, dir_fd=self._opened())
            return os.open(name, flags, _FILE, dir_fd=self._opened())

    def _opened(self) -> int:
        if self._descriptor is None:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            if self._above is None:
                self._descriptor = os.open(self.path, flags)
            else:
                try:
                    self._descriptor = os.open(self.path.name, flags | os.O_NOFOLLOW, dir_fd=self._above._opened())
                except NotADirectoryError as error:  # A link is none either, where links are not followed.
                    raise _refused(self.path, self.path.is_symlink()) from error
            weakref.finalize(self, os.close, self._descriptor)
        return self._descriptor


def _refused(path: Path, is_link: bool) -> RunError:
    found = "a link" if is_link else "neither a file nor a folder as a run writes it"
    return RunError(
        f"'{path}' is {found}, which is not followed: expected a run folder as this program wrote it; copy it without "
        "links"
    )


def _why(error: OSError) -> str:
    return error.strerror or str(error)
