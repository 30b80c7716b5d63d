"""Rows of a new file, without labels, laid out as the inputs of a model were when it was trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from torch import Tensor

from fewfed.data.raw_inputs import RawInputs
from fewfed.data.readers.archive import arrays_in
from fewfed.data.readers.cells import name_of
from fewfed.data.readers.image_folder import images_in
from fewfed.data.readers.inputs import as_inputs, check_finite
from fewfed.data.readers.npz import INPUTS
from fewfed.data.readers.options import DataOptions
from fewfed.data.readers.own_kinds import kind_of
from fewfed.data.readers.pictures import SUFFIXES, Picture, decode, opened
from fewfed.data.readers.roles import GROUPS, refuse_twice
from fewfed.data.readers.table import SHOWN, Table, TextCells, at
from fewfed.data.readers.table_inputs import Unknown, encoded, joined
from fewfed.data.transforms import resized
from fewfed.errors import DataError, did_you_mean


@dataclass(frozen=True)
class NewRows:
    """Inputs as a file has them: not scaled, and NaN where a number is missing."""

    x: Tensor
    names: tuple[str, ...] = ()
    """Rows that are files: their paths below the folder, in the order of the rows."""
    sites: tuple[str, ...] = ()
    """Whose each row is, where the file says so; empty for a row where it does not."""
    unused: tuple[str, ...] = ()
    """Columns, or arrays, that the model does not need."""
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """All columns, or arrays with one value a row, as text: empty where a value is missing."""


@dataclass(frozen=True)
class TextColumns(Mapping[str, Sequence[str]]):
    """Columns that are turned into text when they are asked for."""

    names: tuple[str, ...]
    read: Callable[[str], Sequence[str]]

    def __getitem__(self, name: str) -> Sequence[str]:
        if name not in self.names:
            raise KeyError(name)
        return self.read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def inputs_from(
    path: Path, raw: RawInputs, shape: Sequence[int], options: DataOptions, *, unknown: Unknown = "refuse"
) -> NewRows:
    """Read a file or folder of the kind a model was trained on.

    `raw` and `shape` are those of its training data, `options` how that was read. Columns are found by name, in any
    order. `unknown`: a category that no training row had is an error, or counts as none of them.
    """
    if not path.exists():
        raise DataError(f"there is no file or folder {path}: expected new rows for the model")
    shape = tuple(shape)
    if path.suffix.lower() in SUFFIXES or (path.is_dir() and kind_of(path).what == "a folder of images"):
        found = _from_images(path, raw, shape, options)
    elif path.suffix.lower() == ".npz":
        found = _from_arrays(path, raw, shape, options)
    else:
        found = _from_table(_table(path, options), raw, shape, options, unknown)
    if tuple(found.x.shape[1:]) != shape:
        raise DataError(
            f"{path}: inputs have shape {tuple(found.x.shape[1:])} but the model was trained on {shape}; expected the "
            "same"
        )
    check_finite(path.name, found.x, missing=True)
    return found


def _table(path: Path, options: DataOptions) -> Table:
    tables = kind_of(path).contents(path, options)
    if len(tables) > 1:
        raise DataError(f"{path} has a training and a test part: expected one table of new rows, as in {path}/test.csv")
    table: Table = tables[0]
    refuse_twice(table.where, table.names)
    if table.rows == 0:
        raise DataError(f"{table.where} has no rows: expected at least one")
    return table


def _from_table(
    table: Table, raw: RawInputs, shape: tuple[int, ...], options: DataOptions, unknown: Unknown
) -> NewRows:
    if not raw.columns:
        raise _other_kind(table.where, "a table", raw)
    wanted = [column.name for column in raw.columns]
    for name in wanted:
        if name not in table.names:
            told = did_you_mean("column", name[:SHOWN], [known[:SHOWN] for known in table.names[:50]])
            raise DataError(f"{table.where} has no column '{name[:SHOWN]}', which the model needs: {told}")
    if raw.kind == "images":
        x = _decoded(table.pictures(wanted[0]), shape, options)
    elif raw.kind == "array":
        columns = [table.lists(name) for name in wanted]
        flat = [column.reshape(len(column), -1) for column in columns]
        x = as_inputs(table.where, columns[0] if len(columns) == 1 else np.concatenate(flat, axis=1))
    else:
        parts = [encoded(at(table, column.name), column, table.column(column.name), unknown) for column in raw.columns]
        x = as_inputs(table.where, joined(table.where, parts, options.limits))
    site = next((name for name in (options.site, *GROUPS) if name in table.names and name not in wanted), "")
    unused = tuple(name for name in table.names if name not in (*wanted, site))
    texts = TextColumns(tuple(table.names), lambda name: _texts(table, name))
    return NewRows(x, sites=_texts(table, site) if site else (), unused=unused, columns=texts)


def _from_arrays(path: Path, raw: RawInputs, shape: tuple[int, ...], options: DataOptions) -> NewRows:
    if raw.kind != "array" or raw.columns:
        raise _other_kind(str(path), "arrays", raw)
    arrays = arrays_in(path, options.limits)
    if INPUTS not in arrays:
        raise DataError(f"{path} has no array '{INPUTS}': expected one with a row for each new input")
    x = as_inputs(path.stem, arrays[INPUTS])
    if options.image_size and x.ndim == 4:
        x = resized(x, options.image_size)
    site = next((name for name in (options.site, *GROUPS) if name in arrays), "")
    sites = tuple(name_of(one) for one in arrays[site].reshape(-1).tolist()) if site else ()
    if site and len(sites) != len(x):
        raise DataError(f"{path}: {len(sites)} entries in '{site}' for {len(x)} rows; expected one a row")
    plain = tuple(name for name, array in arrays.items() if array.shape == (len(x),))
    texts = TextColumns(plain, lambda name: [name_of(one) for one in arrays[name].tolist()])
    unused = tuple(name for name in arrays if name not in (INPUTS, site))
    return NewRows(x, sites=sites, unused=unused, columns=texts)


def _from_images(path: Path, raw: RawInputs, shape: tuple[int, ...], options: DataOptions) -> NewRows:
    """One image, or every image below a folder, whatever the folders in it are called."""
    if raw.kind != "images":
        raise _other_kind(str(path), "a folder of images" if path.is_dir() else "an image", raw)
    files = images_in(path) if path.is_dir() else [path]
    if not files:
        raise DataError(f"{path} has no images: expected at least one")
    names = tuple(str(file.relative_to(path)) if path.is_dir() else file.name for file in files)
    return NewRows(_decoded(files, shape, options), names)


def _decoded(pictures: Sequence[Picture], shape: tuple[int, ...], options: DataOptions) -> Tensor:
    """Pictures in the channels and size of the training images; other sizes only where these were resized too."""
    channels, height, width = shape
    if not options.image_size:
        for number, picture in enumerate(pictures):
            with opened(picture, options.limits, number) as image:
                size = image.size
            if size != (width, height):
                called = str(picture) if isinstance(picture, Path) else f"the image of row {number}"
                raise DataError(
                    f"{called} is {size[0]} x {size[1]} pixels but the model was trained on {width} x {height}: "
                    "expected the same; train with --size to take images of any size"
                )
    return decode(pictures, (channels, height, width), options.limits)


def _texts(table: Table, column: str) -> tuple[str, ...]:
    if table.kind(column) not in ("text", "numbers"):
        raise DataError(f"{at(table, column)} holds no plain values: expected text or numbers")
    cells = table.column(column)
    texts = cells.cells if isinstance(cells, TextCells) else [name_of(value) for value in cells.values.tolist()]
    return tuple("" if missing else text for text, missing in zip(texts, cells.missing.tolist(), strict=True))


def _other_kind(where: str, what: str, raw: RawInputs) -> DataError:
    trained = {"table": "a table", "images": "images", "array": "arrays"}[raw.kind]
    return DataError(f"{where} is {what} but the model was trained on {trained}: expected the same kind of data")
