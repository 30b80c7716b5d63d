"""The kinds of files a user's own data may lie in, told by their names and what is in a folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewfed.data.examples import Dataset
from fewfed.data.readers import csv_table, hugging_face, image_folder, npz, parquet, table_parts
from fewfed.data.readers.options import DataOptions
from fewfed.data.readers.own import own_dataset
from fewfed.data.readers.own_rows import Rows
from fewfed.errors import ConfigError, DataError


@dataclass(frozen=True)
class OwnKind:
    """How files of one kind become rows."""

    what: str
    contents: Callable[[Path, DataOptions], Sequence[Any]]
    """What the training part and, where there is one, the test part hold, as `rows_of` takes it."""
    rows_of: Callable[[str, Sequence[Any], DataOptions], Rows]
    files: Callable[[Path, DataOptions], Sequence[Path]]


_CSV = OwnKind("a table", csv_table.tables, table_parts.rows_of, csv_table.files)
FILES: Mapping[str, OwnKind] = {
    ".npz": OwnKind("arrays", npz.contents, npz.rows_of, npz.files),
    ".csv": _CSV,
    ".tsv": _CSV,
    ".parquet": OwnKind("a table", parquet.tables, table_parts.rows_of, parquet.files),
}
_SAVED = OwnKind("a table", hugging_face.tables, table_parts.rows_of, hugging_face.files)
_IMAGES = OwnKind("a folder of images", image_folder.contents, image_folder.rows_of, image_folder.files)
_FOLDERS: Mapping[str, OwnKind] = {
    ".csv": OwnKind("a table", csv_table.tables_in_folder, table_parts.rows_of, csv_table.files_in_folder),
    ".parquet": OwnKind("a table", parquet.tables_in_folder, table_parts.rows_of, parquet.files_in_folder),
}
"""By the ending of the files `train` and `test` in it."""


def kind_of(path: Path) -> OwnKind:
    """The kind of a file or folder that is there."""
    if not path.is_dir():
        if path.suffix.lower() in FILES:
            return FILES[path.suffix.lower()]
        raise DataError(f"{path} is of no known kind: expected a file ending in {', '.join(FILES)}, or a folder")
    if hugging_face.is_saved(path):
        return _SAVED
    for suffix, kind in _FOLDERS.items():
        if all((path / f"{part}{suffix}").is_file() for part in ("train", "test")):
            return kind
    return _IMAGES


def is_images(path: Path) -> bool:
    """Whether a folder holds nothing but, perhaps, images."""
    return kind_of(path) is _IMAGES


def read(path: Path, options: DataOptions, seed: int) -> Dataset:
    """A user's own data, with the test part from another file where the options name one."""
    kind = kind_of(path)
    name = path.name if path.is_dir() else path.stem
    found = list(kind.contents(path, options))
    if options.test_data:
        found = [*found, *_test_contents(path, kind, len(found), options)]
    return own_dataset(name, kind.rows_of(name, found, options), options, seed)


def files(path: Path, options: DataOptions) -> Sequence[Path]:
    """What `read` reads at the path itself."""
    return kind_of(path).files(path, options)


def test_path(options: DataOptions) -> Path:
    """Where the test part lies that the options name."""
    path = Path(options.test_data).expanduser()
    if not path.exists():
        raise DataError(f"there is no file or folder {options.test_data[:200]} for test_data: expected the test part")
    return path


def _test_contents(path: Path, kind: OwnKind, parts: int, options: DataOptions) -> Sequence[Any]:
    place = test_path(options)
    other = kind_of(place)
    if parts > 1:
        raise ConfigError(f"test_data = '{options.test_data}' but {path} has a test part of its own: expected one")
    if other.what != kind.what:
        raise ConfigError(
            f"test_data = '{options.test_data}' is {other.what} but {path} is {kind.what}: expected alike"
        )
    # Which rows are for testing is known here, so that nothing else need say it.
    found = other.contents(place, dataclasses.replace(options, test_column=""))
    if len(found) > 1:
        raise ConfigError(
            f"test_data = '{options.test_data}' has a training and a test part: expected the test part alone"
        )
    return found
