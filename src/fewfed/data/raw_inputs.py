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

    def unlike(self, others: RawInputs) -> str:
        """The first thing in which inputs of one site differ from those of the others, and what to do about it; empty
        where nothing does."""
        if self.kind != others.kind:
            return f"its files are of the kind '{self.kind}', those of the other sites of the kind '{others.kind}'"
        mine, theirs = ({column.name: column for column in each.columns} for each in (self, others))
        for name in [*theirs, *mine]:
            if name not in mine or name not in theirs:
                odd = "it lacks the column" if name not in mine else "the other sites lack its column"
                return f"{odd} '{name:.60}': {_REMEDY} {name:.60}"
            own, other = mine[name].categories, theirs[name].categories
            if bool(own) != bool(other):
                kinds = ("categories", "numbers") if own else ("numbers", "categories")
                return f"its column '{name:.60}' holds {kinds[0]}, that of the others {kinds[1]}: {_REMEDY} {name:.60}"
            for category in sorted({*own} ^ {*other}):
                odd = "it has no" if category not in own else "the other sites have no"
                return f"in column '{name:.60}' {odd} category '{category:.60}': {_REMEDY} {name:.60}"
        return "" if self == others else "its columns come in another order: expected the order of the other sites"


_REMEDY = (
    "expected the same columns and categories at every site; rename it in the file, write 0 and 1 in a column for each "
    "category, or leave the column out everywhere with --ignore"
)
