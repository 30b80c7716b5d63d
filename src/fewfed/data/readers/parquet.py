"""A .parquet file with the columns of a .csv file, or with lists of numbers or encoded images."""

from __future__ import annotations

from pathlib import Path

from fewfed.data.examples import Dataset
from fewfed.data.readers.arrow_columns import ArrowTable, parts_of
from fewfed.data.readers.extras import need
from fewfed.data.readers.options import DataOptions
from fewfed.data.readers.own import own_dataset
from fewfed.errors import DataError


def read(path: Path, options: DataOptions, seed: int) -> Dataset:
    parts, names = parts_of(path.stem, [_table(path)], options)
    return own_dataset(path.stem, parts[0], None, options, seed, names)


def read_folder(folder: Path, options: DataOptions, seed: int) -> Dataset:
    """`train.parquet` and `test.parquet` side by side."""
    tables = [_table(folder / f"{part}.parquet") for part in ("train", "test")]
    parts, names = parts_of(folder.name, tables, options)
    return own_dataset(folder.name, parts[0], parts[1], options, seed, names)


def _table(path: Path) -> ArrowTable:
    parquet = need("pyarrow.parquet", "tables", "reading .parquet files")
    arrow = need("pyarrow", "tables", "reading .parquet files")
    try:
        with parquet.ParquetFile(path) as file:
            return ArrowTable(file.read(), str(path))
    except (OSError, arrow.ArrowException) as error:
        raise DataError(
            f"{path} cannot be read ({type(error).__name__}): expected an undamaged .parquet file; write it again"
        ) from error
