"""A Hugging Face data set saved with `save_to_disk`, read from its Arrow files without that library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fewfed.data.examples import Dataset
from fewfed.data.readers.arrow_columns import ArrowTable, parts_of
from fewfed.data.readers.extras import need
from fewfed.data.readers.options import DataOptions
from fewfed.data.readers.own import own_dataset
from fewfed.errors import DataError

STATE, INFO, SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"


def is_saved(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (STATE, INFO, SPLITS))


def read(folder: Path, options: DataOptions, seed: int) -> Dataset:
    tables = [_table(part) for part in _part_folders(folder)]
    parts, names = parts_of(folder.name, tables, options)
    return own_dataset(folder.name, parts[0], parts[1] if len(parts) > 1 else None, options, seed, names)


def _part_folders(folder: Path) -> list[Path]:
    if (folder / STATE).is_file() or any(folder.glob("*.arrow")):
        return [folder]
    if not (folder / "train").is_dir():
        raise DataError(f"{folder} has no part 'train': expected train and test, as save_to_disk writes them")
    test = [folder / part for part in ("test", "validation") if (folder / part).is_dir()]
    return [folder / "train", *test[:1]]


def _table(folder: Path) -> ArrowTable:
    arrow = need("pyarrow", "tables", "reading a saved Hugging Face data set")
    files = _data_files(folder)
    if not files:
        raise DataError(f"{folder} has no .arrow files: expected a data set written by save_to_disk")
    tables = [_records(arrow, file) for file in files]
    return ArrowTable(arrow.concat_tables(tables), str(folder))


def _data_files(folder: Path) -> list[Path]:
    """In the order the state lists them, because the file names alone need not sort into row order."""
    state = folder / STATE
    if not state.is_file():
        return sorted(folder.glob("*.arrow"))
    try:
        listed = [entry["filename"] for entry in json.loads(state.read_text(encoding="utf-8"))["_data_files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{state} cannot be read: expected the file that save_to_disk writes") from error
    files = [folder / Path(name).name for name in listed]
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise DataError(f"{missing[0]} is missing: expected every file that {STATE} lists")
    return files


def _records(arrow: Any, path: Path) -> Any:
    """Streams are what the library writes; files of the random-access format are accepted as well."""
    ipc = need("pyarrow.ipc", "tables", "reading a saved Hugging Face data set")
    reason: Exception | None = None
    for opener in (ipc.open_stream, ipc.open_file):
        try:
            with arrow.OSFile(str(path)) as file:
                return opener(file).read_all()
        except (OSError, arrow.ArrowException) as error:
            reason = reason or error
    raise DataError(
        f"{path} cannot be read ({type(reason).__name__}): expected an undamaged .arrow file; save the data set again"
    ) from reason
