"""Unpickle files that hold nothing but arrays, numbers, text, lists and dictionaries."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from fewfed.errors import DataError


def load_plain(path: Path) -> Any:
    """The content of a pickle; one that names any other function or class is refused before anything runs."""
    try:
        with path.open("rb") as file:
            return _PlainUnpickler(file, encoding="bytes").load()
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise DataError(
            f"{path} cannot be read as a data batch ({type(error).__name__}): expected an undamaged file; get it again"
        ) from error


def _latin1_bytes(text: str, encoding: str) -> bytes:
    # Old protocols write bytes as a call of codecs.encode; only this use of it is allowed.
    if encoding != "latin1":
        raise DataError("the pickle calls a text codec: expected plain arrays, numbers, text, lists and dictionaries")
    return text.encode("latin1")


_EMPTY = np.empty(0)
_RECONSTRUCT = _EMPTY.__reduce__()[0]
_FROM_BUFFER = _EMPTY.__reduce_ex__(5)[0]
_ALLOWED = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy.core.numeric", "_frombuffer"): _FROM_BUFFER,
    ("numpy._core.numeric", "_frombuffer"): _FROM_BUFFER,
    ("_codecs", "encode"): _latin1_bytes,
}


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise DataError(
                f"the pickle asks for {module}.{name}, which could run code: "
                "expected plain arrays, numbers, text, lists and dictionaries"
            )
        return _ALLOWED[module, name]
