"""Named arrays of an .npz file, without ever unpickling."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from fewfed.errors import DataError


def arrays_in(path: Path) -> dict[str, np.ndarray]:
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty: expected an .npz file written by numpy.savez")
    with path.open("rb") as file:
        try:
            content = np.load(file, allow_pickle=False)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise _damaged(path, error) from error
        if not isinstance(content, np.lib.npyio.NpzFile):
            raise DataError(f"{path} holds a single unnamed array: expected an .npz file written by numpy.savez")
        return {name: _array(path, content, name) for name in content.files}


def _array(path: Path, content: np.lib.npyio.NpzFile, name: str) -> np.ndarray:
    try:
        return np.asarray(content[name])
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise _damaged(path, error) from error
        raise DataError(
            f"array '{name}' in {path} holds Python objects, as rows of different lengths do: expected a rectangular "
            "array of numbers; pad or cut its rows to one length"
        ) from error
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> DataError:
    return DataError(f"{path} cannot be read ({type(error).__name__}): expected an undamaged .npz file; write it again")
