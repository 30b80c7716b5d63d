"""Files written by `pickle` that hold nothing but arrays, numbers, text, lists and dictionaries, read without it.

Unpickling calls whatever a file names. Here nothing is called: the few instructions that the published CIFAR files, and
those that users save again, consist of are interpreted, and arrays are made from bytes whose number was checked.
"""

from __future__ import annotations

import codecs
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fewfed.data.limits import Limits
from fewfed.data.readers.opening import read_bytes
from fewfed.errors import DataError

MOST_STEPS = 5_000_000
"""Instructions in one file: the largest published one has 400 000."""
MOST_DEPTH = 100
MOST_AXES = 8
LONGEST_NUMBER = 255
PLAIN = "expected plain arrays, numbers, text, lists and dictionaries"
NUMBERS = frozenset({"i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"})
KNOWN = {
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): "dtype",
    ("numpy.core.multiarray", "_reconstruct"): "empty array",
    ("numpy._core.multiarray", "_reconstruct"): "empty array",
    ("numpy.core.numeric", "_frombuffer"): "array",
    ("numpy._core.numeric", "_frombuffer"): "array",
    ("_codecs", "encode"): "encode",
    ("builtins", "bytes"): "bytes",
    ("__builtin__", "bytes"): "bytes",
}


def load_plain(path: Path, limits: Limits | None = None) -> Any:
    """The content of a pickle; one that needs more than plain values is refused. Text of Python 2 comes as bytes."""
    content = read_bytes(path, limits or Limits())
    try:
        return _Interpreter(content).result()
    except _Refused as error:
        raise DataError(f"{path}: {error}: {PLAIN}") from error
    except (ValueError, LookupError, OverflowError, struct.error) as error:
        raise DataError(
            f"{path} cannot be read as a data batch ({type(error).__name__}): expected an undamaged file; get it again"
        ) from error


class _Refused(Exception):
    """The pickle is no collection of plain values."""


class _EndsEarly(ValueError):
    """The file ends, or the stack is empty, where more was announced."""


# What follows is only ever on the way to an array; it never gets into a list or a dictionary.


@dataclass(frozen=True)
class _Named:
    """A function or class that the pickle asked for: only its name is kept."""

    what: str


@dataclass
class _Kind:
    """A type of numbers; its byte order comes after it."""

    code: str
    order: str = "="

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.code if self.order == "|" else self.order + self.code)


@dataclass
class _Unfilled:
    """An array whose content comes after it, and the places where it is remembered until then."""

    places: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class _Arguments:
    """A tuple that holds something other than plain values."""

    values: tuple[Any, ...]


_PASSING = (_Named, _Kind, _Unfilled, _Arguments)


def _plain(value: Any) -> Any:
    if isinstance(value, _PASSING):
        raise _Refused("the pickle keeps a part of an array by itself")
    return value


