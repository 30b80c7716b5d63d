"""What one input is made from in a user's own files: enough to make inputs from new files of the same kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fewfed.errors import DataError

Kind = Literal["table", "images", "array"]
KINDS: tuple[Kind, ...] = ("table", "images", "array")


@dataclass(frozen=True)
class InputColumn:
    """A column of a table that is used as input."""

    name: str
    categories: tuple[str, ...] = ()
    """What may stand in a column of categories; each becomes a number, 1 where it stands and 0 elsewhere. Empty for a
    column of numbers."""

    @property
    def width(self) -> int:
        """How many numbers it becomes."""
        return len(self.categories) or 1


@dataclass(frozen=True)
class RawInputs:
    """How a row of a file becomes one input, before it is scaled."""

    kind: Kind
    columns: tuple[InputColumn, ...] = ()
    """Tables: the columns in the order they are used."""

    def as_json(self) -> dict[str, Any]:
        columns = [{"name": column.name, "categories": list(column.categories)} for column in self.columns]
        return {"kind": self.kind, "columns": columns}

    @classmethod
    def from_json(cls, recorded: Mapping[str, Any]) -> RawInputs:
        try:
            kind: Kind = KINDS[KINDS.index(recorded["kind"])]
            columns = tuple(
                InputColumn(str(column["name"]), tuple(map(str, column["categories"])))
                for column in recorded["columns"]
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"what inputs are made from is damaged ({error}): expected what 'fewfed run' wrote"
            ) from error
        return cls(kind, columns)
