"""Columns of an Arrow table as cells, arrays and pictures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fewfed.data.readers.extras import need
from fewfed.data.readers.table import SHOWN, CellKind, Cells, NumberCells, TextCells, at
from fewfed.errors import DataError, in_one_line


@dataclass(frozen=True)
class ArrowTable:
    """A table, what to call it in an error, and the bytes it is stored in."""

    table: Any
    where: str
    stored: int
    separator: str = ","
    _made: dict[str, Cells] = field(default_factory=dict, compare=False, repr=False)

    @property
    def names(self) -> Sequence[str]:
        names: list[str] = self.table.column_names
        return names

    @property
    def rows(self) -> int:
        return int(self.table.num_rows)

    def kind(self, name: str) -> CellKind:
        pa = _arrow()
        kind = self.table.schema.field(name).type
        if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
            kind = kind.field("bytes").type
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            return "pictures"
        if isinstance(kind, pa.ExtensionType):
            kind = kind.storage_type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if _is_text(kind):
            return "text"
        if _is_list(kind):
            return "lists"
        return "numbers" if _is_number(kind) else "other"

    def column(self, name: str) -> Cells:
        if name not in self._made:
            with self._understood():
                values = _plain(self.table.column(name))
                text = self._text(values)
                self._made[name] = self._numbers(name, values) if text is None else TextCells(text)
        return self._made[name]

    def lists(self, name: str) -> np.ndarray:
        with self._understood():
            values = _decoded(_plain(self.table.column(name)))
            shape = [len(values)]
            while _is_list(values.type):
                self._refuse_missing(name, values)
                lengths = np.unique([len(entry) for entry in values])
                if len(lengths) > 1:
                    raise DataError(
                        f"{at(self, name)} holds lists of {lengths[0]} to {lengths[-1]} entries: "
                        "expected one length; pad or cut them"
                    )
                shape.append(int(lengths[0]) if len(lengths) else 0)
                values = values.flatten()
            self._refuse_missing(name, values)
            if not _is_number(values.type):
                raise DataError(
                    f"{at(self, name)} is of type {values.type}: expected numbers beside lists of numbers; leave it "
                    f"out with --ignore '{name[:SHOWN]}'"
                )
            array: np.ndarray = values.to_numpy(zero_copy_only=False)
            return array.reshape(shape)

    def pictures(self, name: str) -> Sequence[bytes]:
        pa = _arrow()
        cells: list[bytes | None] = []
        with self._understood():
            for chunk in self.table.column(name).chunks:
                # Of a structure only the one field: the others may hold anything.
                is_struct = pa.types.is_struct(chunk.type)
                cells += (chunk.flatten()[chunk.type.get_field_index("bytes")] if is_struct else chunk).to_pylist()
        found = []
        for row, encoded in enumerate(cells):
            if not encoded:
                raise DataError(
                    f"{at(self, name)}, row {row} holds no image bytes: expected images stored in the table"
                )
            found.append(encoded)
        return found

    def class_names(self, name: str) -> tuple[str, ...]:
        metadata = self.table.schema.metadata or {}
        try:
            described = json.loads(metadata.get(b"huggingface", b"{}"))
            names = described["info"]["features"][name]["names"]
        except (ValueError, LookupError, TypeError, RecursionError):
            return ()
        return tuple(names) if isinstance(names, list) and all(isinstance(one, str) for one in names) else ()

    def _text(self, values: Any) -> list[str] | None:
        """The cells of a column of text, empty where one is missing; None where it holds something else."""
        if not _arrow().types.is_dictionary(values.type):
            return [cell or "" for cell in values.to_pylist()] if _is_text(values.type) else None
        if not _is_text(values.dictionary.type):
            return None
        # A row refers to its text: written out, a long one on a million rows would fill the memory.
        known = [cell or "" for cell in values.dictionary.to_pylist()]
        return ["" if index is None else known[index] for index in values.indices.to_pylist()]

    def _numbers(self, name: str, values: Any) -> NumberCells:
        plain = _decoded(values)
        self._refuse_other(name, plain)
        missing: np.ndarray = plain.is_null().to_numpy(zero_copy_only=False)
        if plain.null_count:
            # Zeros, because whole numbers with holes would become floating point.
            plain = plain.fill_null(False if _arrow().types.is_boolean(plain.type) else 0)
        array: np.ndarray = plain.to_numpy(zero_copy_only=False)
        if array.dtype.kind == "f":
            missing = missing | np.isnan(array)
        return NumberCells(array, missing)

    def _refuse_other(self, name: str, values: Any) -> None:
        if not _is_number(values.type):
            raise DataError(
                f"{at(self, name)} is of type {values.type}: expected numbers or text; leave it out with "
                f"--ignore '{name[:SHOWN]}'"
            )

    def _refuse_missing(self, name: str, values: Any) -> None:
        if values.null_count:
            raise DataError(
                f"{at(self, name)} has {values.null_count} missing values: expected a value in every row, since lists "
                "cannot be filled in"
            )

    @contextmanager
    def _understood(self) -> Iterator[None]:
        try:
            yield
        except (_arrow().ArrowException, UnicodeError) as error:
            raise DataError(
                f"{self.where} cannot be used ({in_one_line(error)}): expected columns of one plain type"
            ) from error


def _arrow() -> Any:
    return need("pyarrow", "tables", "reading Arrow tables")


def _is_text(kind: Any) -> bool:
    types = _arrow().types
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _is_number(kind: Any) -> bool:
    types = _arrow().types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind))


def _is_list(kind: Any) -> bool:
    types = _arrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _plain(column: Any) -> Any:
    """One array without chunks and without an extension type around its storage."""
    pa = _arrow()
    combined = column.combine_chunks()
    values = pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined
    return values.storage if isinstance(values, pa.ExtensionArray) else values


def _decoded(values: Any) -> Any:
    """Numbers by reference as the numbers themselves, and decimal ones as floating point."""
    types = _arrow().types
    if types.is_dictionary(values.type) and _is_number(values.dictionary.type):
        values = values.dictionary_decode()
    return values.cast("float64") if types.is_decimal(values.type) else values
