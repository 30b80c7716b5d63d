"""A digest of the files a data set is read from: read once, then remembered while nobody touches them."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fewfed.data.limits import Limits
from fewfed.data.readers.folders import cache_folder
from fewfed.data.readers.opening import open_regular, size_of
from fewfed.data.readers.options import DataOptions
from fewfed.data.sources import files, test_files
from fewfed.errors import DataError

PIECE = 4 << 20
MOST_THREADS = 4
MOST_REMEMBERED = 1000
SETTLED_SECONDS = 2.0
"""A file changed this short a time ago may change again without a new time: its digest is not remembered yet."""
VERSION = 1
_ANY_SIZE = Limits(most_bytes=1 << 62)
_DIGEST_LETTERS = 64


def fingerprint(name: str, options: DataOptions) -> str:
    """A digest of the content of every file that `load(name)` would read; empty where none is the user's.

    Names below the data's own folder count, because classes are named after them; where that folder lies does not.
    """
    own = _digest_of(*files(name, options))
    if not options.test_data:
        return own
    return hashlib.sha256(f"{own} {_digest_of(*test_files(options))}".encode()).hexdigest()


def _digest_of(place: Path, found: Sequence[Path]) -> str:
    if not found:
        return ""
    if list(found) == [place]:
        return digest_file(place)
    named = sorted({file: str(file.relative_to(place)) for file in found}.items(), key=lambda item: item[1])
    paths, names = [path for path, _ in named], [inner for _, inner in named]
    key = f"{place.resolve()} {hashlib.sha256('|'.join(names).encode('utf-8', 'surrogateescape')).hexdigest()[:16]}"
    return _remembered(key, paths, names)


def digest_file(path: Path) -> str:
    """A digest of one file's content."""
    return _remembered(str(path.resolve()), [path], [""])


def _remembered(key: str, paths: Sequence[Path], names: Sequence[str]) -> str:
    memory = _Memory(cache_folder() / "digests.json")
    seen = _state(paths)
    known = memory.look_up(key, seen.signature)
    if known:
        return known
    with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as threads:
        digest = hashlib.sha256(f"fewfed files {VERSION}".encode())
        for path, name in zip(paths, names, strict=True):
            label = name.encode("utf-8", "surrogateescape")
            digest.update(len(label).to_bytes(8, "little") + label + _content(path, threads))
    found = digest.hexdigest()
    # Of files that change while they are read, or that changed a moment ago, nothing is known.
    if _state(paths).signature == seen.signature and time.time() - seen.changed > SETTLED_SECONDS:
        memory.keep(key, seen.signature, found)
    return found


class _State:
    """What the system says about some files: a digest of it, and when the last of them was changed."""

    def __init__(self, statuses: Sequence[os.stat_result]) -> None:
        told = [(one.st_dev, one.st_ino, one.st_size, one.st_mtime_ns, one.st_ctime_ns) for one in statuses]
        self.signature = hashlib.sha256(repr(told).encode()).hexdigest()
        # Elsewhere the second of these is when a file was made.
        self.changed = max(one.st_ctime if os.name == "posix" else one.st_mtime for one in statuses)


def _state(paths: Sequence[Path]) -> _State:
    try:
        return _State([path.stat() for path in paths])
    except (OSError, ValueError) as error:
        raise DataError(f"data cannot be read ({error}): expected files that you may read") from error


def _content(path: Path, threads: ThreadPoolExecutor) -> bytes:
    """The digest of the digests of a file's pieces, in order: pieces are read and digested side by side."""
    whole = hashlib.sha256()
    size = size_of(path, _ANY_SIZE)
    own = threading.local()

    def piece(start: int) -> bytes:
        if not hasattr(own, "room"):
            own.room = bytearray(min(PIECE, size))
        room = memoryview(own.room)[: min(PIECE, size - start)]
        with open_regular(path, _ANY_SIZE) as file:
            file.seek(start)
            if file.readinto(room) != len(room):  # type: ignore[attr-defined]
                raise DataError(f"{path} became shorter while it was read: run this again")
        return hashlib.sha256(room).digest()

    for digest in threads.map(piece, range(0, size, PIECE)):
        whole.update(digest)
    whole.update(size.to_bytes(8, "little"))
    return whole.digest()


class _Memory:
    """Digests by place and state, in a small file of the user's; without it everything is only slower."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def look_up(self, key: str, signature: str) -> str:
        found, digest = self._read().get(key, ("", ""))
        return digest if found == signature else ""

    def keep(self, key: str, signature: str, digest: str) -> None:
        entries = self._read()
        entries.pop(key, None)
        entries[key] = (signature, digest)
        latest = dict(list(entries.items())[-MOST_REMEMBERED:])
        scratch = ""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self._path.parent, suffix=".part", delete=False) as file:
                scratch = file.name
                json.dump({"version": VERSION, "entries": latest}, file)
            os.replace(scratch, self._path)
        except (OSError, ValueError):
            if scratch:
                Path(scratch).unlink(missing_ok=True)

    def _read(self) -> dict[str, tuple[str, str]]:
        """What is remembered; of a damaged file, what of it makes sense."""
        try:
            content = json.loads(self._path.read_bytes())
            if content["version"] != VERSION:
                return {}
            return {key: (one, two) for key, (one, two) in content["entries"].items() if _is_digest(one, two)}
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return {}


def _is_digest(*values: object) -> bool:
    return all(isinstance(value, str) and len(value) == _DIGEST_LETTERS for value in values)
