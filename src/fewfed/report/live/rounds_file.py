"""The lines of a run's metrics, read on from where they were read last."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fewfed.engine.own_folder import File, OwnFolder
from fewfed.engine.storage import Damaged
from fewfed.runs.folder import METRICS
from fewfed.runs.seals import CHAIN, MOST_BYTES, parsed, unlinked

Record = dict[str, Any]
Stamp = tuple[int, int, int]
"""By what a file is known to be as it was: inode, size, time of the last change."""

_CHUNK = 1 << 20
_TAIL = 1 << 12
"""So many bytes before the place where reading goes on must be as they were: a file that was written anew may also have
grown."""


@dataclass
class RoundsFile:
    """What was read of `metrics.jsonl` so far. The digests that link its lines are checked as they are read."""

    keep: Callable[[Record], Record] = dict
    """What of a line is remembered: a run may have a million of them."""
    records: list[Record] = field(default_factory=list)
    part: float = 1.0
    """How much of the file was read at the last look. A line without its end counts as not yet there."""
    _start: str = ""
    _chain: str = ""
    _offset: int = 0
    _tail: bytes = b""
    _stamp: Stamp | None = None

    def read_on(self, own: OwnFolder, start: str, until: float) -> tuple[list[Record], str]:
        """The records of the lines so far, and the digest of the last.

        `start`: the digest that the first line continues from; empty where an old version wrote the file, whose lines
        are not linked. `until`: the time of `time.monotonic` at which to stop for now.
        """
        if not own.has(METRICS):
            self._begin(start)
            return self.records, self._chain
        with own.reading(METRICS) as descriptor:
            found = os.fstat(descriptor)
            stamp = (found.st_ino, found.st_size, found.st_mtime_ns)
            if start != self._start or not self._continues(descriptor, stamp):
                self._begin(start)
            try:
                self._read(descriptor, found.st_size, own / METRICS, until)
            except Exception:  # Whatever it was, what was read so far and where reading stopped may not fit.
                self._begin(start)
                raise
            self._stamp, kept = stamp, min(_TAIL, self._offset)
            self._tail = os.pread(descriptor, kept, self._offset - kept)
        return self.records, self._chain

    def _begin(self, start: str) -> None:
        self.records, self.part = [], 1.0
        self._start = self._chain = start
        self._offset, self._tail, self._stamp = 0, b"", None

    def _continues(self, descriptor: int, stamp: Stamp) -> bool:
        """Whether what was read before still stands there, as far as that can be told without reading it again."""
        if self._stamp is None or self._stamp == stamp:
            return True
        grown = stamp[0] == self._stamp[0] and stamp[1] > self._stamp[1]
        return grown and os.pread(descriptor, len(self._tail), self._offset - len(self._tail)) == self._tail

    def _read(self, descriptor: int, size: int, file: File, until: float) -> None:
        step = _CHUNK
        while self._offset < size:
            chunk = os.pread(descriptor, min(step, size - self._offset), self._offset)
            lines = chunk.split(b"\n")[:-1]
            if not lines:
                if not chunk or self._offset + len(chunk) >= size:
                    break  # A run that is being written, or was killed, may have a last line without its end.
                if step > MOST_BYTES:
                    raise Damaged(f"'{file.path}' is damaged: it has a line of more than {MOST_BYTES} bytes")
                step *= 2
            for line in lines:
                if time.monotonic() > until:
                    self.part = self._offset / size
                    return
                self._add(line, file)
        self.part = 1.0

    def _add(self, line: bytes, file: File) -> None:
        if self._start:
            record, self._chain = unlinked(line, self._chain, file)
        else:
            record = parsed(line, file)
            record.pop(CHAIN, None)
        self.records.append(self.keep(record))
        self._offset += len(line) + 1
