"""Files with new rows: what the model takes of them, and what else they say."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from fewfed.data.readers.archive import arrays_in
from fewfed.data.readers.extras import need
from fewfed.data.readers.inputs import as_inputs
from fewfed.data.readers.opening import read_bytes, size_of
from fewfed.data.readers.options import DataOptions
from fewfed.data.readers.pictures import SUFFIXES, decode
from fewfed.errors import DataError, did_you_mean, in_one_line
from fewfed.runs.blueprint import Blueprint
from fewfed.trained.tables import inputs_of_columns

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?", "."})
SEPARATORS = ",;\t"
INPUTS, FOLDER = "x", "folder"


@dataclass(frozen=True)
class NewRows:
    """Raw inputs, and the other columns of their file as text."""

    x: Tensor
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    files: Sequence[str] = ()
    """The file of each row, where every row is one."""

    def column(self, name: str) -> Sequence[str]:
        """One of the other columns, or an error that says which there are."""
        if name not in self.columns:
            if not self.columns:
                raise DataError(f"the new data has no column '{name:.80}': it has inputs only")
            raise DataError(did_you_mean("column of the new data", name, self.columns))
        return self.columns[name]


def read_rows(path: Path, blueprint: Blueprint, options: DataOptions) -> NewRows:
    """The rows of a .csv, .tsv, .parquet or .npz file, of an image, or of a folder of images."""
    path = path.expanduser()
    try:
        if path.is_dir():
            return _folder(path, blueprint, options)
        if not path.exists():
            raise DataError(f"there is no file or folder {str(path)[:200]}: expected the new rows there")
        ending = path.suffix.lower()
        if ending in SUFFIXES:
            return _images([path], [path.name], blueprint, options)
        if ending not in _READERS:
            raise DataError(
                f"{path} is of no known kind: expected a file ending in {', '.join(_READERS)}, an image, or a folder "
                "of images"
            )
        return _READERS[ending](path, blueprint, options)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{str(path)[:200]} cannot be read ({in_one_line(error)}): expected files you may read"
        ) from error


def _csv(path: Path, blueprint: Blueprint, options: DataOptions) -> NewRows:
    try:
        text = read_bytes(path, options.limits).decode("utf-8-sig")
        header = text.partition("\n")[0]
        separator = max(SEPARATORS, key=header.count)
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator) if any(row)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read ({error}): expected comma-separated text in UTF-8") from error
    if len(rows) < 2:
        raise DataError(f"{path} has no rows: expected a header line and one line a row")
    names = [cell.strip() for cell in rows[0]]
    for number, row in enumerate(rows[1:], start=1):
        if len(row) != len(names):
            raise DataError(f"{path}, row {number} has {len(row)} cells: expected {len(names)}, one for each column")
    cells = {
        name: [cell.strip() for cell in column] for name, column in zip(names, zip(*rows[1:], strict=True), strict=True)
    }
    known = {name: [None if cell.lower() in MISSING else cell for cell in column] for name, column in cells.items()}
    return NewRows(inputs_of_columns(known, blueprint), cells)


def _parquet(path: Path, blueprint: Blueprint, options: DataOptions) -> NewRows:
    parquet = need("pyarrow.parquet", "tables", "reading .parquet files")
    arrow = need("pyarrow", "tables", "reading .parquet files")
    stored = size_of(path, options.limits)
    try:
        with parquet.ParquetFile(path) as file:
            claimed = sum(file.metadata.row_group(n).total_byte_size for n in range(file.metadata.num_row_groups))
            options.limits.check(str(path), claimed, stored)
            columns = file.read().to_pydict()
    except (arrow.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read ({in_one_line(error)}): expected an undamaged .parquet file") from error
    return NewRows(inputs_of_columns(columns, blueprint), {name: _texts(column) for name, column in columns.items()})


def _npz(path: Path, blueprint: Blueprint, options: DataOptions) -> NewRows:  # noqa: ARG001
    arrays = arrays_in(path, options.limits)
    if INPUTS not in arrays:
        raise DataError(f"{path} has no array 'x': expected the inputs there, found {', '.join(list(arrays)[:10])}")
    x = as_inputs(path.stem, arrays[INPUTS])
    beside = {
        name: _texts(array.tolist())
        for name, array in arrays.items()
        if name != INPUTS and array.ndim == 1 and len(array) == len(x)
    }
    return NewRows(x, beside)


_READERS: Mapping[str, Callable[[Path, Blueprint, DataOptions], NewRows]] = {
    ".csv": _csv,
    ".tsv": _csv,
    ".parquet": _parquet,
    ".npz": _npz,
}


def _folder(folder: Path, blueprint: Blueprint, options: DataOptions) -> NewRows:
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
    if not files:
        raise DataError(f"{folder} has no images: expected {', '.join(SUFFIXES)} files in it, or in folders below it")
    return _images(files, [str(file.relative_to(folder)) for file in files], blueprint, options)


def _images(files: Sequence[Path], names: Sequence[str], blueprint: Blueprint, options: DataOptions) -> NewRows:
    shape = blueprint.shape
    if blueprint.inputs is None or blueprint.inputs.kind != "images" or len(shape) != 3:
        raise DataError(
            f"the model was not trained on images of yours: expected inputs of shape {shape} in an array or an .npz "
            "file"
        )
    x = decode(files, (shape[0], shape[1], shape[2]), options.limits)
    return NewRows(x, {FOLDER: [Path(name).parent.name for name in names]}, names)


def _texts(values: Sequence[Any]) -> list[str]:
    return ["" if value is None else str(value) for value in values]
