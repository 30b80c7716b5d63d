"""A user's own .npz file: `x`, `y`, perhaps `x_test`, `y_test`, and `client` or `subject` for whose row it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fewfed.data.examples import Dataset
from fewfed.data.readers.archive import arrays_in
from fewfed.data.readers.inputs import as_inputs
from fewfed.data.readers.options import DataOptions
from fewfed.data.readers.own import Part, own_dataset
from fewfed.errors import DataError, did_you_mean

KNOWN = ("x", "y", "x_test", "y_test", "client", "subject", "domain")
GROUPS = KNOWN[4:]


def read(path: Path, options: DataOptions, seed: int) -> Dataset:
    arrays = arrays_in(path, options.limits)
    for needed in ("x", "y"):
        if needed not in arrays:
            raise DataError(
                f"{path} has no array '{needed}': expected x and y, found {', '.join(list(arrays)[:10]) or 'nothing'}"
            )
    for name in arrays:
        if name not in KNOWN:
            raise DataError(f"{path}: {did_you_mean('array', name, KNOWN)}")
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise DataError(f"{path} has only one of x_test and y_test: expected both or neither")
    groups = {name: arrays[name] for name in GROUPS if name in arrays}
    train = _part(path, arrays, "x", "y", groups)
    test = _part(path, arrays, "x_test", "y_test", {}) if "x_test" in arrays else None
    return own_dataset(path.stem, train, test, options, seed)


def files(path: Path, options: DataOptions) -> list[Path]:
    """What `read` reads."""
    return [path]


def _part(path: Path, arrays: dict[str, np.ndarray], inputs: str, labels: str, groups: dict[str, np.ndarray]) -> Part:
    if arrays[labels].ndim == 0 or len(arrays[labels]) == 0:
        raise DataError(f"{path}: array '{labels}' is empty; expected one label a row")
    return Part(as_inputs(path.stem, arrays[inputs]), arrays[labels], groups)
