"""A split that somebody else made: a JSON file names the training rows of every client."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fewfed.data.limits import Limits
from fewfed.data.readers.opening import read_bytes
from fewfed.data.split_pool import Assigned, Flat
from fewfed.errors import ConfigError, DataError, in_one_line

FREE_BYTES = 1 << 20
BYTES_A_ROW = 128
"""What a file may have: so much in any case, and so much for each training row, of which it names none twice."""


def from_file(path: Path, rows: int, clients: int, min_size: int = 1) -> Assigned:
    """The clients of a file: a list of lists of row numbers, or an object with such a list for each client.

    Clients whose names are all whole numbers come in the order of these, others as they stand in the file. The index
    files of SEM's authors are objects of this kind. `clients`: how many are expected, 0 for as many as there are;
    `min_size`: the least rows of a client.
    """
    limits = Limits(most_bytes=FREE_BYTES + BYTES_A_ROW * rows)
    held = _held(path, _content(path, limits))
    if clients not in (0, len(held)):
        raise ConfigError(
            f"{path} has {len(held)} clients but {clients} were asked for: use clients = {len(held)}, or 0 to take all"
        )
    for name, numbers in held.items():
        if len(numbers) < min_size:
            raise DataError(f"{path} gives client {name!r:.60} {len(numbers)} rows: expected at least {min_size}")
        _refuse_odd_rows(path, name, numbers, rows)
    order = np.fromiter((number for numbers in held.values() for number in numbers), np.int64)
    sizes = np.array([len(numbers) for numbers in held.values()])
    _refuse_repeated(path, order, sizes, list(held))
    return Assigned(Flat(order, sizes))


def _content(path: Path, limits: Limits) -> Any:
    try:
        return json.loads(read_bytes(path, limits).decode("utf-8-sig"), object_pairs_hook=_once)
    except RecursionError as error:
        raise DataError(f"{path} is nested too deeply: expected lists of row numbers") from error
    except ValueError as error:  # Also text that is not UTF-8, and numbers with thousands of digits.
        raise DataError(f"{path} is not JSON ({in_one_line(error)}): expected lists of row numbers") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise ValueError(f"client {twice!r:.60} stands there twice")
    return found


def _held(path: Path, content: Any) -> Mapping[str, Sequence[Any]]:
    """The lists of a file by the names of their clients."""
    if isinstance(content, list):
        content = {str(number): held for number, held in enumerate(content)}
    elif isinstance(content, dict) and all(name.isascii() and name.isdigit() for name in content):
        content = dict(sorted(content.items(), key=lambda item: _as_number(item[0])))
    if not isinstance(content, dict) or not content:
        raise DataError(f"{path} holds no clients: expected a list of row numbers for each of them")
    for name, numbers in content.items():
        if not isinstance(numbers, list):
            raise DataError(f"{path}: client {name!r:.60} has {_shown(numbers)}: expected a list of row numbers")
    return content


def _as_number(digits: str) -> tuple[int, str]:
    """A key that sorts texts of digits as the numbers they are, of any length, with zeros before them or not."""
    counted = digits.lstrip("0")
    return len(counted), counted


def _refuse_odd_rows(path: Path, name: str, numbers: Sequence[Any], rows: int) -> None:
    for number in numbers:
        if type(number) is not int or not 0 <= number < rows:
            raise DataError(
                f"{path}: client {name!r:.60} has the row {_shown(number)}: expected whole numbers from 0 to {rows - 1}"
            )


def _refuse_repeated(path: Path, order: np.ndarray, sizes: np.ndarray, names: Sequence[str]) -> None:
    times = np.bincount(order, minlength=1)
    if times.max() > 1:
        row = int(times.argmax())
        owners = np.repeat(np.arange(len(sizes)), sizes)[order == row]
        one, other = names[owners[0]], names[owners[1]]
        raise DataError(
            f"{path} gives row {row} to client {one!r:.60} and to client {other!r:.60}: expected every row at most once"
        )


def _shown(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", bool: "a truth value", type(None): "nothing"}
    if type(value) in kinds:
        return kinds[type(value)]
    text = json.dumps(value)
    return text if len(text) <= 30 else f"{text[:30]}..."