class _Interpreter:
    """A stack, marks that say where a collection on it begins, and numbered places to remember values in."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0
        self._stack: list[Any] = []
        self._marks: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self._encoded = 0

    def result(self) -> Any:
        for _ in range(MOST_STEPS):
            code = self._content[self._at]
            self._at += 1
            if code == _STOP:
                return _plain(self._stack.pop())
            if code in _VALUES:
                self._stack.append(_VALUES[code](self))
            elif code in _ACTIONS:
                _ACTIONS[code](self)
            else:
                raise _Refused(f"the pickle has the instruction {code:#04x}")
        raise _Refused(f"the pickle has more than {MOST_STEPS} instructions")

    # --- reading -----------------------------------------------------------------------------------------------------

    def take(self, count: int) -> bytes:
        taken = self._content[self._at : self._at + count]
        if count < 0 or len(taken) != count:
            raise _EndsEarly
        self._at += count
        return taken

    def skip(self, count: int) -> None:
        self.take(count)

    def number(self, layout: str) -> Any:
        (value,) = struct.unpack(layout, self.take(struct.calcsize(layout)))
        return value

    def counted(self, layout: str) -> bytes:
        """As many bytes as the number before them says."""
        return self.take(self.number(layout))

    def line(self) -> bytes:
        end = self._content.index(b"\n", self._at)
        taken = self._content[self._at : end]
        self._at = end + 1
        return taken

    def text(self, layout: str) -> str:
        return self.counted(layout).decode("utf-8", "surrogatepass")

    def short_line(self) -> str:
        taken = self.line()
        if len(taken) > LONGEST_NUMBER:
            raise _Refused("the pickle has a very long number")
        return taken.decode("ascii")

    def written_integer(self) -> int:
        text = self.short_line()
        return {"00": False, "01": True}[text] if text in ("00", "01") else int(text.removesuffix("L"))

    def long_integer(self, layout: str) -> int:
        size = self.number(layout)
        if not 0 <= size <= LONGEST_NUMBER:
            raise _Refused("the pickle has a very long number")
        return int.from_bytes(self.take(size), "little", signed=True)

    def quoted(self) -> bytes:
        """A string as Python 2 writes it in text: in quotes, with backslashes."""
        text = self.line().strip()
        if len(text) < 2 or text[:1] != text[-1:] or text[:1] not in (b"'", b'"'):
            raise ValueError("a string without quotes")
        unescaped: bytes = codecs.escape_decode(text[1:-1])[0]
        return unescaped

    # --- remembering -------------------------------------------------------------------------------------------------

    def keep(self, place: int) -> None:
        if not 0 <= place < 1 << 32:
            raise ValueError("a place out of range")
        top = self._stack[-1]
        self._memo[place] = top
        if isinstance(top, _Unfilled):
            top.places.append(place)

    def memoize(self) -> None:
        self.keep(len(self._memo))

    def kept(self, place: int) -> Any:
        return self._memo[place]

    # --- collections -------------------------------------------------------------------------------------------------

    def mark(self) -> None:
        if len(self._marks) == MOST_DEPTH:
            raise _Refused(f"the pickle is nested more than {MOST_DEPTH} deep")
        self._marks.append(self._stack)
        self._stack = []

    def since_mark(self) -> list[Any]:
        found, self._stack = self._stack, self._marks.pop()
        return found

    def last(self, count: int) -> list[Any]:
        if len(self._stack) < count:
            raise _EndsEarly
        found = self._stack[len(self._stack) - count :]
        del self._stack[len(self._stack) - count :]
        return found

    def push_tuple(self, values: list[Any]) -> None:
        passing = any(isinstance(value, _PASSING) for value in values)
        self._stack.append(_Arguments(tuple(values)) if passing else tuple(values))

    def push_list(self, values: list[Any]) -> None:
        self._stack.append([_plain(value) for value in values])

    def extend_list(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, list):
            raise _Refused("the pickle appends to something that is no list")
        target.extend(_plain(value) for value in values)

    def push_dictionary(self, values: list[Any]) -> None:
        self._stack.append({})
        self.fill_dictionary(values)

    def fill_dictionary(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, dict) or len(values) % 2:
            raise _Refused("the pickle sets an entry of something that is no dictionary")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not isinstance(key, (str, bytes)):
                raise _Refused("the pickle has a dictionary whose keys are not text")
            target[key] = _plain(value)

    # --- arrays ------------------------------------------------------------------------------------------------------

    def push_named(self, module: str, name: str) -> None:
        if (module, name) not in KNOWN:
            raise _Refused(f"the pickle asks for {module[:80]}.{name[:80]}, which could run code")
        self._stack.append(_Named(KNOWN[module, name]))

    def push_named_on_stack(self) -> None:
        module, name = self.last(2)
        if not isinstance(module, str) or not isinstance(name, str):
            raise _Refused("the pickle asks for something without a name")
        self.push_named(module, name)

    def call(self) -> None:
        """What stands for a call of one of the known names becomes the value it would give."""
        function, given = self.last(2)
        arguments = given.values if isinstance(given, _Arguments) else given
        what = function.what if isinstance(function, _Named) else ""
        match what, arguments:
            case "empty array", (_Named("ndarray"), (0,), b"b" | "b"):
                made: Any = _Unfilled()
            case "dtype", (code, 0, 1) if _text(code) in NUMBERS:
                made = _Kind(_text(code))
            case "array", (bytes(raw), _Kind() as kind, shape, "C" | "F" as order):
                made = _array(raw, kind, shape, order)
            case "encode", (str(text), "latin1"):
                made = self._latin1(text)
            case "bytes", ():
                made = b""
            case _:
                raise _Refused("the pickle calls something")
        self._stack.append(made)

    def build(self) -> None:
        """The second half of a type or an array."""
        target, given = self.last(2)
        state = given.values if isinstance(given, _Arguments) else given
        match target, state:
            case _Kind(), (3, order, None, None, None, -1, -1, 0) if _text(order) in ("<", ">", "|", "="):
                target.order = _text(order)
                made: Any = target
            case _Unfilled(), (1, shape, _Kind() as kind, bool() | 0 | 1 as fortran, bytes(raw)):
                made = _array(raw, kind, shape, "F" if fortran else "C")
                for place in target.places:
                    if self._memo[place] is target:
                        self._memo[place] = made
            case _:
                raise _Refused("the pickle changes something other than an array of numbers")
        self._stack.append(made)

    def _latin1(self, text: str) -> bytes:
        # Old protocols write bytes as text. The same text again and again would fill the memory from a small file.
        self._encoded += len(text)
        if self._encoded > 2 * len(self._content):
            raise _Refused("the pickle repeats its content")
        return text.encode("latin1")


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value[:8].decode("latin1")
    return value if isinstance(value, str) else ""


def _array(raw: bytes, kind: _Kind, shape: Any, order: str) -> np.ndarray:
    if not isinstance(shape, tuple) or len(shape) > MOST_AXES or not all(type(side) is int for side in shape):
        raise _Refused("the pickle has an array without a proper shape")
    dtype = kind.dtype
    if any(side < 0 for side in shape) or math.prod(shape) * dtype.itemsize != len(raw):
        raise _Refused("the pickle has an array whose content does not fill its shape")
    found: np.ndarray = np.frombuffer(raw, dtype) if raw else np.empty(0, dtype)
    return found.reshape(shape, order="F" if order == "F" else "C")


_STOP = ord(".")
_VALUES: dict[int, Callable[[_Interpreter], Any]] = {
    ord("N"): lambda _: None,
    0x88: lambda _: True,
    0x89: lambda _: False,
    ord("I"): _Interpreter.written_integer,
    ord("L"): _Interpreter.written_integer,
    ord("J"): lambda its: its.number("<i"),
    ord("K"): lambda its: its.number("<B"),
    ord("M"): lambda its: its.number("<H"),
    0x8A: lambda its: its.long_integer("<B"),
    0x8B: lambda its: its.long_integer("<i"),
    ord("F"): lambda its: float(its.short_line()),
    ord("G"): lambda its: its.number(">d"),
    ord("S"): _Interpreter.quoted,
    ord("T"): lambda its: its.counted("<i"),
    ord("U"): lambda its: its.counted("<B"),
    ord("B"): lambda its: its.counted("<I"),
    ord("C"): lambda its: its.counted("<B"),
    0x8E: lambda its: its.counted("<Q"),
    0x96: lambda its: its.counted("<Q"),
    ord("V"): lambda its: its.line().decode("raw-unicode-escape"),
    ord("X"): lambda its: its.text("<I"),
    0x8C: lambda its: its.text("<B"),
    0x8D: lambda its: its.text("<Q"),
    ord("]"): lambda _: [],
    ord("}"): lambda _: {},
    ord(")"): lambda _: (),
    ord("g"): lambda its: its.kept(int(its.short_line())),
    ord("h"): lambda its: its.kept(its.number("<B")),
    ord("j"): lambda its: its.kept(its.number("<I")),
}
"""Instructions that put one value on the stack."""
_ACTIONS: dict[int, Callable[[_Interpreter], None]] = {
    0x80: lambda its: its.skip(1),
    0x95: lambda its: its.skip(8),
    ord("p"): lambda its: its.keep(int(its.short_line())),
    ord("q"): lambda its: its.keep(its.number("<B")),
    ord("r"): lambda its: its.keep(its.number("<I")),
    0x94: _Interpreter.memoize,
    ord("("): _Interpreter.mark,
    ord("t"): lambda its: its.push_tuple(its.since_mark()),
    0x85: lambda its: its.push_tuple(its.last(1)),
    0x86: lambda its: its.push_tuple(its.last(2)),
    0x87: lambda its: its.push_tuple(its.last(3)),
    ord("l"): lambda its: its.push_list(its.since_mark()),
    ord("a"): lambda its: its.extend_list(its.last(1)),
    ord("e"): lambda its: its.extend_list(its.since_mark()),
    ord("d"): lambda its: its.push_dictionary(its.since_mark()),
    ord("s"): lambda its: its.fill_dictionary(its.last(2)),
    ord("u"): lambda its: its.fill_dictionary(its.since_mark()),
    ord("c"): lambda its: its.push_named(its.line().decode(), its.line().decode()),
    0x93: _Interpreter.push_named_on_stack,
    ord("R"): _Interpreter.call,
    ord("b"): _Interpreter.build,
}
"""Instructions that change what is there."""
