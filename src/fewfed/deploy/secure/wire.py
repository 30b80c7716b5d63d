"""Bytes of messages: numbers, texts and pieces one after another, each read only if it is there.

One meaning has one encoding: nothing is optional, lists by name are in the order of names, and nothing may follow the
end.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import TypeVar

from fewfed.deploy.security.envelope import Refused
from fewfed.deploy.security.names import problem_with

_NUMBER = struct.Struct("<Q")
_SIZE = struct.Struct("<I")
LONGEST_TEXT = 300
MOST_ENTRIES = 1_000

Entry = TypeVar("Entry")


def odd(reason: str) -> Refused:
    """The refusal of a message that is not as this program writes it."""
    return Refused("form", reason)


class Writer:
    """Puts a message together."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def number(self, value: int) -> Writer:
        self._parts.append(_NUMBER.pack(value))
        return self

    def raw(self, content: bytes) -> Writer:
        """Bytes whose number the reader knows."""
        self._parts.append(content)
        return self

    def piece(self, content: bytes) -> Writer:
        """Bytes with their number before them."""
        self._parts += [_SIZE.pack(len(content)), content]
        return self

    def text(self, value: str) -> Writer:
        return self.piece(value.encode())

    def by_name(self, entries: Mapping[str, Entry], write: Callable[[Writer, Entry], object]) -> Writer:
        """Entries in the order of their names."""
        self.number(len(entries))
        for name in sorted(entries):
            self.text(name)
            write(self, entries[name])
        return self

    def names(self, names: tuple[str, ...]) -> Writer:
        return self.by_name(dict.fromkeys(names), lambda _writer, _entry: None)

    def done(self) -> bytes:
        return b"".join(self._parts)


class Reader:
    """Takes a message apart, or raises `Refused`. Nothing is built before it is known to be there."""

    def __init__(self, content: bytes) -> None:
        self._content = memoryview(content)
        self._at = 0

    def number(self, most: int = (1 << 63) - 1) -> int:
        (value,) = _NUMBER.unpack(self.raw(_NUMBER.size))
        if value > most:
            raise odd(f"it has the number {value} where at most {most} is expected")
        return int(value)

    def raw(self, count: int) -> bytes:
        if count > len(self._content) - self._at:
            raise odd(f"it ends too early: expected {count} bytes more, found {len(self._content) - self._at}")
        self._at += count
        return bytes(self._content[self._at - count : self._at])

    def piece(self, most: int) -> bytes:
        (size,) = _SIZE.unpack(self.raw(_SIZE.size))
        if size > most:
            raise odd(f"it has a piece of {size} bytes where at most {most} are expected")
        return self.raw(size)

    def text(self) -> str:
        try:
            text = self.piece(4 * LONGEST_TEXT).decode()
        except UnicodeDecodeError:
            raise odd("a text in it is none") from None
        if len(text) > LONGEST_TEXT or not text.isprintable():
            raise odd(f"the text {text!r:.60} in it is too long or has control characters")
        return text

    def by_name(self, read: Callable[[Reader], Entry]) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        before = ""
        for _ in range(self.number(MOST_ENTRIES)):
            name = self.text()
            if problem_with(name):
                raise odd(f"it names the site {name!r:.60}: {problem_with(name)}")
            if name <= before:
                raise odd("its names are not in order, or one stands there twice")
            found[name] = read(self)
            before = name
        return found

    def names(self) -> tuple[str, ...]:
        return tuple(self.by_name(lambda _reader: None))

    def end(self) -> None:
        if self._at != len(self._content):
            raise odd(f"{len(self._content) - self._at} bytes follow its end")
