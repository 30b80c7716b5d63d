"""A Hugging Face data set saved with `save_to_disk`, read from its Arrow files without that library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fewfed.data.limits import Limits
from fewfed.data.readers.arrow_columns import ArrowTable
from fewfed.data.readers.arrow_messages import memory_of
from fewfed.data.readers.extras import need
from fewfed.data.readers.opening import read_bytes, size_of
from fewfed.data.readers.options import DataOptions
from fewfed.errors import DataError

STATE, INFO, SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"
RANDOM_ACCESS = b"ARROW1"
RANDOM_ACCESS_START = 8


def is_saved(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (STATE, INFO, SPLITS))


def tables(folder: Path, options: DataOptions) -> list[ArrowTable]:
    """Of the training and the test part, or of the only one."""
    return [_table(part, options.limits) for part in _part_folders(folder)]


def files(folder: Path, options: DataOptions) -> list[Path]:
    """What `tables` reads."""
    found = []
    for part in _part_folders(folder):
        state = [part / STATE] if (part / STATE).is_file() else []
        found += [*state, *_data_files(part, options.limits)]
    return found


def _part_folders(folder: Path) -> list[Path]:
    if (folder / STATE).is_file() or any(folder.glob("*.arrow")):
        return [folder]
    if not (folder / "train").is_dir():
        raise DataError(f"{folder} has no part 'train': expected train and test, as save_to_disk writes them")
    test = [folder / part for part in ("test", "validation") if (folder / part).is_dir()]
    return [folder / "train", *test[:1]]


def _table(folder: Path, limits: Limits) -> ArrowTable:
    arrow = need("pyarrow", "tables", "reading a saved Hugging Face data set")
    found = _data_files(folder, limits)
    if not found:
        raise DataError(f"{folder} has no .arrow files: expected a data set written by save_to_disk")
    stored = sum(size_of(file, limits) for file in found)
    limits.check_total(str(folder), stored)
    records = [_records(arrow, file, limits) for file in found]
    try:
        return ArrowTable(arrow.concat_tables(records), str(folder), stored)
    except arrow.ArrowException as error:
        raise DataError(f"{folder} holds files with different columns: save the data set again") from error


def _data_files(folder: Path, limits: Limits) -> list[Path]:
    """In the order the state lists them, because the file names alone need not sort into row order."""
    state = folder / STATE
    if not state.is_file():
        return sorted(folder.glob("*.arrow"))
    try:
        entries = json.loads(read_bytes(state, limits))["_data_files"]
        found = [folder / Path(entry["filename"]).name for entry in entries]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise DataError(f"{state} cannot be read: expected the file that save_to_disk writes") from error
    missing = [file for file in found if not file.is_file()]
    if missing:
        raise DataError(f"{missing[0]} is missing: expected every file that {STATE} lists")
    return found


def _records(arrow: Any, path: Path, limits: Limits) -> Any:
    """Streams are what the library writes; files of the random-access format hold such a stream, and are accepted."""
    ipc = need("pyarrow.ipc", "tables", "reading a saved Hugging Face data set")
    try:
        start = _check_claims(arrow, ipc, path, limits)
        with arrow.OSFile(str(path)) as file:
            file.seek(start)
            table = ipc.open_stream(file).read_all()
        limits.check(str(path), table.num_rows * table.num_columns, size_of(path, limits))
        table.validate(full=True)
    except (OSError, ValueError, arrow.ArrowException) as error:
        reason = type(error).__name__
        raise DataError(
            f"{path} cannot be read ({reason}): expected an undamaged .arrow file; save the data set again"
        ) from error
    return table


def _check_claims(arrow: Any, ipc: Any, path: Path, limits: Limits) -> int:
    """Raise where the messages ask for too much memory; where the first of them begins."""
    stored = size_of(path, limits)
    held = 0
    with arrow.memory_map(str(path)) as file:
        start = RANDOM_ACCESS_START if file.read(len(RANDOM_ACCESS)) == RANDOM_ACCESS else 0
        file.seek(start)
        messages = ipc.MessageReader.open_stream(file)
        while (message := next(messages, None)) is not None:
            held += memory_of(message)
            limits.check(str(path), held, stored)
    return start
