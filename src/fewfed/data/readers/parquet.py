"""A .parquet file with the columns of a .csv file, or with lists of numbers or encoded images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fewfed.data.limits import Limits
from fewfed.data.readers.arrow_columns import ArrowTable
from fewfed.data.readers.extras import need
from fewfed.data.readers.opening import size_of
from fewfed.data.readers.options import DataOptions
from fewfed.errors import DataError

MOST_AT_ONCE = 1 << 16


def tables(path: Path, options: DataOptions) -> list[ArrowTable]:
    """The only table of a file."""
    return [_table(path, options.limits)]


def tables_in_folder(folder: Path, options: DataOptions) -> list[ArrowTable]:
    """`train.parquet` and `test.parquet` side by side."""
    return [_table(path, options.limits) for path in files_in_folder(folder, options)]


def files(path: Path, options: DataOptions) -> list[Path]:
    """What `tables` reads."""
    return [path]


def files_in_folder(folder: Path, options: DataOptions) -> list[Path]:
    """What `tables_in_folder` reads."""
    return [folder / "train.parquet", folder / "test.parquet"]


def _table(path: Path, limits: Limits) -> ArrowTable:
    parquet = need("pyarrow.parquet", "tables", "reading .parquet files")
    arrow = need("pyarrow", "tables", "reading .parquet files")
    stored = size_of(path, limits)
    try:
        with parquet.ParquetFile(path) as file:
            metadata = file.metadata
            groups = [metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)]
            _check_claims(path, groups, metadata, stored, limits)
            at_once = _rows_at_once(arrow, file.schema_arrow, groups, limits.ceiling(stored))
            held = 0
            batches = []
            for batch in file.iter_batches(batch_size=at_once):
                # Counted again, because what the file says of itself need not be true.
                held += _bytes_of(arrow, batch)
                limits.check(str(path), held, stored)
                batches.append(batch)
            table = arrow.Table.from_batches(batches, file.schema_arrow)
            table.validate(full=True)
            return ArrowTable(table, str(path), stored)
    except (OSError, ValueError, arrow.ArrowException) as error:
        raise DataError(
            f"{path} cannot be read ({type(error).__name__}): expected an undamaged .parquet file; write it again"
        ) from error


def _check_claims(path: Path, groups: list[int], metadata: Any, stored: int, limits: Limits) -> None:
    """What the file says of itself: pages unpacked, and cells, of which a million equal ones may be stored as one."""
    if metadata.num_rows < 0 or min(groups, default=0) < 0:
        raise ValueError("negative sizes")
    limits.check(str(path), sum(groups), stored)
    limits.check(str(path), metadata.num_rows * metadata.num_columns, stored)


def _rows_at_once(arrow: Any, schema: Any, groups: list[int], most_bytes: int) -> int:
    """So few that they stay within the limits even if each row repeats the longest text there can be.

    The sizes of single columns are not asked for: the library ends the process where these are damaged.
    """
    # Rows of a dictionary refer to its texts and do not repeat them.
    plain = (arrow.types.is_primitive, arrow.types.is_dictionary)
    if all(any(test(field.type) for test in plain) for field in schema):
        return MOST_AT_ONCE
    return min(MOST_AT_ONCE, max(1, most_bytes // max([1, *groups])))


def _bytes_of(arrow: Any, batch: Any) -> int:
    """Without dictionaries, which all batches share."""
    shared = [column.dictionary.nbytes for column in batch.columns if arrow.types.is_dictionary(column.type)]
    return int(batch.nbytes - sum(shared))
