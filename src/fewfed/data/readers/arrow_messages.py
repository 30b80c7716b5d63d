"""How much memory the messages of an .arrow file ask for, found out before any is given.

A record batch may be packed: each of its buffers then begins with the number of bytes it unpacks to, and the library
takes that much memory at once. The place of the buffers is in the message's head, a FlatBuffers table.
"""

from __future__ import annotations

import struct
from typing import Any

UNPACKED = -1
_HEADER_TYPE, _HEADER, _RECORD_BATCH, _DICTIONARY_BATCH = 1, 2, 3, 2
_BATCH_LENGTH, _BATCH_BUFFERS, _BATCH_COMPRESSION = 0, 2, 3
_DICTIONARY_DATA = 1


def memory_of(message: Any) -> int:
    """Bytes that a message of pyarrow's `MessageReader` takes when it is read; `ValueError` where it is damaged."""
    body = memoryview(message.body) if message.body is not None else memoryview(b"")
    head = _Table.root(memoryview(message.metadata))
    kind = head.number(_HEADER_TYPE, "<B")
    if kind not in (_RECORD_BATCH, _DICTIONARY_BATCH):
        return len(body)
    batch = head.table(_HEADER)
    if batch is not None and kind == _DICTIONARY_BATCH:
        batch = batch.table(_DICTIONARY_DATA)
    if batch is None or batch.place(_BATCH_COMPRESSION) is None:
        return len(body)
    total = 0
    for start, size in batch.pairs(_BATCH_BUFFERS):
        claimed = _unpack(body, "<q", start) if size else 0
        total += size if claimed == UNPACKED else claimed
        if claimed < UNPACKED:
            raise ValueError("a buffer of negative size")
    return total


class _Table:
    """A FlatBuffers table: a list of places of its fields, then the fields."""

    def __init__(self, content: memoryview, start: int) -> None:
        self._content = content
        self._start = start
        self._fields = start - _unpack(content, "<i", start)

    @classmethod
    def root(cls, content: memoryview) -> _Table:
        return cls(content, _unpack(content, "<I", 0))

    def place(self, field: int) -> int | None:
        """Where a field is, or None where it is left out."""
        entry = 4 + 2 * field
        if entry + 2 > _unpack(self._content, "<H", self._fields):
            return None
        offset = _unpack(self._content, "<H", self._fields + entry)
        return self._start + offset if offset else None

    def number(self, field: int, layout: str) -> int:
        place = self.place(field)
        return 0 if place is None else _unpack(self._content, layout, place)

    def table(self, field: int) -> _Table | None:
        place = self.place(field)
        return None if place is None else _Table(self._content, place + _unpack(self._content, "<I", place))

    def pairs(self, field: int) -> list[tuple[int, int]]:
        """A vector of pairs of whole numbers."""
        place = self.place(field)
        if place is None:
            return []
        start = place + _unpack(self._content, "<I", place)
        count = _unpack(self._content, "<I", start)
        if 16 * count > len(self._content):
            raise ValueError("a vector that is longer than its message")
        pairs = [
            (_unpack(self._content, "<q", start + 4 + 16 * n), _unpack(self._content, "<q", start + 12 + 16 * n))
            for n in range(count)
        ]
        if any(first < 0 or second < 0 for first, second in pairs):
            raise ValueError("a buffer at a negative place")
        return pairs


def _unpack(content: memoryview, layout: str, place: int) -> int:
    if place < 0:
        raise ValueError("a place before the beginning")
    try:
        (number,) = struct.unpack_from(layout, content, place)
    except struct.error as error:
        raise ValueError("a place after the end") from error
    return int(number)
