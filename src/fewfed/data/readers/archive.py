"""Named arrays of an .npz file, without ever unpickling, and within the limits before memory is taken."""

from __future__ import annotations

import math
import re
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from fewfed.data.limits import Limits
from fewfed.data.readers.opening import open_regular, size_of
from fewfed.data.zip_entries import refused_entry
from fewfed.errors import DataError

MOST_ARRAYS = 1000
LONGEST_HEADER = 10_000
MOST_AXES = 32
BLOCK = 1 << 18
MAGIC = b"\x93NUMPY"
KINDS = "biufcSUmM"
_DESCRIPTION = re.compile(r"""['"]descr['"]\s*:\s*['"]([<>|=]?([a-zA-Z?])[^'"]{0,20})['"]""")
_ORDER = re.compile(r"""['"]fortran_order['"]\s*:\s*(True|False)""")
_SHAPE = re.compile(r"""['"]shape['"]\s*:\s*\(([0-9L,\s]*)\)""")


def arrays_in(path: Path, limits: Limits) -> dict[str, np.ndarray]:
    stored = size_of(path, limits)
    if stored == 0:
        raise DataError(f"{path} is empty: expected an .npz file written by numpy.savez")
    try:
        with open_regular(path, limits) as file:
            _refuse_single(path, file)
            with zipfile.ZipFile(file) as content:
                return _arrays(path, content, stored, limits)
    except (OSError, ValueError, EOFError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise _damaged(path, type(error).__name__) from error


@dataclass(frozen=True)
class _Header:
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: Literal["C", "F"]

    @property
    def size(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def _arrays(path: Path, content: zipfile.ZipFile, stored: int, limits: Limits) -> dict[str, np.ndarray]:
    entries = content.infolist()
    if len(entries) > MOST_ARRAYS:
        raise DataError(f"{path} has {len(entries)} arrays: expected at most {MOST_ARRAYS}")
    for entry in entries:
        if reason := refused_entry(entry):
            raise DataError(f"{path}: '{entry.filename}' {reason}; write the file again with numpy.savez")
    limits.check(str(path), sum(entry.file_size for entry in entries), stored)
    held = 0
    arrays = {}
    for entry in entries:
        name = entry.filename.removesuffix(".npy")
        with content.open(entry) as file:
            header = _header(path, name, file)
            # Inputs become numbers of four bytes.
            held += max(header.size, 4 * math.prod(header.shape))
            limits.check_total(str(path), held)
            arrays[name] = _filled(path, name, file, header, entry.file_size)
    return arrays


def _header(path: Path, name: str, file: IO[bytes]) -> _Header:
    """The header of one .npy entry, read without evaluating it as Python."""
    start = file.read(8)
    if len(start) < 8 or start[:6] != MAGIC or start[6] not in (1, 2, 3):
        raise _damaged(path, f"'{name}' is no array")
    size = int.from_bytes(file.read(2 if start[6] == 1 else 4), "little")
    if size > LONGEST_HEADER:
        raise _damaged(path, f"'{name}' has a header of {size} bytes")
    text = file.read(size).decode("utf-8" if start[6] == 3 else "latin1")
    description, order, shape = (pattern.search(text) for pattern in (_DESCRIPTION, _ORDER, _SHAPE))
    if description is None or order is None or shape is None:
        raise _damaged(path, f"'{name}' holds no plain numbers or text")
    if description[2] == "O":
        raise DataError(
            f"array '{name}' in {path} holds Python objects, as rows of different lengths do: expected a rectangular "
            "array of numbers; pad or cut its rows to one length"
        )
    dtype = _dtype(description[1])
    sides = tuple(int(side.strip().removesuffix("L")) for side in shape[1].split(",") if side.strip())
    if dtype is None or len(sides) > MOST_AXES:
        raise _damaged(path, f"'{name}' is of type {description[1]} with {len(sides)} axes")
    return _Header(dtype, sides, "F" if order[1] == "True" else "C")


def _dtype(description: str) -> np.dtype[Any] | None:
    try:
        found = np.dtype(description)
    except (TypeError, ValueError, OverflowError, MemoryError):
        return None
    return found if found.kind in KINDS and found.itemsize > 0 and found.shape == () else None


def _filled(path: Path, name: str, file: IO[bytes], header: _Header, entry_size: int) -> np.ndarray:
    """The content behind a header: exactly as much as the header says."""
    if header.size != entry_size - file.tell():
        raise _damaged(path, f"'{name}' does not fill its shape")
    array: np.ndarray = np.empty(math.prod(header.shape), header.dtype)
    raw = array.view(np.uint8)
    done = 0
    while done < header.size:
        block = file.read(min(BLOCK, header.size - done))
        if not block:
            raise EOFError
        raw[done : done + len(block)] = np.frombuffer(block, np.uint8)
        done += len(block)
    if array.dtype.kind == "U" and not _is_text(array):
        raise _damaged(path, f"'{name}' holds text that is none")
    return array.reshape(header.shape, order=header.order)


def _is_text(array: np.ndarray) -> bool:
    codes = array.view(array.dtype.byteorder + "u4")
    return not bool(((codes > 0x10FFFF) | ((codes >= 0xD800) & (codes < 0xE000))).any())


def _refuse_single(path: Path, file: IO[bytes]) -> None:
    start = file.read(len(MAGIC))
    file.seek(0)
    if start == MAGIC:
        raise DataError(f"{path} holds a single unnamed array: expected an .npz file written by numpy.savez")


def _damaged(path: Path, reason: str) -> DataError:
    return DataError(f"{path} cannot be read ({reason}): expected an undamaged .npz file; write it again")
