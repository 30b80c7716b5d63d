"""The rounds of a run as a flat table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def flat_rounds(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row a record, all with the same columns; None where a round has no such number."""
    rows = [dict(_flat(record)) for record in records]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return [{name: row.get(name) for name in columns} for row in rows]


def _flat(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The plain numbers of a round; `bytes_up` and the like for those one level down, and how many were left out."""
    for name, value in record.items():
        if isinstance(value, (int, float)):
            yield name, value
        elif name in ("bytes", "validation", "leak"):
            yield from ((f"{name}_{inner}", one) for inner, one in value.items() if isinstance(one, (int, float)))
        elif name == "failed":
            yield name, len(value)
